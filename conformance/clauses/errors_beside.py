"""Clauses on malformed calls of what stands beside `sample_kernel`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.cases import Case, values
from conformance.clauses import clause
from conformance.evidence import Evidence, exact
from conformance.subject import Subject

Call = dict[str, Any]

_LOG_PROBS: dict[str, tuple[str, Callable[[Call], Call]]] = {
    # name of the check: (argument that the message must name, how to spoil a right call on two rows)
    "logits-rank-1": ("logits", lambda c: {**c, "logits": c["logits"][0]}),
    "logits-too-narrow": ("logits", lambda c: {**c, "logits": c["logits"][:, :3]}),
    "logits-float64": ("logits", lambda c: {**c, "logits": c["logits"].double()}),
    "map-too-short": ("token_to_request_index", lambda c: {**c, "token_to_request_index": torch.tensor([0])}),
    "map-beyond": ("token_to_request_index", lambda c: {**c, "token_to_request_index": torch.tensor([0, 2])}),
    "map-float": ("token_to_request_index", lambda c: {**c, "token_to_request_index": torch.tensor([0.0, 1.0])}),
    "context-none": ("context", lambda c: {**c, "context": None}),
}
_TOKENS: dict[str, tuple[str, Callable[[Call], Call]]] = {
    "ids-too-few": ("token_ids", lambda c: {**c, "token_ids": c["token_ids"][:1]}),
    "ids-float": ("token_ids", lambda c: {**c, "token_ids": c["token_ids"].float()}),
    "ids-beyond": ("token_ids", lambda c: {**c, "token_ids": torch.tensor([0, 4])}),
    "ids-negative": ("token_ids", lambda c: {**c, "token_ids": torch.tensor([-1, 0])}),
    "top-n-negative": ("top_n", lambda c: {**c, "top_n": -1}),
    "top-n-beyond": ("top_n", lambda c: {**c, "top_n": 5}),
}
_SPECULATIVE: dict[str, tuple[str, Callable[[Call], Call]]] = {
    "decode-negative": ("num_decode", lambda c: {**c, "num_decode": -1}),
    "prefill-float": ("num_prefill", lambda c: {**c, "num_prefill": 1.0}),
    "tokens-negative": ("num_speculative_tokens", lambda c: {**c, "num_speculative_tokens": -1}),
    "logits-too-few": ("required_logits", lambda c: {**c, "num_speculative_tokens": 3}),
}


def _cases(malformed: dict[str, Any]) -> list[Case]:
    return [Case(name, values([1.0, 2.0, 0.0, 1.5], [0.0, 1.0, 0.5, 3.0]), 4, (1.0, 0.8)) for name in malformed]


def _unless_claimed(subject: Subject) -> str | None:
    return None if subject.claims.argument_errors else "argument_errors is not claimed"


@clause(
    "errors/log-probs",
    "A malformed call of log_probs_kernel raises a ValueError that names the argument.",
    "contract",
    lambda _tier: _cases(_LOG_PROBS),
    claim="log_probs",
    not_applicable=_unless_claimed,
    proposed=True,
)
def _log_probs(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    yield _named(subject, case, "log_probs_kernel", *_LOG_PROBS[case.name], {})


@clause(
    "errors/token-log-probs",
    "A malformed call of token_log_probs raises a ValueError that names the argument.",
    "contract",
    lambda _tier: _cases(_TOKENS),
    claim="token_log_probs",
    not_applicable=_unless_claimed,
    proposed=True,
)
def _token_log_probs(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    call = {"token_ids": torch.tensor([1, 2], device=subject.device), "top_n": 2}
    # On the CPU, where they can be looked at without waiting for a device.
    yield _named(subject, case, "token_log_probs", *_TOKENS[case.name], call)


@clause(
    "errors/speculative",
    "A malformed call of sample_speculative raises a ValueError that names the argument, and draws nothing.",
    "contract",
    lambda _tier: _cases(_SPECULATIVE),
    claim="speculative",
    not_applicable=_unless_claimed,
    proposed=True,
)
def _speculative(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    call = {"num_decode": 1, "num_prefill": 1, "num_speculative_tokens": 0}
    yield _named(subject, case, "sample_speculative", *_SPECULATIVE[case.name], call)


def _named(
    subject: Subject, case: Case, method: str, argument: str, spoil: Callable[[Call], Call], more: Call
) -> Evidence:
    """The error of a spoilt call, and whether the generator stood still."""
    sampler = subject.sampler(4, 1, alone=True)
    rng = subject.rng(sampler)
    logits = "required_logits" if method == "sample_speculative" else "logits"
    call = spoil({logits: case.logits(subject.device).clone(), "context": subject.context(case), **more})
    state = rng.get_state()
    message = "no error"
    try:
        getattr(sampler, method)(**call)
    except Exception as error:  # noqa: BLE001  # any error but a ValueError is what the clause forbids
        message = f"{type(error).__name__}: {error}".splitlines()[0]
    named = message.startswith("ValueError") and re.search(rf"\b{argument}\b", message) is not None
    moved = not torch.equal(state, rng.get_state())
    return exact(f"{method}, with {case.name}", passed=named and not moved,
                 observed=f"{message}{'; the generator moved' * moved}",
                 allowed=f"a ValueError that names {argument}")  # fmt: skip
