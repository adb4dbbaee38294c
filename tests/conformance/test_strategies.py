"""The strategies: their shapes, the edges that they reach, and what becomes of a fault that they find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from conformance.strategies import DTYPES, TINY_TEMPERATURE, Batch, Parameters, batches, logits, parameters
from reference import ReferenceSampling, filter_flags
from tests.conformance.samplers import make

QUIET = settings(deadline=None, derandomize=True, database=None, max_examples=50)
SEARCH = settings(QUIET, max_examples=2000, phases=[Phase.generate])


def drawn(sampler: Any, batch: Batch) -> torch.Tensor:
    context = batch.context
    index = {"gather_indices": batch.gather_indices, "token_to_request_index": batch.token_to_request_index}
    ids: torch.Tensor = sampler.sample_kernel(
        batch.logits, batch.n, context, **filter_flags(context, batch.vocab_size), **index
    )
    return ids


def allowed(batch: Batch, make_sampler: Callable[..., Any]) -> bool:
    """Whether what a sampler draws may come; of invalid rows it is told nothing but the range."""
    ids = drawn(make_sampler(batch.vocab_size, torch.Generator().manual_seed(0)), batch)
    right = batch.law()
    in_range = (ids >= 0) & (ids < batch.vocab_size)
    may = right.may_keep.gather(1, ids.clamp(0, batch.vocab_size - 1)[:, None])[:, 0]
    return bool((in_range & (may | ~right.valid)).all())


@QUIET
@given(batches(3, 5, rows=2, requests=4, padding=2, invalid=True))
def test_the_reference_draws_what_the_law_allows(batch: Batch) -> None:
    assert batch.logits.shape == (2, 7)
    assert batch.logits.dtype in DTYPES
    assert batch.gather_indices.shape == batch.token_to_request_index.shape == (batch.n,) == (3,)
    assert [len(column) for column in batch.parameters] == [4, 4, 4]
    assert batch.law().probs.shape == (3, 7)
    assert allowed(batch, ReferenceSampling)


@QUIET
@given(logits(2, 1000, padding=1, invalid=True), parameters(2, 1000))
def test_wide_rows_have_a_law(wide: torch.Tensor, given: Parameters) -> None:
    batch = Batch(wide, 1000, given, torch.arange(2).int(), torch.arange(2).int())
    probs = batch.law().probs
    assert torch.isnan(probs).all(1).tolist() == (~batch.law().valid).tolist()
    assert (probs[batch.law().valid].sum(1) - 1).abs().le(1e-12).all()


def row(vocab_size: int, **options: Any) -> st.SearchStrategy[list[float]]:
    """One row, as a list."""
    return logits(1, vocab_size, **options).map(lambda found: found[0].tolist())


@pytest.mark.parametrize("vocab_size", [6, 100], ids=["token-by-token", "by-seed"])
@pytest.mark.parametrize(
    ("condition", "options"),
    [
        (lambda x: len(set(x)) == 1, {}),
        (lambda x: x.count(max(x)) == 2, {}),
        (lambda x: x.count(-math.inf) == len(x) - 1, {}),
        (lambda x: 0 < x.count(-math.inf) < len(x) / 2, {}),
        (lambda x: 0 < max(x) - min(x) < 0.01, {}),
        (lambda x: math.inf > max(x) - min(x) > 1e4, {"dtypes": [torch.float16]}),
        (lambda x: any(math.isnan(each) for each in x), {"invalid": True}),
        (lambda x: math.inf in x, {"invalid": True}),
        (lambda x: max(x) == -math.inf, {"invalid": True}),
        (lambda x: math.isnan(x[-1]) and not math.isnan(x[0]), {"padding": 1}),
        (lambda x: x[-1] == math.inf, {"padding": 1}),
    ],
    ids=["flat", "tied-best", "one-left", "masked", "tiny", "huge", "nan", "inf", "none-finite", "nan-pad", "inf-pad"],
)
def test_rows_reach_each_edge(vocab_size: int, condition: Callable[[list[float]], bool], options: Any) -> None:
    find(row(vocab_size, **options), condition, settings=SEARCH)


@pytest.mark.parametrize("vocab_size", [1, 3, 17])
@QUIET
@given(data=st.data())
def test_valid_rows_are_valid(vocab_size: int, data: st.DataObject) -> None:
    values = data.draw(row(vocab_size))
    assert math.inf not in values
    assert max(values) > -math.inf
    assert not any(math.isnan(each) for each in values)


@pytest.mark.parametrize(
    "condition",
    [
        lambda x: 0.0 in x.temperature and any(t > 0 for t in x.temperature),
        lambda x: TINY_TEMPERATURE in x.temperature,
        lambda x: {0, 7} <= set(x.top_k),
        lambda x: any(k > 7 for k in x.top_k) and 1 in x.top_k,
        lambda x: {0.0, 1.0} <= set(x.top_p),
        lambda x: any(0 < p < 1e-6 for p in x.top_p) and any(1 - 1e-6 < p < 1 for p in x.top_p),
        lambda x: any(1 < k < 7 and 0 < p < 1 for k, p in zip(x.top_k, x.top_p, strict=True)),
    ],
    ids=["greedy-and-drawn", "tiny", "k-off", "k-above-V", "p-off", "p-edges", "both"],
)
def test_parameters_reach_each_edge(condition: Callable[[Parameters], bool]) -> None:
    find(parameters(4, 7), condition, settings=SEARCH)


def test_slots_share_rows_and_requests() -> None:
    def crossed(batch: Batch) -> bool:
        rows, requests = batch.gather_indices.tolist(), batch.token_to_request_index.tolist()
        return (rows[0] == rows[1] != rows[2]) and bool(requests[0] != requests[1] == requests[2])

    find(batches(3, 4), crossed, settings=SEARCH)


def test_a_fault_is_found_and_made_small() -> None:
    exactly_k = make("exactly-k")

    def loses_a_tie(batch: Batch) -> bool:
        """Whether a token that must be kept has no probability."""
        sampler = exactly_k(batch.vocab_size, torch.Generator())
        log_probs = sampler.log_probs_kernel(batch.logits, batch.context)
        return bool((batch.law().must_keep & (log_probs == -math.inf)).any())

    # With one slot, the log-probs of the rows are those of the slots.
    small = find(batches(1, 6), loses_a_tie, settings=settings(QUIET, max_examples=500))
    assert small.parameters == ([1.0], [2], [0.0])
    assert small.logits.dtype == torch.float32
    assert sorted(small.logits[0].tolist())[-3:] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("make_strategy", "message"),
    [
        (lambda: logits(0, 4), "rows must be an int of at least 1, got 0"),
        (lambda: logits(1, 0), "vocab_size must be an int of at least 1, got 0"),
        (lambda: logits(1, 4, padding=-1), "padding must be an int of at least 0, got -1"),
        (lambda: parameters(1.0, 4), "n must be an int of at least 1, got 1.0"),  # type: ignore[arg-type]  # wrong
        (lambda: batches(0, 4), "slots must be an int of at least 1, got 0"),
        (lambda: batches(1, 4, requests=0), "n must be an int of at least 1, got 0"),
    ],
    ids=["rows", "vocab-size", "padding", "n", "slots", "requests"],
)
def test_wrong_arguments_are_named(make_strategy: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_strategy()
