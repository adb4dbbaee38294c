"""Finds modules by name: the packages that come with this one, and what a user names. Light: it imports neither."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
"""The folder that holds this package, and `optimized` and `reference` beside it."""

REMEDY = "rename it, run from another folder, or start Python with -P: `python -P -m conformance ...`"


def foreign(package: str) -> str | None:
    """The file that an import of one of our packages would take, where it is not ours."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # something without a spec was put into sys.modules
        return f"an entry of sys.modules named {package!r}"
    if spec is None or spec.origin is None:  # a folder without __init__.py counts last, and hides nothing
        return None
    found = Path(spec.origin).parents[1]
    return None if found == HOME or found.resolve() == HOME.resolve() else spec.origin


def refuse_shadowed() -> None:
    """Raise an ImportError that says what to do where another `reference` hides the one that this package needs."""
    if file := foreign("reference"):
        raise ImportError(f"{file} hides the package 'reference' that sampling-conformance needs: {REMEDY}")


def load(option: str, name: str) -> Any:
    """The object that `module:attribute` names; the working directory is searched first.

    option: what gave the name, for messages. Raises ValueError for a name of another form, a module that cannot be
    imported, whatever the reason, and an attribute that it lacks.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{option} must be module:attribute, got {name!r}")
    importlib.import_module("conformance.runner")  # with our `reference`, before a folder of the user's can hide it
    folder = str(Path.cwd())
    if folder not in sys.path:
        # Who starts Python with -P wants nothing hidden by files that happen to lie there.
        sys.path.insert(len(sys.path) if sys.flags.safe_path else 0, folder)
    wanted = f"{option} must name something that can be imported, got {name!r}"
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise what it likes, SystemExit too
        raise ValueError(f"{wanted}: {_one_line(error)}{_hidden(module)}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            file = getattr(sys.modules[module], "__file__", None) or "a folder without __init__.py"
            raise ValueError(f"{wanted}: {_one_line(error)} (found in {file}){_hidden(module)}") from error
    return found


def load_factory(option: str, name: str) -> Any:
    """The same, where it must be something that can be called."""
    found = load(option, name)
    if not callable(found):
        raise ValueError(f"{option} must name something that can be called, got {name!r}")
    return found


def _hidden(module: str) -> str:
    package = module.partition(".")[0]
    if package not in {"conformance", "optimized", "reference"} or foreign(package) is None:
        return ""
    return f"; it hides the package {package!r} of sampling-conformance: {REMEDY}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
