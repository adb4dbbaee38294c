"""Clauses on rows with a NaN, a +inf, or no finite logit (law 7)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.cases import Case, for_each_mix, values
from conformance.clauses import Tier, clause, needs_invalid_rows
from conformance.clauses.law import EIGHT, judge_draws, select
from conformance.evidence import Evidence, exact
from conformance.evidence.log_probs import match_law
from conformance.subject import Subject

_GOOD = tuple(10 * p for p in EIGHT)
_NAN, _INF = float("nan"), float("inf")
_BROKEN = ((*_GOOD[:3], _NAN, *_GOOD[4:]), (_NAN,) * 8, (*_GOOD[:6], _INF, -_INF), (-_INF,) * 8)
_ROWS = (_GOOD, _BROKEN[0], _GOOD[::-1], _BROKEN[1], _GOOD, _BROKEN[2], _GOOD[::-1], _BROKEN[3])


def _cases(tier: Tier) -> Iterator[Case]:
    temperature = (1.0, 1.0, 0.7, 0.7, 0.0, 0.0, 1.3, 1.3)
    yield from for_each_mix(Case("broken", values(*_ROWS), 8, temperature, draws=tier.draws // 8))
    yield Case("broken-greedy", values(*_ROWS), 8, (0.0,) * 8, draws=2**10)


@clause(
    "invalid/law",
    "An invalid row gives some id in range; the law of every other row is what it is without it.",
    "law 7",
    _cases,
    statistical=True,
    reproduce="draws",
    not_applicable=needs_invalid_rows,
)
def _law(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from judge_draws(subject, case, subject.draw(case, case.draws), alpha)


@clause(
    "invalid/isolated",
    "With the same generator state, the other rows' tokens are bit for bit those that they are when the invalid "
    "rows are replaced by valid ones.",
    "law 7",
    _cases,
    not_applicable=needs_invalid_rows,
)
def _isolated(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    mended = case.but(code=values(*[row if row in (_GOOD, _GOOD[::-1]) else _GOOD for row in _ROWS]))
    good = torch.tensor([row in (_GOOD, _GOOD[::-1]) for row in _ROWS], device=subject.device)
    seed = subject.seed_of(case.id)
    with_broken = subject.draw(case, 2**10, seed=seed)[good]
    without = subject.draw(mended, 2**10, seed=seed)[good]
    differ = int((with_broken != without).sum())
    yield exact("tokens beside invalid rows", passed=differ == 0,
                observed=f"{differ} of {without.numel()} differ", allowed="none")  # fmt: skip


@clause(
    "invalid/log-probs",
    "Log-probs of an invalid row are NaN, those of its neighbours the law's.",
    "law 7",
    _cases,
    claim="log_probs",
    not_applicable=needs_invalid_rows,
    reproduce="log-probs",
)
def _log_probs(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    log_probs = subject.sampler(case.vocab_size, 0).log_probs_kernel(case.logits(subject.device), subject.context(case))
    law = subject.log_probs_law(case)
    if subject.claims.invalid_rows == "any":
        log_probs, law = log_probs[law.valid], select(law, law.valid)
    yield from match_law(log_probs, law)
