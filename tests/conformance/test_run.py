"""The run as a whole: reports, interruptions, crashes, limits, claims."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch

from conformance import Claims, check, from_function
from conformance.clauses import CLAUSES, TIERS, plan
from conformance.runner import Run, check_id
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


NAMED = from_function(plain_multinomial)


def throw(error: BaseException) -> None:
    raise error


def acting(act: Callable[[], None]) -> type[PlainSampling]:
    """A right sampler that does something before it draws for a vocabulary of eight, as the first of `FEW` has it."""

    class Acting(PlainSampling):
        def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self.vocab_size == 8:
                act()
            return super().sample_kernel(*args, **kwargs)

    return Acting


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


@pytest.mark.parametrize("raised", [SystemExit(3), BaseException("deep"), GeneratorExit()], ids=repr)
def test_whatever_the_sampler_raises_fails_the_check(raised: BaseException) -> None:
    report = check(acting(lambda: throw(raised)), only=FEW)
    assert [each.status for each in report.results] == ["fail", "pass"]
    assert type(raised).__name__ in report.results[0].error


def test_a_check_ends_at_the_limit_and_shows_where_it_was() -> None:
    def hang() -> None:
        for _ in range(200):
            with suppress(Exception):  # a limit that were an Exception would be lost here
                time.sleep(0.05)

    started = time.perf_counter()
    report = check(acting(hang), only=FEW, limit=0.2)
    assert time.perf_counter() - started < 5
    assert [each.status for each in report.results] == ["fail", "pass"]
    assert "did not end within 0.2 s" in report.results[0].error
    assert "in hang" in report.results[0].error
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_limit_that_is_swallowed_comes_again() -> None:
    def hang() -> None:
        for _ in range(2):
            with suppress(BaseException):
                time.sleep(5)
        time.sleep(5)

    assert "did not end" in check(acting(hang), only=FEW[0], limit=0.1).results[0].error


def test_a_timer_of_the_program_is_left_alone() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        report = check(acting(lambda: time.sleep(0.3)), only=FEW[0], limit=0.1)
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert report.results[0].status == "pass"


def test_outside_the_main_thread_there_is_no_limit() -> None:
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(check, acting(lambda: time.sleep(0.3)), only=FEW[0], limit=0.1).result()
    assert report.results[0].status == "pass"


def test_a_broken_device_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands in for a device-side assert, which no CPU has: after it, every call of CUDA raises.
    def broken(run: Run) -> bool:
        run.broken = True
        return True

    monkeypatch.setattr(Run, "_find_broken", broken)
    report = check(acting(lambda: throw(RuntimeError("assert"))), only=FEW)
    assert [each.status for each in report.results] == ["fail"]
    assert "left CUDA broken" in report.results[0].error
    assert report.not_run == ["calls/empty/empty-n1-V2-fp32"]
    assert report.exit_code == 1


def test_a_context_that_cannot_be_made_is_a_failed_check() -> None:
    def make_context(*_parameters: Any) -> None:
        raise TypeError("no context")

    report = check(ReferenceSampling, claims=Claims(make_context=make_context), only=FEW[0])
    assert report.results[0].status == "fail"
    assert "no context" in report.results[0].error
    assert "report = check(" in report.results[0].reproducer


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (ReferenceSampling, "reference.sampling:ReferenceSampling"),
        (from_function(plain_multinomial), f"{__name__}:from_function(plain_multinomial)"),
        (NAMED, f"{__name__}:NAMED"),
    ],
    ids=["class", "made-here", "bound-to-a-name"],
)
def test_a_factory_is_named_as_it_can_be_imported(factory: Any, name: str) -> None:
    assert check(factory, only="calls/empty").sampler == name


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
    claims = Claims(top_k_ties="lowest-index")
    assert check(exactly_k, claims=claims, only=["top-k/ties"]).counts["fail"] == 0
    # And the claim is held against a sampler that keeps all ties.
    assert check(ReferenceSampling, claims=claims, only=["top-k/ties"]).counts["fail"] > 0


@pytest.mark.parametrize(
    "choices",
    [
        {"top_k_ties": "lowest-index"},
        {"top_k_ties": "any", "top_p_ties": "any"},
        {"top_p_ties": "lowest-index", "filter_order": "joint"},
        {"greedy_ties": "any", "top_p_off": frozenset({1.0})},
    ],
    ids=["k-lowest", "any", "p-lowest-joint", "greedy-any-p0"],
)
def test_the_reference_with_options_passes_by_its_own_claims(choices: dict[str, Any]) -> None:
    # What an option changes: which tokens stay, and their log-probs.
    groups = ["top-", "greedy", "calls/parameters-by-slot", "invalid", "log-probs/small", "log-probs/token"]
    report = check(partial(ReferenceSampling, options=LawOptions(**choices)), claims=choices, only=groups)
    assert [result.id for result in report.results if result.status == "fail"] == []


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
        ({"limit": 0}, "limit"),
        ({"limit": float("inf")}, "limit"),
        ({"limit": True}, "limit"),
    ],
    ids=["tier", "device-kind", "device-name", "only", "limit-zero", "limit-none", "limit-bool"],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must"):
        check(ReferenceSampling, **arguments)


@pytest.mark.parametrize("stream", ["nobody's", 7, object()], ids=["name", "number", "object"])
def test_a_claimed_stream_that_is_none_is_refused(stream: Any) -> None:
    with pytest.raises(ValueError, match=r"claims\.stream"):
        check(ReferenceSampling, claims={"stream": stream}, only=FEW)


def test_unknown_claims_are_refused() -> None:
    class Boasting(PlainSampling):
        claims = {"infallible": True}  # noqa: RUF012  # as a user would write it

    with pytest.raises(ValueError, match="infallible"):
        check(Boasting)
    with pytest.raises(ValueError, match="infallible"):
        check(PlainSampling, claims={"infallible": True})
    with pytest.raises(ValueError, match=r"claims must be a conformance\.Claims or a mapping of its fields, got 3"):
        check(PlainSampling, claims=3)  # type: ignore[arg-type]  # wrong on purpose
