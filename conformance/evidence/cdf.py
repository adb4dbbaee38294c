"""Whole distribution functions: the bound of Dvoretzky, Kiefer and Wolfowitz, with Massart's constant.

P(sup |F_N - F| > d) <= 2 exp(-2 N d^2) for every F and every N (Massart, Annals of Probability 18, 1990), also
where F has steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance.evidence import Evidence
from conformance.evidence.budget import MISS
from conformance.evidence.chart import POINTS, CdfChart, rounded

EFFECT = "shift of the distribution function somewhere"


def distance(asked: str, counts: Tensor, probs: Tensor, slack: float, alpha: float) -> Evidence:
    """Counts of several samples against their laws, in the order given.

    counts: int64 [samples, K], each row of the same number of draws. probs: float64 [samples, K]. slack: how far the
    distribution function of a right sampler may be from the law's. alpha is split evenly over the samples.
    """
    draws = int(counts[0].sum())
    expected = probs.cumsum(1)
    return _judge(asked, counts.cumsum(1) / draws - expected, expected, draws, slack, alpha, "slot")


def uniform_distance(asked: str, values: Tensor, slack: float, alpha: float) -> Evidence:
    """float64 [N] values against the uniform distribution on [0, 1)."""
    ordered = values.sort().values
    number = len(ordered)
    steps = torch.arange(number + 1, device=values.device, dtype=torch.float64) / number
    after, before = steps[1:] - ordered, steps[:-1] - ordered
    off = torch.where(after >= -before, after, before)
    return _judge(asked, off[None], ordered[None], number, slack, alpha, "sample")


def detectable(draws: float, alpha: float, miss: float = MISS) -> float:
    """The least shift at one place that is seen with probability 1 - miss: Hoeffding's inequality there."""
    return (math.sqrt(math.log(2 / alpha) / 2) + math.sqrt(math.log(1 / miss) / 2)) / math.sqrt(draws)


def _judge(asked: str, off: Tensor, at: Tensor, draws: int, slack: float, alpha: float, name: str) -> Evidence:
    """off: float64 [samples, K], observed minus expected distribution functions. at: the expected ones."""
    tests = len(off)
    worst, gap, curve = _worst(off, at)
    p_value = min(1.0, tests * 2 * math.exp(-2 * draws * max(0.0, gap - slack) ** 2))
    critical = slack + math.sqrt(math.log(2 * tests / alpha) / (2 * draws))
    return Evidence(
        passed=p_value >= alpha,
        asked=asked,
        observed=f"{name} {worst}: distribution functions at most {gap:.4g} apart",
        allowed=f"up to {critical:.4g}, of which {slack:.2g} for rounding and bands",
        draws=draws,
        p_value=p_value,
        alpha=alpha,
        detectable=min(1.0, slack + detectable(draws, alpha / tests)),
        effect=EFFECT,
        chart=CdfChart(rounded(curve), rounded(curve.values()), rounded([critical])[0]),
    )


def _worst(off: Tensor, at: Tensor) -> tuple[int, float, dict[float, float]]:
    """The sample furthest off, how far it is off, and what is furthest from 0 in each of `POINTS` parts of [0, 1].

    The device is waited for once: all numbers come together.
    """
    gaps = off.abs().amax(1)
    worst = gaps.argmax(keepdim=True)
    off, at = off.index_select(0, worst)[0], at.index_select(0, worst)[0]
    part = (at * POINTS).long().clamp(0, POINTS - 1)
    nothing = off.new_full((POINTS,), math.inf)
    lowest, highest = nothing.scatter_reduce(0, part, off, "amin"), (-nothing).scatter_reduce(0, part, off, "amax")
    numbers = torch.cat([worst.to(torch.float64), gaps.index_select(0, worst), lowest, highest]).tolist()
    pairs = zip(numbers[2 : 2 + POINTS], numbers[2 + POINTS :], strict=True)
    # No value lies in a part that is all one likely token's.
    curve = {(i + 0.5) / POINTS: max(pair, key=abs) for i, pair in enumerate(pairs) if math.isfinite(pair[0])}
    return int(numbers[0]), numbers[1], curve
