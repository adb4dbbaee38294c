"""Runs the plan: every clause with each of its cases, one result each."""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from conformance.cases import Case
from conformance.claims import Claims
from conformance.clauses import Clause, plan, tier_of
from conformance.evidence.budget import ALPHA_FIXED_SEEDS, ALPHA_FRESH_SEEDS, Budget
from conformance.report import Report, Result
from conformance.subject import SPEC_VERSION, Subject

Progress = Callable[[int, int, str], None]
"""Called before each check with its number, the number of checks, and its id."""


def check(
    make_sampler: Callable[..., Any],
    *,
    claims: Claims | None = None,
    tier: str = "quick",
    device: str | torch.device = "cpu",
    name: str | None = None,
    only: str | Iterable[str] = (),
    seed: int | None = None,
    draws: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Judge a sampler by the law.

    make_sampler: `make_sampler(vocab_size, rng)` returns a `reference.Sampling` or its like.
    claims: what it claims of itself; None takes what `make_sampler.claims` states.
    tier: "quick" (a CPU, a minute), "full" (a GPU, a minute) or "deep" (the same with more draws).
    name: `module:attribute`, shown in reproducers; found out where possible.
    only: ids of clauses, or beginnings of check ids, one or several; nothing means all.
    seed: None derives all seeds from the suite's own names, so that a run depends on code and device
        alone. A number gives a fresh run, with a smaller false-alarm budget.
    draws: of the two cases that get most, in tier "deep"; 10^8 if it is not given.
    progress: called before each check.

    Interrupting it (KeyboardInterrupt) keeps what was done: the report says that it is incomplete.
    Raises ValueError for an unknown tier, device or clause, and for a factory that makes no sampler.
    """
    run = Run(make_sampler, claims=claims, tier=tier, device=device, name=name, only=only, seed=seed, draws=draws)
    report = run.report
    started = time.perf_counter()
    try:
        for number, id in enumerate(run.ids):  # noqa: A001  # the field's name
            if progress:
                progress(number, len(run.ids), id)
            report.results.append(run.one(id))
    except KeyboardInterrupt:
        report.interrupted = True
    report.not_run = run.left(report.results)
    report.seconds = time.perf_counter() - started
    return report


class Run:
    """Checks that were chosen of those planned, and a result for each that is asked for. Arguments are `check`'s.

    report: says all of the run but its results. ids: of the checks that were chosen, in their order.
    """

    def __init__(
        self,
        make_sampler: Callable[..., Any],
        *,
        claims: Claims | None = None,
        tier: str = "quick",
        device: str | torch.device = "cpu",
        name: str | None = None,
        only: str | Iterable[str] = (),
        seed: int | None = None,
        draws: int | None = None,
    ) -> None:
        chosen_tier = tier_of(tier, draws)
        device = _device(device)
        claims = claims or Claims.of(make_sampler)
        name = name or name_of(make_sampler)
        self.subject = Subject(make_sampler, claims, device, name, tier, seed)
        _check_factory(self.subject)
        checks = {check_id(clause, case): (clause, case) for clause, case in plan(chosen_tier, claims)}
        self._budget = Budget(
            ALPHA_FIXED_SEEDS if seed is None else ALPHA_FRESH_SEEDS,
            frozenset(
                check
                for check, (clause, _) in checks.items()
                if clause.statistical and not clause.why_not(self.subject)
            ),
        )
        self.ids = select(list(checks), [only] if isinstance(only, str) else only)
        self._checks = checks
        self.report = Report(
            sampler=name, tier=tier, device=str(device), spec=SPEC_VERSION, seed=seed, alpha=self._budget.alpha,
            environment=environment(device), claims=claims, selected=len(self.ids) < len(checks),
        )  # fmt: skip

    def one(self, id: str) -> Result:  # noqa: A002  # the field's name
        """Run a check. Each at most once, as its share of the false-alarm budget is spent once."""
        return _run(self.subject, *self._checks[id], self._budget)

    def left(self, results: list[Result]) -> list[str]:
        """Ids of the chosen checks that count and have no result, though something could be checked."""
        done = {result.id for result in results}
        left = [(each, self._checks[each][0]) for each in self.ids if each not in done]
        return [each for each, clause in left if not clause.proposed and clause.why_not(self.subject) is None]


def _device(device: str | torch.device) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be a CPU or a CUDA device, got {device!r}") from error
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"device must be a CPU or a CUDA device, got {str(device)!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that this machine has, got {str(device)!r} without CUDA")
    return device


def name_of(make_sampler: Any) -> str:
    """`module:attribute` of a factory, as far as it has one."""
    return f"{getattr(make_sampler, '__module__', '?')}:{getattr(make_sampler, '__qualname__', make_sampler)}"


def _check_factory(subject: Subject) -> None:
    try:
        sampler = subject.sampler(2, 0)
    except Exception as error:
        raise ValueError(f"make_sampler must make a sampler from (vocab_size, rng), got {error!r}") from error
    if not callable(getattr(sampler, "sample_kernel", None)):
        raise ValueError(
            f"make_sampler must make something with a sample_kernel, got {type(sampler).__name__}; "
            "a plain function needs conformance.from_function"
        )


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
    """What the result depends on besides the code."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
        try:
            from importlib.metadata import version  # noqa: PLC0415  # only where it is asked for

            found["flashinfer"] = version("flashinfer-python")
        except ImportError:
            found["flashinfer"] = "not installed"
    return found


def _run(subject: Subject, clause: Clause, case: Case, budget: Budget) -> Result:
    started = time.perf_counter()
    subject = replace(subject, scope=clause.id)
    why_not = clause.why_not(subject)
    evidence = []
    error = ""
    if why_not is None:
        try:
            evidence = list(clause.check(subject, case, budget.share(check_id(clause, case))))
        except Exception:  # noqa: BLE001  # a crash of the sampler under test is a failed check, not a failed run
            error = traceback.format_exc(limit=-6)
    budget.settle(check_id(clause, case), evidence)
    passed = not error and all(each.passed for each in evidence)
    status = "not applicable" if why_not is not None else "pass" if passed else "fail"
    if status == "pass" and not evidence:
        status, why_not = "skip", "the sampler offers nothing to check this with"
    reproducer = ""
    if status == "fail":
        # One call shows an id that must not come, but not that one comes too often.
        by_chance = not error and all(each.p_value is not None for each in evidence if not each.passed)
        kind = "check" if by_chance else clause.reproduce
        reproducer = subject.reproducer(case, kind, check_id(clause, case))
    return Result(
        id=check_id(clause, case), clause=clause.id, must=clause.must, status=status,
        gating=not clause.proposed, reason=why_not or "",
        evidence=evidence, error=error, reproducer=reproducer, seconds=time.perf_counter() - started,
    )  # fmt: skip
