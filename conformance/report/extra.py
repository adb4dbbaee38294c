"""What only reports need: jinja2, matplotlib, jsonschema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Around imports of optional packages: raises ValueError, which says how to install them, where one is missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{what} needs `pip install 'sampling-conformance[report]'`: {error}") from error
