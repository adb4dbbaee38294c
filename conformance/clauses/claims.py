"""Clauses on what only a claim decides: values that mean off, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from conformance.cases import Case, values
from conformance.clauses import Tier, clause
from conformance.clauses.law import draws_follow_law
from conformance.evidence import Evidence, exact
from conformance.evidence.support import support
from conformance.idiom import off_top_k, off_top_p
from conformance.subject import Subject

_FOUR = values([1.0, 2.0, 4.0, 3.0], [1.0, 4.0, 2.0, 4.0])


def _literal(case: str, name: str, temperature: tuple[float, ...]) -> Callable[[Tier], list[Case]]:
    """A case in which that parameter is 0, also for a sampler that has another value for what 0 means here."""
    return lambda tier: [Case(case, _FOUR, 4, temperature, draws=tier.draws // 16, literal=(name,))]


def _unless_refused(what: str) -> Callable[[Subject], str | None]:
    return lambda subject: f"{what} is refused" if what in subject.claims.refuses else None


@clause(
    "claims/temperature-zero",
    "T = 0 is greedy where 0 is among greedy_temperatures; else it acts as 1e-6.",
    "claims.greedy_temperatures",
    _literal("T0", "temperature", (0.0, 0.0)),
    statistical=True,
    reproduce="draws",
    not_applicable=_unless_refused("temperature 0"),
)
@clause(
    "claims/top-p-zero",
    "p = 0 is off where 0 is in top_p_off; else only the most probable token is kept.",
    "claims.top_p_off",
    _literal("p0", "top_p", (1.0, 0.7)),
    statistical=True,
    reproduce="draws",
    not_applicable=_unless_refused("top_p 0"),
)
def _zero(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from draws_follow_law(subject, case, alpha)


@clause(
    "claims/greedy-temperatures",
    "Every T that is claimed to mean greedy gives the lowest index among the largest logits.",
    "claims.greedy_temperatures",
    lambda _tier: [Case("greedy", _FOUR, 4, (1.0,) * 2, draws=2**9)],
    not_applicable=lambda subject: None if _greedy(subject) else "no temperature means greedy",
)
def _every_greedy(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    for temperature in _greedy(subject):
        asked = case.but(temperature=(temperature,) * 2)
        yield support(subject.draw(asked, asked.draws), asked.law(subject.claims.options, subject.device))


def _greedy(subject: Subject) -> list[float]:
    taken = {t for t in subject.claims.greedy_temperatures if t or "temperature 0" not in subject.claims.refuses}
    return sorted(taken)


_ASKED: dict[str, list[tuple[float, int | None, float | None]]] = {
    # Temperature, top_k and top_p; None is the value that means off to the sampler.
    "temperature 0": [(0.0, None, None)],
    "top_k 0": [(1.0, 0, None)],
    "top_p 0": [(1.0, None, 0.0)],
    "top_p 1": [(1.0, None, 1.0)],
    "both filters": [(1.0, 3, 0.6), (1.0, 2, 0.9), (0.7, 3, 0.99)],
}
_INVALID_ROWS = ([1.0, float("nan"), 0.0], [1.0, float("inf"), 0.0], [-float("inf")] * 3)


@clause(
    "claims/refuses",
    "What is claimed to be refused raises an exception; T = 0, k = 0, p = 0, p = 1 and both filters are served else.",
    "claims.refuses",
    lambda _tier: [Case(what.replace(" ", "-"), _FOUR, 4, (1.0, 1.0)) for what in _ASKED],
)
def _refuses(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    (what,) = (what for what in _ASKED if what.replace(" ", "-") == case.name)
    for temperature, top_k, top_p in _ASKED[what]:
        asked = case.but(
            temperature=(temperature,) * 2,
            top_k=(off_top_k(subject.claims, 4) if top_k is None else top_k,),
            top_p=(off_top_p(subject.claims) if top_p is None else top_p,),
        )
        yield _raises(subject, asked, wanted=what in subject.claims.refuses)


@clause(
    "claims/refuses-invalid-rows",
    "Invalid rows that are claimed to be refused raise an exception.",
    "claims.refuses",
    lambda _tier: [
        Case(f"invalid{i}", values([0.0, 1.0, 2.0], row), 3, (1.0, 1.0)) for i, row in enumerate(_INVALID_ROWS)
    ],
    # On a CUDA device the exception is likely an assertion that no later call survives.
    not_applicable=lambda subject: (
        "invalid rows are not refused"
        if subject.serves_invalid_rows()
        else "asked on a CPU alone"
        if subject.device.type == "cuda"
        else None
    ),
)
def _refuses_invalid(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    yield _raises(subject, case, wanted=True)


def _off_inside(subject: Subject) -> list[float]:
    return sorted(p for p in subject.claims.top_p_off if 0 < p < 1)


@clause(
    "claims/top-p-off",
    "Every p below 1 that is claimed to be off drops nothing.",
    "claims.top_p_off",
    # Halves, quarters, ... down to 2^-13: p drops what lies beyond it, of 1 - p in all.
    lambda tier: [Case("p-off", f"(torch.arange(14).clamp(max=13) * -{math.log(2)})[None]", 14, draws=tier.draws)],
    statistical=True,
    not_applicable=lambda subject: None if _off_inside(subject) else "no p below 1 is claimed to be off",
)
def _every_off(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    off = _off_inside(subject)
    for p in off:
        yield from draws_follow_law(subject, case.but(top_p=(p,)), alpha / len(off))


def _raises(subject: Subject, case: Case, *, wanted: bool) -> Evidence:
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    try:
        ids = subject.call(sampler, case)
    except Exception as error:  # noqa: BLE001  # whatever a sampler refuses with
        observed, raised, right = f"{type(error).__name__}: {error}".splitlines()[0], True, True
    else:
        observed, raised = f"ids {ids.tolist()}", False
        right = bool(((ids >= 0) & (ids < case.vocab_size)).all())
    asked = f"a call with {case.name}, T, k, p = {_first(case)}"
    return exact(asked, passed=right and raised == wanted, observed=observed,
                 allowed="an exception" if wanted else "ids in the vocabulary")  # fmt: skip


def _first(case: Case) -> str:
    return ", ".join(f"{column[0]:g}" for column in case.parameters())
