"""The run's false-alarm budget, split over its checks."""

from __future__ import annotations

from dataclasses import dataclass

ALPHA_FIXED_SEEDS = 1e-6
"""Probability that a right sampler fails a whole run whose seeds follow from the suite's own names."""

ALPHA_FRESH_SEEDS = 1e-9
"""The same where the caller chose the seed: such runs are repeated with new seeds, night after night."""

MISS = 1e-6
"""Probability of overlooking an effect of the size that a check states as detectable."""


@dataclass(frozen=True)
class Budget:
    """alpha: for the whole run. checks: number of statistical checks in the whole plan.

    Each check gets an equal share, also when only some of them run, so that a check's threshold does
    not depend on what else was selected. By the union bound the run's false alarms stay below alpha.
    """

    alpha: float
    checks: int

    @property
    def share(self) -> float:
        """Of one check."""
        return self.alpha / max(1, self.checks)
