"""Small faults of the dispatcher's kernels, on any device."""

from __future__ import annotations

from typing import Any

import torch

from optimized.kernels import Batch
from optimized.kernels.portable import _top_p_mask


def edge_by_one(kernels: Any) -> None:
    """Each filter keeps one level of probability more."""
    probabilities = kernels.probabilities

    def wrong(slots: Any) -> Batch:
        batch: Batch = probabilities(slots)
        descending = batch.probs.sort(1, descending=True).values
        kth = descending.gather(1, batch.top_k[:, None].long() - 1)
        top_k = torch.where(batch.top_k > 1, (batch.probs >= kth).sum(1) + 1, batch.top_k)
        most_dropped = torch.where(_top_p_mask(batch), 0.0, batch.probs).amax(1, keepdim=True)
        before = torch.where(batch.probs > most_dropped, batch.probs, 0.0).sum(1)
        top_p = torch.where(batch.top_p < 1, before + 1e-5, batch.top_p)
        return batch._replace(top_k=top_k.clamp(max=kernels.vocab_size).to(batch.top_k.dtype), top_p=top_p.float())

    kernels.probabilities = wrong


def moves_mass(kernels: Any) -> None:
    """1e-5 from the most probable token to one half the vocabulary away."""
    probabilities = kernels.probabilities

    def wrong(slots: Any) -> Batch:
        batch: Batch = probabilities(slots)
        rows = torch.arange(len(batch.probs), device=batch.probs.device)
        top = batch.probs.argmax(1)
        batch.probs[rows, top] -= 1e-5
        batch.probs[rows, (top + kernels.vocab_size // 2) % kernels.vocab_size] += 1e-5
        return batch

    kernels.probabilities = wrong
