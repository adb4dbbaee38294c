"""The clauses: numbered MUSTs, each with its cases and the check that holds it.

A clause is a function that takes a subject, a case and a false-alarm probability, and yields evidence.
Importing this package registers them all; `CLAUSES` is the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from conformance.cases import Case
from conformance.claims import Claims
from conformance.evidence import Evidence
from conformance.idiom import in_terms_of
from conformance.subject import Subject

Check = Callable[[Subject, Case, float], Iterable[Evidence]]
Cases = Callable[["Tier"], Iterable[Case]]


@dataclass(frozen=True)
class Tier:
    """How much a run does.

    draws: of a case with a small vocabulary. large_draws: of one with `large_vocab` tokens.
    tail_draws: of one about the tail of such a vocabulary, at the `tail_gaps` in nats.
    most_draws, most_large_draws: of the two cases that get most, one of either size.
    coupled_draws: of a case whose draws are compared with their random numbers one by one. edges: of one in which
        they lie beside so many edges.
    rows: of a batch in which each row has logits and parameters of its own.
    """

    name: str
    draws: int
    large_vocab: int
    large_draws: int
    tail_draws: int
    tail_gaps: tuple[int, ...]
    most_draws: int
    most_large_draws: int
    coupled_draws: int
    edges: int
    rows: int


_FULL = Tier(
    "full",
    draws=2**20,
    large_vocab=128_256,
    large_draws=2**20,
    tail_draws=2**20,
    tail_gaps=(8, 12, 14, 16, 18, 20),
    most_draws=10**7,
    most_large_draws=10**7,
    coupled_draws=10**5,
    edges=2**8,
    rows=2048,
)

TIERS = {
    "quick": Tier(
        "quick",
        draws=2**17,
        large_vocab=4096,
        large_draws=2**12,
        tail_draws=2**16,
        tail_gaps=(8, 12, 14, 16),
        most_draws=2**20,
        most_large_draws=2**17,
        coupled_draws=2**9,
        edges=2**5,
        rows=256,
    ),
    "full": _FULL,
    "deep": replace(_FULL, name="deep", most_draws=10**8, most_large_draws=10**8),
}


def tier_of(name: str, draws: int | None) -> Tier:
    """The tier of that name; `draws`, of the two cases that get most, only for "deep".

    Raises ValueError for an unknown name, for draws below those of "full", and for draws with another tier.
    """
    if name not in TIERS:
        raise ValueError(f"tier must be one of {sorted(TIERS)}, got {name!r}")
    if draws is None:
        return TIERS[name]
    if name != "deep":
        raise ValueError(f"draws can be chosen for tier 'deep' alone, got {draws} with {name!r}")
    if draws < _FULL.most_draws:
        raise ValueError(f"draws must be at least those of tier 'full', {_FULL.most_draws}, got {draws}")
    return replace(TIERS[name], most_draws=draws, most_large_draws=draws)


@dataclass(frozen=True)
class Clause:
    """One MUST.

    id: group/name. must: the requirement, a sentence. source: where it comes from.
    statistical: its check can fail by chance, and takes a share of the run's budget.
    not_applicable: says why a subject need not be checked, or None.
    reproduce: what a failure's reproducer shows: the call and its "draws", its "log-probs", or the whole
        "check" again.
    claim: the capability that it is about, a field of `Claims`; without that claim it is not applicable, and the
        suite tries whether it would pass.
    proposed: new in this version of the spec: reported, and not counted before the next one.
    """

    id: str
    must: str
    source: str
    cases: Cases
    check: Check
    statistical: bool
    not_applicable: Callable[[Subject], str | None]
    reproduce: Literal["draws", "log-probs", "check"]
    claim: str
    proposed: bool

    def why_not(self, subject: Subject) -> str | None:
        """Why it is not applicable, or None."""
        if self.claim and getattr(subject.claims, self.claim) in {None, False, "none"}:
            return f"{self.claim} is not claimed"
        return self.not_applicable(subject)


CLAUSES: dict[str, Clause] = {}


def clause(
    id: str,  # noqa: A002  # the field's name
    must: str,
    source: str,
    cases: Cases,
    *,
    statistical: bool = False,
    not_applicable: Callable[[Subject], str | None] = lambda _subject: None,
    reproduce: Literal["draws", "log-probs", "check"] = "check",
    claim: str = "",
    proposed: bool = False,
) -> Callable[[Check], Check]:
    """Register the decorated check as a clause. One check may hold several clauses."""

    def register(check: Check) -> Check:
        if id in CLAUSES:
            raise ValueError(f"id must be new, got {id!r} twice")
        CLAUSES[id] = Clause(id, must, source, cases, check, statistical, not_applicable, reproduce, claim, proposed)
        return check

    return register


def needs_cuda(subject: Subject) -> str | None:
    """For clauses about what only a CUDA device has."""
    return None if subject.device.type == "cuda" else "needs a CUDA device"


def needs_slots(subject: Subject, *, by_call: bool = False) -> str | None:
    """For clauses about slots that have parameters of their own; `by_call`: also where there is a call for each."""
    by = subject.claims.parameters_by
    return None if by == "slot" or (by_call and by == "call") else f"parameters_by is {by!r}"


def one_call(subject: Subject) -> str | None:
    """For clauses about the call itself, of which the suite would make several."""
    by_call = subject.claims.parameters_by == "call"
    return "the suite makes a call for each set of parameters" if by_call else None


def needs_plain_context(subject: Subject) -> str | None:
    """For clauses with contexts that no `make_context` makes."""
    return None if subject.claims.make_context is None else "the sampler wants contexts of its own"


def needs_invalid_rows(subject: Subject) -> str | None:
    """For clauses about rows that some samplers refuse."""
    return None if subject.serves_invalid_rows() else "invalid rows are refused"


def needs_memory(subject: Subject, gigabytes: int) -> str | None:
    """For clauses about batches that a plain sampler holds several copies of."""
    if subject.device.type != "cuda":
        return "needs a CUDA device"
    total = torch.cuda.mem_get_info(subject.device)[1]
    return None if total >= gigabytes * 2**30 else f"needs {gigabytes} GiB of device memory"


def plan(tier: Tier, claims: Claims | None = None) -> Iterator[tuple[Clause, Case]]:
    """Every clause with each of its cases, put as a sampler with these claims wants them; as they are without any."""
    for each in CLAUSES.values():
        for case in each.cases(tier):
            yield each, case if claims is None else in_terms_of(claims, case)


from conformance.clauses import (  # noqa: E402  # they register themselves with what is defined above
    calls,
    claims,
    contexts,
    coupling,
    drawing,
    errors,
    errors_beside,
    graphs,
    invalid,
    isolation,
    law,
    log_probs,
    metamorphic,
    randomness,
)

__all__ = [
    "CLAUSES", "TIERS", "Clause", "Tier", "calls", "claims", "clause", "contexts", "coupling", "drawing", "errors",
    "errors_beside", "graphs", "invalid", "isolation", "law", "log_probs", "metamorphic", "needs_cuda",
    "needs_invalid_rows", "needs_memory", "needs_plain_context", "needs_slots", "one_call", "plan", "randomness",
    "tier_of",
]  # fmt: skip
