"""The committed budgets on a CUDA device: what slows the dispatcher must break one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.measure.budgets import SAMPLER, load
from conformance.measure.gate import gate
from optimized import FlashInferSampling
from tests.benchmarks.slowed import AddedPass, HiddenSync, LaunchPerRow

pytestmark = pytest.mark.gpu

BUDGETS = Path(__file__).parents[1] / "benchmarks" / "budgets-h200.toml"
COUNTED = "n256-V128256-bf16-topk50-varied: "
"""How the ids of its counts begin."""


@pytest.mark.parametrize(
    ("sampler", "only", "fails"),
    [
        (FlashInferSampling, "launches", set()),
        (FlashInferSampling, "syncs", set()),
        (AddedPass, COUNTED + "launches", {"launches"}),
        (HiddenSync, COUNTED + "syncs", {"syncs"}),
        (LaunchPerRow, COUNTED + "launches", {"launches"}),
    ],
    ids=["dispatcher-launches", "dispatcher-syncs", "added-pass", "hidden-sync", "launch-per-row"],
)
def test_counts_are_exact(sampler: Callable[..., Any], only: str, fails: set[str]) -> None:
    found = gate(load(BUDGETS), {SAMPLER: sampler}, only=only)
    assert found.verdicts
    assert not found.count("wrong")
    assert {each.budget.count for each in found.verdicts if each.status == "fail"} == fails


@pytest.mark.parametrize("sampler", [AddedPass, HiddenSync, LaunchPerRow])
def test_what_is_slower_breaks_a_budget_of_time(sampler: Callable[..., Any]) -> None:
    found = gate(load(BUDGETS), {SAMPLER: sampler}, only="n256-V128256-bf16-topk50: cold / read")
    assert [each.status for each in found.verdicts] == ["fail"]
