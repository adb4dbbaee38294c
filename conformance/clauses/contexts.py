"""Clauses on the context of a call: an engine's layout, what is missing in it, and what it comes to hold later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.cases import Case, probabilities
from conformance.clauses import clause, needs_plain_context
from conformance.clauses.calls import parameters_apart, rows_apart
from conformance.clauses.law import EIGHT, draws_follow_law, judge_draws
from conformance.engine import set_parameters, view_only
from conformance.evidence import Evidence, exact
from conformance.evidence.log_probs import match_law
from conformance.subject import Manner, Subject


@clause(
    "calls/engine-context",
    "A context laid out as engines lay theirs out works as it is, over several calls.",
    "contract",
    lambda tier: [*parameters_apart(tier), *rows_apart(tier)],
    statistical=True,
)
def _engine(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    # One context for all calls. Between them the engine overwrites it, as it does at each step: the calls
    # that are not judged use other parameters.
    context = subject.engine_context(*case.parameters())
    n = case.request_count
    other = subject.own_values(case.vocab_size, [0.5] * n, [2] * n, [0.3] * n)
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    logits, keywords = subject.arguments(case, 64, Manner(index_padding=5))
    ids = []
    for _ in range(min(32, max(2, case.draws // (64 * case.slots)))):
        for parameters in (other, case.parameters()):
            set_parameters(context, *parameters)
            flags = subject.flags_of(context, case.vocab_size)
            drawn = sampler.sample_kernel(logits, 64 * case.slots, context, **flags, **keywords).clone()
        ids.append(drawn)
    yield from judge_draws(subject, case, torch.cat(ids).view(-1, case.slots).T, alpha)


@clause(
    "calls/gpu-view-alone",
    "A context that holds gpu_view alone works.",
    "contract",
    parameters_apart,
    statistical=True,
    not_applicable=needs_plain_context,
)
def _view_alone(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    manner = Manner(context=view_only)
    yield from draws_follow_law(subject, case, alpha, manner)


@clause(
    "calls/beyond-active",
    "n may exceed the active requests: the slots beyond give ids in range and disturb nobody.",
    "contract",
    lambda tier: [
        Case("beyond", probabilities(EIGHT, EIGHT[::-1], EIGHT), 8, (0.0, 1.0, 2.0), (0, 3, 0), (0.0, 0.0, 0.6),
             draws=tier.draws // 8),
    ],
    statistical=True,
    not_applicable=needs_plain_context,
)  # fmt: skip
def _beyond(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    context = subject.engine_context(*case.parameters())
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    logits = torch.cat([case.logits(subject.device), torch.zeros(4, 8, device=subject.device)])
    flags = subject.flags_of(context, case.vocab_size)
    calls = min(512, case.draws // 3)
    ids = torch.stack([sampler.sample_kernel(logits, 7, context, **flags).clone() for _ in range(calls)])
    beyond = ids[:, 3:]
    yield exact("ids of the slots beyond", passed=bool(((beyond >= 0) & (beyond < 8)).all()),
                observed=f"{int(beyond.min())} to {int(beyond.max())}", allowed="0 to 7")  # fmt: skip
    yield from judge_draws(subject, case, ids[:, :3].T, alpha)


@clause(
    "calls/context-update",
    "Each call uses what the context holds by then, not what it held at an earlier call.",
    "contract",
    lambda tier: [
        Case(
            f"update{i}", probabilities(EIGHT), 8, (temperature,), (top_k,), (top_p,), rows=(0,), draws=tier.draws // 8
        )
        for i, (temperature, top_k, top_p) in enumerate([(1.0, 2, 0.0), (0.0, 0, 0.0), (1.0, 0, 0.4), (2.0, 0, 0.0)])
    ],
    statistical=True,
)
def _context_update(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    context = subject.context_of(*subject.own_values(8, [1.0], [5], [0.9]))
    sampler = subject.sampler(8, subject.seed_of(case.id))
    zeros = torch.zeros(case.draws, dtype=torch.int32, device=subject.device)
    logits = case.logits(subject.device)

    def call() -> torch.Tensor:
        ids: torch.Tensor = sampler.sample_kernel(
            logits,
            case.draws,
            context,
            **subject.flags_of(context, 8),
            gather_indices=zeros,
            token_to_request_index=zeros,
        )
        return ids

    call()
    set_parameters(context, *case.parameters())
    yield from judge_draws(subject, case, call()[None], alpha)


@clause(
    "calls/contexts-in-turn",
    "Calls with several contexts in turn, with a context updated between them, and with new ones in the memory of old "
    "ones, each use what their own context holds.",
    "contract",
    parameters_apart,
    statistical=True,
)
def _contexts_in_turn(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    temperature, top_k, top_p = case.parameters()
    other = case.but(temperature=tuple(temperature[::-1]), top_k=tuple(top_k[::-1]), top_p=tuple(top_p[::-1]))
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    logits, keywords = subject.arguments(case, 64)
    rows, requests = (index.to(subject.device) for index in case.pattern())
    drawn: list[list[torch.Tensor]] = [[], []]
    log_probs: list[torch.Tensor] = [torch.empty(0)] * 2

    def call(which: int, context: Any) -> None:
        flags = subject.flags_of(context, case.vocab_size)
        drawn[which].append(sampler.sample_kernel(logits, 64 * case.slots, context, **flags, **keywords).clone())
        if subject.claims.log_probs != "none":
            log_probs[which] = sampler.log_probs_kernel(logits[rows], context, token_to_request_index=requests)

    both = case, other
    for _ in range(4):
        contexts = [subject.context(each) for each in both]
        for which in (0, 1, 0, 0, 1):
            call(which, contexts[which])
        # The first now holds what the second does, and then its own again.
        set_parameters(contexts[0], *other.parameters())
        call(1, contexts[0])
        set_parameters(contexts[0], *case.parameters())
        call(0, contexts[0])
        del contexts
        for which in (0, 1, 0):
            call(which, subject.context(both[which]))  # likely at the address of the one before
    for each, ids, last in zip(both, drawn, log_probs, strict=True):
        yield from judge_draws(subject, each, torch.cat(ids).view(-1, case.slots).T, alpha / 2)
        if subject.claims.log_probs != "none":
            yield from match_law(last, subject.log_probs_law(each))
