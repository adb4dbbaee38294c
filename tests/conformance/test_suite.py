"""``pytest --pyargs conformance.suite``: a sampler that is named, in a folder that holds nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import conformance
from conformance import check, plugin
from reference import ReferenceSampling

pytest_plugins = ["pytester"]

# pytester forgets what its sessions import, and numpy cannot be imported twice.
import_module("conformance.worker")

ROOT = Path(conformance.__file__).parents[1]
MINE = """
from reference import ReferenceSampling
class Mine(ReferenceSampling):
    claims = {"top_k_ties": "lowest-index"}
CLAIMS = {"token_log_probs": False}
"""
SUITE = ("--pyargs", "conformance.suite", "--sampler=mine:Mine")


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, with the plugins that are named and no other."""
    folder.joinpath("mine.py").write_text(MINE)
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", *arguments]
    found = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_workers_tell_the_whole_story(tmp_path: Path) -> None:
    done = pytest_in(
        tmp_path, *SUITE, "-pxdist", "-n2", "-v", "-ktop-k/ties or calls/result", "--conformance-report=report.json",
        "--strict-markers", "-Werror", "-pno:cacheprovider",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    report = json.loads(tmp_path.joinpath("report.json").read_text())
    here = check(ReferenceSampling, claims={"top_k_ties": "lowest-index"}, only=["top-k/ties", "calls/result"])
    for key in ("counts", "claims", "alpha", "environment", "not_run", "verdict"):
        assert report[key] == here.to_json()[key]
    evidence = [(each["id"], each["status"], each["evidence"]) for each in report["results"]]
    assert evidence == [(each["id"], each["status"], each["evidence"]) for each in here.to_json()["results"]]
    failed = [result.id for result in here.results if result.status == "fail"]
    assert failed
    for each in failed:
        assert f"FAILED conformance/suite.py::TestSampler::test_law[{each}]" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("mine:Mine on cpu"))
    assert line.startswith(f"mine:Mine on cpu: NOT CONFORMANT ({len(here.results)} required, ")
    assert line.endswith("; report: report.json")


@pytest.mark.slow
def test_wrong_options_are_exit_code_2_with_workers_too(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, *SUITE[:-1], "--sampler=mine:Yours", "-pxdist", "-n1")
    assert done.returncode == 2, done.stdout
    assert "--sampler must name something that can be imported, got 'mine:Yours'" in done.stdout
    assert f"(found in {tmp_path / 'mine.py'})" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.path.joinpath("mine.py").write_text(MINE)
    return pytester


def test_options_reach_the_run(project: pytest.Pytester) -> None:
    project.path.joinpath("expected.toml").write_text(
        "[[expected-failure]]\nmatch = 'top-k/ties'\nreason = 'no'\nlink = 'https://example.org'\n"
    )
    options = "--claims=mine:CLAIMS", "--sampler-seed=3", "--expected-failures=expected.toml", "--sampler-device=cpu"
    found = project.runpytest_inprocess(
        *SUITE, *options, "--tier=quick", "-ktop-k/ties", "--conformance-report=report.json", plugins=[plugin]
    )
    assert found.ret == 1
    report = json.loads(project.path.joinpath("report.json").read_text())
    assert (report["seed"], report["tier"], report["device"]) == (3, "quick", "cpu")
    assert report["claims"]["token_log_probs"] is False
    assert {result["status"] for result in report["results"]} == {"unexpected pass"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--sampler must be given, as module:factory"),
        (["--sampler=mine"], "--sampler must be module:attribute, got 'mine'"),
        (["--sampler=mine:Mine", "--claims=mine"], "--claims must be module:attribute, got 'mine'"),
        (["--sampler=mine:Mine", "--claims=mine:Mine"], "claims must be a conformance.Claims or a mapping of its *"),
        (["--sampler=mine:Mine", "--tier=huge"], "tier must be one of ['deep', 'full', 'quick'], got 'huge'"),
        (["--sampler=mine:Mine", "--sampler-device=gpu"], "device must be a CPU or a CUDA device, got 'gpu'"),
        (["--sampler=mine:Mine", "--expected-failures=no.toml"], "no.toml: expected_failures must be TOML *"),
    ],
    ids=["none", "no-attribute", "claims-no-attribute", "claims-none", "tier", "device", "expected-failures"],
)
def test_wrong_options_are_one_line_and_exit_code_2(project: pytest.Pytester, options: list[str], message: str) -> None:
    found = project.runpytest_inprocess("--pyargs", "conformance.suite", *options, plugins=[plugin])
    assert found.ret == 2
    found.stdout.fnmatch_lines([f"TestSampler: {message}".replace("[", "[[]")])
    found.stdout.no_fnmatch_line("*Traceback*")
    found.stdout.no_fnmatch_line("*plugin.py:*")


def test_a_report_without_a_folder_is_refused_before_anything_runs(project: pytest.Pytester) -> None:
    found = project.runpytest_inprocess(*SUITE, "--conformance-report=no/report.json", plugins=[plugin])
    assert found.ret == 2
    found.stderr.fnmatch_lines(["Exit: --conformance-report must lie in a folder that exists, got 'no/report.json'"])
