"""Samplers that are plain functions, put under the contract."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from reference import Sampling
from reference.arguments import check_sample_call
from reference.context import Context

SampleFunction = Callable[[Tensor, Tensor, Tensor, Tensor, torch.Generator], Tensor]
"""f(logits [n, V], temperature [n], top_k [n], top_p [n], rng) -> ids [n]"""


def from_function(function: SampleFunction, **claims: Any) -> Callable[[int, torch.Generator], Sampling]:
    """A factory of samplers for `conformance.check` from a plain function.

    function: gets contiguous rows without padding columns and one parameter a row, as the request states
        them (T = 0, k = 0, p = 0 and p = 1 included); returns integer ids [n].
    claims: fields of `conformance.Claims`. A function has no log-probs unless they say otherwise.
    """

    def make_sampler(vocab_size: int, rng: torch.Generator) -> Sampling:
        return _FunctionSampling(vocab_size, rng, function)

    make_sampler.claims = {"log_probs": False, **claims}  # type: ignore[attr-defined]  # read by Claims.of
    make_sampler.__qualname__ = getattr(function, "__qualname__", repr(function))
    make_sampler.__module__ = getattr(function, "__module__", __name__)
    return make_sampler


class _FunctionSampling(Sampling):
    def __init__(self, vocab_size: int, rng: torch.Generator, function: SampleFunction) -> None:
        super().__init__(vocab_size, rng)
        self.function = function

    def sample_kernel(
        self,
        logits: Tensor,
        n: int,
        context: Context,
        *,
        no_top_k: bool,
        no_top_p: bool,
        gather_indices: Tensor | None = None,
        token_to_request_index: Tensor | None = None,
        output: Tensor | None = None,
        eager: bool = False,  # noqa: ARG002  # the contract's, without a meaning here
        cache_key: Hashable = None,  # noqa: ARG002  # likewise
    ) -> Tensor:
        slots = check_sample_call(
            self.vocab_size, logits, n, context, no_top_k, no_top_p, gather_indices, token_to_request_index, output
        )
        if output is None:
            output = torch.empty(n, dtype=torch.int64, device=logits.device)
        if n:
            rows = logits[:n] if slots.rows is None else logits[slots.rows]
            rows = rows[:, : self.vocab_size].contiguous()
            output.copy_(self.function(rows, *slots.parameters(), self.rng))
        return output

    def log_probs_kernel(
        self, logits: Tensor, context: Context, *, token_to_request_index: Tensor | None = None
    ) -> Tensor:
        raise NotImplementedError("a plain function has no log-probs")
