"""The adapter for Hugging Face transformers, on the package itself."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from conformance import check
from conformance.adapters.transformers import make_sampler, sample


def test_it_draws_what_the_warpers_leave() -> None:
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).bfloat16()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.8)])
    kept = warpers(torch.empty(64, 0, dtype=torch.int64), logits.float())  # type: ignore[arg-type]  # tensors
    torch.manual_seed(1)
    drawn = torch.multinomial(kept.softmax(-1), 1)[:, 0]
    torch.manual_seed(1)
    assert torch.equal(sample(logits, 0.7, 20, 0.8, torch.Generator()), drawn)
    assert torch.equal(sample(logits, 0.0, 20, 0.8, torch.Generator()), logits.argmax(1))


@pytest.mark.parametrize(
    ("only", "fails"),
    [
        ("top-k/kept-set", False),
        ("top-k/ties", False),
        ("top-k/sentinels", False),
        ("top-p/crossing-token", False),
        ("top-p/ties", False),
        ("claims", False),
        ("calls/gather", False),
        ("randomness/reproducible", False),
        # What docs/transformers says of it.
        ("greedy/top-k-one", True),
        ("temperature/tiny/near-at-tiny-T", True),
        ("randomness/advance", True),
    ],
)
def test_the_verdict_on_it(only: str, fails: bool) -> None:  # noqa: FBT001  # whether it is a finding
    report = check(make_sampler, only=only)
    assert report.failed == fails
    assert report.counts["run"] == report.counts["required"] > 0
