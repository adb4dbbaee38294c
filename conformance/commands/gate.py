"""``gate``: holds a sampler to a file of budgets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.commands.pages import STDOUT, check_targets
from conformance.commands.wide import wide_console
from conformance.measure import budgets as files
from conformance.measure.budgets import SAMPLER, Budgets
from conformance.measure.files import write_whole
from conformance.measure.gate import Judgement, Verdict, gate, new_budgets
from conformance.measure.ratio import Ratio
from conformance.report.markdown import inert
from conformance.siblings import load_factory

_COLOUR = {"pass": "green", "fail": "bold red", "undecided": "yellow", "wrong": "bold red"}
_HEADER = ("budget", "verdict", "measured", "interval", "at most", "rounds")


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    command = commands.add_parser("gate", help="hold a sampler to its speed budgets; exit 0 if it keeps them, 1 if not")
    command.add_argument("--budgets", type=Path, required=True, metavar="FILE.toml")
    command.add_argument("--sampler", metavar="MODULE:FACTORY", help="judge this one instead of the file's")
    command.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME=MODULE:FACTORY",
        help="take this one for a name under [against]; repeatable",
    )
    command.add_argument("--only", default="", metavar="TEXT", help="only budgets with this in their id")
    command.add_argument("--undecided", choices=("pass", "fail"), help="what an undecided budget means")
    command.add_argument("--rebase", action="store_true", help="write what is measured into the file, and show it")
    command.add_argument("--report", type=Path, metavar="FILE.json", help="write a JSON report")
    command.add_argument("--markdown", type=Path, metavar="FILE.md", help="write the table; - prints it")
    command.set_defaults(command=_gate)


def _gate(options: argparse.Namespace) -> int:
    check_targets(report=options.report, markdown=options.markdown)
    if options.rebase and (options.sampler or options.against):
        raise ValueError("--rebase must be without --sampler and --against: the file is about its own samplers")
    if options.rebase:  # what is missing is missed before a run, and not after it
        files.rewriter()
        check_targets(budgets=options.budgets)
    budgets = files.load(options.budgets)
    samplers = _samplers(options, budgets)
    console = wide_console(stderr=options.markdown == STDOUT)
    columns = TextColumn("{task.description}"), TextColumn("round {task.completed}"), TimeElapsedColumn()
    # Drawn between rounds alone: a thread that draws would take its time from the calls that are timed.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=None)
        judgement = gate(
            budgets,
            samplers,
            undecided=options.undecided,
            only=options.only,
            progress=lambda what: bar.update(task, advance=1, description=f"timing {what}", refresh=True),
        )
    if options.report:
        judgement.write(options.report)
    if options.markdown == STDOUT:
        sys.stdout.write(_markdown(judgement))
    elif options.markdown:
        options.markdown.write_text(_markdown(judgement), encoding="utf-8")
    if options.rebase:
        return _rebase(judgement, console)
    _show(judgement, console)
    return 0 if judgement.passed else 1


def _samplers(options: argparse.Namespace, budgets: Budgets) -> dict[str, Any]:
    names = {SAMPLER: ("sampler", budgets.sampler), **{name: ("against", of) for name, of in budgets.against.items()}}
    if options.sampler:
        names[SAMPLER] = "--sampler", options.sampler
    for text in options.against:
        name, _, of = text.partition("=")
        if name not in budgets.against or not of:
            allowed = f"name=module:factory with a name of {sorted(budgets.against)}"
            raise ValueError(f"--against must be {allowed}, got {text!r}")
        names[name] = "--against", of
    return {name: load_factory(option, of) for name, (option, of) in names.items()}


def _cells(verdict: Verdict) -> tuple[str, ...]:
    measured, rounds, interval = verdict.measured, "", ""
    if isinstance(measured, Ratio):
        rounds, interval = str(measured.rounds), f"{measured.low:.3g} to {measured.high:.3g}"
    budget = verdict.budget
    return budget.id, verdict.status, f"{verdict.value:.3g}", interval, f"{budget.at_most:g}", rounds


def _summary(judgement: Judgement) -> list[str]:
    """What stands around the table: first the verdict."""
    counts = ", ".join(f"{judgement.count(status)} {status}" for status in _COLOUR if judgement.count(status))  # type: ignore[arg-type]
    verdict = "within its budgets" if judgement.passed else "NOT WITHIN ITS BUDGETS"
    lines = [f"{judgement.sampler}: {verdict} ({counts or 'nothing judged'}; {judgement.seconds:.0f} s)"]
    lines.append(f"on {judgement.measured_on}")
    if judgement.budgets.measured_on not in {"", judgement.measured_on}:
        lines.append(f"budgets are of {judgement.budgets.measured_on}")
    lines += [f"{each.budget.id}: {each.budget.reason}" for each in judgement.verdicts if each.status == "fail"]
    lines += [f"{each.budget.id}: {each.note}" for each in judgement.verdicts if each.note]
    if judgement.count("undecided") and judgement.undecided == "pass":
        lines.append("undecided budgets do not fail: --undecided fail makes them")
    if judgement.exposed:
        lines.append(f"{judgement.exposed} timings hold time of the host: their calls wait for the device, or are slow")
    return [*lines, *(f"interrupted before {each}" for each in judgement.not_run)]


def _show(judgement: Judgement, console: Console) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in _HEADER:
        table.add_column(name, overflow="fold", justify="left" if name in _HEADER[:2] else "right")
    for verdict in judgement.verdicts:
        name, status, *others = _cells(verdict)
        table.add_row(escape(name), f"[{_COLOUR[status]}]{status}[/]", *others)
    console.print(table)
    first, *rest = _summary(judgement)
    console.print(f"[{'bold' if judgement.passed else 'bold red'}]{escape(first)}[/]", highlight=False)
    for line in rest:
        console.print(escape(line), highlight=False)


def _markdown(judgement: Judgement) -> str:
    first, *rest = _summary(judgement)
    lines = [f"**{inert(first)}**", "", *(f"- {inert(line)}" for line in rest), "", f"| {' | '.join(_HEADER)} |"]
    lines.append("|" + "---|" * len(_HEADER))
    lines += [f"| {' | '.join(map(inert, _cells(each)))} |" for each in judgement.verdicts]
    return "\n".join(lines) + "\n"


def _rebase(judgement: Judgement, console: Console) -> int:
    if judgement.not_run:
        raise ValueError(f"--rebase must be let finish, got an interruption before {judgement.not_run[0]!r}")
    path, at_most = judgement.budgets.path, new_budgets(judgement)
    whole = len(judgement.verdicts) == len(judgement.budgets.budgets)
    measured_on = judgement.measured_on if whole else judgement.budgets.measured_on
    text = files.rebased(judgement.budgets, at_most, measured_on)
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("budget", "measured", "was", "is", "change"):
        table.add_column(name, overflow="fold", justify="left" if name == "budget" else "right")
    for verdict in judgement.verdicts:
        was, now = verdict.budget.at_most, at_most.get(verdict.budget.number)
        change = f"fixed, {verdict.status}" if now is None else f"{now / was - 1:+.1%}" if was else f"{now - was:+g}"
        shown = "" if now is None else f"{now:g}"
        table.add_row(escape(verdict.budget.id), f"{verdict.value:.3g}", f"{was:g}", shown, change)
    write_whole(path, text)
    console.print(table)
    console.print(f"{escape(str(path))}: budgets are of {escape(measured_on)} now", highlight=False)
    return int(any(each.status == "fail" for each in judgement.verdicts if each.budget.number not in at_most))
