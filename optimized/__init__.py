"""Fast samplers. Each is right because `conformance` says so, not because it says so itself."""

from importlib.util import find_spec
from pathlib import Path

_found = find_spec("reference")
if _found is not None and _found.origin is not None:
    _file = Path(_found.origin)
    if _file.resolve().parents[1] != Path(__file__).resolve().parents[1]:
        raise ImportError(
            f"{_file} hides the package 'reference' that sampling-conformance needs: rename it, run from another "
            "folder, or start Python with -P"
        )

from optimized.flashinfer_sampling import FlashInferSampling  # noqa: E402  # it imports what may be hidden

__all__ = ["FlashInferSampling"]
