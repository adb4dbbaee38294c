"""What one call makes the machine do. Counts are the same at each call, and on each machine of a kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

_FEW, _MANY = 2, 6
"""Calls under a profiler. What it adds itself is in both, and falls out of the difference."""

_WAITS = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize(_v\d+)?|cudaMemcpy|cuMemcpy(DtoH|HtoD)?(_v\d+)?")
"""Calls of the driver after which the host has waited."""


@dataclass(frozen=True)
class Counts:
    """Of one call.

    operations: of torch, dispatched by the host. launches: kernels, copies and fills on a CUDA device; syncs: how often
    the host waits for it; None on a CPU.
    """

    operations: float
    launches: float | None = None
    syncs: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """As plain data."""
        return asdict(self)


COUNTS = ("operations", "launches", "syncs")


class _Operations(TorchDispatchMode):
    number: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def count(call: Callable[[], object], device: torch.device) -> Counts:
    """Counts of one call, as the mean of a few."""
    with _Operations() as mode:  # type: ignore[no-untyped-call]  # torch's __init__
        for _ in range(_MANY):
            call()
    operations = mode.number / _MANY
    if device.type == "cpu":
        return Counts(operations)
    _driver_calls(call, _FEW, device)  # the first profile of a process sets the profiler up, in the midst of the calls
    few, many = (_driver_calls(call, calls, device) for calls in (_FEW, _MANY))
    launches, syncs = ((after - before) / (_MANY - _FEW) for before, after in zip(few, many, strict=True))
    return Counts(operations, launches, syncs)


def _driver_calls(call: Callable[[], object], calls: int, device: torch.device) -> tuple[int, int]:
    """Launches and waits."""
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize(device)
    events = seen.events() or []
    launches = sum(event.device_type.name == "CUDA" for event in events)
    waits = sum(event.device_type.name == "CPU" and bool(_WAITS.fullmatch(event.name)) for event in events)
    return launches, waits
