"""The law against a second implementation in plain Python, and against published counts at full size."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference import Law, LawOptions, law
from tests.reference.helpers import DTYPES, bits, ids, law_of
from tests.reference.naive import naive_law

# Both sides divide, subtract and exponentiate in float64. An exponent z / T of up to 400 (|z| <= 40, T >= 0.1) is
# off by 4 * 400 * 2^-53 = 1.8e-13 in the law, once rounded in the oracle; sums of 40 masses add 40 * 2^-53.
RELATIVE = 1e-12
# A top-p edge closer than this can fall either way, for the same reason; such rows are drawn anew.
MARGIN = 1e-12

TIE_RULES = st.sampled_from(["keep-all", "lowest-index", "any"])
OPTIONS = st.builds(
    LawOptions,
    top_k_ties=TIE_RULES,
    top_p_ties=TIE_RULES,
    filter_order=st.sampled_from(["top-k-first", "joint"]),
    top_p_off=st.sampled_from([frozenset({0.0, 1.0}), frozenset({1.0})]),
)
# Rounding to bf16 makes ties, and so do the listed values.
VALUES = st.one_of(
    st.floats(-40, 40, width=32),
    st.sampled_from([-math.inf, -0.0, 0.0, 1.0, 1.0, 2.0, 2.0]),
    st.integers(-3, 3).map(float),
)
ROWS = st.tuples(st.lists(VALUES, min_size=1, max_size=40), st.sampled_from(sorted(DTYPES))).filter(
    lambda x: max(x[0]) > -math.inf
)
PARAMETERS = st.tuples(
    st.one_of(st.floats(0.125, 4, width=32), st.just(1.0), st.just(0.0)),
    st.integers(0, 45),
    st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.5, 0.9, 1.0])),
)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(given_row=ROWS, parameters=PARAMETERS, options=OPTIONS, padding=st.integers(0, 3))
def test_random_rows_have_the_law_of_a_second_implementation(
    given_row: tuple[list[float], str], parameters: tuple[float, int, float], options: LawOptions, padding: int
) -> None:
    """N05: 264 of 300 random rows had another nucleus than the right one."""
    values, dtype = given_row
    temperature, top_k, top_p = parameters
    logits = torch.tensor([values + [50.0] * padding], dtype=DTYPES[dtype])
    expected = naive_law(logits[0].tolist(), temperature, top_k, top_p, len(values), options)
    assert expected is not None
    assume(not 0 < expected.margin < MARGIN)
    found = law_of(logits, temperature, top_k, top_p, len(values), options)
    check_row(found, 0, expected.kept, expected.probs)


def check_row(found: Law, index: int, kept: list[int], probs: list[float]) -> None:
    assert ids(found.probs[index] > 0) == kept
    assert found.probs[index].tolist() == pytest.approx(probs, rel=RELATIVE, abs=0)
    exact, must, may = found.probs[index] > 0, found.must_keep[index], found.may_keep[index]
    assert not (must & ~exact).any()
    assert not (exact & ~may).any()


def random_batch(n: int, width: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = (torch.randn(n, width, generator=rng) * 3).to(dtype)
    logits[::7, ::3] = -math.inf
    logits[3, 5] = math.nan
    temperature = torch.rand(n, generator=rng) * 2 + 0.125
    temperature[::5] = 0.0
    top_k = torch.randint(0, width + 5, (n,), generator=rng, dtype=torch.int32)
    top_k[::4] = 0
    top_p = torch.rand(n, generator=rng)
    top_p[::3] = 0.0
    return logits, temperature, top_k, top_p


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_batch_of_different_rows_has_each_rows_own_law(dtype: torch.dtype) -> None:
    """R06, R07: rows took one another's parameters."""
    logits, temperature, top_k, top_p = random_batch(60, 32, 11, dtype)
    found = law(logits, temperature, top_k, top_p, vocab_size=30)
    compared = 0
    for i in range(60):
        expected = naive_law(logits[i].tolist(), temperature[i].item(), int(top_k[i]), top_p[i].item(), vocab_size=30)
        assert found.valid[i].item() == (expected is not None)
        if expected is not None and not expected.margin < MARGIN:
            check_row(found, i, expected.kept, expected.probs)
            compared += 1
    assert compared >= 58  # row 3 holds a NaN


@pytest.mark.parametrize("elements", [1, 32, 100, 32 * 7], ids=lambda n: f"chunks-of-{n}")
@pytest.mark.parametrize("options", [LawOptions(), LawOptions("any", "any")], ids=["law", "any"])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, options: LawOptions, elements: int) -> None:
    """S06: only the last rows of a large batch were wrong. Here a batch of 60 rows takes several chunks."""
    batch = random_batch(60, 32, 12, torch.bfloat16)
    whole = law(*batch, vocab_size=30, options=options)
    assert len(whole.band) > 0 or options == LawOptions()
    # By name: the attribute `law` of the package is the function, not the module.
    monkeypatch.setattr(importlib.import_module("reference.law"), "_ELEMENTS_PER_CHUNK", elements)
    parts = law(*batch, vocab_size=30, options=options)
    for field in ("probs", "must_keep", "may_keep", "band", "band_mass", "log_error", "valid"):
        assert bits(getattr(parts, field)) == bits(getattr(whole, field)), field


def test_n06_the_nucleus_is_minimal_and_reaches_p_on_many_rows() -> None:
    """N06: a pivot search stopped at a mass of 0.89999 < 0.9 on some rows. 300 rows of V = 500, p = 0.9."""
    rng = torch.Generator().manual_seed(2202)
    logits = torch.randn(300, 500, generator=rng) * 2.5
    p = float(torch.tensor(0.9))
    kept = law_of(logits, 1.0, 0, 0.9).probs > 0
    for z, keep in zip(logits.tolist(), kept.tolist(), strict=True):
        mass = [math.exp(x - max(z)) for x in z]
        total = math.fsum(mass)
        kept_mass = [m for m, k in zip(mass, keep, strict=True) if k]
        assert math.fsum(kept_mass) >= p * total
        assert math.fsum(kept_mass) - min(kept_mass) < p * total
        assert min(kept_mass) > max(m for m, k in zip(mass, keep, strict=True) if not k)


class TestC01:
    """C01: V = 131,072, a head of 0.9 and a uniform tail of 0.1, p = 0.95. Half of the tail makes up the missing
    0.05: 65,536 of 131,071 tokens, and the head. A running sum rounded to bf16 keeps 67,073."""

    V = 131_072
    RIGHT, IN_BF16 = 65_537, 67_073

    def logits(self) -> Tensor:
        z = torch.full((1, self.V), math.log(0.1 / (self.V - 1)))
        z[0, 77] = math.log(0.9)
        return z

    def test_tail_split_by_index(self) -> None:
        options = LawOptions(top_p_ties="lowest-index")
        found = law_of(self.logits(), 1.0, 0, 0.95, options=options)
        assert int((found.probs > 0).sum()) == self.RIGHT
        low, high = int(found.must_keep.sum()), int(found.may_keep.sum())
        assert low <= self.RIGHT <= high
        # The wrong count must be seen as wrong: it lies 1,536 tokens beyond.
        assert high < self.IN_BF16
        # Width of the band. Each share of the mass is known to e^(2E) and the sums' slack, so the edge at a share of
        # 0.95 moves by at most 0.95 (2E + slack) + 2^-24 either way, and 0.1 / 131,071 is one token. E is the bound of
        # one token's error, 2^-24 (2 (14.1 + 0.1) + 4 * 14 + 8) = 93 * 2^-24; slack 2 (12 + 16 + 32) 2^-24.
        edge = (0.95 * (2 * 93 + 120) + 1) * 2.0**-24
        assert high - low <= 2 * edge / (0.1 / (self.V - 1)) + 2

    def test_tail_kept_together(self) -> None:
        """The law's own rule: equal tokens stay together, so the run that crosses p is kept whole."""
        found = law_of(self.logits(), 1.0, 0, 0.95)
        assert bool((found.probs > 0).all())
        assert bool(found.must_keep.all())

    def test_tail_of_distinct_tokens(self) -> None:
        """Without ties: the tail falls by 1e-6 nats a token... so the count is that of a geometric tail.

        Tail masses proportional to e^(-s i), i < m, hold half of their sum in the first
        -ln((1 + e^(-s m)) / 2) / s tokens; here s m = 0.5 and m = 131,071.
        """
        m = self.V - 1
        step = 0.5 / m
        tail = torch.arange(m, dtype=torch.float64) * -step
        # float32 cannot tell neighbours apart at 14 nats; around 0 it can, so the tail sits there and the head above.
        head = math.log(9 * sum(math.exp(-step * i) for i in range(m)))
        z = torch.cat([torch.tensor([head], dtype=torch.float64), tail]).to(torch.float32)[None]
        found = law_of(z, 1.0, 0, 0.95)
        count = 1 + math.ceil(-math.log((1 + math.exp(-0.5)) / 2) / step)
        # The head's logit is rounded by 2^-21 (it is 14), its mass by 0.09 * 2^-21 = 4.3e-8: a twentieth of a token,
        # and ceil may then go either way by one.
        assert abs(int((found.probs > 0).sum()) - count) <= 1
        assert int(found.must_keep.sum()) <= count <= int(found.may_keep.sum())


@pytest.mark.parametrize("value", [1.0, 2.5])
def test_log_error_grows_with_the_exponents(value: float) -> None:
    """The band must follow |z / T|: 5e-6 nats at 40, 5e-5 at 400, whatever the row."""
    z = torch.tensor([[value, 0.0]])
    errors: Any = [law_of(z, t, 0, 0.0).log_error.item() for t in (1.0, 0.1)]
    assert 0 < errors[0] < errors[1]
    # One rounding of w = z / T alone costs |w| 2^-24, for the token and for the maximum.
    assert errors[1] >= value / 0.1 * 2.0**-24
