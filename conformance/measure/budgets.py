"""Files of budgets: how slow a sampler may be, as ratios to something that is timed beside it.

    sampler = "optimized:FlashInferSampling"      # module:factory
    device = "cuda"                               # or "cpu"
    measured_on = "NVIDIA H200, torch 2.11.0"     # where the numbers come from; `gate --rebase` writes it

    [against]                                     # other samplers, by the name that `over` uses
    composition = "conformance.measure.baselines:FlashInferComposition"

    [[budget]]
    case = "n64-V128256-bf16-topk50"              # see conformance.measure.Workload
    time = "cold"                                 # a kind of time, see conformance.measure.KINDS
    over = "read"                                 # divided by the bare read of the logits, or by a name of [against]
    at_most = 9.5
    reason = "two launches over the logits, then FlashInfer's top-k draw"

    [[budget]]
    case = "n64-V128256-bf16-topk50-varied"
    time = "cold"
    over_case = "n64-V128256-bf16-topk50"         # divided by the same sampler's time on another case
    at_most = 1.05
    reason = "parameters of their own must cost nothing"

    [[budget]]
    case = "n64-V128256-bf16-topk50"
    count = "launches"                            # of one call: operations, launches or syncs
    at_most = 3
    reason = "each launch costs a microsecond, and as much again on the host"
    fixed = true                                  # optional: `gate --rebase` leaves the number as it is

Optional at the top, with what they are if not given: `rounds = 24` of each timing; `most_rounds = 96`, up to which
they are doubled while a budget is undecided; `confidence = 0.99` of each verdict; `undecided = "pass"` or "fail";
`margin = 0.05`, what `gate --rebase` leaves between a measured ratio and its budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from conformance.measure.clock import CpuClock, CudaClock, Kind
from conformance.measure.counts import COUNTS
from conformance.measure.ratio import LEAST_ROUNDS, least_rounds
from conformance.measure.session import READ, Timed
from conformance.measure.workload import Workload
from conformance.toml_file import Keys, check_keys, read

SAMPLER = "sampler"
"""The name of the sampler under test in a session of the gate."""


@dataclass(frozen=True)
class Budget:
    """One line of the file. The fields are its keys; of `over`, `over_case` and `count` one is given.

    number: counts the budgets of the file from 1.
    """

    number: int
    case: str
    at_most: float
    reason: str
    time: Kind | None = None
    over: str | None = None
    over_case: str | None = None
    count: str | None = None
    fixed: bool = False

    @property
    def id(self) -> str:
        """Readable and greppable, and the only one of its kind in a file."""
        if self.count is not None:
            return f"{self.case}: {self.count}"
        return f"{self.case}: {self.time} / {self.over or self.over_case}"

    @property
    def workload(self) -> Workload:
        """Of the case."""
        return Workload.of(self.case)

    @property
    def pair(self) -> tuple[Timed, Timed] | None:
        """What is divided by what; None for a count."""
        if self.time is None:
            return None
        other = Workload.of(self.over_case) if self.over_case is not None else self.workload
        return Timed(SAMPLER, self.workload, self.time), Timed(self.over or SAMPLER, other, self.time)


@dataclass(frozen=True)
class Budgets:
    """A file of budgets. The fields are its keys."""

    path: Path
    sampler: str
    device: str
    budgets: tuple[Budget, ...]
    against: Mapping[str, str] = field(default_factory=dict)
    measured_on: str = ""
    rounds: int = 24
    most_rounds: int = 96
    confidence: float = 0.99
    undecided: str = "pass"
    margin: float = 0.05

    @property
    def looks(self) -> list[int]:
        """After how many rounds it is tried to decide a budget."""
        found = [self.rounds]
        while found[-1] * 2 <= self.most_rounds:
            found.append(found[-1] * 2)
        return found

    @property
    def confidence_of_a_look(self) -> float:
        """What the confidence leaves open is split evenly."""
        return 1 - (1 - self.confidence) / len(self.looks)


_TEXT = (lambda value: isinstance(value, str) and bool(value.strip()), "a line of text")
_ROUNDS = (lambda value: type(value) is int and value >= LEAST_ROUNDS, f"an int of at least {LEAST_ROUNDS}")
_NUMBER = (lambda value: type(value) in {int, float} and 0 <= value < math.inf, "a number of at least 0")


def _share(value: Any) -> bool:
    return type(value) is float and 0 < value < 1


def _one_of(*values: str) -> tuple[Any, str]:
    return (lambda value: value in values), f"one of {list(values)}"


_FILE_KEYS: Keys = {
    "sampler": _TEXT,
    "device": _one_of("cpu", "cuda"),
    "measured_on": (lambda value: isinstance(value, str), "a line of text"),
    "rounds": _ROUNDS,
    "most_rounds": _ROUNDS,
    "confidence": (_share, "a number between 0 and 1"),
    "undecided": _one_of("pass", "fail"),
    "margin": _NUMBER,
}
_BUDGET_KEYS: Keys = {
    "case": _TEXT,
    "at_most": _NUMBER,
    "reason": _TEXT,
    "time": _one_of(*get_args(Kind)),
    "over": _TEXT,
    "over_case": _TEXT,
    "count": _one_of(*COUNTS),
    "fixed": (lambda value: type(value) is bool, "true or false"),
}


def load(path: str | Path) -> Budgets:
    """Read a file of budgets.

    Raises ValueError, with file, budget, key, value and what is allowed, for whatever is wrong with it.
    """
    path = Path(path)
    data = read(path, "budgets")
    entries, against = data.pop("budget", []), data.pop("against", {})
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        raise ValueError(f"{path}: budget must be tables, each under [[budget]], at least one, got {entries!r}")
    names = isinstance(against, dict) and all(isinstance(each, str) for each in against.values())
    if not names or not {READ, SAMPLER}.isdisjoint(against):
        raise ValueError(
            f'{path}: against must hold lines of name = "module:factory", with names other than '
            f"{READ!r} and {SAMPLER!r}, got {against!r}"
        )
    check_keys(f"{path}", data, _FILE_KEYS, ("sampler", "device"))
    budgets = tuple(_budget(path, number, each, data["device"], against) for number, each in enumerate(entries, 1))
    by_id: dict[str, Budget] = {}
    for budget in budgets:
        if (first := by_id.setdefault(budget.id, budget)) is not budget:
            raise ValueError(f"{path}: budget {budget.number}: must not be that of {first.number}, got {budget.id!r}")
    unused = sorted(set(against) - {each.over for each in budgets})
    if unused:
        raise ValueError(f"{path}: against must name samplers that some budget is over, got {unused}")
    made = Budgets(path, budgets=budgets, against=against, **data)
    if made.rounds < (least := least_rounds(made.confidence_of_a_look)):
        raise ValueError(f"{path}: rounds must be at least {least} for that confidence, got {made.rounds}")
    if made.most_rounds < made.rounds:
        raise ValueError(f"{path}: most_rounds must be at least rounds, {made.rounds}, got {made.most_rounds}")
    return made


def _budget(path: Path, number: int, values: dict[str, Any], device: str, against: Mapping[str, str]) -> Budget:
    where = f"{path}: budget {number}"
    check_keys(where, values, _BUDGET_KEYS, ("case", "at_most", "reason"))
    given = [key for key in ("over", "over_case", "count") if key in values]
    if len(given) != 1 or ("time" in values) != (given != ["count"]):
        raise ValueError(f"{where}: it must have time and over, time and over_case, or count, got {sorted(values)}")
    budget = Budget(number, **values)
    try:
        workload = budget.workload
        if budget.over_case is not None and Workload.of(budget.over_case) == workload:
            raise ValueError(f"over_case must be another case, got {budget.over_case!r}")  # noqa: TRY301  # as the others
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    kinds = (CudaClock if device == "cuda" else CpuClock).kinds
    if budget.time is not None and budget.time not in kinds:
        raise ValueError(f"{where}: time must be one of {list(kinds)} on {device}, got {budget.time!r}")
    if budget.count in COUNTS[1:] and device == "cpu":
        raise ValueError(f"{where}: count must be {COUNTS[0]!r} on a CPU, got {budget.count!r}")
    if budget.over is not None and budget.over not in {READ, *against}:
        raise ValueError(f"{where}: over must be one of {[READ, *against]}, got {budget.over!r}")
    if (budget.time, budget.over) == ("host", READ):
        raise ValueError(f"{where}: time must not be 'host' over {READ!r}: the host does nothing in it")
    return budget


def rewriter() -> Any:
    """tomlkit. Raises ValueError where it is not installed."""
    try:
        import tomlkit  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ValueError(f"--rebase needs `pip install 'sampling-conformance[benchmark]'`: {error}") from error
    return tomlkit


def rebased(budgets: Budgets, at_most: Mapping[int, float], measured_on: str) -> str:
    """The file's text with other numbers, and all else as it is. at_most: by the number of the budget."""
    tomlkit = rewriter()
    document = tomlkit.parse(budgets.path.read_text(encoding="utf-8"))
    entries: Any = document["budget"]
    for number, value in at_most.items():
        entries[number - 1]["at_most"] = int(value) if value == int(value) else value
    document["measured_on"] = measured_on
    text: str = tomlkit.dumps(document)
    return text
