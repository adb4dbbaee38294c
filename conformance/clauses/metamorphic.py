"""Clauses on what must stay when a call is put in another way: other batches, batchmates, or values for "off".

Nothing here is right because two calls agree: one of them, or both, are judged by the law as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from conformance.cases import MIXES, Case, for_each_mix, normal, probabilities
from conformance.clauses import Tier, clause
from conformance.clauses.law import EIGHT, judge_draws, row_kinds, select
from conformance.clauses.log_probs import of_call
from conformance.engine import view_only
from conformance.evidence import Evidence, exact
from conformance.evidence.counts import Cells, binomial
from conformance.evidence.log_probs import match_law
from conformance.idiom import in_terms_of, off_top_k, off_top_p
from conformance.subject import PLAIN, Manner, Subject
from reference import Law
from reference.law import sum_error

_BATCH = tuple(0.0 if i % 7 == 6 else 0.3 + 0.05 * i for i in range(40))
"""Temperatures of 40 rows, which go in pieces of 1, 7 and 32. Five are greedy; the lone one is not."""

_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda logits: logits.T.contiguous().T,
    "columns beside": lambda logits: torch.nn.functional.pad(logits, (3, 2), value=60.0)[:, 3:-2],
    "rows beside": lambda logits: torch.nn.functional.pad(logits, (0, 0, 1, 1), value=60.0)[1:-1],
}


_MATES = {
    "other rows": normal(8, 1000, 26, std=4.0),
    "NaN": "torch.full((8, 1000), nan)",
    "+inf": f"{normal(8, 1000, 26)}.index_fill(1, torch.tensor([999]), inf)",
    "nearly all -inf": f"{normal(8, 1000, 26)}.masked_fill(torch.arange(1000) % 499 != 3, -inf)",
    "all -inf": "torch.full((8, 1000), -inf)",
    "all tied": "torch.zeros(8, 1000)",
    "one token": "torch.zeros(8, 1000).index_fill(1, torch.tensor([500]), 1e4)",
}
"""Rows that take the places of every other row of a batch."""

_INVALID = ("NaN", "+inf", "all -inf")

_BAD_MATES = (
    f"torch.cat([{', '.join(code for name, code in _MATES.items() if name not in {'other rows', 'all tied'})}])"
)
"""40 rows: eight of each kind that is invalid, or all but invalid."""


@clause(
    "log-probs/batches",
    "A row's log-probs follow the law wherever it lies: in another order, in smaller batches, beside invalid rows, in "
    "other memory.",
    "law 9",
    lambda _tier: [
        each.but(dtype=dtype)
        for dtype, code in (("bf16", normal(40, 1000, 22)), ("fp32", row_kinds(40, 1000, 23)))
        for each in for_each_mix(Case("rows" if dtype == "bf16" else "kinds", code, 1000, _BATCH))
    ],
    claim="log_probs",
)
def _batches(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    logits = case.logits(subject.device)
    law = subject.log_probs_law(case)
    columns = case.parameters()
    n = len(logits)

    def of_rows(rows: list[int], logits: Tensor) -> Tensor:
        temperature, top_k, top_p = ([column[row] for row in rows] for column in columns)
        context = subject.context_of(temperature, top_k, top_p)  # type: ignore[arg-type]  # ints
        log_probs: Tensor = subject.sampler(case.vocab_size, 0).log_probs_kernel(logits, context)
        return log_probs

    order = torch.randperm(n, generator=torch.Generator().manual_seed(24)).tolist()
    yield from of_call("permuted rows", match_law(of_rows(order, logits[order])[_inverse(order)], law))
    pieces = [of_rows(list(range(start, end)), logits[start:end]) for start, end in ((0, 1), (1, 8), (8, n))]
    yield from of_call(f"pieces of 1, 7 and {n - 8} rows", match_law(torch.cat(pieces), law))
    for name, layout in _LAYOUTS.items():
        yield from of_call(f"{name} in memory", match_law(of_rows(list(range(n)), layout(logits)), law))
    if not subject.serves_invalid_rows():
        return
    beside = case.but(code=f"torch.where(torch.arange({n})[:, None] % 2 == 0, {case.code}, {_BAD_MATES})")
    log_probs = of_rows(list(range(n)), beside.logits(subject.device))
    law = subject.log_probs_law(beside)
    if subject.claims.invalid_rows == "any":
        log_probs, law = log_probs[law.valid], select(law, law.valid)
    yield from of_call("every other row invalid", match_law(log_probs, law))


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


@clause(
    "isolation/swap-batchmates",
    "With the same generator state and the same parameters, a slot's token is bit for bit the same, whatever logits "
    "the other slots have.",
    "law 9",
    # Each slot's own filters and temperature stay, so that no sampler has a reason for other kernels.
    lambda tier: for_each_mix(
        Case("swap", normal(8, 1000, 25), 1000, tuple(0.25 * i for i in range(8)), draws=tier.large_draws // 32)
    ),
    statistical=True,
)
def _swap(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    repeats, _ = subject.launches(case, case.draws)
    seed = subject.seed_of(case.id)

    def tokens(code: str) -> Tensor:
        drawn = subject.call(subject.sampler(case.vocab_size, seed), case.but(code=code), repeats)
        return drawn.view(repeats, case.slots).T

    before = tokens(case.code)
    yield from judge_draws(subject, case, before, alpha)
    for name, mates in _MATES.items():
        if name in _INVALID and not subject.serves_invalid_rows():
            continue
        differ = 0
        for parity in (0, 1):
            own = slice(parity, None, 2)
            mixed = f"torch.where(torch.arange(8)[:, None] % 2 == {parity}, {case.code}, {mates})"
            differ += int((tokens(mixed)[own] != before[own]).sum())
        yield exact(f"tokens of every other slot, beside {name}", passed=differ == 0,
                    observed=f"{differ} of {before.numel()} differ", allowed="none")  # fmt: skip


def _beside(_tier: Tier) -> Iterator[Case]:
    """Slot 0 is the one whose filter is off; slot 1 uses filters, or none."""
    for mates, ((top_k,), (top_p,)) in MIXES.items():
        # The other slot's temperature keeps it another request, whatever the first's parameters are.
        yield Case(f"beside-{mates}", probabilities(EIGHT), 8, (1.0, 1.25), (0, top_k), (0.0, top_p), rows=(0, 0),
                   requests=(0, 1), draws=2**13)  # fmt: skip


_MANNERS = (
    PLAIN,
    Manner("no-promise", promise=False),
    Manner("view-alone", promise=False, context=view_only),
)


@clause(
    "top-k/sentinels",
    "With the same generator state, all values of k that keep every token give the same tokens, also beside rows "
    "that use filters.",
    "law 4 and 9",
    _beside,
    statistical=True,
)
def _top_k_sentinels(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    width = case.vocab_size
    top_k = (*(k for k in sorted(subject.claims.top_k_off) if k or "top_k 0" not in subject.claims.refuses),
             width, width + 1, 2**31 - 1)  # fmt: skip
    off = [(k, off_top_p(subject.claims)) for k in top_k]
    yield from _same_tokens(subject, case, off, alpha)


@clause(
    "top-p/sentinels",
    "With the same generator state, all values of p that keep every token give the same tokens, also beside rows "
    "that use filters.",
    "law 5 and 9",
    _beside,
    statistical=True,
    not_applicable=lambda subject: None if _off_values(subject) else "no value of p switches top-p off",
)
def _top_p_sentinels(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    off = [(off_top_k(subject.claims, case.vocab_size), p) for p in _off_values(subject)]
    yield from _same_tokens(subject, case, off, alpha)


def _off_values(subject: Subject) -> list[float]:
    """The values of p that are off and that the sampler takes, the largest first."""
    claims = subject.claims
    return [p for p in sorted(claims.top_p_off, reverse=True) if f"top_p {p:g}" not in claims.refuses]


def _same_tokens(subject: Subject, case: Case, off: list[tuple[int, float]], alpha: float) -> Iterator[Evidence]:
    """Tokens of slot 0 under each (k, p) that is off, against those of the first, in each manner of calling.

    Slot 1 and the manner stay: kernels may be chosen by them, and take their numbers as they like.
    """
    repeats = case.draws // 2
    seed = subject.seed_of(case.id)
    _, (_, mate_k), (_, mate_p) = case.parameters()
    mate_k = mate_k or case.vocab_size
    mate_p = mate_p or off_top_p(subject.claims)

    def beside(k: int, p: float) -> Case:
        return in_terms_of(subject.claims, case.but(top_k=(k, mate_k), top_p=(p, mate_p)))

    names, differ = [], []
    manners = _MANNERS if subject.claims.make_context is None else _MANNERS[:2]
    for manner in manners:

        def tokens(k: int, p: float, manner: Manner = manner) -> Tensor:
            return (
                subject.call(subject.sampler(case.vocab_size, seed), beside(k, p), repeats, manner).view(repeats, 2).T
            )

        expected = tokens(*off[0])
        yield from judge_draws(subject, beside(*off[0]), expected, alpha / 2 / len(manners))
        for k, p in off[1:]:
            names.append(f"k = {k}, p = {p:.6g}, {manner.name}")
            differ.append(int((tokens(k, p)[0] != expected[0]).sum()))
    if names:
        most = np.full(len(names), _near_a_step(beside(*off[0]).law(subject.claims.options, subject.device)))
        cells = Cells(names, np.array(differ), np.full(len(names), repeats), np.zeros(len(names)), most)
        yield binomial("tokens that differ, where only the value that means off does", cells, alpha / 2)


def _near_a_step(law: Law) -> float:
    """Greatest probability that two right calls give slot 0 different tokens of the same number.

    Both know each step of the CDF to d, so the number must lie within d of one of the V - 1 inner steps. d: half
    of `sum_error` for the running sum, the grid of the number, 2^-24 for its product with the total,
    and the masses' error: masses off by e^(+-e) move a step at F by at most F (1 - F) (e^(2 e) - 1), a quarter of
    expm1(2 e).
    """
    width = law.probs.shape[1]
    d = sum_error(width) / 2 + law.grid + 2.0**-24 + math.expm1(2 * float(law.log_error[0])) / 4
    return 2 * (width - 1) * d
