"""Clauses on malformed calls: a ValueError that names the argument, and nothing drawn, advanced or written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from conformance.cases import Case, values
from conformance.clauses import clause, needs_plain_context
from conformance.evidence import Evidence, exact
from conformance.subject import Subject

Call = dict[str, Any]
"""Keyword arguments of a right call of `sample_kernel` with n = 2, to be spoilt."""


def _view(call: Call, **changes: Any) -> Call:
    """The call with a context of gpu_view alone, and entries of that replaced."""
    view = call["context"].gpu_view
    entries = {"temperature": view.temperature, "top_k": view.top_k, "top_p": view.top_p, **changes}
    return {**call, "context": SimpleNamespace(gpu_view=SimpleNamespace(**entries))}


def _metadata(call: Call, **changes: Any) -> Call:
    """The call with a duck-typed context whose CPU metadata is replaced."""
    context = call["context"]
    metadata = {**context.active_request_metadata, **{name: torch.tensor(value) for name, value in changes.items()}}
    duck = SimpleNamespace(gpu_view=context.gpu_view, active_request_metadata=metadata, total_request_count=2,
                           paused_request_count=0)  # fmt: skip
    return {**call, "context": duck}


def _index(call: Call, name: str, value: Any, dtype: torch.dtype = torch.int32) -> Call:
    return {**call, name: torch.tensor(value, dtype=dtype)}  # on the CPU, where it can be looked at


def _n_beyond(call: Call) -> Call:
    n = len(call["context"].gpu_view.temperature) + 1
    return {**{name: call[name] for name in call if name != "output"}, "n": n, "logits": call["logits"].repeat(n, 1)}


MALFORMED: dict[str, tuple[str, Callable[[Call], Call]]] = {
    # name of the check: (argument that the message must name, how to spoil the call)
    "logits-rank-1": ("logits", lambda c: {**c, "logits": c["logits"][0]}),
    "logits-rank-3": ("logits", lambda c: {**c, "logits": c["logits"][None]}),
    "logits-too-few-rows": ("logits", lambda c: {**c, "logits": c["logits"][:1]}),
    "logits-too-narrow": ("logits", lambda c: {**c, "logits": c["logits"][:, :3]}),
    "logits-float64": ("logits", lambda c: {**c, "logits": c["logits"].double()}),
    "logits-int": ("logits", lambda c: {**c, "logits": c["logits"].int()}),
    "logits-list": ("logits", lambda c: {**c, "logits": c["logits"].tolist()}),
    "n-negative": ("n", lambda c: {**c, "n": -1}),
    "n-float": ("n", lambda c: {**c, "n": 2.0}),
    "n-bool": ("n", lambda c: {**c, "n": True}),
    "n-beyond-parameters": ("n", _n_beyond),
    "no-top-k-none": ("no_top_k", lambda c: {**c, "no_top_k": None}),
    "no-top-p-int": ("no_top_p", lambda c: {**c, "no_top_p": 1}),
    "gather-too-short": ("gather_indices", lambda c: _index(c, "gather_indices", [0])),
    "gather-rank-2": ("gather_indices", lambda c: _index(c, "gather_indices", [[0, 1]])),
    "gather-float": ("gather_indices", lambda c: _index(c, "gather_indices", [0.0, 1.0], torch.float32)),
    "gather-int16": ("gather_indices", lambda c: _index(c, "gather_indices", [0, 1], torch.int16)),
    "gather-beyond": ("gather_indices", lambda c: _index(c, "gather_indices", [0, 2])),
    "gather-negative": ("gather_indices", lambda c: _index(c, "gather_indices", [-1, 0])),
    "gather-list": ("gather_indices", lambda c: {**c, "gather_indices": [0, 1]}),
    "map-too-short": ("token_to_request_index", lambda c: _index(c, "token_to_request_index", [0])),
    "map-rank-2": ("token_to_request_index", lambda c: _index(c, "token_to_request_index", [[0, 1]])),
    "map-beyond": ("token_to_request_index", lambda c: _index(c, "token_to_request_index", [0, 2])),
    "map-negative": ("token_to_request_index", lambda c: _index(c, "token_to_request_index", [0, -2])),
    "map-bool": ("token_to_request_index", lambda c: _index(c, "token_to_request_index", [True, False], torch.bool)),
    "output-int32": ("output", lambda c: {**c, "output": c["output"].int()}),
    "output-too-long": ("output", lambda c: {**c, "output": c["output"].repeat(2)}),
    "output-too-short": ("output", lambda c: {**c, "output": c["output"][:1]}),
    "output-rank-2": ("output", lambda c: {**c, "output": c["output"][:, None]}),
    "context-none": ("context", lambda c: {**c, "context": None}),
    "context-without-view": ("context", lambda c: {**c, "context": SimpleNamespace()}),
    "view-temperature-int": ("temperature", lambda c: _view(c, temperature=c["context"].gpu_view.top_k)),
    "view-temperature-rank": ("temperature", lambda c: _view(c, temperature=c["context"].gpu_view.temperature[None])),
    "view-top-k-float": ("top_k", lambda c: _view(c, top_k=c["context"].gpu_view.top_p)),
    "view-top-p-missing": ("top_p", lambda c: _view(c, top_p=None)),
    "temperature-negative": ("temperature", lambda c: _metadata(c, temperature=[1.0, -0.5])),
    "temperature-nan": ("temperature", lambda c: _metadata(c, temperature=[float("nan"), 1.0])),
    "temperature-infinite": ("temperature", lambda c: _metadata(c, temperature=[1.0, float("inf")])),
    "top-k-negative": ("top_k", lambda c: _metadata(c, top_k=[-5, 0])),
    "top-p-negative": ("top_p", lambda c: _metadata(c, top_p=[0.5, -0.1])),
    "top-p-above-one": ("top_p", lambda c: _metadata(c, top_p=[0.5, 1.5])),
    "top-p-nan": ("top_p", lambda c: _metadata(c, top_p=[float("nan"), 0.5])),
    "metadata-too-short": ("active_request_metadata", lambda c: _metadata(c, top_p=[0.5])),
}


_OF_CONTEXT = ("context", "temperature", "top_k", "top_p", "active_request_metadata")


def _cases(about: Callable[[str], bool]) -> list[Case]:
    return [
        Case(name, values([1.0, 2.0, 0.0, 1.5], [0.0, 1.0, 0.5, 3.0]), 4, (1.0, 0.8), (0, 3), (0.0, 0.9))
        for name, (argument, _) in MALFORMED.items()
        if about(argument)
    ]


@clause(
    "errors/refused",
    "A malformed call raises a ValueError that names the argument, before anything is drawn, advanced or written.",
    "contract",
    lambda _tier: _cases(lambda argument: argument not in {"output", *_OF_CONTEXT}),
    claim="argument_errors",
)
@clause(
    "errors/context",
    "A malformed context, or a parameter out of its range, raises a ValueError that names it, before anything is "
    "drawn, advanced or written.",
    "contract",
    lambda _tier: _cases(lambda argument: argument in _OF_CONTEXT),
    claim="argument_errors",
    not_applicable=needs_plain_context,
)
@clause(
    "errors/output",
    "A malformed output raises a ValueError that names it, before anything is drawn, advanced or written.",
    "contract",
    lambda _tier: _cases(lambda argument: argument == "output"),
    claim="output",
    not_applicable=lambda subject: None if subject.claims.argument_errors else "argument_errors is not claimed",
)
def _refused(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    argument, spoil = MALFORMED[case.name]
    sampler = subject.sampler(4, 1, alone=True)
    rng = subject.rng(sampler)
    logits = case.logits(subject.device).clone()
    output = torch.full((2,), -77, dtype=torch.int64, device=subject.device)
    context = subject.context(case)
    call = {"logits": logits, "n": 2, "context": context, "no_top_k": False, "no_top_p": False}
    if subject.claims.output:
        call["output"] = output
    state = rng.get_state()
    before = logits.clone()
    message = message_of(lambda: _sample(sampler, spoil(call)))
    yield names(argument, message)
    observed = {
        "generator moved": not torch.equal(state, rng.get_state()),
        "output written": bool((output != -77).any()),
        "logits changed": not torch.equal(before, logits),
    }
    yield exact("what the call left behind", passed=not any(observed.values()), observed=observed, allowed="nothing")


def _sample(sampler: Any, call: Call) -> None:
    sampler.sample_kernel(call.pop("logits"), call.pop("n"), call.pop("context"), **call)


def message_of(call: Callable[[], object]) -> str:
    """The first line of the error that a call raises, with its kind."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # any error but a ValueError is what the clauses forbid
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "no error"


def names(argument: str, message: str) -> Evidence:
    """Whether it is a ValueError that names the argument."""
    named = message.startswith("ValueError") and re.search(rf"\b{argument}\b", message) is not None
    return exact("the error", passed=named, observed=message, allowed=f"a ValueError that names {argument}")
