"""A sampler that leaves CUDA broken fails the check it was at: the others go on in a new process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance import from_function
from conformance.worker import check_isolated

pytestmark = pytest.mark.gpu


def multinomial(logits: Tensor, temperature: Tensor, _k: Tensor, _p: Tensor, rng: torch.Generator) -> Tensor:
    """No filters. A NaN row trips an assertion on the device, which no later call of the process survives."""
    probs = torch.softmax(logits.float() / temperature.clamp(min=1e-6)[:, None], dim=-1)
    drawn = torch.multinomial(probs, 1, generator=rng)[:, 0]
    return torch.where(temperature == 0, logits.argmax(1), drawn)


make_sampler = from_function(multinomial, sync_free=False)


def test_an_assertion_on_the_device_ends_one_check() -> None:
    only = ["temperature/scale", "invalid/law/broken-none", "draw/every-dtype", "isolation/inputs/batch-none"]
    report = check_isolated("tests.gpu.test_worker_gpu:make_sampler", device="cuda", only=only)
    status = {result.clause: result.status for result in report.results}
    assert status.pop("invalid/law") == "fail"
    assert set(status.values()) == {"pass"}
    assert report.counts["run"] == report.counts["required"] == 8
    (broken,) = (result for result in report.results if result.clause == "invalid/law")
    assert "CUDA" in broken.error
    # And a check was run after it.
    assert report.results[-1] is not broken
