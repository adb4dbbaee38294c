"""FlashInferSampling on a CPU: the dispatcher that drives FlashInfer's kernels on a GPU, around the portable ones."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optimized import FlashInferSampling
from optimized.kernels.portable import PortableKernels
from reference import FilterFlags, SamplingContext
from tests.reference.engine_context import ViewOnlyContext
from tests.reference.helpers import DTYPES, bits, copy_of, generator, state
from tests.reference.naive import naive_law

OFF: FilterFlags = {"no_top_k": False, "no_top_p": False}
V = 50

BATCHES: dict[str, list[tuple[float, int, float]]] = {
    # The requests of a batch: (T, k, p). One batch a route.
    "greedy": [(0.0, 0, 0.9), (1.0, 1, 0.0), (0.0, 7, 0.5)],
    "unfiltered": [(1.0, 0, 0.0), (0.7, 0, 1.0), (0.0, 0, 0.0)],
    "top-p": [(1.0, 0, 0.8), (0.7, 0, 0.3), (0.0, 0, 0.0)],
    "top-k": [(1.0, 5, 0.0), (1.7, 20, 1.0), (0.0, 0, 0.0)],
    "either": [(1.0, 5, 0.0), (1.7, 0, 0.6), (0.0, 4, 0.9)],
    "both": [(1.0, 9, 0.7), (1.7, 0, 0.6), (0.0, 4, 0.9)],
}
KERNELS = {
    "greedy": ["argmax"],
    "unfiltered": ["probabilities", "draw"],
    "top-p": ["probabilities", "draw_top_p"],
    "top-k": ["probabilities", "draw_top_k"],
    "either": ["probabilities", "draw_joint"],
    "both": ["probabilities", "keep_top_k", "draw_top_p"],
}
LOG_KERNELS = {
    "greedy": ["probabilities", "keep_top_k", "keep_top_p", "log_filtered"],
    "unfiltered": ["log_probabilities"],
    "top-p": ["probabilities", "keep_top_p", "log_filtered"],
    "top-k": ["probabilities", "keep_top_k", "log_filtered"],
    "either": ["probabilities", "keep_top_k", "keep_top_p", "log_filtered"],
    "both": ["probabilities", "keep_top_k", "keep_top_p", "log_filtered"],
}
every_batch = pytest.mark.parametrize("batch", BATCHES)


def context_of(batch: str, repeat: int = 1) -> SamplingContext:
    temperature, top_k, top_p = zip(*(BATCHES[batch] * repeat), strict=True)
    return SamplingContext(temperature, top_k, top_p)


class Recording:
    """Kernels that note what the dispatcher asks them for."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.kernels, name)
        if not callable(inner):
            return inner

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return inner(*args, **kwargs)

        return recorded


def recorded_sampler() -> tuple[FlashInferSampling, Recording]:
    sampler = FlashInferSampling(V, generator(1))
    recording = Recording(sampler._kernels)
    sampler._kernels = recording
    return sampler, recording


def drawing(calls: list[str]) -> list[str]:
    """Without the calls that only hand out random numbers."""
    return [name for name in calls if name != "part"]


class TestKernels:
    @every_batch
    def test_each_route_calls_its_kernels_and_no_others(self, batch: str) -> None:
        """F01, U01: every branch is called once here, so that none hides a type error or a slow detour."""
        sampler, recording = recorded_sampler()
        sampler.sample_kernel(torch.randn(3, V, generator=generator(2)), 3, context_of(batch), **OFF)
        assert drawing(recording.calls) == ["reserve", *KERNELS[batch]]

    @every_batch
    def test_log_probs_call_the_kernels_of_their_filters(self, batch: str) -> None:
        """K11: the wrong filter kernel was used for log-probs when nothing filters. Nothing is drawn."""
        sampler, recording = recorded_sampler()
        sampler.log_probs_kernel(torch.randn(3, V, generator=generator(2)), context_of(batch))
        assert recording.calls == LOG_KERNELS[batch]

    @every_batch
    def test_without_metadata_every_filter_is_applied(self, batch: str) -> None:
        sampler, recording = recorded_sampler()
        context = ViewOnlyContext(context_of(batch).gpu_view)  # type: ignore[arg-type]
        sampler.sample_kernel(torch.randn(3, V, generator=generator(2)), 3, context, **OFF)
        assert drawing(recording.calls) == ["reserve", *KERNELS["both"]]

    def test_a_promise_is_used_where_there_is_no_metadata(self) -> None:
        sampler, recording = recorded_sampler()
        context = ViewOnlyContext(context_of("top-p").gpu_view)  # type: ignore[arg-type]
        sampler.sample_kernel(torch.zeros(3, V), 3, context, no_top_k=True, no_top_p=False)
        assert drawing(recording.calls) == ["reserve", *KERNELS["top-p"]]

    def test_n_0_calls_nothing(self) -> None:
        sampler, recording = recorded_sampler()
        before = state(sampler.rng)
        assert sampler.sample_kernel(torch.zeros(3, V), 0, context_of("both"), **OFF).shape == (0,)
        assert sampler.log_probs_kernel(torch.zeros(0, V), SamplingContext([], [], [])).shape == (0, V)
        assert recording.calls == []
        assert state(sampler.rng) == before


def near_cdf(probs: list[float], token: int, u: float, slack: float) -> bool:
    """Whether inverse CDF at u, up to `slack`, gives the token."""
    low = math.fsum(probs[:token])
    return probs[token] > 0 and low - slack <= u <= low + probs[token] + slack


def cdf_error(z: Tensor, temperatures: list[float]) -> float:
    """How far a float32 softmax, filtered and renormalised twice, may move a point of the CDF.

    Exponents: (z - max) / T, two roundings of at most the largest gap G, so a mass is off by 2 G 2^-24 of itself; the
    exponential and its division add 8. Each of three normalisations divides by a float32 sum of W terms, added in at
    most log2(W) + 16 steps (torch sums in blocks), and rounds once. The running sum is float64.
    """
    gap = float((z.max() - z[z > -math.inf].min()) / min(t for t in temperatures if t > 0))
    return (2 * gap + 8 + 3 * (math.log2(z.shape[1]) + 17)) * 2.0**-24


class TestLaw:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @every_batch
    def test_each_token_is_the_one_its_number_points_to(self, batch: str, dtype: torch.dtype) -> None:
        """N01 to N18, O01, C01 at once: a filter that is wrong by one token moves the CDF by that token's mass.

        Every draw is compared with the naive law, by the uniform number that the kernels took from the generator.
        """
        rng = generator(11)
        sampler = FlashInferSampling(V, rng)
        context = context_of(batch)
        z = (torch.randn(3, V, generator=generator(4)) * 2).to(dtype)
        slack = cdf_error(z.float(), context.gpu_view.temperature.tolist())
        laws = []
        for i in range(3):
            parameters = [x[i].item() for x in vars(context.gpu_view).values()]
            law = naive_law(z[i].tolist(), parameters[0], int(parameters[1]), parameters[2], V)
            assert law is not None
            assert law.margin > slack  # the nucleus of these rows is beyond doubt
            laws.append(law)
        for _ in range(50):
            numbers = torch.rand(3, generator=copy_of(rng), dtype=torch.float64).tolist()
            tokens = sampler.sample_kernel(z, 3, context, **OFF).tolist()
            for law, token, u in zip(laws, tokens, numbers, strict=True):
                assert near_cdf(law.probs, token, u, slack)

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @every_batch
    def test_log_probs_are_those_of_the_law(self, batch: str, dtype: torch.dtype) -> None:
        """P08: the reported support must be the one drawn from, and each value its log."""
        context = context_of(batch)
        z = (torch.randn(3, V, generator=generator(4)) * 2).to(dtype)
        found = FlashInferSampling(V, generator()).log_probs_kernel(z, context)
        assert found.dtype == torch.float32
        error = cdf_error(z.float(), context.gpu_view.temperature.tolist())
        for i in range(3):
            parameters = [x[i].item() for x in vars(context.gpu_view).values()]
            law = naive_law(z[i].tolist(), parameters[0], int(parameters[1]), parameters[2], V)
            assert law is not None
            expected = [math.log(p) if p > 0 else -math.inf for p in law.probs]
            # The relative error of a mass is the absolute one of its log; the logarithm itself is rounded once.
            assert found[i].tolist() == pytest.approx(expected, rel=2.0**-23, abs=error)


class TestGenerator:
    @pytest.mark.parametrize("n", [1, 3, 17, 100])
    def test_how_far_it_moves_depends_on_n_alone(self, n: int) -> None:
        """G16: content, route or parts must not shift the stream of later steps; an all-greedy step counts too."""
        z = torch.randn(n, V, generator=generator(2))
        ends = set()
        for batch in BATCHES:
            for logits in (z, z.bfloat16(), z * math.nan, torch.cat([z, z], 1)):
                rng = generator(8)
                index = torch.arange(n) % 3
                sampler = FlashInferSampling(V, rng)
                sampler.sample_kernel(logits, n, context_of(batch), **OFF, token_to_request_index=index)
                ends.add(state(rng))
        assert len(ends) == 1
        assert ends != {state(generator(8))}

    def test_default_generators_stay_where_they_are(self) -> None:
        before = bits(torch.get_rng_state())
        sampler = FlashInferSampling(V, generator(1))
        z = torch.randn(3, V, generator=generator(2))
        for batch in BATCHES:
            sampler.sample_kernel(z, 3, context_of(batch), **OFF)
            sampler.log_probs_kernel(z, context_of(batch))
        assert bits(torch.get_rng_state()) == before

    @pytest.mark.parametrize("batch", [b for b in BATCHES if b != "greedy"])
    def test_rows_and_steps_differ_and_runs_repeat(self, batch: str) -> None:
        """G01, G03, G06, G07: 30 equal slots, two steps, two runs."""
        z = torch.zeros(30, V)
        runs = []
        for _ in range(2):
            sampler = FlashInferSampling(V, generator(5))
            request = torch.zeros(30, dtype=torch.int64)
            steps = [
                sampler.sample_kernel(z, 30, context_of(batch), **OFF, token_to_request_index=request).tolist()
                for _ in range(2)
            ]
            runs.append(steps)
        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1]
        # A tie of all 50 tokens is kept whole: 30 draws from 50 hit fewer than 10 ids with probability below 1e-12.
        assert len(set(runs[0][0])) >= 10


class TestParts:
    @every_batch
    @pytest.mark.parametrize("rows", [1, 7])
    def test_a_call_in_parts_gives_the_same_tokens(
        self, monkeypatch: pytest.MonkeyPatch, batch: str, rows: int
    ) -> None:
        """S06: large launches are cut so that 32-bit row offsets never wrap; a cut must not show."""
        n = 20
        z = torch.randn(n, V, generator=generator(2))
        context = context_of(batch, repeat=7)
        gather, request = torch.arange(n).flip(0), torch.arange(n) % 21

        def results() -> list[bytes]:
            calls: list[Callable[[FlashInferSampling], Tensor]] = [
                lambda s: s.sample_kernel(z, n, context, **OFF),
                lambda s: s.sample_kernel(z, n, context, **OFF, gather_indices=gather),
                lambda s: s.sample_kernel(z, n, context, **OFF, token_to_request_index=request),
                lambda s: s.sample_kernel(z, n, context, **OFF, gather_indices=gather, token_to_request_index=request),
                lambda s: s.log_probs_kernel(z, context),
                lambda s: s.log_probs_kernel(z, context, token_to_request_index=request.flip(0)),
            ]
            return [bits(call(FlashInferSampling(V, generator(6)))) for call in calls]

        whole = results()
        monkeypatch.setattr(PortableKernels, "max_elements", rows * V + V - 1)
        assert results() == whole

    def test_parts_never_exceed_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PortableKernels, "max_elements", 7 * V)
        sizes = []
        real = PortableKernels.probabilities

        def measured(self: PortableKernels, slots: Any) -> Any:
            sizes.append(slots.n)
            return real(self, slots)

        monkeypatch.setattr(PortableKernels, "probabilities", measured)
        FlashInferSampling(V, generator()).sample_kernel(torch.zeros(20, V), 20, context_of("top-p", 7), **OFF)
        assert sizes == [7, 7, 6]


class TestMemory:
    @every_batch
    @pytest.mark.parametrize("step", [1, 3], ids=["dense", "strided"])
    def test_output_is_the_callers_and_nothing_around_it(self, batch: str, step: int) -> None:
        """R17, U03: placeholders left in the output, or writes beyond n."""
        buffer = torch.full((40,), -99, dtype=torch.int64)
        output = buffer[7 : 7 + 3 * step : step]
        z = torch.randn(5, V, generator=generator(1))
        expected = FlashInferSampling(V, generator(2)).sample_kernel(z, 3, context_of(batch), **OFF)
        assert (
            FlashInferSampling(V, generator(2)).sample_kernel(z, 3, context_of(batch), **OFF, output=output) is output
        )
        assert torch.equal(output, expected)
        assert all(buffer[i] == -99 for i in set(range(40)) - set(range(7, 7 + 3 * step, step)))

    @every_batch
    def test_strided_and_wide_logits(self, batch: str) -> None:
        """R14: the row stride taken for the width. M01, M03: padding with the largest values, or NaN, on each route."""
        z = torch.randn(3, V, generator=generator(1)) - 8  # M01: all real logits are negative
        expected = FlashInferSampling(V, generator(2)).sample_kernel(z, 3, context_of(batch), **OFF)
        log_probs = FlashInferSampling(V, generator(2)).log_probs_kernel(z, context_of(batch))
        for pad in (0.0, 99.0, math.nan, math.inf):
            wide = torch.cat([z, torch.full((3, 7), pad)], 1)
            for view in (wide, wide[:, :V], wide.t().contiguous().t(), wide.repeat_interleave(2, 1)[:, ::2]):
                before = bits(view)
                sampler = FlashInferSampling(V, generator(2))
                assert torch.equal(sampler.sample_kernel(view, 3, context_of(batch), **OFF), expected)
                found = sampler.log_probs_kernel(view, context_of(batch))
                assert found.shape == view.shape
                assert bits(found[:, :V]) == bits(log_probs)
                assert (found[:, V:] == -math.inf).all()
                assert bits(view) == before

    @every_batch
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "all-masked"])
    def test_an_invalid_row_disturbs_nobody(self, batch: str, bad: float) -> None:
        """M07, M08: id in range and NaN log-probs for the row; the same as ever for its neighbours."""
        z = torch.randn(3, V, generator=generator(1))
        expected = FlashInferSampling(V, generator(2)).sample_kernel(z, 3, context_of(batch), **OFF).tolist()
        log_probs = FlashInferSampling(V, generator(2)).log_probs_kernel(z, context_of(batch))
        if math.isnan(bad):
            z[1, 17] = bad
        else:
            z[1] = bad
        sampler = FlashInferSampling(V, generator(2))
        tokens = sampler.sample_kernel(z, 3, context_of(batch), **OFF).tolist()
        assert 0 <= tokens[1] < V
        assert (tokens[0], tokens[2]) == (expected[0], expected[2])
        found = sampler.log_probs_kernel(z, context_of(batch))
        assert found[1].isnan().all()
        assert bits(found[::2]) == bits(log_probs[::2])


@pytest.mark.parametrize("flag", [True, 1])
def test_cuda_graphs_are_refused_on_a_cpu(flag: Any) -> None:
    """A flag that is taken and does nothing: the engine would capture a call that cannot be captured."""
    with pytest.raises(ValueError, match=r"enable_cuda_graph must be False with an rng on cpu, got "):
        FlashInferSampling(V, generator(), enable_cuda_graph=flag)
    with pytest.raises(ValueError, match=r"enable_cuda_graph"):
        FlashInferSampling(V, generator(), None, flag)


def test_config_is_kept_and_not_read() -> None:
    class Unreadable:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    config = Unreadable()
    sampler = FlashInferSampling(V, generator(), config)
    sampler.sample_kernel(torch.zeros(3, V), 3, context_of("both"), **OFF)
    assert sampler.config is config


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="FlashInfer is installed here")
def test_without_flashinfer_the_cuda_kernels_say_what_to_install() -> None:
    """No silent fallback: on a CUDA device this import is the first thing that the constructor does."""
    with pytest.raises(ImportError, match=r"pip install 'sampling-conformance\[flashinfer\]'"):
        importlib.import_module("optimized.kernels.flashinfer")
