"""Groups of tokens: how a vocabulary is cut, and how much mass a right sampler may give each piece."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference import Law
from reference.law import sum_error

HEAD = 48
"""Tokens tested one by one: the most probable ones of each slot, and the least probable kept one."""

GROUPS = 16
"""Groups of about equal mass in a partition by rank or by index."""

DEPTH = 20
"""Groups of a partition of the tail: those of depth j begin where 2^-j of the mass is left."""

LANES, VECTOR, TILE = 32, 128, 1024
"""A GPU's lanes in a warp, tokens that a warp reads at once (4 a lane), and a common tile of a block."""

HASHES = 256
"""Cells of a partition by a seeded hash, for errors that follow no order."""


@dataclass(frozen=True)
class Bounds:
    """The probability of each cell of one slot, float64 [cells].

    law: exactly. slack: how far a right sampler may be from it, by bands and by the error of masses.
    runs: number of runs of consecutive tokens that the cell consists of. aligned: whether the roundings of their
        steps may repeat from run to run.
    """

    law: Tensor
    slack: Tensor
    runs: Tensor
    aligned: bool


def cells(probs: Tensor) -> list[tuple[str, Tensor]]:
    """Partitions of one slot's tokens for a test of each cell: names, and labels int64 [W].

    Label 0 of "token" is all other tokens.
    """
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
    by_rank[order] = _strata(probs[order], GROUPS)
    # Tail tokens, in groups that each hold about half of the mass that is left.
    left = (probs[order].flip(0).cumsum(0).flip(0)).clamp(min=2.0**-DEPTH)
    by_depth[order] = (-torch.log2(left)).long().clamp(0, DEPTH - 1)
    return [
        *partitions,
        ("parity", index % 2),
        ("lane", index % LANES),
        ("tile", index // TILE),
        ("index group", _strata(probs, GROUPS)),
        ("rank group", by_rank),
        ("depth", by_depth),
    ]


def scatters(probs: Tensor, seed: int) -> list[tuple[str, Tensor]]:
    """Partitions of one slot's tokens for a test of all cells at once: names, and labels int64 [W].

    Only those with cells of four tokens or more, beside that of single tokens.
    """
    width = len(probs)
    index = torch.arange(width, device=probs.device)
    partitions = [("token", index)]
    if width >= 4 * VECTOR:
        partitions += [("place in a vector", index % VECTOR), ("vector", index // VECTOR)]
    if width >= 4 * TILE:
        partitions.append(("place in a tile", index % TILE))
    if width >= 4 * HASHES:
        order = torch.argsort(probs, descending=True, stable=True)
        by_rank = torch.empty_like(index)
        by_rank[order] = _strata(probs[order], HASHES)
        hashed = torch.randint(HASHES, (width,), generator=torch.Generator().manual_seed(seed))
        partitions += [("rank group", by_rank), ("hash", hashed.to(probs.device))]
    return partitions


def bounds(law: Law, slot: int, labels: Tensor, number: int, *, aligned: bool) -> Bounds:
    """The hull over subsets of the band's tokens, and over masses that are off by e^(+-log_error)."""

    def per_cell(values: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(number, dtype=torch.float64, device=values.device).scatter_add_(0, at, values)

    in_slot = law.band[:, 0] == slot
    probs = law.probs[slot]
    must = per_cell(probs * law.must_keep[slot], labels)
    band = per_cell(law.band_mass[in_slot], labels[law.band[in_slot, 1]])
    up = torch.exp(law.log_error[slot])
    greatest, least = (must + band) * up, must / up
    others_least, others_greatest = least.sum() - least, greatest.sum() - greatest
    # A cell without mass keeps none: ids outside the support are the support check's business.
    low = (least / (least + others_greatest)).nan_to_num(0.0)
    high = torch.where(greatest > 0, greatest / (greatest + others_least), 0.0).nan_to_num(1.0)
    center = per_cell(probs, labels)
    runs = per_cell((labels != labels.roll(1)).to(torch.float64), labels).clamp(min=1)
    return Bounds(center, torch.maximum(high - center, center - low).clamp(min=0), runs, aligned)


def aligned(probs: Tensor) -> bool:
    """Whether most tokens of this slot have about the mass of the one a short way before: 1, 2, 4, ... or 4,096.

    Then tile after tile adds about the same numbers and rounds alike, so that errors repeat with the tiles' period.
    About: within 1/64. Of neighbours in a row of normal logits (deviation 2) one in 200 is that near, of those in a
    flat or narrow one all are: rows of either sort lie far from the half where the line is drawn.
    """
    repeats = [probs.new_zeros(())]
    for lag in (2**i for i in range(13) if 2**i < len(probs)):
        one, other = probs[lag:], probs[:-lag]
        both = (one > 0) & (other > 0)
        alike = both & ((one - other).abs() <= other / 64)
        repeats.append(alike.sum() / both.sum().clamp(min=64))
    return bool(torch.stack(repeats).max() > 1 / 2)


def ends(probs: Tensor) -> list[int]:
    """The tokens of this slot that take the rounding of the whole sum: the last one with mass, and the least one.

    By index, and in descending order, as samplers that sort first add them.
    """
    kept = (probs > 0).nonzero()[:, 0]
    return [int(kept[-1]), int(kept[probs[kept].flip(0).argmin().neg() - 1])]


def cdf_rounding(runs: Tensor, width: int, grid: float, *, aligned: bool) -> Tensor:
    """How much an fp32 inverse CDF can move the mass of a cell that consists of `runs` runs of tokens.

    Each end of a run lies on a step of the CDF, which is off by d: the error of the running sum, and
    the grid of u. So at most 2 d for one run. The errors of far steps are common to both ends of a short
    run; what is left is each step's own rounding r, half of 2^-24 and of the grid. For partitions that were chosen
    without looking at the logits the sum of 2 * runs such errors is within r * sqrt(runs * 27 * 2)
    with probability 1 - 1e-12 (Hoeffding); where they may repeat, within r * 2 * runs.
    """
    d = sum_error(width) / 2 + grid
    own = 2 * runs if aligned else torch.sqrt(54 * runs)
    return torch.minimum(2 * runs * d, 2 * d + (2.0**-25 + grid / 2) * own)


def step_errors(bounds: Bounds, grid: float) -> tuple[Tensor, Tensor]:
    """How far the mass of each cell may be off by its steps' own roundings: a bound, and a variance beside it.

    At both ends of a run, 2^-25 for the running sum and half the grid of u. Independent, unless they may repeat:
    then a number within +- b has no greater exponential moments than a normal one of variance b^2 (Hoeffding). What
    far steps have in common is left to `cdf_rounding`: it moves few cells, and those by little against their own mass.
    """
    if bounds.aligned:
        return 2 * bounds.runs * (2.0**-25 + grid / 2), torch.zeros_like(bounds.runs)
    return torch.zeros_like(bounds.runs), 2 * bounds.runs * (2.0**-50 + grid**2 / 4)


def _strata(probs: Tensor, groups: int) -> Tensor:
    """Consecutive groups of about equal mass."""
    middle = probs.cumsum(0) - probs / 2
    return (middle * groups).long().clamp(0, groups - 1)
