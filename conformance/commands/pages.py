"""``render`` and ``compare``: reports as pages for people."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.report import html, markdown, matrix, schema
from conformance.report.extra import needs_extra

STDOUT = Path("-")

_WORST_FIRST = ("fail", "unexpected pass", "skip", "expected failure", "pass", "not applicable")


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands."""
    render = commands.add_parser("render", help="make pages of a JSON report")
    render.add_argument("report", type=Path, metavar="REPORT.json")
    Pages.add_to(render)
    render.set_defaults(command=_render)

    compare = commands.add_parser("compare", help="set the JSON reports of several samplers side by side")
    compare.add_argument("reports", type=Path, nargs="+", metavar="REPORT.json")
    compare.add_argument("--html", type=Path, metavar="FILE.html", help="as a page; else as a table")
    compare.set_defaults(command=_compare)


class Pages:
    """The pages that were asked for, of one report. Raises ValueError where one cannot be written."""

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add their options."""
        parser.add_argument("--html", type=Path, metavar="FILE.html", help="write a page for a browser")
        parser.add_argument("--markdown", type=Path, metavar="FILE.md", help="write a summary; - prints it")

    def __init__(self, options: argparse.Namespace, **others: Path | None) -> None:
        """others: files that are written besides, by the name of their option."""
        self.html: Path | None = options.html
        self.markdown: Path | None = options.markdown
        self.take_stdout = STDOUT in {self.html, self.markdown}
        _check_extra(self.html)
        check_targets(**others, html=self.html, markdown=self.markdown)

    def __bool__(self) -> bool:
        return self.html is not None or self.markdown is not None

    def write(self, report: dict[str, Any]) -> None:
        """Write them. report: that of `Report.to_json`."""
        if self.html is not None:
            _write(self.html, html.render(report))
        if self.markdown is not None:
            _write(self.markdown, markdown.summary(report))


def check_targets(**targets: Path | None) -> None:
    """Raise a ValueError for an option whose file cannot be written, or is another's too, before anything runs."""
    taken: dict[Path, str] = {}
    for name, path in targets.items():
        option = f"--{name}"
        if path is None:
            continue
        if path != STDOUT and not path.absolute().parent.is_dir():
            raise ValueError(f"{option} must lie in a folder that exists, got {str(path)!r}")
        if path.is_dir() or (
            path != STDOUT and not os.access(path if path.exists() else path.absolute().parent, os.W_OK)
        ):
            raise ValueError(f"{option} must be a file that can be written, got {str(path)!r}")
        if (other := taken.setdefault(path.absolute(), option)) != option:
            raise ValueError(f"{option} must be another file than that of {other}, got {str(path)!r} for both")


def _check_extra(path: Path | None) -> None:
    if path is not None:
        with needs_extra("--html"):  # missed before a run, and not after it
            for module in ("page", "charts"):
                import_module(f"conformance.report.{module}")


def _write(path: Path, page: str) -> None:
    if path == STDOUT:
        sys.stdout.write(page)
    else:
        path.write_text(page, encoding="utf-8")


def _render(options: argparse.Namespace) -> int:
    pages = Pages(options)
    if not pages:
        raise ValueError("render must be given --html or --markdown, got neither")
    pages.write(schema.load(options.report))
    return 0


def _compare(options: argparse.Namespace) -> int:
    _check_extra(options.html)
    check_targets(html=options.html)
    reports = [schema.load(path) for path in options.reports]
    if options.html is not None:
        _write(options.html, matrix.render(reports))
    else:
        Console().print(_matrix(reports))
    return 0


def _matrix(reports: list[dict[str, Any]]) -> Table:
    """A row a clause, a column a report, the worst status in each."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    statuses: dict[str, list[set[str]]] = {}
    for column, report in enumerate(reports):
        table.add_column(escape(f"{report['sampler']} on {report['device']}, {report['tier']}"))
        for result in report["results"]:
            of_clause = statuses.setdefault(result["clause"], [set() for _ in reports])
            of_clause[column].add(result["status"])
    for clause in sorted(statuses):
        cells = (next((each for each in _WORST_FIRST if each in found), "no result") for found in statuses[clause])
        table.add_row(clause, *(f"[bold red]{cell}[/]" if cell in _WORST_FIRST[:2] else cell for cell in cells))
    table.add_section()
    table.add_row("verdict", *(escape(report["verdict"]) for report in reports))
    return table
