"""A right sampler's p-values, from thousands of seeded null samples run through the functions that judge samplers.

Tests with an exact tail must alarm exactly as often as that tail says, and those with a bound no more often. Tails at
1e-6 and below are compared with exact sums here and in test_dispersion.py.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from conformance.cases import Case, head_and_tail, normal
from conformance.evidence import cdf, partitions, pit
from conformance.evidence.counts import Cells, binomial, counts_of, matches
from conformance.evidence.dispersion import PoissonCells, poisson_mean, scattered
from conformance.evidence.frequencies import frequencies, judge_counts
from reference import Law, LawOptions

CPU = torch.device("cpu")
RUNS = 1000
FEW = 1e-6  # probability with which each test here fails although all is right; by fixed seeds it fails never or always

Array = npt.NDArray[np.float64]


def assert_alarms(alarms: int, runs: int, size: float, *, exact: bool) -> None:
    """The number of alarms lies in its binomial interval, or below its upper end where `size` is a bound."""
    assert stats.binom.sf(alarms - 1, runs, size) > FEW
    if exact:
        assert stats.binom.cdf(alarms, runs, size) > FEW


def assert_not_too_small(p_values: Array) -> None:
    """sup (F_emp(x) - x) within the one-sided bound of Dvoretzky, Kiefer, Wolfowitz and Massart."""
    ordered = np.sort(p_values)
    excess = (np.arange(1, len(ordered) + 1) / len(ordered) - ordered).max()
    assert excess <= math.sqrt(math.log(1 / FEW) / 2 / len(ordered))


def law_of(width: int, seed: int = 1) -> Law:
    return Case("null", normal(1, width, seed), width).law(LawOptions(), CPU)


def draw(law: Law, number: int, rng: np.random.Generator) -> torch.Tensor:
    """int64 [1, number], by numpy."""
    p = law.probs[0].numpy()
    return torch.from_numpy(rng.choice(len(p), size=(1, number), p=p / p.sum()))


def test_every_frequency_test_keeps_its_level() -> None:
    law, rng = law_of(1024), np.random.default_rng(1)
    alpha, p_values = 0.4, defaultdict(list)
    alarms: dict[str, int] = defaultdict(int)
    shares: dict[str, float] = {}
    for run in range(RUNS):
        for each in frequencies(draw(law, 2000, rng), law, alpha, run):
            assert each.p_value is not None
            assert each.alpha is not None
            p_values[each.asked].append(each.p_value)
            alarms[each.asked] += not each.passed
            shares[each.asked] = each.alpha
    assert len(p_values) == 8
    for asked, values in p_values.items():
        assert_not_too_small(np.array(values))
        assert_alarms(alarms[asked], RUNS, shares[asked], exact=False)
    # And together: the union bound over all of them.
    assert sum(shares.values()) <= alpha * (1 + 1e-12)


@pytest.mark.parametrize("alpha", [0.1, 1e-6, 5e-10], ids=lambda alpha: f"{alpha:.0e}")
def test_one_cell_alarms_as_often_as_exact_sums_say(alpha: float) -> None:
    trials, p = 4000, 0.03
    counts = np.arange(trials + 1)
    cells = [Cells(["it"], np.array([x]), np.array([trials]), np.array([p]), np.array([p])) for x in counts]
    failing = np.array([not binomial("", each, alpha).passed for each in cells])
    log_pmf = np.array([math.lgamma(trials + 1) - math.lgamma(x + 1) - math.lgamma(trials - x + 1) for x in counts])
    pmf = np.exp(log_pmf + counts * math.log(p) + (trials - counts) * math.log1p(-p))
    size = float(pmf[failing].sum())
    # A count more or less is a factor of about e^(z / sd) = 2 in either tail at these levels.
    assert alpha / 4 < size <= alpha
    if alpha == 0.1:
        drawn = np.random.default_rng(2).binomial(trials, p, RUNS)
        assert_alarms(int(failing[drawn].sum()), RUNS, size, exact=True)


def test_distribution_functions_of_continuous_numbers_alarm_as_often_as_kolmogorovs_law_says() -> None:
    # scipy's exact distribution of the same distance, against the bound that is used.
    number, alpha, rng = 500, 0.05, np.random.default_rng(3)
    evidence = [cdf.uniform_distance("", torch.from_numpy(rng.random(number)), 0.0, alpha) for _ in range(RUNS)]
    critical = math.sqrt(math.log(2 / alpha) / (2 * number))
    size = float(stats.kstwo.sf(critical, number))
    assert size <= alpha
    assert_alarms(sum(not each.passed for each in evidence), RUNS, size, exact=True)
    for small in (1e-6, 5e-10):
        bound = math.sqrt(math.log(2 / small) / (2 * number))
        assert small / 3 < stats.kstwo.sf(bound, number) <= small


def test_transformed_draws_of_many_laws_are_uniform() -> None:
    rows = 40
    case = Case("own", normal(rows, 300, 4), 300, tuple(0.5 + 0.05 * i for i in range(rows)))
    law = case.law(LawOptions(), CPU)
    rng, alpha = np.random.default_rng(5), 0.1
    alarms, p_values, pooled = [0, 0], defaultdict(list), []
    for run in range(RUNS):
        ids = torch.cat([torch.from_numpy(rng.choice(300, size=(1, 20), p=(p / p.sum()).numpy())) for p in law.probs])
        values = pit.transform(ids, law, run, by_rank=bool(run % 2))
        pooled.append(values.reshape(-1).numpy())
        for i, each in enumerate(pit.uniform("", values, 0.0, alpha, run)):
            alarms[i] += not each.passed
            p_values[i].append(each.p_value)
    # 800,000 numbers in all, against Kolmogorov's exact law: the transform itself is exact.
    assert stats.kstest(np.concatenate(pooled), "uniform").pvalue > FEW
    for i in (0, 1):
        assert_alarms(alarms[i], RUNS, alpha / 2, exact=False)
        assert_not_too_small(np.array(p_values[i]))


def test_pairs_alarm_no_more_often_than_they_may() -> None:
    rng, alpha, number = np.random.default_rng(6), 0.1, 4000
    near, alarms = [], [0, 0]
    for run in range(RUNS):
        pairs = [("pairs", torch.from_numpy(rng.random(number)), torch.from_numpy(rng.random(number)))]
        evidence = pit.independent("", pairs, 0.0, alpha, run)
        near.append(not evidence[1].passed)
        for i, each in enumerate(evidence):
            alarms[i] += not each.passed
    assert_alarms(alarms[0], RUNS, alpha / 2, exact=False)
    # Near pairs are binomial: the exact size of that test.
    probability = 2 * pit.NEAR - pit.NEAR**2
    x = np.arange(number + 1)
    p_values = np.minimum(stats.binom.sf(x - 1, number, probability), stats.binom.cdf(x, number, probability))
    size = float(stats.binom.pmf(x, number, probability)[2 * p_values < alpha / 2].sum())
    assert_alarms(sum(near), RUNS, size, exact=True)


def test_equal_pairs_alarm_as_often_as_exact_sums_say() -> None:
    law = Case("flat", "torch.zeros(1, 50)", 50).law(LawOptions(), CPU)
    number, alpha, rng = 3000, 0.1, np.random.default_rng(7)
    x = np.arange(number + 1)
    failing = np.array([not matches([("pairs", int(c), number)], law, alpha).passed for c in x])
    size = float(stats.binom.pmf(x, number, 1 / 50)[failing].sum())
    same = (rng.integers(50, size=(RUNS, number)) == rng.integers(50, size=(RUNS, number))).sum(1)
    assert_alarms(int(failing[same].sum()), RUNS, size, exact=True)


def fp32_inverse_cdf(mass: npt.NDArray[np.float32], bits: int) -> Array:
    """The exact law, float64 [W], of a sampler that adds fp32 masses as GPU block scans do.

    Runs of 16 a thread one after the other, 256 threads' totals by doubling, tiles of 4,096 one after the other.
    It returns the first token whose running sum exceeds a uniform of `bits` bits, or the last one with mass: so a
    token comes for the grid points between its step and the one before.
    """
    threads = np.pad(mass, (0, -len(mass) % 4096)).reshape(-1, 256, 16)
    own = np.cumsum(threads, axis=2, dtype=np.float32)
    totals = own[:, :, -1].copy()
    for stride in (1, 2, 4, 8, 16, 32, 64, 128):
        totals[:, stride:] = totals[:, stride:] + totals[:, :-stride]
    before = np.concatenate([np.zeros_like(totals[:, :1]), totals[:, :-1]], axis=1)
    carried = np.concatenate([[np.float32(0)], np.cumsum(totals[:, -1], dtype=np.float32)[:-1]])
    steps = (carried[:, None, None] + (before[:, :, None] + own)).reshape(-1)[: len(mass)].astype(np.float64)
    points = np.minimum(np.ceil(np.maximum.accumulate(steps) * 2.0**bits), 2.0**bits)
    points[np.flatnonzero(mass)[-1] :] = 2.0**bits
    law: Array = np.diff(points, prepend=0.0) / 2.0**bits
    return law


def by_rank(probs: torch.Tensor, short: float) -> Array:
    """The law of the same sampler on sorted masses, whose sum falls short of 1 by that much."""
    order = probs.sort(descending=True, stable=True).indices.numpy()
    law = np.empty(len(order))
    law[order] = fp32_inverse_cdf((probs.numpy()[order] * (1 - short)).astype(np.float32), 24)
    return law


FP32_ROWS = {
    "flat": normal(1, 128_256, 8, std=0.0),
    "normal": normal(1, 128_256, 8),
    "peaked": normal(1, 128_256, 8, std=5.0),
    "within 1e-3": normal(1, 128_256, 8, std=1e-3),
    "period 32": f"{normal(1, 32, 8)}.repeat(1, 4008)",
    "mostly masked": f"{normal(1, 128_256, 8)}.masked_fill(torch.arange(128_256) % 29 != 3, -inf)",
    "gap 14": head_and_tail(128_256, 14),
}


def fails(law: Law, actual: Array, draws: int) -> list[str]:
    """What the judgement of that many draws from `actual` finds, drawn as counts."""
    rng = np.random.default_rng(draws)
    assert actual.sum() == pytest.approx(1, abs=1e-12)
    counts = torch.from_numpy(rng.multinomial(draws, actual / actual.sum()))[None]
    poisson = torch.from_numpy(rng.poisson(poisson_mean(draws) * actual))[None]
    return [each.asked for each in judge_counts(counts, poisson, law, 1e-6 / 300, 1) if not each.passed]


@pytest.mark.parametrize("draws", [10**7, 10**9], ids=lambda draws: f"N1e{len(str(draws)) - 1}")
@pytest.mark.parametrize("row", FP32_ROWS)
def test_a_right_fp32_sampler_passes(row: str, draws: int) -> None:
    law = Case("fp32", FP32_ROWS[row], 128_256).law(LawOptions(), CPU)
    assert fails(law, fp32_inverse_cdf(law.probs[0].float().numpy(), 24), draws) == []


@pytest.mark.parametrize("draws", [10**7, 10**9], ids=lambda draws: f"N1e{len(str(draws)) - 1}")
def test_a_right_fp32_sampler_that_sorts_passes(draws: int) -> None:
    # Its least token takes what the sum falls short of 1: 50 roundings, within those that `sum_error` allows.
    law = Case("fp32", FP32_ROWS["normal"], 128_256).law(LawOptions(), CPU)
    assert fails(law, by_rank(law.probs[0], 50 * 2.0**-24), draws) == []


def test_a_walk_from_a_carried_sum_fails_by_the_tail_that_it_cannot_draw() -> None:
    # Each thread adds its 32 masses of 1.5e-8 one by one to a sum near 1, where the next float32 is 6e-8 away: only the
    # first of a run, whose sum was carried there exactly, is ever drawn.
    law = Case("gap", FP32_ROWS["gap 14"].replace("-14", "-18"), 128_256).law(LawOptions(), CPU)
    mass = law.probs[0].float().numpy()
    carried = np.concatenate([[0.0], law.probs[0].numpy().reshape(-1, 32).sum(1).cumsum()[:-1]]).astype(np.float32)
    runs = mass.reshape(-1, 32).copy()
    runs[:, 0] += carried
    steps = np.cumsum(runs, axis=1, dtype=np.float32).reshape(-1).astype(np.float64)
    steps[-1] = 1.0
    actual = np.diff(np.maximum.accumulate(steps), prepend=0.0)
    assert np.abs(steps - law.probs[0].numpy().cumsum()).max() < 2.0**-20
    assert (actual == 0).sum() > 60_000
    assert fails(law, actual, 2**21) != []


def test_an_exact_null_fails_a_right_fp32_sampler() -> None:
    law = Case("fp32", FP32_ROWS["normal"], 128_256).law(LawOptions(), CPU)
    probs, draws = law.probs[0], 10**9
    mean = poisson_mean(draws)
    counts = np.random.default_rng(1).poisson(mean * fp32_inverse_cdf(probs.float().numpy(), 24)).astype(np.float64)
    zeros = np.zeros(len(counts))
    assert not scattered("", PoissonCells(counts, mean * probs.numpy(), zeros, zeros), draws, 1e-6 / 300).passed


def test_the_suite_counts_every_draw_once() -> None:
    law = law_of(300)
    ids = draw(law, 5000, np.random.default_rng(9))
    counts = counts_of(ids, 300)
    assert int(counts.sum()) == 5000
    for _name, labels in partitions.scatters(law.probs[0], 3):
        assert labels.shape == (300,)
        assert int(counts[0].sum()) == int(torch.bincount(labels, weights=counts[0].double()).sum())
