"""Runs the plan: every clause with each of its cases, one result each."""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from conformance import generators
from conformance.cases import Case
from conformance.claims import Claims
from conformance.clauses import Clause, plan, tier_of
from conformance.evidence.budget import ALPHA_FIXED_SEEDS, ALPHA_FRESH_SEEDS, Budget
from conformance.expected import load, settle
from conformance.limit import LIMIT, at_most, checked
from conformance.probes import probes
from conformance.report import Probe, Report, Result
from conformance.subject import SPEC_VERSION, Subject

Progress = Callable[[int, int, str], None]
"""Called before each check with its number, the number of checks, and its id; after the last with `PROBING`."""

PROBING = "what is not claimed"


def check(
    make_sampler: Callable[..., Any],
    *,
    claims: Claims | Mapping[str, Any] | None = None,
    tier: str = "quick",
    device: str | torch.device = "cpu",
    name: str | None = None,
    only: str | Iterable[str] = (),
    seed: int | None = None,
    draws: int | None = None,
    expected_failures: str | Path | None = None,
    limit: float = LIMIT,
    progress: Progress | None = None,
) -> Report:
    """Judge a sampler by the law.

    make_sampler: `make_sampler(vocab_size, rng)` returns a `reference.Sampling` or its like.
    claims: what it claims of itself, or a mapping of fields of `Claims`; None takes what `make_sampler.claims` states.
    tier: "quick" (a CPU, a minute), "full" (a GPU, a minute) or "deep" (the same with more draws).
    name: `module:attribute`, shown in reproducers; found out where possible.
    only: ids of clauses, or beginnings of check ids, one or several; nothing means all.
    seed: None derives all seeds from the suite's own names, so that a run depends on code and device
        alone. A number gives a fresh run, with a smaller false-alarm budget.
    draws: of the two cases that get most, in tier "deep"; 10^8 if it is not given.
    expected_failures: a file of what is known to be wrong, see `conformance.expected`.
    limit: seconds for one check, after which it fails; see `conformance.limit.at_most` for where it holds.
    progress: called before each check.

    Interrupting it (KeyboardInterrupt) keeps what was done: the report says that it is incomplete. So it does where a
    check leaves CUDA broken, after which no other can be run in this process; the command line goes on in a new one.
    Raises ValueError for an unknown tier, device or clause, for a file of expected failures that does not fit, and for
    a factory that makes no sampler.
    """
    run = Run(
        make_sampler, claims=claims, tier=tier, device=device, name=name, only=only, seed=seed, draws=draws,
        expected_failures=expected_failures, limit=limit,
    )  # fmt: skip
    report = run.report
    started = time.perf_counter()
    try:
        for number, id in enumerate(run.ids):  # noqa: A001  # the field's name
            if progress:
                progress(number, len(run.ids), id)
            report.results.append(run.one(id))
            if run.broken:
                break
        else:
            if progress:
                progress(len(run.ids), len(run.ids), PROBING)
            report.probes.extend(run.probes(report.results))
    except KeyboardInterrupt:
        report.interrupted = True
    report.not_run = run.left(report.results)
    report.seconds = time.perf_counter() - started
    return report


class Run:
    """Checks that were chosen of those planned, and a result for each that is asked for. Arguments are `check`'s.

    report: says all of the run but its results. ids: of the checks that were chosen, in their order.
    broken: a check has left CUDA in a state in which no other can be run.
    """

    def __init__(
        self,
        make_sampler: Callable[..., Any],
        *,
        claims: Claims | Mapping[str, Any] | None = None,
        tier: str = "quick",
        device: str | torch.device = "cpu",
        name: str | None = None,
        only: str | Iterable[str] = (),
        seed: int | None = None,
        draws: int | None = None,
        expected_failures: str | Path | None = None,
        limit: float = LIMIT,
    ) -> None:
        expected = load(expected_failures) if expected_failures is not None else None
        self._limit = checked(limit)
        chosen_tier = tier_of(tier, draws)
        device = device_of(device)
        claims = Claims.of(make_sampler if claims is None else SimpleNamespace(claims=claims))
        name = name or name_of(make_sampler)
        self.subject = Subject(make_sampler, claims, device, name, tier, seed)
        self._check_factory()
        self._checks = {check_id(clause, case): (clause, case) for clause, case in plan(chosen_tier, claims)}
        applies = {each: clause.why_not(self.subject) is None for each, (clause, _) in self._checks.items()}
        self._budget = Budget(
            ALPHA_FIXED_SEEDS if seed is None else ALPHA_FRESH_SEEDS,
            frozenset(each for each, (clause, _) in self._checks.items() if clause.statistical and applies[each]),
        )
        self._expected = (
            expected.reasons(
                ((each, clause.id, applies[each]) for each, (clause, _) in self._checks.items()), tier, device.type
            )
            if expected
            else {}
        )
        self.ids = select(list(self._checks), [only] if isinstance(only, str) else only)
        self.broken = False
        # Holds the frames of the check that broke CUDA: to free pinned memory then ends the process.
        self._never_freed: BaseException | None = None
        self.report = Report(
            sampler=name, tier=tier, device=str(device), spec=SPEC_VERSION, seed=seed, alpha=self._budget.alpha,
            environment=environment(device), claims=claims, selected=len(self.ids) < len(self._checks),
        )  # fmt: skip

    def one(self, id: str) -> Result:  # noqa: A002  # the field's name
        """Run a check. Each at most once, as its share of the false-alarm budget is spent once."""
        started = time.perf_counter()
        clause, case = self._checks[id]
        subject = replace(self.subject, scope=clause.id)
        why_not = clause.why_not(subject)
        evidence = []
        error = ""
        if why_not is None:
            try:
                # A sampler that draws from the global generators has them seeded.
                keep = generators.kept() if self.subject.claims.generator == "global" else nullcontext()
                with at_most(self._limit), keep:
                    evidence = list(clause.check(subject, case, self._budget.share(id)))
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # noqa: BLE001  # whatever a sampler raises is a failed check
                error = traceback.format_exc(limit=-6)
                if self._find_broken():
                    self._never_freed = raised
        self._budget.settle(id, evidence)
        passed = not error and all(each.passed for each in evidence)
        status = "not applicable" if why_not is not None else "pass" if passed else "fail"
        if status == "pass" and not evidence:
            status, why_not = "skip", "the sampler offers nothing to check this with"
        reproducer = ""
        if status == "fail":
            if self._find_broken():
                error += "This left CUDA broken: nothing more can be checked in its process.\n"
            # One call shows an id that must not come, but not that one comes too often.
            by_chance = not error and all(each.p_value is not None for each in evidence if not each.passed)
            reproducer = self._reproducer(id, "check" if by_chance or self.broken else clause.reproduce)
        result = Result(
            id=id, clause=clause.id, must=clause.must, status=status, gating=not clause.proposed, reason=why_not or "",
            evidence=evidence, error=error, reproducer=reproducer, seconds=time.perf_counter() - started,
        )  # fmt: skip
        return settle(result, self._expected)

    def lost(self, id: str, error: str, seconds: float) -> Result:  # noqa: A002  # the field's name
        """The result of a check that ended without one, as it does where its process dies."""
        clause, _ = self._checks[id]
        result = Result(
            id=id, clause=clause.id, must=clause.must, status="fail", gating=not clause.proposed, reason="",
            evidence=[], error=error, reproducer=self._reproducer(id, "check"), seconds=seconds,
        )  # fmt: skip
        return settle(result, self._expected)

    def probes(self, results: Iterable[Result]) -> Iterator[Probe]:
        """What works though it is not claimed, tried when all checks have their results."""
        failed = {result.clause for result in results if result.status in {"fail", "expected failure"}}
        return probes(self.subject, failed, whole=not self.report.selected, limit=self._limit)

    def left(self, results: list[Result]) -> list[str]:
        """Ids of the chosen checks that count and have no result, though something could be checked."""
        done = {result.id for result in results}
        left = [(each, self._checks[each][0]) for each in self.ids if each not in done]
        return [each for each, clause in left if not clause.proposed and clause.why_not(self.subject) is None]

    def _reproducer(self, id: str, kind: str) -> str:  # noqa: A002  # the field's name
        clause, case = self._checks[id]
        subject = replace(self.subject, scope=clause.id)
        try:
            return subject.reproducer(case, kind, id)
        except Exception:  # noqa: BLE001  # it needs a context, which may be what cannot be made
            return subject.reproducer(case, "check", id)

    def _find_broken(self) -> bool:
        if self.subject.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.subject.device)
            except RuntimeError:
                self.broken = True
        return self.broken

    def _check_factory(self) -> None:
        try:
            with at_most(self._limit):
                sampler = self.subject.make_sampler(2, self.subject.generator(0))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(f"make_sampler must make a sampler from (vocab_size, rng), got {error!r}") from error
        if not callable(getattr(sampler, "sample_kernel", None)):
            raise ValueError(
                f"make_sampler must make something with a sample_kernel, got {type(sampler).__name__}; "
                "a plain function needs conformance.from_function"
            )


def device_of(device: str | torch.device) -> torch.device:
    """The device of that name. Raises ValueError for one that this machine has not, or that no sampler is judged on."""
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be a CPU or a CUDA device, got {device!r}") from error
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"device must be a CPU or a CUDA device, got {str(device)!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that this machine has, got {str(device)!r} without CUDA")
    return device


def name_of(make_sampler: Any, *modules: str) -> str:
    """`module:attribute` of a factory, as far as it has one. modules: where to look for it besides its own."""
    own = getattr(make_sampler, "__module__", "?")
    for module in (own, *modules):
        for name, value in list(vars(sys.modules.get(module, object)).items()):
            if value is make_sampler:
                return f"{module}:{name}"
    return f"{own}:{getattr(make_sampler, '__qualname__', make_sampler)}"


def check_id(clause: Clause, case: Case) -> str:
    """Stable and greppable: clause id, slash, case id."""
    return f"{clause.id}/{case.id}"


def select(ids: list[str], only: Iterable[str]) -> list[str]:
    """The ids that are one of `only`, or begin with it; all where `only` is empty."""
    only = list(only)
    if missing := [wanted for wanted in only if not any(each.startswith(wanted) for each in ids)]:
        raise ValueError(f"only must name clauses or checks, got {missing}; `python -m conformance list` shows them")
    return [each for each in ids if not only or any(each.startswith(wanted) for wanted in only)]


def environment(device: torch.device) -> dict[str, str]:
    """What the result may depend on besides the code."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    for module, distribution in (
        ("flashinfer", "flashinfer-python"), ("transformers", "transformers"), ("triton", "triton"),
    ):  # fmt: skip
        try:
            found[module] = version(distribution)
        except PackageNotFoundError:
            if module in sys.modules:  # it lies on the path without being installed
                found[module] = str(getattr(sys.modules[module], "__version__", "unknown"))
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return found
