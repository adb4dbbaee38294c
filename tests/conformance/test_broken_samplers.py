"""Each deliberately broken sampler fails the clause that it should, and the right one fails none."""

from __future__ import annotations

import pytest

from conformance import check
from tests.conformance.samplers import FAULTS, make


def test_the_plain_sampler_without_a_fault_is_conformant() -> None:
    # Without this, the kills below could come from the plain sampler itself.
    report = check(make(""), name="tests.conformance.samplers:PlainSampling")
    assert [result.id for result in report.results if result.status != "pass" and not result.reason] == []
    assert report.conformant
    assert report.counts["skip"] == 0


@pytest.mark.parametrize(("fault", "clause"), FAULTS.items(), ids=FAULTS)
def test_broken_sampler_fails_its_clause(fault: str, clause: str) -> None:
    report = check(make(fault), only=clause)
    failed = [result for result in report.results if result.status == "fail"]
    assert failed, f"{clause} did not see {fault}"
    assert all(result.reproducer.count("\n") < 6 for result in failed)
    assert all(result.failed or result.error for result in failed)
    assert not report.conformant


def test_a_reproducer_runs_as_printed_and_shows_the_fault(capsys: pytest.CaptureFixture[str]) -> None:
    broken = "tests.conformance.test_broken_samplers:ignores_top_p"
    report = check(ignores_top_p, name=broken, only=["top-p/crossing-token/each-gap"])
    (result,) = report.results
    exec(result.reproducer, {})  # noqa: S102  # the text that a user is told to run
    first_slot = capsys.readouterr().out.splitlines()[0]
    # At p = 0.15 only token 2 may come; this sampler gives all eight.
    assert first_slot.count(":") == 8


ignores_top_p = make("ignores-top-p")
