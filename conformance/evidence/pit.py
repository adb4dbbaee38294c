"""The probability integral transform: draws from different laws become numbers from one.

A token t becomes F(t-) + W p(t), with W uniform and the suite's own. If t follows the law, that number is uniform
on [0, 1) whatever the law is, so that rows with logits and parameters of their own can be pooled, and
pairs of draws be tested for independence.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from conformance.evidence import Evidence, partitions
from conformance.evidence.cdf import uniform_distance
from conformance.evidence.chart import HistogramChart, rounded
from conformance.evidence.counts import Cells, binomial
from conformance.evidence.dispersion import PoissonCells, poisson_draws, poisson_mean, scattered
from reference import Law
from reference.law import sum_error

BINS = 64
"""Bins of [0, 1) for the scatter of transformed draws."""

SHOWN = 20
"""Bins of the same in a chart."""

GRID = 8
"""Bins a side for pairs."""

NEAR = 2.0**-8
"""Pairs closer than this count as near: repeated numbers show there first."""


def transform(ids: Tensor, law: Law, seed: int, *, by_rank: bool = False) -> Tensor:
    """float64 [slots, draws]: the transform of int64 [slots, draws] ids that lie in the law's support.

    by_rank: with the tokens in descending order of probability, else in index order.
    """
    probs, places = law.probs, ids
    if by_rank:
        probs, order = probs.sort(dim=1, descending=True, stable=True)
        rank = torch.arange(order.shape[1], device=ids.device).expand_as(order)
        places = torch.empty_like(order).scatter_(1, order, rank).gather(1, ids)
    cdf = probs.cumsum(1)
    mass = probs.gather(1, places)
    inside = np.random.Generator(np.random.Philox(seed)).random(ids.shape)
    value = cdf.gather(1, places) - mass * (1 - torch.from_numpy(inside).to(ids.device))
    return value.clamp_(0.0, 1.0)


def slack(law: Law, *, by_rank: bool = False) -> float:
    """How far the distribution function of a right sampler's transformed draws may be from the uniform one.

    The largest over the slots: an fp32 running sum and the grid of u; masses that are off by e^(+-log_error), which
    shift a CDF by at most (e^(2 log_error) - 1) / 4; the mass of the band. By rank the rounding errors of
    up to W / 2 separate runs of tokens add up.
    """
    width = law.probs.shape[1]
    rounding = sum_error(width) / 2 + law.grid
    if by_rank:
        aligned = any(partitions.aligned(probs) for probs in law.probs[law.valid])
        rounding = float(partitions.cdf_rounding(torch.tensor(width / 2), width, law.grid, aligned=aligned))
    band = torch.zeros(len(law.probs), dtype=torch.float64, device=law.probs.device)
    band = band.index_add(0, law.band[:, 0], law.band_mass)
    valid = law.valid
    errors = torch.expm1(2 * law.log_error[valid]) / 4 + band[valid]
    return rounding + (float(errors.max()) if len(errors) else 0.0)


def uniform(asked: str, values: Tensor, slack: float, alpha: float, seed: int) -> list[Evidence]:
    """Transformed draws, float64 [N], are uniform: their distribution function, and their scatter over 64 bins."""
    values = values.reshape(-1)
    counted = poisson_draws(len(values), np.random.default_rng(seed))
    # Which draws are left out must not depend on the draws: the last ones.
    fine = math.lcm(BINS, SHOWN)  # both are sums of these
    bins = (values[:counted] * fine).long().clamp(max=fine - 1).bincount(minlength=fine).cpu()
    cells = _even_cells(bins.view(BINS, -1).sum(1), len(values), 1 / BINS, 2 * slack)
    scatter = scattered(f"{asked}: scatter over {BINS} bins", cells, len(values), alpha / 2)
    shown = HistogramChart(
        of="draws, each as a number that is uniform if the law is followed",
        edges=rounded(np.linspace(0, 1, SHOWN + 1).tolist()),
        observed=tuple(bins.view(SHOWN, -1).sum(1).tolist()),
        expected=rounded([poisson_mean(len(values)) / SHOWN] * SHOWN),
    )
    return [
        uniform_distance(f"{asked}: distribution function", values, slack, alpha / 2),
        replace(scatter, chart=shown),
    ]


def independent(
    asked: str, pairs: list[tuple[str, Tensor, Tensor]], slack: float, alpha: float, seed: int
) -> list[Evidence]:
    """Transformed draws of each list of pairs are independent.

    pairs: (which, float64 [N], float64 [N]); within one entry no draw is in two pairs. slack: as of `slack`.
    Scatter over an 8 x 8 grid sees dependence of any shape; near pairs see repeated numbers.
    """
    rng = np.random.default_rng(seed)
    # A cell's mass is a product of two differences of the distribution function.
    cell_slack = (1 / GRID + 2 * slack) ** 2 - 1 / GRID**2
    grids, near, numbers = [], [], []
    for name, one, other in pairs:
        number = one.numel()
        counted = poisson_draws(number, rng)
        row, column = ((x.reshape(-1)[:counted] * GRID).long().clamp(max=GRID - 1) for x in (one, other))
        grid = _even_cells((row * GRID + column).bincount(minlength=GRID**2), number, GRID**-2, cell_slack)
        grid = replace(grid, label=_eighths)
        grids.append(scattered(f"{asked}, {name}: scatter of pairs", grid, number, alpha / 2 / len(pairs)))
        near.append(int(((one - other).abs() < NEAR).sum()))
        numbers.append(number)
    low, high = near_bounds(slack)
    cells = Cells(
        [f"pairs within {NEAR:.2g}, {name}" for name, _, _ in pairs],
        np.array(near),
        np.array(numbers),
        np.full(len(pairs), low),
        np.full(len(pairs), high),
    )
    worst = min(grids, key=lambda each: each.p_value or 0.0)
    p_value = min(1.0, len(grids) * (worst.p_value or 0.0))
    return [replace(worst, p_value=p_value, alpha=alpha / 2), binomial(f"{asked}: near pairs", cells, alpha / 2)]


def near_bounds(slack: float) -> tuple[float, float]:
    """Least and greatest probability that two independent transformed draws are near.

    Their distance depends on both distribution functions, each off by `slack` at both ends.
    """
    probability = 2 * NEAR - NEAR**2
    return max(0.0, probability - 4 * slack), min(1.0, probability + 4 * slack)


def _eighths(cell: int) -> str:
    """Of the grid, in words."""
    return f"one in eighth {cell // GRID + 1}, other in {cell % GRID + 1}"


def _even_cells(counts: Tensor, draws: int, mass: float, slack: float) -> PoissonCells:
    number = len(counts)
    mean = poisson_mean(draws)
    seen = counts.cpu().numpy().astype(np.float64)
    return PoissonCells(seen, np.full(number, mean * mass), np.full(number, mean * slack), np.zeros(number))
