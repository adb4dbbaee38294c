"""What the suite promises to see, it sees: by samplers with small errors, and by simulation at a predicted power."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from conformance import Claims, check
from conformance.__main__ import main
from conformance.clauses import TIERS, plan
from conformance.clauses.law import judge_draws
from conformance.evidence import cdf
from conformance.evidence.budget import ALPHA_FIXED_SEEDS, MISS, draws_for
from conformance.evidence.counts import Cells, binomial, detectable
from conformance.power import ERRORS, alpha_of, kinds
from conformance.streams import STREAMS
from conformance.subject import Subject
from optimized import FlashInferSampling
from tests.conformance.tilted import NeighboursParameters, make

CPU = torch.device("cpu")
FULL = TIERS["full"]
LARGE = next(case for clause, case in plan(FULL) if case.name == "most-draws-large")
ALPHA = ALPHA_FIXED_SEEDS / sum(clause.statistical for clause, _ in plan(FULL)) / 2
"""Of the last look of one check of tier "full"."""


def passes(make_sampler: Any, draws: int) -> bool:
    """The judgement of that many draws at V = 128,256, made in a few calls."""
    subject = Subject(make_sampler, Claims(), CPU, "sampler", "full")
    sampler = subject.sampler(LARGE.vocab_size, 1)
    per_call = 2**20
    ids = torch.cat([subject.call(sampler, LARGE, min(per_call, draws - i)) for i in range(0, draws, per_call)])
    return all(each.passed for each in judge_draws(subject, LARGE, ids[None], ALPHA))


@pytest.mark.parametrize(
    ("error", "draws"),
    [
        ("temperature x 1.01", 10**6),
        ("lowest 0.3 % of mass never drawn", 10**6),
        ("even tokens -2 %, odd +2 %", 10**6),
        ("last partial tile dead", 10**6),
        ("random signs of 3 %", 10**7),
    ],
)
def test_small_errors_at_a_large_vocabulary_fail(error: str, draws: int) -> None:
    assert not passes(make(error), draws)


def test_a_right_sampler_of_the_same_making_passes() -> None:
    assert passes(make(""), 10**7)


@pytest.mark.parametrize(
    "error",
    [
        "temperature x 1.02",
        "lowest 1 % of mass never drawn",
        "even tokens -5 %, odd +5 %",
        "random signs of 15 %",
        "last partial tile dead",
    ],
)
def test_larger_errors_fail_in_the_quick_tier(error: str) -> None:
    report = check(make(error), only="draw/distribution/most-draws-large")
    assert report.counts["fail"] == 1


@pytest.mark.parametrize(("error", "fails"), [("probabilities rounded to bf16", 1), ("", 0)], ids=["bf16", "right"])
def test_rounding_to_bf16_fails_where_it_moves_most(error: str, fails: int) -> None:
    report = check(make(error), tier="full", only="draw/every-dtype/bf16-midpoints")
    assert report.counts["fail"] == fails


def test_a_right_sampler_of_the_same_making_passes_the_quick_tier() -> None:
    assert check(make(""), only="draw").counts["fail"] == 0


def test_the_neighbours_parameters_in_one_slot_of_a_hundred_fail() -> None:
    report = check(NeighboursParameters, only="draw/own-rows", claims=Claims(sync_free=False))
    assert [result.status for result in report.results if "mixed" in result.id] == ["fail"]


@pytest.mark.parametrize("miss", [0.5, 0.1], ids=["power0.5", "power0.9"])
@pytest.mark.parametrize("probability", [0.5, 0.01])
def test_a_cells_measured_power_is_the_predicted_one(probability: float, miss: float) -> None:
    draws, alpha, runs = 100_000, 1e-8, 2000
    number, p = np.array([draws]), np.array([probability])
    shift = detectable(Cells([""], number, number, p, p), alpha / 2, miss)
    drawn = [np.random.default_rng(1).binomial(draws, probability + sign * shift, runs) for sign in (-1, 1)]
    seen = max(
        sum(not binomial("", Cells([""], np.array([x]), number, p, p), alpha).passed for x in counts)
        for counts in drawn
    )
    # Exact up to one count, which near the threshold has a probability of 1 / (sd sqrt(2 pi)) at most.
    slack = 1 / math.sqrt(2 * math.pi * draws * probability * (1 - probability))
    assert stats.binom.sf(seen - 1, runs, min(1.0, 1 - miss + slack)) > 1e-6
    assert stats.binom.cdf(seen, runs, 1 - miss - slack) > 1e-6


@pytest.mark.parametrize("miss", [0.5, 0.1], ids=["power0.5", "power0.9"])
def test_a_distribution_functions_measured_power_is_at_least_the_predicted_one(miss: float) -> None:
    draws, alpha, runs = 20_000, 1e-6, 1000
    shift = cdf.detectable(draws, alpha, miss)
    rng, law = np.random.default_rng(2), torch.full((1, 100), 0.01, dtype=torch.float64)
    # `shift` of the mass moves from the upper half to the lower.
    p = np.repeat([0.01 + shift / 50, 0.01 - shift / 50], 50)
    seen = sum(
        not cdf.distance("", torch.from_numpy(rng.multinomial(draws, p))[None], law, 0.0, alpha).passed
        for _ in range(runs)
    )
    assert stats.binom.cdf(seen, runs, 1 - miss) > 1e-6


@pytest.mark.parametrize("probability", [0.5, 0.01])
def test_draws_for_a_shift_are_those_that_detect_it(probability: float) -> None:
    def sees(draws: float) -> float:
        number, p = np.array([int(draws)]), np.array([probability])
        return detectable(Cells([""], number, number, p, p), 0.5e-9)

    draws = draws_for(0.005, sees)
    assert draws is not None
    # Counts are whole numbers, so that the limit moves in steps.
    assert sees(1.01 * draws) <= 0.005 < sees(0.97 * draws)


def test_an_error_that_no_number_of_draws_shows_needs_none() -> None:
    assert draws_for(0.01, lambda draws: 0.02 + 1 / draws) is None


@pytest.mark.parametrize("tier", ["quick", "full"])
def test_the_table_is_consistent(tier: str) -> None:
    for kind in kinds(TIERS[tier]):
        sees = [kind.sees(draws) for draws in (10**5, 10**6, 10**7)]
        assert sees == sorted(sees, reverse=True), kind.name
        error = ERRORS[1]
        needs = kind.needs(error)
        if needs is not None and needs > 1000:
            # Counts are whole numbers, so that a limit moves in steps: a tenth on either side is beyond them.
            assert kind.sees(1.1 * needs) <= error, kind.name
            assert kind.sees(0.9 * needs) > error, kind.name


def test_the_table_says_what_the_judgement_of_its_largest_case_says() -> None:
    tier = TIERS["quick"]
    (result,) = check(make(""), only="draw/distribution/most-draws-large").results
    printed = {each.name: each.sees(tier.most_large_draws) for each in kinds(tier)}
    seen = {each.asked: each.detectable for each in result.evidence}
    for name, asked in (
        ("scatter by token, ", "scatter of counts over cells by token"),
        ("scatter by place in a tile, ", "scatter of counts over cells by place in a tile"),
        ("distribution by rank", "distribution function in rank order"),
    ):
        (value,) = [value for kind, value in printed.items() if kind.startswith(name)]
        # A run splits its budget over the checks that apply, the table over all: a tenth more alpha at most.
        assert seen[asked] == pytest.approx(value, rel=2e-3), name
    # The weakest of all cells is what a judgement of all cells states.
    weakest = seen["tokens and groups of tokens come as often as the law says"]
    assert weakest is not None
    assert weakest >= printed["one half of the tokens"] * 0.99


def test_the_table_says_what_coupling_says() -> None:
    printed = {each.name: each for each in kinds(TIERS["quick"])}
    claims = Claims(sync_free=False, stream=STREAMS["flashinfer"])
    for kind in ("undirected", "directed"):
        name = "peaked-none" if kind == "undirected" else "edges-none"
        (result,) = check(FlashInferSampling, claims=claims, only=f"coupling/{kind}/{name}").results
        (each,) = result.evidence
        assert each.draws is not None
        assert each.detectable is not None
        sees = printed[f"coupling, {kind}"].sees(each.draws)
        # The table takes the largest distance to an edge that directed draws may have.
        assert each.detectable <= sees * (1 + 1e-12)
        assert each.detectable >= (1 - 1e-12) * (sees if kind == "undirected" else sees - 2e-6)


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--tier", "quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["alpha"] == alpha_of(TIERS["quick"])
    assert printed["miss"] == MISS
    assert {"test", "error", "sees", "needs"} == set(printed["tests"][0])
    assert main(["power", "--tier", "full"]) == 0
    assert "distribution by rank" in capsys.readouterr().out
