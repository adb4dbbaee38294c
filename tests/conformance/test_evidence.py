"""The statistics, against exact arithmetic: a wrong tail or a wrong bound would void every verdict."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from conformance.cases import Case, normal, probabilities
from conformance.evidence.budget import MISS
from conformance.evidence.counts import Cells, _limits, binomial, cells_of, counts_of, detectable, follows_law
from conformance.evidence.log_probs import match_law
from conformance.evidence.support import support
from reference import LawOptions, law

CPU = torch.device("cpu")
OPTIONS = LawOptions()


def one_cell(count: int, trials: int, low: float, high: float) -> Cells:
    return Cells(["it"], np.array([count]), np.array([trials]), np.array([low]), np.array([high]))


def exact_tail(trials: int, least: int, p: Fraction) -> Fraction:
    """P(X >= least), X binomial."""
    return sum(
        (math.comb(trials, x) * p**x * (1 - p) ** (trials - x) for x in range(least, trials + 1)), start=Fraction(0)
    )


@pytest.mark.parametrize(("count", "trials", "p"), [(9, 40, 0.0625), (30, 60, 0.125), (60, 60, 0.5), (0, 40, 0.5)])
def test_p_value_is_the_exact_binomial_tail_times_two(count: int, trials: int, p: float) -> None:
    evidence = binomial("", one_cell(count, trials, p, p), 1e-9)
    upper = exact_tail(trials, count, Fraction(p))
    lower = 1 - exact_tail(trials, count + 1, Fraction(p))
    # scipy's tails are good to about 1e-13 relative; 1e-9 leaves room and would still show a wrong term.
    assert evidence.p_value == pytest.approx(min(1.0, float(2 * min(upper, lower))), rel=1e-9)


def test_counts_inside_the_interval_null_never_fail() -> None:
    for count in (400, 450, 500):
        assert binomial("", one_cell(count, 1000, 0.4, 0.5), 0.5).passed


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.3), (0.05, 0.08)], ids=["point", "interval"])
def test_detectable_is_seen_with_the_stated_power(low: float, high: float) -> None:
    # Computed independently: the chance that the test fails at the stated shift is 1 - MISS, and the
    # chance at a shift 10 % smaller is less.
    trials, alpha = 2_000, 1e-8
    shift = detectable(one_cell(0, trials, low, high), alpha)

    def power(q: float) -> float:
        counts = np.arange(trials + 1)
        log_pmf = (
            np.array([math.lgamma(trials + 1) - math.lgamma(x + 1) - math.lgamma(trials - x + 1) for x in counts])
            + counts * math.log(q)
            + (trials - counts) * math.log1p(-q)
        )
        pmf = np.exp(log_pmf)
        failing = [not binomial("", one_cell(int(x), trials, low, high), 2 * alpha).passed for x in counts]
        return float(pmf[np.array(failing)].sum())

    up, down = power(high + shift), power(low - shift)
    assert max(up, down) >= 1 - 1.01 * MISS
    assert max(power(high + 0.9 * shift), power(low - 0.9 * shift)) < 1 - MISS


@pytest.mark.parametrize("alpha", [1e-3, 1e-12, 1e-20], ids=lambda alpha: f"{alpha:.0e}")
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.999])
def test_limits_are_where_the_verdict_turns(p: float, alpha: float) -> None:
    trials = 10**6
    (up,), (down,) = _limits(one_cell(0, trials, p, p), alpha / 2)
    for count, passed in ((up, False), (up - 1, True), (down, False), (down + 1, True)):
        if 0 <= count <= trials:
            assert binomial("", one_cell(int(count), trials, p, p), alpha).passed == passed


def test_false_alarms_at_a_raised_alpha_stay_below_it() -> None:
    # 400 null runs at alpha = 0.05: a union bound over dependent cells is conservative, so at most a
    # binomial(400, 0.05) number of alarms; more than 45 of them has probability 4e-7.
    case = Case("null", normal(1, 200, 1), 200)
    truth = case.law(OPTIONS, CPU)
    generator = np.random.default_rng(1)
    p = truth.probs[0].numpy()
    alarms = 0
    for _ in range(400):
        ids = torch.from_numpy(generator.choice(200, size=(1, 500), p=p / p.sum()))
        alarms += not follows_law(ids, truth, 0.05).passed
    assert alarms <= 45


def test_support_names_the_first_id_outside() -> None:
    truth = Case("kept", probabilities((0.1, 0.6, 0.3)), 3, top_k=(2,)).law(OPTIONS, CPU)
    assert support(torch.tensor([[1, 2, 1]]), truth).passed
    seen = support(torch.tensor([[1, 0, 2]]), truth)
    assert not seen.passed
    assert "drew id 0" in seen.observed
    assert not support(torch.tensor([[1, 3, 1]]), truth).passed
    assert not support(torch.tensor([[1, -1, 1]]), truth).passed


def test_cells_cover_all_draws_and_bound_the_law() -> None:
    case = Case("cells", normal(2, 300, 2), 300, top_p=(0.9,), rows=(0, 1), requests=(0, 0))
    truth = case.law(OPTIONS, CPU)
    ids = torch.multinomial(truth.probs, 5000, replacement=True, generator=torch.Generator().manual_seed(1))
    cells = cells_of(counts_of(ids, 300), truth)
    for partition in ("parity", "lane", "tile", "index group", "rank group", "depth"):
        members = [i for i, name in enumerate(cells.names) if name.startswith(f"slot 1, {partition} ")]
        assert cells.counts[members].sum() == 5000
        assert cells.low[members].sum() <= 1 <= cells.high[members].sum()
    assert (cells.low <= cells.high).all()
    assert not any(name.endswith("token 0") and truth.probs[0, 0] == 0 for name in cells.names)


@pytest.mark.parametrize("shift", [0.0, 0.003, 0.015], ids=["null", "barely", "plainly"])
def test_a_shifted_token_fails_once_it_exceeds_what_is_detectable(shift: float) -> None:
    truth = Case("shift", probabilities((0.25, 0.25, 0.3, 0.2)), 4).law(OPTIONS, CPU)
    n, alpha = 2**17, 1e-8
    p = truth.probs[0] + torch.tensor([shift, -shift, 0.0, 0.0], dtype=torch.float64)
    ids = torch.multinomial(p[None], n, replacement=True, generator=torch.Generator().manual_seed(3))
    evidence = follows_law(ids, truth, alpha)
    assert evidence.detectable is not None
    # Far below the stated effect it passes, above it fails; between the two anything may happen.
    assert evidence.passed == (shift < evidence.detectable / 2)
    assert not (evidence.detectable / 2 < shift < evidence.detectable)


def test_log_probs_fail_by_a_token_lost_and_by_a_small_error() -> None:
    z = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    one = torch.ones(3)
    truth = law(z, one, torch.zeros(3, dtype=torch.int32), one)
    right = torch.log_softmax(z, 1)
    assert all(each.passed for each in match_law(right, truth))
    lost = right.clone()
    lost[1, 7] = -math.inf
    assert not all(each.passed for each in match_law(lost, truth))
    for error in (1e-4, -1e-4):  # twenty times the tolerance of a row with logits near 1
        off = right.clone()
        off[2, 3] += error
        assert not all(each.passed for each in match_law(off, truth))
    assert not all(each.passed for each in match_law(torch.log_softmax(z.bfloat16(), 1).float(), truth))
