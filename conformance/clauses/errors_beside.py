"""Clauses on malformed calls of what stands beside `sample_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.cases import Case, values
from conformance.clauses import Cases, clause
from conformance.clauses.errors import Call, message_of, names
from conformance.evidence import Evidence, exact
from conformance.subject import Subject

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


def _right_call(subject: Subject, case: Case) -> dict[str, tuple[str, Call]]:
    """Method and arguments of a right call, by clause. Indices on the CPU can be looked at without a wait."""
    logits, context = case.logits(subject.device).clone(), subject.context(case)
    ids = torch.tensor([1, 2], device=subject.device)
    counts = {"num_decode": 1, "num_prefill": 1, "num_speculative_tokens": 0}
    return {
        "errors/log-probs": ("log_probs_kernel", {"logits": logits, "context": context}),
        "errors/token-log-probs": (
            "token_log_probs", {"logits": logits, "context": context, "token_ids": ids, "top_n": 2},
        ),
        "errors/speculative": ("sample_speculative", {"required_logits": logits, "context": context, **counts}),
    }  # fmt: skip


def _cases(malformed: dict[str, Any]) -> Cases:
    logits = values([1.0, 2.0, 0.0, 1.5], [0.0, 1.0, 0.5, 3.0])
    return lambda _tier: [Case(name, logits, 4, (1.0, 0.8)) for name in malformed]


def _unless_claimed(subject: Subject) -> str | None:
    return None if subject.claims.argument_errors else "argument_errors is not claimed"


@clause(
    "errors/log-probs",
    "A malformed call of log_probs_kernel raises a ValueError that names the argument.",
    "contract",
    _cases(_LOG_PROBS),
    claim="log_probs",
    not_applicable=_unless_claimed,
    proposed=True,
)
@clause(
    "errors/token-log-probs",
    "A malformed call of token_log_probs raises a ValueError that names the argument.",
    "contract",
    _cases(_TOKENS),
    claim="token_log_probs",
    not_applicable=_unless_claimed,
    proposed=True,
)
@clause(
    "errors/speculative",
    "A malformed call of sample_speculative raises a ValueError that names the argument, and draws nothing.",
    "contract",
    _cases(_SPECULATIVE),
    claim="speculative",
    not_applicable=_unless_claimed,
    proposed=True,
)
def _refused(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    argument, spoil = {**_LOG_PROBS, **_TOKENS, **_SPECULATIVE}[case.name]
    method, call = _right_call(subject, case)[subject.scope]
    sampler = subject.sampler(4, 1, alone=True)
    rng = subject.rng(sampler)
    state = rng.get_state()
    yield names(argument, message_of(lambda: getattr(sampler, method)(**spoil(call))))
    moved = not torch.equal(state, rng.get_state())
    yield exact("the generator", passed=not moved, observed=f"moved: {moved}", allowed="not moved")
