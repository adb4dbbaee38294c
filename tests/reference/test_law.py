"""The law by hand, on rows of a few tokens. Case ids begin with the bug-ledger row that they would have caught."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from reference import LawOptions, law
from tests.reference.helpers import DTYPES, bits, ids, law_of, log_of, log_rounding, row


class Case(NamedTuple):
    probs: list[float]  # the row is log(probs), T = 1
    top_k: int
    top_p: float
    expected: list[float]  # the law, by hand


INF = math.inf
CASES = {
    # Nucleus: the token that crosses p belongs to it.
    "N01-largest-set-below-p": Case([0.5, 0.3, 0.15, 0.05], 0, 0.6, [5 / 8, 3 / 8, 0, 0]),
    "N02-crossing-token-dropped": Case([0.4, 0.3, 0.2, 0.1], 0, 0.8, [4 / 9, 3 / 9, 2 / 9, 0]),
    "N03-mask-not-shifted": Case([0.5, 0.35, 0.1, 0.05], 0, 0.9, [50 / 95, 35 / 95, 10 / 95, 0]),
    "N04-collapse-to-one-token": Case([0.5, 0.41, 0.09], 0, 0.9, [50 / 91, 41 / 91, 0]),
    "N05-p0.6-two-tokens": Case([0.5, 0.3, 0.15, 0.05], 0, 0.6, [5 / 8, 3 / 8, 0, 0]),
    "N05-p0.85-three-tokens": Case([0.5, 0.3, 0.15, 0.05], 0, 0.85, [50 / 95, 30 / 95, 15 / 95, 0]),
    "N07-just-below-a-prefix-sum": Case([0.3, 0.1, 0.1, 0.5], 0, 0.8 - 1e-3, [3 / 8, 0, 0, 5 / 8]),
    "N07-just-above-a-prefix-sum": Case([0.3, 0.1, 0.1, 0.5], 0, 0.8 + 1e-3, [0.3, 0.1, 0.1, 0.5]),
    "N08-p1-became-greedy": Case([0.5, 0.3, 0.2], 0, 1.0, [0.5, 0.3, 0.2]),
    "N08-p-one-ulp-below-1": Case([0.5, 0.3, 0.2], 0, 1 - 2.0**-24, [0.5, 0.3, 0.2]),
    "N11-sums-of-unsorted-probs": Case([0.05, 0.05, 0.1, 0.8], 0, 0.5, [0, 0, 0, 1]),
    "N12-first-token-above-p": Case([0.9, 0.05, 0.05], 0, 0.5, [1, 0, 0]),
    "N16-p-never-used": Case([0.2, 0.5, 0.3], 0, 0.02, [0, 1, 0]),
    "O09-softmax-of-probabilities": Case([0.7, 0.2, 0.1], 0, 0.85, [7 / 9, 2 / 9, 0]),
    # Off-sentinels.
    "K01-k0-became-greedy": Case([0.25] * 4, 0, 0.0, [0.25] * 4),
    "K06-k-above-V": Case([0.1, 0.2, 0.3, 0.4], 5, 0.0, [0.1, 0.2, 0.3, 0.4]),
    "K04-k-2-to-the-30": Case([0.1, 0.2, 0.3, 0.4], 2**30, 1.0, [0.1, 0.2, 0.3, 0.4]),
    "k-equal-to-V": Case([0.1, 0.2, 0.3, 0.4], 4, 0.0, [0.1, 0.2, 0.3, 0.4]),
    "N17-p0-emptied-the-mask": Case([0.1, 0.5, 0.25, 0.15], 3, 0.0, [0, 5 / 9, 2.5 / 9, 1.5 / 9]),
    # Top-k and its ties.
    "N13-k-plus-one": Case([0.1, 0.2, 0.3, 0.4], 2, 0.0, [0, 0, 3 / 7, 4 / 7]),
    "T04-tie-at-the-kth-place": Case([0.4, 0.3, 0.3, 0.0], 2, 0.0, [0.4, 0.3, 0.3, 0.0]),
    "N14-uniform-row-collapsed": Case([0.125] * 8, 4, 0.0, [0.125] * 8),
    "k-counts-no-masked-tokens": Case([0.0, 0.6, 0.0, 0.4], 3, 0.0, [0, 0.6, 0, 0.4]),
    # Both: p acts on the renormalised survivors of k.
    "O01-p-first-keeps-one-more": Case([0.1, 0.2, 0.3, 0.4], 2, 0.5, [0, 0, 0, 1]),
    "O02-joint-keeps-one-more": Case(
        [0.35, 0.25, 0.2, 0.05, *[0.03] * 5], 4, 0.82, [35 / 80, 25 / 80, 20 / 80, 0, *[0.0] * 5]
    ),
    "tie-at-the-kth-place-then-p": Case([0.4, 0.2, 0.2, 0.1, 0.1], 2, 0.4, [1, 0, 0, 0, 0]),
    # Ties at the edge of the nucleus stay together.
    "tie-at-the-nucleus-edge": Case([0.4, 0.2, 0.2, 0.2], 0, 0.5, [0.4, 0.2, 0.2, 0.2]),
    "tie-of-maxima-under-tiny-p": Case([0.1, 0.45, 0.45], 0, 0.001, [0, 0.5, 0.5]),
    # Masked tokens.
    "C05-masked-tokens": Case([0.0, 0.5, 0.0, 0.5], 0, 0.9, [0, 0.5, 0, 0.5]),
    "one-token-left": Case([0.0, 0.0, 1.0], 2, 0.5, [0, 0, 1]),
    "one-token-vocabulary": Case([1.0], 0, 0.0, [1]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_law_by_hand(case: Case) -> None:
    found = law_of(row(log_of(case.probs)), 1.0, case.top_k, case.top_p)
    kept = [j for j, p in enumerate(case.expected) if p > 0]
    assert ids(found.probs[0] > 0) == kept
    assert found.probs[0].tolist() == pytest.approx(case.expected, rel=log_rounding(case.probs), abs=0)
    # Every edge here is at least 1e-3 of the mass away, 1,000 times the float32 error: no band.
    assert ids(found.must_keep[0]) == ids(found.may_keep[0]) == kept
    assert found.band.shape == (0, 2)
    assert found.band_mass.shape == (0,)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        # By hand: softmax([3, 2, 1] / T), cut where the mass of larger tokens reaches 0.8.
        pytest.param(0.5, [1.0, 0.0, 0.0], id="O05-T0.5-one-token"),
        pytest.param(1.0, [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1)), 0.0], id="O05-T1-two-tokens"),
        pytest.param(2.0, [1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5)), 0.0], id="O06-T2-two-tokens"),
        pytest.param(
            4.0,
            [math.exp(x) / sum(math.exp(y) for y in (0, -0.25, -0.5)) for x in (0, -0.25, -0.5)],
            id="O06-T4-three-tokens",
        ),
    ],
)
def test_temperature_comes_before_the_nucleus(temperature: float, expected: list[float]) -> None:
    found = law_of(row([3, 2, 1]), temperature, 0, 0.8)
    # 3 / T, 2 / T and 1 / T are exact, so only float64 roundings are left: a dozen of 2^-53.
    assert found.probs[0].tolist() == pytest.approx(expected, rel=12 * 2.0**-53, abs=0)


def test_c02_temperature_divides_in_more_than_bf16() -> None:
    """C02: dividing bf16 logits in bf16 gave 0.5312 in place of 0.5223."""
    temperature = float(torch.tensor(0.7))
    found = law_of(row([10.0, 9.9375], torch.bfloat16), 0.7, 0, 0.0)
    by_hand = 1 / (1 + math.exp(-0.0625 / temperature))
    assert round(by_hand, 4) == 0.5223
    # w = 10 / T is rounded at 14: two roundings of 14 * 2^-53.
    assert found.probs[0, 0].item() == pytest.approx(by_hand, rel=4 * 14 * 2.0**-53)


def test_o11_log_softmax_over_temperature_is_the_same_law() -> None:
    """O11, no bug: log_softmax shifts a row, and a shift changes nothing."""
    z = torch.tensor([[2.0, 1.0, 0.0]])
    shifted = z - 3.0  # any constant; exact in float32
    assert torch.equal(law_of(z, 0.5, 0, 0.0).probs, law_of(shifted, 0.5, 0, 0.0).probs)
    assert [round(p, 4) for p in law_of(z, 0.5, 0, 0.0).probs[0].tolist()] == [0.8668, 0.1173, 0.0159]


@pytest.mark.parametrize(
    ("logits", "temperature", "top_k", "token"),
    [
        pytest.param([-2, -1, 0, 0.8, 0, 0.1, 0.3, 0.4, 0.5, 0.6, 0.7, -3], 1.0, 1, 3, id="N13-k1-kept-two"),
        pytest.param([1, 1, 0], 0.0, 0, 0, id="T08-T0-tied-maxima"),
        pytest.param([0, 7, 7, 7], 1.0, 1, 1, id="T05-k1-tied-maxima"),
        pytest.param([-0.0, 0.0, -1], 0.0, 0, 0, id="T0-minus-zero-equals-zero"),
        pytest.param([-1, -0.0, 0.0], 1.0, 1, 1, id="k1-minus-zero-equals-zero"),
        pytest.param([-INF, -5, -INF, -6], 0.0, 0, 1, id="C10-T0-masked-tokens"),
        pytest.param([0.5, 0.5 + 2.0**-24, 0.0], 3e38, 1, 1, id="k1-one-ulp-apart-at-huge-T"),
        pytest.param([3, 1, 2], -0.0, 0, 0, id="T-minus-zero-is-zero"),
    ],
)
def test_greedy_rows(logits: list[float], temperature: float, top_k: int, token: int) -> None:
    for top_p in (0.0, 0.9):
        found = law_of(row(logits), temperature, top_k, top_p)
        assert found.probs[0].tolist() == [float(j == token) for j in range(len(logits))]
        assert ids(found.must_keep[0]) == ids(found.may_keep[0]) == [token]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-6, 1e-12, 1e-38, 1e-45])
def test_c07_c09_tiny_temperature_is_the_maximum(temperature: float, dtype: torch.dtype) -> None:
    """C07: 11.0625 / 1e-4 overflows fp16. C09: 40 / 1e-38 - 39 / 1e-38 is NaN in fp32."""
    found = law_of(row([11.0625, 40.0, 39.0], dtype), temperature, 0, 0.0)
    # One nat at T <= 1e-4 is 10,000 nats: beyond float64's exponent.
    assert found.probs[0].tolist() == [0.0, 1.0, 0.0]
    assert ids(found.must_keep[0]) == [1]


def test_temperatures_below_a_millionth_act_as_a_millionth() -> None:
    """A nat of 1e-6 logits: the ratio is e at T = 1e-6 and at T = 1e-7, not e^10."""
    z = row([2.0**-20, 0.0])
    expected = 1 / (1 + math.exp(-(2.0**-20) / 1e-6))
    for temperature in (1e-6, 1e-7, 1e-30):
        # 1e-6 as float32 is off by 2^-25 of itself, and so is the exponent of 0.95.
        assert law_of(z, temperature, 0, 0.0).probs[0, 0].item() == pytest.approx(expected, rel=2.0**-24)


@pytest.mark.parametrize("top_p", [10.0**-i for i in range(1, 10)] + [1e-20, 2.0**-126, 1e-45])
def test_n18_tiny_p_keeps_the_maximum_alone(top_p: float) -> None:
    """N18: 1 - p rounds to 1 and every token was masked."""
    z = torch.linspace(-3, 3, 4096)[None, torch.randperm(4096, generator=torch.Generator().manual_seed(1))]
    z[0, 1234] = 12.0  # e^12 against less than 4096 e^3: mass above 0.66
    found = law_of(z, 1.0, 0, top_p)
    assert ids(found.probs[0] > 0) == ids(found.must_keep[0]) == ids(found.may_keep[0]) == [1234]


def test_k01_a_flat_row_without_filters_stays_flat() -> None:
    """K01: top_k = 0 was rounded up to 1, so the row became greedy; T = 1.19 as reported."""
    assert law_of(row([2.5] * 8), 1.19, 0, 0.0).probs[0].tolist() == [0.125] * 8


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5])
def test_t11_top_k_sets_are_nested_on_tied_rows(top_k: int) -> None:
    """T11: torch.topk returned different tied indices for k = 1 and k = 2."""
    kept = {1: [2], 2: [2, 4], 3: [2, 3, 4], 4: [1, 2, 3, 4], 5: [0, 1, 2, 3, 4]}
    assert ids(law_of(row([1, 2, 5, 4, 5]), 1.0, top_k, 0.0).probs[0] > 0) == kept[top_k]


class TestPadding:
    """Columns from vocab_size on do not exist."""

    @pytest.mark.parametrize("pad", [0.0, 100.0, -INF, INF, math.nan])
    @pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 0.0), (0.0, 0, 0.0), (1.0, 2, 0.9)])
    def test_m01_whatever_they_hold(self, temperature: float, top_k: int, top_p: float, pad: float) -> None:
        """M01: zero padding won where all real logits were negative; M03: on one of the routes only."""
        real = [-3.0, -1.0, -2.0, -2.5]
        alone = law_of(row(real), temperature, top_k, top_p)
        padded = law_of(row([*real, pad, pad]), temperature, top_k, top_p, vocab_size=4)
        assert torch.equal(padded.probs[0, :4], alone.probs[0])
        assert padded.probs[0, 4:].tolist() == [0.0, 0.0]
        assert not (padded.may_keep | padded.must_keep)[0, 4:].any()
        assert padded.valid.item()

    def test_k_is_compared_with_the_vocabulary_not_the_width(self) -> None:
        """k = 3 = V switches top-k off; of the width 5 it would not, and ties at the third place decided."""
        found = law_of(row([1.0, 0.0, 0.0, 9.0, 9.0]), 1.0, 3, 0.0, vocab_size=3, options=LawOptions("lowest-index"))
        assert ids(found.probs[0] > 0) == [0, 1, 2]


class TestInvalidRows:
    ROWS: ClassVar = {
        "M08-one-NaN": [1.0, math.nan, 2.0, 0.0],
        "NaN-and-masked": [-INF, math.nan, -INF, -INF],
        "M12-plus-inf": [1.0, INF, 2.0, 0.0],
        "M07-all-masked": [-INF] * 4,
    }

    @pytest.mark.parametrize("bad", ROWS.values(), ids=ROWS)
    @pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 0.0), (0.0, 0, 0.0), (1.0, 2, 0.5)])
    def test_it_is_marked_and_its_neighbours_are_not_touched(
        self, temperature: float, top_k: int, top_p: float, bad: list[float]
    ) -> None:
        good = [[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
        mixed = law_of(torch.tensor([good[0], bad, good[1]]), temperature, top_k, top_p, vocab_size=4)
        alone = law_of(torch.tensor(good), temperature, top_k, top_p)
        assert mixed.valid.tolist() == [True, False, True]
        assert mixed.probs[1].isnan().all()
        assert not mixed.must_keep[1].any()
        assert mixed.may_keep[1].all()  # some id in range comes back
        for name in ("probs", "must_keep", "may_keep", "log_error"):
            assert torch.equal(getattr(mixed, name)[[0, 2]], getattr(alone, name)), name

    @pytest.mark.parametrize("bad", ROWS.values(), ids=ROWS)
    def test_it_has_no_band(self, bad: list[float]) -> None:
        """Where any of tied tokens may be kept, the ties in the good rows are a band; the bad row has none."""
        z = torch.tensor([[1.0, 1.0, 1.0, 0.0], bad, [0.0, 1.0, 0.0, 0.0]])
        found = law_of(z, 1.0, 2, 0.0, options=LawOptions(top_k_ties="any"))
        assert found.band.tolist() == [[0, 0], [0, 1], [0, 2], [2, 0], [2, 2], [2, 3]]
        assert found.band_mass.shape == (6,)

    def test_no_padding_id_comes_from_it(self) -> None:
        """M09: argmax over NaN logits returned an id of the padding."""
        found = law_of(row([math.nan, 1.0, 2.0]), 1.0, 0, 0.0, vocab_size=2)
        assert ids(found.may_keep[0]) == [0, 1]


def parameters(*rows: tuple[float, int, float]) -> tuple[Tensor, Tensor, Tensor]:
    temperature, top_k, top_p = zip(*rows, strict=True)
    return torch.tensor(temperature), torch.tensor(top_k, dtype=torch.int32), torch.tensor(top_p)


def test_each_row_has_its_own_parameters() -> None:
    """R07: the last request's parameters ruled the batch. Supports exclude one another in pairs."""
    z = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 4)
    found = law(z, *parameters((0.0, 0, 0.0), (1.0, 2, 0.0), (1.0, 0, 0.7), (1.0, 0, 0.0)))
    # softmax = .644 .237 .087 .032: p = .7 keeps two.
    assert [ids(r > 0) for r in found.probs] == [[0], [0, 1], [0, 1], [0, 1, 2, 3]]
    found = law(z, *parameters((9.0, 0, 0.0), (1.0, 3, 0.0), (1.0, 1, 0.0), (1.0, 0, 0.9)))
    assert [ids(r > 0) for r in found.probs] == [[0, 1, 2, 3], [0, 1, 2], [0], [0, 1, 2]]


def test_t01_a_row_has_one_law_in_every_batch() -> None:
    """T01: the support of a tied row depended on whether the batch had 8 rows."""
    tied = [3.0, 2.0, 2.0, 2.0, 1.0]
    alone = law_of(row(tied), 1.0, 2, 0.0)
    assert ids(alone.probs[0] > 0) == [0, 1, 2, 3]
    for n in (7, 8, 16, 64):
        z = torch.randn(n, 5, generator=torch.Generator().manual_seed(n))
        z[n // 2] = torch.tensor(tied)
        many = law_of(z, 1.0, 2, 0.0)
        assert bits(many.probs[n // 2]) == bits(alone.probs[0])
        assert torch.equal(many.may_keep[n // 2], alone.may_keep[0])


def test_strided_logits_have_the_same_law_and_keep_every_bit() -> None:
    """R14: a kernel took the row stride for the width and read another row."""
    wide = torch.randn(4, 12, generator=torch.Generator().manual_seed(3))
    before = bits(wide)
    for view in (wide[:, :7], wide[:, ::2], wide.t()[:7]):
        assert torch.equal(law_of(view, 0.7, 3, 0.8).probs, law_of(view.clone(), 0.7, 3, 0.8).probs)
    assert bits(wide) == before


def test_no_rows() -> None:
    """A batch without rows has a law without rows, of the right shapes."""
    found = law_of(torch.empty(0, 5), 1.0, 0, 0.0)
    assert found.probs.shape == found.must_keep.shape == (0, 5)
    assert found.band.shape == (0, 2)
    assert found.valid.shape == found.log_error.shape == (0,)
