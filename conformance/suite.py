"""The tests of one sampler: ``pytest --pyargs conformance.suite --sampler module:factory``."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.plugin import SamplingConformance
from conformance.siblings import load


class TestSampler(SamplingConformance):
    """Judges the sampler of the command line."""

    @classmethod
    def arguments(cls, config: pytest.Config) -> dict[str, Any]:
        """Arguments of `conformance.check`, from the options."""
        sampler, claims = config.getoption("--sampler"), config.getoption("--claims")
        if sampler is None:
            raise ValueError("--sampler must be given, as module:factory")
        return {
            "make_sampler": load("--sampler", sampler),
            "name": sampler,
            "claims": load("--claims", claims) if claims else None,
            "tier": config.getoption("--tier"),
            "device": config.getoption("--sampler-device"),
            "seed": config.getoption("--sampler-seed"),
            "expected_failures": config.getoption("--expected-failures"),
        }
