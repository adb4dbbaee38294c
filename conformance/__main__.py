"""The command line: ``python -m conformance`` or ``sampling-conformance``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from conformance.siblings import refuse_shadowed
from conformance.signals import sigterm_interrupts

FAILED, USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 where all is as it should be, 1 where it is not, 2 for wrong usage."""
    with sigterm_interrupts():
        try:
            refuse_shadowed()  # before anything imports what is hidden
        except ImportError as error:
            return _stop(f"error: {error}", USAGE)
        try:
            options = import_module("conformance.commands").parser().parse_args(arguments)
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
