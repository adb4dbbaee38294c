"""The gate: budgets are kept, broken or undecided by intervals, and what is slower fails."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.__main__ import main
from conformance.measure import READ, Ratio, Session, Timed, Workload
from conformance.measure.budgets import SAMPLER, load
from conformance.measure.gate import Judgement, _measured, gate, new_budgets
from reference import ReferenceSampling
from tests.conformance.test_budgets import AGAINST, CASES, COUNT, HEAD, RATIO, write

SELF = AGAINST.replace("conformance.measure.baselines:TorchComposition", "reference:ReferenceSampling")
ROUNDS = "rounds = 16\nmost_rounds = 64\n"
"""With what is ten times as slow, and budgets half way between: real times, on machines that do other things too."""


class Tenfold(ReferenceSampling):
    """Does everything ten times."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        for _ in range(9):
            super().sample_kernel(logits, n, context, **call)
        return super().sample_kernel(logits, n, context, **call)


class OneOperationMore(ReferenceSampling):
    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        logits.sum()
        return super().sample_kernel(logits, n, context, **call)


class OutsideTheFilter(ReferenceSampling):
    """Right on time, and wrong."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:  # noqa: ARG002  # the contract's
        return logits[:n].argmin(1)


def judged(path: Path, *parts: str, sampler: Callable[..., Any] = ReferenceSampling, **options: Any) -> Judgement:
    budgets = load(write(path, *parts))
    return gate(budgets, {SAMPLER: sampler, "other": ReferenceSampling}, **options)


MEASURE = Session.time


class Scripted:
    """Puts other times in place of the measured ones, so that the true ratio is known, in tests of what times decide.

    The calls are made, in one round, so that they are checked as always.
    """

    def __init__(self, ratio: float, noise: float) -> None:
        self.ratio, self.noise = ratio, noise
        self.rounds: list[int] = []

    def __call__(
        self, session: Session, timed: Iterable[Timed], rounds: int, progress: Callable[[], None] = lambda: None
    ) -> None:
        timed = list(dict.fromkeys(timed))
        before = {each: dict(session.seconds.get(each, {})) for each in timed}
        MEASURE(session, timed, 1)
        session.seconds.update(before)
        rng = np.random.default_rng(len(self.rounds))
        for _ in range(rounds):
            number = len(self.rounds)
            for each in timed:
                value = (self.ratio if each.sampler == SAMPLER else 1.0) * rng.lognormal(0, self.noise)
                session.seconds[each][number] = float(value)
            self.rounds.append(1)
            progress()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Scripted]:
    def install(ratio: float, noise: float) -> Scripted:
        script = Scripted(ratio, noise)
        monkeypatch.setattr(Session, "time", lambda *given: script(*given))  # noqa: PLW0108  # else it has no session
        return script

    return install


@pytest.mark.parametrize(
    ("ratio", "status"), [(2.0, "pass"), (2.4, "pass"), (2.6, "fail"), (3.0, "fail")], ids=lambda value: f"{value}"
)
def test_an_interval_on_one_side_decides_at_once(
    tmp_path: Path, scripted: Callable[[float, float], Scripted], ratio: float, status: str
) -> None:
    script = scripted(ratio, 0.005)
    found = judged(tmp_path, HEAD, SELF, RATIO)
    assert [each.status for each in found.verdicts] == [status]
    assert len(script.rounds) == 24
    assert found.passed == (status == "pass")


def test_an_interval_that_straddles_the_budget_gets_more_rounds_up_to_the_last(
    tmp_path: Path, scripted: Callable[[float, float], Scripted]
) -> None:
    script = scripted(2.5, 0.2)
    found = judged(tmp_path, HEAD, SELF, RATIO)
    assert [each.status for each in found.verdicts] == ["undecided"]
    assert len(script.rounds) == 96


def test_what_further_rounds_decide_is_decided(tmp_path: Path, scripted: Callable[[float, float], Scripted]) -> None:
    script = scripted(2.7, 0.1)
    found = judged(tmp_path, HEAD, SELF, RATIO)
    assert [each.status for each in found.verdicts] == ["fail"]
    assert 24 < len(script.rounds) <= 96


@pytest.mark.parametrize(("undecided", "passed"), [(None, True), ("pass", True), ("fail", False)])
def test_an_undecided_budget_means_what_the_owner_of_the_gate_says(
    tmp_path: Path, scripted: Callable[[float, float], Scripted], undecided: str | None, *, passed: bool
) -> None:
    scripted(2.5, 0.2)
    assert judged(tmp_path, HEAD, SELF, RATIO, undecided=undecided).passed == passed


class Drawn(Session):
    """Has times that are drawn, and no samplers."""

    def __init__(self, ratio: float, noise: float, seed: int) -> None:
        self.seconds, self._rng = {}, np.random.default_rng(seed)
        self._ratio, self._noise = ratio, noise

    def time(self, timed: Iterable[Timed], rounds: int, progress: Callable[[], None] = lambda: None) -> None:
        for each in dict.fromkeys(timed):
            held = self.seconds.setdefault(each, {})
            factor = self._ratio if each.sampler == SAMPLER else 1.0
            for value in factor * self._rng.lognormal(0, self._noise, rounds):
                held[len(held)] = float(value)
        progress()


def test_false_alarms_are_as_rare_as_the_confidence_says(tmp_path: Path) -> None:
    # A ratio that is exactly the budget, at 99 % over all looks, so at most 0.5 % on each side. Six or more failures of
    # 100 come with a probability of 2e-5.
    budgets = load(write(tmp_path, HEAD, SELF, RATIO))
    (budget,) = budgets.budgets
    found = [
        _measured(Drawn(budget.at_most, 0.1, seed), budgets, [budget], lambda: None)[budget.number]
        for seed in range(100)
    ]
    assert all(isinstance(each, Ratio) for each in found)
    low, high = (np.array([getattr(each, end) for each in found]) for end in ("low", "high"))
    assert (low > budget.at_most).sum() < 6
    assert (high <= budget.at_most).sum() < 6


def test_what_takes_ten_times_as_long_fails(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD, ROUNDS, SELF, RATIO.replace("2.5", "3.2"), sampler=Tenfold)
    assert [each.status for each in found.verdicts] == ["fail"]
    assert not found.passed


def test_what_takes_as_long_passes(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD, ROUNDS, SELF, RATIO.replace("2.5", "3.2"))
    assert [each.status for each in found.verdicts] == ["pass"]


def test_one_operation_more_fails_its_count(tmp_path: Path) -> None:
    right = judged(tmp_path, HEAD, COUNT.replace("300", "0")).verdicts[0]
    assert right.status == "fail"
    exactly = COUNT.replace("300", str(int(right.value)))
    assert judged(tmp_path, HEAD, exactly).passed
    assert not judged(tmp_path, HEAD, exactly, sampler=OneOperationMore).passed


def test_fast_and_wrong_is_wrong(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD, ROUNDS, CASES, sampler=OutsideTheFilter)
    assert [each.status for each in found.verdicts] == ["wrong"]
    assert "every drawn id is one that the law allows" in found.verdicts[0].note
    assert not found.passed
    with pytest.raises(ValueError, match="--rebase must be given a sampler whose timed calls are right"):
        new_budgets(found)


def test_a_baseline_that_is_wrong_measures_nothing(tmp_path: Path) -> None:
    budgets = load(write(tmp_path, HEAD, ROUNDS, AGAINST, RATIO))
    found = gate(budgets, {SAMPLER: ReferenceSampling, "other": OutsideTheFilter})
    assert [each.status for each in found.verdicts] == ["wrong"]
    assert found.verdicts[0].note.startswith("other on ")


def test_an_interruption_keeps_what_was_judged(tmp_path: Path) -> None:
    def stop(what: str) -> None:
        if what.startswith("n3"):
            raise KeyboardInterrupt

    later = COUNT.replace("n2-", "n3-")
    found = judged(tmp_path, HEAD, COUNT, later, progress=stop)
    assert [each.status for each in found.verdicts] == ["pass"]
    assert found.not_run == ["n3-V64-fp32-topk5: operations"]
    assert not found.passed


def test_a_bare_read_that_is_no_floor_decides_nothing_good(
    tmp_path: Path, scripted: Callable[[float, float], Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(2.0, 0.005)
    read = Timed(READ, Workload.of("n2-V64-fp32-topk5"), "cold")
    monkeypatch.setattr(Session, "slow_floors", lambda _session: [f"{read} reads 1 GB/s, 9% of the best"])
    found = judged(tmp_path, HEAD, RATIO.replace("other", READ))
    assert [each.status for each in found.verdicts] == ["undecided"]


@pytest.mark.parametrize("value", [1.2345, 0.0999, 241.4, 2.0, 9.996])
def test_new_budgets_leave_the_margin_and_have_three_digits(
    tmp_path: Path, scripted: Callable[[float, float], Scripted], value: float
) -> None:
    scripted(value, 0.0)
    found = judged(tmp_path, HEAD, SELF, RATIO, COUNT)
    (new,) = new_budgets(found).values()
    assert value * 1.05 <= new <= value * 1.05 * 1.01
    assert float(f"{new:.3g}") == new


class TestCommand:
    def test_prints_a_table_and_writes_a_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file, report = write(tmp_path, HEAD, COUNT), tmp_path / "report.json"
        assert main(["gate", "--budgets", str(file), "--report", str(report)]) == 0
        out = capsys.readouterr().out
        assert "within its budgets" in out
        data = json.loads(report.read_text(encoding="utf-8"))
        assert (data["passed"], data["counts"]["pass"]) == (True, 1)
        assert data["verdicts"][0]["id"] == "n2-V64-fp32-topk5: operations"
        assert data["environment"]["torch"] == torch.__version__

    def test_fails_with_the_reason_of_the_budget(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = write(tmp_path, HEAD, COUNT.replace("300", "3"))
        assert main(["gate", "--budgets", str(file), "--markdown", "-"]) == 1
        out = capsys.readouterr().out
        assert out.startswith("**reference.sampling:ReferenceSampling: NOT WITHIN ITS BUDGETS (1 fail")
        assert "- n2-V64-fp32-topk5: operations: each costs" in out
        assert "| n2-V64-fp32-topk5: operations | fail | " in out

    def test_judges_any_other_sampler(self, tmp_path: Path) -> None:
        file = write(tmp_path, HEAD, ROUNDS, AGAINST, RATIO.replace("2.5", "3.2"))
        other = ["--sampler", f"{__name__}:Tenfold", "--against", "other=reference:ReferenceSampling"]
        assert main(["gate", "--budgets", str(file), *other]) == 1
        assert main(["gate", "--budgets", str(file), *other[2:]]) == 0

    def test_rebases_the_file_and_shows_the_difference(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        unfixed = COUNT.replace("fixed = true", "").replace("n2", "n4")
        file = write(tmp_path, HEAD, 'measured_on = ""', COUNT, unfixed)
        assert main(["gate", "--budgets", str(file), "--rebase"]) == 0
        out = capsys.readouterr().out
        assert "fixed" in out
        budgets = load(file)
        assert budgets.budgets[0].at_most == 300
        assert 0 < budgets.budgets[1].at_most < 300
        assert "torch" in budgets.measured_on
        assert main(["gate", "--budgets", str(file)]) == 0

    def test_only_some_budgets_are_judged(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = write(tmp_path, HEAD, COUNT, COUNT.replace("n2", "n4").replace("300", "1"))
        assert main(["gate", "--budgets", str(file), "--only", "n2-V64"]) == 0
        assert "n4-V64" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            (["--only", "n9"], "only must be part of an id of "),
            (["--sampler", "reference"], "--sampler must be module:attribute, got 'reference'"),
            (
                ["--against", "nobody=reference:ReferenceSampling"],
                "--against must be name=module:factory with a name of []",
            ),
            (["--rebase", "--sampler", "reference:ReferenceSampling"], "--rebase must be without --sampler"),
            (["--report", "/nowhere/report.json"], "--report must lie in a folder that exists"),
            (["--undecided", "retry"], "argument --undecided: invalid choice: 'retry'"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_wrong_usage_is_said_in_a_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
    ) -> None:
        file = write(tmp_path, HEAD, COUNT)
        assert main(["gate", "--budgets", str(file), *more]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert says in error


class CachesByAddress(ReferenceSampling):
    """Draws again what it drew of the logits that lay there the last time."""

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng)
        self._kept: dict[int, Tensor] = {}

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        if logits.data_ptr() not in self._kept:
            self._kept[logits.data_ptr()] = logits.clone()
        return super().sample_kernel(self._kept[logits.data_ptr()], n, context, **call)


class Leaves(ReferenceSampling):
    """Ends its process where it can."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:  # noqa: ARG002  # the contract's
        raise SystemExit(0)


def test_what_is_only_counted_is_checked_too(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD, COUNT, sampler=OutsideTheFilter)
    assert [each.status for each in found.verdicts] == ["wrong"]


def test_a_cache_that_goes_by_addresses_is_seen(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD, COUNT.replace("n2-V64-fp32-topk5", "n2-V4096-fp32-topk5"), sampler=CachesByAddress)
    assert [each.status for each in found.verdicts] == ["wrong"]


def test_a_sampler_that_would_end_the_process_is_wrong(tmp_path: Path) -> None:
    found = judged(tmp_path, HEAD, ROUNDS, SELF, RATIO, COUNT, sampler=Leaves)
    assert [(each.status, each.note[:10]) for each in found.verdicts] == [("wrong", "SystemExit")] * 2
    assert not found.passed


def test_an_error_says_of_whom(tmp_path: Path) -> None:
    budgets = load(write(tmp_path, HEAD, ROUNDS, AGAINST, RATIO))
    found = gate(budgets, {SAMPLER: ReferenceSampling, "other": Leaves})
    assert found.verdicts[0].note.startswith("SystemExit: 0")
