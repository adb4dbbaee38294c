"""The command line: ``python -m conformance run | list | explain | power``."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance import power
from conformance.claims import Claims
from conformance.clauses import CLAUSES, TIERS
from conformance.report.table import show
from conformance.runner import check, check_id

CONFORMANT, USAGE = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 for conformant, 1 for not, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # a command line talks to its user
        return USAGE
    return code


def load(spec: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = spec.partition(":")
    if not attribute:
        raise ValueError(f"--sampler and --claims must be module:attribute, got {spec!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module of the user's lies in the working directory
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{spec!r} must name something that can be imported: {error}") from error
    return found


def _run(options: argparse.Namespace) -> int:
    console = Console()
    if options.report and not options.report.absolute().parent.is_dir():
        raise ValueError(f"--report must lie in a folder that exists, got {str(options.report)!r}")
    make_sampler: Callable[..., Any] = load(options.sampler)
    claims: Claims | None = load(options.claims) if options.claims else None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        report = check(
            make_sampler,
            claims=claims,
            tier=options.tier,
            device=options.device,
            name=options.sampler,
            only=options.only,
            seed=options.seed,
            draws=options.draws,
            progress=lambda number, total, what: bar.update(task, completed=number, total=total, description=what),
        )
    show(report, console)
    if options.report:
        report.write(options.report)
        console.print(f"report: {options.report}")
    if not report.counts["required"]:
        raise ValueError(f"--only must name something that applies on {options.device}, got {options.only}")
    return report.exit_code


def _list(options: argparse.Namespace) -> int:
    console = Console()
    for clause in CLAUSES.values():
        console.print(f"[bold]{clause.id}[/]  {escape(clause.must)}", highlight=False)
        if options.cases:
            for case in clause.cases(TIERS[options.tier]):
                console.print(f"    {check_id(clause, case)}", highlight=False)
    return CONFORMANT


def _explain(options: argparse.Namespace) -> int:
    clause = CLAUSES.get(options.clause)
    if clause is None:
        raise ValueError(f"CLAUSE must be one of {sorted(CLAUSES)}, got {options.clause!r}")
    console = Console()
    console.print(f"[bold]{clause.id}[/]\n\n{escape(clause.must)}\n\nSource: {clause.source}.", highlight=False)
    kind = "statistical, with a share of the run's false-alarm budget" if clause.statistical else "exact"
    console.print(f"Kind: {kind}. Check: {clause.check.__module__}.{clause.check.__name__}.\n", highlight=False)
    for tier in TIERS.values():
        console.print(f"Cases in {tier.name}:")
        for case in clause.cases(tier):
            rows, requests = case.pattern_code()
            console.print(f"  {case.id}", highlight=False)
            for what, code in (
                ("logits", case.code),
                ("temperature, top_k, top_p", case.parameters_code()),
                ("rows and requests of the slots", f"{rows}, {requests}"),
            ):
                console.print(f"    {what}: {escape(code)}", highlight=False)
    return CONFORMANT


def _power(options: argparse.Namespace) -> int:
    tier = TIERS[options.tier]
    if options.json:
        print(json.dumps(power.to_json(tier), indent=1))  # noqa: T201  # for other programs
    else:
        power.show(tier, Console())
    return CONFORMANT


def _number(text: str) -> int:
    """A whole number, also as 1e8."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"must be a whole number such as 1e8, got {text!r}")
    return int(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conformance", description="Judge a token sampler against the law.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

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
    run.add_argument("--report", type=Path, metavar="FILE.json", help="write a JSON report")
    run.add_argument("--only", action="append", default=[], metavar="CLAUSE", help="a clause or check id; repeatable")
    run.add_argument("--seed", type=int, help="a fresh run; without it, seeds follow from the suite's own names")
    run.set_defaults(command=_run)

    listing = commands.add_parser("list", help="show all clauses")
    listing.add_argument("--cases", action="store_true", help="with the ids of their checks")
    listing.add_argument("--tier", choices=sorted(TIERS), default="quick")
    listing.set_defaults(command=_list)

    powers = commands.add_parser("power", help="show what each kind of test sees, and the draws that an error needs")
    powers.add_argument("--tier", choices=sorted(TIERS), default="full")
    powers.add_argument("--json", action="store_true")
    powers.set_defaults(command=_power)

    explain = commands.add_parser("explain", help="show a clause with its cases")
    explain.add_argument("clause", metavar="CLAUSE")
    explain.set_defaults(command=_explain)
    return parser


if __name__ == "__main__":
    sys.exit(main())
