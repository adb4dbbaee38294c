"""Contexts of engines that are not quite right, and numpy's numbers: an error that names what, or the right answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from reference import ReferenceSampling, SamplingContext, filter_flags
from tests.reference.helpers import generator

VIEW = SamplingContext([1.0, 0.0], [0, 3], [0.5, 0.0]).gpu_view
METADATA = {
    "temperature": torch.tensor([1.0, 0.0]),
    "top_k": torch.tensor([0, 3]),
    "top_p": torch.tensor([0.5, 0.0]),
}
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "metadata-bf16": ({"top_p": torch.tensor([0.5, 0.0], dtype=torch.bfloat16)}, r"\['top_p'\].*float32.*bfloat16"),
    "metadata-float-top_k": ({"top_k": torch.tensor([0.0, 2.5])}, r"\['top_k'\].*int32.*float32"),
    "metadata-list": ({"temperature": [1.0, 0.0]}, r"\['temperature'\].*tensor.*list"),
    "metadata-missing": ({"top_p": None}, r"\['top_p'\].*tensor.*NoneType"),
}


def context(**changes: Any) -> SimpleNamespace:
    parts = {"gpu_view": VIEW, "active_request_metadata": METADATA, "total_request_count": 2, "paused_request_count": 0}
    return SimpleNamespace(**(parts | changes))


@pytest.mark.parametrize(("change", "message"), MALFORMED.values(), ids=MALFORMED)
def test_wrong_metadata_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filter_flags(context(active_request_metadata=METADATA | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"active_request_metadata": [1]}, "active_request_metadata must be a mapping"),
        ({"total_request_count": 2.7}, r"total_request_count must be an int, got 2\.7"),
        ({"paused_request_count": None}, "paused_request_count must be an int, got None"),
    ],
    ids=["metadata-list", "total-fraction", "paused-none"],
)
def test_wrong_counts_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filter_flags(context(**change))


def test_metadata_that_requires_grad_is_read() -> None:
    metadata = METADATA | {"temperature": torch.tensor([1.0, 0.0], requires_grad=True)}
    assert filter_flags(context(active_request_metadata=metadata), 10) == {"no_top_k": False, "no_top_p": False}


def test_numpys_numbers_are_numbers() -> None:
    """An engine's counts and flags come from numpy arrays as often as from Python."""
    sampler = ReferenceSampling(3, generator(0))
    no = np.zeros(1, dtype=bool)[0]
    flags = {"no_top_k": no, "no_top_p": no}
    ids = sampler.sample_kernel(torch.eye(3), np.int64(2), context(), **flags)  # type: ignore[arg-type]
    assert ids.shape == (2,)
    assert ids[1] == 1


def test_the_shortest_parameter_bounds_the_requests_of_a_speculative_step() -> None:
    """The map is made on the device, where nobody looks at it: a kernel would read beyond top_k."""
    view = SimpleNamespace(temperature=torch.ones(5), top_k=torch.zeros(2, dtype=torch.int32), top_p=torch.zeros(5))
    sampler = ReferenceSampling(3, generator(0))
    with pytest.raises(ValueError, match=r"num_decode \+ num_prefill must be at most the 2 requests"):
        sampler.sample_speculative(torch.zeros(9, 3), 3, 0, 1, SimpleNamespace(gpu_view=view))
