"""Puts cases and calls as a sampler wants them, by its claims.

Cases are written in the contract's terms: k = 0 and p = 0 are off, T = 0 is greedy, a slot has parameters of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Case
from conformance.claims import Claims

NEARLY_ONE = 1 - 2.0**-24
"""The largest float32 below 1: as near to off as a top-p comes that has no value for it."""


def in_terms_of(claims: Claims, case: Case) -> Case:
    """The case in values that the sampler takes, with no more draws than it wants."""
    if claims.most_draws is not None and case.draws > claims.most_draws:
        case = case.but(draws=claims.most_draws)
    case = _own_values(claims, case)
    return _one_request_a_row(case) if claims.parameters_by == "row" else case


def off_top_k(claims: Claims, vocab_size: int) -> int:
    """A k that keeps every token."""
    taken = set(claims.top_k_off) - ({0} if "top_k 0" in claims.refuses else set())
    return 0 if 0 in taken else min(taken, default=vocab_size)


def off_top_p(claims: Claims) -> float:
    """A p that drops nothing, or next to nothing where no value is off."""
    taken = [p for p in (0.0, 1.0) if p in claims.top_p_off and f"top_p {p:g}" not in claims.refuses]
    return taken[0] if taken else NEARLY_ONE


def greedy_temperature(claims: Claims) -> float:
    """A T that means greedy; 1 where none does, so that the row is drawn like any other."""
    taken = set(claims.greedy_temperatures) - ({0.0} if "temperature 0" in claims.refuses else set())
    return 0.0 if 0.0 in taken else min(taken, default=1.0)


def own_values(
    claims: Claims, vocab_size: int, temperature: list[float], top_k: list[int], top_p: list[float]
) -> tuple[list[float], list[int], list[float]]:
    """Parameters in the contract's terms, one entry a request each, as values that the sampler takes."""
    greedy, k_off, p_off = greedy_temperature(claims), off_top_k(claims, vocab_size), off_top_p(claims)
    temperature = [t or greedy for t in temperature]
    top_k = [k or k_off for k in top_k]
    off = {0.0} | ({1.0} if "top_p 1" in claims.refuses else set())
    top_p = [p_off if p in off else p for p in top_p]
    if "both filters" in claims.refuses:
        # Some count a k of V, or a p of 1, as a filter too: where one filters, the other is put to its plainest off.
        filters = [0 < k < vocab_size for k in top_k]
        top_p = [p_off if on else p for on, p in zip(filters, top_p, strict=True)]
        top_k = [k if on or p == p_off else k_off for on, k, p in zip(filters, top_k, top_p, strict=True)]
    return temperature, top_k, top_p


def _own_values(claims: Claims, case: Case) -> Case:
    given = case.parameters()
    wanted = own_values(claims, case.vocab_size, *given)
    if wanted == given:
        return case
    temperature, top_k, top_p = (tuple(column) for column in wanted)
    changed = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return case.but(**{name: column for name, column in changed.items() if name not in case.literal})


def _one_request_a_row(case: Case) -> Case:
    """The case with the parameters of each slot at the number of its logits row."""
    rows, requests = (index.tolist() for index in case.pattern())
    request_of: dict[int, int] = {}
    columns = case.parameters()
    if all(request_of.setdefault(row, request) == request for row, request in zip(rows, requests, strict=True)):
        of_row = [request_of.get(row, 0) for row in range(max(rows) + 1)]
        if of_row == list(range(len(columns[0]))):
            return case
        code, rows_kept = case.code, case.rows
    else:
        # One row serves several requests: each slot gets a copy of it.
        of_row = requests
        code, rows_kept = f"({case.code})[{rows}]", None
    temperature, top_k, top_p = (tuple(column[request] for request in of_row) for column in columns)
    return case.but(code=code, rows=rows_kept, requests=rows_kept, temperature=temperature, top_k=top_k, top_p=top_p)


class CallEach:
    """A sampler with one temperature, top_k and top_p a call, put under the contract: a call for each set of them.

    context_of: builds a context from three lists.
    """

    def __init__(self, sampler: Any, context_of: Callable[..., Any]) -> None:
        self._sampler = sampler
        self._context_of = context_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample_kernel(  # noqa: D102  # the contract's
        self,
        logits: Tensor,
        n: int,
        context: Any,
        *,
        gather_indices: Tensor | None = None,
        token_to_request_index: Tensor | None = None,
        output: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        given: dict[str, Any] = {"gather_indices": gather_indices, "token_to_request_index": token_to_request_index}
        requests = _placed(token_to_request_index, n, logits.device)
        sets = list(self._each(context, requests))
        if len(sets) <= 1:
            # The call as it is: the indices it has, its output, n = 0.
            given = {name: value for name, value in {**given, "output": output}.items() if value is not None}
            whole: Tensor = self._sampler.sample_kernel(logits, n, sets[0][1] if sets else context, **given, **more)
            return whole
        ids = torch.empty(n, dtype=torch.int64, device=logits.device) if output is None else output
        rows = _placed(gather_indices, n, logits.device)
        for own, one in sets:
            indices = {"gather_indices": rows[own], "token_to_request_index": requests[own]}
            for name, index in indices.items():
                like = given[name]
                indices[name] = index.int() if like is None else index.to(like.device, like.dtype)
            drawn = self._sampler.sample_kernel(logits, len(own), one, **indices, **more)
            if drawn.shape != own.shape or drawn.dtype != torch.int64:
                found = f"{drawn.dtype} {list(drawn.shape)}"
                raise ValueError(f"sample_kernel must return int64 [{len(own)}] for n = {len(own)}, got {found}")
            ids[own] = drawn
        return ids

    def log_probs_kernel(  # noqa: D102  # the contract's
        self, logits: Tensor, context: Any, *, token_to_request_index: Tensor | None = None
    ) -> Tensor:
        log_probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        requests = _placed(token_to_request_index, len(logits), logits.device)
        for own, one in self._each(context, requests):
            index = requests[own].int()
            log_probs[own] = self._sampler.log_probs_kernel(logits[own], one, token_to_request_index=index)
        return log_probs

    def _each(self, context: Any, requests: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """The slots of each set of parameters, and a context in which every request has them, in the order of these."""
        columns = [getattr(context.gpu_view, name).tolist() for name in ("temperature", "top_k", "top_p")]
        sets: dict[tuple[float, int, float], int] = {}
        number = [sets.setdefault(parameters, len(sets)) for parameters in zip(*columns, strict=True)]
        of_slot = torch.tensor(number, device=requests.device)[requests]
        for parameters, which in sets.items():
            own = (of_slot == which).nonzero()[:, 0]
            if len(own):
                yield own, self._context_of(*([each] * len(number) for each in parameters))


class WithGenerator:
    """A sampler that does not show the generator that it was made with, and the generator."""

    def __init__(self, sampler: Any, rng: torch.Generator) -> None:
        self._sampler = sampler
        self.rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _placed(index: Tensor | None, n: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device) if index is None else index[:n].to(device, torch.int64)
