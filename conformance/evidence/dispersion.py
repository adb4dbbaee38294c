"""Many cells at once: are the counts more scattered than chance makes them?

The statistic is the sum over cells of ((X - E)^2 - X) / max(E, 1): of the unpooled kind, so that cells with an
expectation far below 1 add their part. Nothing about it is asymptotic here: the number of draws that are counted
is itself drawn from a Poisson distribution (`poisson_draws`), so that counts are independent Poisson
numbers, and the tail follows from the moment-generating function of each cell, summed term by term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from conformance.evidence import Evidence
from conformance.evidence.budget import MISS
from conformance.evidence.chart import cell_chart

Array = npt.NDArray[np.float64]

_SINGLE = 1 / 16
"""Share of alpha for single cells that are beyond anything: the sum is over counts below that."""

_BUCKET = 1.25
"""Cells whose expectations lie within this factor, and whose slack and variance within 2 and 4 in units of them, share
two evaluations, at the least and the greatest expectation."""

_BENT = 0.4
"""From here to 1 the factor of a cell is not a convex function of its expectation."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_WEIGHTS = _WEIGHTS / math.sqrt(2 * math.pi)
"""Averages over a normal number, exact for polynomials up to the ninth degree."""


@dataclass(frozen=True)
class PoissonCells:
    """Independent Poisson counts, float64 [K] each.

    counts: what was seen. expected: by the law. slack: how far the expectation of a right sampler may be from that,
    either way. variance: of the expectation of a right sampler, by the rounding of CDF steps, which
    has no preferred sign and is independent from step to step. label: names the cell at a place.
    """

    counts: Array
    expected: Array
    slack: Array
    variance: Array
    label: Callable[[int], str] = "cell {}".format


def poisson_draws(draws: int, rng: np.random.Generator) -> int:
    """How many of `draws` draws to count: a Poisson number, within `draws` but for once in 1e15.

    Conditioning on that once changes no probability by more than 1e-15.
    """
    number = int(rng.poisson(poisson_mean(draws)))
    return number if number <= draws else poisson_draws(draws, rng)


def poisson_mean(draws: int) -> float:
    """The mean of `poisson_draws`."""
    return max(0.0, draws - 8 * math.sqrt(draws))


def scattered(asked: str, cells: PoissonCells, draws: int, alpha: float) -> Evidence:
    """Judge the counts of a Poisson number of the draws."""
    tail = Tail(cells, alpha)
    statistic = _statistic(cells)
    p_value = tail.p_value(cells, statistic)
    observed = f"{statistic:.6g} over {len(cells.counts)} cells"
    if (beyond := cells.counts - tail.most).max() > 0:
        worst = int(beyond.argmax())
        observed += (
            f"; a single cell has {cells.counts[worst]:.0f} draws where {cells.expected[worst]:.4g} are expected, "
            f"and {tail.most[worst]:.0f} are the most that chance makes"
        )
    return Evidence(
        passed=bool(p_value >= alpha),
        asked=asked,
        observed=observed,
        allowed=f"up to {tail.critical:.6g}, with expectation 0 and deviation {tail.deviation:.4g} by chance alone",
        draws=draws,
        p_value=p_value,
        alpha=alpha,
        detectable=tail.detectable(1 - MISS) / 2,
        effect="total variation, every other cell off by a factor",
        chart=cell_chart(
            cells.label, cells.counts, np.maximum(cells.expected - cells.slack, 0), cells.expected + cells.slack, None
        ),
    )


class Tail:
    """The distribution of the statistic in the worst right sampler, by Chernoff's bound.

    P(T > t) <= M(s) e^(-st) for every s > 0, M being the product of E exp(s T_k) over the cells. Each cell's factor
    is a convex function of its Poisson rate, so its supremum over +- slack lies at an end, and rounding
    errors with variance v, sub-Gaussian, give at most what a normal number of variance v gives.
    Within a bucket of similar cells log M is a convex function of E: the chord lies above it.
    At 5e-10 the bound is 43 to 164 times the exact tail over even cells that expect 3 to 20 draws (the convolutions in
    the tests), and some 300 times at 1e-8 over ones that expect 1e-3 to 1e3. Draws go with the root of ln(alpha), so
    that costs half of ln(43) / ln(2e9) to ln(300) / ln(1e8): 9 to 15 % more draws.
    """

    def __init__(self, cells: PoissonCells, alpha: float) -> None:
        expected, weight = cells.expected, 1 / np.maximum(cells.expected, 1)
        self._sums = [float(x.sum()) for x in (weight * expected**2, (weight * expected) ** 2, weight**2 * expected**3)]
        self.deviation = self._moments(0.0)[1]
        buckets = _Buckets.of(cells)
        highest = buckets.greatest + buckets.slack + 8 * buckets.spread
        most = _highest_counts(highest, alpha * _SINGLE / max(1, len(expected)))
        self.most, self._highest = most[buckets.of_cell], highest[buckets.of_cell]
        guess = math.sqrt(-2 * math.log(alpha)) / self.deviation
        # s stays below 1/2, where a cell's factor begins to diverge for large E.
        self._s = np.minimum(guess * np.geomspace(1 / 32, 2, 16), 0.49)
        self._log_m = _log_mgf(buckets, self._s, most)
        self.critical = float(((self._log_m - math.log(alpha * (1 - _SINGLE))) / self._s).min())

    def p_value(self, cells: PoissonCells, statistic: float) -> float:
        """Of the statistic, and of the most extreme single cell."""
        bound = math.exp(min(0.0, float((self._log_m - self._s * statistic).min()))) / (1 - _SINGLE)
        beyond = cells.counts > self.most
        if beyond.any():
            tails: Array = np.asarray(stats.poisson.sf(cells.counts[beyond] - 1, self._highest[beyond]))
            bound = min(bound, float(tails.min()) * len(cells.counts) / _SINGLE)
        return min(1.0, bound)

    def power(self, error: float) -> float:
        """Chance to fail a sampler whose cells are off by a factor 1 +- error, the signs taking turns.

        By the normal approximation, from the exact mean and variance. The sum is skewed to the right, so that its
        lower tail, which is what an overlooked error lies in, is lighter than the normal one.
        """
        mean, deviation = self._moments(error)
        return float(special.ndtr((mean - self.critical) / deviation))

    def detectable(self, power: float) -> float:
        """The least relative error that is seen with this power: 1 and more means none."""
        if self.power(1.0) < power:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if self.power(middle) >= power else (middle, high)
        return high

    def _moments(self, error: float) -> tuple[float, float]:
        """Of the statistic where X ~ Poisson(E (1 +- error)).

        (X - E)^2 - X for X ~ Poisson(r) has mean d^2, d = r - E, and variance 2 r^2 + 4 r d^2; over both signs r^2
        is E^2 (1 + error^2) on average, and r d^2 is E^3 error^2.
        """
        first, second, third = self._sums
        return first * error**2, math.sqrt(2 * second * (1 + error**2) + 4 * third * error**2) or 1.0


def _statistic(cells: PoissonCells) -> float:
    terms = ((cells.counts - cells.expected) ** 2 - cells.counts) / np.maximum(cells.expected, 1)
    return float(terms.sum())


def _highest_counts(rates: Array, chance: float) -> Array:
    """The least number that a Poisson count of each rate exceeds with at most this chance.

    By bisection on the upper tail itself: scipy's inverse goes through 1 - chance, which is 1 below 1e-16.
    """
    low, high = np.floor(rates), np.ceil(rates + 60 * np.sqrt(rates) + 200)
    while (high - low).max() > 1:
        middle = np.floor((low + high) / 2)
        enough = special.pdtrc(middle, rates) <= chance
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high, dtype=np.float64)


@dataclass(frozen=True)
class _Buckets:
    """Cells of similar expectation: how many, the least, greatest and mean of them, the largest slack and spread.

    of_cell: int64 [K], the bucket of each cell.
    """

    sizes: Array
    least: Array
    greatest: Array
    mean: Array
    slack: Array
    spread: Array
    of_cell: npt.NDArray[np.int64]

    @staticmethod
    def of(cells: PoissonCells) -> _Buckets:
        """1 is a boundary, as the weight changes there. Below 1/64 cells hardly count, and share one bucket."""
        expected = np.maximum(cells.expected, 1 / 64)
        levels = [
            np.floor(np.log(np.maximum(values, floor)) / math.log(base))
            for values, floor, base in (
                (expected, 0.0, _BUCKET),
                (cells.slack / expected, 2.0**-20, 2.0),
                (cells.variance / expected, 4.0**-10, 4.0),
            )
        ]
        level = np.ravel_multi_index(
            [(x - x.min()).astype(np.int64) for x in levels], [int(np.ptp(x)) + 1 for x in levels]
        )
        _, of_cell, sizes = np.unique(level, return_inverse=True, return_counts=True)
        least, greatest, slack, variance = np.full(len(sizes), np.inf), *np.zeros((3, len(sizes)))
        np.minimum.at(least, of_cell, cells.expected)
        np.maximum.at(greatest, of_cell, cells.expected)
        np.maximum.at(slack, of_cell, cells.slack)
        np.maximum.at(variance, of_cell, cells.variance)
        mean = np.bincount(of_cell, weights=cells.expected) / sizes
        return _Buckets(sizes.astype(np.float64), least, greatest, mean, slack, np.sqrt(variance), of_cell)


def _log_mgf(buckets: _Buckets, s: Array, most: Array) -> Array:
    """Bound on log E exp(s T), T the statistic over counts up to `most`; float64, of the shape of s."""
    total = np.zeros(len(s))
    columns = (buckets.sizes, buckets.least, buckets.greatest, buckets.mean, buckets.slack, buckets.spread, most)
    for size, least, greatest, mean, slack, spread, limit in zip(*columns, strict=True):
        low_end = high_end = _log_factor(least, slack, spread, limit, s)
        if greatest > least:
            high_end = _log_factor(greatest, slack, spread, limit, s)
        place = min(1.0, max(0.0, (mean - least) / max(greatest - least, 1e-300)))
        # Below an expectation of 1 rates end at 0, and above it the weight changes: not convex there, but monotone.
        bent = least < _BUCKET and greatest > _BENT
        total += size * (np.maximum(low_end, high_end) if bent else (1 - place) * low_end + place * high_end)
    return total


def _log_factor(e: float, slack: float, spread: float, most: float, s: Array) -> Array:
    """log of the greatest E exp(s ((X - e)^2 - X) w) of a cell; float64 [len(s)]."""
    weight, width = 1 / max(e, 1.0), math.sqrt(max(e, 1.0))
    rates = np.maximum(e + slack * np.array([[-1.0], [1.0]]) + spread * _NODES, 1e-300)[..., None]
    # A sum over every integer, or over every h-th point where the terms are that smooth: with 6 points a
    # standard deviation the two differ by exp(-2 pi^2 6^2) of the sum.
    step = max(1.0, math.floor(width / 6))
    x = np.arange(max(0.0, math.floor(e - 25 * width - slack - 8 * spread)), most + 1, step)
    log_pmf = x * np.log(rates) - rates - special.gammaln(x + 1)  # [2 ends, rates, x]
    highest = log_pmf.max(1)
    averaged = highest + np.log((_WEIGHTS[:, None] * step * np.exp(log_pmf - highest[:, None])).sum(1))
    terms = averaged + s[:, None, None] * (weight * ((x - e) ** 2 - x))
    greatest = terms.max(2)
    factor: Array = (greatest + np.log(np.exp(terms - greatest[..., None]).sum(2))).max(1)
    return factor
