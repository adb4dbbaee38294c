"""Samplers that are right and slower than they must be, each by something that was slipped into real ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from optimized import FlashInferSampling
from reference import ReferenceSampling


class AddedPass(FlashInferSampling):
    """Reads its logits once more than it must, as fast as they can be read: that costs about a tenth."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._reads: dict[int, Callable[[Tensor], Tensor]] = {}

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        from conformance.measure.read_kernel import candidates  # noqa: PLC0415  # Triton is there with CUDA alone

        if n not in self._reads:
            self._reads[n] = candidates(n, self.vocab_size, logits.device)[0]
        self._reads[n](logits)
        return super().sample_kernel(logits, n, context, **call)


class HiddenSync(FlashInferSampling):
    """Asks the device for one number."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        ids = super().sample_kernel(logits, n, context, **call)
        ids[0].item()
        return ids


class LaunchPerRow(FlashInferSampling):
    """Launches something small for each row."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        ids = super().sample_kernel(logits, n, context, **call)
        for row in ids:
            row.clamp_(min=0)
        return ids


class QuarterSlower(ReferenceSampling):
    """Takes a quarter longer, whatever it takes."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        start = time.perf_counter()
        ids = super().sample_kernel(logits, n, context, **call)
        until = start + 1.25 * (time.perf_counter() - start)
        while time.perf_counter() < until:
            pass
        return ids
