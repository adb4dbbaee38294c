"""The budget: what a run may spend, and that nothing is judged outside it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from conformance import Claims, Evidence, check
from conformance.claims import LEAST_DRAWS
from conformance.clauses import CLAUSES, TIERS, plan, tier_of
from conformance.evidence.budget import ALPHA_FIXED_SEEDS, ALPHA_FRESH_SEEDS, FIRST_LOOK, Budget, looks
from reference import ReferenceSampling
from tests.conformance.tilted import make


def judged(alpha: float) -> Evidence:
    return Evidence(passed=True, asked="", observed="", allowed="", p_value=0.5, alpha=alpha)


def test_the_runs_alpha_is_split_evenly() -> None:
    budget = Budget(1e-6, frozenset({"a", "b", "c", "d"}))
    assert [budget.share(name) for name in "abcd"] == pytest.approx([2.5e-7] * 4)
    assert budget.share("an exact check") == 0.0


def test_a_share_is_given_once() -> None:
    budget = Budget(1e-6, frozenset({"a"}))
    budget.share("a")
    with pytest.raises(ValueError, match="re-rolled"):
        budget.share("a")


def test_a_check_outside_the_budget_or_beyond_its_share_is_refused() -> None:
    budget = Budget(1e-6, frozenset({"a", "b"}))
    budget.settle("a", [judged(2.5e-7), judged(2.5e-7)])
    with pytest.raises(ValueError, match="alpha of 'a'"):
        budget.settle("a", [judged(2.5e-7), judged(2.6e-7)])
    with pytest.raises(ValueError, match="alpha of 'unknown'"):
        budget.settle("unknown", [judged(1e-30)])


@pytest.mark.parametrize("draws", [1, 2**14, 2**16, 2**16 + 5, 10**8])
def test_looks_end_at_all_draws_and_spend_no_more_than_alpha(draws: int) -> None:
    plan = list(looks(draws, 1e-6))
    numbers = [number for number, _ in plan]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == draws
    assert all(later >= 4 * earlier for earlier, later in pairwise(numbers))
    assert sum(alpha for _, alpha in plan) == pytest.approx(1e-6, rel=1e-9)
    # The last look, whose power is stated, has at least half.
    assert plan[-1][1] >= 0.5e-6 * (1 - 1e-9)


@pytest.mark.parametrize(("seed", "alpha"), [(None, ALPHA_FIXED_SEEDS), (5, ALPHA_FRESH_SEEDS)], ids=["fixed", "fresh"])
def test_all_evidence_of_a_run_stays_within_its_alpha(seed: int | None, alpha: float) -> None:
    only = ["draw", "randomness/rows", "calls/gather", "top-p/crossing-token"]
    report = check(ReferenceSampling, only=only, seed=seed)
    assert report.alpha == alpha
    spent = math.fsum(each.alpha or 0.0 for result in report.results for each in result.evidence)
    assert 0 < spent <= alpha


@pytest.mark.parametrize("tier", TIERS)
def test_every_check_id_is_unique(tier: str) -> None:
    ids = [f"{clause.id}/{case.id}" for clause, case in plan(TIERS[tier])]
    assert len(ids) == len(set(ids))


def test_a_broken_sampler_fails_at_the_first_look() -> None:
    (result,) = check(make("last partial tile dead"), only="draw/distribution/most-draws-large").results
    (failed,) = result.failed
    assert failed.draws == FIRST_LOOK
    (passed,) = check(make(""), only="draw/distribution/most-draws-large").results
    assert {each.draws for each in passed.evidence if each.draws} == {TIERS["quick"].most_large_draws}


def test_draws_are_chosen_for_the_deep_tier_alone() -> None:
    assert tier_of("deep", 2 * 10**8).most_large_draws == 2 * 10**8
    assert tier_of("deep", None).most_draws == 10**8
    for name, draws in (("full", 10**8), ("deep", 1000)):
        with pytest.raises(ValueError, match="draws"):
            tier_of(name, draws)


def test_a_slow_sampler_gets_no_more_draws_than_it_claims() -> None:
    assert max(case.draws for _, case in plan(TIERS["full"], Claims(most_draws=2**20))) == 2**20
    assert max(case.draws for _, case in plan(TIERS["full"])) == 2 * 10**7
    for most_draws in (LEAST_DRAWS - 1, 1e9, "many"):
        with pytest.raises(ValueError, match="most_draws"):
            check(ReferenceSampling, claims=Claims(most_draws=most_draws))  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("tier", TIERS)
def test_one_launch_beyond_32_bits_is_never_cut_short(tier: str) -> None:
    (case,) = [
        case
        for clause, case in plan(TIERS[tier], Claims(most_draws=LEAST_DRAWS))
        if clause.id == "randomness/wide-launch"
    ]
    assert case.draws * case.vocab_size > 1.9 * 2**32


def test_statistical_clauses_are_those_that_can_fail_by_chance() -> None:
    # A clause that draws and judges frequencies without being marked so would find no alpha to judge by.
    assert {"draw/tail", "draw/own-rows", "randomness/rows"} <= {c.id for c in CLAUSES.values() if c.statistical}
    assert not CLAUSES["errors/refused"].statistical
