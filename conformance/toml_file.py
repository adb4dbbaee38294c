"""Reads the TOML files that users write, and says in one line what is wrong with one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Keys = Mapping[str, tuple[Callable[[Any], bool], str]]
"""What each key may hold, as a test and in words."""


def read(path: Path, what: str) -> dict[str, Any]:
    """What a file holds. what: its name in messages. Raises ValueError for one that cannot be read, or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOML and UTF-8 that are none are ValueErrors
        raise ValueError(f"{path}: {what} must be TOML that can be read: {error}") from error


def check_keys(where: str, values: Mapping[str, Any], keys: Keys, required: Iterable[str]) -> None:
    """Raise ValueError for a key that is unknown or missing, or holds what it must not. where: file and entry."""
    if unknown := sorted(set(values) - set(keys)):
        raise ValueError(f"{where}: keys must be among {list(keys)}, got {unknown}")
    if missing := [key for key in required if key not in values]:
        raise ValueError(f"{where}: {missing[0]} must be given, got {values!r}")
    for key, value in values.items():
        right, allowed = keys[key]
        if not right(value):
            raise ValueError(f"{where}: {key} must be {allowed}, got {value!r}")
