"""``bench``: times samplers side by side."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.commands.pages import STDOUT, check_targets
from conformance.commands.wide import wide_console
from conformance.measure import result, tables
from conformance.measure.bench import ROUNDS, WORKLOADS, bench
from conformance.measure.clock import KINDS
from conformance.measure.ratio import LEAST_ROUNDS
from conformance.measure.session import READ
from conformance.measure.workload import Workload
from conformance.report.extra import needs_extra
from conformance.siblings import load_factory


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "bench", help="time samplers side by side; exit 0 if all timed calls were right, 1 if not"
    )
    command.add_argument(
        "--sampler",
        action="append",
        default=[],
        metavar="[NAME=]MODULE:FACTORY",
        help="repeatable: the others are compared with the first",
    )
    cases = command.add_mutually_exclusive_group()
    cases.add_argument("--case", action="append", metavar="ID", help="such as n64-V128256-bf16-topk50; repeatable")
    cases.add_argument("--cases", choices=WORKLOADS, help="a set of them; quick by default, on a CUDA device standard")
    command.add_argument(
        "--time",
        action="append",
        choices=KINDS,
        help="kind of time; repeatable, and all that the device has by default",
    )
    command.add_argument("--device", help="cpu or cuda; cpu by default")
    command.add_argument("--rounds", type=int, metavar="N", help=f"{ROUNDS} by default, at least {LEAST_ROUNDS}")
    command.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        action="append",
        metavar="FILE.json",
        help="render an earlier report; repeatable, for runs on one machine",
    )
    command.add_argument("--report", type=Path, metavar="FILE.json", help="write a JSON report")
    command.add_argument("--markdown", type=Path, metavar="FILE.md", help="write the tables; - prints them")
    command.add_argument("--roofline", type=Path, metavar="FILE.png", help="write a picture of the rates reached")
    command.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    check_targets(report=options.report, markdown=options.markdown, roofline=options.roofline)
    roofline = _roofline() if options.roofline else None
    console = wide_console(stderr=options.markdown == STDOUT)
    if options.earlier:
        given = [
            name
            for name in ("sampler", "case", "cases", "time", "device", "rounds", "report")
            if getattr(options, name)
        ]
        if given:
            raise ValueError(f"--from must be without what says what to time and where to keep it, got --{given[0]}")
        report = result.merged([result.read(each) for each in options.earlier])
    else:
        found = _timed(options, console, roofline)
        if options.report:
            found.write(options.report)
        report = found.to_json()
    code = result.exit_code(report)
    tables.show(report, console)
    if options.report:
        console.print(f"report: {escape(str(options.report))}")
    if options.markdown == STDOUT:
        sys.stdout.write(tables.markdown(report))
    elif options.markdown:
        options.markdown.write_text(tables.markdown(report), encoding="utf-8")
    if roofline:
        try:
            roofline.write(report, options.roofline)
        except ValueError as error:
            if not code:
                raise
            console.print(f"no picture: {escape(str(error))}")  # as the rest of what failed is told
    return code


def _timed(options: argparse.Namespace, console: Console, roofline: Any) -> result.Bench:
    samplers = _samplers(options.sampler)
    device = options.device or "cpu"
    cases = options.case or WORKLOADS[options.cases or ("standard" if device.startswith("cuda") else "quick")]
    for case in cases:
        try:
            Workload.of(case)
        except ValueError as error:
            raise ValueError(f"--{error}") from error
    if roofline and options.time and "cold" not in options.time:
        raise ValueError(f"--roofline must be with --time cold, got {options.time}")
    if roofline and not any(map(roofline.panel_of, cases)):
        raise ValueError(f"--roofline must be with a case without options, got {list(cases)}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    # Drawn between rounds alone: a thread that draws would take its time from the calls that are timed.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=None)
        return bench(
            samplers,
            cases,
            device=device,
            kinds=options.time,
            rounds=ROUNDS if options.rounds is None else options.rounds,
            progress=lambda number, total, what: bar.update(
                task, completed=number, total=total, description=what, refresh=True
            ),
            keep=(lambda found: found.write(options.report)) if options.report else None,
        )


def _samplers(given: list[str]) -> dict[str, Any]:
    """The factories by name: the one that was given, or the attribute's."""
    if not given:
        raise ValueError("--sampler must be given, or --from")
    found: dict[str, Any] = {}
    for text in given:
        name, _, of = text.rpartition("=")
        name = name or of.rpartition(":")[2]
        factory = load_factory("--sampler", of)
        if name in {READ, *found}:
            raise ValueError(
                f"--sampler must have a name other than {[READ, *found]}, got {text!r}; NAME={of} gives one"
            )
        found[name] = factory
    return found


def _roofline() -> Any:
    """What draws the picture: what it needs is missed before a run, and not after it."""
    with needs_extra("--roofline"):
        return import_module("conformance.measure.roofline")
