"""A console for tables of cases."""

from __future__ import annotations

from rich.console import Console

_LOG_WIDTH = 160
"""Columns where there is no terminal: an id that is broken in two cannot be searched for in a log."""


def wide_console(*, stderr: bool) -> Console:
    """As wide as the terminal; where there is none, wide enough that no id is broken."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_LOG_WIDTH)
