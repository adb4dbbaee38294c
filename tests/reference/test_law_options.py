"""Every field of LawOptions by hand: what changes, what the band then admits, and what stays."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from reference import LawOptions
from tests.reference.helpers import ids, law_of, log_of, log_rounding, row


class Case(NamedTuple):
    options: LawOptions
    probs: list[float]  # the row is log(probs), T = 1
    top_k: int
    top_p: float
    expected: list[float]
    must: list[int]
    may: list[int]


TIED = [0.4, 0.2, 0.2, 0.2]
CASES = {
    # Top-k ties, on the row of T04: 0.4 and a tie for the second place.
    "T04-top_k_ties-keep-all": Case(
        LawOptions(top_k_ties="keep-all"), [0.4, 0.3, 0.3, 0], 2, 0.0, [0.4, 0.3, 0.3, 0], [0, 1, 2], [0, 1, 2]
    ),
    "T04-top_k_ties-lowest-index": Case(
        LawOptions(top_k_ties="lowest-index"), [0.4, 0.3, 0.3, 0], 2, 0.0, [4 / 7, 3 / 7, 0, 0], [0, 1], [0, 1]
    ),
    "T04-top_k_ties-any": Case(
        LawOptions(top_k_ties="any"), [0.4, 0.3, 0.3, 0], 2, 0.0, [4 / 7, 3 / 7, 0, 0], [0], [0, 1, 2]
    ),
    "T01-top_k_ties-any-of-three": Case(
        LawOptions(top_k_ties="any"), [0.1, *TIED[1:], 0.3], 3, 0.0, [0, 2 / 7, 2 / 7, 0, 3 / 7], [4], [1, 2, 3, 4]
    ),
    "top_k_ties-any-where-all-of-the-run-fits": Case(
        LawOptions(top_k_ties="any"),
        [0.1, *TIED[1:], 0.3],
        4,
        0.0,
        [0, 2 / 9, 2 / 9, 2 / 9, 3 / 9],
        *[[1, 2, 3, 4]] * 2,
    ),
    # Nucleus ties. Before the run: 0.4; within it a token adds 0.2.
    "top_p_ties-keep-all": Case(LawOptions(), TIED, 0, 0.5, TIED, [0, 1, 2, 3], [0, 1, 2, 3]),
    "top_p_ties-lowest-index": Case(
        LawOptions(top_p_ties="lowest-index"), TIED, 0, 0.5, [4 / 6, 2 / 6, 0, 0], [0, 1], [0, 1]
    ),
    "top_p_ties-any": Case(LawOptions(top_p_ties="any"), TIED, 0, 0.5, [4 / 6, 2 / 6, 0, 0], [0], [0, 1, 2, 3]),
    "top_p_ties-any-where-all-of-the-run-fits": Case(
        LawOptions(top_p_ties="any"), TIED, 0, 0.9, TIED, [0, 1, 2, 3], [0, 1, 2, 3]
    ),
    "top_p_ties-lowest-index-of-tied-maxima": Case(
        LawOptions(top_p_ties="lowest-index"), [0.1, 0.45, 0.45], 0, 0.2, [0, 1, 0], [1], [1]
    ),
    "top_p_ties-any-of-tied-maxima": Case(
        LawOptions(top_p_ties="any"), [0.1, 0.45, 0.45], 0, 0.2, [0, 1, 0], [], [1, 2]
    ),
    # Equal logits alone can make a prefix equal to p, exactly: 2 of 4. The law says below p; the band leaves it open.
    "N07-prefix-equal-to-p": Case(
        LawOptions(top_p_ties="lowest-index"), [0.25] * 4, 0, 0.5, [0.5, 0.5, 0, 0], [0, 1], [0, 1, 2]
    ),
    # Order, on the rows of O01 and O02.
    "O01-top-k-first": Case(LawOptions(), [0.1, 0.2, 0.3, 0.4], 2, 0.5, [0, 0, 0, 1], [3], [3]),
    "O01-joint": Case(
        LawOptions(filter_order="joint"), [0.1, 0.2, 0.3, 0.4], 2, 0.5, [0, 0, 3 / 7, 4 / 7], [2, 3], [2, 3]
    ),
    "O02-joint": Case(
        LawOptions(filter_order="joint"),
        *([0.35, 0.25, 0.2, 0.05, *[0.03] * 5], 4, 0.82),
        *([35 / 85, 25 / 85, 20 / 85, 5 / 85, *[0.0] * 5], [0, 1, 2, 3], [0, 1, 2, 3]),
    ),
    "joint-is-no-different-for-one-filter": Case(
        LawOptions(filter_order="joint"), [0.4, 0.3, 0.2, 0.1], 0, 0.8, [4 / 9, 3 / 9, 2 / 9, 0], *[[0, 1, 2]] * 2
    ),
    # Off-sentinels.
    "K09-top_k_off-minus-1": Case(
        LawOptions(top_k_off=frozenset({0, -1})),
        [0.4, 0.3, 0.2, 0.1],
        -1,
        0.0,
        [0.4, 0.3, 0.2, 0.1],
        *[[0, 1, 2, 3]] * 2,
    ),
    "N17-top_p_off-without-0-keeps-the-maximum": Case(
        LawOptions(top_p_off=frozenset({1.0})), [0.1, 0.5, 0.25, 0.15], 3, 0.0, [0, 1, 0, 0], [1], [1]
    ),
    "top_p_off-without-0-keeps-tied-maxima-together": Case(
        LawOptions(top_p_off=frozenset({1.0})), [0.1, 0.45, 0.45], 0, 0.0, [0, 0.5, 0.5], [1, 2], [1, 2]
    ),
    "top_p_off-without-1-still-keeps-what-lies-before-1": Case(
        LawOptions(top_p_off=frozenset({0.0})), [0.5, 0.3, 0.2], 0, 1.0, [0.5, 0.3, 0.2], *[[0, 1, 2]] * 2
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_option_by_hand(case: Case) -> None:
    found = law_of(row(log_of(case.probs)), 1.0, case.top_k, case.top_p, options=case.options)
    assert ids(found.probs[0] > 0) == [j for j, p in enumerate(case.expected) if p > 0]
    assert found.probs[0].tolist() == pytest.approx(case.expected, rel=log_rounding(case.probs), abs=0)
    assert (ids(found.must_keep[0]), ids(found.may_keep[0])) == (case.must, case.may)
    assert found.band.tolist() == [[0, j] for j in band_order(case)]


def band_order(case: Case) -> list[int]:
    """The band's tokens by falling probability, ties by index."""
    return sorted(set(case.may) - set(case.must), key=lambda j: (-case.probs[j], j))


def test_band_mass_is_in_units_of_the_kept_mass() -> None:
    """T04 under `any`: 0.4 and one of the two 0.3 are kept, 0.7 in all, and each 0.3 is in the band."""
    probs = [0.4, 0.3, 0.3, 0.0]
    found = law_of(row(log_of(probs)).repeat(2, 1), 1.0, 2, 0.0, options=LawOptions(top_k_ties="any"))
    assert found.band.tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert found.band_mass.tolist() == pytest.approx([3 / 7] * 4, rel=log_rounding(probs))


class TestGreedy:
    def test_ties_any_admits_every_maximum(self) -> None:
        """T05: which of tied maxima a greedy sampler takes is its declared choice, others are not."""
        for temperature, top_k in ((0.0, 0), (1.0, 1)):
            found = law_of(row([1, 5, 5, 5]), temperature, top_k, 0.0, options=LawOptions(greedy_ties="any"))
            assert found.probs[0].tolist() == [0, 1, 0, 0]
            assert ids(found.must_keep[0]) == []
            assert ids(found.may_keep[0]) == [1, 2, 3]
            assert found.band.tolist() == [[0, 1], [0, 2], [0, 3]]
            assert found.band_mass.tolist() == [1.0, 1.0, 1.0]

    def test_ties_any_without_a_tie_is_sure(self) -> None:
        found = law_of(row([1, 5, 4, 5 - 2.0**-21]), 0.0, 0, 0.0, options=LawOptions(greedy_ties="any"))
        assert ids(found.must_keep[0]) == ids(found.may_keep[0]) == [1]

    def test_t_minus_1_means_greedy_where_declared(self) -> None:
        """C10, C11: engines mark greedy requests with T = -1, others with T = 0."""
        options = LawOptions(greedy_temperatures=frozenset({0.0, -1.0}))
        for temperature in (0.0, -1.0):
            found = law_of(row([-math.inf, 1, 3, 2]), temperature, 0, 0.0, options=options)
            assert found.probs[0].tolist() == [0, 0, 1, 0]

    def test_t_0_that_is_not_greedy_is_a_millionth(self) -> None:
        """Tied maxima share the mass then: T = 0 is clamped as every tiny temperature is."""
        options = LawOptions(greedy_temperatures=frozenset({-1.0}))
        found = law_of(row([1, 3, 3, 2]), 0.0, 0, 0.0, options=options)
        assert found.probs[0].tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize("top_p", [0.0, 0.5])
def test_k10_a_valid_row_always_keeps_a_token(top_p: float) -> None:
    """K10: an empty candidate list. k = 0 that is not declared "off" must not leave NaN in a valid row."""
    found = law_of(row([1, 3, 2]), 1.0, 0, top_p, options=LawOptions(top_k_off=frozenset({-1})))
    assert found.valid.item()
    assert found.probs.sum().item() == pytest.approx(1.0, rel=3 * 2.0**-53)
    assert found.may_keep.any()


@pytest.mark.parametrize("field", ["log_probs", "parameters_by", "uniform_bits"])
def test_options_of_samplers_do_not_touch_the_law(field: str) -> None:
    """What is drawn, and by whose parameters, is the sampler's business; see test_sampling.py."""
    z = torch.tensor([[1.0, 2.0, 3.0, 2.0]])
    options = {
        "log_probs": LawOptions(log_probs="raw"),
        "parameters_by": LawOptions(parameters_by="row"),
        "uniform_bits": LawOptions(uniform_bits=24),
    }[field]
    changed, default = law_of(z, 0.7, 2, 0.9, options=options), law_of(z, 0.7, 2, 0.9)
    assert torch.equal(changed.probs, default.probs)
    assert torch.equal(changed.may_keep, default.may_keep)
