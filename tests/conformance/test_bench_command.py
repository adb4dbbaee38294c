"""`python -m conformance bench`: exit codes, files, and one line for whatever is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import Claims, commands
from conformance.__main__ import main
from tests.conformance.test_bench import LOG_PROBS, ROUNDS, TOPK

BENCH = "tests.conformance.test_bench"
SAMPLERS = ("--sampler=right=reference:ReferenceSampling", "--sampler=conformance.measure.baselines:TorchComposition")
QUICK = ("bench", f"--case={TOPK}", "--time=cold", f"--rounds={ROUNDS}")


def test_the_command_and_its_report_give_the_same_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, page, picture = (tmp_path / name for name in ("r.json", "r.md", "r.png"))
    targets = (f"--report={report}", f"--markdown={page}", f"--roofline={picture}")
    assert main([*QUICK, *SAMPLERS, *targets]) == 0
    assert f"report: {report}" in capsys.readouterr().out.replace("\n", "")
    assert "TorchComposition / right" in page.read_text()
    again = tmp_path / "again.png"
    assert main(["bench", f"--from={report}", "--markdown=-", f"--roofline={again}"]) == 0
    output = capsys.readouterr()
    assert output.out == page.read_text()
    assert "each call reads logits that no cache holds" in output.err
    assert again.read_bytes()[:8] == picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, f"--sampler={BENCH}:AlwaysZero"]) == 1
    assert "WRONG: AlwaysZero on" in capsys.readouterr().out
    picture = tmp_path / "r.png"
    assert main([*QUICK, f"--sampler={BENCH}:Raising", f"--roofline={picture}"]) == 1
    assert "no picture: roofline must be of a report with" in capsys.readouterr().out.replace("\n", " ")
    assert not picture.exists()

    def interrupt(*_arguments: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.measure.session.Session.time", interrupt)
    assert main([*QUICK, *SAMPLERS]) == 1
    assert f"interrupted, and not timed: {TOPK}" in capsys.readouterr().out


nothing = Claims()
TORCH = "bench --sampler=conformance.measure.baselines:TorchComposition"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench", "--sampler must be given, or --from"),
        ("bench --sampler=torch", "--sampler must be module:attribute, got 'torch'"),
        (
            f"bench --sampler=a={__name__}:nothing",
            f"--sampler must name something that can be called, got '{__name__}:",
        ),
        (
            f"{TORCH} --sampler=read={BENCH}:Raising",
            "--sampler must have a name other than ['read', 'TorchComposition'",
        ),
        (f"{TORCH} --sampler=x.y={BENCH}:none", "has no attribute 'none'"),
        (f"{TORCH} --sampler={BENCH}:TorchComposition", f"NAME={BENCH}:TorchComposition gives one"),
        (f"{TORCH} --case=n2-V64", "--case must be n<slots>-V<vocabulary>-<fp32|fp16|bf16>"),
        (f"{TORCH} --cases=huge", "argument --cases: invalid choice: 'huge'"),
        (f"{TORCH} --cases=quick --case={TOPK}", "argument --case: not allowed with argument --cases"),
        (f"{TORCH} --time=hot", "argument --time: invalid choice: 'hot'"),
        (f"{TORCH} --time=host", "time must be among ['cold', 'warm'] on cpu, got ['host']"),
        (f"{TORCH} --rounds=7", "rounds must be at least 8, got 7"),
        (f"{TORCH} --rounds=many", "argument --rounds: invalid int value: 'many'"),
        (f"{TORCH} --device=gpu", "device must be a CPU or a CUDA device, got 'gpu'"),
        (f"{TORCH} --report=no/r.json", "--report must lie in a folder that exists, got 'no/r.json'"),
        (f"{TORCH} --markdown=.", "--markdown must be a file that can be written, got '.'"),
        (f"{TORCH} --roofline=no/r.png", "--roofline must lie in a folder that exists, got 'no/r.png'"),
        (f"{TORCH} --report=a --roofline=a", "--roofline must be another file than that of --report, got 'a' for both"),
        (f"{TORCH} --roofline=r.png --time=warm", "--roofline must be with --time cold, got ['warm']"),
        (f"{TORCH} --roofline=r.png --case={LOG_PROBS}", "--roofline must be with a case without options, got ['n2-"),
        (f"{TORCH} --from=r.json", "--from must be without what says what to time and where to keep it, got --sampler"),
        ("bench --from=r.json --rounds=8", "where to keep it, got --rounds"),
        ("bench --from=no.json", "report must be a file that can be read, got 'no.json'"),
    ],
    ids=lambda value: value.replace(TORCH, "").strip(" -") if value.startswith("bench") else "",
)
def test_wrong_usage_is_one_line_before_anything_is_timed(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.measure.session.Session.lane", None)
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_what_a_picture_needs_is_missed_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "conformance.measure.roofline", None)
    monkeypatch.setattr(commands.bench, "bench", None)
    assert main([*QUICK, *SAMPLERS, f"--roofline={tmp_path / 'r.png'}"]) == 2
    assert "--roofline needs `pip install 'sampling-conformance[report]'`" in capsys.readouterr().err
