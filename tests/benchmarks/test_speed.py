"""Samplers on workloads, for pytest-benchmark. Its figures are the times of `conformance.measure`.

    pytest tests/benchmarks --benchmark-only --benchmark-columns=median,iqr,min,rounds

A round is one timing by the core: the seconds of one call, with inputs that no cache holds; on a CUDA device they are
the device's. pytest-benchmark reads them off a clock that stands still in between. The samplers of a workload are a
group of the table, and timed one after the other: which is faster, and how sure that is, `python -m conformance bench`
says, which times them in turn.

Where benchmarks are disabled, each is one timing, and a test: what was drawn in it follows the law.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from conformance.measure import KINDS, READ, Kind, Session, Timed, Workload
from conformance.measure.baselines import FlashInferComposition, FlashInferPath, TorchComposition
from optimized import FlashInferSampling
from reference import ReferenceSampling

pytest.importorskip("pytest_benchmark", reason="pip install 'sampling-conformance[benchmark]'")

ROUNDS = 20
KIND: Kind = "cold"

ANYWHERE = (ReferenceSampling, FlashInferSampling, TorchComposition)
SAMPLERS: dict[str, dict[str, Any]] = {
    "cpu": {each.__name__: each for each in ANYWHERE},
    "cuda": {each.__name__: each for each in (*ANYWHERE, FlashInferComposition, FlashInferPath)},
}
WORKLOADS = {
    "cpu": (
        "n1-V1024-fp32-none",
        "n8-V1024-fp32-topk50",
        "n8-V1024-bf16-topk50-topp0.9-mixed",
        "n1-V32768-bf16-none",
        "n1-V32768-fp32-topp0.9",
        "n8-V32768-fp32-none",
        "n8-V32768-bf16-topk50",
        "n8-V32768-fp32-topk50-topp0.9",
    ),
    "cuda": (
        *(
            f"n{n}-V128256-bf16-{filters}"
            for n in (1, 8, 64, 256)
            for filters in ("none", "topk50", "topp0.9", "topk50-topp0.9", "topk50-topp0.9-mixed")
        ),
        *(f"n{n}-V32000-fp32-{filters}" for n in (8, 256) for filters in ("none", "topk50-topp0.9")),
    ),
}
LARGE = {"cpu": "n8-V32768-fp32-none", "cuda": "n256-V128256-bf16-none"}
"""The first whose bare read is timed: so a small one is not the best of a run that times no other."""

CASES = [
    pytest.param((device, each), name, id=f"{each}-{name}", marks=[pytest.mark.gpu] if device == "cuda" else [])
    for device, workloads in WORKLOADS.items()
    for each in workloads
    for name in SAMPLERS[device]
]


class CoreClock:
    """A timer for pytest-benchmark: the seconds that the core has measured so far."""

    __name__ = "conformance.measure"  # what saved runs call their timer

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


CLOCK = CoreClock()


@cache
def session_on(device: str) -> Session:
    return Session(SAMPLERS[device], device)


@pytest.fixture(scope="module")
def workload(request: pytest.FixtureRequest) -> Iterator[tuple[Session, Workload]]:
    """A session and a workload, whose logits are there as long as its samplers are timed."""
    device, name = request.param
    session, made = session_on(device), Workload.of(name)
    yield session, made
    session.forget(made)


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize(("workload", "sampler"), CASES, indirect=["workload"])
def test_speed(benchmark: Any, workload: tuple[Session, Workload], sampler: str) -> None:
    session, what = workload
    lane, rounds, seconds = session.lane(sampler, what), itertools.count(), list[float]()

    def one_round() -> None:
        seconds.append(lane.time(KIND, next(rounds)))
        CLOCK.advance(seconds[-1])

    benchmark.group = what.id
    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    if benchmark.enabled:
        assert benchmark.stats["median"] == pytest.approx(statistics.median(seconds))
        benchmark.extra_info.update(beside(session, what, statistics.median(seconds)))
        if "host" in session.clock.kinds:
            host = [lane.time("host", next(rounds)) for _ in range(ROUNDS)]
            benchmark.extra_info["host_seconds"] = statistics.median(host)
    assert session.wrong(sampler, what) == []


def beside(session: Session, workload: Workload, seconds: float) -> dict[str, Any]:
    """What belongs to a time: which kind it is, and how far it is from the time of a bare read."""
    for each in (Workload.of(LARGE[session.device.type]), workload):
        read = Timed(READ, each, KIND)
        if read not in session.seconds:
            session.time([read], ROUNDS)
    return {
        "time": f"seconds of one call; {KINDS[KIND]}",
        "clock": "CUDA events" if session.device.type == "cuda" else "time.perf_counter",
        "read_seconds": session.median(Timed(READ, workload, KIND)),
        "bytes": workload.moved_bytes,
        "of_best_read": workload.moved_bytes / seconds / session.best_rate,
    }
