"""The scatter of many cells: its tail against convolution and importance sampling, its power against simulation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats

from conformance.evidence import dispersion
from conformance.evidence.budget import draws_for
from conformance.evidence.dispersion import PoissonCells, Tail, poisson_draws, poisson_mean

Array = npt.NDArray[np.float64]


def cells(expected: Array, counts: Array | None = None, slack: float = 0.0, variance: float = 0.0) -> PoissonCells:
    return PoissonCells(
        expected if counts is None else counts,
        expected,
        np.full(len(expected), slack),
        np.full(len(expected), variance),
    )


def even_cells(number: int, draws: float) -> PoissonCells:
    """Cells of equal mass that hold `draws` draws together, without rounding errors."""
    return cells(np.full(number, draws / number))


def exact_tail(number: int, expected: int, rate: float | None = None) -> tuple[Array, Array]:
    """Values t of the statistic over even cells, and P(T >= t), by convolution of the counts' distribution."""
    x = np.arange(expected * 10 + 60)
    steps = (x - expected) ** 2 - x  # in units of 1 / expected
    pmf = np.zeros(int(steps.max() - steps.min()) + 1)
    np.add.at(pmf, steps - steps.min(), stats.poisson.pmf(x, rate or expected))
    length = 1 << (len(pmf) * number).bit_length()
    total = np.fft.irfft(np.fft.rfft(pmf, length) ** number, length)
    values = (np.arange(length) + number * steps.min()) / expected
    # float64 transforms are good to about 1e-15 of the largest value: tails down to 1e-12 keep three digits.
    return values, np.cumsum(total[::-1])[::-1]


@pytest.mark.parametrize(("number", "expected"), [(32, 20), (200, 8), (64, 3)], ids=str)
@pytest.mark.parametrize("alpha", [1e-2, 1e-6, 5e-10], ids=lambda alpha: f"{alpha:.0e}")
def test_the_stated_tail_lies_above_the_exact_one_and_not_far(number: int, expected: int, alpha: float) -> None:
    tail = Tail(cells(np.full(number, float(expected))), alpha)
    values, exact = exact_tail(number, expected)
    # A single cell may also fail by itself: alpha / 16 of the budget, which the exact tail of the sum has no part of.
    size = float(exact[np.searchsorted(values, tail.critical)])
    assert alpha / 200 < size <= alpha
    for target in (1e-3, alpha, alpha / 100):
        at = int(np.searchsorted(-exact, -target))
        p_value = tail.p_value(cells(np.full(number, float(expected))), float(values[at]))
        assert float(exact[at]) <= p_value <= 300 * float(exact[at])


def test_the_stated_tail_of_uneven_cells_by_importance_sampling() -> None:
    # Expectations from 1e-3 to 1e3, as a peaked distribution has them: counts are drawn with each cell's
    # distribution tilted by exp(s T), and weighed by exp(-s T) M.
    rng = np.random.default_rng(1)
    expected = np.exp(rng.uniform(math.log(1e-3), math.log(1e3), 300))
    alpha = 1e-8
    tail = Tail(cells(expected), alpha)
    s = float(tail._s[((tail._log_m - math.log(alpha)) / tail._s).argmin()])
    samples = 20_000
    statistic, log_m = np.zeros(samples), 0.0
    for e in expected:
        x = np.arange(0, e + 40 * math.sqrt(max(e, 1)))
        terms = ((x - e) ** 2 - x) / max(e, 1.0)
        log_weight = stats.poisson.logpmf(x, e) + s * terms
        # The sum diverges in the far tail: cut where the test's own limit for single cells lies.
        log_weight = log_weight[x <= stats.poisson.isf(alpha / 16 / len(expected), e * 1.25) + 1]
        m = np.exp(log_weight).sum()
        log_m += math.log(m)
        statistic += terms[rng.choice(len(log_weight), samples, p=np.exp(log_weight) / m)]
    weights = np.where(statistic > tail.critical, np.exp(log_m - s * statistic), 0.0)
    size, error = weights.mean(), weights.std() / math.sqrt(samples)
    assert size + 5 * error < alpha
    assert size > alpha / 1000


def test_alarms_under_the_null_are_as_many_as_the_exact_size_says() -> None:
    number, expected, alpha, runs = 200, 8, 0.1, 4000
    tail = Tail(cells(np.full(number, float(expected))), alpha)
    values, exact = exact_tail(number, expected)
    counts = np.random.default_rng(2).poisson(expected, (runs, number)).astype(np.float64)
    statistic = (((counts - expected) ** 2 - counts) / expected).sum(1)
    size = float(exact[np.searchsorted(values, tail.critical, side="right")])
    alarms = int((statistic > tail.critical).sum())
    assert stats.binom.cdf(alarms, runs, size) > 1e-6
    assert stats.binom.sf(alarms - 1, runs, size) > 1e-6
    # And the whole distribution: exact p-values, made continuous by chance within ties, are uniform.
    at = np.rint((statistic - values[0]) * expected).astype(int)
    above, here = np.append(exact, 0.0)[at + 1], exact[at] - np.append(exact, 0.0)[at + 1]
    p_values = above + np.random.default_rng(3).random(runs) * here
    assert stats.kstest(p_values, "uniform").pvalue > 1e-6


def test_a_cell_beyond_anything_fails_by_itself() -> None:
    expected = np.full(1000, 0.001)
    counts = np.zeros(1000)
    counts[3] = 12
    seen = dispersion.scattered("", cells(expected, counts), 10**6, 1e-9)
    assert not seen.passed
    counts[3] = 1
    assert dispersion.scattered("", cells(expected, counts), 10**6, 1e-9).passed


@pytest.mark.parametrize("power", [0.5, 0.9])
@pytest.mark.parametrize(("number", "draws"), [(64, 1e5), (1024, 1e6), (4096, 2e4)], ids=["K64", "K1024", "K4096-thin"])
def test_measured_power_is_the_predicted_one(number: int, draws: float, power: float) -> None:
    alpha, runs = 1e-8, 1500
    plan = even_cells(number, draws)
    tail = Tail(plan, alpha)
    error = tail.detectable(power)
    assert error < 1
    signs = np.where(np.arange(number) % 2, 1, -1)
    counts = np.random.default_rng(4).poisson(plan.expected * (1 + error * signs), (runs, number)).astype(np.float64)
    statistic = (((counts - plan.expected) ** 2 - counts) / np.maximum(plan.expected, 1)).sum(1)
    seen = int((statistic > tail.critical).sum())
    # The prediction takes the sum for normal; the first term of Edgeworth's series bounds what its skewness changes:
    # skewness / (6 sqrt(2 pi)). That of one cell's term, 8 / 2^1.5, is at most doubled by its own E and the shift.
    slack = 2 * (8 / 2**1.5) / math.sqrt(number) / (6 * math.sqrt(2 * math.pi))
    assert stats.binom.sf(seen - 1, runs, min(1.0, power + slack)) > 1e-6
    assert stats.binom.cdf(seen, runs, power - slack) > 1e-6


def test_draws_for_an_error_are_those_that_detect_it() -> None:
    def sees(draws: float) -> float:
        return Tail(even_cells(256, poisson_mean(int(draws))), 1e-9).detectable(1 - 1e-6) / 2

    for variation in (0.05, 0.01):
        draws = draws_for(variation, sees)
        assert draws is not None
        assert sees(draws) <= variation < sees(0.98 * draws)


@pytest.mark.parametrize("chance", [1e-3, 1e-12, 1e-30], ids=lambda chance: f"{chance:.0e}")
def test_the_limit_of_single_cells_is_where_the_tail_says(chance: float) -> None:
    rates = np.array([1e-6, 0.3, 7.0, 1e3, 1e7])
    most = dispersion._highest_counts(rates, chance)
    assert (special.pdtrc(most, rates) <= chance).all()
    assert (special.pdtrc(most - 1, rates) > chance)[1:].all()


@pytest.mark.parametrize("shift", ["rates at the slack's end", "random roundings"])
def test_errors_that_are_allowed_for_do_not_fail(shift: str) -> None:
    # Errors so large that without the allowance every run fails.
    rng = np.random.default_rng(5)
    expected = np.full(500, 1e5)
    if shift == "random roundings":
        allowed = cells(expected, variance=1500.0**2)
        rates = expected + rng.uniform(-1500, 1500, (300, 500))
    else:
        allowed = cells(expected, slack=1500.0)
        rates = expected + 1500 * rng.choice([-1, 1], (300, 500))
    tail, strict = Tail(allowed, 1e-3), Tail(cells(expected), 1e-3)
    counts = rng.poisson(rates).astype(np.float64)
    statistic = (((counts - expected) ** 2 - counts) / expected).sum(1)
    assert (statistic > strict.critical).all()
    # 300 runs at 1e-3: more than 5 alarms have probability 4e-6 at most.
    assert (statistic > tail.critical).sum() <= 5


def test_the_number_of_counted_draws_is_a_poisson_number_below_all() -> None:
    rng = np.random.default_rng(6)
    numbers = np.array([poisson_draws(10_000, rng) for _ in range(3000)])
    assert numbers.max() <= 10_000
    mean = poisson_mean(10_000)
    assert mean == 9200
    # Mean and variance within five of their own standard errors.
    assert abs(numbers.mean() - mean) < 5 * math.sqrt(mean / 3000)
    assert abs(numbers.var() - mean) < 5 * mean * math.sqrt(2 / 3000)
