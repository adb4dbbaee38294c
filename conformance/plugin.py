"""pytest: a test for each clause and case, and a report at the end.

pytest loads this at each start, wherever the package is installed: torch waits until a class asks for it.
"""

from __future__ import annotations

import base64
import pickle
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from conformance.limit import LIMIT
from conformance.siblings import load, refuse_shadowed

if TYPE_CHECKING:
    from conformance.claims import Claims
    from conformance.report import Report, Result
    from conformance.runner import Run

MARKER = "sampling_conformance"
SUITE = Path(__file__).with_name("suite.py")
SUITE_ID = "conformance/suite.py"
"""Its id in pytest. By itself pytest gives an empty one to a file outside the folder that it runs in."""
USAGE = 2
"""Exit code for wrong usage, as that of the command line."""


class SamplingConformance:
    """Judges a sampler. A subclass is a test class, with one test for each clause and case, whatever its name is.

    make_sampler: the factory, or its name as module:attribute. A function is called as it is, without `self`.
    The others are arguments of `conformance.check`; claims may be a name, too. `expected_failures` is seen from the
    folder of the class.
    """

    make_sampler: ClassVar[Any] = None
    claims: ClassVar[Claims | Mapping[str, Any] | str | None] = None
    tier: ClassVar[str] = "quick"
    device: ClassVar[str] = "cpu"
    only: ClassVar[str | Iterable[str]] = ()
    seed: ClassVar[int | None] = None
    expected_failures: ClassVar[str | Path | None] = None
    limit: ClassVar[float] = LIMIT

    __test__ = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__test__ = cls.__dict__.get("__test__", True)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make the tests, when pytest collects them."""
        if "law_check" in metafunc.fixturenames:
            mark = getattr(pytest.mark, MARKER)
            ids = _tests(type(self), metafunc.config).run.ids
            metafunc.parametrize("law_check", [pytest.param(each, id=each, marks=mark) for each in ids])

    def test_law(self, law_check: str, request: pytest.FixtureRequest) -> None:
        """The outcome of a check."""
        result = request.node.stash[_RESULT] = _tests(type(self), request.config).result(law_check)
        _tell(result)

    test_law.__test__ = True  # type: ignore[attr-defined]  # whatever a project calls its test functions

    @classmethod
    def arguments(cls, config: pytest.Config) -> dict[str, Any]:  # noqa: ARG003  # for subclasses that have options
        """Arguments of `conformance.check`."""
        # As it stands in the class, so that a function is not bound to it.
        raw = next(each.__dict__["make_sampler"] for each in cls.__mro__ if "make_sampler" in each.__dict__)
        factory = raw.__func__ if isinstance(raw, staticmethod) else raw
        if factory is None:
            raise ValueError("make_sampler must be a factory of samplers or its name, module:attribute, got None")
        if isinstance(factory, str):
            name, factory = factory, load("make_sampler", factory)
        else:
            name = import_module("conformance.runner").name_of(factory, cls.__module__)
        return {
            "make_sampler": factory, "name": name,
            "claims": load("claims", cls.claims) if isinstance(cls.claims, str) else cls.claims,
            "tier": cls.tier, "device": cls.device, "only": cls.only or (), "seed": cls.seed,
            "expected_failures": cls._beside(cls.expected_failures), "limit": cls.limit,
        }  # fmt: skip

    @classmethod
    def _beside(cls, path: str | Path | None) -> Path | None:
        """A file that the class names, as seen from the folder that the class lies in."""
        if path is None:
            return None
        file = getattr(sys.modules[cls.__module__], "__file__", None)
        return Path(file).parent / path if file else Path(path)


@dataclass
class _Tests:
    """The run of a class in this process, and what came of it.

    chosen: ids of the checks that pytest selected. announced: the report has been told what the results belong to.
    """

    run: Run
    label: str
    results: dict[str, Result] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    announced: bool = False

    def result(self, id: str) -> Result:  # noqa: A002  # the field's name
        """Of a check, which is run once: a plugin that repeats a test gets the same again."""
        if id not in self.results:
            if self.run.broken:
                pytest.fail("not run: an earlier check left CUDA broken in this process", pytrace=False)
            self.results[id] = self.run.one(id)
        return self.results[id]

    def head(self, *, alone: bool) -> _Head | None:
        """What the results belong to; None where that was said. alone: there is no other class."""
        if self.announced:
            return None
        self.announced = True
        required = set(self.run.left([]))
        selected = self.run.report.selected or len(self.chosen) < len(self.run.ids)
        portable = import_module("conformance.worker").portable
        report: Report = replace(portable(self.run.report), selected=selected)
        return _Head(report, self.chosen, required.intersection(self.chosen), alone)


@dataclass(frozen=True)
class _Head:
    """A report without results, the checks that were chosen, those that count, and whether it is the only report."""

    report: Report
    chosen: list[str]
    required: set[str]
    alone: bool


_TESTS = pytest.StashKey[dict[type[SamplingConformance], _Tests]]()
_RESULT = pytest.StashKey["Result"]()


def _tests(of: type[SamplingConformance], config: pytest.Config) -> _Tests:
    """Those of a class, made at the first call."""
    made = config.stash.setdefault(_TESTS, {})
    if of not in made:
        try:
            refuse_shadowed()
            run = import_module("conformance.runner").Run(**of.arguments(config))
        except (ImportError, ValueError) as error:
            why = " ".join(str(error).split())
            raise pytest.Collector.CollectError(f"{of.__name__}: {why}") from error
        made[of] = _Tests(run, f"{of.__module__}.{of.__qualname__}")
    return made[of]


def _tell(result: Result) -> None:
    """Pass, or end the test with the outcome of the check."""
    failed = result.status in {"fail", "unexpected pass"}
    if failed and not result.gating:
        pytest.xfail(f"proposed: reported, does not gate\n{_text(result)}")
    if result.status == "expected failure":
        pytest.xfail(result.reason)
    if result.status == "not applicable":
        pytest.skip(result.reason)
    if result.status != "pass":  # --runxfail comes here with what it makes of an xfail
        pytest.fail(_text(result), pytrace=False)


def _text(result: Result) -> str:
    """A failure in words and numbers."""
    reproduce = ["reproduce:", result.reproducer] if result.reproducer else []
    return "\n".join([*result.words, *reproduce, f"explain: python -m conformance explain {result.clause}"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, of which all but the last are for `conformance.suite`."""
    group = parser.getgroup(
        "sampling-conformance", "judge a token sampler: pytest --pyargs conformance.suite --sampler ..."
    )
    group.addoption("--sampler", metavar="MODULE:FACTORY", help="factory(vocab_size, rng) -> Sampling")
    group.addoption("--claims", metavar="MODULE:OBJECT", help="a conformance.Claims; else the factory's own")
    group.addoption("--tier", default="quick", help="quick, full or deep; quick by default")
    group.addoption("--sampler-device", default="cpu", help="cpu or cuda; cpu by default")
    group.addoption("--sampler-seed", type=int, help="a fresh run; without it, seeds follow from the suite's own names")
    group.addoption("--expected-failures", metavar="FILE.toml", help="what is known to be wrong, and why")
    group.addoption(
        "--conformance-report",
        type=Path,
        metavar="FILE.json",
        help="write a JSON report; with several classes, one for each, with module and class added to the name",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register what pytest must know of, and what gathers the results."""
    config.addinivalue_line("markers", f"{MARKER}: judges a token sampler, see conformance.SamplingConformance")
    path: Path | None = config.getoption("--conformance-report")
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist sends what it finds
        if path is not None and not path.absolute().parent.is_dir():
            pytest.exit(f"--conformance-report must lie in a folder that exists, got {str(path)!r}", USAGE)
        config.pluginmanager.register(_Gathered(path), "sampling-conformance-report")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Give `conformance.suite` its id."""
    return pytest.Module.from_parent(parent, path=module_path, nodeid=SUITE_ID) if module_path == SUITE else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note what was selected: the rest is not missed."""
    if made := session.config.stash.get(_TESTS, None):
        for item in session.items:
            if getattr(item, "originalname", None) == "test_law" and getattr(item, "cls", None) in made:
                tests, check = made[item.cls], item.callspec.params["law_check"]  # type: ignore[attr-defined]  # a function
                if check not in tests.chosen:  # a file may be named twice
                    tests.chosen.append(check)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the result, in a form that comes through to the process that reports."""
    report = yield
    if call.when == "call" and _RESULT in item.stash:
        made = item.config.stash[_TESTS]
        tests = made[item.cls]  # type: ignore[attr-defined]  # the stash is filled by a method of that class
        sent = pickle.dumps(
            (tests.label, tests.head(alone=sum(bool(each.chosen) for each in made.values()) == 1), item.stash[_RESULT])
        )
        # What pytest-xdist sends of a report are its attributes.
        vars(report)["sampling_conformance"] = base64.b64encode(sent).decode()
    return report


class _Gathered:
    """All results of the session, also those of the workers of pytest-xdist.

    path: where the reports go, or None.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._started = time.perf_counter()
        self._heads: dict[str, _Head] = {}
        self._results: dict[str, dict[str, Result]] = {}
        self._reports: list[tuple[Report, Path | None]] = []
        self._refused = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note wrong options."""
        self._refused |= report.failed and report.nodeid.startswith(SUITE_ID)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a result."""
        if sent := getattr(report, "sampling_conformance", None):
            label, head, result = pickle.loads(base64.b64decode(sent))  # noqa: S301  # of this session's own processes
            if head is not None:
                self._heads[label] = head
            self._results.setdefault(label, {}).setdefault(result.id, result)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the reports, also of a session that was interrupted."""
        if self._refused:
            session.exitstatus = USAGE  # with pytest-xdist it would be that of a failed test
        for label, head in sorted(self._heads.items()):
            results = self._results[label]
            report = replace(
                head.report,
                results=[results[id] for id in head.chosen if id in results],  # noqa: A001  # the field's name
                not_run=[id for id in head.chosen if id in head.required - set(results)],  # noqa: A001  # likewise
                interrupted=exitstatus == pytest.ExitCode.INTERRUPTED,
                seconds=time.perf_counter() - self._started,
            )
            path = self._path
            if path is not None:
                path = path if head.alone else path.with_stem(f"{path.stem}-{label}")
                report.write(path)
            self._reports.append((report, path))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each sampler."""
        for report, path in self._reports:
            counts = ", ".join(f"{number} {what}" for what, number in report.counts.items() if number)
            where = f"; report: {path}" if path else ""
            terminalreporter.write_line(f"{report.sampler} on {report.device}: {report.verdict} ({counts}){where}")
