"""Judges any token sampler against the law: `conformance.check(make_sampler)`."""

from importlib import import_module
from typing import TYPE_CHECKING

from conformance.siblings import refuse_shadowed

if TYPE_CHECKING:
    from conformance.adapters import from_function
    from conformance.claims import Claims
    from conformance.evidence import Evidence
    from conformance.plugin import SamplingConformance as SamplingConformance
    from conformance.report import Report, Result
    from conformance.runner import check
    from conformance.streams import Stream
else:
    # pytest imports this package at each start, wherever it is installed: torch must wait until it is asked for.
    _HOMES = {
        "Claims": "claims",
        "Evidence": "evidence",
        "Report": "report",
        "Result": "report",
        "SamplingConformance": "plugin",
        "Stream": "streams",
        "check": "runner",
        "from_function": "adapters",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        refuse_shadowed()
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


# Without SamplingConformance: it needs pytest, and `import *` has to work without.
__all__ = ["Claims", "Evidence", "Report", "Result", "Stream", "check", "from_function"]
