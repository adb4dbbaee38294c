"""Draw-exact coupling on a GPU: the documented kernels follow their stream, and small faults in it are seen."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import check
from optimized import FlashInferSampling
from reference import ReferenceSampling

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", [None, 1])
def test_flashinfer_is_coupled_to_its_stream(seed: int | None) -> None:
    report = check(FlashInferSampling, tier="full", device="cuda", only="coupling/", seed=seed)
    assert [result.id for result in report.results if result.status != "pass"] == []


def test_the_reference_is_coupled_to_its_stream() -> None:
    report = check(ReferenceSampling, tier="full", device="cuda", only="coupling/")
    found = {(result.clause, result.status) for result in report.results}
    assert found == {("coupling/undirected", "pass"), ("coupling/directed", "not applicable")}


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("WrongOffsetBit", "coupling/undirected/peaked-none"),
        ("WrongOffsetBit", "coupling/undirected/peaked-top-p"),
        ("WrongOffsetBit", "coupling/undirected/peaked-top-k"),
        ("WrongOffsetBit", "coupling/directed/edges-none"),
        ("RowOffByOne", "coupling/undirected/peaked-none"),
        ("RowOffByOne", "coupling/undirected/peaked-top-p"),
        ("RowOffByOne", "coupling/undirected/peaked-both"),
        ("EdgeByOne", "coupling/undirected/peaked-top-k"),
        ("EdgeByOne", "coupling/directed/edges-top-k"),
        ("EdgeByOne", "coupling/directed/edges-top-p"),
        ("MovedMass", "coupling/directed/edges-none"),
    ],
    ids=lambda value: value.replace("/", "-"),
)
def test_a_broken_sampler_fails_at_every_seed(name: str, only: str) -> None:
    from tests.gpu import samplers  # noqa: PLC0415  # needs FlashInfer

    for seed in (None, 1, 2):
        report = check(getattr(samplers, name), tier="full", device="cuda", only=only, seed=seed)
        assert [result.error for result in report.results if result.error] == []
        assert report.counts["fail"] == len(report.results) == 1, seed


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("kernel_unfiltered", ["peaked-none", "p-off", "flat"]),
        ("kernel_top_p", ["peaked-top-p", "ties-top-p", "two-p0.4"]),
        ("kernel_top_k", ["peaked-top-k", "k50", "ties-top-k", "two-k2"]),
        ("kernel_joint", ["peaked-mixed", "peaked-top-p", "peaked-top-k"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_kernels_themselves_follow_the_documented_stream(name: str, only: list[str]) -> None:
    from tests.gpu import samplers  # noqa: PLC0415  # needs FlashInfer

    make_sampler: Any = getattr(samplers, name)
    cases = [f"coupling/undirected/{case}" for case in only]
    report = check(make_sampler, tier="full", device="cuda", only=cases)
    assert [result.id for result in report.results if result.status != "pass"] == []
    assert len(report.results) == len(only)
    draws = [evidence.draws for result in report.results for evidence in result.evidence]
    assert max(count for count in draws if count is not None) >= 10**5
