"""What only a GPU shows: FlashInfer under the law, its known faults caught, graphs, large calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance import check
from conformance.evidence.counts import matches
from optimized import FlashInferSampling
from reference import ReferenceSampling, SamplingContext, filter_flags, law

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("make_sampler", [FlashInferSampling, ReferenceSampling], ids=["flashinfer", "reference"])
def test_full_tier_is_conformant(make_sampler: Any) -> None:
    report = check(make_sampler, tier="full", device="cuda")
    assert [result.id for result in report.results if result.status == "fail"] == []
    assert report.conformant
    assert report.counts["skip"] == 0


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("sampling_from_logits", "draw/tail/gap16"),
        ("softmax_at_zero", "greedy/temperature-zero/T0-none"),
        ("RenormAtOne", "log-probs/off-filters"),
        ("Waits", "isolation/sync-free"),
        ("BakesNumbers", "graphs/replay-fresh"),
        ("BakesNumbers", "graphs/replay-is-eager"),
        ("BakesTemperature", "graphs/replay-law"),
        # Its noise repeats from row 33,487 on.
        ("sampling_from_logits", "randomness/wide-launch"),
    ],
    ids=lambda value: value.replace("/", "-"),
)
def test_a_broken_sampler_fails_its_clause(name: str, clause: str) -> None:
    from tests.gpu import samplers  # noqa: PLC0415  # needs FlashInfer

    report = check(getattr(samplers, name), tier="full", device="cuda", only=[clause])
    assert report.counts["fail"] > 0
    assert all(result.failed for result in report.results if result.status == "fail")


# The refused call leaves nothing in the graph, of which torch warns.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capture_without_enable_cuda_graph_is_refused() -> None:
    sampler = FlashInferSampling(64, torch.Generator("cuda").manual_seed(0))
    context = SamplingContext([1.0], [0], [0.0], device="cuda")
    logits = torch.zeros(1, 64, device="cuda")
    sampler.sample_kernel(logits, 1, context, **filter_flags(context))
    torch.cuda.synchronize()
    with pytest.raises(ValueError, match="enable_cuda_graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        sampler.sample_kernel(logits, 1, context, **filter_flags(context))


def test_rows_beyond_32_bit_offsets_in_one_call() -> None:
    # 70,000 slots * 128,256 > 2 * 2^32: a kernel that wraps its row offsets reuses numbers or rows.
    width, n = 128_256, 70_000
    sampler = FlashInferSampling(width, torch.Generator("cuda").manual_seed(1))
    context = SamplingContext([1.0], [0], [0.0], device="cuda")
    logits = torch.zeros(1, width, device="cuda")
    zeros = torch.zeros(n, dtype=torch.int32, device="cuda")
    ids = sampler.sample_kernel(
        logits, n, context, **filter_flags(context), gather_indices=zeros, token_to_request_index=zeros
    )
    truth = law(logits, *(torch.tensor([x], device="cuda") for x in (1.0, 0, 0.0)))
    for shift in (1, 2**28 // width, 2**32 // width):
        blocks = ids[: n // (2 * shift) * 2 * shift].view(-1, 2, shift)
        same = int((blocks[:, 0] == blocks[:, 1]).sum())
        evidence = matches([(f"rows i and i + {shift}", same, blocks[:, 0].numel())], truth, 1e-9)
        assert evidence.passed, (shift, evidence)
    # Flat rows: 70,000 draws of 128,256 tokens give 53,946 +- 88 different ones (mean and standard deviation of
    # V * (1 - (1 - 1/V)^n)); reused numbers give fewer.
    assert abs(len(ids.unique()) - 53_946) < 6.2 * 88


def test_another_device_stream_and_dtype_share_no_workspace() -> None:
    # Two streams at once: the workspace of one must not be written by the other.
    width, n = 4096, 64
    context = SamplingContext([0.0] * n, [0] * n, [0.0] * n, device="cuda")
    view_only = type("View", (), {"gpu_view": context.gpu_view})()  # the CPU cannot see that all are greedy
    sampler = FlashInferSampling(width, torch.Generator("cuda").manual_seed(2))
    inputs = [torch.randn(n, width, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    outputs: list[list[torch.Tensor]] = [[], []]
    for _ in range(50):
        for which in (0, 1):
            with torch.cuda.stream(streams[which]):
                outputs[which].append(
                    sampler.sample_kernel(inputs[which], n, view_only, no_top_k=False, no_top_p=False)
                )
    torch.cuda.synchronize()
    for which in (0, 1):
        assert all(torch.equal(ids, inputs[which].argmax(1)) for ids in outputs[which])
