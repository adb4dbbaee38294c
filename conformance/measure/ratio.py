"""How many times longer one thing takes than another, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 2000
"""Of the bootstrap: at 99 % each end of an interval has 10 of them beyond it."""

LEAST_ROUNDS = 8
"""With fewer, the median of a resample can hardly be anything but the median of the sample."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, with the interval that holds it with the asked-for confidence.

    rounds: how many pairs it is made of.
    """

    value: float
    low: float
    high: float
    rounds: int


def paired_ratio(times: ArrayLike, baseline: ArrayLike, confidence: float) -> Ratio:
    """The median of times / baseline, round by round, and its percentile bootstrap interval.

    times, baseline: seconds, one entry a round each, of the same rounds. What slows a whole round, a neighbour or the
    clock of a card, is in both and cancels; what hits one of the two in a few rounds is no median's business.
    The interval says what the noise within a run leaves open. What differs from process to process, such as where
    memory comes to lie, it cannot know: budgets leave a margin for that.

    Rounds are resampled whole (Efron, "Bootstrap methods", 1979), with a fixed seed: the same times give the same
    interval. Raises ValueError for fewer than 8 rounds, and for a confidence outside (0, 1).
    """
    pairs = np.asarray(times, dtype=float), np.asarray(baseline, dtype=float)
    shapes = [each.shape for each in pairs]
    if pairs[0].ndim != 1 or shapes[0] != shapes[1] or len(pairs[0]) < LEAST_ROUNDS:
        raise ValueError(f"times and baseline must have the same {LEAST_ROUNDS} or more rounds, got shapes {shapes}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    ratios = pairs[0] / pairs[1]
    chosen = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    medians = np.median(ratios[chosen], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))
