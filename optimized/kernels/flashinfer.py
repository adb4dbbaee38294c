"""FlashInfer's kernels behind the protocol. Importing this module needs FlashInfer, a GPU and Triton.

What is minded here (each measured on an H200 with FlashInfer 0.7.4):
- `softmax` gives a uniform row at T = 0, and reads float32 only: `SlotSoftmax` is used instead.
- `sampling_from_logits` has no tail beyond about 16 nats, and repeats noise when n * V >= 2^32: never used.
- p = 1 cuts the tail of a filter: "off" is a p above 1.
- The kernels address rows with 32 bits: `max_elements` keeps n * W below.
- The renormalising kernels add with float atomics unless told to be deterministic.
- `indices=` takes parameters by probability row: never used, rows come in slot order.
- Reading the generator's state costs 20 us of host time: seed and offset are read and set instead.
- The Python functions around the drawing kernels cost 26 us of host time a call and give int32 ids that
  cost a copy; the compiled functions behind them cost 10 us and write int64 ids. These are called here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optimized.kernels import TOP_P_OFF, Batch

if TYPE_CHECKING:
    from reference.slots import Slots

try:
    from flashinfer import sampling as flashinfer
    from flashinfer.jit.sampling import gen_sampling_module
except ImportError as error:
    raise ImportError(
        "FlashInferSampling on a CUDA device needs FlashInfer 0.7.4 or newer: "
        "pip install 'sampling-conformance[flashinfer]'"
    ) from error

from optimized.kernels.slot_softmax import SlotSoftmax  # needs Triton: FlashInfer's absence comes first

_OFFSETS_PER_PART = 256
"""A rejection kernel takes one number a round and row, from its offset on. Each round at least halves
the interval of float32 probabilities that is left, so there are at most about 175 rounds."""

_SPLIT_DRAW_ROWS, _SPLIT_DRAW_WIDTH = 128, 8192
"""Up to this many rows of at least this width, the unfiltered draw uses the top-p kernel with p "off": on
Hopper it spreads such a row over a cluster of up to 8 SMs, and its first proposal is always accepted.
`sampling_from_probs` gives a row one SM, which is faster once the rows fill the GPU. At V = 128,256 on an
H200: 10 against 34 us at n = 8, 31 against 39 at 64, 83 against 67 at 256. The least width is FlashInfer's
own for a cluster: two chunks of 4,096."""

_HERE: AbstractContextManager[None] = nullcontext()

Stream = tuple[int | Tensor, int | Tensor]


@cache
def _load_module(device: torch.device) -> Any:
    """FlashInfer's compiled sampling functions, after a look at how they read top_k.

    They read it in the dtype of their output: int64 here, where FlashInfer's own Python functions use
    int32. A version that read int32 pairs instead would see k = 0 in every odd row, and give that row's
    maximum alone.
    """
    module = gen_sampling_module().build_and_load()
    rows = 128
    probs = torch.tensor([[0.3, 0.2, 0.5, 0.0]], device=device).repeat(rows, 1)
    ids = torch.empty(rows, dtype=torch.int64, device=device)
    valid = torch.empty(rows, dtype=torch.bool, device=device)
    top_k = torch.full((rows,), 2, dtype=torch.int64, device=device)
    module.top_k_sampling_from_probs(probs, ids, valid, None, top_k, 0, True, None, 1, None, 0)  # noqa: FBT003
    # 64 odd rows at a fixed seed: with 0.7.4 both kept tokens come among them.
    if set(ids[1::2].tolist()) != {0, 2}:
        raise ImportError(
            "this version of FlashInfer does not read top_k as 0.7.4 does: install flashinfer-python 0.7.4"
        )
    return module


class FlashInferKernels:
    """See `Kernels`. A stream is the Philox (seed, offset) of one part: row i takes subsequence i."""

    max_elements = 2**28  # 1 GiB of probabilities, twice that while a filter renormalises; row offsets below 2^31
    max_filtered_rows = 65_535  # top_p_renorm_probs puts the rows on the grid's second axis

    def __init__(self, vocab_size: int, rng: torch.Generator, device: torch.device, *, enable_cuda_graph: bool) -> None:
        self.vocab_size = vocab_size
        self.rng = rng
        self.device = device
        self.enable_cuda_graph = enable_cuda_graph
        self._slots = SlotSoftmax(vocab_size, device)
        self._module = _load_module(device)
        self._zero = torch.zeros(1, dtype=torch.int64, device=device)
        hopper = torch.cuda.get_device_capability(device)[0] == 9
        # Rows of a multiple of 4 floats are read 16 bytes at a time.
        self.width = -(-vocab_size // 4) * 4
        self._split_draw_rows = _SPLIT_DRAW_ROWS if hopper and self.width >= _SPLIT_DRAW_WIDTH else 0

    def reserve(self, n: int, parts: int) -> Stream:  # noqa: ARG002  # one range serves any n
        """Advance the generator by 256 offsets a part; with CUDA graphs, by one 63-bit key a call."""
        if self.enable_cuda_graph:
            # The graph advances the generator at each replay, and the key with it. Offsets start at 0:
            # two calls share numbers only if their keys are equal, once in 2^63 pairs.
            key = torch.empty(1, dtype=torch.int64, device=self.device).random_(generator=self.rng)
            return key, self._zero
        seed, offset = self.rng.initial_seed(), self.rng.get_offset()
        self.rng.set_offset(offset + _OFFSETS_PER_PART * parts)
        return seed - 2**64 if seed >= 2**63 else seed, offset

    def part(self, stream: Stream, index: int, at: slice) -> Stream:  # noqa: ARG002  # a part has offsets of its own
        """See `Kernels.part`."""
        seed, offset = stream
        return seed, offset + _OFFSETS_PER_PART * index if index else offset

    def argmax(self, slots: Slots, output: Tensor) -> None:
        """See `Kernels.argmax`."""
        with self._on_device():
            self._slots.argmax(slots, output)

    def probabilities(self, slots: Slots) -> Batch:
        """See `Kernels.probabilities`."""
        probs = torch.empty(slots.n, self.width, dtype=torch.float32, device=self.device)
        with self._on_device():
            workspace = self._slots.softmax(slots, probs)
        return Batch(probs, workspace.top_k, workspace.top_p, workspace.valid)

    def log_probabilities(self, slots: Slots, output: Tensor) -> None:
        """See `Kernels.log_probabilities`."""
        with self._on_device():
            self._slots.log_softmax(slots, output)

    def log_filtered(self, batch: Batch, output: Tensor) -> None:
        """See `Kernels.log_filtered`."""
        with self._on_device():
            self._slots.log(batch.probs, batch.valid, output)

    def keep_top_k(self, batch: Batch) -> Batch:
        """See `Kernels.keep_top_k`."""
        return batch._replace(probs=flashinfer.top_k_renorm_probs(batch.probs, batch.top_k, is_deterministic=True))

    def keep_top_p(self, batch: Batch) -> Batch:
        """See `Kernels.keep_top_p`."""
        return batch._replace(probs=flashinfer.top_p_renorm_probs(batch.probs, batch.top_p, is_deterministic=True))

    def draw(self, batch: Batch, stream: Stream, output: Tensor) -> None:
        """See `Kernels.draw`."""
        if batch.probs.shape[0] <= self._split_draw_rows:
            self._draw(self._module.top_p_sampling_from_probs, batch, stream, output, None, TOP_P_OFF)
        else:
            self._draw(self._module.sampling_from_probs, batch, stream, output)

    def draw_top_k(self, batch: Batch, stream: Stream, output: Tensor) -> None:
        """See `Kernels.draw_top_k`."""
        self._draw(self._module.top_k_sampling_from_probs, batch, stream, output, batch.top_k, 0)

    def draw_top_p(self, batch: Batch, stream: Stream, output: Tensor) -> None:
        """See `Kernels.draw_top_p`."""
        self._draw(self._module.top_p_sampling_from_probs, batch, stream, output, batch.top_p, 0.0)

    def draw_joint(self, batch: Batch, stream: Stream, output: Tensor) -> None:
        """See `Kernels.draw_joint`."""
        kernel = self._module.top_k_top_p_sampling_from_probs
        self._draw(kernel, batch, stream, output, batch.top_k, 0.0, batch.top_p, 0.0)

    def _draw(self, kernel: Callable[..., None], batch: Batch, stream: Stream, output: Tensor, *filters: Any) -> None:
        seed, offset = stream
        # (tensor, 0) or (None, number), for the seed and for the offset.
        numbers = (seed, 0, offset, 0) if isinstance(seed, Tensor) else (None, seed, None, offset)
        ids = output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
        kernel(batch.probs, ids, batch.valid, None, *filters, True, *numbers)  # noqa: FBT003  # deterministic
        if ids is not output:
            output.copy_(ids)

    def _on_device(self) -> AbstractContextManager[None]:
        # Triton launches on the current device. Asking for it is cheaper than setting it.
        return _HERE if torch.cuda.current_device() == self.device.index else torch.cuda.device(self.device)
