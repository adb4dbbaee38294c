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

EFFECT = "shift of the distribution function somewhere"


def distance(asked: str, counts: Tensor, probs: Tensor, slack: float, alpha: float) -> Evidence:
    """Counts of several samples against their laws, in the order given.

    counts: int64 [samples, K], each row of the same number of draws. probs: float64 [samples, K]. slack: how far the
    distribution function of a right sampler may be from the law's. alpha is split evenly over the samples.
    """
    draws = int(counts[0].sum())
    gaps = (counts.cumsum(1) / draws - probs.cumsum(1)).abs().amax(1)
    return _judge(asked, gaps, draws, slack, alpha, "slot")


def uniform_distance(asked: str, values: Tensor, slack: float, alpha: float) -> Evidence:
    """float64 [N] values against the uniform distribution on [0, 1)."""
    ordered = values.sort().values
    number = len(ordered)
    steps = torch.arange(number + 1, device=values.device, dtype=torch.float64) / number
    gap = torch.maximum((steps[1:] - ordered).amax(), (ordered - steps[:-1]).amax())
    return _judge(asked, gap[None], number, slack, alpha, "sample")


def detectable(draws: float, alpha: float, miss: float = MISS) -> float:
    """The least shift at one place that is seen with probability 1 - miss: Hoeffding's inequality there."""
    return (math.sqrt(math.log(2 / alpha) / 2) + math.sqrt(math.log(1 / miss) / 2)) / math.sqrt(draws)


def _judge(asked: str, gaps: Tensor, draws: int, slack: float, alpha: float, name: str) -> Evidence:
    tests = len(gaps)
    worst = int(gaps.argmax())
    gap = float(gaps[worst])
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
    )
