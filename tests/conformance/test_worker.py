"""Runs in processes of their own: what ends or blocks one fails a check, and no more."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from conformance import Claims, Report, check, worker
from conformance.runner import Run
from conformance.worker import check_isolated, portable
from reference import ReferenceSampling

pytestmark = pytest.mark.slow  # a process takes some three seconds to import torch

DEADLY = "tests.conformance.deadly"
EACH_GAP, UNSORTED = "top-p/crossing-token/each-gap-n8-V8-fp32", "top-p/crossing-token/unsorted-n2-V4-fp32"
BREAKS = "top-p/ties/tied-p-n4-V6-fp32"
LEAVES, BLOCKS = "greedy/top-k-one/k1-n5-V4-fp16", "greedy/top-k-one/k1-n5-V4-bf16"


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str]:
    """A report of five checks, of which four end their process, and what was printed."""
    expected = tmp_path_factory.mktemp("expected") / "expected.toml"
    expected.write_text(
        f"[[expected-failure]]\nmatch = '{LEAVES}'\nreason = 'leaves'\nlink = 'https://example.org/7'\n"
    )
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "GRACE", 1.0)
        report = check_isolated(
            f"{DEADLY}:deadly",
            only=[EACH_GAP, UNSORTED, BREAKS, LEAVES, BLOCKS],
            limit=1.0,
            expected_failures=expected,
            output=printed.append,
        )
    return report, "".join(printed)


def test_each_check_has_a_result_of_its_own(deadly: tuple[Report, str]) -> None:
    statuses = {result.id: result.status for result in deadly[0].results}
    failed = dict.fromkeys([EACH_GAP, BREAKS, BLOCKS], "fail")
    assert statuses == failed | {UNSORTED: "pass", LEAVES: "expected failure"}
    assert deadly[0].not_run == []
    assert deadly[0].exit_code == 1


def test_a_crash_is_shown_where_it_was(deadly: tuple[Report, str]) -> None:
    (crash,) = (result for result in deadly[0].results if result.id == EACH_GAP)
    assert crash.error.startswith("the process died: signal SIGSEGV\nFatal Python error: Segmentation fault\n")
    assert "in segfault" in crash.error
    assert "Extension modules" not in crash.error
    assert "from tests.conformance.deadly import deadly as make_sampler" in crash.reproducer
    assert crash.must


def test_an_exit_is_shown_with_its_code(deadly: tuple[Report, str]) -> None:
    (left,) = (result for result in deadly[0].results if result.id == LEAVES)
    assert left.error.startswith("the process died: exit code 3\n")
    assert left.reason == "leaves (https://example.org/7)"


def test_a_native_hang_is_ended_and_shown(deadly: tuple[Report, str]) -> None:
    (hung,) = (result for result in deadly[0].results if result.id == BLOCKS)
    assert hung.error.startswith("did not end within 1 s\nTimeout (")
    assert "in block" in hung.error
    assert 1 < hung.seconds < 10


def test_what_the_sampler_prints_is_passed_on(deadly: tuple[Report, str]) -> None:
    assert "drawing\n" in deadly[1]
    assert "Fatal Python error" not in deadly[1]  # it is part of the result


def test_a_verdict_is_the_same_in_a_process_of_its_own(deadly: tuple[Report, str]) -> None:
    (isolated,) = (result for result in deadly[0].results if result.id == UNSORTED)
    (here,) = check(ReferenceSampling, only=UNSORTED).results
    assert isolated.evidence == here.evidence
    assert any(each.p_value is not None for each in here.evidence)


def test_a_broken_device_ends_one_process_and_not_the_run(deadly: tuple[Report, str]) -> None:
    (broke,) = (result for result in deadly[0].results if result.id == BREAKS)
    assert "device-side assert" in broke.error
    assert "left CUDA broken" in broke.error


def test_processes_that_all_die_at_once_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_DEATHS", 2)
    report = check_isolated(f"{DEADLY}:aborting", only=["top-p/crossing-token", "calls/empty"])
    assert [result.status for result in report.results] == ["fail", "fail"]
    assert "signal SIGABRT" in report.results[1].error
    assert "2 processes in a row ended before a check was done" in report.results[1].error
    assert len(report.not_run) == 2
    assert report.exit_code == 1


def test_ctrl_c_keeps_what_was_done_also_where_it_is_still_on_its_way() -> None:
    only = ["top-p/crossing-token", "calls/empty"]
    # pytest-xdist has its workers ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # The interrupt comes while this process has not yet heard of the first result.
        report = check_isolated(
            f"{DEADLY}:interrupting", only=only, progress=lambda number, *_: time.sleep(50 if number == 0 else 0)
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.interrupted
    assert [result.status for result in report.results] == ["pass"]
    assert report.not_run[0] == UNSORTED
    assert report.exit_code == 1


def test_a_factory_that_ends_its_process_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--sampler must make a sampler, got .*: the process died: exit code 5"):
        check_isolated(f"{DEADLY}:dying")


def test_what_is_wrong_is_told_as_it_is_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--sampler must name something that can be imported"):
        check_isolated("no.such:thing", expected_failures=tmp_path / "none.toml")
    with pytest.raises(ValueError, match="limit must be a number of seconds above 0, got 0"):
        check_isolated(f"{DEADLY}:deadly", limit=0)


def test_last_words_are_the_cause_and_the_deepest_frames() -> None:
    cause = ["Assertion `index < sizes[i]` failed.", "terminate called after throwing", "  what():  CUDA error"]
    native = [f"frame #{number}: at::native" for number in range(40)]
    frames = [f"  File {number}" for number in range(30)]
    dump = ["Fatal Python error: Aborted", "", "Current thread (most recent call first):", *frames]
    written = "\n".join(["noise"] * 50 + cause + native + dump + ["", "Extension modules: torch._C"])
    words = worker._last_words(written).splitlines()
    assert words[17:20] == cause
    assert words[20:] == ["Fatal Python error: Aborted", "Current thread (most recent call first):", *frames[:18]]
    assert worker._last_words("killed\n") == "killed\n"


def test_claims_that_cannot_be_sent_are_sent_by_name() -> None:
    claims = Claims(make_context=lambda *parameters: parameters, stream="reference")  # type: ignore[arg-type]  # by name
    report = Run(ReferenceSampling, claims=claims).report
    assert portable(report).to_json() == report.to_json()
