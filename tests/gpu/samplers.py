"""Samplers over FlashInfer as they are found in the wild, each with the fault that FlashInfer's own kernels bring.

Importing this module needs FlashInfer. Each name is a factory for ``--sampler tests.gpu.samplers:NAME``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from flashinfer import sampling as flashinfer
from torch import Tensor

from conformance import from_function
from optimized import FlashInferSampling
from reference.arguments import check_log_probs_call


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
