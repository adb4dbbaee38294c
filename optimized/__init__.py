"""Fast samplers. Each is right because `conformance` says so, not because it says so itself."""

from optimized.flashinfer_sampling import FlashInferSampling

__all__ = ["FlashInferSampling"]
