"""The test classes of a project that judges its sampler with pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import conformance
from conformance import Result, plugin
from conformance.clauses import TIERS, plan
from conformance.evidence import Evidence, exact

pytest_plugins = ["pytester"]

# pytester forgets what its sessions import, and numpy cannot be imported twice.
for _module in ("conformance.worker", "tests.conformance.samplers"):
    import_module(_module)

ROOT = Path(conformance.__file__).parents[1]
LINK = "https://example.org/issues/7"
EXPECTED = f"""
[[expected-failure]]
match = "top-k/ties"
reason = "keeps exactly k"
link = "{LINK}"
"""
HEAD = """
from functools import partial
from conformance import SamplingConformance
from reference import ReferenceSampling
from tests.conformance.samplers import PlainSampling, make
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project that has this plugin and no other, whether or not the package is installed here."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.path.joinpath("expected.toml").write_text(EXPECTED)
    return pytester


def run(project: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    project.path.joinpath("test_mine.py").write_text(f"{HEAD}\n{source}\n")
    return project.runpytest_inprocess("--strict-markers", "-Werror", "-rxs", *arguments, plugins=[plugin])


def test_each_status_has_its_outcome(project: pytest.Pytester) -> None:
    found = run(
        project,
        """
class TestBroken(SamplingConformance):
    make_sampler = make("exactly-k")
    only = "top-k/ties", "calls/empty", "graphs/replay-law"
class TestExpected(TestBroken):
    expected_failures = "expected.toml"
    only = "top-k/ties"
class TestMended(TestExpected):
    make_sampler = ReferenceSampling
    """,
    )
    clauses = Counter(clause.id for clause, _ in plan(TIERS["quick"]))
    tied, none = clauses["top-k/ties"], clauses["graphs/replay-law"]
    assert found.parseoutcomes() == {"failed": 2 * tied, "passed": 1, "skipped": none, "xfailed": tied}
    assert found.ret == 1
    found.stdout.fnmatch_lines(
        [
            "MUST: *",
            "  asked:    *",
            "  observed: *",
            "  allowed:  *",
            "reproduce:",
            "explain: python -m conformance explain top-k/ties",
            f"passed, but is expected to fail: keeps exactly k ({LINK})",
            f"XFAIL test_mine.py::TestExpected::test_law[[]top-k/ties/*] - keeps exactly k ({LINK})",
            "SKIPPED *: cuda_graph is not claimed",
        ]
    )
    found.stdout.no_fnmatch_line("*Traceback*")


def test_as_if_not_marked_means_that_an_expected_failure_fails(project: pytest.Pytester) -> None:
    source = """
class TestExpected(SamplingConformance):
    make_sampler = make("exactly-k")
    expected_failures = "expected.toml"
    only = "top-k/ties/tied-k"
    """
    assert run(project, source).parseoutcomes() == {"xfailed": 1}
    assert run(project, source, "--runxfail").parseoutcomes() == {"failed": 1}


RESULT = Result("g/c/x", "g/c", "It MUST.", "fail", True, "", [], "", "reproduce()", 0.1)  # noqa: FBT003  # a record


@pytest.mark.parametrize(
    ("result", "outcome", "text"),
    [
        (
            RESULT,
            pytest.fail.Exception,
            "MUST: It MUST.\nreproduce:\nreproduce()\nexplain: python -m conformance explain",
        ),
        (replace(RESULT, error="boom\n"), pytest.fail.Exception, "It MUST.\nboom\nreproduce:"),
        (
            replace(RESULT, evidence=[Evidence(False, "a", "b", "c", 2**14, 1e-9, 1e-8)]),  # noqa: FBT003  # a record
            pytest.fail.Exception,
            "  asked:    a\n  observed: b\n  allowed:  c\n  p = 1e-09 over 16,384 draws, against alpha = 1e-08",
        ),
        (replace(RESULT, status="skip", reason="no way"), pytest.fail.Exception, "could not be checked: no way"),
        (replace(RESULT, status="not applicable", reason="no GPU"), pytest.skip.Exception, "no GPU"),
        (replace(RESULT, gating=False), pytest.xfail.Exception, "proposed: reported, does not gate"),
        (replace(RESULT, status="unexpected pass", reason="known"), pytest.fail.Exception, "expected to fail: known"),
        (replace(RESULT, status="expected failure", reason="known"), pytest.xfail.Exception, "known"),
    ],
    ids=["exact", "error", "statistical", "skip", "not-applicable", "proposed", "unexpected-pass", "expected-failure"],
)
def test_a_result_ends_its_test(result: Result, outcome: type[BaseException], text: str) -> None:
    with pytest.raises(outcome) as caught:
        plugin._tell(result)
    assert text in str(caught.value)


def test_a_pass_ends_nothing() -> None:
    plugin._tell(replace(RESULT, status="pass", evidence=[exact("a", passed=True, observed=1, allowed=1)]))


def test_any_kind_of_factory_will_do(project: pytest.Pytester) -> None:
    found = run(
        project,
        """
def function(vocab_size, rng):
    return ReferenceSampling(vocab_size, rng)
class TestFunction(SamplingConformance):
    make_sampler = function
    only = "calls/empty"
class TestStatic(TestFunction):
    make_sampler = staticmethod(function)
class TestWritten(TestFunction):
    def make_sampler(vocab_size, rng):
        return ReferenceSampling(vocab_size, rng)
class TestPartial(TestFunction):
    make_sampler = partial(PlainSampling, fault="")
class TestName(TestFunction):
    make_sampler = "test_mine:function"
    claims = "test_mine:CLAIMS"
class Heir(TestName):
    '''Takes over what it does not name, and is collected by any name.'''
    claims = {"speculative": False}
CLAIMS = {"log_probs": "none"}
    """,
        "--conformance-report=report.json",
    )
    assert found.parseoutcomes() == {"passed": 6}
    reports = {path.name: json.loads(path.read_text()) for path in project.path.glob("report*.json")}
    assert len(reports) == 6
    name = reports["report-test_mine.TestName.json"]
    assert name["sampler"] == "test_mine:function"
    assert name["claims"]["log_probs"] == "none"
    assert reports["report-test_mine.Heir.json"]["claims"]["speculative"] is False
    assert reports["report-test_mine.TestFunction.json"]["sampler"] == "test_mine:function"


def test_subclasses_are_collected_and_nothing_else(project: pytest.Pytester) -> None:
    source = """
class TestBase(SamplingConformance):
    __test__ = False
    only = "calls/empty"
class Mine(TestBase):
    make_sampler = ReferenceSampling
    """
    found = run(project, source, "--collect-only", "-q", "-opython_classes=Test* *Conformance", "-opython_functions=no")
    tests = [line for line in found.outlines if "::" in line]
    assert tests == ["test_mine.py::Mine::test_law[calls/empty/empty-n1-V2-fp32]"]


def test_some_are_chosen_by_name_or_by_marker_and_the_rest_is_not_missed(project: pytest.Pytester) -> None:
    source = """
class TestMine(SamplingConformance):
    make_sampler = ReferenceSampling
    only = "top-p/crossing-token", "top-p/ties", "calls/empty"
def test_another():
    pass
    """
    found = run(project, source, "-k", "top-p and not ties", "--conformance-report=report.json")
    assert set(found.parseoutcomes()) == {"passed", "deselected"}
    report = json.loads(project.path.joinpath("report.json").read_text())
    assert {result["clause"] for result in report["results"]} == {"top-p/crossing-token"}
    assert report["not_run"] == []
    assert report["verdict"] == "no failure among the selected checks"
    found.stdout.fnmatch_lines(["*ReferenceSampling on cpu: no failure*required*run*pass); report: report.json"])
    assert run(project, source, "-m", "not sampling_conformance").parseoutcomes()["passed"] == 1


def test_an_interrupted_session_keeps_what_was_done(project: pytest.Pytester) -> None:
    project.path.joinpath("test_mine.py").write_text(f"""{HEAD}
class Interrupting(ReferenceSampling):
    def sample_kernel(self, *arguments, **call):
        if self.vocab_size == 4:
            raise KeyboardInterrupt
        return super().sample_kernel(*arguments, **call)
class TestMine(SamplingConformance):
    make_sampler = Interrupting
    only = "top-p/crossing-token"
    """)
    found = project.inline_run("--conformance-report=report.json", plugins=[plugin], no_reraise_ctrlc=True)
    assert found.ret == pytest.ExitCode.INTERRUPTED
    report = json.loads(project.path.joinpath("report.json").read_text())
    assert report["verdict"] == "incomplete"
    assert report["interrupted"]
    assert len(report["results"]) == 1
    assert len(report["not_run"]) == 2


def test_a_check_is_not_rolled_again_where_a_test_is(project: pytest.Pytester) -> None:
    found = run(
        project,
        """
CALLS = []
class Counting(ReferenceSampling):
    def sample_kernel(self, *arguments, **call):
        CALLS.append(1)
        return super().sample_kernel(*arguments, **call)
class TestMine(SamplingConformance):
    make_sampler = Counting
    only = "calls/empty"
    def test_again(self, request):
        tests = __import__("conformance.plugin").plugin._tests(type(self), request.config)
        first, before = tests.result(tests.run.ids[0]), len(CALLS)
        assert tests.result(tests.run.ids[0]) is first
        assert len(CALLS) == before > 0
    """,
    )
    assert found.parseoutcomes() == {"passed": 2}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("pass", "make_sampler must be a factory of samplers or its name, module:attribute, got None"),
        ("make_sampler = 'mine'", "make_sampler must be module:attribute, got 'mine'"),
        (
            "make_sampler = 'no.such:thing'",
            "make_sampler must name something that can be imported, got 'no.such:thing'*",
        ),
        ("make_sampler = len", "make_sampler must make a sampler from (vocab_size, rng), got TypeError*"),
        ("make_sampler = ReferenceSampling; claims = 3", "claims must be a conformance.Claims or a mapping*, got 3"),
        ("make_sampler = ReferenceSampling; claims = 'json:no'", "claims must name something that can be imported*"),
        ("make_sampler = ReferenceSampling; tier = 'huge'", "tier must be one of *, got 'huge'"),
        ("make_sampler = ReferenceSampling; device = 'gpu'", "device must be a CPU or a CUDA device, got 'gpu'"),
        ("make_sampler = ReferenceSampling; only = 'no/such'", "only must name clauses or checks, got *"),
        ("make_sampler = ReferenceSampling; limit = 0", "limit must be a number of seconds above 0, got 0"),
        (
            "make_sampler = ReferenceSampling; expected_failures = 'none.toml'",
            "*none.toml: expected_failures must be TOML that can be read: *",
        ),
    ],
    ids=lambda value: value.rpartition("; ")[2] if "must" not in value else "",
)
def test_a_class_that_is_wrong_is_one_line_and_exit_code_2(
    project: pytest.Pytester, attributes: str, message: str
) -> None:
    found = run(project, f"class TestMine(SamplingConformance):\n    {attributes}")
    assert found.ret == 2
    found.stdout.fnmatch_lines([f"TestMine: {message}"])
    found.stdout.no_fnmatch_line("*Traceback*")
    found.stdout.no_fnmatch_line("*plugin.py:*")


def test_options_of_the_suite_change_nothing_else(project: pytest.Pytester) -> None:
    options = ["--sampler=no.such:thing", "--claims=none", "--tier=huge", "--sampler-device=none", "--sampler-seed=1"]
    assert run(project, "def test_mine(): pass", *options, "--expected-failures=none").parseoutcomes() == {"passed": 1}


def test_pytest_starts_without_torch() -> None:
    code = "import conformance.plugin, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {"conformance", "pytest"} <= loaded
    assert not {"torch", "numpy", "scipy", "rich", "reference", "optimized", "hypothesis"} & loaded


def test_the_package_gives_its_names_when_they_are_asked_for() -> None:
    code = """
import sys, conformance
assert "torch" not in sys.modules and "pytest" not in sys.modules
assert set(conformance.__all__) | {"SamplingConformance"} <= set(dir(conformance))
assert not hasattr(conformance, "nonsense")
from conformance import *
assert check is conformance.check and "torch" in sys.modules and "pytest" not in sys.modules
import conformance.report
assert conformance.report.Report is Report
    """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_expected_failures_are_seen_from_the_folder_of_the_class(project: pytest.Pytester) -> None:
    entry = "[[expected-failure]]\nmatch = 'top-k/ties'\nreason = 'no'\nlink = 'https://example.org'\n"
    folder = project.mkdir("sub")
    folder.joinpath("expected.toml").write_text(entry)
    folder.joinpath("test_sub.py").write_text(
        "from conformance import SamplingConformance\nfrom tests.conformance.samplers import make\n\n\n"
        "class TestMine(SamplingConformance):\n    make_sampler = staticmethod(make('exactly-k'))\n"
        "    only = 'top-k/ties/tied-k'\n    expected_failures = 'expected.toml'\n"
    )
    found = project.runpytest_inprocess("sub", "-q", "-p", "no:cacheprovider")
    assert found.parseoutcomes().get("xfailed") == 1
