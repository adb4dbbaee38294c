"""Documented random streams: which number decides which draw, and how.

A sampler that says so lets every single draw be checked, instead of how often each token comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from conformance.cases import Case
from conformance.philox import curand_uniform, curand_words
from reference.context import batch_facts

Method = Literal["inverse-cdf", "rejection", "rejection-after-top-k"]
"""How numbers become a token.

inverse-cdf: one number u; the first token, in index order, whose running sum of the final probabilities
    exceeds u; the last token with mass where none does.
rejection: FlashInfer's dual-pivot rejection on the probabilities before any filter. With low = 0, high = 1 and
    q = 1, each round draws by inverse CDF at u * q among the tokens above low. A token that the filters
    keep is the result. Else, with pivots p0 = its probability and p1 = (p0 + high) / 2: where a token of
    probability p1 would be kept, low = p0 and high = p1; else low = p1. q is the mass above low.
rejection-after-top-k: the same on the renormalised survivors of top-k.
"""


@runtime_checkable
class Stream(Protocol):
    """What a documented stream says. Must be hashable.

    A call with n slots takes up to `rounds` numbers for each slot. A position is a state of the generator:
    position j of a seed is the state that `seek` sets; a one-slot call there uses the numbers `positions` gives.
    """

    def __hash__(self) -> int:
        """What was searched is kept for the next case."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def roundoff(self) -> float:
        """Unit roundoff of the arithmetic from logits to running sums: 2^-24 or 2^-53."""

    @property
    def resolution(self) -> float:
        """How far the number that the sampler compares with may lie from the one given here."""

    def method(self, case: Case, device: torch.device) -> Method:
        """How a call on this case's batch makes tokens of its numbers."""

    def numbers(self, generator: torch.Generator, n: int, rounds: int, vocab_size: int) -> Tensor:
        """The numbers of one call, float64 [rounds, n] in [0, 1].

        generator: a copy of the sampler's, as it is before the call. It is advanced as the call advances it.
        A stream whose methods take one number a slot may return [1, n].
        """

    def positions(self, device: torch.device, seed: int, positions: Tensor, rounds: int) -> Tensor | None:
        """The numbers of one-slot calls at `positions`, float64 [rounds or 1, m] on the CPU.

        positions: int64 [m], ascending. None where the stream cannot be searched on this device.
        """

    def seek(self, generator: torch.Generator, seed: int, positions: Tensor) -> Iterator[int]:
        """Put the generator at each of the positions in turn (int64 [m], ascending), yielding it."""


@dataclass(frozen=True)
class ReferenceStream:
    """That of `reference.ReferenceSampling`: one integer of 53 bits a slot, from torch.randint.

    Position j is the state after j numbers. torch's CUDA generators give randint whole blocks of numbers, so
    that positions there are no index into one sequence: not searched.
    """

    name: str = "reference"
    roundoff: float = 2.0**-53
    resolution: float = 2.0**-30
    """The CDF is held in integers: see `reference.sampling`, which derives this bound."""

    def method(self, case: Case, device: torch.device) -> Method:  # noqa: ARG002  # the same everywhere
        """See `Stream.method`."""
        return "inverse-cdf"

    def numbers(self, generator: torch.Generator, n: int, rounds: int, vocab_size: int) -> Tensor:  # noqa: ARG002
        """See `Stream.numbers`."""
        integers = torch.randint(0, 2**53, (1, n), generator=generator, device=generator.device, dtype=torch.int64)
        return integers.to(torch.float64) * 2.0**-53

    def positions(self, device: torch.device, seed: int, positions: Tensor, rounds: int) -> Tensor | None:
        """See `Stream.positions`."""
        if device.type != "cpu":
            return None
        count = int(positions[-1]) + 1 if len(positions) else 0
        return self.numbers(torch.Generator().manual_seed(seed), count, rounds, 0)[:, positions]

    def seek(self, generator: torch.Generator, seed: int, positions: Tensor) -> Iterator[int]:
        """See `Stream.seek`."""
        return _walk(self, generator, seed, positions)


@dataclass(frozen=True)
class FlashInferStream:
    """That of `optimized.FlashInferSampling`, for calls outside CUDA graphs.

    On CUDA, a call of up to `part_elements` / V slots (V rounded up to a multiple of 4) reads seed and offset of the
    generator and advances the offset by 256; a longer one is made of such parts. In a part, slot b's round r
    is number offset + r of cuRAND's Philox subsequence b. Position j is offset 4 * j, the
    offsets that torch allows. A batch without filters draws by inverse CDF, others by rejection; where a
    request uses both filters, the whole batch goes through top-k first.

    On a CPU: one float64 of torch.rand a slot, inverse CDF. Position j is the state after j numbers.
    """

    name: str = "flashinfer"
    roundoff: float = 2.0**-24
    resolution: float = 2.0**-24
    """The two roundings of `curand_uniform`, of 2^-25 each, should a compiler arrange them otherwise."""
    part_elements: int = 2**28

    def method(self, case: Case, device: torch.device) -> Method:
        """See `Stream.method`."""
        facts = batch_facts(case.context(torch.device("cpu")), case.vocab_size)
        assert facts is not None  # a SamplingContext always has them
        if device.type == "cpu" or facts.all_greedy or (facts.no_top_k and facts.no_top_p):
            return "inverse-cdf"
        return "rejection-after-top-k" if facts.any_uses_both else "rejection"

    def numbers(self, generator: torch.Generator, n: int, rounds: int, vocab_size: int) -> Tensor:
        """See `Stream.numbers`."""
        if generator.device.type == "cpu":
            return torch.rand(1, n, generator=generator, dtype=torch.float64)
        seed, offset = generator.initial_seed() % 2**64, generator.get_offset()
        part = max(1, self.part_elements // (-(-vocab_size // 4) * 4))
        generator.set_offset(offset + 256 * -(-n // part))
        slot = np.arange(n, dtype=np.uint64)
        offsets = np.uint64(offset) + np.uint64(256) * (slot // np.uint64(part))
        return torch.from_numpy(curand_uniform(curand_words(seed, slot % np.uint64(part), offsets, rounds)))

    def positions(self, device: torch.device, seed: int, positions: Tensor, rounds: int) -> Tensor | None:
        """See `Stream.positions`."""
        if device.type == "cpu":
            count = int(positions[-1]) + 1 if len(positions) else 0
            return self.numbers(torch.Generator().manual_seed(seed), count, rounds, 0)[:, positions]
        offsets = positions.numpy().astype(np.uint64) * np.uint64(4)
        return torch.from_numpy(curand_uniform(curand_words(seed, np.zeros_like(offsets), offsets, rounds)))

    def seek(self, generator: torch.Generator, seed: int, positions: Tensor) -> Iterator[int]:
        """See `Stream.seek`."""
        if generator.device.type == "cpu":
            yield from _walk(self, generator, seed, positions)
            return
        generator.manual_seed(seed)
        for position in positions.tolist():
            generator.set_offset(4 * position)
            yield position


def _walk(stream: Stream, generator: torch.Generator, seed: int, positions: Tensor) -> Iterator[int]:
    """Positions that count numbers: each is reached from the one before by taking those between."""
    walker = torch.Generator().manual_seed(seed)
    at = 0
    for position in positions.tolist():
        stream.numbers(walker, position - at, 1, 0)
        at = position
        generator.set_state(walker.get_state())
        yield position


STREAMS: dict[str, Stream] = {"reference": ReferenceStream(), "flashinfer": FlashInferStream()}
"""The names that a factory's `claims` may give."""
