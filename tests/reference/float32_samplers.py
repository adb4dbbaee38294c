"""Kept sets as float32 samplers find them: right ones that differ in every rounding, and wrong ones.

Each is a function (logits [n, V], T, k, p) -> bool [n, V]; k = 0 and p = 0 mean "off". None of them shares code with
`reference.law`: the right ones are what engines do, the wrong ones are defects that were shipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

KeptSet = Callable[[Tensor, float, int, float], Tensor]


# How w = z / T is rounded.
def divide(z: Tensor, temperature: float) -> Tensor:
    return z / torch.tensor(temperature)


def multiply(z: Tensor, temperature: float) -> Tensor:
    return z * (1 / torch.tensor(temperature))


def subtract_first(z: Tensor, temperature: float) -> Tensor:
    return (z - z.amax(1, keepdim=True)) / torch.tensor(temperature)


# How masses are.
def by_softmax(w: Tensor) -> Tensor:
    return torch.softmax(w, 1)


def by_exp2(w: Tensor) -> Tensor:
    """As GPU kernels do: log2(e) goes into the exponent, in float32."""
    exponents = (w - w.amax(1, keepdim=True)) * torch.tensor(1 / math.log(2))
    # One exp2 a distinct value: on a CPU torch rounds it otherwise in the last elements of a tensor, which no vector
    # register holds whole, and equal logits would differ by their position.
    distinct, position = exponents.unique(return_inverse=True)
    mass = torch.exp2(distinct)[position]
    return mass / tree_sum(mass)


def by_log_softmax(w: Tensor) -> Tensor:
    return torch.log_softmax(w, 1).exp()


# How masses are summed.
def by_torch_cumsum(mass: Tensor) -> Tensor:
    return mass.cumsum(1)


def by_tiles(mass: Tensor) -> Tensor:
    """A block scan: tiles of 4,096, log2 steps within a tile, each tile carries into the next."""
    out, carry = [], torch.zeros(mass.shape[0], 1)
    for tile in mass.split(4096, dim=1):
        scan = tile
        step = 1
        while step < tile.shape[1]:
            scan = scan + torch.nn.functional.pad(scan, (step, 0))[:, : tile.shape[1]]
            step *= 2
        out.append(carry + scan)
        carry = out[-1][:, -1:]
    return torch.cat(out, 1)


def tree_sum(mass: Tensor) -> Tensor:
    """[n, 1]: neighbours are added until one is left."""
    while mass.shape[1] > 1:
        mass = torch.nn.functional.pad(mass, (0, mass.shape[1] % 2))
        mass = mass[:, ::2] + mass[:, 1::2]
    return mass


def tie_keeping(
    scale: Callable[[Tensor, float], Tensor],
    softmax: Callable[[Tensor], Tensor],
    cumsum: Callable[[Tensor], Tensor],
    *,
    compare_with_complement: bool = False,
) -> KeptSet:
    """Sort, sum and cut at a value, so that equal probabilities stay together."""

    def kept(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
        w = scale(z.float(), temperature)
        keep = w > -math.inf
        if 0 < top_k < z.shape[1]:
            keep &= w >= w.sort(1, descending=True).values[:, top_k - 1 : top_k]
        if 0 < top_p < 1:
            probs = softmax(w.masked_fill(~keep, -math.inf))
            descending = probs.sort(1, descending=True).values
            p = torch.tensor(top_p)
            if compare_with_complement:
                # From the small end: drop while the sum of what is left out stays at or below 1 - p.
                ascending = cumsum(descending.flip(1)).flip(1)
                keep_sorted = ascending > 1 - p
            else:
                keep_sorted = cumsum(descending) - descending < p
            keep_sorted[:, 0] = True
            last = keep_sorted.sum(1, keepdim=True) - 1
            # What underflowed to 0 is never drawn, whether it counts as kept or not.
            keep &= (probs >= descending.gather(1, last)) & (probs > 0)
        return keep

    return kept


def pivot_search(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """No sort: bisect for the smallest value that is kept, with a fresh tree sum a try, as rejection kernels do."""
    mass = by_exp2(divide(z.float(), temperature))
    keep = mass > 0
    if 0 < top_k < z.shape[1]:
        keep = _smallest_kept(mass, keep, lambda larger: larger.sum(1, keepdim=True) < top_k)
        mass = torch.where(keep, mass, 0.0)
        mass = mass / tree_sum(mass)
    if 0 < top_p < 1:
        p = torch.tensor(top_p)
        keep = _smallest_kept(mass, keep, lambda larger: tree_sum(torch.where(larger, mass, 0.0)) < p)
    return keep


def _smallest_kept(mass: Tensor, keep: Tensor, decide: Callable[[Tensor], Tensor]) -> Tensor:
    """Keep mass >= the smallest value whose strictly larger tokens satisfy `decide`."""
    values = torch.where(keep, mass, 0.0).sort(1, descending=True).values
    low = torch.zeros(mass.shape[0], 1, dtype=torch.int64)  # always kept
    high = keep.sum(1, keepdim=True) - 1
    for _ in range(mass.shape[1].bit_length()):
        middle = (low + high + 1) // 2
        fine = decide(mass > values.gather(1, middle)) | (middle == 0)
        low = torch.where(fine, middle, low)
        high = torch.where(fine, high, middle - 1)
    return keep & (mass >= values.gather(1, low))


def sorted_by_index(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """A stable sort, and a cut by position: ties are split, lowest index first."""
    return _cut_by_position(z, temperature, top_k, top_p, torch.arange(z.shape[1]))


def sorted_in_any_order(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """A sort that is not stable: equal tokens in an order of its own."""
    return _cut_by_position(
        z, temperature, top_k, top_p, torch.randperm(z.shape[1], generator=torch.Generator().manual_seed(5))
    )


def _cut_by_position(z: Tensor, temperature: float, top_k: int, top_p: float, order: Tensor) -> Tensor:
    w = divide(z.float(), temperature)[:, order]
    w, position = w.sort(dim=1, descending=True, stable=True)
    keep = w > -math.inf
    if 0 < top_k < z.shape[1]:
        keep[:, top_k:] = False
    if 0 < top_p < 1:
        probs = by_softmax(w.masked_fill(~keep, -math.inf))
        keep &= by_torch_cumsum(probs) - probs < torch.tensor(top_p)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order[position], keep)


RIGHT: dict[str, KeptSet] = {
    "divide-softmax-cumsum": tie_keeping(divide, by_softmax, by_torch_cumsum),
    "divide-logsoftmax-tiles": tie_keeping(divide, by_log_softmax, by_tiles),
    "reciprocal-exp2-tiles": tie_keeping(multiply, by_exp2, by_tiles),
    "subtract-exp2-cumsum": tie_keeping(subtract_first, by_exp2, by_torch_cumsum),
    "reciprocal-softmax-complement": tie_keeping(multiply, by_softmax, by_tiles, compare_with_complement=True),
    "pivot-search": pivot_search,
}


# The wrong ones.
def one_more(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """N07, N13: the nucleus, or the k, one token too many."""
    return _shifted(z, temperature, top_k, top_p, 1)


def one_less(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """N01 to N05: the token that crosses p is dropped."""
    return _shifted(z, temperature, top_k, top_p, -1)


def _shifted(z: Tensor, temperature: float, top_k: int, top_p: float, by: int) -> Tensor:
    right = RIGHT["divide-softmax-cumsum"](z, temperature, top_k, top_p)
    count = right.sum(1, keepdim=True) + by
    position = z.argsort(1, descending=True)
    return torch.zeros_like(right).scatter_(1, position, torch.arange(z.shape[1]) < count)


def bf16_softmax(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """C01: softmax in the logits' dtype."""
    return tie_keeping(divide, lambda w: by_softmax(w.bfloat16()).float(), by_torch_cumsum)(
        z, temperature, top_k, top_p
    )


def bf16_cumsum(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """C01: the running sum in the logits' dtype."""
    sums = tie_keeping(divide, by_softmax, lambda mass: mass.bfloat16().cumsum(1).float())
    return sums(z, temperature, top_k, top_p)


def joint(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """O01, O02: p on the whole distribution, not on what k left."""
    right = RIGHT["divide-softmax-cumsum"]
    return right(z, temperature, top_k, 0.0) & right(z, temperature, 0, top_p)


def temperature_last(z: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:  # noqa: ARG001  # the defect
    """O05: filters at T = 1."""
    return RIGHT["divide-softmax-cumsum"](z, 1.0, top_k, top_p)
