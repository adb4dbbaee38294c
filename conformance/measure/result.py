"""What `bench` found, as data and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.measure.clock import Kind
from conformance.measure.counts import Counts
from conformance.measure.files import write_whole
from conformance.measure.ratio import Ratio
from conformance.measure.session import READ
from conformance.measure.workload import Workload
from conformance.report.schema import Form, load

SCHEMA_VERSION = 1
FORM = Form(Path(__file__).with_name("bench.schema.json"), SCHEMA_VERSION, "bench")

CONFIDENCE = 0.99
"""Of the interval of each ratio."""


@dataclass(frozen=True)
class Row:
    """Times of one thing: a sampler, or the bare read, on a workload, and the kind of time.

    seconds: of one call, the median of all rounds. over_read: how many times the bare read's, of the same kind;
    over_first: how many times that of the sampler that was named first. None where there is nothing to divide by.
    moved_bytes: what any sampler must move at least, or what the read reads; rate: so many a second; of_best: of the
    best rate at which this run read anything. None for "host", in which the device may be idle.
    wrong: the calls that were timed did not do what they should, so that no time of theirs means anything.
    """

    case: str
    sampler: str
    kind: Kind
    seconds: float
    over_read: Ratio | None
    over_first: Ratio | None
    moved_bytes: int | None
    rate: float | None
    of_best: float | None
    wrong: bool


@dataclass(frozen=True)
class Finding:
    """Something that timed calls did wrong, in words and numbers."""

    asked: str
    observed: str
    allowed: str


@dataclass(frozen=True)
class Calls:
    """The calls of a sampler, or of the bare read, on a workload.

    counts: of one call; None for the read, and where they could not be had. wrong: what the timed calls did wrong.
    """

    case: str
    sampler: str
    counts: Counts | None
    wrong: list[Finding]


@dataclass(frozen=True)
class Missing:
    """What could not be had, and why, in words. case, sampler, kind: "" where it is all of them."""

    case: str
    sampler: str
    kind: str
    why: str


@dataclass
class Bench:
    """What a run found.

    samplers: `module:attribute` of each factory by its name. kinds: of time, that were asked for and can be had.
    environment: card, clocks and versions at the start; card_after: the card's clocks at the end.
    not_timed: ids of the cases that an interruption, or a sampler that broke CUDA, left out.
    best_rate: bytes a second, of the best bare read; NaN without one. slow_floors: bare reads that are no floor.
    exposed: how many times calls waited for the device, so that their time on it holds time of the host.
    """

    samplers: dict[str, str]
    device: str
    kinds: list[Kind]
    rounds: int
    environment: dict[str, str]
    card_after: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    not_timed: list[str] = field(default_factory=list)
    best_rate: float = math.nan
    slow_floors: list[str] = field(default_factory=list)
    exposed: int = 0
    seconds: float = 0.0
    calls: list[Calls] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: `bench.schema.json` beside this file describes it. Numbers that are none become None."""
        data = {"schema": SCHEMA_VERSION, "confidence": CONFIDENCE, **asdict(self), "seconds": round(self.seconds, 2)}
        found: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda _: None)
        return found

    def write(self, path: Path) -> None:
        """Write it as JSON, a line for each row: so it can be searched and compared line by line."""
        data = self.to_json()
        lists = {name: data.pop(name) for name in ("calls", "missing", "rows")}
        text = json.dumps(data, indent=1, allow_nan=False).removesuffix("\n}")
        for name, entries in lists.items():
            lines = ",\n".join(json.dumps(each, allow_nan=False) for each in entries)
            text += f',\n "{name}": [\n{lines}\n ]'
        write_whole(path, f"{text}\n}}\n")


def exit_code(report: dict[str, Any]) -> int:
    """Of a command that shows it: 1 where a timed call was wrong, a case was left out, or no sampler was timed."""
    wrong = any(each["wrong"] for each in report["calls"])
    none = all(row["sampler"] == READ for row in report["rows"])
    return int(wrong or report["interrupted"] or bool(report["not_timed"]) or none)


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs on one machine as one report: more cases, or fewer samplers on the large ones.

    reports: as `read` gives them. Raises ValueError where they are not of one device, its versions and one first
    sampler, where two mean something else by a name, or hold one case.
    """
    first, *others = reports
    for name, of in (("device", _device), ("first sampler", _first)):
        if len(found := {of(each) for each in reports}) > 1:
            raise ValueError(f"reports must be of one {name} to be shown together, got {sorted(found)}")
    cases = [case for each in reports for case in {row["case"] for row in each["rows"]}]
    if twice := sorted(case for case in set(cases) if cases.count(case) > 1):
        raise ValueError(f"reports must hold different cases to be shown together, got {twice} more than once")
    whole = {**first, "rounds": min(each["rounds"] for each in reports), "samplers": dict(first["samplers"])}
    for each in others:
        for name, factory in each["samplers"].items():
            if whole["samplers"].setdefault(name, factory) != factory:
                raise ValueError(f"reports must mean one sampler by a name, got two by {name!r}")
        for name in ("kinds", "not_timed", "slow_floors", "missing"):
            whole[name] = whole[name] + [entry for entry in each[name] if entry not in whole[name]]
        for name in ("calls", "rows", "seconds", "exposed"):
            whole[name] = whole[name] + each[name]
        whole["best_rate"] = max((rate for rate in (whole["best_rate"], each["best_rate"]) if rate), default=None)
        whole["interrupted"] = whole["interrupted"] or each["interrupted"]
        whole["card_after"] = each["card_after"]
    best = whole["best_rate"]
    rows = [row | {"of_best": row["rate"] / best if row["rate"] and best else None} for row in whole["rows"]]
    whole["rows"], whole["calls"] = sorted(rows, key=_size), sorted(whole["calls"], key=_size)
    return whole


def _size(entry: dict[str, Any]) -> tuple[int, int]:
    workload = Workload.of(entry["case"])
    return workload.vocab_size, workload.n


def _device(report: dict[str, Any]) -> str:
    """With what decides the kernels. An older driver, or another Python, changes little enough to be shown beside."""
    environment = report["environment"]
    names = ("gpu", "machine", "cuda", "torch", "triton")
    return ", ".join(f"{name} {environment[name]}" for name in names if name in environment)


def _first(report: dict[str, Any]) -> str:
    return " = ".join(next(iter(report["samplers"].items())))


def read(path: str | Path) -> dict[str, Any]:
    """What `Bench.write` wrote, as `Bench.to_json` gave it. Raises ValueError as `conformance.report.schema.load`."""
    return load(path, FORM)
