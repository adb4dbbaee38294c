"""The command line: ``python -m conformance`` or ``sampling-conformance``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from conformance.siblings import refuse_shadowed

FAILED, USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 for conformant, 1 for not, 2 for wrong usage."""
    try:
        refuse_shadowed()  # before anything imports what is hidden
    except ImportError as error:
        return _stop(f"error: {error}", USAGE)
    parser = import_module("conformance.commands").parser()
    try:
        options = parser.parse_args(arguments)
        code: int = options.command(options)
    except (ValueError, OSError) as error:
        return _stop(f"error: {' '.join(str(error).split())}", USAGE)
    except KeyboardInterrupt:
        return _stop("error: interrupted before anything was found", FAILED)
    return code


def _stop(message: str, code: int) -> int:
    print(message, file=sys.stderr)  # noqa: T201  # a command line talks to its user
    return code


if __name__ == "__main__":
    sys.exit(main())
