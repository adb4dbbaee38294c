"""What a run found, as data and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.claims import Claims
from conformance.evidence import Evidence

SCHEMA_VERSION = 3

GOOD, BAD = ("pass", "expected failure"), ("fail", "unexpected pass")
"""Statuses of checks that were run. An unexpected pass is a failure of the file that expects otherwise."""

_UNCLAIMED = ("False", "None", "none")
"""Values of claims that say that a sampler lacks something."""


_WHY = {
    "unexpected pass": "passed, but is expected to fail",
    "skip": "required, and could not be checked",
}
"""What a reason is the reason of, where the status does not say it."""


@dataclass(frozen=True)
class Result:
    """One check: a clause with one of its cases.

    status: "pass"; "fail"; "expected failure" and "unexpected pass", by a file of expected failures; "skip", where
        something required could not be checked; "not applicable", where the device or the claims leave nothing to
        check. reason: why, for all but the first two.
    gating: false for a proposed clause, which is reported and does not count.
    error: traceback where the sampler raised. reproducer: Python, for failures.
    """

    id: str
    clause: str
    must: str
    status: str
    gating: bool
    reason: str
    evidence: list[Evidence]
    error: str
    reproducer: str
    seconds: float

    @property
    def failed(self) -> list[Evidence]:
        """The judgements that failed."""
        return [each for each in self.evidence if not each.passed]

    @property
    def words(self) -> list[str]:
        """What failed, in words and numbers, without the reproducer; a line each, but for a traceback."""
        lines = [f"MUST: {self.must}"]
        if self.reason:
            lines.append(f"{_WHY.get(self.status, self.status)}: {self.reason}")
        for each in self.failed:
            lines += [f"  asked:    {each.asked}", f"  observed: {each.observed}", f"  allowed:  {each.allowed}"]
            if each.p_value is not None:
                lines.append(f"  p = {each.p_value:.3g} over {each.draws:,} draws, against alpha = {each.alpha:.2g}")
        return [*lines, self.error.rstrip()] if self.error else lines


@dataclass(frozen=True)
class Probe:
    """A claim that was not made, tried once.

    claim: field of `Claims`. claimed, tried: its value as claimed, and as tried. works: whether the checks that were
    tried with it pass; their ids are `checks`.
    """

    claim: str
    claimed: str
    tried: str
    works: bool
    checks: list[str]

    @property
    def words(self) -> str:
        """What one that works says of the claim."""
        if self.claimed in _UNCLAIMED:
            return f"{self.claim}: not claimed, and works"
        return f"{self.claim}: claimed {self.claimed}, but {self.tried} fits"


@dataclass
class Report:
    """A run of the suite on one sampler."""

    sampler: str
    tier: str
    device: str
    spec: str
    seed: int | None
    alpha: float
    environment: dict[str, str]
    claims: Claims
    selected: bool
    """Only some of the checks were asked for."""
    results: list[Result] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    """Ids of the required checks that an interruption left out."""
    interrupted: bool = False
    seconds: float = 0.0
    probes: list[Probe] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Checks: required, run, and by status. Required = run + skip + not run; proposed ones are apart."""
        by_status = Counter(result.status for result in self.results if result.gating)
        proposed = [result for result in self.results if not result.gating]
        run = sum(by_status[status] for status in (*GOOD, *BAD))
        return {
            "required": run + by_status["skip"] + len(self.not_run),
            "run": run,
            **{status: by_status[status] for status in (*GOOD, *BAD, "skip")},
            "not run": len(self.not_run),
            "not applicable": by_status["not applicable"],
            "proposed": len(proposed),
            "proposed that fail": sum(result.status in BAD for result in proposed),
        }

    @property
    def failed(self) -> bool:
        """Some check that counts failed, or passed against expectation."""
        return any(self.counts[status] for status in BAD)

    @property
    def conformant(self) -> bool:
        """Every required check was run and passed."""
        counts = self.counts
        return not self.selected and counts["run"] == counts["pass"] == counts["required"] > 0

    @property
    def verdict(self) -> str:
        """In words."""
        counts = self.counts
        if self.failed:
            return "NOT CONFORMANT"
        if self.conformant:
            return f"conformant to spec {self.spec}"
        if counts["run"] < counts["required"] or not counts["run"]:
            return "incomplete"
        if counts["expected failure"]:
            return f"not conformant: {counts['expected failure']} expected failures, and no other"
        return "no failure among the selected checks"

    @property
    def exit_code(self) -> int:
        """Of a command that made it: 0 where all that counts is as it should be, or as expected; else 1."""
        return int(self.failed or self.counts["run"] < self.counts["required"] or self.interrupted)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object: `schema.json` beside this file describes it, and `schema` names the version of that.

        A number that is none, or has no end, becomes None: JSON has no word for it.
        """
        found: dict[str, Any] = _plain(
            {
                "schema": SCHEMA_VERSION,
                "verdict": self.verdict,
                "conformant": self.conformant,
                "sampler": self.sampler,
                "spec": self.spec,
                "tier": self.tier,
                "device": self.device,
                "seed": self.seed,
                "alpha": self.alpha,
                "environment": self.environment,
                "claims": self.claims.to_json(),
                "counts": self.counts,
                "interrupted": self.interrupted,
                "not_run": self.not_run,
                "seconds": round(self.seconds, 2),
                "probes": [asdict(probe) for probe in self.probes],
                "results": [asdict(result) | {"seconds": round(result.seconds, 3)} for result in self.results],
            }
        )
        return found

    def write(self, path: Path) -> None:
        """Write the JSON report, a line for each check: so it can be searched and compared line by line."""
        data = self.to_json()
        results = ",\n".join(json.dumps(each, allow_nan=False) for each in data.pop("results"))
        head = json.dumps(data, indent=1, allow_nan=False).removesuffix("\n}")
        path.write_text(f'{head},\n "results": [\n{results}\n ]\n}}\n')


def _plain(value: Any) -> Any:
    """The same in lists, dicts and finite numbers."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
