"""Clauses on which tokens may be drawn: vocabulary, temperature, top-k, top-p (law 1 to 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from conformance.cases import Case, for_each_mix, normal, probabilities, values
from conformance.clauses import Cases, Check, Tier, clause
from conformance.evidence import Evidence
from conformance.evidence.budget import looks
from conformance.evidence.counts import Cells, binomial, follows_law
from conformance.evidence.frequencies import frequencies
from conformance.evidence.support import in_band, support
from conformance.subject import PLAIN, Manner, Subject
from reference import Law
from reference.law import sum_error

EIGHT = (0.03, 0.05, 0.30, 0.08, 0.21, 0.11, 0.15, 0.07)
"""Eight tokens; the best is not the first. In descending order they are 2 4 6 5 3 7 1 0, and their
prefix masses .30 .51 .66 .77 .85 .92 .97 1."""

BETWEEN_PREFIXES = (0.15, 0.4, 0.6, 0.7, 0.8, 0.88, 0.95, 0.98)
"""One top-p inside each gap between the prefix masses of EIGHT: it keeps 1, 2, ... 8 tokens."""

ROTATED = [EIGHT[-i:] + EIGHT[:-i] for i in range(8)]


def select(law: Law, slots: Tensor) -> Law:
    """The law of some slots (bool [n])."""
    new = torch.cumsum(slots, 0) - 1
    kept = slots[law.band[:, 0]]
    band = law.band[kept].clone()
    band[:, 0] = new[band[:, 0]]
    return Law(
        law.log_mass[slots],
        law.total[slots],
        law.must_keep[slots],
        law.may_keep[slots],
        band,
        law.band_mass[kept],
        law.log_error[slots],
        law.valid[slots],
        law.grid,
    )


def judge_draws(
    subject: Subject, case: Case, ids: Tensor, alpha: float, *, only_cells: bool = False
) -> Iterator[Evidence]:
    """Support of all slots, then frequencies of the valid ones. ids: [slots, draws]."""
    law = case.law(subject.claims.options, subject.device)
    if subject.claims.invalid_rows == "any":
        ids, law = ids[law.valid], select(law, law.valid)
    inside = support(ids, law)
    yield inside
    if not inside.passed or not bool(law.valid.any()):
        return
    ids, law = ids[law.valid], select(law, law.valid)
    if only_cells:
        yield follows_law(ids, law, alpha)
    else:
        yield from frequencies(ids, law, alpha, subject.seed_of(case.id, "judge"))


def draws_follow_law(subject: Subject, case: Case, alpha: float, manner: Manner = PLAIN) -> Iterator[Evidence]:
    """Draw as many tokens as the case says, and judge them; a broken sampler may fail at an earlier look."""
    plan = list(looks(case.draws, alpha))
    drawing = subject.drawing(case, [number for number, _ in plan], manner)
    for ids, (number, share) in zip(drawing, plan, strict=True):
        last = number == case.draws
        evidence = list(judge_draws(subject, case, ids, share, only_cells=not last))
        if last or not all(each.passed for each in evidence):
            yield from evidence
            return


def follows_the_law(
    id: str,  # noqa: A002  # the field's name
    must: str,
    source: str,
    check: Check = draws_follow_law,
) -> Callable[[Cases], Cases]:
    """Register a function of cases as a clause: draws of each of its cases follow the law."""

    def register(cases: Cases) -> Cases:
        clause(id, must, source, cases, statistical=True, reproduce="draws")(check)
        return cases

    return register


def ties_follow_law(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    """The same of cases with ties: where any of the tied tokens may stay, enough of them must."""
    options = subject.claims.options
    rules = [name for name in ("top_k_ties", "top_p_ties") if getattr(options, name) == "any"]
    evidence = list(draws_follow_law(subject, case, alpha / 2 if rules else alpha))
    yield from evidence
    law = case.law(options, subject.device)
    if not rules or not len(law.band) or not all(each.passed for each in evidence):
        return
    claims = subject.claims
    fewest, most = (
        case.law(claims.but(**dict.fromkeys(rules, rule)).options, subject.device)
        for rule in ("lowest-index", "keep-all")
    )
    tied = in_band(law)
    ids = subject.draw(case, case.draws)  # once more, which only samplers with this claim pay for
    slots = tied.any(1).nonzero()[:, 0].tolist()
    # Few tokens: their masses' errors, a running sum's, and the grid at both ends.
    slack = math.expm1(2 * float(law.log_error.max())) + sum_error(case.vocab_size) + 2 * law.grid
    bounds = [sorted(float((each.probs[slot] * tied[slot]).sum()) for each in (fewest, most)) for slot in slots]
    cells = Cells(
        [f"slot {slot}, tied tokens together" for slot in slots],
        np.array([int(tied[slot][ids[slot]].sum()) for slot in slots]),
        np.full(len(slots), ids.shape[1]),
        np.array([max(0.0, low - slack) for low, _ in bounds]),
        np.array([min(1.0, high + slack) for _, high in bounds]),
    )
    yield binomial("as many of the tied tokens stay as fill the filter, or all", cells, alpha / 2)


def one_row(name: str, code: str, vocab_size: int, draws: int, **parameters: object) -> Case:
    """A case in which each request samples the same logits row. `draws` is for each request."""
    case = Case(name, code, vocab_size).but(**parameters)
    n = case.request_count
    return case.but(rows=(0,) * n, requests=tuple(range(n)), draws=n * draws)


def row_kinds(rows: int, width: int, seed: int) -> str:
    """Code for rows that implementations find hard, four kinds in turn.

    Rounded to quarters, with ties at every edge; 28 of 29 tokens masked; all within about 1e-3; all tied.
    """
    return (
        f"(lambda z, row, id: torch.where(row % 4 == 0, (z * 4).round() / 4, torch.where(row % 4 == 1, "
        f"z.masked_fill(id % 29 != row % {min(29, width)}, -inf), torch.where(row % 4 == 2, "
        f"z * 5e-5, 0.5))))({normal(rows, width, seed)}, torch.arange({rows})[:, None], "
        f"torch.arange({width}))"
    )


@follows_the_law("vocabulary/padding", "Columns at and beyond vocab_size are never drawn, whatever they hold.", "law 1")
def _padding(tier: Tier) -> Iterator[Case]:
    wide = f"torch.cat([{normal(4, 8, 1)} - 20, torch.full((4, 5), 50.0)], 1)"
    yield from for_each_mix(Case("padding-wins", wide, 8, (0.7, 1.0, 1.5, 0.0), draws=tier.draws // 8))
    # Unwritten memory is as likely there as anything: it must not make the row invalid either.
    for what in ("nan", "inf", "-inf"):
        held = f"torch.cat([{normal(4, 8, 1)}, torch.full((4, 5), {what})], 1)"
        yield from for_each_mix(Case(f"padding-{what}", held, 8, (0.7, 1.0, 1.5, 0.0), draws=tier.draws // 32))
    zeros = f"torch.cat([{normal(1, 1003, 2)} - 30, torch.zeros(1, 21)], 1)"
    yield Case("padding-is-zero", zeros, 1003, draws=tier.large_draws)


@follows_the_law("vocabulary/masked", "A -inf logit is never drawn, and -0.0 equals 0.0.", "law 1")
def _masked(tier: Tier) -> Iterator[Case]:
    ends_masked = probabilities(*[(0, *row[1:-1], 0) for row in ROTATED[:4]])
    yield from for_each_mix(Case("masked", ends_masked, 8, (0.5, 1.0, 1.0, 2.0), draws=tier.draws // 4))
    one_left = values([-float("inf")] * 6 + [-3.0, -float("inf")])
    yield one_row("one-left", one_left, 8, 2**10, top_k=(0, 3, 0, 3), top_p=(0.0, 0.0, 0.5, 0.5))
    yield one_row("signed-zeros", values([-1.0, 0.0, -0.0, 0.0]), 4, tier.draws // 8, top_k=(2, 0), top_p=(0.0, 0.2))
    mostly = f"{normal(2, 4096, 3)}.masked_fill(torch.arange(4096) % 97 != 5, -inf)"
    yield Case("mostly-masked", mostly, 4096, draws=tier.large_draws)


@follows_the_law(
    "vocabulary/row-kinds",
    "Rows full of ties, nearly all masked, within 1e-3, or all tied follow the law with any filters.",
    "law 4",
)
def _row_kinds(tier: Tier) -> Iterator[Case]:
    code = row_kinds(4, tier.large_vocab, 19)
    yield from for_each_mix(Case("kinds", code, tier.large_vocab, (0.5, 1.0, 1.0, 2.0), draws=tier.large_draws // 16))


@follows_the_law("temperature/scale", "Logits are divided by the temperature.", "law 3")
def _temperature(tier: Tier) -> Iterator[Case]:
    yield one_row("temperatures", probabilities(EIGHT), 8, tier.draws // 4, temperature=(0.25, 0.5, 0.8, 1.0, 2.0, 8.0))


@follows_the_law("temperature/before-filters", "The temperature applies before the filters.", "law 3")
def _temperature_first(tier: Tier) -> Iterator[Case]:
    # At T = 0.5 the first token alone exceeds 0.8; at T = 1 and 2 it does not.
    yield one_row("T-then-p", values([3.0, 2.0, 1.0]), 3, tier.draws // 8, temperature=(0.5, 1.0, 2.0), top_p=(0.8,))


@follows_the_law(
    "temperature/tiny",
    "Small temperatures give the maximum, without overflow; those below 1e-6 act as 1e-6.",
    "law 3",
)
def _tiny_temperature(tier: Tier) -> Iterator[Case]:
    row = values([11.0, 10.5, 11.0625, -11.0])
    temperature = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 1e-30)
    for dtype in ("fp32", "fp16", "bf16"):
        yield one_row("tiny-T-none", row, 4, 2**9, temperature=temperature, dtype=dtype)
        yield one_row("tiny-T-both", row, 4, 2**9, temperature=temperature, dtype=dtype, top_k=(3,), top_p=(0.9,))
    # One nat apart at 1e-6, 0.1 at 1e-5; tied maxima share the mass however small T is.
    near = values([0.0, 1e-6, -1e-6])
    yield one_row("near-at-tiny-T", near, 3, tier.draws // 8, temperature=(1e-5, 1e-6, 1e-12, 1e-30))
    tied = values([1.0, 3.0, 3.0, 2.0])
    yield one_row("tied-at-tiny-T", tied, 4, tier.draws // 8, temperature=(1e-2, 1e-4, 1e-6, 1e-30))


@follows_the_law("top-k/kept-set", "A token is kept if fewer than k tokens are strictly larger.", "law 4")
def _top_k(tier: Tier) -> Iterator[Case]:
    yield one_row("each-k", probabilities(EIGHT), 8, tier.draws // 8, top_k=tuple(range(1, 9)))
    yield Case("k50", normal(2, tier.large_vocab, 4), tier.large_vocab, (0.8,), (50,), rows=(0, 1), requests=(0, 0),
               dtype="bf16", draws=tier.large_draws)  # fmt: skip


@follows_the_law("top-k/ties", "Tokens tied at the k-th place are all kept.", "law 4", ties_follow_law)
def _top_k_ties(tier: Tier) -> Iterator[Case]:
    yield one_row("tied-k", values([1.0, 3.0, 2.0, 2.0, 2.0, 0.0]), 6, tier.draws // 8, top_k=(1, 2, 3, 4, 5))
    yield one_row("all-tied", values([0.5] * 64), 64, tier.draws // 8, top_k=(2, 7, 63))


@follows_the_law("top-k/off", "k = 0 and k >= V keep every token.", "law 4")
def _top_k_off(tier: Tier) -> Iterator[Case]:
    yield one_row("k-off", probabilities(EIGHT), 8, tier.draws // 8, top_k=(0, 8, 9, 1000, 2**31 - 1, 7))
    yield one_row(
        "k-off-with-p", probabilities(EIGHT), 8, tier.draws // 8, top_k=(0, 8, 2**30, 3), top_p=(0.6, 0.6, 0.6, 0.0)
    )


@follows_the_law(
    "top-p/crossing-token",
    "A token is kept if the mass of strictly larger survivors is below p: the token that crosses p stays.",
    "law 5",
)
def _top_p(tier: Tier) -> Iterator[Case]:
    yield one_row("each-gap", probabilities(EIGHT), 8, tier.draws // 8, top_p=BETWEEN_PREFIXES)
    unsorted = probabilities((0.05, 0.05, 0.1, 0.8), (0.9, 0.05, 0.03, 0.02))
    yield Case("unsorted", unsorted, 4, top_p=(0.5, 0.5), draws=tier.draws // 4)
    yield Case("p0.9", normal(2, tier.large_vocab, 5), tier.large_vocab, (0.8,), top_p=(0.9,), rows=(0, 1),
               requests=(0, 0), dtype="bf16", draws=tier.large_draws)  # fmt: skip


@follows_the_law("top-p/ties", "Tokens of equal probability are kept or dropped together.", "law 5", ties_follow_law)
def _top_p_ties(tier: Tier) -> Iterator[Case]:
    yield one_row("tied-p", values([0.0, 2.0, 1.0, 1.0, 1.0, 0.0]), 6, tier.draws // 8, top_p=(0.2, 0.5, 0.6, 0.8))


@follows_the_law("top-p/off", "p = 0 and p = 1 drop nothing, not even the last ulp of the tail.", "law 5")
def _top_p_off(tier: Tier) -> Iterator[Case]:
    yield one_row("p-off", probabilities(EIGHT), 8, tier.draws // 4, top_p=(0.0, 1.0, 0.97))
    # 64 tokens of 2^-14 each behind one of nearly all mass.
    tail = "torch.tensor([[0.0] + [-14.0] * 64]).mul(0.6931471805599453)"
    yield one_row("p-off-tail", tail, 65, tier.draws, top_p=(0.0, 1.0))
    yield one_row(
        "p-off-beside-filters", probabilities(EIGHT), 8, tier.draws // 8, top_k=(3, 0, 3, 0), top_p=(1.0, 0.6, 0.0, 1.0)
    )


@follows_the_law(
    "top-p/tiny",
    "However small p is, the most probable token is kept, and nothing else below its mass.",
    "law 5",
)
def _tiny_top_p(tier: Tier) -> Iterator[Case]:
    small = tuple(10.0**-i for i in range(1, 10))
    yield one_row("tiny-p", values([1.0, 2.0, 4.0, 3.0]), 4, 2**9, top_p=(*small, 1e-38, 1e-45))
    yield one_row("tiny-p-large", normal(1, tier.large_vocab, 6), tier.large_vocab, 2**8, top_p=(1e-3, 1e-8))


@follows_the_law(
    "top-p/nearly-one",
    "A p so near to 1 that fp32 sums may not reach it keeps what it should and gives ids in range.",
    "law 5",
)
def _nearly_one(tier: Tier) -> Iterator[Case]:
    yield Case("nearly-one", normal(2, tier.large_vocab, 7), tier.large_vocab, (1.0, 0.7), top_p=(0.9999999, 0.9),
               draws=tier.large_draws // 2)  # fmt: skip


@follows_the_law("top-p/after-top-k", "Top-p applies to the renormalised survivors of top-k.", "law 5")
def _after_top_k(tier: Tier) -> Iterator[Case]:
    two_rows = probabilities((0.1, 0.2, 0.3, 0.4), (0.05, 0.03, 0.35, 0.57))
    yield Case("k-then-p", two_rows, 4, top_k=(2, 3), top_p=(0.5, 0.6), draws=tier.draws // 4)
    one = probabilities((0.03, 0.20, 0.03, 0.35, 0.25, 0.05, 0.03, 0.06))
    yield Case("k-not-joint", one, 8, top_k=(4,), top_p=(0.82,), draws=tier.draws // 4)
