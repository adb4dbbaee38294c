"""``list``, ``explain``, ``spec`` and ``power``: what the suite asks for, and what it sees."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from conformance import power
from conformance.clauses import CLAUSES, TIERS
from conformance.runner import check_id
from conformance.spec import page


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands."""
    listing = commands.add_parser("list", help="show all clauses")
    listing.add_argument("--cases", action="store_true", help="with the ids of their checks")
    listing.add_argument("--tier", choices=sorted(TIERS), default="quick")
    listing.set_defaults(command=_list)

    explain = commands.add_parser("explain", help="show a clause with its cases")
    explain.add_argument("clause", metavar="CLAUSE")
    explain.set_defaults(command=_explain)

    specification = commands.add_parser("spec", help="print the specification as a page in Markdown")
    specification.set_defaults(command=_spec)

    powers = commands.add_parser("power", help="show what each kind of test sees, and the draws that an error needs")
    powers.add_argument("--tier", choices=sorted(TIERS), default="full")
    powers.add_argument("--json", action="store_true")
    powers.set_defaults(command=_power)


def _spec(_options: argparse.Namespace) -> int:
    sys.stdout.write(page())
    return 0


def _list(options: argparse.Namespace) -> int:
    console = Console()
    for clause in CLAUSES.values():
        console.print(f"[bold]{clause.id}[/]  {escape(clause.must)}", highlight=False)
        if options.cases:
            for case in clause.cases(TIERS[options.tier]):
                console.print(f"    {check_id(clause, case)}", highlight=False)
    return 0


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
    return 0


def _power(options: argparse.Namespace) -> int:
    tier = TIERS[options.tier]
    if options.json:
        print(json.dumps(power.to_json(tier), indent=1))  # noqa: T201  # for other programs
    else:
        power.show(tier, Console())
    return 0
