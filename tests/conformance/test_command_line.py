"""The command line: exit codes, files, and one line for whatever is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import commands
from conformance.__main__ import main
from conformance.clauses import CLAUSES

ROOT = Path(__file__).parents[2]
FEW = ("--only=top-p/crossing-token/each-gap", "--only=calls/empty")
REFERENCE = ("run", "--in-process", "--sampler=reference:ReferenceSampling")
BROKEN = ("run", "--in-process", "--sampler=tests.conformance.test_broken_samplers:ignores_top_p")

MODULES = {
    "raises": "raise RuntimeError('two\\nlines')\n",
    "leaves": "raise SystemExit(3)\n",
    "spelled": "def make_sampler(:\n",
    "samplers": """
from conformance import Claims
from reference import ReferenceSampling as right
def raising(vocab_size, rng):
    raise OSError("no such kernel")
def leaving(vocab_size, rng):
    raise SystemExit(3)
def lists(vocab_size, rng):
    return [vocab_size]
unknown = {"infallible": True}
wrong = {"top_k_ties": "both"}
stream = {"stream": "nobody's"}
""",
}
ENTRY = "[[expected-failure]]\nmatch = 'top-k/ties'\nreason = 'no'\nlink = 'https://example.org'\n"
FILES = {
    "broken.toml": "[[expected-failure\n",
    "unknown.toml": ENTRY + "who = 'me'\n",
    "twice.toml": ENTRY + ENTRY,
    "no-link.toml": ENTRY.replace("https", "ftp"),
    "nowhere.toml": ENTRY.replace("top-k/ties", "top-k/nowhere"),
    "expired.toml": ENTRY + "until = '2026.1'\n",
    "broken.json": "{",
    "other.json": "{}",
}
RIGHT = "run --in-process --sampler=samplers:right"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of a user with modules and files in it."""
    for name, source in MODULES.items():
        tmp_path.joinpath(f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, text in FILES.items():
        tmp_path.joinpath(name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REFERENCE, *FEW]) == 0
    assert main([*BROKEN, *FEW]) == 1
    output = capsys.readouterr().out
    for word in ("observed", "allowed", "reproduce", "NOT CONFORMANT", "required"):
        assert word in output


BOAST = {"top_k_ties": "lowest-index"}


def test_a_run_in_a_process_of_its_own_finds_the_same(tmp_path: Path) -> None:
    arguments = [*REFERENCE, f"--claims={__name__}:BOAST", "--only=top-k/ties/tied-k", "--only=calls/empty"]
    reports = []
    for name, each in (("here", arguments), ("there", [word for word in arguments if word != "--in-process"])):
        path = tmp_path / f"{name}.json"
        assert main([*each, f"--report={path}"]) == 1
        report = json.loads(path.read_text())
        for result in [report, *report["results"]]:
            result["seconds"] = 0
        reports.append(report)
    assert reports[0] == reports[1]
    (probe,) = reports[1]["probes"]
    assert (probe["claim"], probe["claimed"], probe["tried"], probe["works"]) == (
        "top_k_ties", "lowest-index", "keep-all", True,
    )  # fmt: skip


def test_pages_of_a_run_and_of_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, page, summary = (tmp_path / name for name in ("r.json", "r.html", "r.md"))
    assert main([*BROKEN, *FEW, f"--report={report}", f"--html={page}", f"--markdown={summary}"]) == 1
    again, both = tmp_path / "again.html", tmp_path / "both.html"
    capsys.readouterr()
    assert main(["render", str(report), f"--html={again}", "--markdown=-"]) == 0
    assert capsys.readouterr().out == summary.read_text()
    assert again.read_text() == page.read_text()
    assert main(["compare", str(report), str(report), f"--html={both}"]) == 0
    assert both.read_text().startswith("<!DOCTYPE html>")
    assert main(["compare", str(report), str(report)]) == 0
    table = capsys.readouterr().out
    assert "top-p/crossing-token" in table
    assert table.count("fail") == 2


def test_a_summary_on_stdout_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REFERENCE, *FEW, "--markdown=-"]) == 0
    output = capsys.readouterr()
    assert "sees:" not in output.out
    assert "sees:" in output.err
    assert "ReferenceSampling" in output.out


def test_expected_failures_are_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(ENTRY.replace("top-k/ties", "top-p/crossing-token/each-gap-n8-V8-fp32"))
    assert main([*BROKEN, *FEW, f"--expected-failures={path}"]) == 0
    assert main([*REFERENCE, *FEW, f"--expected-failures={path}"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("judge", "argument COMMAND: invalid choice: 'judge'"),
        ("run", "the following arguments are required: --sampler"),
        ("run --sampler=samplers", "--sampler must be module:attribute, got 'samplers'"),
        ("run --sampler=:right", "--sampler must be module:attribute, got ':right'"),
        ("run --sampler=no.such:thing", "got 'no.such:thing': ModuleNotFoundError: No module named 'no'"),
        ("run --sampler=samplers:wrung", "module 'samplers' has no attribute 'wrung' (found in {folder}/samplers.py)"),
        ("run --sampler=raises:x", "got 'raises:x': RuntimeError: two lines"),
        ("run --sampler=leaves:x", "got 'leaves:x': SystemExit: 3"),
        ("run --sampler=spelled:x", "got 'spelled:x': SyntaxError: invalid syntax (spelled.py, line 1)"),
        ("run --sampler=samplers:raising", "make_sampler must make a sampler from (vocab_size, rng), got OSError("),
        ("run --sampler=samplers:leaving", "make_sampler must make a sampler from (vocab_size, rng), got SystemExit("),
        ("run --sampler=samplers:lists", "make_sampler must make something with a sample_kernel, got list"),
        (f"{RIGHT} --claims=samplers", "--claims must be module:attribute, got 'samplers'"),
        (f"{RIGHT} --claims=samplers:right", "claims must be a conformance.Claims or a mapping of its fields, got"),
        (f"{RIGHT} --claims=samplers:unknown", "got ['infallible']"),
        (f"{RIGHT} --claims=samplers:wrong", "claims.top_k_ties must be one of"),
        (f"{RIGHT} --claims=samplers:stream", "claims.stream must be"),
        (f"{RIGHT} --tier=huge", "argument --tier: invalid choice: 'huge'"),
        (f"{RIGHT} --tier=full --draws=1e8", "draws can be chosen for tier 'deep' alone, got 100000000 with 'full'"),
        (f"{RIGHT} --tier=deep --draws=1e3", "draws must be at least those of tier 'full', 10000000, got 1000"),
        (f"{RIGHT} --draws=1.5", "argument --draws: must be a whole number such as 1e8, got '1.5'"),
        (f"{RIGHT} --draws=x", "argument --draws: must be a whole number such as 1e8, got 'x'"),
        (f"{RIGHT} --draws=inf", "argument --draws: must be a whole number such as 1e8, got 'inf'"),
        (f"{RIGHT} --device=gpu", "device must be a CPU or a CUDA device, got 'gpu'"),
        (f"{RIGHT} --only=nonsense", "only must name clauses or checks, got ['nonsense']"),
        (f"{RIGHT} --only=graphs", "--only must name something that applies on cpu, got ['graphs']"),
        (f"{RIGHT} --seed=x", "argument --seed: invalid int value: 'x'"),
        (f"{RIGHT} --limit=0", "limit must be a number of seconds above 0, got 0.0"),
        (f"{RIGHT} --limit=nan", "limit must be a number of seconds above 0, got nan"),
        (f"{RIGHT} --report=no/r.json", "--report must lie in a folder that exists, got 'no/r.json'"),
        (f"{RIGHT} --html=no/r.html", "--html must lie in a folder that exists, got 'no/r.html'"),
        (f"{RIGHT} --markdown=no/r.md", "--markdown must lie in a folder that exists, got 'no/r.md'"),
        (f"{RIGHT} --expected-failures=no.toml", "no.toml: expected_failures must be TOML that can be read: "),
        (f"{RIGHT} --expected-failures=.", ".: expected_failures must be TOML that can be read: "),
        (f"{RIGHT} --expected-failures=broken.toml", "broken.toml: expected_failures must be TOML that can be read: "),
        (f"{RIGHT} --expected-failures=unknown.toml", "unknown.toml: entry 1: keys must be among "),
        (f"{RIGHT} --expected-failures=twice.toml", "twice.toml: entry 2: match must be what no other entry matches; "),
        (f"{RIGHT} --expected-failures=no-link.toml", "no-link.toml: entry 1: link must be an address, "),
        (f"{RIGHT} --expected-failures=nowhere.toml", "nowhere.toml: entry 1: match must be a clause or a check of "),
        (f"{RIGHT} --expected-failures=expired.toml", "expired.toml: entry 1: until must be later than "),
        ("explain nonsense", "CLAUSE must be one of ['calls/bare', "),
        ("render no.json --markdown=-", "report must be a file that can be read, got 'no.json'"),
        ("render broken.json --markdown=-", "report 'broken.json' must hold JSON: "),
        ("render other.json --markdown=-", "report 'other.json' must hold a report of "),
        ("render broken.json", "render must be given --html or --markdown, got neither"),
        ("compare no.json", "report must be a file that can be read, got 'no.json'"),
        ("compare broken.json --html=no/r.html", "--html must lie in a folder that exists, got 'no/r.html'"),
    ],
    ids=lambda value: value.replace(RIGHT, "").strip(" -") if " must" not in value else "",
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    words = arguments.split()
    if words[:1] == ["run"] and "--in-process" not in words:
        words.append("--in-process")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message.format(folder=folder) in error


def test_what_a_page_needs_is_missed_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in ("conformance.report.page", "conformance.report.charts"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(commands.run, "check", None)
    assert main([*REFERENCE, *FEW, f"--html={tmp_path / 'r.html'}"]) == 2
    assert "--html needs `pip install 'sampling-conformance[report]'`" in capsys.readouterr().err


def test_it_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--cases"]) == 0
    listed = capsys.readouterr().out
    assert all(clause in listed for clause in CLAUSES)
    assert main(["explain", "top-p/crossing-token"]) == 0
    assert "the token that crosses p stays" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "."], "--report must be a file that can be written, got '.'"),
        (["--html", "."], "--html must be a file that can be written"),
        (["--markdown", "."], "--markdown must be a file that can be written"),
        (
            ["--report", "same", "--html", "same"],
            "--html must be another file than that of --report, got 'same' for both",
        ),
        (["--html", "-", "--markdown", "-"], "--markdown must be another file than that of --html"),
    ],
    ids=["report-folder", "html-folder", "markdown-folder", "report-is-html", "both-print"],
)
def test_a_target_that_cannot_be_written_is_refused_before_the_run(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*REFERENCE, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_a_run_that_is_told_to_end_reports_what_was_done(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    sampler = "tests.conformance.deadly:terminating"
    command = ["run", "--sampler", sampler, "--only", "top-p/crossing-token", "--report", str(path)]
    done = subprocess.run([sys.executable, "-m", "conformance", *command], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 1
    report = json.loads(path.read_text())
    assert report["interrupted"]
    assert report["counts"]["pass"] == 1
