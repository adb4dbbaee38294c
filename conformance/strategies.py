"""Hypothesis strategies for what a sampler is called with: ``pip install 'sampling-conformance[hypothesis]'``.

They reach what samplers get wrong: ties, masks, padding, tiny and huge spreads, filters that are off in every way, and
slots that share rows and requests. Rows of up to 16 tokens shrink token by token; wider ones are drawn from a seed, so
that 128,256 tokens cost a handful of choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from reference import Law, LawOptions, SamplingContext, law

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

SPREADS = (1.0, 0.0, 1e-3, 30.0, 1e4)
"""Nats between neighbouring levels: 0 makes all tied, 1e-3 makes ties in bfloat16, 1e4 is the largest that float16
holds four of."""

MOST_LISTED = 16
"""Tokens of a row that is drawn token by token."""

LEVELS = 4
"""Levels on either side of 0: few enough for ties among a handful of tokens."""

TINY_TEMPERATURE = 1e-7
"""Positive, and below the 1e-6 as which the law takes such a temperature."""


class Parameters(NamedTuple):
    """One entry a request."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]


@dataclass(frozen=True)
class Batch:
    """A call of a sampler.

    logits: [rows, W], of which the first `vocab_size` columns count. context: of the `parameters`.
    gather_indices, token_to_request_index: int32 [n], row and request of each slot.
    """

    logits: Tensor
    vocab_size: int
    parameters: Parameters
    gather_indices: Tensor
    token_to_request_index: Tensor

    @property
    def n(self) -> int:
        """Number of slots."""
        return len(self.gather_indices)

    @property
    def context(self) -> SamplingContext:
        """The parameters as a sampler takes them; a new one at each time."""
        return SamplingContext(*self.parameters)

    def law(self, options: LawOptions | None = None) -> Law:
        """The law of each slot, [n, W]."""
        view, requests = self.context.gpu_view, self.token_to_request_index.long()
        columns = (view.temperature[requests], view.top_k[requests], view.top_p[requests])
        return law(self.logits[self.gather_indices.long()], *columns, vocab_size=self.vocab_size, options=options)


def logits(
    rows: int,
    vocab_size: int,
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    padding: int = 0,
    invalid: bool = False,
) -> st.SearchStrategy[Tensor]:
    """Logits [rows, vocab_size + padding] on the CPU, in one of the dtypes.

    padding: columns that a sampler must not look at. They hold what would show if it did: 0, inf, NaN or 3e4.
    invalid: rows with a NaN, a +inf or no finite logit come, too; else each row has a finite logit and no such.
    Raises ValueError for a number of rows or tokens below 1, and for a padding below 0.
    """
    _check("rows", rows, 1)
    _check("vocab_size", vocab_size, 1)
    _check("padding", padding, 0)
    row = _listed_row(vocab_size) if vocab_size <= MOST_LISTED else _seeded_row(vocab_size)
    if invalid:
        row = _with_one(row, vocab_size, [None, math.nan, math.inf, -math.inf])
    wide = st.tuples(row, st.sampled_from([0.0, math.inf, math.nan, 3e4])).map(
        lambda drawn: torch.cat([drawn[0], torch.full((padding,), drawn[1])])
    )
    stacked = st.lists(wide if padding else row, min_size=rows, max_size=rows).map(torch.stack)
    return st.tuples(stacked, st.sampled_from(list(dtypes))).map(lambda drawn: drawn[0].to(drawn[1]))


def parameters(n: int, vocab_size: int) -> st.SearchStrategy[Parameters]:
    """Parameters of n requests: greedy and tiny temperatures, filters that are off in each way, and their edges.

    Raises ValueError for a number of requests or tokens below 1.
    """
    _check("n", n, 1)
    _check("vocab_size", vocab_size, 1)
    temperature = st.sampled_from([1.0, 0.0, TINY_TEMPERATURE]) | st.floats(0.125, 8, width=32)
    top_k = st.sampled_from([0, 1, vocab_size, vocab_size + 1, 2**31 - 1]) | st.integers(1, vocab_size)
    top_p = st.sampled_from([0.0, 1.0, 0.5, 2.0**-24, 1 - 2.0**-24]) | st.floats(0, 1, width=32)
    columns = (st.lists(each, min_size=n, max_size=n) for each in (temperature, top_k, top_p))
    return st.builds(Parameters, *columns)


def batches(
    slots: int,
    vocab_size: int,
    *,
    rows: int | None = None,
    requests: int | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    padding: int = 0,
    invalid: bool = False,
) -> st.SearchStrategy[Batch]:
    """Calls with that many slots, which share rows and requests in any way.

    rows, requests: how many there are; as many as slots by default. The others: see `logits`.
    Raises ValueError for numbers below 1, and for a padding below 0.
    """
    _check("slots", slots, 1)
    rows, requests = (slots if each is None else each for each in (rows, requests))
    drawn = logits(rows, vocab_size, dtypes=dtypes, padding=padding, invalid=invalid)
    return st.builds(
        Batch,
        drawn,
        st.just(vocab_size),
        parameters(requests, vocab_size),
        _index(slots, rows),
        _index(slots, requests),
    )


def _check(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")


def _listed_row(vocab_size: int) -> st.SearchStrategy[Tensor]:
    """Levels token by token, None for a masked one."""
    level = st.integers(-LEVELS, LEVELS) | st.none()
    levels = st.lists(level, min_size=vocab_size, max_size=vocab_size).filter(lambda row: set(row) != {None})
    return st.tuples(levels, st.sampled_from(SPREADS)).map(
        lambda drawn: torch.tensor([-math.inf if each is None else each * drawn[1] for each in drawn[0]])
    )


@st.composite
def _seeded_row(draw: st.DrawFn, vocab_size: int) -> Tensor:
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    row = torch.randn(vocab_size, generator=rng).clamp(-LEVELS, LEVELS)
    if draw(st.booleans()):
        row = row.round()
    row *= draw(st.sampled_from(SPREADS))
    masked = draw(st.sampled_from([0.0, 0.5, 1.0]))
    kept = draw(st.integers(0, vocab_size - 1))
    mask = torch.rand(vocab_size, generator=rng) < masked
    mask[kept] = False
    return row.masked_fill(mask, -math.inf)


@st.composite
def _with_one(draw: st.DrawFn, row: st.SearchStrategy[Tensor], vocab_size: int, values: list[float | None]) -> Tensor:
    """The row with one token set to one of the values, or as it is; with -inf, all tokens."""
    drawn, value = draw(row), draw(st.sampled_from(values))
    if value == -math.inf:
        return torch.full_like(drawn, value)
    if value is not None:
        drawn[draw(st.integers(0, vocab_size - 1))] = value
    return drawn


def _index(slots: int, count: int) -> st.SearchStrategy[Tensor]:
    return st.lists(st.integers(0, count - 1), min_size=slots, max_size=slots).map(
        lambda index: torch.tensor(index, dtype=torch.int32)
    )
