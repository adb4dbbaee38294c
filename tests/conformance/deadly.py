"""Samplers that end or block their process, each where it draws for a certain vocabulary and dtype."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from conformance.runner import Run
from reference import ReferenceSampling


def say() -> None:
    print("drawing")  # noqa: T201  # it is what is tested


def segfault() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os._exit(3)


def block() -> None:
    """A native call that holds the interpreter's lock, and that no signal reaches."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(1000)


def break_device() -> None:
    """As a device-side assert would: no CPU has one. The next process knows nothing of it."""

    def broken(run: Run) -> bool:
        run.broken = True
        return True

    Run._find_broken = broken  # type: ignore[assignment,method-assign]  # in this process, which ends by it
    raise RuntimeError("device-side assert")


def interrupt() -> None:
    """As Ctrl-C would, that reaches all processes of a terminal."""
    for process in (os.getpid(), os.getppid()):
        os.kill(process, signal.SIGINT)
    time.sleep(60)


def terminate() -> None:
    """As what ends a job in CI would: the process that waits is told."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)


def acting(acts: dict[tuple[int, torch.dtype], Callable[[], object]]) -> type[ReferenceSampling]:
    """A right sampler that does something before it draws, by vocabulary size and dtype."""

    class Acting(ReferenceSampling):
        def sample_kernel(self, logits: torch.Tensor, n: int, context: Any, **call: Any) -> torch.Tensor:
            act = acts.get((self.vocab_size, logits.dtype))
            if act is not None and n:
                act()
            return super().sample_kernel(logits, n, context, **call)

    return Acting


# Of top-p/crossing-token, the cases each-gap and unsorted, that of top-p/ties, and two of greedy/top-k-one.
EIGHT, FOUR, SIX = (8, torch.float32), (4, torch.float32), (6, torch.float32)
HALF, BRAIN = (4, torch.float16), (4, torch.bfloat16)

deadly = acting({EIGHT: segfault, FOUR: say, SIX: break_device, HALF: leave, BRAIN: block})
aborting = acting({EIGHT: os.abort, FOUR: os.abort})
interrupting = acting({FOUR: interrupt})
terminating = acting({FOUR: terminate})


def dying(_vocab_size: int, _rng: torch.Generator) -> None:
    os._exit(5)
