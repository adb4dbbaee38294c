"""FlashInfer's drawing kernels again, in float32 on a CPU, straight from their rules; and ways to break them.

Whole [draws, W] matrices, a log-step scan and no levels: nothing is shared with the replay that is tested with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

FAULTS = ("wide-k", "wide-p", "first-pivot-only", "far-pivot", "same-number", "keeps-q", "low-inclusive")


def scan(values: Tensor) -> Tensor:
    """Running sums along the rows, every addition rounded to float32."""
    sums = values.clone()
    step = 1
    while step < values.shape[1]:
        sums[:, step:] = sums[:, step:] + sums[:, :-step].clone()
        step *= 2
    return sums


def first_above(mass: Tensor, threshold: Tensor) -> Tensor:
    """First token with mass whose running sum exceeds the threshold, else the last token with mass."""
    places = torch.arange(mass.shape[1]).expand_as(mass)
    hit = (scan(mass) > threshold[:, None]) & (mass > 0)
    first = torch.where(hit, places, mass.shape[1]).amin(1)
    last = torch.where(mass > 0, places, -1).amax(1)
    return torch.where(first < mass.shape[1], first, last)


def draw(probs: Tensor, k: Tensor, p: Tensor, numbers: Tensor, fault: str = "") -> Tensor:
    """The joint kernel; with k = W or p = 2 that of the other filter alone.

    probs: float32 [n, W]. k, p: [n]. numbers: float32 [rounds, n]. Returns int64 [n].
    """
    n = len(probs)
    if fault == "wide-k":
        # The kept set gains the most probable token that it left out, and what is tied with it.
        k = (probs >= probs.sort(1, descending=True).values.gather(1, k[:, None] - 1)).sum(1) + 1
    if fault == "wide-p":
        before = torch.where(probs[:1] > probs[0, :, None], probs[:1], 0.0).sum(1)  # all rows are one
        p = before[before >= p[0]].amin().expand(n) + 1e-6
    low, high, q = torch.zeros(n), torch.ones(n), torch.ones(n)
    ids = torch.full((n,), -1)
    active = torch.ones(n, dtype=torch.bool)
    for number in range(len(numbers)):
        at = active.nonzero()[:, 0]
        if not len(at):
            break
        rows = probs[at]
        u = numbers[0 if fault == "same-number" else number, at] * q[at]
        above = rows >= low[at, None] if fault == "low-inclusive" else rows > low[at, None]
        token = first_above(torch.where(above, rows, 0.0), u)
        pivot_0 = rows.gather(1, token[:, None])[:, 0]
        pivot_1 = (pivot_0 + high[at]) * 0.5
        if fault == "far-pivot":
            pivot_1 = (3 * pivot_0 + high[at]) * 0.25
        kept, masses = [], []
        for pivot in (pivot_0, pivot_1):
            beyond = rows > pivot[:, None]
            masses.append(torch.where(beyond, rows, 0.0).sum(1))
            kept.append((beyond.sum(1) < k[at]) & (masses[-1] < p[at]))
        if fault == "first-pivot-only":
            kept[1] = torch.ones_like(kept[1])
        ids[at] = torch.where(kept[0], token, -1)
        low[at] = torch.where(kept[1], pivot_0, pivot_1)
        if fault != "keeps-q":
            q[at] = torch.where(kept[1], masses[0], masses[1])
        high[at] = torch.where(kept[1], pivot_1, high[at])
        active[at] = ~kept[0]
    assert not active.any()
    return ids
