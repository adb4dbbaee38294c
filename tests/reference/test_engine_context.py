"""Both samplers with a context laid out as real engines do, on rows whose supports exclude one another.

Row r of the logits has its maximum at token 3 r, and one token 0.5 below at 3 r + 1; all others are far below.
So a token names the row that it was drawn from, and a greedy draw is known.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from optimized import FlashInferSampling
from reference import ReferenceSampling, Sampling, filter_flags
from tests.reference.engine_context import (
    PADDING,
    EngineContext,
    ViewOnlyContext,
    engine_context,
    engine_indices,
)
from tests.reference.helpers import bits, generator

VOCAB = 40
ROWS = 13

MakeSampler = Callable[[], Sampling]
SAMPLERS: dict[str, MakeSampler] = {
    "reference": lambda: ReferenceSampling(VOCAB, generator(7)),
    "flashinfer-cpu": lambda: FlashInferSampling(VOCAB, generator(7)),
}
both_samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)

# One request of every kind: greedy by T, greedy by k, unfiltered, top-k, top-p, both.
TEMPERATURE = [0.0, 0.9, 1.0, 1.0, 1.0, 0.7]
TOP_K = [0, 1, 0, 2, 0, 2]
TOP_P = [0.9, 0.0, 0.0, 0.0, 0.9, 0.5]
# What each may draw from its row r, as offsets to 3 r. Mass of the maximum: 1 / (1 + e^-0.5) = 0.62 at T = 1, so that
# p = 0.9 keeps both tokens; 0.67 at T = 0.7, so that p = 0.5 keeps one. The 38 others hold 40 e^-29 < 1e-11.
OFFSETS = [{0}, {0}, {0, 1}, {0, 1}, {0, 1}, {0}]


def logits_of(rows: int = ROWS) -> Tensor:
    z = torch.full((rows, VOCAB), -20.0)
    for r in range(rows):
        z[r, 3 * r], z[r, 3 * r + 1] = 10.0, 9.5
    return z


def mixed() -> EngineContext:
    return engine_context(TEMPERATURE, TOP_K, TOP_P)


def test_the_layout_is_the_promised_one() -> None:
    """The fixture itself: a layout that quietly became friendly would test nothing."""
    for size in range(1, 9):
        context = engine_context([1.0] * size, [3] * size, [0.5] * size, paused=1)
        view = context.gpu_view
        addresses = [view.temperature.data_ptr(), view.top_k.data_ptr(), view.top_p.data_ptr()]
        assert [a % 8 for a in addresses] == [4, 4, 4]
        assert [a % 16 in {4, 12} for a in addresses] == [True] * 3
        storage = context.buffer.untyped_storage().data_ptr()
        assert all(t.untyped_storage().data_ptr() == storage for t in (view.temperature, view.top_k, view.top_p))
        assert view.top_k.dtype == torch.int32
        assert context.active_request_metadata["top_k"].dtype == torch.int64
        assert view.temperature.tolist() == [1.0] * (size + PADDING)
        assert view.top_k.tolist() == [3] * size + [0] * PADDING
        assert view.top_p.tolist() == [0.5] * size + [0.0] * PADDING
        assert context.total_request_count - context.paused_request_count == size
        assert context.active_request_metadata["temperature"][size:].isnan().all()
        assert (context.active_request_metadata["top_k"][size:] == 2**62).all()


def test_flags_look_at_active_requests_only() -> None:
    """The poison would make both filters look used, or raise."""
    assert filter_flags(engine_context([1.0], [0], [1.0])) == {"no_top_k": True, "no_top_p": True}
    assert filter_flags(engine_context([1.0, 1.0], [0, 7], [0.0, 1.0])) == {"no_top_k": False, "no_top_p": True}
    assert filter_flags(engine_context([1.0], [0], [0.5])) == {"no_top_k": True, "no_top_p": False}


@both_samplers
@pytest.mark.parametrize("flags", ["computed", "false"])
def test_each_slot_has_its_row_and_its_request(make: MakeSampler, flags: str) -> None:
    """R06, R07, R10, R11: rows or parameters of another request. Gathers repeat, skip and reverse; 40 calls."""
    context, z = mixed(), logits_of()
    sampler = make()
    gather = [12, 0, 5, 5, 7, 2, 1, 9]
    request = [5, 4, 3, 2, 1, 0, 2, 5]
    promised = filter_flags(context) if flags == "computed" else {"no_top_k": False, "no_top_p": False}
    seen: list[set[int]] = [set() for _ in gather]
    for _ in range(40):
        tokens = sampler.sample_kernel(
            *(z, len(gather), context),
            no_top_k=promised["no_top_k"],
            no_top_p=promised["no_top_p"],
            gather_indices=engine_indices(gather),
            token_to_request_index=engine_indices(request),
        )
        for slot, token in enumerate(tokens.tolist()):
            seen[slot].add(token - 3 * gather[slot])
    # A token of probability 0.38 is missed 40 times with probability 0.62^40 = 5e-9.
    assert seen == [OFFSETS[r] for r in request]


@both_samplers
def test_without_indices_slot_row_and_request_agree(make: MakeSampler) -> None:
    context, z = mixed(), logits_of()
    sampler = make()
    seen: list[set[int]] = [set() for _ in TEMPERATURE]
    for _ in range(40):
        tokens = sampler.sample_kernel(z, 6, context, no_top_k=False, no_top_p=False)
        for slot, token in enumerate(tokens.tolist()):
            seen[slot].add(token - 3 * slot)
    assert seen == OFFSETS


@both_samplers
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "offsets"),
    [
        pytest.param([0.0, 1.0], [0, 1], [0.0, 0.5], [{0}, {0}], id="greedy"),
        pytest.param([1.0, 0.8], [0, 0], [0.0, 1.0], [{0, 1}, {0, 1}], id="unfiltered"),
        pytest.param([1.0, 0.7], [0, 0], [0.9, 0.5], [{0, 1}, {0}], id="top-p"),
        pytest.param([1.0, 5.0], [2, 2], [0.0, 1.0], [{0, 1}, {0, 1}], id="top-k"),
        pytest.param([1.0, 5.0], [0, 2], [0.9, 0.0], [{0, 1}, {0, 1}], id="either"),
        pytest.param([1.0, 0.7], [2, 2], [0.9, 0.5], [{0, 1}, {0}], id="both"),
    ],
)
def test_more_slots_than_active_requests(
    make: MakeSampler, temperature: list[float], top_k: list[int], top_p: list[float], offsets: list[set[int]]
) -> None:
    """Slots beyond the active requests return anything in range, and disturb nobody: padded steps."""
    context, z = engine_context(temperature, top_k, top_p), logits_of()
    z[2:7] = torch.nan  # rows of nobody hold whatever was there
    sampler = make()
    seen: list[set[int]] = [set(), set()]
    for _ in range(40):
        tokens = sampler.sample_kernel(z, 7, context, **filter_flags(context)).tolist()
        assert len(tokens) == 7
        assert all(0 <= token < VOCAB for token in tokens)
        for slot in range(2):
            seen[slot].add(tokens[slot] - 3 * slot)
    assert seen == offsets


@both_samplers
def test_one_context_serves_several_calls_of_a_step(make: MakeSampler) -> None:
    """Sampling, log-probs by a pageable int64 map, and again: nothing in the context changes in between."""
    context, z = mixed(), logits_of()
    before = (bits(context.buffer), {k: bits(v) for k, v in context.active_request_metadata.items()}, bits(z))
    sampler = make()
    request = torch.tensor([0, 1, 2, 3, 4, 5, 0, 0])
    first = sampler.log_probs_kernel(z[:6], context, token_to_request_index=request)
    sampler.sample_kernel(z, 6, context, no_top_k=False, no_top_p=False)
    sampler.sample_speculative(z, 2, 1, 3, context, gather_indices=engine_indices(range(9)))
    assert bits(sampler.log_probs_kernel(z[:6], context, token_to_request_index=request)) == bits(first)
    assert before == (bits(context.buffer), {k: bits(v) for k, v in context.active_request_metadata.items()}, bits(z))
    support = [{int(t) - 3 * r for t in (first[r] > -20).nonzero()[:, 0]} for r in range(6)]
    assert support == OFFSETS


@both_samplers
def test_only_the_asked_for_rows_are_looked_at(make: MakeSampler) -> None:
    """A prefill step hands over the logits of every prompt token; all but n rows are NaN here."""
    context = mixed()
    z = torch.full((500, VOCAB), torch.nan)
    rows = [499, 17, 250, 3, 88, 301]
    z[rows] = logits_of()[:6]
    tokens = make().sample_kernel(z, 6, context, no_top_k=False, no_top_p=False, gather_indices=engine_indices(rows))
    assert [token - 3 * slot in OFFSETS[slot] for slot, token in enumerate(tokens.tolist())] == [True] * 6


@both_samplers
def test_speculative_rows_take_their_requests_parameters(make: MakeSampler) -> None:
    """R11, V01: per-token parameters sliced as if per request. 3 decode requests of 1 + 2 rows, then 2 prefill."""
    context, z = mixed(), logits_of()
    sampler = make()
    request = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4]
    seen: list[set[int]] = [set() for _ in request]
    for _ in range(40):
        tokens = sampler.sample_speculative(z, 3, 2, 2, context)
        for slot, token in enumerate(tokens.tolist()):
            seen[slot].add(token - 3 * slot)
    assert seen == [OFFSETS[r] for r in request]


@both_samplers
def test_a_context_of_the_device_view_alone_gives_the_same_tokens(make: MakeSampler) -> None:
    context, z = mixed(), logits_of()
    with_metadata, without = make(), make()
    for _ in range(5):
        tokens = with_metadata.sample_kernel(z, 6, context, no_top_k=False, no_top_p=False)
        alone = without.sample_kernel(z, 6, ViewOnlyContext(context.gpu_view), no_top_k=False, no_top_p=False)
        assert tokens.tolist() == alone.tolist()


@both_samplers
def test_the_metadata_may_change_between_steps(make: MakeSampler) -> None:
    """R16, R17: a sampler that remembers an engine's context by identity keeps last step's parameters."""
    context, z = mixed(), logits_of()
    sampler = make()
    sampler.sample_kernel(z, 6, context, no_top_k=False, no_top_p=False)
    for name, value in (("temperature", 0.0), ("top_k", 0), ("top_p", 0.0)):
        context.active_request_metadata[name][:6] = value
        getattr(context.gpu_view, name)[:6] = value
    for _ in range(10):
        tokens = sampler.sample_kernel(z, 6, context, **filter_flags(context))
        assert tokens.tolist() == [3 * r for r in range(6)]


@both_samplers
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_poison_among_the_active_requests_is_reported(make: MakeSampler, name: str) -> None:
    """One more "active" request than there is: its parameters are poison, and say so."""
    context = dataclasses.replace(mixed(), total_request_count=9)  # 7 active, 6 of them real
    clean = copy.deepcopy(context)
    for other in {"temperature", "top_k", "top_p"} - {name}:
        clean.active_request_metadata[other][6:] = 1
    with pytest.raises(ValueError, match=rf"^{name} must be .* for request 6$"):
        make().sample_kernel(logits_of(), 6, clean, no_top_k=False, no_top_p=False)
