"""How often tokens and groups of tokens were drawn, against the law: exact binomial tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import special, stats
from torch import Tensor

from conformance.evidence import Evidence
from conformance.evidence.budget import MISS
from reference import Law
from reference.law import sum_error

HEAD = 48
"""Tokens tested one by one: the most probable ones of each slot, and the least probable kept one."""

GROUPS = 16
"""Groups of about equal mass in a partition by rank or by index."""

DEPTH = 20
"""Groups of a partition of the tail: those of depth j begin where 2^-j of the mass is left."""

LANES, TILE = 32, 1024
"""A GPU's lanes in a warp, and a common number of tokens that a block handles at a time."""

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


def follows_law(ids: Tensor, law: Law, alpha: float) -> Evidence:
    """Tokens, and structured groups of them, come as often as the law says.

    ids: int64 [slots, draws], inside the vocabulary. alpha: false-alarm probability of this check.
    """
    return binomial("tokens and groups of tokens come as often as the law says", cells_of(ids, law), alpha)


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
        detectable=detectable(cells, alpha / tests),
    )


def detectable(cells: Cells, alpha: float) -> float:
    """The smallest shift, up or down, that is seen in whichever cell it occurs, with probability 1 - 1e-6.

    A count of c or more is seen at probability q with chance I_q(c, N - c + 1), so the inverse of the
    regularised incomplete beta function gives q exactly. For each cell the easier direction counts, and the
    hardest cell. Cells that must stay empty, or take everything, see more than the others and are left out.
    """
    n = cells.trials
    least = stats.binom.isf(alpha, n, cells.high) + 1  # the smallest count that fails
    most = stats.binom.ppf(alpha, n, cells.low) - 1  # the largest count that fails, -1 if none
    with np.errstate(invalid="ignore"):
        up = np.where(
            least <= n, special.betaincinv(least, np.maximum(n - least + 1, 1), 1 - MISS) - cells.high, np.inf
        )
        down = np.where(most >= 0, cells.low - special.betaincinv(most + 1, np.maximum(n - most, 1), MISS), np.inf)
    shifts = np.minimum(up, down)[(cells.high > 0) & (cells.low < 1)]
    return float(shifts.max()) if len(shifts) else 0.0


def cells_of(ids: Tensor, law: Law) -> Cells:
    """Head tokens, and partitions by parity, lane, tile, index and rank, of each slot."""
    slots, draws = ids.shape
    width = law.probs.shape[1]
    flat = ids + torch.arange(slots, device=ids.device)[:, None] * width
    counts = torch.bincount(flat.reshape(-1), minlength=slots * width).view(slots, width)
    names: list[str] = []
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for slot in range(slots):
        for name, labels in _partitions(law.probs[slot]):
            cells = int(labels.max()) + 1
            low, high = _mass_bounds(law, slot, labels, cells)
            seen = torch.zeros(cells, dtype=torch.int64, device=ids.device).scatter_add_(0, labels, counts[slot])
            kept = slice(1, None) if name == "token" else slice(None)  # label 0 is "all others"
            parts.append((seen[kept], low[kept], high[kept]))
            tokens = labels.argsort(stable=True)[-(cells - 1) :].tolist() if name == "token" else range(cells)
            names += [f"slot {slot}, {name} {which}" for which in tokens]
    columns = [torch.cat([part[i] for part in parts]).cpu().numpy() for i in range(3)]
    return Cells(names, columns[0], np.full(len(names), draws), columns[1], columns[2])


def _partitions(probs: Tensor) -> list[tuple[str, Tensor]]:
    """Labels int64 [W] of each partition of one slot's tokens. Label 0 of "token" is all other tokens."""
    width = len(probs)
    index = torch.arange(width, device=probs.device)
    order = torch.argsort(probs, descending=True, stable=True)
    kept = int((probs > 0).sum())
    single = torch.cat([order[: min(HEAD, kept)], order[kept - 1 : kept] if kept > HEAD else order[:0]])
    labels = torch.zeros(width, dtype=torch.int64, device=probs.device)
    # Numbered in index order, so that a sort of the labels gives the tokens back.
    single = single.sort().values
    labels[single] = torch.arange(1, len(single) + 1, device=probs.device)
    partitions = [("token", labels)]
    if width <= HEAD:
        return partitions
    by_rank, by_depth = torch.empty_like(index), torch.empty_like(index)
    by_rank[order] = _strata(probs[order])
    # Tail tokens, in groups that each hold about half of the mass that is left.
    left = (probs[order].flip(0).cumsum(0).flip(0)).clamp(min=2.0**-DEPTH)
    by_depth[order] = (-torch.log2(left)).long().clamp(0, DEPTH - 1)
    return [
        *partitions,
        ("parity", index % 2),
        ("lane", index % LANES),
        ("tile", index // TILE),
        ("index group", _strata(probs)),
        ("rank group", by_rank),
        ("depth", by_depth),
    ]


def _strata(probs: Tensor) -> Tensor:
    """Consecutive groups of about equal mass."""
    middle = probs.cumsum(0) - probs / 2
    return (middle * GROUPS).long().clamp(0, GROUPS - 1)


def _mass_bounds(law: Law, slot: int, labels: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Least and greatest probability of each cell in any right sampler.

    The hull over subsets of the band's tokens, over masses that are off by e^(+-log_error), and over the
    rounding of an fp32 inverse CDF.
    """

    def per_cell(values: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(cells, dtype=torch.float64, device=values.device).scatter_add_(0, at, values)

    in_slot = law.band[:, 0] == slot
    must = per_cell(law.probs[slot] * law.must_keep[slot], labels)
    band = per_cell(law.band_mass[in_slot], labels[law.band[in_slot, 1]])
    up = torch.exp(law.log_error[slot])
    greatest, least = (must + band) * up, must / up
    others_least, others_greatest = least.sum() - least, greatest.sum() - greatest
    runs = per_cell((labels != labels.roll(1)).to(torch.float64), labels).clamp(min=1)
    rounding = cdf_rounding(runs, len(labels))
    low = least / (least + others_greatest) - rounding
    high = greatest / (greatest + others_least) + rounding
    # A cell without mass keeps none: ids outside the support are the support check's business.
    return low.nan_to_num(0.0).clamp(0, 1), torch.where(greatest > 0, high, 0.0).nan_to_num(1.0).clamp(0, 1)


def cdf_rounding(runs: Tensor, width: int) -> Tensor:
    """How much an fp32 inverse CDF can move the mass of a cell that consists of `runs` runs of tokens.

    Each end of a run lies on a step of the CDF, which is off by d: the error of the running sum, and
    2^-24 for the grid of u. So at most 2 d for one run. The errors of far steps are common to both ends
    of a short run; what is left is each step's own rounding to 2^-24. For partitions that were chosen
    without looking at the logits the sum of 2 * runs such errors is within 2^-24 * sqrt(runs * 27 * 2)
    with probability 1 - 1e-12 (Hoeffding).
    """
    d = sum_error(width) / 2 + 2.0**-24
    return torch.minimum(2 * runs * d, 2 * d + 2.0**-24 * torch.sqrt(54 * runs))


def matches(pairs: list[tuple[str, int, int]], law: Law, alpha: float) -> Evidence:
    """How often two independent draws are equal: sum of p^2, exactly binomial.

    pairs: (which pairs, how many are equal, how many there are); within one entry no draw is in two pairs.
    law: of one slot that has no token in the band, and which all draws share. The bounds widen with the
    law's rounding error.
    """
    probability = float((law.probs[0] ** 2).sum())
    slack = math.expm1(2 * float(law.log_error[0])) + 4 * sum_error(law.probs.shape[1])
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
