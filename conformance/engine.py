"""A context laid out as inference engines lay theirs out, which a sampler must take as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reference import SamplingContext

PADDING = 5
"""Entries on the device beyond the active requests. They hold T = 1, k = 0, p = 0."""

STALE = 7
"""Entries of the CPU metadata beyond the active requests. They hold garbage."""


class EngineContext:
    """The parameters of some requests, as an engine's context holds them.

    - `gpu_view`: views into one byte buffer, aligned to 4 bytes only, longer than the batch.
    - `active_request_metadata`: pinned where there is a CUDA device; only the first
      `total_request_count - paused_request_count` entries mean anything; top_k is int64 here.
    - two further requests are paused.
    """

    def __init__(
        self, temperature: list[float], top_k: list[int], top_p: list[float], *, device: torch.device,
        padding: int = PADDING,
    ) -> None:  # fmt: skip
        active = len(temperature)
        entries = active + padding
        columns = (
            torch.tensor([*temperature, *[1.0] * padding], dtype=torch.float32),
            torch.tensor([*top_k, *[0] * padding], dtype=torch.int32),
            torch.tensor([*top_p, *[0.0] * padding], dtype=torch.float32),
        )
        unit = torch.uint8
        buffer = torch.cat([torch.zeros(4, dtype=unit), *[column.view(unit) for column in columns]]).to(device)
        views = [
            buffer[4 + i * 4 * entries : 4 + (i + 1) * 4 * entries].view(column.dtype)
            for i, column in enumerate(columns)
        ]
        self.gpu_view = SimpleNamespace(temperature=views[0], top_k=views[1], top_p=views[2])
        pinned = torch.cuda.is_available()

        def metadata(values: list[float] | list[int], garbage: float, dtype: torch.dtype) -> Tensor:
            tensor = torch.tensor([*values, *[garbage] * STALE], dtype=dtype)
            return tensor.pin_memory() if pinned else tensor

        self.active_request_metadata = {
            "temperature": metadata(temperature, float("nan"), torch.float32),
            "top_k": metadata(top_k, -7, torch.int64),
            "top_p": metadata(top_p, 1e9, torch.float32),
        }
        self.paused_request_count = 2
        self.total_request_count = active + self.paused_request_count


def plain_context(
    temperature: list[float], top_k: list[int], top_p: list[float], device: torch.device
) -> SamplingContext | EngineContext:
    """A `SamplingContext`; what looks alike where a parameter is an engine's sentinel that the contract refuses."""
    if min(temperature, default=0) < 0 or min(top_k, default=0) < 0:
        return EngineContext(temperature, top_k, top_p, device=device, padding=0)
    return SamplingContext(temperature, top_k, top_p, device=device)


def set_parameters(context: Any, temperature: list[float], top_k: list[int], top_p: list[float]) -> None:
    """Give the requests of a context other parameters, as many as before, in the memory that is there."""
    if isinstance(context, SamplingContext):
        context.update(temperature, top_k, top_p)  # which forgets what it had found out of the old ones
        return
    for name, values in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)):
        for tensors in (getattr(context, "active_request_metadata", {}).get(name), getattr(context.gpu_view, name)):
            if tensors is not None:
                tensors[: len(values)] = torch.tensor(values, dtype=tensors.dtype)


def view_only(context: object) -> SimpleNamespace:
    """A context that holds nothing but the device's view of another."""
    return SimpleNamespace(gpu_view=context.gpu_view)  # type: ignore[attr-defined]  # duck-typed on purpose
