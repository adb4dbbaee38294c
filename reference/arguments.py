"""Checks of a sampling call, shared by all samplers: everything wrong is found before anything runs.

Each check raises a ValueError that names the argument, its value and what is allowed. None of them
waits for a device: what only the device knows (the values in a CUDA index tensor) is not looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference.context import Context, GpuView, SamplingContext, batch_facts, check_parameters
from reference.slots import Slots

LOGITS_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INDEX_DTYPES = (torch.int32, torch.int64)
_PARAMETER_DTYPES = {"temperature": (torch.float32,), "top_k": INDEX_DTYPES, "top_p": (torch.float32,)}


def check_sample_call(
    vocab_size: int,
    logits: Tensor,
    n: int,
    context: Context,
    no_top_k: bool,  # noqa: FBT001  # in the order of `Sampling.sample_kernel`
    no_top_p: bool,  # noqa: FBT001  # likewise
    gather_indices: Tensor | None,
    token_to_request_index: Tensor | None,
    output: Tensor | None,
) -> Slots:
    """Check the arguments of `Sampling.sample_kernel`."""
    _check_logits(logits, vocab_size)
    n = _check_int("n", n)
    for name, flag in (("no_top_k", no_top_k), ("no_top_p", no_top_p)):
        if not isinstance(flag, (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False, got {flag!r}")
    if gather_indices is None and logits.shape[0] < n:
        raise ValueError(f"logits must have at least n = {n} rows, got shape {tuple(logits.shape)}")
    rows = _check_index("gather_indices", gather_indices, n, logits)
    if rows is not None:
        _check_values("gather_indices", rows, logits.shape[0])
    if output is not None:
        _check_output(output, n, logits.device)
    return _with_parameters(logits, n, rows, token_to_request_index, context, vocab_size)


def check_log_probs_call(
    vocab_size: int, logits: Tensor, context: Context, token_to_request_index: Tensor | None
) -> Slots:
    """Check the arguments of `Sampling.log_probs_kernel`: one slot for each logits row."""
    _check_logits(logits, vocab_size)
    return _with_parameters(logits, logits.shape[0], None, token_to_request_index, context, vocab_size)


def check_token_ids(token_ids: Tensor, logits: Tensor, vocab_size: int, top_n: int) -> None:
    """Check the arguments of `Sampling.token_log_probs`, but for the context and the map."""
    _check_logits(logits, vocab_size)
    if type(top_n) is not int or not 0 <= top_n <= vocab_size:
        raise ValueError(f"top_n must be an int in [0, vocab_size = {vocab_size}], got {top_n!r}")
    _check_is_tensor("token_ids", token_ids, INDEX_DTYPES)
    if token_ids.shape != logits.shape[:1] or token_ids.device != logits.device:
        raise ValueError(
            f"token_ids must have shape ({logits.shape[0]},) on {logits.device}, "
            f"got {tuple(token_ids.shape)} on {token_ids.device}"
        )
    _check_values("token_ids", token_ids, vocab_size)


def check_speculative_call(
    vocab_size: int,
    logits: Tensor,
    num_decode: int,
    num_prefill: int,
    num_speculative_tokens: int,
    context: Context,
    gather_indices: Tensor | None,
) -> None:
    """Check what `Sampling.sample_speculative` needs before it can call `sample_kernel`."""
    _check_logits(logits, vocab_size, "required_logits")
    for name, value in (
        ("num_decode", num_decode),
        ("num_prefill", num_prefill),
        ("num_speculative_tokens", num_speculative_tokens),
    ):
        _check_int(name, value)
    n = num_decode * (1 + num_speculative_tokens) + num_prefill
    if gather_indices is None and logits.shape[0] < n:
        raise ValueError(f"required_logits must have at least n = {n} rows, got shape {tuple(logits.shape)}")
    count = _count(_view_of(context, logits.device))
    if num_decode + num_prefill > count:
        raise ValueError(
            f"num_decode + num_prefill must be at most the {count} requests that context.gpu_view holds, "
            f"got {num_decode} + {num_prefill}"
        )


def check_vocab_size(vocab_size: int) -> None:
    """Check a sampler's vocabulary size. Token ids fit int32 in every kernel."""
    if type(vocab_size) is not int or not 0 < vocab_size < 2**31:
        raise ValueError(f"vocab_size must be an int in [1, 2**31), got {vocab_size!r}")


def _with_parameters(
    logits: Tensor, n: int, rows: Tensor | None, request_index: Tensor | None, context: Context, vocab_size: int
) -> Slots:
    view = _view_of(context, logits.device)
    count = _count(view)
    if request_index is None and count < n:
        raise ValueError(
            f"n must be at most the {count} requests that context.gpu_view holds "
            f"where token_to_request_index is None, got {n}"
        )
    requests = _check_index("token_to_request_index", request_index, n, logits)
    if requests is not None:
        _check_values("token_to_request_index", requests, count)
    facts = batch_facts(context, vocab_size)
    slots = Slots(logits, n, rows, requests, view.temperature, view.top_k, view.top_p, facts)
    if facts is None and logits.device.type == "cpu":
        # No metadata, but on a CPU the parameters themselves can be seen.
        names = ("temperature", "top_k", "top_p")
        check_parameters(**{name: x.numpy() for name, x in zip(names, slots.parameters(), strict=True)})
    return slots


def _count(view: GpuView) -> int:
    return min(view.temperature.shape[0], view.top_k.shape[0], view.top_p.shape[0])


def _view_of(context: Context, device: torch.device) -> GpuView:
    """The context's parameters on the device. A `SamplingContext` has checked them itself."""
    view: GpuView | None = getattr(context, "gpu_view", None)
    if view is None:
        raise ValueError(f"context must have a gpu_view, got {type(context).__name__}")
    if not isinstance(context, SamplingContext) or view.temperature.device != device:
        for name in _PARAMETER_DTYPES:
            _check_parameter(name, view, device)
    return view


def _check_logits(logits: Tensor, vocab_size: int, name: str = "logits") -> None:
    _check_is_tensor(name, logits, LOGITS_DTYPES)
    if logits.ndim != 2:
        raise ValueError(f"{name} must have 2 dimensions [rows, vocab], got shape {tuple(logits.shape)}")
    if logits.shape[1] < vocab_size:
        raise ValueError(f"{name} must be at least vocab_size = {vocab_size} wide, got shape {tuple(logits.shape)}")


def _check_parameter(name: str, view: Any, device: torch.device) -> None:
    values: Any = getattr(view, name, None)
    _check_is_tensor(f"context.gpu_view.{name}", values, _PARAMETER_DTYPES[name])
    if values.ndim != 1 or values.device != device:
        raise ValueError(
            f"context.gpu_view.{name} must have 1 dimension on the logits' device {device}, "
            f"got shape {tuple(values.shape)} on {values.device}"
        )


def _check_int(name: str, value: object) -> int:
    """An int of at least 0, Python's or numpy's, but no bool."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be an int of at least 0, got {value!r}")
    return int(value)


def _check_index(name: str, index: Tensor | None, n: int, logits: Tensor) -> Tensor | None:
    """The first n entries."""
    if index is None:
        return None
    _check_is_tensor(name, index, INDEX_DTYPES)
    if index.ndim != 1 or index.shape[0] < n:
        raise ValueError(f"{name} must have 1 dimension and at least n = {n} entries, got shape {tuple(index.shape)}")
    if index.device.type != "cpu" and index.device != logits.device:
        raise ValueError(f"{name} must be on the CPU or on the logits' device {logits.device}, got {index.device}")
    return index[:n]


def _check_values(name: str, index: Tensor, limit: int) -> None:
    """Where they can be seen without waiting for a device."""
    if index.device.type != "cpu" or not index.numel():
        return
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0 or high >= limit:
        raise ValueError(f"{name} must hold values in [0, {limit}), got {low if low < 0 else high}")


def _check_output(output: Tensor, n: int, device: torch.device) -> None:
    _check_is_tensor("output", output, (torch.int64,))
    if output.shape != (n,) or output.device != device:
        raise ValueError(
            f"output must have shape ({n},) on the logits' device {device}, "
            f"got {tuple(output.shape)} on {output.device}"
        )


def _check_is_tensor(name: str, value: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dtype not in dtypes:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} must have dtype {allowed}, got {str(value.dtype).removeprefix('torch.')}")
