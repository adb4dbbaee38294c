"""Clauses on how often tokens are drawn, and on greedy rows (law 2 and 6)."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.cases import Case, for_each_mix, head_and_tail, normal, probabilities, values
from conformance.clauses import Tier, clause
from conformance.clauses.law import EIGHT, follows_the_law, one_row
from conformance.evidence import Evidence, pit
from conformance.evidence.support import support
from conformance.subject import Subject

_FOUR_ROWS = values([1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0])

_BESIDE = tuple(2.0**-6 * (1 + 2.0**-8 + side * 2.0**-12) for side in (-1, 1))
_MIDPOINTS = probabilities((*_BESIDE * 30, 1 - 30 * sum(_BESIDE)))


@follows_the_law("draw/distribution", "Tokens are drawn with the probabilities of the renormalised survivors.", "law 6")
def _distribution(tier: Tier) -> Iterator[Case]:
    width = tier.large_vocab
    peaked = Case("peaked", normal(4, width, 8), width, (0.7, 0.8, 1.0, 1.3), dtype="bf16", draws=tier.large_draws)
    yield from for_each_mix(peaked)
    yield Case("flat", f"torch.zeros(1, {width})", width, draws=tier.large_draws)
    # Neither a multiple of a vector nor of a tile.
    yield Case("odd-width", normal(1, 4099, 18), 4099, dtype="bf16", draws=2 * tier.large_draws)
    yield Case("most-draws", probabilities(EIGHT), 8, draws=tier.most_draws)
    yield Case("most-draws-large", normal(1, width, 19), width, dtype="bf16", draws=tier.most_large_draws)


@follows_the_law(
    "draw/every-dtype", "Whatever the logits' dtype, the arithmetic is that of float32 or better.", "law 6"
)
def _dtypes(tier: Tier) -> Iterator[Case]:
    # A temperature applied in bf16 would give the first token 0.531 instead of 0.522: 13 standard deviations of 2^19
    # draws, where an alpha of 1e-9 takes 6.
    for dtype in ("fp32", "fp16", "bf16"):
        yield Case("near-pair", values([10.0, 9.9375]), 2, (0.7,), dtype=dtype, draws=4 * tier.draws)
    if tier.most_draws >= 10**7:
        # Even tokens lie just below a midpoint of two bf16 numbers, odd ones just above: rounding to bf16 moves 0.0018
        # of the mass from the former to the latter, which fewer draws do not show.
        yield Case("bf16-midpoints", _MIDPOINTS, 61, draws=2 * tier.most_draws)


@follows_the_law("draw/tail", "Many improbable tokens together are drawn as often as their mass says.", "law 6")
def _tail(tier: Tier) -> Iterator[Case]:
    for gap in tier.tail_gaps:
        # From 18 nats on a tail of a hundred thousand tokens comes once in 500 draws, or less.
        draws = tier.tail_draws * (2 if gap >= 18 else 1)
        yield Case(f"gap{gap}", head_and_tail(tier.large_vocab, gap), tier.large_vocab, draws=draws)
    if max(tier.tail_gaps) > 16:
        # 262,144 tokens of 2e-9 each: together 5e-4.
        yield Case("gap20-wide", head_and_tail(2**18 + 1, 20), 2**18 + 1, draws=tier.tail_draws)


def _own_rows(tier: Tier) -> Iterator[Case]:
    rows, width = tier.rows // 8, tier.large_vocab
    random = f"torch.rand({rows}, generator=torch.Generator().manual_seed"
    temperature = f"({random}(20)) + 0.5).tolist()"
    top_k = f"({random}(21)) * 200 + 1).int().tolist()"
    top_p = f"({random}(22)) * 0.9 + 0.05).tolist()"
    draws = tier.large_draws // 2
    none = Case("own-rows-none", normal(rows, width, 23), width, temperature, dtype="bf16", draws=draws)
    yield none
    # A quarter of the rows with each filter, with both and with none.
    yield none.but(
        name="own-rows-mixed",
        top_k=f"[k * (i % 2) for i, k in enumerate({top_k})]",
        top_p=f"[p * (i // 2 % 2) for i, p in enumerate({top_p})]",
    )


@clause(
    "draw/own-rows",
    "In a batch where each row has logits and parameters of its own, each is drawn by them.",
    "law 6",
    _own_rows,
    statistical=True,
    reproduce="draws",
)
def _own(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    ids = subject.draw(case, case.draws)
    law = case.law(subject.claims.options, subject.device)
    inside = support(ids, law)
    yield inside
    if not inside.passed:
        return
    for by_rank in (False, True):
        values = pit.transform(ids, law, subject.seed_of(case.id, "inside", by_rank), by_rank=by_rank)
        asked = f"all rows' draws by their own laws, in {'rank' if by_rank else 'index'} order"
        slack = pit.slack(law, by_rank=by_rank)
        yield from pit.uniform(asked, values, slack, alpha / 2, subject.seed_of(case.id, "judge", by_rank))


@follows_the_law("greedy/temperature-zero", "T = 0 gives the lowest index among the largest logits.", "law 2")
def _temperature_zero(tier: Tier) -> Iterator[Case]:
    rows = values([1.0, 2.0, 7.0, 3.0], [5.0, -1.0, 5.0, 5.0], [-9.0, -8.0, -9.0, -8.0], [0.0, -0.0, -1.0, 0.0])
    yield from for_each_mix(Case("T0", rows, 4, (0.0,) * 4, draws=2**10))
    width = tier.large_vocab
    last_two = f"torch.zeros(1, {width}).index_fill(1, torch.tensor([{width - 2}, {width - 1}]), 1.0)"
    yield Case("T0-last-tile", last_two, width, (0.0,), dtype="bf16", draws=64)
    yield one_row("T0-one-token", values([3.0]), 1, 32, temperature=(0.0, 1.0))


@follows_the_law(
    "greedy/top-k-one", "k = 1 gives the lowest index among the largest logits, at any temperature.", "law 2"
)
def _top_k_one(_tier: Tier) -> Iterator[Case]:
    temperature, top_p = (0.0, 0.5, 1.0, 50.0, 1.0), (0.0, 0.0, 0.0, 0.0, 0.5)
    for dtype in ("fp32", "fp16", "bf16"):
        yield one_row(
            "k1", values([1.0, 2.0, 7.0, 7.0]), 4, 2**9, temperature=temperature, top_k=(1,), top_p=top_p, dtype=dtype
        )


@follows_the_law(
    "greedy/in-drawn-batch",
    "Greedy rows in a batch that also draws are exact, and leave the other rows alone.",
    "law 2",
)
def _in_drawn_batch(tier: Tier) -> Iterator[Case]:
    yield from for_each_mix(Case("half-greedy", _FOUR_ROWS, 3, (0.0, 1.0, 0.0, 0.7), draws=tier.draws // 8))
    yield Case("half-greedy-k1", _FOUR_ROWS, 3, (1.0,) * 4, (1, 0, 1, 2), (0.9, 0.5, 0.0, 0.0), draws=tier.draws // 8)
