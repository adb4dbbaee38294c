"""What the portable kernels keep lies within the law's band on rows that float32 cannot decide, and is drawn from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from optimized import FlashInferSampling
from reference import SamplingContext
from tests.reference.helpers import DTYPES, generator, law_of
from tests.reference.test_bands import FILTER_IDS, FILTERS, KINDS, outside


def context_of(n: int, temperature: float, top_k: int, top_p: float) -> SamplingContext:
    return SamplingContext([temperature] * n, [top_k] * n, [top_p] * n)


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS, ids=FILTER_IDS)
@pytest.mark.parametrize("kind", KINDS)
def test_kept_sets_lie_inside_the_band(kind: str, top_k: int, top_p: float) -> None:
    """N06, N24: the boundary token was lost on some rows only; P08: log-probs and draws disagreed about it."""
    make, temperature = KINDS[kind]
    for n, width in ((40, 7), (20, 64), (6, 1000), (2, 4096)):
        z = make(n, width)
        sampler = FlashInferSampling(width, generator(width))
        context = context_of(n, temperature, top_k, top_p)
        kept = sampler.log_probs_kernel(z, context) > -math.inf
        assert not outside(kept, law_of(z, temperature, top_k, top_p)).any(), width
        tokens = sampler.sample_kernel(z, n, context, no_top_k=False, no_top_p=False)
        assert kept.gather(1, tokens[:, None]).all(), width


def c01_row(dtype: torch.dtype) -> Tensor:
    """A head of about 0.9 over 131,071 equal tokens of about 0.1 in all."""
    z = torch.zeros(1, 131_072, dtype=dtype)
    z[0, 77] = math.log(9 * 131_071)
    return z


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_c01_the_tail_of_a_large_vocabulary_is_kept_whole(dtype: torch.dtype) -> None:
    """C01: bf16 sums saturate after 256 terms of 2^-17. Equal tokens are kept together, so p = 0.95 keeps all 131,072,
    and each of the tail weighs (1 - head) / 131,071."""
    z = c01_row(dtype)
    found = FlashInferSampling(131_072, generator()).log_probs_kernel(z, context_of(1, 1.0, 0, 0.95))[0]
    head = 1 / (1 + 131_071 * math.exp(-z[0, 77].item()))
    # The exponent of 14 is rounded once, the float32 sum of 131,072 terms adds at most log2(131072) + 16 roundings in
    # each of two normalisations, and a log-prob of 14 is rounded once more: (14 + 2 * 33 + 8 + 14) * 2^-24.
    error = 102 * 2.0**-24
    assert found[77].item() == pytest.approx(math.log(head), abs=error)
    assert found[[0, 1, 76, 78, 131_071]].tolist() == pytest.approx([math.log((1 - head) / 131_071)] * 5, abs=error)
    assert bool((found > -math.inf).all())
    # log-sum-exp is 0: the masses add up to 1 in float64.
    assert found.double().exp().sum().item() == pytest.approx(1.0, abs=error)


def test_c02_temperature_divides_in_float32() -> None:
    """C02: bf16 logits [10, 9.9375] at T = 0.7: 0.5223, and 0.5312 where the division was in bf16."""
    z = torch.tensor([[10.0, 9.9375]], dtype=torch.bfloat16)
    found = FlashInferSampling(2, generator()).log_probs_kernel(z, context_of(1, 0.7, 0, 0.0))
    temperature = float(torch.tensor(0.7))
    # A gap of 0.09 nats rounded twice, exponential, sum, logarithm and result: 8 roundings.
    assert found[0, 0].exp().item() == pytest.approx(1 / (1 + math.exp(-0.0625 / temperature)), rel=8 * 2.0**-24)
