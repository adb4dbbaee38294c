"""Triton kernels from logits, as an engine holds them, to probabilities in slot order.

Gathering, temperature, greedy rows, invalid rows, padding, strides and the filters' "off" values are
all settled here, so that what follows sees plain rows. Two launches, each over (tile, slot), so that
one row can use the whole GPU: the first leaves each tile's maximum and sum of exponentials, the
second combines those of its row and writes its tile.

Bytes for n slots: 2 * 2 n V read (bf16) + 4 n V written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from optimized.kernels import TOP_P_OFF
from reference.law import MIN_TEMPERATURE
from reference.slots import Slots

TILE = 4096
"""Tokens a program reads, with 4 warps. On an H200 at V = 128,256 both launches together took 45 / 83 / 291 us
for n = 64 / 256 / 1024; tiles of 2,048 54 / 84 / 303, of 8,192 with 8 warps 48 / 88 / 298."""

_SMALL_TILE, _LEAST_TILES = 1024, 64
"""Few sizes for all vocabularies, as each is compiled anew. A program reads 64 summaries also where there are fewer
tiles: the dispatcher at V = 128,256, with 32 of them, took 19 / 52 / 149 / 469 us before a draw without filters as
after it had read 32 (19 / 51 / 147 / 465, another run), at n = 8 / 64 / 256 / 1024 on an H200."""

_MAX_WORKSPACES, _MAX_KEPT_SLOTS = 256, 4096
"""Workspaces kept, each for one batch size on one stream: about 270 bytes a slot at V = 128,256."""

_DIRECT_LAUNCH = triton.__version__.startswith("3.6.")
"""A compiled kernel's `run` is Triton's own business: it is called only in the version that it was tried with."""

# Triton looks at every global that a kernel reads at each launch; literals cost nothing.
assert (MIN_TEMPERATURE, TOP_P_OFF) == (1e-6, 2.0)


@triton.jit
def _tile_logits(logits, row, row_stride, column_stride, column, vocab_size):
    pointer = logits + row * row_stride + column.to(tl.int64) * column_stride
    return tl.load(pointer, mask=column < vocab_size, other=-float("inf")).to(tl.float32)


# Parameters and indices are read one entry at a time; an engine may hold them aligned to 4 bytes only.
@triton.jit(do_not_specialize_on_alignment=["rows", "requests", "temperature", "top_k"])
def _summary_kernel(
    logits, row_stride, column_stride, rows, requests, temperature, top_k, summary, vocab_size, tiles,
    HAS_ROWS: tl.constexpr, HAS_REQUESTS: tl.constexpr, ALL_GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Leave each tile's maximum and sum of exponentials.

    summary[slot, 0, tile] = maximum; summary[slot, 1, tile] = sum of exponentials, or for greedy
    rows the maximum's lowest index, as bits. The maximum is NaN where a logit is NaN or +inf.
    """
    slot = tl.program_id(0).to(tl.int64)  # the first axis has no limit of 65,535
    tile = tl.program_id(1)
    row = tl.load(rows + slot).to(tl.int64) if HAS_ROWS else slot
    request = tl.load(requests + slot).to(tl.int64) if HAS_REQUESTS else slot
    column = tile * BLOCK + tl.arange(0, BLOCK)
    z = _tile_logits(logits, row, row_stride, column_stride, column, vocab_size)
    maximum = tl.max(z, 0)  # ignores NaN
    broken = tl.max(((z != z) | (z == float("inf"))).to(tl.int32), 0)
    out = summary + slot * 2 * tiles + tile
    tl.store(out, tl.where(broken > 0, float("nan"), maximum))
    greedy = ALL_GREEDY
    if not ALL_GREEDY:
        greedy = (tl.load(temperature + request) == 0) | (tl.load(top_k + request) == 1)
    if greedy:
        first = tl.min(tl.where(z == maximum, column, vocab_size - 1), 0)
        tl.store(out + tiles, first.to(tl.float32, bitcast=True))
    else:
        scale = 1.4426950408889634 / tl.maximum(tl.load(temperature + request), 1e-6)  # log2(e) / T
        # A tile without a finite logit has no maximum to subtract; its exponentials are 0 anyway.
        base = tl.where(maximum == -float("inf"), 0.0, maximum)
        tl.store(out + tiles, tl.sum(tl.exp2((z - base) * scale), 0))


@triton.jit
def _load_summary(summary, slot, tiles, TILES: tl.constexpr):
    """Maxima and second entries of a row's tiles, the row's maximum, and whether the row is valid."""
    index = tl.arange(0, TILES)
    base = summary + slot * 2 * tiles + index
    maxima = tl.load(base, mask=index < tiles, other=-float("inf"))
    second = tl.load(base + tiles, mask=index < tiles, other=0.0)
    maximum = tl.max(maxima, 0)
    broken = tl.max((maxima != maxima).to(tl.int32), 0)
    return maxima, second, maximum, (broken == 0) & (maximum > -float("inf"))


@triton.jit
def _first_maximum(maxima, second, maximum, vocab_size):
    return tl.min(tl.where(maxima == maximum, second.to(tl.int32, bitcast=True), vocab_size - 1), 0)


@triton.jit(do_not_specialize_on_alignment=["output"])
def _argmax_kernel(summary, output, output_stride, vocab_size, tiles, TILES: tl.constexpr):
    slot = tl.program_id(0).to(tl.int64)
    maxima, second, maximum, _valid = _load_summary(summary, slot, tiles, TILES)
    tl.store(output + slot * output_stride, _first_maximum(maxima, second, maximum, vocab_size).to(tl.int64))


@triton.jit(do_not_specialize_on_alignment=["rows", "requests", "temperature", "top_k", "top_p"])
def _softmax_kernel(
    logits, row_stride, column_stride, rows, requests, temperature, top_k, top_p, summary,
    output, output_stride, output_width, slot_top_k, slot_top_p, slot_valid, vocab_size, tiles,
    HAS_ROWS: tl.constexpr, HAS_REQUESTS: tl.constexpr, LOG: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)  # the first axis has no limit of 65,535
    tile = tl.program_id(1)
    row = tl.load(rows + slot).to(tl.int64) if HAS_ROWS else slot
    request = tl.load(requests + slot).to(tl.int64) if HAS_REQUESTS else slot
    t = tl.load(temperature + request)
    k = tl.load(top_k + request)
    maxima, second, maximum, valid = _load_summary(summary, slot, tiles, TILES)
    if not LOG:
        if tile == 0:
            p = tl.load(top_p + request)
            tl.store(slot_top_k + slot, tl.where((k <= 0) | (k > vocab_size), vocab_size, k).to(tl.int64))
            # 2: TOP_P_OFF. FlashInfer flushes subnormal numbers to 0, which would mean "keep nothing".
            tl.store(slot_top_p + slot, tl.where((p <= 0) | (p >= 1), 2.0, tl.maximum(p, 1.1754944e-38)))
            tl.store(slot_valid + slot, valid)
    column = tile * BLOCK + tl.arange(0, BLOCK)
    out = output + slot * output_stride + column
    inside = column < output_width
    if (t == 0) | (k == 1) | (valid == 0):
        # An invalid row becomes one-hot too, so that a filter or a draw has nothing to trip over.
        first = tl.where(valid, _first_maximum(maxima, second, maximum, vocab_size), 0)
        if LOG:
            value = tl.where(column == first, 0.0, -float("inf"))
            tl.store(out, tl.where(valid, value, float("nan")), mask=inside)
        else:
            tl.store(out, tl.where(column == first, 1.0, 0.0), mask=inside)
    else:
        t = tl.maximum(t, 1e-6)  # MIN_TEMPERATURE
        scale = 1.4426950408889634 / t
        total = tl.sum(tl.where(second > 0, second * tl.exp2((maxima - maximum) * scale), 0.0), 0)
        z = _tile_logits(logits, row, row_stride, column_stride, column, vocab_size)
        if LOG:
            tl.store(out, (z - maximum) / t - tl.log(total), mask=inside)
        else:
            tl.store(out, tl.exp2((z - maximum) * scale) / total, mask=inside)


@triton.jit
def _log_kernel(probs, probs_stride, slot_valid, output, output_stride, output_width, vocab_size, BLOCK: tl.constexpr):
    slot = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(probs + slot * probs_stride + column, mask=column < vocab_size, other=0.0)
    value = tl.where(tl.load(slot_valid + slot), tl.log(p), float("nan"))
    tl.store(output + slot * output_stride + column, value, mask=column < output_width)


class Workspace(NamedTuple):
    """What the kernels leave for those that follow. It holds until the next call on the same stream."""

    summary: Tensor  # float32 [n, 2, tiles]
    top_k: Tensor  # int64 [n], as in `Batch`
    top_p: Tensor  # float32 [n], likewise
    valid: Tensor  # bool [n], likewise


@cache
def _compiled_for(vocab_size: int, device: torch.device) -> dict[tuple[Any, ...], Any]:  # noqa: ARG001  # the cache's key
    """Compiled kernels by kind of call, for all samplers of one vocabulary on one device."""
    return {}


class SlotSoftmax:
    """Launches the kernels above for one vocabulary on one device.

    vocab_size: number of real tokens. device: a CUDA device with its index.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.block = TILE if vocab_size > _SMALL_TILE else _SMALL_TILE
        self.tiles = -(-vocab_size // self.block)
        self._tiles_power = max(_LEAST_TILES, 1 << (self.tiles - 1).bit_length())
        self._get_stream: Callable[[int], int] = triton.runtime.driver.active.get_current_stream
        self._compiled = _compiled_for(vocab_size, device)
        self._workspaces: dict[tuple[int, int], Workspace] = {}

    def argmax(self, slots: Slots, output: Tensor) -> None:
        """Lowest index of each slot's maximum, into int64 [n]. Bytes: 2 n V read (bf16)."""
        summary = self.workspace(slots.n).summary
        self._summarise(slots, summary, _inputs(slots), _kind(slots), all_greedy=True)
        args = (summary, output, output.stride(0), self.vocab_size, self.tiles)
        self._launch(_argmax_kernel, (slots.n, 1), args, (self._tiles_power,), output.stride(), num_warps=1)

    def softmax(self, slots: Slots, output: Tensor) -> Workspace:
        """Softmax of each slot's row into float32 [n, >= vocab_size]; columns from vocab_size on get 0."""
        workspace = self.workspace(slots.n)
        self._softmax(slots, output, workspace, log=False)
        return workspace

    def log_softmax(self, slots: Slots, output: Tensor) -> None:
        """Its log, into float32 [n, >= vocab_size]: -inf for 0, NaN for invalid rows."""
        self._softmax(slots, output, self.workspace(slots.n), log=True)

    def log(self, probs: Tensor, valid: Tensor, output: Tensor) -> None:
        """Log of float32 [n, >= vocab_size] into [n, W]; NaN where `valid` is false."""
        width, stride, block = output.shape[1], output.stride(0), 4096
        self._launch(
            _log_kernel,
            (output.shape[0], -(-width // block)),
            (probs, probs.stride(0), valid, output, stride, width, self.vocab_size),
            (block,),
            (probs.stride(0), probs.data_ptr() & 15, stride, width, output.data_ptr() & 15),
            num_warps=4,
        )

    def workspace(self, n: int) -> Workspace:
        """Small tensors for a call with n slots.

        Kept for the current stream and n, because allocating them costs 15 us of host time a call.
        Work on one stream is in order, so the next call may overwrite them. A captured call gets its
        own: its replays may run on any stream.
        """
        keep = n <= _MAX_KEPT_SLOTS and not torch.cuda.is_current_stream_capturing()
        key = (self._get_stream(self.device.index), n)
        workspace = self._workspaces.get(key) if keep else None
        if workspace is None:
            workspace = Workspace(
                torch.empty(n, 2, self.tiles, dtype=torch.float32, device=self.device),
                torch.empty(n, dtype=torch.int64, device=self.device),
                torch.empty(n, dtype=torch.float32, device=self.device),
                torch.empty(n, dtype=torch.bool, device=self.device),
            )
            if keep:
                if len(self._workspaces) >= _MAX_WORKSPACES:
                    self._workspaces.clear()
                self._workspaces[key] = workspace
        return workspace

    def _softmax(self, slots: Slots, output: Tensor, workspace: Workspace, *, log: bool) -> None:
        summary, top_k, top_p, valid = workspace
        inputs, kind = _inputs(slots), _kind(slots)
        self._summarise(slots, summary, inputs, kind, all_greedy=False)
        width, stride = output.shape[1], output.stride(0)
        results = (output, stride, width, top_k, top_p, valid, self.vocab_size, self.tiles)
        self._launch(
            _softmax_kernel,
            (slots.n, -(-width // self.block)),
            (*inputs, slots.top_p, summary, *results),
            (*_has(slots), log, self._tiles_power, self.block),
            (*kind, stride, width, output.data_ptr() & 15),
            num_warps=4,
        )

    def _summarise(
        self, slots: Slots, summary: Tensor, inputs: tuple[Any, ...], kind: tuple[Any, ...], *, all_greedy: bool
    ) -> None:
        self._launch(
            _summary_kernel,
            (slots.n, self.tiles),
            (*inputs, summary, self.vocab_size, self.tiles),
            (*_has(slots), all_greedy, self.block),
            kind,
            num_warps=4,
        )

    def _launch(
        self,
        kernel: Any,
        grid: tuple[int, int],
        args: tuple[Any, ...],
        constants: tuple[Any, ...],
        kind: tuple[Any, ...],
        *,
        num_warps: int,
    ) -> None:
        """Launch, paying for Triton's analysis of the arguments once a kind of call and not once a call.

        `kernel[grid](...)` took 40 us of host time and more with 20 arguments. `kind` tells apart all
        that Triton specialises on and that can differ between two calls of one object: dtypes,
        strides, widths and 16-byte alignment.
        """
        if not _DIRECT_LAUNCH:
            kernel[*grid, 1](*args, *constants, num_warps=num_warps)
            return
        key = (kernel.__name__, constants, kind)  # a kernel's own hash takes microseconds
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = kernel.warmup(*args, *constants, grid=grid, num_warps=num_warps)
            compiled = self._compiled[key] = (compiled, compiled.run, compiled.function, compiled.packed_metadata)
        _, run, function, metadata = compiled
        # The call that a compiled kernel's own `[grid](...)` makes, without its profiler hooks.
        run(*grid, 1, self._get_stream(self.device.index), function, metadata, None, None, None, *args, *constants)


def _inputs(slots: Slots) -> tuple[Any, ...]:
    # Where there is no index tensor, any tensor stands in: the kernel does not look at it.
    rows = slots.temperature if slots.rows is None else slots.rows
    requests = slots.temperature if slots.requests is None else slots.requests
    return slots.logits, *slots.logits.stride(), rows, requests, slots.temperature, slots.top_k


def _has(slots: Slots) -> tuple[bool, bool]:
    return slots.rows is not None, slots.requests is not None


def _kind(slots: Slots) -> tuple[Any, ...]:
    logits, rows, requests = slots.logits, slots.rows, slots.requests
    return (
        logits.dtype,
        logits.stride(),
        logits.data_ptr() & 15,
        slots.top_k.dtype,
        None if rows is None else rows.dtype,
        None if requests is None else requests.dtype,
    )
