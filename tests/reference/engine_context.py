"""A context exactly as real engines lay it out, for every test that takes one.

What is unusual, and on purpose:
- of the CPU metadata only the active requests mean anything; the rest is poison (NaN, -1, 2^62);
- the device tensors are longer than the batch: padding rows hold T = 1, k = 0, p = 0;
- they are views into one byte buffer, 4 bytes past a multiple of 8: a kernel that reads 8 or 16 bytes at a time, or
  takes int32 top_k for int64, reads its neighbours;
- top_k is int32 on the device and int64 on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class EngineGpuView:
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


@dataclass
class EngineContext:
    """Nothing of `reference.SamplingContext`: samplers see an object of their engine."""

    gpu_view: EngineGpuView
    active_request_metadata: dict[str, Tensor]
    total_request_count: int
    paused_request_count: int
    buffer: Tensor


@dataclass
class ViewOnlyContext:
    """An engine without CPU metadata."""

    gpu_view: EngineGpuView


PADDING = 5
"""Requests on the device beyond the active ones."""

POISON = {"temperature": math.nan, "top_k": 2**62, "top_p": -1.0}


def engine_context(
    temperature: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    *,
    paused: int = 2,
    device: str = "cpu",
) -> EngineContext:
    """The parameters of the active requests, laid out as an engine does."""
    active = len(temperature)
    size = active + PADDING
    # Room for three parameters, and for a start at any offset; other bytes of the buffer belong to the engine.
    buffer = torch.full((3 * 4 * size + 32,), 0xAB, dtype=torch.uint8, device=device)
    start = (4 - buffer.data_ptr()) % 8
    views = {}
    for name, dtype, values, off in (
        ("temperature", torch.float32, temperature, 1.0),
        ("top_k", torch.int32, top_k, 0),
        ("top_p", torch.float32, top_p, 0.0),
    ):
        view = buffer[start : start + 4 * size].view(dtype)
        view.copy_(torch.tensor([*values, *[off] * PADDING], dtype=dtype))
        assert view.data_ptr() % 4 == 0
        views[name] = view
        # The next view starts 4 bytes past a multiple of 8 again, after a gap of 4 bytes where the size is odd.
        start += 4 * size + (4 * size) % 8
    assert all(view.data_ptr() % 8 == 4 for view in views.values())
    metadata = {
        "temperature": torch.tensor([*temperature, *[POISON["temperature"]] * (PADDING + paused)], dtype=torch.float32),
        "top_k": torch.tensor([*top_k, *[int(POISON["top_k"])] * (PADDING + paused)], dtype=torch.int64),
        "top_p": torch.tensor([*top_p, *[POISON["top_p"]] * (PADDING + paused)], dtype=torch.float32),
    }
    return EngineContext(EngineGpuView(**views), metadata, active + paused, paused, buffer)


def engine_indices(values: Sequence[int], padding: int = 6, device: str = "cpu") -> Tensor:
    """Gather indices or a request map: int32, longer than n, padded with 0."""
    return torch.tensor([*values, *[0] * padding], dtype=torch.int32, device=device)
