"""Reads the file of a report, of whatever form, and says in one line what is wrong with one that is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conformance.report import SCHEMA_VERSION
from conformance.report.extra import needs_extra

PATH = Path(__file__).with_name("schema.json")
"""The JSON schema of a report, draft 2020-12."""


@dataclass(frozen=True)
class Form:
    """A form of reports: the file of its JSON schema, the version of that, and the command that writes such reports."""

    path: Path
    version: int
    command: str


RUN = Form(PATH, SCHEMA_VERSION, "run")

_SHOWN = 120
"""Characters of a wrong value that are shown: enough to find it, and few enough for one line."""


def load(path: str | Path, form: Form = RUN) -> dict[str, Any]:
    """The report in a file, as the `to_json` of what made it gave it.

    Raises ValueError, one line that names the file: where it cannot be read, holds no JSON or no report, holds a report
    of another schema version, or breaks the schema (the first violation, with its place); where jsonschema is missing.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise ValueError(f"report must be a file that can be read, got {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"report {str(path)!r} must hold JSON: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or "schema" not in data:
        raise ValueError(f"report {str(path)!r} must hold a report of `python -m conformance {form.command} --report`")
    if data["schema"] != form.version:
        raise ValueError(f"report {str(path)!r} must have schema {form.version}, got {_short(data['schema'])}")
    if wrong := violation(data, form):
        raise ValueError(f"report {str(path)!r} breaks its schema at {wrong}")
    return data


def violation(data: Any, form: Form = RUN) -> str:
    """Where data break the schema first, and how, in one line; empty where they do not.

    Raises ValueError where jsonschema is not installed.
    """
    errors = sorted(_validator(form).iter_errors(data), key=lambda error: [str(part) for part in error.absolute_path])
    if not errors:
        return ""
    error = errors[0]
    while error.context:
        # Of several kinds of chart the one that the data come nearest to says what is wrong.
        error = min(error.context, key=lambda each: (each.validator in {"type", "const"}, -len(each.absolute_path)))
    return f"{error.json_path}: {_short(error.message)}"


@cache
def _validator(form: Form) -> Any:
    with needs_extra("reading a report"):
        from jsonschema import Draft202012Validator  # noqa: PLC0415  # optional
    return Draft202012Validator(json.loads(form.path.read_text(encoding="utf-8")))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
