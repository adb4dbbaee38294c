"""Draw-exact coupling: right samplers pass it, and each small fault fails it at every seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import Claims, check
from conformance.cases import Case, normal
from conformance.evidence.coupling import inverse_cdf, mass_error, running_law
from conformance.philox import curand_uniform, curand_words
from conformance.streams import STREAMS, FlashInferStream, Method
from optimized import FlashInferSampling
from optimized.kernels import Batch
from optimized.kernels.portable import PortableKernels
from reference import LawOptions, ReferenceSampling, Sampling, law
from tests.conformance.faults import edge_by_one, moves_mass
from tests.conformance.kernels import draw

CPU = torch.device("cpu")
FLOAT32 = 2.0**-24
ROUNDS = 32


class RejectionKernels(PortableKernels):
    """FlashInfer's kernels as a CPU can run them: one call, one Philox offset, which the generator gives."""

    def reserve(self, n: int, parts: int) -> Tensor:  # noqa: ARG002
        return RejectionStream().numbers(self.rng, n, ROUNDS, self.vocab_size).float()

    def part(self, stream: Tensor, index: int, at: slice) -> Tensor:  # noqa: ARG002
        return stream[:, at]

    def draw(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        self.draw_joint(batch._replace(top_k=torch.full_like(batch.top_k, self.vocab_size), top_p=batch.top_p * 0 + 2),
                        stream, output)  # fmt: skip

    def draw_top_k(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        self.draw_joint(batch._replace(top_p=batch.top_p * 0 + 2), stream, output)

    def draw_top_p(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        self.draw_joint(batch._replace(top_k=torch.full_like(batch.top_k, self.vocab_size)), stream, output)

    def draw_joint(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        output.copy_(draw(batch.probs, batch.top_k, batch.top_p, stream))


@dataclass(frozen=True)
class RejectionStream(FlashInferStream):
    """That of `RejectionKernels`. Position j is the state after j calls."""

    name: str = "rejection on a CPU"

    def method(self, case: Case, device: torch.device) -> Method:  # noqa: ARG002
        return super().method(case, torch.device("cuda"))

    def numbers(self, generator: torch.Generator, n: int, rounds: int, vocab_size: int) -> Tensor:  # noqa: ARG002
        (offset,) = self._offsets(generator, 1)
        rows = np.arange(n, dtype=np.uint64)
        return torch.from_numpy(curand_uniform(curand_words(9, rows, np.full_like(rows, offset), rounds)))

    def positions(self, device: torch.device, seed: int, positions: Tensor, rounds: int) -> Tensor | None:  # noqa: ARG002
        offsets = self._offsets(torch.Generator().manual_seed(seed), int(positions[-1]) + 1)[positions.numpy()]
        return torch.from_numpy(curand_uniform(curand_words(9, np.zeros_like(offsets), offsets, rounds)))

    def seek(self, generator: torch.Generator, seed: int, positions: Tensor) -> Iterator[int]:
        walker = torch.Generator().manual_seed(seed)
        at = 0
        for position in positions.tolist():
            self._offsets(walker, position - at)
            at = position
            generator.set_state(walker.get_state())
            yield position

    @staticmethod
    def _offsets(generator: torch.Generator, count: int) -> Any:
        return torch.randint(0, 2**40, (count,), generator=generator).numpy().astype(np.uint64) * np.uint64(4)


def patched(patch: Callable[[Any], None], *, rejection: bool = False) -> Callable[[int, torch.Generator], Sampling]:
    """The dispatcher with something done to its kernels."""

    def make_sampler(vocab_size: int, rng: torch.Generator) -> Sampling:
        sampler = FlashInferSampling(vocab_size, rng)
        if rejection:
            sampler._kernels = RejectionKernels(vocab_size, rng)
        patch(sampler._kernels)
        return sampler

    make_sampler.claims = {"stream": RejectionStream() if rejection else "flashinfer"}  # type: ignore[attr-defined]
    return make_sampler


def skips_a_number(kernels: Any) -> None:
    reserve = kernels.reserve

    def wrong(n: int, parts: int) -> Tensor:
        torch.rand(1, generator=kernels.rng, dtype=torch.float64)
        numbers: Tensor = reserve(n, parts)
        return numbers

    kernels.reserve = wrong


def flips_a_bit(kernels: Any) -> None:
    reserve = kernels.reserve
    kernels.reserve = lambda n, parts: ((reserve(n, parts) * 2.0**24).long() ^ 2**14).to(torch.float64) * 2.0**-24


def next_row(kernels: Any) -> None:
    reserve = kernels.reserve
    kernels.reserve = lambda n, parts: reserve(n, parts).roll(-1, -1)


def nothing(_kernels: Any) -> None:
    pass


FAILS = [
    (skips_a_number, "coupling/undirected/peaked-none"),
    (skips_a_number, "coupling/undirected/peaked-both"),
    (skips_a_number, "coupling/directed/edges-none"),
    (flips_a_bit, "coupling/undirected/p-off"),
    (flips_a_bit, "coupling/directed/edges-top-k"),
    (next_row, "coupling/undirected/peaked-none"),
    (next_row, "coupling/undirected/peaked-top-p"),
    (edge_by_one, "coupling/undirected/peaked-top-k"),
    (edge_by_one, "coupling/directed/edges-top-k"),
    (edge_by_one, "coupling/directed/edges-top-p"),
    (moves_mass, "coupling/directed/edges-none"),
]


def failed(make_sampler: Any, only: str, seed: int | None = None, claims: Claims | None = None) -> bool:
    report = check(make_sampler, only=only, seed=seed, claims=claims)
    assert [result.error for result in report.results if result.error] == []
    assert report.counts["run"] == len(report.results)
    return report.counts["fail"] > 0


@pytest.mark.parametrize("make_sampler", [ReferenceSampling, FlashInferSampling], ids=["reference", "flashinfer"])
@pytest.mark.parametrize("seed", [None, 1])
def test_right_samplers_pass(make_sampler: Any, seed: int | None) -> None:
    report = check(make_sampler, only="coupling/", seed=seed)
    assert [result.id for result in report.results if result.status != "pass"] == []
    for result in report.results:
        (evidence,) = result.evidence
        assert evidence.draws is not None
        assert evidence.detectable is not None
        assert evidence.alpha is None
        # What N draws miss at 1e-6, or what an edge beside them must move by.
        least = math.log(1e6) / evidence.draws if "undirected" in result.id else 0
        assert least < evidence.detectable < least + 2e-5


@pytest.mark.parametrize("only", [
    "coupling/undirected/peaked", "coupling/undirected/two", "coupling/undirected/ties", "coupling/undirected/greedy",
    "coupling/directed",
])  # fmt: skip
def test_rejection_kernels_pass(only: str) -> None:
    assert not failed(patched(nothing, rejection=True), only)


@pytest.mark.parametrize("rejection", [False, True], ids=["inverse-cdf", "rejection"])
@pytest.mark.parametrize(("fault", "only"), FAILS, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_fault_fails_at_every_seed(fault: Any, only: str, rejection: bool) -> None:  # noqa: FBT001
    for seed in (None, 1) if rejection else (None, 1, 2):
        assert failed(patched(fault, rejection=rejection), only, seed), seed


@pytest.mark.parametrize("seed", range(3, 8))
def test_a_mass_of_1e_5_is_seen_every_time(seed: int) -> None:
    assert failed(patched(moves_mass), "coupling/directed/edges-none", seed)


class SkipsOne(ReferenceSampling):
    def _sample(self, slots: Any, output: Tensor, **flags: Any) -> None:
        torch.randint(0, 2**53, (1,), generator=self.rng)
        super()._sample(slots, output, **flags)


class TakesTooMany(ReferenceSampling):
    """The first call is right, and leaves the generator one number too far."""

    def _sample(self, slots: Any, output: Tensor, **flags: Any) -> None:
        super()._sample(slots, output, **flags)
        torch.randint(0, 2**53, (1,), generator=self.rng)


@pytest.mark.parametrize("make_sampler", [SkipsOne, TakesTooMany])
def test_the_reference_with_a_shifted_stream_fails(make_sampler: Any) -> None:
    assert failed(make_sampler, "coupling/undirected/peaked-none")
    # A one-slot call at a given state takes the first number there: what comes behind it is not its matter.
    assert failed(make_sampler, "coupling/directed/edges-none") == (make_sampler is SkipsOne)


def test_a_sampler_without_a_stream_has_nothing_to_couple() -> None:
    report = check(FlashInferSampling, claims=Claims(), only="coupling/")
    assert {(result.status, result.reason) for result in report.results} == {
        ("not applicable", "stream is not claimed")
    }


def test_a_stream_that_cannot_be_searched_is_drawn_from_only() -> None:
    @dataclass(frozen=True)
    class NotSearched(FlashInferStream):
        name: str = "mine"

        def positions(self, *_: Any) -> Tensor | None:
            return None

    report = check(FlashInferSampling, claims=Claims(stream=NotSearched()), only="coupling/")
    found = {result.clause: (result.status, result.reason) for result in report.results}
    assert found == {
        "coupling/undirected": ("pass", ""),
        "coupling/directed": ("not applicable", "the stream 'mine' cannot be searched on cpu"),
    }


def test_a_stream_is_claimed_by_name_and_reported_by_name(tmp_path: Path) -> None:
    assert Claims.of(FlashInferSampling).stream is STREAMS["flashinfer"]
    with pytest.raises(ValueError, match=r"claims\.stream must be .* \['flashinfer', 'reference'\], got 'mine'"):
        Claims.of(SimpleNamespace(claims={"stream": "mine"}))
    for claims, name in ((Claims(stream=STREAMS["reference"]), "reference"), (Claims(), None)):
        report = check(ReferenceSampling, claims=claims, only="coupling/undirected/flat")
        report.write(tmp_path / "report.json")
        assert json.loads((tmp_path / "report.json").read_text())["claims"]["stream"] == name


@pytest.mark.parametrize("name", STREAMS)
def test_a_position_is_what_seek_sets(name: str) -> None:
    stream = STREAMS[name]
    positions = torch.tensor([0, 1, 5, 6, 1000])
    given = stream.positions(CPU, 3, positions, 1)
    assert given is not None
    rng = torch.Generator()
    found = [stream.numbers(rng, 1, 1, 8).item() for _ in stream.seek(rng, 3, positions)]
    assert found == given[0].tolist()


def test_the_host_side_of_the_cuda_stream() -> None:
    # What a CUDA generator would say of itself; offsets 8 and 8 + 256 are the two parts of the call.
    state = SimpleNamespace(device=torch.device("cuda"), initial_seed=lambda: 77, get_offset=lambda: 8)
    set_to: list[int] = []
    state.set_offset = set_to.append
    width = 2**27 - 1  # two slots a part
    numbers = STREAMS["flashinfer"].numbers(state, 3, 5, width)  # type: ignore[arg-type]
    assert set_to == [8 + 2 * 256]
    for slot, (row, offset) in enumerate([(0, 8), (1, 8), (0, 264)]):
        words = curand_words(77, np.array([row], np.uint64), np.array([offset], np.uint64), 5)
        assert numbers[:, slot].tolist() == curand_uniform(words)[:, 0].tolist()
    given = STREAMS["flashinfer"].positions(torch.device("cuda"), 77, torch.tensor([2]), 5)
    assert given is not None
    assert given[:, 0].tolist() == numbers[:, 0].tolist()


def test_the_bound_of_the_masses_holds_for_each_token() -> None:
    # The law's own error of each token, which it does not give, against the bound from what it gives.
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1))
    logits = logits * torch.tensor([[0.1], [2.0], [6.0], [30.0]]) + torch.tensor([[50.0], [-9.0], [0.0], [3.0]])
    one, off = torch.ones(4), torch.zeros(4, dtype=torch.int32)
    truth = law(logits, one, off, off.float())
    w = logits.double()
    top = w.amax(1, keepdim=True)
    error = FLOAT32 * (2 * (w.abs() + top.abs()) + 4 * (top - w) + 8)
    bound = mass_error(truth, FLOAT32)
    assert (bound >= error * (1 - 1e-12)).all()
    # Not far above it where the mass is, else it would hide faults.
    assert float((truth.probs * bound).sum(1).div((truth.probs * error).sum(1)).max()) < 3


def test_a_float32_sampler_lies_within_d_and_d_is_not_much_wider() -> None:
    case = Case("", normal(1, 20_000, 3), 20_000, (0.8,))
    truth = case.law(LawOptions(), CPU)
    sums = running_law(truth, FLOAT32, 0.0)
    probs = torch.softmax(case.logits(CPU) / 0.8, 1).numpy()
    off = np.abs(np.cumsum(probs.astype(np.float64), 1) - sums.upto.numpy())
    assert (off <= sums.error.numpy()).all()
    assert float(sums.error.max()) < 1e-5


@pytest.mark.parametrize(("shift", "passed"), [(0.5, True), (0.99, True), (1.01, False), (50.0, False)])
def test_a_number_may_lie_d_outside_its_interval(shift: float, passed: bool) -> None:  # noqa: FBT001
    truth = law(torch.tensor([[0.0, 1.0, 0.5]]), torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1))
    sums = running_law(truth, FLOAT32, 0.0)
    for token, edge, side in ((0, 0, 1), (1, 0, -1), (1, 1, 1), (2, 1, -1)):
        u = sums.upto[:, edge] + side * shift * sums.error[:, edge]
        assert inverse_cdf("", torch.tensor([[token]]), u[None], truth, sums).passed == passed


def test_the_ends_of_the_numbers() -> None:
    off = torch.zeros(1, dtype=torch.int32)
    truth = law(torch.tensor([[-math.inf, 1.0, 0.5, -math.inf]]), torch.ones(1), off, off.float())
    sums = running_law(truth, FLOAT32, 0.0)
    for u, right in ((0.0, 1), (1.0, 2)):
        for token in (-1, 0, 1, 2, 3, 4):
            evidence = inverse_cdf("", torch.tensor([[token]]), torch.tensor([[u]]).double(), truth, sums)
            assert evidence.passed == (token == right), (u, token)
