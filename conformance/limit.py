"""Ends a check that takes too long, from within its process."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LIMIT = 300.0
"""Seconds for one check. The slowest right one known takes 45 s, with 1e8 draws on an H200 (docs/h200/deep.json). Six
times that leaves room for a slower device, and for kernels that are compiled at their first call."""


class TookTooLongError(BaseException):
    """Raised inside a check at its limit. Not an Exception, as a sampler may catch those and go on."""


def checked(limit: Any) -> float:
    """The limit in seconds; ValueError where it is none."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
        raise ValueError(f"limit must be a number of seconds above 0, got {limit!r}")
    return float(limit)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TookTooLongError where the block is after so many seconds, and again as often as that is swallowed.

    Python gives signals to the main thread alone, and only Unix has this one: elsewhere there is no limit. Nor where
    the program has set that timer itself, as pytest-timeout does: it is one for the whole process.
    """
    free = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not free or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLongError(f"did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
