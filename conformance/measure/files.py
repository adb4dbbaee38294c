"""Writes reports."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: who is killed in the midst of it keeps the one from before."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # /dev/stdout and its like cannot be replaced
        return
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
