"""The run's false-alarm budget, split over its checks, and what draws cost and see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from conformance.evidence import Evidence

ALPHA_FIXED_SEEDS = 1e-6
"""Probability that a right sampler fails a whole run whose seeds follow from the suite's own names."""

ALPHA_FRESH_SEEDS = 1e-9
"""The same where the caller chose the seed: such runs are repeated with new seeds, night after night."""

MISS = 1e-6
"""Probability of overlooking an effect of the size that a check states as detectable."""

FIRST_LOOK, LOOK_FACTOR = 2**14, 4
"""Draws at the first look at a check's draws, and from each look to the next."""

MOST_DRAWS = 10**10
"""Errors that need more than this count as not seen."""


@dataclass
class Budget:
    """alpha: for the whole run. checks: ids of the statistical checks of the whole plan.

    Each check gets an equal share, also when only some of them run, so that a check's threshold does
    not depend on what else was selected. By the union bound the run's false alarms stay below alpha.
    """

    alpha: float
    checks: frozenset[str]
    _spent: set[str] = field(default_factory=set)

    def share(self, check: str) -> float:
        """Of one check, to be asked for once; 0 for an exact one. Raises ValueError if it was asked for before."""
        if check not in self.checks:
            return 0.0
        if check in self._spent:
            raise ValueError(f"check must be one whose share is not spent, got {check!r} twice: no check is re-rolled")
        self._spent.add(check)
        return self.alpha / len(self.checks)

    def settle(self, check: str, evidence: Iterable[Evidence]) -> None:
        """Raise ValueError where a check judged by chance without a share, or by more than its share."""
        used = sum(each.alpha or 0.0 for each in evidence)
        share = self.alpha / len(self.checks) if check in self.checks else 0.0
        if used > share * (1 + 1e-9):  # a sum of parts may round up
            raise ValueError(f"alpha of {check!r} must be at most its share {share:.3g} of the budget, got {used:.3g}")


def looks(draws: int, alpha: float) -> Iterator[tuple[int, float]]:
    """Numbers of draws at which to judge, the last of them `draws`, and the alpha of each.

    Half of alpha goes to the last look, whose power the report states; the earlier ones share the other half. They only
    let a broken sampler fail early: a right one passes at the last.
    """
    early = []
    number = FIRST_LOOK
    while number * LOOK_FACTOR <= draws:
        early.append(number)
        number *= LOOK_FACTOR
    for each in early:
        yield each, alpha / 2 / len(early)
    yield draws, alpha / 2 if early else alpha


def draws_for(error: float, sees: Callable[[float], float]) -> int | None:
    """The least number of draws that see this error, to 1 %; None where no number up to 1e10 does.

    sees: the error that is detectable at a number of draws, of any test.
    """
    low, high = 1.0, 100.0
    while sees(high) > error:
        low, high = high, 4 * high
        if high > MOST_DRAWS:
            return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sees(middle) > error else (low, middle)
    return math.ceil(high)
