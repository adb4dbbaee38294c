"""Reports of real runs, small ones, each made once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from conformance import Report, check
from conformance.report import Probe, Result
from reference import ReferenceSampling
from tests.conformance.samplers import PlainSampling, make

FEW = ["temperature/scale", "draw/own-rows", "draw/tail/gap8", "top-p/crossing-token", "calls/empty", "graphs"]


class Crashing(PlainSampling):
    def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args[1] > 0:
            raise RuntimeError("<b>boom</b>")
        return super().sample_kernel(*args, **kwargs)


@cache
def right() -> Report:
    """A right sampler, with every kind of chart."""
    return check(ReferenceSampling, only=[*FEW, "coupling/undirected/peaked-none"])


@cache
def broken() -> Report:
    """Statistical failures and exact ones."""
    return check(make("temperature-twice"), only=[*FEW, "calls/result", "log-probs/small"], name="tests.broken:twice")


@cache
def crashed() -> Report:
    """Failures with a traceback."""
    return check(Crashing, only=["top-p/crossing-token", "calls/empty"])


@cache
def interrupted() -> Report:
    """After the first check."""

    def interrupt(number: int, _total: int, _what: str) -> None:
        if number == 1:
            raise KeyboardInterrupt

    return check(ReferenceSampling, only=["top-p/crossing-token", "calls/empty"], progress=interrupt)


@cache
def with_every_status() -> Report:
    """The broken sampler's report, with statuses that only files of expected failures and proposed clauses make."""
    report = broken()
    changes: dict[str, dict[str, Any]] = {
        "temperature/scale": {"status": "expected failure", "reason": "known (https://example.org/issues/7)"},
        "calls/empty": {"status": "unexpected pass", "reason": "mended? (https://example.org/issues/8)"},
        "draw/tail": {"status": "skip", "reason": "the sampler offers nothing to check this with"},
        "draw/own-rows": {"clause": "proposed/clause", "gating": False},
    }
    results = [replace(result, **changes.get(result.clause, {})) for result in report.results]
    probes = [
        Probe("cuda_graph", "False", "True", works=True, checks=["graphs/replay-law/x"]),
        Probe("top_k_ties", "keep-all", "any", works=True, checks=["top-k/ties/x"]),
        Probe("sync_free", "False", "True", works=False, checks=["isolation/sync-free/x"]),
    ]
    return replace(report, results=results, probes=probes)


def many(number: int) -> dict[str, Any]:
    """A report in JSON with that many failures."""
    report = broken()
    failed = next(result for result in report.results if result.status == "fail")
    results: list[Result] = [replace(failed, id=f"{failed.clause}/{i}") for i in range(number)]
    return replace(report, results=results).to_json()
