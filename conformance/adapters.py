"""Samplers that are plain functions, put under the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference import Sampling
from reference.slots import Slots

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

    make_sampler.claims = {"log_probs": "none", **claims}  # type: ignore[attr-defined]  # read by Claims.of
    make_sampler.__qualname__ = f"from_function({getattr(function, '__qualname__', repr(function))})"
    make_sampler.__module__ = getattr(function, "__module__", __name__)
    return make_sampler


class _FunctionSampling(Sampling):
    def __init__(self, vocab_size: int, rng: torch.Generator, function: SampleFunction) -> None:
        super().__init__(vocab_size, rng)
        self.function = function

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:  # noqa: ARG002
        rows = slots.logits[: slots.n] if slots.rows is None else slots.logits[slots.rows]
        rows = rows[:, : self.vocab_size].contiguous()
        output.copy_(self.function(rows, *slots.parameters(), self.rng))

    def _log_probs(self, slots: Slots, output: Tensor) -> None:
        raise NotImplementedError("a plain function has no log-probs")
