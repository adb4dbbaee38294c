"""What a run found, as data and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.claims import Claims
from conformance.evidence import Evidence

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Result:
    """One check: a clause with one of its cases.

    status: "pass"; "fail"; "skip", where something required could not be checked; "not applicable",
        where the device or the claims leave nothing to check. reason: why, for the last two.
    error: traceback where the sampler raised. reproducer: Python, for failures.
    """

    id: str
    clause: str
    must: str
    status: str
    reason: str
    evidence: list[Evidence]
    error: str
    reproducer: str
    seconds: float

    @property
    def failed(self) -> list[Evidence]:
        """The judgements that failed."""
        return [each for each in self.evidence if not each.passed]


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
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Checks: required, run, and by status. Required = run + skip + not run."""
        by_status = Counter(result.status for result in self.results)
        run = by_status["pass"] + by_status["fail"]
        return {
            "required": run + by_status["skip"] + len(self.not_run),
            "run": run,
            "pass": by_status["pass"],
            "fail": by_status["fail"],
            "skip": by_status["skip"],
            "not run": len(self.not_run),
            "not applicable": by_status["not applicable"],
        }

    @property
    def conformant(self) -> bool:
        """Every required check was run and passed."""
        counts = self.counts
        return not self.selected and counts["run"] == counts["pass"] == counts["required"] > 0

    @property
    def verdict(self) -> str:
        """In words."""
        counts = self.counts
        if counts["fail"]:
            return "NOT CONFORMANT"
        if self.conformant:
            return f"conformant to spec {self.spec}"
        if self.selected and counts["run"] == counts["required"]:
            return "no failure among the selected checks"
        return "incomplete"

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object; `schema` names its version."""
        stream = self.claims.stream
        claims = {**asdict(replace(self.claims, stream=None)), "stream": stream.name if stream else None, "options": {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(self.claims.options).items()
        }}  # fmt: skip
        return {
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
            "claims": claims,
            "counts": self.counts,
            "interrupted": self.interrupted,
            "not_run": self.not_run,
            "seconds": round(self.seconds, 2),
            "results": [asdict(result) | {"seconds": round(result.seconds, 3)} for result in self.results],
        }

    def write(self, path: Path) -> None:
        """Write the JSON report."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
