"""Workloads: ids say all of them and nothing else, parameters are in the contract's range, logits are what they say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.cases import DTYPES
from conformance.measure import OPTIONS, Workload
from conformance.measure.workload import LOGITS, TEMPERATURE, make_logits

QUIET = settings(deadline=None, derandomize=True, database=None, max_examples=100)
CPU = torch.device("cpu")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any workload that an id can ask for."""
    vocab_size = draw(st.integers(1, 300_000))
    probability = st.floats(0, 1, exclude_min=True, exclude_max=True, allow_subnormal=False)
    made = Workload(
        n=draw(st.integers(1, 300)),
        vocab_size=vocab_size,
        dtype=draw(st.sampled_from(["fp32", "fp16", "bf16"])),
        top_k=draw(st.just(0) | st.integers(1, vocab_size)),
        # As people write them, and as they come out of a computation.
        top_p=draw(st.just(0.0) | st.integers(1, 999).map(lambda tick: tick / 1000) | probability),
        options=draw(st.frozensets(st.sampled_from(sorted(OPTIONS)), max_size=4)),
    )
    while not made.possible:  # the filters are what options need; without options all go together
        made = Workload(made.n, vocab_size, made.dtype, made.top_k, made.top_p, frozenset(sorted(made.options)[1:]))
    return made


@QUIET
@given(workloads())
@example(Workload(1, 10, "fp32", 0, 1e-5))
@example(Workload(1, 10, "fp32", 0, 0.1234567))
def test_an_id_says_all_of_a_workload(workload: Workload) -> None:
    assert Workload.of(workload.id) == workload


@QUIET
@given(workloads())
@example(Workload(64, 1000, "fp32", 0, 0.05, frozenset({"varied"})))
def test_parameters_are_in_range_and_on_where_the_filters_are(workload: Workload) -> None:
    temperature, top_k, top_p = workload.parameters()
    assert len(temperature) == len(top_k) == len(top_p) == workload.n
    assert all(0 < t <= 1 for t in temperature if t)
    assert all(0 <= k <= workload.vocab_size for k in top_k)
    assert all(0 <= p < 1 for p in top_p)
    some_rows = workload.options & {"mixed", "onerow"}
    assert [k > 0 for k in top_k].count(True) in ({0, 1, -(-workload.n // 2)} if some_rows else {0, workload.n})
    if not some_rows:
        assert all(top_k) == bool(workload.top_k)
        assert all(top_p) == bool(workload.top_p)
    assert temperature.count(0.0) == ("greedyrow" in workload.options)


def test_the_id_is_readable() -> None:
    workload = Workload(64, 128_256, "bf16", 50, 0.9, frozenset({"mixed", "gather", "ties"}))
    assert workload.id == "n64-V128256-bf16-topk50-topp0.9-gather-mixed-ties"
    assert Workload(1, 10, "fp32").id == "n1-V10-fp32-none"


@pytest.mark.parametrize(
    ("id", "would_be"),
    [
        ("n8-V1000-fp32-topk05", "topk5"),
        ("n8-V1000-fp32-topp0.90", "topp0.9"),
        ("n8-V1000-fp32-topp.9", "topp0.9"),
        ("n8-V1000-fp32-topk0", "fp32-none"),
        ("n8-V1000-fp32-topp0", "fp32-none"),
        ("n8-V1000-fp32-", "fp32-none"),
        ("n8-V1000-fp32-none-topp0.9", "fp32-topp0.9"),
        ("n8-V1000-fp32-topk5topp0.9", "topk5-topp0.9"),
        ("n8-V1000-fp32-none-ties-gather", "none-gather-ties"),
        ("n8-V1000-fp32-none-gather-gather", "none-gather"),
    ],
)
def test_a_second_name_of_a_workload_is_refused_with_the_first(id: str, would_be: str) -> None:  # noqa: A002  # as in `of`
    with pytest.raises(ValueError, match="it would be") as error:
        Workload.of(id)
    suggested = str(error.value).rpartition("it would be ")[2].strip("'")
    assert repr(id) in str(error.value)
    assert suggested.endswith(would_be)
    assert Workload.of(suggested).id == suggested


@pytest.mark.parametrize(
    "id",
    [
        "",
        "n8",
        "n0-V1000-fp32-none",
        "n08-V1000-fp32-none",
        "n8-V0-fp32-none",
        "n-8-V1000-fp32-none",
        "n8-V1000-fp64-none",
        "n8-V1000-none",
        "n8-V1000-fp32",
        "n8-V1000-fp32-topk",
        "n8-V1000-fp32-topk-5",
        "n8-V1000-fp32-topk5.5",
        "n8-V1000-fp32-topp",
        "n8-V1000-fp32-topp1e-3",
        "n8-V1000-fp32-topp0.9-topk5",
        "n8-V1000-fp32-none-peaked",
        "n8-V1000-fp32-none-greedy",
        "n8-V1000-fp32-none-",
        "n8-V1000-fp32-none\n",
        " n8-V1000-fp32-none",
        "N8-v1000-FP32-NONE",
    ],
)
def test_what_is_no_id_is_refused_with_the_form_and_the_options(id: str) -> None:  # noqa: A002  # as in `of`
    with pytest.raises(ValueError, match="n<slots>-V<vocabulary>") as error:
        Workload.of(id)
    assert repr(id) in str(error.value)
    assert all(option in str(error.value) for option in OPTIONS)


@pytest.mark.parametrize(
    "id",
    [
        "n8-V1000-fp32-topk1001",
        "n8-V1000-fp32-topp1",
        "n8-V1000-fp32-topp1.5",
        "n8-V1000-fp32-none-mixed",
        "n8-V1000-fp32-topk50-mixed",
        "n8-V1000-fp32-topp0.9-mixed",
        "n8-V1000-fp32-none-onerow",
        "n8-V1000-fp32-none-flat-ties",
        "n8-V1000-fp32-none-inf-ties",
        "n8-V1000-fp32-none-gather-logprobs",
        "n8-V1000-fp32-none-logprobs-unpromised",
    ],
)
def test_what_does_not_go_together_is_refused(id: str) -> None:  # noqa: A002  # as in `of`
    with pytest.raises(ValueError, match="case must") as error:
        Workload.of(id)
    assert repr(id) in str(error.value)
    assert "it would be" not in str(error.value)


def parameters(id: str) -> tuple[list[float], list[int], list[float]]:  # noqa: A002  # as in `of`
    return Workload.of(id).parameters()


def test_without_options_all_rows_are_alike() -> None:
    assert parameters("n3-V1000-fp32-topk50-topp0.9") == ([TEMPERATURE] * 3, [50] * 3, [0.9] * 3)


def test_half_of_the_rows_of_mixed_use_one_filter_and_half_the_other() -> None:
    assert parameters("n4-V1000-fp32-topk50-topp0.9-mixed")[1:] == ([50, 0, 50, 0], [0.0, 0.9, 0.0, 0.9])


def test_one_row_of_onerow_filters() -> None:
    assert parameters("n4-V1000-fp32-topk50-topp0.9-onerow")[1:] == ([0, 0, 50, 0], [0.0, 0.0, 0.9, 0.0])
    assert parameters("n1-V1000-fp32-topk50-onerow")[1:] == ([50], [0.0])


def test_one_row_of_greedyrow_is_greedy() -> None:
    temperature, top_k, _ = parameters("n5-V1000-fp32-topk50-greedyrow")
    assert temperature == [TEMPERATURE] * 2 + [0.0] + [TEMPERATURE] * 2
    assert top_k == [50] * 5


def test_nearly_every_row_of_varied_differs_from_every_other() -> None:
    columns = parameters("n64-V1000-fp32-topk50-topp0.9-varied")
    assert len(set(zip(*columns, strict=True))) == 64
    assert [len(set(column)) > 32 for column in columns] == [True] * 3
    temperature, top_k, top_p = columns
    assert 0.6 <= min(temperature) < max(temperature) <= 1.0
    assert 25 <= min(top_k) < max(top_k) <= 75
    assert 0.8 <= min(top_p) < max(top_p) <= 0.9


def test_varied_and_mixed_go_together() -> None:
    _, top_k, top_p = parameters("n8-V1000-fp32-topk50-topp0.9-mixed-varied")
    assert [bool(k) for k in top_k] == [True, False] * 4
    assert [bool(p) for p in top_p] == [False, True] * 4
    assert len(set(top_k)) > 3


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_bytes_that_any_sampler_must_move(dtype: str) -> None:
    if dtype not in {"fp32", "fp16", "bf16"}:
        pytest.skip("no workload has it")
    size = {"fp32": 4}.get(dtype, 2)
    tokens = Workload.of(f"n8-V1000-{dtype}-topk50")
    assert (tokens.read_bytes, tokens.moved_bytes) == (8 * 1000 * size, 8 * 1000 * size + 8 * 8)
    log_probs = Workload.of(f"n8-V1000-{dtype}-topk50-logprobs")
    assert (log_probs.read_bytes, log_probs.moved_bytes) == (8 * 1000 * size, 8 * 1000 * (size + 4))


def test_gathered_rows_are_some_of_more_than_are_read() -> None:
    workload = Workload.of("n8-V1000-fp32-none-gather")
    rows = workload.gather_indices()
    assert rows is not None
    assert rows.dtype == torch.int32
    assert len(set(rows.tolist())) == 8
    assert 0 <= int(rows.min()) <= int(rows.max()) < workload.rows == 32
    assert torch.equal(rows, torch.as_tensor(workload.gather_indices()))
    assert workload.read_bytes == 8 * 1000 * 4
    plain = Workload.of("n8-V1000-fp32-none")
    assert plain.gather_indices() is None
    assert plain.rows == 8


@pytest.mark.parametrize("kind", sorted(LOGITS))
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_logits_are_the_same_each_time_and_never_invalid(kind: str, dtype: str) -> None:
    logits = make_logits(kind, 64, 1003, dtype, CPU)
    assert logits.shape == (64, 1003)
    assert logits.dtype == DTYPES[dtype]
    assert torch.equal(logits, make_logits(kind, 64, 1003, dtype, CPU))
    assert not logits.isnan().any()
    assert (logits < math.inf).all()
    assert logits.amax(1).isfinite().all()
    assert make_logits(kind, 3, 1, dtype, CPU).isfinite().all()


def kinds(*names: str) -> list[Any]:
    """Of logits, [100, 10_000] each, in float64."""
    return [make_logits(name, 100, 10_000, "fp32", CPU).double() for name in names]


def test_peaked_rows_have_a_head_and_flat_ones_none() -> None:
    peaked, flat = kinds("peaked", "flat")
    head = peaked.softmax(1).topk(20, dim=1).values.sum(1)
    assert float(head.median()) > 0.5
    assert float(peaked.median(1).values.abs().max()) < 0.2  # of 10,000 normals of std 2: 8 of its deviations
    assert float(flat.abs().max()) < 0.1 * 6
    assert float(flat.softmax(1).max()) < 2 / 10_000


def test_most_tokens_of_ties_share_their_logit_with_thousands() -> None:
    (ties,) = kinds("ties")
    assert torch.equal(ties, ties.round())
    values, counts = ties.unique(return_counts=True)
    assert len(values) < 50
    assert int(counts[counts > 1000 * 100].sum()) > ties.numel() / 2


def test_nine_tokens_in_ten_of_inf_are_out() -> None:
    (logits,) = kinds("inf")
    assert ((logits == -math.inf).sum(1) == 9000).all()
