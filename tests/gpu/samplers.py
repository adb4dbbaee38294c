"""Samplers over FlashInfer as they are found in the wild, each with the fault that FlashInfer's own kernels bring.

Importing this module needs FlashInfer. Each name is a factory for ``--sampler tests.gpu.samplers:NAME``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from flashinfer import sampling as flashinfer
from torch import Tensor

from conformance import from_function
from conformance.streams import FlashInferStream
from optimized import FlashInferSampling
from reference.arguments import check_log_probs_call
from tests.conformance.faults import edge_by_one, moves_mass


def _gumbel(logits: Tensor, temperature: Tensor, _k: Tensor, _p: Tensor, rng: torch.Generator) -> Tensor:
    """fp32 Gumbel noise: nothing is drawn from more than about 16 nats below the maximum."""
    ids: Tensor = flashinfer.sampling_from_logits(logits.float() / temperature[:, None], generator=rng)
    return ids


def _softmax(logits: Tensor, temperature: Tensor, _k: Tensor, _p: Tensor, rng: torch.Generator) -> Tensor:
    """FlashInfer's softmax gives a uniform row at T = 0."""
    ids: Tensor = flashinfer.sampling_from_probs(flashinfer.softmax(logits.float(), temperature), generator=rng)
    return ids


sampling_from_logits = from_function(_gumbel)
softmax_at_zero = from_function(_softmax)


class RenormAtOne(FlashInferSampling):
    """Log-probs by top_p_renorm_probs with p = 1.0 as "off", which drops part of the tail."""

    def log_probs_kernel(self, logits: Tensor, context: Any, *, token_to_request_index: Tensor | None = None) -> Tensor:
        slots = check_log_probs_call(self.vocab_size, logits, context, token_to_request_index)
        temperature, top_k, top_p = slots.parameters()
        probs = torch.softmax(logits.float() / temperature.clamp(min=1e-6)[:, None], dim=-1)
        probs = flashinfer.top_k_renorm_probs(probs, torch.where(top_k == 0, self.vocab_size, top_k))
        kept: Tensor = flashinfer.top_p_renorm_probs(probs, torch.where(top_p == 0, 1.0, top_p))
        return kept.log()


class Waits(FlashInferSampling):
    """Looks at a value on the host at every call."""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        ids = super().sample_kernel(*args, **kwargs)
        if ids.numel() and int(ids[0]) < 0:
            raise RuntimeError("never")
        return ids


class BakesNumbers(FlashInferSampling):
    """Allows capture, but hands the kernels seed and offset as host integers of its own."""

    def __init__(self, vocab_size: int, rng: torch.Generator, *, enable_cuda_graph: bool = False) -> None:
        super().__init__(vocab_size, rng, enable_cuda_graph=enable_cuda_graph)
        self._calls = 0
        self._kernels.reserve = self._reserve  # type: ignore[method-assign, assignment]  # the fault

    def _reserve(self, _n: int, _parts: int) -> tuple[int, int]:
        self._calls += 1
        return 1234, 256 * self._calls


class BakesTemperature(FlashInferSampling):
    """Captures the temperatures of the batch at capture: later ones are not seen."""

    _baked: Tensor

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **kwargs: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            view = context.gpu_view
            baked = SimpleNamespace(temperature=self._baked, top_k=view.top_k, top_p=view.top_p)
            context = SimpleNamespace(gpu_view=baked)
        else:
            self._baked = context.gpu_view.temperature.clone()
        return super().sample_kernel(logits, n, context, **kwargs)


class WrongOffsetBit(FlashInferSampling):
    """The kernels read four numbers further on, or back: one bit of the offset is wrong."""

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng)
        reserve = self._kernels.reserve

        def wrong(n: int, parts: int) -> tuple[Any, Any]:
            seed, offset = reserve(n, parts)
            return seed, offset ^ 4

        self._kernels.reserve = wrong  # type: ignore[method-assign]  # the fault


class RowOffByOne(FlashInferSampling):
    """Row i takes the numbers of row i + 1: a row is put before the first, and its token thrown away."""

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng)
        kernels: Any = self._kernels
        right = kernels._draw

        def draw(kernel: Any, batch: Any, stream: Any, output: Tensor, *filters: Any) -> None:
            ids = torch.empty(len(output) + 1, dtype=output.dtype, device=output.device)
            longer = batch._replace(probs=_with_first_twice(batch.probs), valid=_with_first_twice(batch.valid))
            right(kernel, longer, stream, ids, *(_with_first_twice(values) for values in filters))
            output.copy_(ids[1:])

        kernels._draw = draw


def _with_first_twice(values: Any) -> Any:
    """A tensor of one entry a row; what is no tensor holds for all rows."""
    return torch.cat([values[:1], values]) if isinstance(values, Tensor) else values


class EdgeByOne(FlashInferSampling):
    """Each filter keeps one level of probability more."""

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng)
        edge_by_one(self._kernels)


class MovedMass(FlashInferSampling):
    """1e-5 of mass is moved from one token to another before the draw."""

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng)
        moves_mass(self._kernels)


KERNEL_STREAM = FlashInferStream(name="FlashInfer's kernels", part_elements=2**62)
"""One call is one launch, whatever its length."""


def _drawn_by(kernel: Callable[..., Tensor]) -> Any:
    """A sampler that is one of FlashInfer's public kernels behind torch's softmax. Right for T > 0 only.

    kernel: takes probabilities, top_k and top_p, both "off" by value, and seed and offset.
    """

    def sample(logits: Tensor, temperature: Tensor, k: Tensor, p: Tensor, rng: torch.Generator) -> Tensor:
        # In float64, rounded once: torch's float32 normaliser adds 125 terms in a row, more than `sum_error` grants.
        probs = torch.softmax(logits.double() / temperature[:, None], dim=-1).float()
        top_k = torch.where(k == 0, logits.shape[1], k).to(torch.int32)
        top_p = torch.where((p == 0) | (p == 1), 2.0, p)
        seed, offset = rng.initial_seed(), rng.get_offset()
        rng.set_offset(offset + 256)
        return kernel(probs, top_k, top_p, seed=seed, offset=offset)

    return from_function(sample, stream=KERNEL_STREAM)


kernel_unfiltered = _drawn_by(lambda probs, _k, _p, **stream: flashinfer.sampling_from_probs(probs, **stream))
kernel_top_p = _drawn_by(lambda probs, _k, p, **stream: flashinfer.top_p_sampling_from_probs(probs, p, **stream))
kernel_top_k = _drawn_by(lambda probs, k, _p, **stream: flashinfer.top_k_sampling_from_probs(probs, k, **stream))
kernel_joint = _drawn_by(
    lambda probs, k, p, **stream: flashinfer.top_k_top_p_sampling_from_probs(
        probs, k, p, filter_apply_order="joint", **stream
    )
)
