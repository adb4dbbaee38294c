"""How often tokens and groups of tokens were drawn, against the law: exact binomial tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import special, stats
from torch import Tensor

from conformance.evidence import Evidence, partitions
from conformance.evidence.budget import MISS
from conformance.evidence.chart import cell_chart
from reference import Law
from reference.law import sum_error

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """Disjoint or overlapping groups of tokens, of all slots: one binomial test each.

    names [K]; counts int64 [K]; trials int64 [K]: draws of the cell's slot; low, high float64 [K]: the
    cell's probability in any right sampler lies between them.
    """

    names: list[str]
    counts: npt.NDArray[np.int64]
    trials: npt.NDArray[np.int64]
    low: Array
    high: Array


def counts_of(ids: Tensor, width: int) -> Tensor:
    """int64 [slots, width]: how often each token came. ids: int64 [slots, draws]."""
    slots = len(ids)
    flat = ids + torch.arange(slots, device=ids.device)[:, None] * width
    return torch.bincount(flat.reshape(-1), minlength=slots * width).view(slots, width)


def follows_law(ids: Tensor, law: Law, alpha: float) -> Evidence:
    """Tokens, and structured groups of them, come as often as the law says.

    ids: int64 [slots, draws], inside the vocabulary. alpha: false-alarm probability of this check.
    """
    return counts_follow_law(counts_of(ids, law.probs.shape[1]), law, alpha)


def counts_follow_law(counts: Tensor, law: Law, alpha: float) -> Evidence:
    """The same from counts, int64 [slots, W]."""
    return binomial("tokens and groups of tokens come as often as the law says", cells_of(counts, law), alpha)


def binomial(asked: str, cells: Cells, alpha: float) -> Evidence:
    """Exact binomial test of each cell, both sides, over an interval null; alpha is split evenly."""
    tests = max(1, 2 * len(cells.names))
    upper = stats.binom.sf(cells.counts - 1, cells.trials, cells.high)
    lower = stats.binom.cdf(cells.counts, cells.trials, cells.low)
    p_values = np.minimum(upper, lower)
    worst = int(np.argmin(p_values))
    p_value = min(1.0, tests * float(p_values[worst]))
    seen = cells.counts[worst] / cells.trials[worst]
    return Evidence(
        passed=bool(p_value >= alpha),
        asked=asked,
        observed=f"{cells.names[worst]}: {cells.counts[worst]} of {cells.trials[worst]} draws, {seen:.6g}",
        allowed=f"probability {cells.low[worst]:.6g} to {cells.high[worst]:.6g}; p >= {alpha:.2g} over {tests} tests",
        draws=int(cells.trials.max()),
        p_value=p_value,
        alpha=alpha,
        detectable=min(1.0, detectable(cells, alpha / tests)),
        effect="shift of the probability of any one cell",
        chart=cell_chart(
            cells.names.__getitem__, cells.counts, cells.trials * cells.low, cells.trials * cells.high, cells.trials
        ),
    )


def detectable(cells: Cells, alpha: float, miss: float = MISS) -> float:
    """The smallest shift, up or down, that is seen in whichever cell it occurs, with probability 1 - 1e-6.

    A count of c or more is seen at probability q with chance I_q(c, N - c + 1), so the inverse of the
    regularised incomplete beta function gives q exactly. For each cell the easier direction counts, and the
    hardest cell. Cells that must stay empty, or take everything, see more than the others and are left out.
    """
    n = cells.trials
    least, most = _limits(cells, alpha)
    with np.errstate(invalid="ignore"):
        up = np.where(
            least <= n, special.betaincinv(least, np.maximum(n - least + 1, 1), 1 - miss) - cells.high, np.inf
        )
        down = np.where(most >= 0, cells.low - special.betaincinv(most + 1, np.maximum(n - most, 1), miss), np.inf)
    shifts = np.minimum(up, down)[(cells.high > 0) & (cells.low < 1)]
    return float(shifts.max()) if len(shifts) else 0.0


def _limits(cells: Cells, alpha: float) -> tuple[Array, Array]:
    """The smallest count that fails upwards, N + 1 if none; the largest that fails downwards, -1 if none."""
    n = cells.trials.astype(np.float64)

    def smallest(fails: Callable[[Array], npt.NDArray[np.bool_]]) -> Array:
        low, high = np.full(len(n), -1.0), n + 1  # fails nowhere up to low, everywhere from high on
        for _ in range(int(np.log2(n.max() + 2)) + 2):
            middle = np.floor((low + high) / 2)
            low, high = np.where(fails(middle), (low, middle), (middle, high))
        return high

    # The tails themselves: scipy's inverse of the upper one goes through 1 - alpha, which is 1 below 1e-16.
    def upwards(x: Array) -> npt.NDArray[np.bool_]:
        tail = special.betainc(np.maximum(x, 1), np.maximum(n - x, 0) + 1, cells.high)
        found: npt.NDArray[np.bool_] = (x > n) | ((x > 0) & (tail < alpha))
        return found

    def not_downwards(x: Array) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (
            special.betainc(np.maximum(n - x, 1), np.maximum(x, 0) + 1, 1 - cells.low) >= alpha
        )
        return found | (x >= n)

    up, down = smallest(upwards), smallest(not_downwards) - 1
    return up, down


def cells_of(counts: Tensor, law: Law) -> Cells:
    """Head tokens, and partitions by parity, lane, tile, index and rank, of each slot. counts: int64 [slots, W]."""
    slots, width = counts.shape
    draws = int(counts[0].sum())
    names: list[str] = []
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for slot in range(slots):
        aligned = partitions.aligned(law.probs[slot])
        for name, labels in partitions.cells(law.probs[slot]):
            number = int(labels.max()) + 1
            bounds = partitions.bounds(law, slot, labels, number, aligned=aligned)
            rounding = partitions.cdf_rounding(bounds.runs, width, law.grid, aligned=bounds.aligned)
            slack = torch.where(bounds.law + bounds.slack > 0, bounds.slack + rounding, 0.0)
            low, high = ((bounds.law + sign * slack).clamp(0, 1) for sign in (-1, 1))
            seen = torch.zeros(number, dtype=torch.int64, device=counts.device).scatter_add_(0, labels, counts[slot])
            kept = slice(1, None) if name == "token" else slice(None)  # label 0 is "all others"
            parts.append((seen[kept], low[kept], high[kept]))
            tokens = labels.argsort(stable=True)[-(number - 1) :].tolist() if name == "token" else range(number)
            names += [f"slot {slot}, {name} {which}" for which in tokens]
    columns = [torch.cat([part[i] for part in parts]).cpu().numpy() for i in range(3)]
    return Cells(names, columns[0], np.full(len(names), draws), columns[1], columns[2])


def matches(pairs: list[tuple[str, int, int]], law: Law, alpha: float) -> Evidence:
    """How often two independent draws are equal: sum of p^2, exactly binomial.

    pairs: (which pairs, how many are equal, how many there are); within one entry no draw is in two pairs.
    law: of one slot that has no token in the band, and which all draws share. The bounds widen with the
    law's rounding error, and with the grid g of u where it is wider than float32's: masses off by 2 g each change the
    sum by at most 4 g, and 4 g^2 a token.
    """
    probability = float((law.probs[0] ** 2).sum())
    slack = math.expm1(2 * float(law.log_error[0])) + 4 * sum_error(law.probs.shape[1])
    if law.grid > 2.0**-24:
        slack += (4 * law.grid + 4 * law.probs.shape[1] * law.grid**2) / probability
    names, same, numbers = (list(column) for column in zip(*pairs, strict=True))
    low, high = max(0.0, probability * (1 - slack)), min(1.0, probability * (1 + slack))
    cells = Cells(
        [f"equal tokens, {name}" for name in names],
        np.array(same),
        np.array(numbers),
        np.full(len(pairs), low),
        np.full(len(pairs), high),
    )
    return binomial("draws that should be independent are equal as often as chance has it", cells, alpha)
