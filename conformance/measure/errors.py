"""Errors of samplers, in a line."""

from __future__ import annotations

_LONGEST = 300
"""Characters. Errors of CUDA running out of memory go on about settings."""


def in_words(error: BaseException) -> str:
    """Type, message and notes of an error, which say what was being done."""
    text = " ".join(" ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
