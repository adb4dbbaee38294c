"""``run``: judges a sampler."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.clauses import TIERS
from conformance.commands.pages import Pages
from conformance.limit import LIMIT
from conformance.report.table import show
from conformance.runner import check
from conformance.siblings import load
from conformance.worker import check_isolated


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    run = commands.add_parser("run", help="judge a sampler; exit 0 if it conforms, 1 if not")
    run.add_argument("--sampler", required=True, metavar="MODULE:FACTORY", help="factory(vocab_size, rng) -> Sampling")
    run.add_argument("--claims", metavar="MODULE:OBJECT", help="a conformance.Claims; else the factory's own")
    run.add_argument("--tier", choices=sorted(TIERS), default="quick")
    run.add_argument(
        "--draws",
        type=_number,
        metavar="N",
        help="with --tier deep: draws of the two cases that get most, 1e8 by default",
    )
    run.add_argument("--device", default="cpu", help="cpu or cuda")
    run.add_argument("--only", action="append", default=[], metavar="CLAUSE", help="a clause or check id; repeatable")
    run.add_argument("--seed", type=int, help="a fresh run; without it, seeds follow from the suite's own names")
    run.add_argument("--expected-failures", type=Path, metavar="FILE.toml", help="what is known to be wrong, and why")
    run.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help="for one check, %(default)g by default"
    )
    run.add_argument(
        "--in-process",
        action="store_true",
        help="check in this process, for debuggers: a sampler that ends its process ends the run",
    )
    run.add_argument("--report", type=Path, metavar="FILE.json", help="write a JSON report")
    Pages.add_to(run)
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    pages = Pages(options, report=options.report)
    console = Console(stderr=pages.take_stdout)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        arguments: dict[str, Any] = {
            "tier": options.tier, "device": options.device, "only": options.only, "seed": options.seed,
            "draws": options.draws, "expected_failures": options.expected_failures, "limit": options.limit,
            "progress": lambda number, total, what: bar.update(task, completed=number, total=total, description=what),
        }  # fmt: skip
        if options.in_process:
            make_sampler = load("--sampler", options.sampler)
            claims = load("--claims", options.claims) if options.claims else None
            report = check(make_sampler, claims=claims, name=options.sampler, **arguments)
        else:
            report = check_isolated(options.sampler, claims=options.claims, output=sys.stderr.write, **arguments)
    show(report, console)
    if options.report:
        report.write(options.report)
        console.print(f"report: {options.report}")
    pages.write(report.to_json())
    if report.results and all(result.status == "not applicable" for result in report.results):
        raise ValueError(f"--only must name something that applies on {options.device}, got {options.only}")
    return report.exit_code


def _number(text: str) -> int:
    """A whole number, also as 1e8."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"must be a whole number such as 1e8, got {text!r}")
    return int(value)
