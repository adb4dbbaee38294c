"""Times a few calls in a row, on a CPU or on a CUDA device, and says what kind of time that is."""

from __future__ import annotations

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

    inputs: sets of logits that the "cold" calls of one round need. target: seconds that one round should take.
    """

    kinds: tuple[Kind, ...]
    target: float

    def inputs(self, read_bytes: int) -> int:
        """How many sets of logits of that size one lane needs."""

    def device(self, calls: Sequence[Call]) -> float:
        """Seconds of each call on the device, on average."""

    def host(self, calls: Sequence[Call]) -> float:
        """Seconds that the host spends in each, on average."""

    def wait(self) -> None:
        """Until the device is idle."""


class CpuClock:
    """The monotonic clock, around calls in one thread."""

    kinds: tuple[Kind, ...] = ("cold", "warm")
    target = 0.01
    """Long against the clock's tick and short against the time that another process needs to come and go."""

    _APART = 2**26
    """Bytes read between two reads of the same logits: more than a core's share of the caches of servers of 2026."""

    def inputs(self, read_bytes: int) -> int:
        """See `Clock.inputs`."""
        return min(32, max(2, -(-self._APART // read_bytes)))

    def device(self, calls: Sequence[Call]) -> float:
        """See `Clock.device`."""
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)

    host = device

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
    """Of about 0.3 ms each on an H200. Calls that take the host longer than that together wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self._scrap = torch.zeros(2**28, dtype=torch.float32, device=device)
        self._sink = torch.empty((), dtype=torch.float32, device=device)
        self._covers = 2
        self.exposed = 0

    def inputs(self, read_bytes: int) -> int:
        """See `Clock.inputs`. The cover empties the cache, so no set needs to be larger than it."""
        return min(32, max(4, -(-4 * self._l2 // read_bytes)))

    def device(self, calls: Sequence[Call]) -> float:
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
            if hidden or covers >= self._MOST_COVERS:
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

    def wait(self) -> None:
        """See `Clock.wait`."""
        torch.cuda.synchronize(self._device)


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
