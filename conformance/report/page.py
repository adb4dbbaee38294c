"""The pages' templates, and what they share."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.report import view

FOLDER = Path(__file__).with_name("templates")


def fill(template: str, **values: Any) -> str:
    """A page: the template of that name with these values. Whatever is no `Markup` is escaped.

    The page may load nothing, and run no script but the one of this package: its policy says so to the browser.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "count": "{:,}".format,
        "p": view.p_text,
        "two": "{:.2g}".format,
        "chance": view.chance,
    }
    environment.filters |= filters
    environment.globals |= {"MARKS": view.MARKS}
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    # The script is a file of this package, and no report has a part in it.
    return environment.get_template(template).render(values, policy=policy, script=Markup(script))  # noqa: S704
