"""What `bench` found as tables, for a terminal and as Markdown.

They are made of its JSON, so that an earlier report gives the same. A sampler whose timed calls were wrong has WRONG
in place of ratios and beside its times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy.stats import gmean

from conformance.measure.clock import KINDS
from conformance.measure.counts import COUNTS
from conformance.measure.session import READ
from conformance.report.markdown import inert

Json = dict[str, Any]

WRONG = "WRONG"
NONE = "n/a"
"""In a cell: could not be had. A remark says why."""

_CASES = 3
"""Of those that share a remark, so many are named."""


@dataclass(frozen=True)
class Sheet:
    """One table, its cells as text. The first column is the case."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def show(report: Json, console: Console) -> None:
    """Print the tables. report: as `Bench.to_json` gives it or `conformance.measure.result.read` reads it."""
    for line in heading(report):
        console.print(escape(line), highlight=False)
    for sheet in sheets(report):
        table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(sheet.columns[0], no_wrap=True)  # an id is there to be copied
        for name in sheet.columns[1:]:
            table.add_column(escape(name), justify="right", overflow="fold")
        for row in sheet.rows:
            table.add_row(*(f"[bold red]{escape(cell)}[/]" if WRONG in cell else escape(cell) for cell in row))
        console.print(f"\n[bold]{escape(sheet.title)}[/]", highlight=False)
        console.print(table)
    for line in [*remarks(report), *means(report)]:
        console.print(escape(line), style="bold red" if line.startswith(WRONG) else None, highlight=False)


def markdown(report: Json) -> str:
    """The same as Markdown, for a document or the summary of a CI job. report: as for `show`."""
    first, *rest = heading(report)
    parts = [f"## {inert(first)}", *map(inert, rest)]
    for sheet in sheets(report):
        parts.append(f"### {inert(sheet.title)}")
        rule = ["---", *("---:" for _ in sheet.columns[1:])]
        rows = [sheet.columns, *sheet.rows]
        cells = [[inert(cell) for cell in row] for row in rows]
        lines = [cells[0], rule, *([_bold(cell) for cell in row] for row in cells[1:])]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    for title, found in (("Remarks", remarks(report)), ("Geometric means", means(report))):
        if found:
            parts += [f"### {title}", "\n".join(f"- {_bold(inert(line))}" for line in found)]
    return "\n\n".join(parts) + "\n"


def heading(report: Json) -> list[str]:
    """Card, driver and versions in the first line; how it was timed, and clocks, in others."""
    found, after = report["environment"], report["card_after"]
    names = ("driver", "cuda", "torch", "triton", "flashinfer", "transformers", "python")
    versions = [f"{name} {found[name]}" for name in names if name in found]
    lines = [", ".join([found.get("gpu") or f"a CPU ({found.get('machine', 'unknown')})", *versions])]
    lines.append(
        f"{_rounds(report)} rounds, each with all samplers of a case side by side: medians, and ratios, ± the further "
        f"end of their intervals of {report['confidence']:.0%}. It took {report['seconds']:.0f} s."
    )
    clocks = [
        f"{name} {found[name]}" + (f", then {after[name]}" if name in after else "")
        for name in ("SM clock", "memory clock", "temperature", "power limit")
        if name in found
    ]
    lines += ["; ".join(clocks)] if clocks else []
    return [*lines, "; ".join(f"{name}: {factory}" for name, factory in report["samplers"].items())]


def _rounds(report: Json) -> str:
    """Of the ratios: runs that are shown together may differ."""
    found = {row[over]["rounds"] for row in report["rows"] for over in ("over_read", "over_first") if row[over]}
    least, most = min(found, default=report["rounds"]), max(found, default=report["rounds"])
    return f"{least}" if least == most else f"{least} to {most}"


def sheets(report: Json) -> Iterator[Sheet]:
    """A table of each kind of time that was taken, "cold" first, and one of the counts."""
    at = {(row["case"], row["sampler"], row["kind"]): row for row in report["rows"]}
    taken = {kind for _, name, kind in at if name != READ}
    for kind in KINDS:
        if kind in taken:
            yield _times(report, at, kind)
    if any(calls["counts"] for calls in report["calls"]):
        yield _counts(report)


def _times(report: Json, at: dict[tuple[str, str, str], Json], kind: Any) -> Sheet:
    names = list(report["samplers"])
    first, others = names[0], names[1:]
    columns = ["case", *(f"{name} us" for name in names), *(f"{name} / {first}" for name in others)]
    if kind != "host":
        columns += [f"{READ} us", f"{first} / {READ}"]
    if kind == "cold":
        columns += [f"{first} GB/s", "% of best read"]
    rows = []
    for case in dict.fromkeys(case for case, name, of in at if of == kind and name != READ):
        found = {name: at.get((case, name, kind)) for name in (READ, *names)}
        row, read = found[first], found[READ]
        cells = [case, *(_microseconds(found[name]) for name in names)]
        cells += [_ratio(found[name], row, "over_first") for name in others]
        if kind != "host":
            cells += [_microseconds(read), _ratio(row, read, "over_read")]
        if kind == "cold":
            cells += _rate(row)
        rows.append(cells)
    return Sheet(f"{kind}: {KINDS[kind]}", columns, rows)


def _counts(report: Json) -> Sheet:
    """Only what the device has: a CPU has no launches."""
    of = {(calls["case"], calls["sampler"]): calls for calls in report["calls"]}
    found = [calls["counts"] for calls in of.values() if calls["counts"]]
    counted = [name for name in COUNTS if any(each[name] is not None for each in found)]

    def cell(calls: Json | None) -> str:
        if calls is None or calls["counts"] is None:
            return NONE
        numbers = " / ".join(f"{calls['counts'][name]:g}" for name in counted)
        return f"{numbers} {WRONG}" if calls["wrong"] else numbers

    cases = dict.fromkeys(case for case, _ in of)
    rows = [[case, *(cell(of.get((case, name))) for name in report["samplers"])] for case in cases]
    return Sheet(f"counts of one call: {' / '.join(counted)}", ["case", *report["samplers"]], rows)


def remarks(report: Json) -> list[str]:
    """What was wrong, what could not be had, and what a reader of the times should know, a line each."""
    lines = [line for calls in report["calls"] for line in _wrong(calls)]
    cases: dict[tuple[str, str, str], list[str]] = {}
    for each in report["missing"]:
        cases.setdefault((each["sampler"], each["kind"], each["why"]), []).append(each["case"])
    for (sampler, kind, why), of in cases.items():
        what = ", ".join(part for part in (sampler, kind, _some(of)) if part)
        lines.append(f"{NONE}: {what}: {why}")
    lines += [f"slow floor, so that ratios to it look better than they are: {each}" for each in report["slow_floors"]]
    if report["exposed"]:
        lines.append(f"{report['exposed']} timings hold time of the host: their calls wait for the device, or are slow")
    if report["not_timed"]:
        why = "interrupted" if report["interrupted"] else "ended early"
        lines.append(f"{why}, and not timed: {_some(report['not_timed'])}")
    return lines


def _wrong(calls: Json) -> Iterator[str]:
    """A line for each question; there may be a finding for each of many sets of logits."""
    of_question: dict[str, list[Json]] = {}
    for each in calls["wrong"]:
        of_question.setdefault(each["asked"], []).append(each)
    for asked, (first, *others) in of_question.items():
        more = f" ({len(others)} more like it)" if others else ""
        yield (
            f"{WRONG}: {calls['sampler']} on {calls['case']}: asked: {asked}; observed: {first['observed']}; "
            f"allowed: {first['allowed']}{more}"
        )


def means(report: Json) -> list[str]:
    """The geometric mean of the ratios of each other sampler to the first, over all cases in which both are right."""
    first, *others = report["samplers"]
    wrong = {(calls["case"], calls["sampler"]) for calls in report["calls"] if calls["wrong"]}
    lines = []
    for name in others:
        ratios = [
            row["over_first"]["value"]
            for row in report["rows"]
            if (row["sampler"], row["kind"]) == (name, "cold")
            and (row["over_first"] or {}).get("value")
            and wrong.isdisjoint({(row["case"], name), (row["case"], first)})
        ]
        if ratios:
            lines.append(f"{name} / {first}, cold, geometric mean of {len(ratios)}: {_three(float(gmean(ratios)))}")
    return lines


def _microseconds(row: Json | None) -> str:
    if row is None:
        return NONE
    return f"{_three(row['seconds'] * 1e6)} {WRONG}" if row["wrong"] else _three(row["seconds"] * 1e6)


def _ratio(row: Json | None, other: Json | None, over: str) -> str:
    if row is None or other is None or row[over] is None:
        return NONE
    if row["wrong"] or other["wrong"]:
        return WRONG
    value, low, high = (row[over][name] for name in ("value", "low", "high"))
    if None in {value, low, high}:
        return NONE
    return f"{_three(value)} ±{_two(max(high - value, value - low) / value * 100)}%"


def _rate(row: Json | None) -> list[str]:
    if row is None or row["rate"] is None:
        return [NONE, NONE]
    if row["wrong"]:
        return [WRONG, WRONG]
    return [_three(row["rate"] / 1e9), NONE if row["of_best"] is None else _two(row["of_best"] * 100)]


def _three(value: float) -> str:
    """With three digits, or all that stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def _two(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _some(cases: list[str]) -> str:
    named = [case for case in cases if case]
    more = f" and {len(named) - _CASES} more" if len(named) > _CASES else ""
    return ", ".join(named[:_CASES]) + more


def _bold(text: str) -> str:
    return text.replace(WRONG, f"**{WRONG}**")
