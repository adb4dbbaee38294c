"""The commands. Each raises a ValueError for wrong usage, and returns the exit code."""

from __future__ import annotations

import argparse
from typing import NoReturn

from conformance.commands import bench, gate, pages, run, specification


class _Parser(argparse.ArgumentParser):
    """One whose errors are those of the commands."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser() -> argparse.ArgumentParser:
    """Of the whole command line; `command` of what it parses is the function to call with it."""
    whole = _Parser(prog="conformance", description="Judge a token sampler against the law.")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    run.add_to(commands)
    pages.add_to(commands)
    bench.add_to(commands)
    gate.add_to(commands)
    specification.add_to(commands)
    return whole
