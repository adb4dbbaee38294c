"""Ratios of paired times: what cancels, what their intervals hold and how often, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from conformance.measure import LEAST_ROUNDS, Ratio, paired_ratio


def noise(rng: np.random.Generator, rounds: int, size: float) -> npt.NDArray[np.float64]:
    return rng.lognormal(0, size, rounds)


def test_a_constant_ratio_is_found_exactly() -> None:
    baseline = noise(np.random.default_rng(0), 20, 0.5)
    assert paired_ratio(1.5 * baseline, baseline, 0.99) == Ratio(1.5, 1.5, 1.5, 20)


def test_what_slows_a_whole_round_cancels() -> None:
    rng = np.random.default_rng(1)
    # Powers of two, so that no rounding comes in.
    ours, theirs, slow = noise(rng, 20, 0.1), noise(rng, 20, 0.1), 2.0 ** rng.integers(-3, 3, 20)
    assert paired_ratio(ours * slow, theirs * slow, 0.99) == paired_ratio(ours, theirs, 0.99)


def test_what_hits_one_of_the_two_in_a_few_rounds_moves_the_ratio_no_further_than_its_noise() -> None:
    rng = np.random.default_rng(2)
    ours, theirs = noise(rng, 24, 0.01), noise(rng, 24, 0.01)
    ours[[3, 11, 12]] *= 50
    found = paired_ratio(ours, theirs, 0.99)
    assert 0.98 < found.low <= found.value <= found.high < 1.03


def test_the_interval_misses_the_true_ratio_no_more_often_than_it_says() -> None:
    rng, runs, true = np.random.default_rng(3), 400, 1.3
    found = []
    for _ in range(runs):
        common = noise(rng, 24, 0.5)
        found.append(paired_ratio(true * common * noise(rng, 24, 0.05), common, 0.99))
    misses = sum(not each.low <= true <= each.high for each in found)
    # More than `most` of them have a probability below 1e-6, if each run misses with probability 0.01.
    most = int(stats.binom.isf(1e-6, runs, 0.01))
    assert misses <= most == 16
    # And it is no interval that holds everything. The median of 24 normals of 5 % has a standard deviation of
    # 1.25 * 0.05 / sqrt(24) = 1.3 %, and 99 % of a normal lie within 2.58 of them; half as much again to spare.
    assert float(np.median([each.high - each.low for each in found])) < true * 2 * 2.58 * 0.013 * 1.5


def test_a_wider_confidence_gives_a_wider_interval() -> None:
    rng = np.random.default_rng(4)
    ours, theirs = noise(rng, 24, 0.1), noise(rng, 24, 0.1)
    found = [paired_ratio(ours, theirs, confidence) for confidence in (0.5, 0.9, 0.99)]
    widths = [each.high - each.low for each in found]
    assert widths == sorted(widths)
    assert widths[0] < widths[2]
    assert len({each.value for each in found}) == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_change_of_a_tenth_is_seen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    common = noise(rng, 24, 0.5)
    # The median of 24 such ratios is off by 0.04 * 1.25 / sqrt(24) = 0.01: the change is ten times that.
    found = paired_ratio(1.1 * common * noise(rng, 24, 0.03), common * noise(rng, 24, 0.03), 0.99)
    assert found.low > 1.0
    assert paired_ratio(common * noise(rng, 24, 0.03), common, 0.99).high < 1.1


def test_the_same_times_give_the_same_interval() -> None:
    rng = np.random.default_rng(5)
    ours, theirs = noise(rng, 24, 0.1).tolist(), noise(rng, 24, 0.1).tolist()
    found = {paired_ratio(ours, theirs, 0.99), paired_ratio(np.array(ours), np.array(theirs), 0.99)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("times", "baseline", "confidence", "says"),
    [
        ([1.0] * 7, [1.0] * 7, 0.99, f"{LEAST_ROUNDS} or more rounds.*(7,)"),
        ([1.0] * 8, [1.0] * 9, 0.99, "same 8 or more"),
        ([], [], 0.99, "same 8 or more"),
        ([[1.0] * 8] * 8, [[1.0] * 8] * 8, 0.99, "same 8 or more"),
        ([1.0] * 8, [1.0] * 8, 0.0, r"confidence must be in \(0, 1\), got 0.0"),
        ([1.0] * 8, [1.0] * 8, 1.0, "confidence"),
        ([1.0] * 8, [1.0] * 8, 99, "confidence.*99"),
        ([1.0] * 8, [1.0] * 8, float("nan"), "confidence.*nan"),
    ],
)
def test_wrong_rounds_and_confidences_are_refused(times: Any, baseline: Any, confidence: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        paired_ratio(times, baseline, confidence)
