"""Clauses on what may be drawn, and how often (design of the law, points 1 to 6)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from conformance.cases import Case, for_each_mix, head_and_tail, normal, probabilities, values
from conformance.clauses import Tier, clause
from conformance.evidence import Evidence
from conformance.evidence.counts import follows_law
from conformance.evidence.support import support
from conformance.subject import PLAIN, Manner, Subject
from reference import Law

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
    )


def judge_draws(subject: Subject, case: Case, ids: Tensor, alpha: float) -> Iterator[Evidence]:
    """Support of all slots, then frequencies of the valid ones. ids: [slots, draws]."""
    law = case.law(subject.claims.options, subject.device)
    inside = support(ids, law)
    yield inside
    if inside.passed and bool(law.valid.any()):
        yield follows_law(ids[law.valid], select(law, law.valid), alpha)


def draws_follow_law(subject: Subject, case: Case, alpha: float, manner: Manner = PLAIN) -> Iterator[Evidence]:
    """Draw as many tokens as the case says, and judge them."""
    yield from judge_draws(subject, case, subject.draw(case, case.draws, manner), alpha)


def _padding(tier: Tier) -> Iterator[Case]:
    wide = f"torch.cat([{normal(4, 8, 1)} - 20, torch.full((4, 5), 50.0)], 1)"
    yield from for_each_mix(Case("padding-wins", wide, 8, (0.7, 1.0, 1.5, 0.0), draws=tier.draws // 8))
    zeros = f"torch.cat([{normal(1, 1003, 2)} - 30, torch.zeros(1, 21)], 1)"
    yield Case("padding-is-zero", zeros, 1003, draws=tier.large_draws)


@clause(
    "vocabulary/padding",
    "Columns at and beyond vocab_size are never drawn, whatever they hold.",
    "law 1",
    _padding,
    statistical=True,
    reproduce="draws",
)
@clause(
    "vocabulary/masked",
    "A -inf logit is never drawn, and -0.0 equals 0.0.",
    "law 1",
    lambda tier: [
        *for_each_mix(
            Case(
                "masked",
                probabilities(*[(0, *row[1:-1], 0) for row in ROTATED[:4]]),
                8,
                (0.5, 1.0, 1.0, 2.0),
                draws=tier.draws // 4,
            )
        ),
        Case(
            "one-left",
            values([-float("inf")] * 6 + [-3.0, -float("inf")]),
            8,
            top_k=(0, 3, 0, 3),
            top_p=(0.0, 0.0, 0.5, 0.5),
            rows=(0, 0, 0, 0),
            requests=(0, 1, 2, 3),
            draws=2**12,
        ),
        Case(
            "signed-zeros",
            values([-1.0, 0.0, -0.0, 0.0]),
            4,
            top_k=(2, 0),
            top_p=(0.0, 0.2),
            rows=(0, 0),
            requests=(0, 1),
            draws=tier.draws // 4,
        ),
        Case(
            "mostly-masked",
            f"{normal(2, 4096, 3)}.masked_fill(torch.arange(4096) % 97 != 5, -inf)",
            4096,
            draws=tier.large_draws,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "temperature/scale",
    "Logits are divided by the temperature.",
    "law 3",
    lambda tier: [
        Case(
            "temperatures",
            probabilities(EIGHT),
            8,
            (0.25, 0.5, 0.8, 1.0, 2.0, 8.0),
            rows=(0,) * 6,
            requests=(0, 1, 2, 3, 4, 5),
            draws=6 * tier.draws // 4,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "temperature/before-filters",
    "The temperature applies before the filters.",
    "law 3",
    lambda tier: [
        Case(
            "T-then-p",
            values([3.0, 2.0, 1.0]),
            3,
            (0.5, 1.0, 2.0),
            top_p=(0.8,),
            rows=(0, 0, 0),
            requests=(0, 1, 2),
            draws=3 * tier.draws // 8,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "temperature/tiny",
    "Small temperatures give the maximum, without overflow; those below 1e-6 act as 1e-6.",
    "law 3",
    lambda _tier: [
        Case(
            "tiny-T",
            values([11.0, 10.5, 11.0625, -11.0]),
            4,
            (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 1e-30),
            rows=(0,) * 7,
            requests=tuple(range(7)),
            dtype=dtype,
            draws=7 * 2**9,
        ).but(name=f"tiny-T-{filtered}", top_k=k, top_p=p)
        for dtype in ("fp32", "fp16", "bf16")
        for filtered, k, p in (("none", (0,), (0.0,)), ("both", (3,), (0.9,)))
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-k/kept-set",
    "A token is kept if fewer than k tokens are strictly larger.",
    "law 4",
    lambda tier: [
        Case(
            "each-k",
            probabilities(EIGHT),
            8,
            top_k=tuple(range(1, 9)),
            rows=(0,) * 8,
            requests=tuple(range(8)),
            draws=tier.draws,
        ),
        Case(
            "k50",
            normal(2, tier.large_vocab, 4),
            tier.large_vocab,
            (0.8,),
            (50,),
            rows=(0, 1),
            requests=(0, 0),
            dtype="bf16",
            draws=tier.large_draws,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-k/ties",
    "Tokens tied at the k-th place are all kept.",
    "law 4",
    lambda tier: [
        Case(
            "tied-k",
            values([1.0, 3.0, 2.0, 2.0, 2.0, 0.0]),
            6,
            top_k=(1, 2, 3, 4, 5),
            rows=(0,) * 5,
            requests=tuple(range(5)),
            draws=5 * tier.draws // 8,
        ),
        Case(
            "all-tied",
            values([0.5] * 64),
            64,
            top_k=(2, 7, 63),
            rows=(0,) * 3,
            requests=(0, 1, 2),
            draws=3 * tier.draws // 8,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-k/off",
    "k = 0 and k >= V keep every token.",
    "law 4",
    lambda tier: [
        Case(
            "k-off",
            probabilities(EIGHT),
            8,
            top_k=(0, 8, 9, 1000, 2**31 - 1, 7),
            rows=(0,) * 6,
            requests=tuple(range(6)),
            draws=6 * tier.draws // 8,
        ),
        Case(
            "k-off-with-p",
            probabilities(EIGHT),
            8,
            top_k=(0, 8, 2**30, 3),
            top_p=(0.6, 0.6, 0.6, 0.0),
            rows=(0,) * 4,
            requests=tuple(range(4)),
            draws=4 * tier.draws // 8,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-p/crossing-token",
    "A token is kept if the mass of strictly larger survivors is below p: the token that crosses p stays.",
    "law 5",
    lambda tier: [
        Case(
            "each-gap",
            probabilities(EIGHT),
            8,
            top_p=BETWEEN_PREFIXES,
            rows=(0,) * 8,
            requests=tuple(range(8)),
            draws=tier.draws,
        ),
        Case(
            "unsorted",
            probabilities((0.05, 0.05, 0.1, 0.8), (0.9, 0.05, 0.03, 0.02)),
            4,
            top_p=(0.5, 0.5),
            draws=tier.draws // 4,
        ),
        Case(
            "p0.9",
            normal(2, tier.large_vocab, 5),
            tier.large_vocab,
            (0.8,),
            top_p=(0.9,),
            rows=(0, 1),
            requests=(0, 0),
            dtype="bf16",
            draws=tier.large_draws,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-p/ties",
    "Tokens of equal probability are kept or dropped together.",
    "law 5",
    lambda tier: [
        Case(
            "tied-p",
            values([0.0, 2.0, 1.0, 1.0, 1.0, 0.0]),
            6,
            top_p=(0.2, 0.5, 0.6, 0.8),
            rows=(0,) * 4,
            requests=tuple(range(4)),
            draws=4 * tier.draws // 8,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-p/off",
    "p = 0 and p = 1 drop nothing, not even the last ulp of the tail.",
    "law 5",
    lambda tier: [
        Case(
            "p-off",
            probabilities(EIGHT),
            8,
            top_p=(0.0, 1.0, 0.97),
            rows=(0,) * 3,
            requests=(0, 1, 2),
            draws=3 * tier.draws // 4,
        ),
        # 64 tokens of 2^-14 each behind one of nearly all mass.
        Case(
            "p-off-tail",
            "torch.tensor([[0.0] + [-14.0] * 64]).mul(0.6931471805599453)",
            65,
            top_p=(0.0, 1.0),
            top_k=(0, 0),
            rows=(0, 0),
            requests=(0, 1),
            draws=2 * tier.draws,
        ),
        Case(
            "p-off-beside-filters",
            probabilities(EIGHT),
            8,
            top_k=(3, 0, 3, 0),
            top_p=(1.0, 0.6, 0.0, 1.0),
            rows=(0,) * 4,
            requests=tuple(range(4)),
            draws=4 * tier.draws // 8,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-p/tiny",
    "However small p is, the most probable token is kept, and nothing else below its mass.",
    "law 5",
    lambda tier: [
        Case(
            "tiny-p",
            values([1.0, 2.0, 4.0, 3.0]),
            4,
            top_p=tuple(10.0**-i for i in range(1, 10)),
            rows=(0,) * 9,
            requests=tuple(range(9)),
            draws=9 * 2**9,
        ),
        Case(
            "tiny-p-large",
            normal(1, tier.large_vocab, 6),
            tier.large_vocab,
            top_p=(1e-3, 1e-8),
            rows=(0, 0),
            requests=(0, 1),
            draws=2**9,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-p/nearly-one",
    "A p so near to 1 that fp32 sums may not reach it keeps what it should and gives ids in range.",
    "law 5",
    lambda tier: [
        Case(
            "nearly-one",
            normal(2, tier.large_vocab, 7),
            tier.large_vocab,
            (1.0, 0.7),
            top_p=(0.9999999, 0.9),
            draws=tier.large_draws // 2,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "top-p/after-top-k",
    "Top-p applies to the renormalised survivors of top-k.",
    "law 5",
    lambda tier: [
        Case(
            "k-then-p",
            probabilities((0.1, 0.2, 0.3, 0.4), (0.05, 0.03, 0.35, 0.57)),
            4,
            top_k=(2, 3),
            top_p=(0.5, 0.6),
            draws=tier.draws // 4,
        ),
        Case(
            "k-not-joint",
            probabilities((0.03, 0.20, 0.03, 0.35, 0.25, 0.05, 0.03, 0.06)),
            8,
            top_k=(4,),
            top_p=(0.82,),
            draws=tier.draws // 4,
        ),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "draw/distribution",
    "Tokens are drawn with the probabilities of the renormalised survivors.",
    "law 6",
    lambda tier: [
        *for_each_mix(
            Case(
                "peaked",
                normal(4, tier.large_vocab, 8),
                tier.large_vocab,
                (0.7, 0.8, 1.0, 1.3),
                dtype="bf16",
                draws=tier.large_draws,
            )
        ),
        Case("flat", f"torch.zeros(1, {tier.large_vocab})", tier.large_vocab, draws=tier.large_draws),
        Case("most-draws", probabilities(EIGHT), 8, draws=tier.huge_draws),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "draw/every-dtype",
    "Whatever the logits' dtype, the arithmetic is that of float32 or better.",
    "law 6",
    lambda tier: [
        Case("near-pair", values([10.0, 9.9375]), 2, (0.7,), dtype=dtype, draws=tier.draws)
        for dtype in ("fp32", "fp16", "bf16")
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "draw/tail",
    "Many improbable tokens together are drawn as often as their mass says.",
    "law 6",
    lambda tier: [
        Case(f"gap{gap}", head_and_tail(tier.large_vocab, gap), tier.large_vocab, draws=4 * tier.large_draws)
        for gap in (8, 12, 14, 16)
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "greedy/temperature-zero",
    "T = 0 gives the lowest index among the largest logits.",
    "law 2",
    lambda tier: [
        *for_each_mix(
            Case(
                "T0",
                values([1.0, 2.0, 7.0, 3.0], [5.0, -1.0, 5.0, 5.0], [-9.0, -8.0, -9.0, -8.0], [0.0, -0.0, -1.0, 0.0]),
                4,
                (0.0,) * 4,
                draws=2**10,
            )
        ),
        Case(
            "T0-last-tile",
            f"torch.zeros(1, {tier.large_vocab}).index_fill(1, "
            f"torch.tensor([{tier.large_vocab - 2}, {tier.large_vocab - 1}]), 1.0)",
            tier.large_vocab,
            (0.0,),
            dtype="bf16",
            draws=64,
        ),
        Case("T0-one-token", values([3.0]), 1, (0.0, 1.0), rows=(0, 0), requests=(0, 1), draws=64),
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "greedy/top-k-one",
    "k = 1 gives the lowest index among the largest logits, at any temperature.",
    "law 2",
    lambda _tier: [
        Case(
            "k1",
            values([1.0, 2.0, 7.0, 7.0]),
            4,
            (0.0, 0.5, 1.0, 50.0, 1.0),
            top_k=(1,) * 5,
            top_p=(0.0, 0.0, 0.0, 0.0, 0.5),
            rows=(0,) * 5,
            requests=tuple(range(5)),
            dtype=dtype,
            draws=5 * 2**9,
        )
        for dtype in ("fp32", "fp16", "bf16")
    ],
    statistical=True,
    reproduce="draws",
)
@clause(
    "greedy/in-drawn-batch",
    "Greedy rows in a batch that also draws are exact, and leave the other rows alone.",
    "law 2",
    lambda tier: [
        *for_each_mix(Case("half-greedy", values([1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0]),
                           3, (0.0, 1.0, 0.0, 0.7), draws=tier.draws // 8)),
        Case("half-greedy-k1", values([1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0]), 3,
             (1.0,) * 4, top_k=(1, 0, 1, 2), top_p=(0.9, 0.5, 0.0, 0.0), draws=tier.draws // 8),
    ],
    statistical=True,
    reproduce="draws",
)  # fmt: skip
def _draws_follow_law(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from draws_follow_law(subject, case, alpha)
