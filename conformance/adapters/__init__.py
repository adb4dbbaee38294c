"""Puts samplers that do not speak the contract under it."""

from conformance.adapters.function import from_function

__all__ = ["from_function"]
