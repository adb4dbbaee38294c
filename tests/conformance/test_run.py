"""The run as a whole: reports, the command line, interruptions, crashes, claims."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import Claims, check, from_function
from conformance.__main__ import main
from conformance.clauses import CLAUSES, TIERS, plan
from conformance.runner import check_id
from reference import LawOptions, ReferenceSampling, SamplingContext
from tests.conformance.samplers import PlainSampling, make

FEW = ["top-p/crossing-token/each-gap", "calls/empty"]


def plain_multinomial(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, _p: torch.Tensor, rng: torch.Generator
) -> torch.Tensor:
    """Greedy rows and temperature, no filters."""
    probs = torch.softmax(logits.double() / temperature.clamp(min=1e-6)[:, None], dim=1)
    drawn = torch.multinomial(probs, 1, generator=rng)[:, 0]
    return torch.where((temperature == 0) | (top_k == 1), logits.argmax(1), drawn)


def test_every_check_has_an_id_of_its_own() -> None:
    for tier in TIERS.values():
        ids = [check_id(clause, case) for clause, case in plan(tier)]
        assert len(ids) == len(set(ids))
        assert {clause.id for clause, _ in plan(tier)} == set(CLAUSES)


def test_the_report_counts_what_it_ran_and_is_json() -> None:
    report = check(ReferenceSampling, only=FEW)
    data = json.loads(json.dumps(report.to_json()))
    assert data["counts"]["required"] == data["counts"]["run"] == data["counts"]["pass"] == len(data["results"])
    assert data["verdict"] == "no failure among the selected checks"  # a part is never called conformant
    assert data["conformant"] is False
    statistical = data["results"][0]["evidence"][1]
    assert statistical["draws"] > 0
    assert 0 < statistical["alpha"] < 1e-6
    assert 0 < statistical["detectable"] < 0.1


def test_a_check_keeps_its_threshold_when_it_runs_alone() -> None:
    few = check(ReferenceSampling, only=FEW[:1]).results[0].evidence[1].alpha
    more = check(ReferenceSampling, only=["top-p/crossing-token/each-gap", "top-k/off"]).results
    assert few in {each.evidence[1].alpha for each in more}


def test_same_seed_same_report_and_a_fresh_seed_has_a_smaller_budget() -> None:
    first, second, fresh = (check(ReferenceSampling, only=FEW, seed=seed) for seed in (None, None, 7))
    assert [r.evidence for r in first.results] == [r.evidence for r in second.results]
    assert [r.evidence for r in first.results] != [r.evidence for r in fresh.results]
    assert fresh.alpha < first.alpha


def test_a_crash_inside_the_sampler_is_a_failed_check_with_its_traceback() -> None:
    class Crashing(PlainSampling):
        def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            if args[1] > 0:
                raise RuntimeError("boom")
            return super().sample_kernel(*args, **kwargs)

    report = check(Crashing, only=FEW)
    crashed, fine = report.results
    assert (crashed.status, fine.status) == ("fail", "pass")
    assert "boom" in crashed.error


def test_an_interrupted_run_keeps_what_was_done() -> None:
    def interrupt(number: int, _total: int, _what: str) -> None:
        if number == 1:
            raise KeyboardInterrupt

    report = check(ReferenceSampling, only=FEW, progress=interrupt)
    assert report.interrupted
    assert len(report.results) == 1
    assert report.not_run == ["calls/empty/empty-n1-V2-fp32"]
    assert report.verdict == "incomplete"


def test_claimed_options_change_the_law_that_is_asked_for() -> None:
    # An engine that keeps exactly k fails by the default law and passes by its own claim.
    exactly_k = make("exactly-k")
    assert check(exactly_k, only=["top-k/ties"]).counts["fail"] > 0
    claims = Claims(options=LawOptions(top_k_ties="lowest-index"))
    assert check(exactly_k, claims=claims, only=["top-k/ties"]).counts["fail"] == 0
    # And the claim is held against a sampler that keeps all ties.
    assert check(ReferenceSampling, claims=claims, only=["top-k/ties"]).counts["fail"] > 0


@pytest.mark.parametrize(
    "options",
    [
        LawOptions(top_k_ties="lowest-index"),
        LawOptions(top_k_ties="any", top_p_ties="any"),
        LawOptions(top_p_ties="lowest-index", filter_order="joint"),
        LawOptions(greedy_ties="any", top_p_off=frozenset({1.0})),
    ],
    ids=["k-lowest", "any", "p-lowest-joint", "greedy-any-p0"],
)
def test_the_reference_with_options_passes_by_its_own_claims(options: LawOptions) -> None:
    # All but the large vocabularies, which no option changes.
    groups = ["randomness", "top-", "greedy", "calls", "isolation", "invalid", "log-probs/small", "log-probs/token"]
    report = check(partial(ReferenceSampling, options=options), claims=Claims(options=options), only=groups)
    assert [result.id for result in report.results if result.status == "fail"] == []


@pytest.mark.parametrize(
    "options", [LawOptions(log_probs="raw"), LawOptions(parameters_by="row"), LawOptions(uniform_bits=24)], ids=str
)
def test_options_that_cannot_be_judged_yet_are_refused(options: LawOptions) -> None:
    with pytest.raises(ValueError, match=r"claims\.options\.\w+ must be"):
        check(ReferenceSampling, claims=Claims(options=options))


def test_a_factory_that_makes_no_sampler_is_named() -> None:
    with pytest.raises(ValueError, match="make_sampler must make a sampler"):
        check(plain_multinomial)
    with pytest.raises(ValueError, match="from_function"):
        check(lambda _vocab_size, _rng: plain_multinomial)


def test_a_plain_function_is_judged_without_log_probs() -> None:
    make_sampler = from_function(plain_multinomial)
    report = check(make_sampler, only=["temperature/scale", "greedy/temperature-zero/T0-none", "log-probs/law"])
    assert {r.status for r in report.results if r.clause != "log-probs/law"} == {"pass"}
    assert {r.status for r in report.results if r.clause == "log-probs/law"} == {"not applicable"}
    assert check(make_sampler, only=["top-p/crossing-token/each-gap"]).counts["fail"] == 1


def test_a_plain_function_serves_the_contract() -> None:
    sampler = from_function(plain_multinomial)(3, torch.Generator().manual_seed(0))
    context = SamplingContext([0.0, 0.0], [0, 0], [0.0, 0.0])
    output = torch.full((2,), -1)
    ids = sampler.sample_kernel(
        torch.tensor([[0.0, 1, 2, 9], [3, 0, 0, 9]]),
        2,
        context,
        no_top_k=True,
        no_top_p=True,
        gather_indices=torch.tensor([1, 0]),
        output=output,
    )
    assert ids is output
    assert output.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tier": "huge"}, "tier"),
        ({"device": "meta"}, "device"),
        ({"device": "gpu"}, "device"),
        ({"only": ["no/such"]}, "only"),
    ],
    ids=["tier", "device-kind", "device-name", "only"],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must"):
        check(ReferenceSampling, **arguments)


@pytest.mark.parametrize("stream", ["flashinfer", 7, object()], ids=["name", "number", "object"])
def test_a_claimed_stream_that_is_none_is_refused(stream: Any) -> None:
    with pytest.raises(ValueError, match=r"claims\.stream"):
        check(ReferenceSampling, claims=Claims(stream=stream), only=FEW)


def test_unknown_claims_are_refused() -> None:
    class Boasting(PlainSampling):
        claims = {"infallible": True}  # noqa: RUF012  # as a user would write it

    with pytest.raises(ValueError, match="infallible"):
        check(Boasting)


def test_command_line_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = [argument for each in FEW for argument in ("--only", each)]
    report = tmp_path / "report.json"
    assert main(["run", "--sampler", "reference:ReferenceSampling", "--report", str(report), *only]) == 0
    assert json.loads(report.read_text())["counts"]["fail"] == 0
    broken = "tests.conformance.test_broken_samplers:ignores_top_p"
    assert main(["run", "--sampler", broken, *only]) == 1
    output = capsys.readouterr().out
    for word in ("observed", "allowed", "reproduce", "NOT CONFORMANT", "required"):
        assert word in output
    assert main(["run", "--sampler", "no.such:thing"]) == 2
    assert main(["run", "--sampler", "reference:ReferenceSampling", "--only", "nonsense"]) == 2
    assert main(["run", "--sampler", "reference:ReferenceSampling", "--only", "graphs"]) == 2  # nothing applies here
    assert main(["run", "--sampler", broken, "--report", str(tmp_path / "none" / "report.json"), *only]) == 2
    assert main(["explain", "nonsense"]) == 2
    for tier, draws in (("full", "1e8"), ("deep", "1e3")):
        assert main(["run", "--sampler", "reference:ReferenceSampling", "--tier", tier, "--draws", draws]) == 2
    for draws in ("x", "1.5", "inf"):
        with pytest.raises(SystemExit, match="2"):
            main(["run", "--sampler", "reference:ReferenceSampling", "--tier", "deep", "--draws", draws])
    with pytest.raises(SystemExit, match="2"):
        main(["run"])


def test_command_line_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--cases"]) == 0
    listed = capsys.readouterr().out
    assert all(clause in listed for clause in CLAUSES)
    assert main(["explain", "top-p/crossing-token"]) == 0
    assert "the token that crosses p stays" in " ".join(capsys.readouterr().out.split())
