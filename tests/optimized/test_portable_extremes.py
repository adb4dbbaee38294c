"""The portable kernels at the ends of what float32, T, k and u can be, among batchmates that decide the route."""

from __future__ import annotations

import math

import pytest
import torch

from optimized import FlashInferSampling
from reference import FilterFlags, SamplingContext
from tests.optimized.test_flashinfer_sampling_cpu import cdf_error
from tests.reference.helpers import DTYPES, generator, row
from tests.reference.naive import naive_log_softmax

OFF: FilterFlags = {"no_top_k": False, "no_top_p": False}


@pytest.mark.parametrize("temperature", [1e-12, 1e-6, 1e-4])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_c07_c09_tiny_temperatures_give_the_maximum(dtype: torch.dtype, temperature: float) -> None:
    """C07, C09: z / T overflowed, and softmax gave NaN and token 0."""
    z = row([11.0625, 40.0, 39.0, -math.inf], dtype)
    context = SamplingContext([temperature], [0], [0.0])
    sampler = FlashInferSampling(4, generator())
    assert [sampler.sample_kernel(z, 1, context, **OFF).item() for _ in range(10)] == [1] * 10
    assert sampler.log_probs_kernel(z, context)[0, 1].item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("mate", [(1.0, 0, 0.0), (1.0, 2, 0.0), (1.0, 0, 0.5), (1.0, 2, 0.5)])
def test_c08_quotients_beyond_float32_give_the_maximum(mate: tuple[float, int, float], dtype: torch.dtype) -> None:
    """C08: 2e34 / 1e-5 is infinite in float32, and inf - inf NaN. The difference of the logits is not."""
    z = torch.tensor([[1e34, 2e34, -3e38], [0.0, 1.0, 2.0]], dtype=dtype)
    context = SamplingContext([1e-5, mate[0]], [0, mate[1]], [0.0, mate[2]])
    sampler = FlashInferSampling(3, generator())
    assert [sampler.sample_kernel(z, 2, context, **OFF)[0].item() for _ in range(10)] == [1] * 10
    assert sampler.log_probs_kernel(z, context)[0].tolist() == [-math.inf, 0.0, -math.inf]


@pytest.mark.parametrize("top_k", [4, 5, 2**30, 2**31 - 1])
@pytest.mark.parametrize("mate", [(1.0, 2, 0.0), (1.0, 2, 0.5), (1.0, 0, 0.5)])
def test_k05_k_at_or_above_v_beside_a_filtered_row(mate: tuple[float, int, float], top_k: int) -> None:
    """K04 to K06: a k above V read past the row; alone it never reaches a top-k kernel, here it does."""
    z = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]
    context = SamplingContext([1.0, mate[0]], [top_k, mate[1]], [0.0, mate[2]])
    logits = torch.tensor([z, z])
    sampler = FlashInferSampling(4, generator(3))
    seen = {sampler.sample_kernel(logits, 2, context, **OFF)[0].item() for _ in range(200)}
    assert seen == {0, 1, 2, 3}  # 0.1 is missed 200 times with probability 7e-10
    found = sampler.log_probs_kernel(logits, context)[0].tolist()
    assert found == pytest.approx(naive_log_softmax(logits[0].tolist()), rel=2.0**-23, abs=cdf_error(logits, [1.0]))


@pytest.mark.parametrize("mate", [(1.0, 0, 0.0), (1.0, 2, 0.0), (1.0, 0, 0.5), (1.0, 2, 0.5)])
@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (1 - 2.0**-53, 2)], ids=["u0", "u-max"])
def test_s07_no_token_without_mass_at_either_end_of_u(
    monkeypatch: pytest.MonkeyPatch, u: float, token: int, mate: tuple[float, int, float]
) -> None:
    """S07, M05: at u = 0 a masked first token reaches the threshold 0; at the largest u a masked last one may."""
    sampler = FlashInferSampling(4, generator())
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), u, dtype=torch.float64))
    z = torch.tensor([[-math.inf, 1.0, 1.0, -math.inf], [0.0, 1.0, 2.0, 3.0]])
    context = SamplingContext([1.0, mate[0]], [0, mate[1]], [0.0, mate[2]])
    assert sampler.sample_kernel(z, 2, context, **OFF)[0].item() == token


@pytest.mark.parametrize(
    ("z", "token"),
    [
        pytest.param([1.0, 5.0, 5.0, 0.0], 1, id="T08-tied-maxima"),
        pytest.param([-0.0, 0.0, -1.0, 0.0], 0, id="minus-zero"),
        pytest.param([0.5, 0.5 + 2.0**-24, 0.0, 0.25], 1, id="one-ulp-apart"),
        pytest.param([-math.inf, -3.0, -2.0, -math.inf], 2, id="C10-masked"),
    ],
)
@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (1.0, 1), (1e-6, 1), (3e38, 1)])
@pytest.mark.parametrize("mate", [(0.0, 0, 0.0), (1.0, 0, 0.0), (1.0, 2, 0.0), (1.0, 0, 0.5), (1.0, 2, 0.5)])
def test_greedy_rows_are_the_lowest_maximum_on_every_route(
    z: list[float], token: int, temperature: float, top_k: int, mate: tuple[float, int, float]
) -> None:
    """T05 to T08, C11: a greedy row among others was only nearly greedy. The batchmate decides the route."""
    context = SamplingContext([temperature, mate[0]], [top_k, mate[1]], [0.0, mate[2]])
    logits = torch.tensor([z, [1.0, 2.0, 3.0, 4.0]])
    sampler = FlashInferSampling(4, generator(3))
    assert [sampler.sample_kernel(logits, 2, context, **OFF)[0].item() for _ in range(10)] == [token] * 10
    log_probs = sampler.log_probs_kernel(logits, context)[0].tolist()
    assert log_probs == [0.0 if j == token else -math.inf for j in range(4)]


def test_k11_unfiltered_rows_have_one_law_among_filtered_and_unfiltered_batchmates() -> None:
    """K11: p = 1 dropped the tail of a row as soon as a batchmate used p. N22: a sum that never reaches p."""
    z = torch.linspace(0, -60, 4096)
    z[0] = 12.0
    for mate in ((1.0, 0, 0.0), (1.0, 7, 0.0), (1.0, 0, 0.9), (1.0, 7, 0.9)):
        context = SamplingContext([1.0, mate[0]], [0, mate[1]], [1.0, mate[2]])
        found = FlashInferSampling(4096, generator()).log_probs_kernel(z.repeat(2, 1), context)
        expected = naive_log_softmax(z.tolist())
        error = cdf_error(z[None], [1.0])
        assert found[0].tolist() == pytest.approx(expected, rel=2.0**-23, abs=error), mate
