"""Samplers that are right but for a small error in their probabilities, or in the parameters of a few slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reference import ReferenceSampling
from reference.slots import Slots

Tilt = Callable[[Tensor], Tensor]
"""float64 [n, W] probabilities to other ones, which need not sum to 1."""


class TiltedSampling(ReferenceSampling):
    """Draws from tilted probabilities, by inverse CDF in float64."""

    def __init__(self, vocab_size: int, rng: torch.Generator, tilt: Tilt) -> None:
        super().__init__(vocab_size, rng)
        self.tilt = tilt

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:  # noqa: ARG002
        u = torch.rand(slots.n, generator=self.rng, dtype=torch.float64, device=self.rng.device)
        for in_chunk, of_slot, chunk in self._laws(slots, self.options):
            cdf = self.tilt(chunk.probs.nan_to_num(0.0)).cumsum(1)
            for row in range(len(cdf)):
                mine = in_chunk[of_slot == row]
                # The number stays below the total, so that the first sum above it belongs to a token with mass.
                output[mine] = torch.searchsorted(cdf[row], u[mine] * cdf[row, -1] * (1 - 2.0**-53), right=True)


class NeighboursParameters(ReferenceSampling):
    """One slot in a hundred takes the parameters of the next request."""

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:
        slot = torch.arange(slots.n, device=output.device)
        requests = slot if slots.requests is None else slots.requests
        wrong = torch.where(slot % 100 == 7, (requests + 1) % len(slots.temperature), requests)
        super()._sample(replace(slots, requests=wrong), output, no_top_k=no_top_k, no_top_p=no_top_p)


def _temperature(factor: float) -> Tilt:
    # p^(1 / factor), renormalised: the logits divided by factor.
    return lambda probs: probs ** (1 / factor)


def _never_drawn(mass: float) -> Tilt:
    def tilt(probs: Tensor) -> Tensor:
        ascending, order = probs.sort(dim=1)
        return probs.scatter(1, order, ascending * (ascending.cumsum(1) > mass))

    return tilt


def _parity(size: float) -> Tilt:
    return lambda probs: probs * (1 - size + 2 * size * (torch.arange(probs.shape[1], device=probs.device) % 2))


def _signs(size: float) -> Tilt:
    def tilt(probs: Tensor) -> Tensor:
        signs = torch.randint(2, probs.shape[1:], generator=torch.Generator().manual_seed(5)).to(probs.device) * 2 - 1
        return probs * (1 + size * signs)

    return tilt


def _dead_last_tile(probs: Tensor) -> Tensor:
    width = probs.shape[1]
    last = (width - 1) // 1024 * 1024
    return probs * (torch.arange(width, device=probs.device) < last)


TILTS: dict[str, Tilt] = {
    "temperature x 1.01": _temperature(1.01),
    "temperature x 1.02": _temperature(1.02),
    "lowest 0.3 % of mass never drawn": _never_drawn(0.003),
    "lowest 1 % of mass never drawn": _never_drawn(0.01),
    "even tokens -2 %, odd +2 %": _parity(0.02),
    "even tokens -5 %, odd +5 %": _parity(0.05),
    "random signs of 3 %": _signs(0.03),
    "random signs of 15 %": _signs(0.15),
    "last partial tile dead": _dead_last_tile,
    "probabilities rounded to bf16": lambda probs: probs.to(torch.bfloat16).to(torch.float64),
}


def make(name: str) -> Any:
    """A factory of samplers with that error; "" has none."""
    tilt = TILTS.get(name, lambda probs: probs)
    return lambda vocab_size, rng: TiltedSampling(vocab_size, rng, tilt)
