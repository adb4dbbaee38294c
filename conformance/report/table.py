"""A report as a table on a terminal."""

from __future__ import annotations

from collections import defaultdict

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.report import BAD, Report, Result
from conformance.report.view import SEVERITY


def show(report: Report, console: Console) -> None:
    """Failures in full, then a line a clause, then the counts, what was tried beyond the claims, and the verdict."""
    for result in report.results:
        if result.status in BAD:
            _show_failure(result, console)
    console.print(_table(report))
    console.print(
        "sees: an error of this much of the probability is found, all but once in a million runs, by the\n"
        "clause's weakest test in its smallest case; `power` shows every kind of test."
    )
    counts = report.counts
    console.print(
        f"checks: {counts['required']} required, {counts['run']} run, {counts['skip']} skipped, "
        f"{counts['not run']} not run; {counts['not applicable']} not applicable. "
        f"{report.seconds:.1f} s, false alarms at most {report.alpha:.0e} a run."
    )
    if counts["proposed"]:
        console.print(f"proposed, not counted: {counts['proposed']}, of which {counts['proposed that fail']} fail.")
    for reason, number in _reasons(report).items():
        console.print(f"  {number} x {escape(reason)}")
    for probe in report.probes:
        if probe.works:
            console.print(f"  tried: {escape(probe.words)}")
    colour = "green" if report.conformant else "red" if report.failed else "yellow"
    console.print(f"[bold {colour}]{escape(report.sampler)} on {report.device}: {report.verdict}[/]")


def _reasons(report: Report) -> dict[str, int]:
    reasons: dict[str, int] = defaultdict(int)
    for result in report.results:
        if result.reason:
            reasons[f"{result.status}: {result.reason}"] += 1
    return reasons


def _table(report: Report) -> Table:
    by_clause: dict[str, list[Result]] = defaultdict(list)
    for result in report.results:
        by_clause[result.clause].append(result)
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("clause", "checks", "verdict", "draws", "least p", "sees", "s"):
        table.add_column(column, no_wrap=True, justify="left" if column in {"clause", "verdict"} else "right")
    for clause in sorted(by_clause):
        results = by_clause[clause]
        evidence = [each for result in results for each in result.evidence]
        draws = [each.draws for each in evidence if each.draws is not None]
        p_values = [each.p_value for each in evidence if each.p_value is not None]
        shifts = [each.detectable for each in evidence if each.detectable is not None]
        statuses = {result.status for result in results}
        verdict = next(status for status in SEVERITY if status in statuses)
        colour = {"pass": "green", "not applicable": "dim"}.get(verdict, "bold red" if verdict in BAD else "yellow")
        mark = "" if results[0].gating else " (proposed)"
        table.add_row(
            clause,
            str(len(results)),
            f"[{colour}]{'n/a' if verdict == 'not applicable' else verdict}[/]{mark}",
            f"{max(draws):,}" if draws else "exact" if evidence else "",
            f"{min(p_values):.2g}" if p_values else "",
            f"{max(shifts):.2g}" if any(shifts) and max(shifts) < 1 else "",
            f"{sum(result.seconds for result in results):.1f}",
        )
    return table


def _show_failure(result: Result, console: Console) -> None:
    mark = "" if result.gating else "  proposed, not counted"
    console.rule(f"[bold red]{escape(result.id)}[/]{mark}", align="left")
    for line in result.words:
        console.print(escape(line))
    if result.reproducer:
        console.print("reproduce:")
        # Not wrapped: it is there to be copied.
        console.print(result.reproducer, soft_wrap=True, markup=False, highlight=False)
