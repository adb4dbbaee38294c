"""The clauses: numbered MUSTs, each with its cases and the check that holds it.

A clause is a function that takes a subject, a case and a false-alarm probability, and yields evidence.
Importing this package registers them all; `CLAUSES` is the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from conformance.cases import Case
from conformance.evidence import Evidence
from conformance.subject import Subject

Check = Callable[[Subject, Case, float], Iterable[Evidence]]
Cases = Callable[["Tier"], Iterable[Case]]


@dataclass(frozen=True)
class Tier:
    """How much a run does.

    draws: of a case with a small vocabulary. large_draws: of one with `large_vocab` tokens.
    tail_draws: of one about the tail of such a vocabulary. huge_draws: of the one case that gets most.
    """

    name: str
    draws: int
    large_vocab: int
    large_draws: int
    tail_draws: int
    huge_draws: int
    rows: int


TIERS = {
    "quick": Tier("quick", 2**17, 4096, 2**13, 2**16, 2**20, 256),
    "full": Tier("full", 2**20, 128_256, 2**20, 2**22, 10**7, 2048),
}


@dataclass(frozen=True)
class Clause:
    """One MUST.

    id: group/name. must: the requirement, a sentence. source: where it comes from.
    statistical: its check can fail by chance, and takes a share of the run's budget.
    not_applicable: says why a subject need not be checked, or None.
    reproduce: what a failure's reproducer shows: the call and its "draws", its "log-probs", or the whole
        "check" again.
    """

    id: str
    must: str
    source: str
    cases: Cases
    check: Check
    statistical: bool
    not_applicable: Callable[[Subject], str | None]
    reproduce: Literal["draws", "log-probs", "check"]


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
) -> Callable[[Check], Check]:
    """Register the decorated check as a clause. One check may hold several clauses."""

    def register(check: Check) -> Check:
        if id in CLAUSES:
            raise ValueError(f"id must be new, got {id!r} twice")
        CLAUSES[id] = Clause(id, must, source, cases, check, statistical, not_applicable, reproduce)
        return check

    return register


def needs_cuda(subject: Subject) -> str | None:
    """For clauses about what only a CUDA device has."""
    return None if subject.device.type == "cuda" else "needs a CUDA device"


def needs_log_probs(subject: Subject) -> str | None:
    """For clauses about log-probs."""
    return None if subject.claims.log_probs else "log_probs is not claimed"


def plan(tier: Tier) -> Iterator[tuple[Clause, Case]]:
    """Every clause with each of its cases."""
    for each in CLAUSES.values():
        for case in each.cases(tier):
            yield each, case


from conformance.clauses import (  # noqa: E402  # they register themselves with what is defined above
    calls,
    drawing,
    errors,
    graphs,
    invalid,
    isolation,
    law,
    log_probs,
    randomness,
)

__all__ = [
    "CLAUSES", "TIERS", "Clause", "Tier", "calls", "clause", "drawing", "errors", "graphs", "invalid", "isolation",
    "law", "log_probs", "needs_cuda", "needs_log_probs", "plan", "randomness",
]  # fmt: skip
