"""Clauses on how often tokens are drawn, and on greedy rows (law 2 and 6)."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.cases import Case, for_each_mix, head_and_tail, normal, probabilities, values
from conformance.clauses import Tier
from conformance.clauses.law import EIGHT, follows_the_law, one_row

_FOUR_ROWS = values([1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0])


@follows_the_law("draw/distribution", "Tokens are drawn with the probabilities of the renormalised survivors.", "law 6")
def _distribution(tier: Tier) -> Iterator[Case]:
    width = tier.large_vocab
    peaked = Case("peaked", normal(4, width, 8), width, (0.7, 0.8, 1.0, 1.3), dtype="bf16", draws=tier.large_draws)
    yield from for_each_mix(peaked)
    yield Case("flat", f"torch.zeros(1, {width})", width, draws=tier.large_draws)
    # Neither a multiple of a vector nor of a tile.
    yield Case("odd-width", normal(1, 4099, 18), 4099, dtype="bf16", draws=2 * tier.large_draws)
    yield Case("most-draws", probabilities(EIGHT), 8, draws=tier.huge_draws)


@follows_the_law(
    "draw/every-dtype", "Whatever the logits' dtype, the arithmetic is that of float32 or better.", "law 6"
)
def _dtypes(tier: Tier) -> Iterator[Case]:
    # A temperature applied in bf16 would give the first token 0.531 instead of 0.522.
    for dtype in ("fp32", "fp16", "bf16"):
        yield Case("near-pair", values([10.0, 9.9375]), 2, (0.7,), dtype=dtype, draws=tier.draws)


@follows_the_law("draw/tail", "Many improbable tokens together are drawn as often as their mass says.", "law 6")
def _tail(tier: Tier) -> Iterator[Case]:
    for gap in (8, 12, 14, 16):
        yield Case(f"gap{gap}", head_and_tail(tier.large_vocab, gap), tier.large_vocab, draws=tier.tail_draws)


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
