"""Tries what is not claimed: capabilities that work all the same, and choices that fit where the claimed one fails.

A probe decides nothing. It spends none of the run's false-alarm budget, and its draws are those of tier "quick".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from conformance import generators
from conformance.claims import Claims
from conformance.clauses import CLAUSES, TIERS, Clause
from conformance.idiom import in_terms_of
from conformance.limit import at_most
from conformance.report import Probe
from conformance.streams import STREAMS
from conformance.subject import Subject

ALPHA = 1e-6
"""Of each check of a probe."""

CAPABILITIES: dict[str, tuple[Any, ...]] = {
    "log_probs": ("processed", "raw"),
    "token_log_probs": (True,),
    "speculative": (True,),
    "output": (True,),
    "argument_errors": (True,),
    "sync_free": (True,),
    "cuda_graph": (True,),
    "stream": tuple(STREAMS),
}
"""What to claim of each capability, in the order in which it is tried. Its clauses are those with that `claim`."""


class Choice(NamedTuple):
    """A choice that a clause tells from the others.

    clauses: that decide it. values: from the strongest on; the first that passes is reported. weak: values of which a
    stronger one may be true, so that it is tried also where they pass.
    """

    clauses: tuple[str, ...]
    values: tuple[Any, ...]
    weak: tuple[Any, ...] = ()


CHOICES = {
    "top_k_ties": Choice(("top-k/ties",), ("keep-all", "lowest-index", "any"), ("any",)),
    "top_p_ties": Choice(("top-p/ties",), ("keep-all", "lowest-index", "any"), ("any",)),
    "greedy_ties": Choice(("greedy/temperature-zero", "greedy/top-k-one"), ("lowest-index", "any"), ("any",)),
    "filter_order": Choice(("top-p/after-top-k",), ("top-k-first", "joint")),
    "top_p_off": Choice(
        ("top-p/off", "claims/top-p-zero"),
        tuple(frozenset(off) for off in ((0.0, 1.0), (1.0,), (0.0,))),
    ),
    "log_probs": Choice(("log-probs/small",), ("processed", "raw")),
    "parameters_by": Choice(("calls/parameters-by-slot", "calls/parameters-by-row"), ("slot", "row"), ("row", "call")),
    "generator": Choice(("randomness/reproducible",), ("own", "global"), ("global",)),
    "invalid_rows": Choice(("invalid/law",), ("in-range", "any"), ("any",)),
}


def probes(subject: Subject, failed: Collection[str], *, whole: bool, limit: float) -> Iterator[Probe]:
    """What works though it is not claimed.

    failed: ids of the clauses that did. whole: false where only some checks were asked for: then only the choices
    that a failure puts in question are tried. limit: seconds for one check.
    """
    if whole:
        for claim, values in CAPABILITIES.items():
            absent = getattr(subject.claims, claim) in {None, False, "none"}
            # A sampler that checks nothing may write anywhere: on a GPU no process survives that.
            if absent and not (claim == "argument_errors" and subject.device.type == "cuda"):
                clauses = [each for each in CLAUSES.values() if each.claim == claim]
                yield from _tried(subject, claim, values, clauses, limit)
    for claim, choice in CHOICES.items():
        claimed = getattr(subject.claims, claim)
        if claimed != "none" and not set(choice.clauses).isdisjoint(failed):
            others = [value for value in choice.values if value != claimed]
        elif whole and claimed in choice.weak:
            others = list(takewhile(lambda value, claimed=claimed: value != claimed, choice.values))  # type: ignore[misc]
        else:
            continue
        yield from _tried(subject, claim, others, [CLAUSES[each] for each in choice.clauses], limit)


def _tried(
    subject: Subject, claim: str, values: Collection[Any], clauses: Collection[Clause], limit: float
) -> Iterator[Probe]:
    """One probe a value, up to the first that works; none where no clause applies."""
    for value in values:
        claims = subject.claims.but(**{claim: value})
        checks, works = _passes(replace(subject, claims=claims), clauses, limit)
        if checks:
            yield Probe(claim, _text(subject.claims, claim), _text(claims, claim), works, checks)
        if works:
            return


def _passes(subject: Subject, clauses: Collection[Clause], limit: float) -> tuple[list[str], bool]:
    """Ids of the checks up to the first that fails, and whether none does."""
    checks = []
    for clause in clauses:
        judged = replace(subject, scope=clause.id)
        for case in clause.cases(TIERS["quick"]) if clause.why_not(judged) is None else ():
            checks.append(f"{clause.id}/{case.id}")
            try:
                with at_most(limit), generators.kept():
                    evidence = list(clause.check(judged, in_terms_of(judged.claims, case), ALPHA))
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  # what is not claimed may fail in any way, and end what it likes
                return checks, False
            if not evidence or not all(each.passed for each in evidence):
                return checks, False
    return checks, bool(checks)


def _text(claims: Claims, claim: str) -> str:
    return str(claims.to_json()[claim])
