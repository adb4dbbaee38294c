"""SamplingContext, filter_flags and what the CPU can know of a batch."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reference import SamplingContext, filter_flags
from reference.context import batch_facts
from tests.reference.engine_context import ViewOnlyContext, engine_context
from tests.reference.helpers import as_float32, bits

NAMES = ("temperature", "top_k", "top_p")


def snapshot(context: SamplingContext) -> tuple[Any, ...]:
    """Everything that a sampler can see."""
    return (
        *(bits(getattr(context.gpu_view, name)) for name in NAMES),
        *(bits(context.active_request_metadata[name]) for name in NAMES),
        context.total_request_count,
        context.paused_request_count,
    )


class TestValues:
    FORMS = pytest.mark.parametrize(
        ("temperature", "top_k", "top_p"),
        [
            pytest.param([0.7, 0.0, 1.5], [0, 1, 50], [0.9, 0.0, 1.0], id="lists"),
            pytest.param((0.7, 0, 1.5), (0, 1, 50), (0.9, 0, 1), id="tuples-with-ints"),
            pytest.param(
                torch.tensor([0.7, 0.0, 1.5]), torch.tensor([0, 1, 50]), torch.tensor([0.9, 0.0, 1.0]), id="tensors"
            ),
            pytest.param(
                torch.tensor([0.7, 0.0, 1.5], dtype=torch.float64),
                torch.tensor([0, 1, 50], dtype=torch.int32),
                torch.tensor([0.9, 0.0, 1.0], dtype=torch.float64, requires_grad=True),
                id="tensors-of-other-dtypes",
            ),
            pytest.param(np.array([0.7, 0.0, 1.5]), np.array([0, 1, 50]), np.array([0.9, 0.0, 1.0]), id="arrays"),
        ],
    )

    @FORMS
    def test_lists_and_tensors_are_stored_as_float32_and_int32(self, temperature: Any, top_k: Any, top_p: Any) -> None:
        context = SamplingContext(temperature, top_k, top_p)
        for holder in (vars(context.gpu_view), context.active_request_metadata):
            assert [holder[name].dtype for name in NAMES] == [torch.float32, torch.int32, torch.float32]
            assert holder["temperature"].tolist() == [as_float32(0.7), 0.0, 1.5]
            assert holder["top_k"].tolist() == [0, 1, 50]
            assert holder["top_p"].tolist() == [as_float32(0.9), 0.0, 1.0]
        assert (context.total_request_count, context.paused_request_count) == (3, 0)

    def test_half_precision_tensors_are_taken_or_refused_by_name(self) -> None:
        """A bf16 temperature tensor must not end in a TypeError that names nothing."""
        half = torch.tensor([0.5], dtype=torch.bfloat16)
        try:
            context = SamplingContext(half, [0], [0.0])
        except ValueError as error:
            assert "temperature" in str(error)  # noqa: PT017  # either answer is right
        else:
            assert context.gpu_view.temperature.tolist() == [0.5]

    def test_largest_and_smallest_values(self) -> None:
        context = SamplingContext([1e-45, 3.4e38, -0.0], [2**31 - 1, 0, 1], [1e-45, 1.0, 0.0])
        assert context.gpu_view.temperature.tolist() == [2.0**-149, as_float32(3.4e38), 0.0]
        assert context.gpu_view.top_k.tolist() == [2**31 - 1, 0, 1]
        assert context.gpu_view.top_p.tolist() == [2.0**-149, 1.0, 0.0]

    def test_n18_a_p_too_small_for_float32_does_not_turn_into_off(self) -> None:
        """N18: p = 1e-50 means the most probable token alone; stored as 0 it would mean "no filter"."""
        try:
            context = SamplingContext([1.0], [0], [1e-50])
        except ValueError as error:
            assert "top_p" in str(error)  # noqa: PT017  # either answer is right
        else:
            assert context.gpu_view.top_p.item() > 0

    def test_no_requests(self) -> None:
        context = SamplingContext([], [], [])
        assert context.gpu_view.top_k.shape == (0,)
        assert context.total_request_count == 0

    def test_the_callers_tensors_stay_the_callers(self) -> None:
        """A04: results that share storage with an input change with it."""
        temperature = torch.tensor([0.5, 0.6])
        context = SamplingContext(temperature, [0, 0], [0.0, 0.0])
        temperature.fill_(9.0)
        assert context.gpu_view.temperature.tolist() == [0.5, as_float32(0.6)]


GOOD: dict[str, Any] = {"temperature": [1.0, 0.5], "top_k": [0, 3], "top_p": [0.0, 0.9]}
MALFORMED = {
    "temperature-negative": ({"temperature": [1.0, -0.5]}, r"temperature.* -0\.5 for request 1"),
    "temperature-nan": ({"temperature": [math.nan, 1.0]}, r"temperature.* nan for request 0"),
    "temperature-inf": ({"temperature": [1.0, math.inf]}, r"temperature.*finite.* inf for request 1"),
    "temperature-above-float32": ({"temperature": [1.0, 1e39]}, r"temperature.*1e\+39|temperature.*inf"),
    "temperature-2-dimensions": ({"temperature": torch.ones(2, 1)}, r"temperature.*1 dimension.*\(2, 1\)"),
    "temperature-0-dimensions": ({"temperature": torch.tensor(1.0)}, r"temperature.*1 dimension.*\(\)"),
    "temperature-number": ({"temperature": 1.0}, r"temperature"),
    "temperature-none": ({"temperature": None}, r"temperature"),
    "temperature-ragged": ({"temperature": [[1.0], [1.0, 2.0]]}, r"temperature"),
    "temperature-strings": ({"temperature": ["a", "b"]}, r"temperature.*numbers"),
    "temperature-bools": ({"temperature": [True, False]}, r"temperature.*numbers.*bool"),
    "temperature-complex": ({"temperature": torch.ones(2, dtype=torch.complex64)}, r"temperature.*numbers.*complex"),
    "top_k-negative": ({"top_k": [-1, 0]}, r"top_k.*at least 0.* -1 for request 0"),
    "top_k-2-to-the-31": ({"top_k": [0, 2**31]}, r"top_k.*below 2\*\*31.* 2147483648 for request 1"),
    "top_k-float": ({"top_k": [0.0, 3.0]}, r"top_k.*integers.*float"),
    "top_k-nan": ({"top_k": [0, math.nan]}, r"top_k.*integers.*float"),
    "top_k-beyond-int64": ({"top_k": [0, 2**70]}, r"top_k"),
    "top_k-bool-tensor": ({"top_k": torch.tensor([True, False])}, r"top_k.*integers.*bool"),
    "R04-top_k-0-dimensions": ({"top_k": torch.tensor(3)}, r"top_k.*1 dimension.*\(\)"),
    "R04-top_k-2-dimensions": ({"top_k": torch.ones(2, 4, dtype=torch.int32)}, r"top_k.*1 dimension.*\(2, 4\)"),
    "top_p-above-1": ({"top_p": [1.5, 0.9]}, r"top_p.*\[0, 1\].* 1\.5 for request 0"),
    "top_p-barely-above-1": ({"top_p": [0.9, 1 + 2.0**-23]}, r"top_p.*\[0, 1\].* for request 1"),
    "top_p-negative": ({"top_p": [0.9, -1e-9]}, r"top_p.*\[0, 1\].* -1e-09 for request 1"),
    "top_p-nan": ({"top_p": [0.9, math.nan]}, r"top_p.*\[0, 1\].* nan for request 1"),
    "lengths-temperature": ({"temperature": [1.0]}, r"temperature.*one length.*1.*2.*2"),
    "lengths-top_p": ({"top_p": [0.9] * 3}, r"top_p.*one length.*2.*2.*3"),
    "paused-negative": ({"paused": -1}, r"paused.*at least 0.* -1"),
    "paused-fraction": ({"paused": 1.5}, r"paused.*1\.5"),
}


@pytest.mark.parametrize("change, message", MALFORMED.values(), ids=MALFORMED)  # noqa: PT006  # one entry a case
class TestMalformedValues:
    def test_construction_names_the_argument(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            SamplingContext(**(GOOD | change))

    def test_update_names_the_argument_and_changes_nothing(self, change: dict[str, Any], message: str) -> None:
        """A half-applied step would sample with one request's temperature and another's top_k."""
        context = SamplingContext(**GOOD, capacity=4, paused=3)
        before = snapshot(context)
        with pytest.raises(ValueError, match=message):
            context.update(**(GOOD | change))
        assert snapshot(context) == before


@pytest.mark.parametrize("capacity", [1, 0, -1])
def test_capacity_must_hold_the_requests(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        SamplingContext(**GOOD, capacity=capacity)


class TestLayout:
    def test_capacity_is_padded_with_off(self) -> None:
        """Padding rows are drawn in padded steps: T = 0 or p = NaN there would be somebody's crash."""
        context = SamplingContext([0.5, 0.6], [3, 4], [0.7, 0.8], capacity=5, paused=1)
        view = context.gpu_view
        assert view.temperature.tolist() == [as_float32(0.5), as_float32(0.6), 1.0, 1.0, 1.0]
        assert view.top_k.tolist() == [3, 4, 0, 0, 0]
        assert view.top_p.tolist() == [as_float32(0.7), as_float32(0.8), 0.0, 0.0, 0.0]
        assert context.total_request_count == 3
        assert context.paused_request_count == 1
        assert [len(context.active_request_metadata[name]) >= 2 for name in NAMES] == [True] * 3

    @pytest.mark.parametrize("capacity", [2, 3, 8, 101])
    def test_views_share_one_buffer_without_overlap(self, capacity: int) -> None:
        """One coalesced copy a step means one buffer; R02: int32 k next to what is read as int64."""
        view = SamplingContext(**GOOD, capacity=capacity).gpu_view
        tensors: list[Tensor] = [view.temperature, view.top_k, view.top_p]
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == 1
        spans = sorted((t.data_ptr(), t.data_ptr() + 4 * capacity) for t in tensors)
        assert all(t.is_contiguous() and t.shape == (capacity,) for t in tensors)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    def test_update_keeps_the_device_memory(self) -> None:
        """A captured CUDA graph reads the addresses that it saw."""
        context = SamplingContext(**GOOD, capacity=3)
        addresses = [getattr(context.gpu_view, name).data_ptr() for name in NAMES]
        context.update([0.25, 2.0, 0.0], [9, 8, 7], [0.5, 1.0, 0.25], paused=4)
        assert [getattr(context.gpu_view, name).data_ptr() for name in NAMES] == addresses
        assert context.gpu_view.temperature.tolist() == [0.25, 2.0, 0.0]
        assert context.gpu_view.top_k.tolist() == [9, 8, 7]
        assert context.gpu_view.top_p.tolist() == [0.5, 1.0, 0.25]
        assert (context.total_request_count, context.paused_request_count) == (7, 4)

    def test_update_to_fewer_requests_switches_the_rest_off(self) -> None:
        """R09, R17: what a finished request leaves behind must not rule a padding slot."""
        context = SamplingContext([0.0, 0.0, 0.0], [5, 5, 5], [0.5, 0.5, 0.5])
        context.update([0.5], [2], [0.25])
        assert context.gpu_view.temperature.tolist() == [0.5, 1.0, 1.0]
        assert context.gpu_view.top_k.tolist() == [2, 0, 0]
        assert context.gpu_view.top_p.tolist() == [0.25, 0.0, 0.0]
        assert context.total_request_count == 1

    def test_the_metadata_of_the_last_step_is_not_overwritten(self) -> None:
        """The last step's copy to the device may still be reading it."""
        context = SamplingContext([0.5], [2], [0.25])
        last = context.active_request_metadata["temperature"]
        context.update([0.75], [3], [0.5])
        assert last.tolist() == [0.5]
        assert context.active_request_metadata["temperature"].tolist() == [0.75]

    def test_facts_follow_an_update(self) -> None:
        """K11: one component's view of "nothing filters" outlived the batch that it was true for."""
        context = SamplingContext([1.0], [0], [0.0])
        assert filter_flags(context) == {"no_top_k": True, "no_top_p": True}
        context.update([1.0], [5], [0.5])
        assert filter_flags(context) == {"no_top_k": False, "no_top_p": False}
        assert filter_flags(context, 5) == {"no_top_k": True, "no_top_p": False}


V = 100
FLAGS = {
    # (T, k, p) a request -> no_top_k and no_top_p with and without vocab_size = 100, all_greedy, any_uses_both.
    "nothing": ([(1.0, 0, 0.0)], (True, True), (True, True), False, False),
    "p1-is-off": ([(1.0, 0, 1.0)], (True, True), (True, True), False, False),
    "p-one-ulp-below-1-is-on": ([(1.0, 0, 1 - 2.0**-24)], (True, False), (True, False), False, False),
    "N18-tiny-p-is-on": ([(1.0, 0, 1e-45)], (True, False), (True, False), False, False),
    "k-below-V": ([(1.0, 99, 0.0)], (False, True), (False, True), False, False),
    "k-equal-to-V": ([(1.0, 100, 0.0)], (True, True), (False, True), False, False),
    "K05-k-above-V": ([(1.0, 2**30, 0.0)], (True, True), (False, True), False, False),
    "p-only": ([(1.0, 0, 0.5)], (True, False), (True, False), False, False),
    "both-on-one": ([(1.0, 5, 0.5)], (False, False), (False, False), False, True),
    "both-on-two": ([(1.0, 5, 0.0), (1.0, 0, 0.5)], (False, False), (False, False), False, False),
    "K08-one-of-four": (
        [(1.0, 0, 0.0), (1.0, 3, 0.0), *[(1.0, 0, 0.0)] * 2],
        (False, True),
        (False, True),
        False,
        False,
    ),
    "k-at-V-with-p": ([(1.0, 100, 0.5)], (True, False), (False, False), False, False),
    "greedy-by-T": ([(0.0, 0, 0.0)], (True, True), (True, True), True, False),
    "greedy-by-k": ([(1.0, 1, 0.0)], (False, True), (False, True), True, False),
    "greedy-with-both": ([(0.0, 5, 0.5), (1.0, 5, 0.0)], (False, False), (False, False), False, False),
    "greedy-k1-with-p": ([(1.0, 1, 0.5), (1.0, 0, 0.0)], (False, False), (False, False), False, False),
    "all-greedy-both-ways": (
        [(0.0, 0, 0.9), (2.0, 1, 0.0), (0.0, 7, 0.0)],
        (False, False),
        (False, False),
        True,
        False,
    ),
    "C10-mixed": ([(0.0, 0, 0.0), (0.8, 0, 0.0)], (True, True), (True, True), False, False),
}


@pytest.mark.parametrize("requests, with_v, without_v, all_greedy, uses_both", FLAGS.values(), ids=FLAGS)  # noqa: PT006
@pytest.mark.parametrize("kind", ["SamplingContext", "engine"])
def test_flags_and_facts(
    kind: str,
    requests: list[tuple[float, int, float]],
    with_v: tuple[bool, bool],
    without_v: tuple[bool, bool],
    all_greedy: bool,  # noqa: FBT001  # a column of the table
    uses_both: bool,  # noqa: FBT001  # likewise
) -> None:
    """A flag that promises too much drops a filter: K08, K11. One that promises too little only costs time."""
    temperature, top_k, top_p = (list(values) for values in zip(*requests, strict=True))
    make: Any = SamplingContext if kind == "SamplingContext" else engine_context
    context = make(temperature, top_k, top_p)
    assert filter_flags(context, V) == {"no_top_k": with_v[0], "no_top_p": with_v[1]}
    assert filter_flags(context) == {"no_top_k": without_v[0], "no_top_p": without_v[1]}
    facts = batch_facts(context, V)
    assert facts is not None
    assert facts.all_greedy == all_greedy
    # Only where k >= V counts as unused does "uses both" have its right answer.
    assert facts.any_uses_both == uses_both


class TestDuckTyped:
    def test_the_device_view_alone_promises_nothing(self) -> None:
        context = ViewOnlyContext(engine_context([1.0], [0], [0.0]).gpu_view)
        assert filter_flags(context) == {"no_top_k": False, "no_top_p": False}
        assert batch_facts(context, V) is None

    def test_metadata_without_counts_promises_nothing(self) -> None:
        """Without a count nobody knows which entries mean anything."""
        engine = engine_context([1.0], [0], [0.0])
        context = SimpleNamespace(
            gpu_view=engine.gpu_view, active_request_metadata=engine.active_request_metadata, total_request_count=None
        )
        assert filter_flags(context) == {"no_top_k": False, "no_top_p": False}

    def test_the_flags_come_from_the_metadata_not_the_device(self) -> None:
        """Reading the device view would cost a synchronisation a step (F02): here it says something else."""
        context = engine_context([1.0, 1.0], [5, 0], [0.0, 0.5])
        context.gpu_view.top_k.zero_()
        context.gpu_view.top_p.zero_()
        assert filter_flags(context) == {"no_top_k": False, "no_top_p": False}

    @pytest.mark.parametrize(("total", "paused"), [(3, 0), (1, 2), (100, 0)])
    def test_counts_that_cannot_be_are_reported(self, total: int, paused: int) -> None:
        context = engine_context([1.0, 1.0], [0, 0], [0.0, 0.0], paused=0)
        for name, values in context.active_request_metadata.items():
            context.active_request_metadata[name] = values[:2]
        context.total_request_count, context.paused_request_count = total, paused
        with pytest.raises(ValueError, match=rf"active_request_metadata.* {total - paused} active requests"):
            filter_flags(context)
