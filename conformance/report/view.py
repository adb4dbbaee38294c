"""What a report's JSON says, put together for the eye: clause by clause, claim by claim."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conformance.claims import Claims
from conformance.report import BAD, Probe

Json = dict[str, Any]

SEVERITY = ("fail", "unexpected pass", "skip", "expected failure", "pass", "not applicable")
"""Statuses of checks, the one that says most of a clause first."""

MARKS = {
    "fail": "✗", "unexpected pass": "✗", "skip": "!", "expected failure": "~", "pass": "✓", "not applicable": "○",
}  # fmt: skip
"""A sign for each status, so that colour is never all that tells them apart."""


@dataclass(frozen=True)
class ClauseView:
    """A clause with the results of its checks."""

    id: str
    checks: list[Json]

    @property
    def slug(self) -> str:
        """Its place in a page."""
        return "clause-" + re.sub(r"[^\w-]+", "-", self.id)

    @property
    def must(self) -> str:
        """The requirement."""
        must: str = self.checks[0]["must"]
        return must

    @property
    def proposed(self) -> bool:
        """It is reported, and does not count."""
        return not self.checks[0]["gating"]

    @cached_property
    def verdict(self) -> str:
        """The status that says most."""
        found = {check["status"] for check in self.checks}
        return next(status for status in SEVERITY if status in found)

    @cached_property
    def failures(self) -> list[Json]:
        """The checks that are not as they should be."""
        return [check for check in self.checks if check["status"] in BAD]

    @property
    def words(self) -> str:
        """The verdict with its counts."""
        number = sum(check["status"] == self.verdict for check in self.checks)
        verdict = "n/a" if self.verdict == "not applicable" else self.verdict
        return verdict if number == len(self.checks) == 1 else f"{verdict} {of(number, len(self.checks))}"

    @cached_property
    def judgements(self) -> list[Json]:
        """All evidence."""
        return [each for check in self.checks for each in check["evidence"]]

    @property
    def draws(self) -> int | None:
        """Of the check with most; None where there are none."""
        return max((each["draws"] for each in self.judgements if each["draws"] is not None), default=None)

    @property
    def least(self) -> Json | None:
        """The judgement of least p-value."""
        found = [each for each in self.judgements if each["p_value"] is not None]
        return min(found, key=lambda each: each["p_value"], default=None)

    @property
    def sees(self) -> Json | None:
        """The weakest judgement, of those that see something for sure."""
        found = [each for each in self.judgements if each["detectable"] is not None and each["detectable"] > 0]
        weakest = max(found, key=lambda each: each["detectable"], default=None)
        return weakest if weakest is not None and weakest["detectable"] < 1 else None

    @property
    def weakest_chart(self) -> Json | None:
        """The judgement with a chart that comes nearest to failing; where none has a p-value, that which sees least."""
        found = [each for each in self.judgements if each["chart"] is not None]
        return min(
            found,
            key=lambda each: (2.0 if each["p_value"] is None else each["p_value"], -(each["detectable"] or 0.0)),
            default=None,
        )

    @property
    def seconds(self) -> float:
        """Of all its checks."""
        return float(sum(check["seconds"] for check in self.checks))


def of(number: int, total: int) -> str:
    """How many of how many, shortly."""
    return f"{number:,}" if number == total else f"{number:,} of {total:,}"


def clauses(report: Json) -> list[ClauseView]:
    """The clauses of a report, by id."""
    by_clause: dict[str, list[Json]] = {}
    for result in report["results"]:
        by_clause.setdefault(result["clause"], []).append(result)
    return [ClauseView(each, by_clause[each]) for each in sorted(by_clause)]


def tone(report: Json) -> str:
    """Of the verdict: "good", "bad" or "open"."""
    if any(report["counts"][status] for status in BAD):
        return "bad"
    return "good" if report["conformant"] else "open"


def numbers(report: Json) -> list[tuple[str, str]]:
    """Checks by status: how many, and what they are."""
    counts = report["counts"]
    fail = counts["proposed that fail"]
    words = {
        "required": "required", "run": "run", "pass": "passed", "fail": "failed",
        "unexpected pass": "unexpected passes", "expected failure": "expected failures", "skip": "skipped",
        "not run": "not run",
        "not applicable": "not applicable", "proposed": f"proposed, {fail:,} of which fail" if fail else "proposed",
    }  # fmt: skip
    rare = {"pass", "fail", "unexpected pass"}
    return [(f"{counts[name]:,}", word) for name, word in words.items() if counts[name] or name not in rare]


def reasons(report: Json) -> dict[str, int]:
    """How often each reason was given, with its status."""
    found: dict[str, int] = {}
    for result in report["results"]:
        if result["reason"]:
            told = f"{result['status']}: {result['reason']}"
            found[told] = found.get(told, 0) + 1
    return found


def claims(report: Json) -> list[tuple[str, str, str, bool]]:
    """Name, value, default, and whether the two differ, of each claim; those that differ first."""
    default = Claims().to_json()
    pairs = [(name, value, default[name]) for name, value in report["claims"].items()]
    rows = [(name, written(value), written(usual), value != usual) for name, value, usual in pairs]
    return sorted(rows, key=lambda row: not row[3])


def written(value: Any) -> str:
    """A claim's value in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return f"{value:,}" if isinstance(value, int) else str(value)


def probes(report: Json) -> list[str]:
    """What works though it is not claimed, in words."""
    return [Probe(**each).words for each in report["probes"] if each["works"]]


def command(report: Json) -> str:
    """How to run it again, at a shell; in Python where the factory has no name of its own."""
    seed = report["seed"]
    if not re.fullmatch(r"[\w.]+:[\w.]+", report["sampler"]):
        return (
            f"conformance.check(make_sampler, tier={report['tier']!r}, device={report['device']!r}, seed={seed})"
            f"  # make_sampler: {' '.join(report['sampler'].split())}"
        )
    parts = ["python", "-m", "conformance", "run", "--sampler", report["sampler"], "--tier", report["tier"],
             "--device", report["device"], *([] if seed is None else ["--seed", str(seed)])]  # fmt: skip
    return shlex.join(parts)


def p_text(value: float) -> str:
    """A p-value as it is printed."""
    return f"{value:.3g}" if value >= 1e-300 else "<1e-300"


def chance(judgement: Json) -> str:
    """The p-value of a judgement, what it is of, and its alpha."""
    p_value, draws = judgement["p_value"], judgement["draws"]
    found = "p is no number" if p_value is None else f"p = {p_text(p_value)}".replace("= <", "< ")
    over = "" if draws is None else f" over {draws:,} draws"
    return f"{found}{over}, against alpha = {judgement['alpha']:.2g}"
