"""Times a few calls in a row, on a CPU or on a CUDA device, and says what kind of time that is."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch

Call = Callable[[], object]

Kind = Literal["cold", "warm", "graph", "host"]
KINDS: dict[Kind, str] = {
    "cold": "each call reads logits that no cache holds",
    "warm": "each call reads the same logits",
    "graph": "replays of a CUDA graph that holds one call, over a few logits in turn",
    "host": "how long the host is busy with a call that nobody waits for",
}
"""Kinds of time. All but "host" are time on the device; a CPU has "cold" and "warm" alone."""


class Clock(Protocol):
    """Seconds a call.

    target: seconds that the calls of one round should take together.
    exposed: how many timings of the device hold time of the host.
    """

    kinds: tuple[Kind, ...]
    target: float
    exposed: int

    def inputs(self, read_bytes: int) -> int:
        """How many sets of logits of that size one lane needs."""

    def device(self, calls: Sequence[Call], *, patient: bool = True) -> float:
        """Seconds of each call on the device, on average. patient: try again where time of the host got into it."""

    def host(self, calls: Sequence[Call]) -> float:
        """Seconds that the host spends in each, on average."""

    def cool(self) -> None:
        """Have no cache hold the logits, where `device` does not see to it."""

    def wait(self) -> None:
        """Until the device is idle."""


class CpuClock:
    """The monotonic clock, around calls in one thread, so that the other cores may be busy."""

    kinds: tuple[Kind, ...] = ("cold", "warm")
    exposed = 0
    target = 0.01
    """Long against the clock's tick and short against the time that another process needs to come and go."""

    _APART = 2**26
    """Bytes read between two reads of the same logits: more than a core's share of the caches of servers of 2026."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        _keep_freed_memory()
        self._scrap = torch.zeros(self._APART // 8, dtype=torch.int64)

    def inputs(self, read_bytes: int) -> int:
        """See `Clock.inputs`."""
        return min(32, max(2, -(-self._APART // read_bytes)))

    def device(self, calls: Sequence[Call], *, patient: bool = True) -> float:  # noqa: ARG002  # all is time of the host
        """See `Clock.device`."""
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)

    def host(self, calls: Sequence[Call]) -> float:
        """See `Clock.host`."""
        return self.device(calls)

    def cool(self) -> None:
        """See `Clock.cool`."""
        self._scrap.sum()

    def wait(self) -> None:
        """Nothing runs beside the caller."""


class CudaClock:
    """CUDA events around calls that the host has enqueued while the device was still busy with something else.

    That something reads 1 GiB again and again: the L2 cache then holds none of the inputs, and nothing that has to be
    written back. As the calls wait in the stream when it ends, the time between the events holds no time of the host.
    Where a call itself waits for the device this cannot be had; `exposed` then counts it, and the time holds the gaps.
    """

    kinds: tuple[Kind, ...] = ("cold", "warm", "graph", "host")
    target = 4e-4
    """Events tick in steps of about a microsecond or less: under 0.3 % of this."""

    _MOST_COVERS = 64
    """Of 0.27 ms each where 1 GiB is read at 4 TB/s. What keeps the host longer waits for the device."""

    def __init__(self, device: torch.device) -> None:
        if device.index is not None:
            torch.cuda.set_device(device)  # events, graphs and Triton go by the current one
        self._device = device
        self._l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self._scrap = torch.zeros(2**28, dtype=torch.float32, device=device)
        self._sink = torch.empty((), dtype=torch.float32, device=device)
        self._covers = 2
        self.exposed = 0

    def inputs(self, read_bytes: int) -> int:
        """See `Clock.inputs`. The cover empties the cache, so no set needs to be larger than it."""
        return min(32, max(4, -(-4 * self._l2 // read_bytes)))

    def device(self, calls: Sequence[Call], *, patient: bool = True) -> float:
        """See `Clock.device`."""
        covers = self._covers
        while True:
            torch.cuda.synchronize(self._device)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(covers):
                torch.sum(self._scrap, dim=0, out=self._sink)
            start.record()
            for call in calls:
                call()
            end.record()
            hidden = not start.query()
            torch.cuda.synchronize(self._device)
            if hidden or not patient or covers >= self._MOST_COVERS:
                break
            covers *= 2
        if hidden:
            self._covers = max(self._covers, covers)
        else:
            self.exposed += 1
        return float(start.elapsed_time(end)) * 1e-3 / len(calls)

    def host(self, calls: Sequence[Call]) -> float:
        """See `Clock.host`."""
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        for call in calls:
            call()
        spent = time.perf_counter() - start
        torch.cuda.synchronize(self._device)
        return spent / len(calls)

    def cool(self) -> None:
        """See `Clock.cool`: the cover does."""

    def wait(self) -> None:
        """See `Clock.wait`."""
        torch.cuda.synchronize(self._device)


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed.

    Else it gives large blocks back to the system, and each call pays for fresh pages; how often depends on how the heap
    came to lie: with it the ratio of two samplers was 1.40 in one process and 1.72 in the next.
    Of the GNU C library; others have no such function, and keep their ways.
    """
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    mallopt = None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**25)  # the largest that it takes


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
