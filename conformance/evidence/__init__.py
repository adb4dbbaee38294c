"""What a check saw, and what it would have seen.

Each function here takes draws or log-probs and the law, and returns `Evidence`. None knows of a sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

from conformance.evidence.chart import Chart


@dataclass(frozen=True)
class Evidence:
    """One judgement.

    asked, observed, allowed: in words and numbers.
    draws, p_value, alpha: of a statistical judgement; it fails where p_value < alpha.
    detectable: the smallest error that it finds with probability 1 - 1e-6, as a probability: so much of the
        mass lies in the wrong place; 1 where it finds none for sure. effect: which kind of error that is.
    chart: what was compared, for a picture of it; None where the words say it all.
    """

    passed: bool
    asked: str
    observed: str
    allowed: str
    draws: int | None = None
    p_value: float | None = None
    alpha: float | None = None
    detectable: float | None = None
    effect: str = ""
    chart: Chart | None = None


def exact(asked: str, *, passed: bool, observed: object, allowed: object) -> Evidence:
    """A judgement without randomness."""
    return Evidence(passed, asked, str(observed), str(allowed))
