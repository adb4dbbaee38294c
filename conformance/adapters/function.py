"""Samplers that are plain functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from conformance.claims import Claims
from reference import Sampling
from reference.slots import Slots

SampleFunction = Callable[..., Tensor]
"""f(logits [n, V], temperature, top_k, top_p, rng) -> ids [n], the parameters as `from_function` says"""


def from_function(function: SampleFunction, **claims: Any) -> Callable[..., Sampling]:
    """A factory of samplers for `conformance.check` from a plain function.

    function: `f(logits, temperature, top_k, top_p, rng)` gets contiguous rows [n, V] without padding columns and
        float32, int32 and float32 tensors [n], one parameter a row, as the request states them (T = 0, k = 0,
        p = 0 and p = 1 included); with the claim `parameters_by="call"`, a float, an int and a float instead, for
        all rows. Returns integer ids [n].
    claims: fields of `conformance.Claims`. A function has no log-probs, so "none" is what it claims of them.

    Raises ValueError for a claim that is none.
    """
    if not callable(function):
        raise ValueError(f"function must be callable, got {function!r}")
    stated = Claims.of(SimpleNamespace(claims={"log_probs": "none", **claims}))

    def make_sampler(vocab_size: int, rng: torch.Generator) -> Sampling:
        return _FunctionSampling(vocab_size, rng, function, stated)

    make_sampler.claims = stated  # type: ignore[attr-defined]  # read by Claims.of
    make_sampler.__qualname__ = f"from_function({getattr(function, '__qualname__', repr(function))})"
    make_sampler.__module__ = getattr(function, "__module__", __name__)
    return make_sampler


class _FunctionSampling(Sampling):
    def __init__(self, vocab_size: int, rng: torch.Generator, function: SampleFunction, claims: Claims) -> None:
        super().__init__(vocab_size, rng)
        self.function = function
        self.claims = claims
        self.sentinels = min(0, *claims.top_k_off, *claims.greedy_temperatures) < 0

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        """See `Sampling.sample_kernel`. Sentinels below 0 pass its checks as 0, and reach the function as they are."""
        view = getattr(context, "gpu_view", None)
        whole = all(isinstance(getattr(view, name, None), Tensor) for name in ("temperature", "top_k", "top_p"))
        if self.sentinels and whole:  # else the call is refused
            self.given, context = context.gpu_view, self._without_sentinels(context)
        return super().sample_kernel(logits, n, context, **call)

    def _without_sentinels(self, context: Any) -> Any:
        """The same context with 0 in their places."""
        held = {"temperature": self.claims.greedy_temperatures, "top_k": self.claims.top_k_off, "top_p": frozenset()}

        def known(values: Tensor, sentinels: frozenset[float]) -> Tensor:
            below = torch.tensor([each for each in sentinels if each < 0], dtype=values.dtype, device=values.device)
            return values.masked_fill(torch.isin(values, below), 0)

        view = {name: known(getattr(context.gpu_view, name), sentinels) for name, sentinels in held.items()}
        found = copy.copy(context)
        found.gpu_view = SimpleNamespace(**view)
        if hasattr(context, "active_request_metadata"):
            metadata = context.active_request_metadata
            found.active_request_metadata = {name: known(metadata[name], sentinels) for name, sentinels in held.items()}
        return found

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:  # noqa: ARG002
        rows = slots.logits[: slots.n] if slots.rows is None else slots.logits[slots.rows]
        rows = rows[:, : self.vocab_size].contiguous()
        if self.sentinels:
            slots = replace(slots, temperature=self.given.temperature, top_k=self.given.top_k)
        columns = slots.parameters()
        parameters = [column[0].item() for column in columns] if self.claims.parameters_by == "call" else columns
        ids: Any = self.function(rows, *parameters, self.rng)
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.shape != (slots.n,):
            found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(f"function must return integer ids of shape [{slots.n}], got {found}")
        output.copy_(ids)

    def _log_probs(self, slots: Slots, output: Tensor) -> None:
        raise NotImplementedError("a plain function has no log-probs")
