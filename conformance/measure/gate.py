"""Holds a sampler to its budgets. What decides is an interval, never a single ratio, and never an absolute time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from scipy.cluster.hierarchy import DisjointSet

from conformance.measure.budgets import SAMPLER, Budget, Budgets
from conformance.measure.errors import in_words
from conformance.measure.files import write_whole
from conformance.measure.lane import why_not
from conformance.measure.ratio import Ratio
from conformance.measure.session import READ, Session, Timed, card
from conformance.measure.workload import Workload

Status = Literal["pass", "fail", "undecided", "wrong"]
"""Wrong: the calls that were timed did not do what they should, so that no time of theirs means anything."""

Progress = Callable[[str], None]
"""Called with what is timed, and after each round."""


@dataclass(frozen=True)
class Verdict:
    """What came of one budget. measured: a ratio, or a count. note: what a reader should know besides."""

    budget: Budget
    status: Status
    measured: Ratio | float
    note: str = ""

    @property
    def value(self) -> float:
        """The number that stands against the budget's."""
        return self.measured.value if isinstance(self.measured, Ratio) else self.measured

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        ratio = self.measured if isinstance(self.measured, Ratio) else Ratio(self.value, self.value, self.value, 0)
        interval = {key: value if math.isfinite(value) else None for key, value in asdict(ratio).items()}
        of_budget = {key: value for key, value in asdict(self.budget).items() if value is not None}
        return {"id": self.budget.id, "status": self.status, **interval, **of_budget, "note": self.note}


@dataclass
class Judgement:
    """A run of the gate.

    undecided: "pass" or "fail", what an undecided budget means. environment: card and versions, clocks before and
    after. floors: bare reads that were no floor, in words. not_run: ids of budgets that an interruption left out.
    """

    sampler: str
    budgets: Budgets
    undecided: str
    environment: dict[str, str]
    verdicts: list[Verdict] = field(default_factory=list)
    floors: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    exposed: int = 0
    seconds: float = 0.0

    def count(self, status: Status) -> int:
        """Of the verdicts."""
        return sum(each.status == status for each in self.verdicts)

    @property
    def passed(self) -> bool:
        """Every budget was judged, and none failed."""
        bad: tuple[Status, ...] = ("fail", "wrong") if self.undecided == "pass" else ("fail", "wrong", "undecided")
        return bool(self.verdicts) and not self.not_run and not any(self.count(status) for status in bad)

    @property
    def measured_on(self) -> str:
        """Card and versions, in one line."""
        names = ("gpu", "driver", "machine", "python", "torch", "triton", "flashinfer")
        found = {name: self.environment[name] for name in names if name in self.environment}
        where = found.pop("gpu", None) or found["machine"]
        found.pop("machine")
        return ", ".join([where, *(f"{name} {value}" for name, value in found.items())])

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "passed": self.passed,
            "sampler": self.sampler,
            "budgets": str(self.budgets.path),
            "undecided": self.undecided,
            "confidence": self.budgets.confidence,
            "environment": self.environment,
            "counts": {status: self.count(status) for status in ("pass", "fail", "undecided", "wrong")},
            "not_run": self.not_run,
            "floors": self.floors,
            "exposed": self.exposed,
            "seconds": round(self.seconds, 2),
            "verdicts": [each.to_json() for each in self.verdicts],
        }

    def write(self, path: Path) -> None:
        """Write it as JSON, a line for each budget."""
        data = self.to_json()
        verdicts = ",\n".join(json.dumps(each, allow_nan=False) for each in data.pop("verdicts"))
        head = json.dumps(data, indent=1, allow_nan=False).removesuffix("\n}")
        write_whole(path, f'{head},\n "verdicts": [\n{verdicts}\n ]\n}}\n')


def gate(
    budgets: Budgets,
    samplers: Mapping[str, Callable[..., Any]],
    *,
    undecided: str | None = None,
    only: str = "",
    progress: Progress | None = None,
) -> Judgement:
    """Time a sampler and what it is measured against, and judge each budget.

    samplers: the factories of `SAMPLER` and of each name under [against]. only: part of the ids of the budgets that are
    wanted. undecided: in place of the file's.

    A budget fails where the whole interval of its ratio lies above it, and passes where none of it does. As long as the
    interval straddles it, rounds are added, twice as many each time, up to `most_rounds`; the confidence is split
    over these looks. An interruption (KeyboardInterrupt) keeps what was judged.

    Raises ValueError for budgets that cannot be measured here, and where `only` is part of no id.
    """
    chosen = [each for each in budgets.budgets if only in each.id]
    if not chosen:
        raise ValueError(f"only must be part of an id of {budgets.path}, got {only!r}")
    started = time.perf_counter()
    needed = {SAMPLER} | {each.over for each in chosen if each.over not in {None, READ}}
    session = Session({name: samplers[name] for name in samplers if name in needed}, budgets.device)
    _check_claims(session, chosen)
    found = Judgement(
        session.subjects[SAMPLER].name, budgets, undecided or budgets.undecided, dict(session.environment)
    )
    left = list(chosen)
    try:
        for together in _together(chosen):
            try:
                found.verdicts += _judged(session, budgets, together, progress)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # samplers raise what they like
                found.verdicts += [Verdict(each, "wrong", math.nan, in_words(error)) for each in together]
            left = [each for each in left if each not in together]
    except KeyboardInterrupt:
        found.not_run = [each.id for each in left]
    found.environment |= session.versions()
    found.environment |= {f"{name} after": value for name, value in card(session.device).items()}
    found.floors = session.slow_floors()
    found.verdicts = [_without_floor(each, found.floors) for each in found.verdicts]
    found.exposed = session.exposed
    found.seconds = time.perf_counter() - started
    return found


def new_budgets(judgement: Judgement) -> dict[int, float]:
    """What each budget would be by this run, by its number: a ratio with the margin on top, a count as it is.

    Raises ValueError where a timed call was wrong, or a bare read was no floor.
    """
    if wrong := [each.budget.id for each in judgement.verdicts if each.status == "wrong"]:
        raise ValueError(f"--rebase must be given a sampler whose timed calls are right, got wrong ones of {wrong}")
    if judgement.floors:
        raise ValueError(f"--rebase must be on a machine whose bare reads are a floor, got {judgement.floors}")
    margin = judgement.budgets.margin
    return {
        each.budget.number: _three_digits(each.value * (1 + margin)) if isinstance(each.measured, Ratio) else each.value
        for each in judgement.verdicts
        if not each.budget.fixed
    }


def _together(budgets: list[Budget]) -> Iterator[list[Budget]]:
    """Budgets whose times have a workload in common, directly or by others: these are timed in the same rounds."""
    sets: Any = DisjointSet(each.workload for each in budgets)
    for each in budgets:
        for timed in each.pair or ():
            sets.add(timed.workload)
            sets.merge(each.workload, timed.workload)
    for workloads in sets.subsets():
        yield [each for each in budgets if each.workload in workloads]


def _check_claims(session: Session, budgets: list[Budget]) -> None:
    for budget in budgets:
        for sampler, workload, kind in budget.pair or ((SAMPLER, budget.workload, "cold"),):
            if sampler == READ:
                continue
            subject = session.subjects[sampler]
            why = why_not(subject.claims, workload)
            if not why and kind == "graph" and not subject.claims.cuda_graph:
                why = "it claims no CUDA graphs"
            if why:
                raise ValueError(f"budget must be one that {subject.name} can be held to, got {budget.id!r}: {why}")


def _judged(session: Session, budgets: Budgets, together: list[Budget], progress: Progress | None) -> list[Verdict]:
    what = together[0].case
    tell: Callable[[], None] = partial(progress, what) if progress else _silent
    timed = {of for each in together for of in each.pair or ()}
    counted = {each.workload for each in together if each.count is not None}
    try:
        tell()
        measured = _measured(session, budgets, [each for each in together if each.pair], tell)
        for each in together:
            if each.count is not None:
                measured[each.number] = getattr(session.counts(SAMPLER, each.workload), each.count)
        # What is only counted is called once more, so that there is something to check.
        if untimed := counted - {of.workload for of in timed}:
            session.time((Timed(SAMPLER, workload, "cold") for workload in untimed), 1)
        checked = {(of.sampler, of.workload) for of in timed} | {(SAMPLER, workload) for workload in counted}
        wrong = {key: next((f"{each.asked}: {each.observed}" for each in session.wrong(*key)), "") for key in checked}
        return [_verdict(each, measured[each.number], wrong) for each in together]
    finally:
        for workload in {of.workload for of in timed} | counted:
            session.forget(workload)


def _measured(
    session: Session, budgets: Budgets, ratios: list[Budget], progress: Callable[[], None]
) -> dict[int, Ratio | float]:
    """The ratio of each budget, from as many rounds as it takes to decide it."""
    found: dict[int, Ratio | float] = {}
    open_ones, done = ratios, 0
    for rounds in budgets.looks:
        pairs = {each.number: each.pair for each in open_ones if each.pair}
        if not pairs:
            break
        session.time((of for pair in pairs.values() for of in pair), rounds - done, progress)
        done = rounds
        ratio = {number: session.ratio(*pair, budgets.confidence_of_a_look) for number, pair in pairs.items()}
        found |= ratio
        open_ones = [each for each in open_ones if ratio[each.number].low <= each.at_most < ratio[each.number].high]
    return found


def _verdict(budget: Budget, measured: Ratio | float, wrong: Mapping[tuple[str, Workload], str]) -> Verdict:
    for of in budget.pair or (Timed(SAMPLER, budget.workload, "cold"),):
        if says := wrong[of.sampler, of.workload]:
            return Verdict(budget, "wrong", measured, f"{of.sampler} on {of.workload.id}: {says}")
    low, high = (measured.low, measured.high) if isinstance(measured, Ratio) else (measured, measured)
    status: Status = "fail" if low > budget.at_most else "pass" if high <= budget.at_most else "undecided"
    return Verdict(budget, status, measured)


def _without_floor(verdict: Verdict, floors: list[str]) -> Verdict:
    """A ratio over a bare read that was slow looks better than it is: it decides nothing good."""
    pair = verdict.budget.pair
    floor = Timed(READ, pair[1].workload, "cold") if pair and pair[1].sampler == READ else None
    slow = [says for says in floors if floor is not None and says.startswith(str(floor))]
    if verdict.status != "pass" or not slow:
        return verdict
    return Verdict(verdict.budget, "undecided", verdict.measured, slow[0])


def _silent() -> None:
    """Nobody wants to know."""


def _three_digits(value: float) -> float:
    """The next number up with three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return round(math.ceil(value / unit) * unit, 12)
