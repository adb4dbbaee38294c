"""The sampling parameters of a batch, and what can be known of them without asking the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_DTYPES = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32}
_OFF = {"temperature": 1.0, "top_k": 0, "top_p": 0.0}
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_SMALLEST = np.finfo(np.float32).smallest_subnormal
_BYTES = 4  # of each of the three dtypes


class GpuView(Protocol):
    """Parameters on the device, one entry a request: float32, int32 or int64, float32."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


class Context(Protocol):
    """What a sampler needs of an engine's context. Only `gpu_view` is required.

    With `active_request_metadata`, `total_request_count` and `paused_request_count` as well, a
    sampler can choose its route on the CPU; see `SamplingContext` for what they hold.
    """

    @property
    def gpu_view(self) -> Any:
        """What `GpuView` describes."""


class FilterFlags(TypedDict):
    """The caller's promise to `sample_kernel`; pass it as ``**filter_flags(context)``."""

    no_top_k: bool
    no_top_p: bool


@dataclass(frozen=True)
class BatchFacts:
    """What the CPU knows of the active requests."""

    all_greedy: bool
    any_uses_both: bool
    no_top_k: bool
    no_top_p: bool


class SamplingContext:
    """The parameters of the active requests, on the CPU and on a device.

    temperature, top_k, top_p: one entry an active request, as lists or tensors.
    paused: number of paused requests, which have no entry here.
    capacity: entries on the device; those beyond the active requests hold T = 1, k = 0, p = 0.
    device: where `gpu_view` lives.

    Everything is checked here, once, so that a step checks nothing twice. `update` sets the
    parameters of the next step in the same device memory (a captured graph sees them), with one
    host-to-device copy and without waiting for the device.

    Attributes: `gpu_view.temperature`, `.top_k`, `.top_p` (device, [capacity], views into one
    buffer), `active_request_metadata` (the same on the CPU, pinned where there is a CUDA device),
    `total_request_count`, `paused_request_count`.

    Raises ValueError for T < 0, NaN or infinite, k < 0, p outside [0, 1], lengths that differ.
    """

    def __init__(
        self,
        temperature: Sequence[float] | Tensor,
        top_k: Sequence[int] | Tensor,
        top_p: Sequence[float] | Tensor,
        *,
        paused: int = 0,
        capacity: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        given = _checked(temperature, top_k, top_p, paused)
        self.capacity = len(given["top_k"]) if capacity is None else capacity
        if type(self.capacity) is not int or self.capacity < len(given["top_k"]):
            raise ValueError(f"capacity must be an int of at least {len(given['top_k'])} requests, got {capacity!r}")
        self._buffer = torch.empty(3 * _BYTES * self.capacity, dtype=torch.uint8, device=device)
        self.gpu_view: GpuView = SimpleNamespace(**self._views(self._buffer))
        self._pin = torch.cuda.is_available()
        self._set(given, paused)

    def update(
        self,
        temperature: Sequence[float] | Tensor,
        top_k: Sequence[int] | Tensor,
        top_p: Sequence[float] | Tensor,
        *,
        paused: int = 0,
    ) -> None:
        """Set the parameters of the next step; nothing changes if one of them is wrong."""
        given = _checked(temperature, top_k, top_p, paused)
        if len(given["top_k"]) > self.capacity:
            raise ValueError(
                f"temperature, top_k and top_p must hold at most the capacity of {self.capacity} requests, "
                f"got {len(given['top_k'])}"
            )
        self._set(given, paused)

    def _set(self, given: dict[str, npt.NDArray[Any]], paused: int) -> None:
        active = len(given["top_k"])
        # A fresh staging buffer each step: the copy below may still be reading the last one.
        staging = torch.empty(self._buffer.shape, dtype=torch.uint8, pin_memory=self._pin)
        metadata = self._views(staging)
        for name, view in metadata.items():
            array = view.numpy()
            array[:active] = given[name]
            array[active:] = _OFF[name]
        self._buffer.copy_(staging, non_blocking=True)
        self.active_request_metadata: Mapping[str, Tensor] = metadata
        self.total_request_count = active + paused
        self.paused_request_count = paused
        self._facts: dict[int | None, BatchFacts] = {}

    def _views(self, buffer: Tensor) -> dict[str, Tensor]:
        parts = buffer.chunk(3) if self.capacity else (buffer,) * 3
        return {name: part.view(dtype) for (name, dtype), part in zip(_DTYPES.items(), parts, strict=True)}

    def facts(self, vocab_size: int | None) -> BatchFacts:
        """`batch_facts` of this context, computed once an update."""
        if vocab_size not in self._facts:
            self._facts[vocab_size] = _facts(_active_parameters(self), vocab_size)
        return self._facts[vocab_size]


def filter_flags(context: Context, vocab_size: int | None = None) -> FilterFlags:
    """Whether no active request uses top-k, and whether none uses top-p. Never waits for a device.

    k = 0, p = 0 and p = 1 do not count as used, nor does k >= `vocab_size` where that is given.
    Without CPU metadata nothing is promised: both flags are False.
    """
    facts = batch_facts(context, vocab_size)
    if facts is None:
        return {"no_top_k": False, "no_top_p": False}
    return {"no_top_k": facts.no_top_k, "no_top_p": facts.no_top_p}


def batch_facts(context: Context, vocab_size: int | None) -> BatchFacts | None:
    """What the CPU metadata says of the active requests; None where the context has none.

    Raises ValueError if the metadata holds a parameter outside its range.
    """
    if isinstance(context, SamplingContext):
        return context.facts(vocab_size)
    parameters = _active_parameters(context)
    if parameters is None:
        return None
    check_parameters(**parameters)
    return _facts(parameters, vocab_size)


def check_parameters(temperature: npt.NDArray[Any], top_k: npt.NDArray[Any], top_p: npt.NDArray[Any]) -> None:
    """Raise a ValueError that names the first parameter out of range, its request and its value."""
    for name, values, allowed, right in (
        ("temperature", temperature, "finite and at least 0", (temperature >= 0) & (temperature <= _FLOAT32_MAX)),
        ("top_k", top_k, "at least 0 and below 2**31", (top_k >= 0) & (top_k < 2**31)),
        ("top_p", top_p, "in [0, 1]", (top_p >= 0) & (top_p <= 1)),
    ):
        if not right.all():
            request = int(np.argmin(right))
            raise ValueError(f"{name} must be {allowed}, got {values[request].item()} for request {request}")


def _checked(temperature: Any, top_k: Any, top_p: Any, paused: int) -> dict[str, npt.NDArray[Any]]:
    """The parameters in the dtypes that they are stored in."""
    given = {
        "temperature": _to_numpy("temperature", temperature, "numbers"),
        "top_k": _to_numpy("top_k", top_k, "integers"),
        "top_p": _to_numpy("top_p", top_p, "numbers"),
    }
    lengths = {name: len(values) for name, values in given.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"temperature, top_k and top_p must have one length, got {lengths}")
    if type(paused) is not int or paused < 0:
        raise ValueError(f"paused must be an int of at least 0, got {paused!r}")
    check_parameters(**given)
    return {"top_k": given["top_k"].astype(np.int32)} | {
        # A positive number that float32 would round to 0 stays positive: 0 means something else.
        name: np.where(given[name] > 0, np.maximum(given[name].astype(np.float32), _SMALLEST), np.float32(0))
        for name in ("temperature", "top_p")
    }


def _to_numpy(name: str, values: Any, kind: str) -> npt.NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        array = (values.double() if values.is_floating_point() else values).numpy()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:  # a ragged list
            raise ValueError(f"{name} must have 1 dimension, got {values!r}") from error
    if array.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension, got shape {array.shape}")
    if array.size and array.dtype.kind not in ("iu" if kind == "integers" else "iuf"):
        raise ValueError(f"{name} must hold {kind}, got {array.dtype}")
    result: npt.NDArray[Any] = array.astype(np.int64 if kind == "integers" else np.float64)
    return result


_METADATA_DTYPES = {
    "temperature": (torch.float32, torch.float64),
    "top_k": (torch.int32, torch.int64),
    "top_p": (torch.float32, torch.float64),
}


def _active_parameters(context: Any) -> dict[str, npt.NDArray[Any]] | None:
    metadata = getattr(context, "active_request_metadata", None)
    if metadata is None or getattr(context, "total_request_count", None) is None:
        return None
    if not isinstance(metadata, Mapping):
        raise ValueError(f"active_request_metadata must be a mapping, got {type(metadata).__name__}")
    counts = {name: getattr(context, name, 0) for name in ("total_request_count", "paused_request_count")}
    for name, count in counts.items():
        if not isinstance(count, (int, np.integer)):
            raise ValueError(f"context.{name} must be an int, got {count!r}")
    active = int(counts["total_request_count"]) - int(counts["paused_request_count"])
    parameters = {}
    for name, dtypes in _METADATA_DTYPES.items():
        values = metadata.get(name)
        where = f"active_request_metadata[{name!r}]"
        if not isinstance(values, Tensor) or values.dtype not in dtypes or values.device.type != "cpu":
            found = f"{values.dtype} on {values.device}" if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"{where} must be a CPU tensor of {' or '.join(map(str, dtypes))}, got {found}")
        if values.ndim != 1 or not 0 <= active <= values.shape[0]:
            raise ValueError(
                f"{where} must hold the {active} active requests "
                f"(total_request_count - paused_request_count), got shape {tuple(values.shape)}"
            )
        parameters[name] = values.detach().numpy()[:active]
    return parameters


def _facts(parameters: dict[str, npt.NDArray[Any]] | None, vocab_size: int | None) -> BatchFacts:
    assert parameters is not None  # a SamplingContext always has metadata
    temperature, top_k, top_p = parameters["temperature"], parameters["top_k"], parameters["top_p"]
    uses_k = top_k > 0
    if vocab_size is not None:
        uses_k &= top_k < vocab_size
    uses_p = (top_p > 0) & (top_p < 1)
    greedy = (temperature == 0) | (top_k == 1)
    return BatchFacts(
        all_greedy=bool(greedy.all()),
        any_uses_both=bool((uses_k & uses_p & ~greedy).any()),
        no_top_k=not uses_k.any(),
        no_top_p=not uses_p.any(),
    )
