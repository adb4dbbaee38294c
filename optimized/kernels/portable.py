"""The kernels in plain torch: fp32, vectorised, for CPUs. The same logic is judged without a GPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optimized.kernels import TOP_P_OFF, Batch
from reference.law import MIN_TEMPERATURE
from reference.slots import Slots


class PortableKernels:
    """See `Kernels`. Probabilities are fp32, as on a GPU; running sums are float64."""

    max_elements = 2**20  # 4 MB a temporary, 8 for the running sums: what a CPU's caches hold
    max_filtered_rows = 2**24

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        self.vocab_size = self.width = vocab_size
        self.rng = rng
        self._cdf = torch.empty(0, vocab_size, dtype=torch.float64, device=rng.device)

    def reserve(self, n: int, parts: int) -> Tensor:  # noqa: ARG002  # one number a slot, in one tensor
        """float64 [n], uniform in [0, 1)."""
        return torch.rand(n, generator=self.rng, dtype=torch.float64, device=self.rng.device)

    def part(self, stream: Tensor, index: int, at: slice) -> Tensor:  # noqa: ARG002  # the slots say it all
        """See `Kernels.part`."""
        return stream[at]

    def argmax(self, slots: Slots, output: Tensor) -> None:
        """See `Kernels.argmax`. torch documents the first of several maxima."""
        torch.argmax(self._logits(slots), dim=1, out=output)

    def probabilities(self, slots: Slots) -> Batch:
        """See `Kernels.probabilities`."""
        scaled, greedy, valid = self._scaled(slots)
        probs = scaled.exp_()
        probs /= probs.sum(1, keepdim=True)
        probs.index_fill_(0, greedy.nonzero()[:, 0], 0.0)
        probs[greedy, self._logits(slots)[greedy].argmax(1)] = 1.0
        _, top_k, top_p = slots.parameters()
        top_k = torch.where((top_k <= 0) | (top_k > self.vocab_size), self.vocab_size, top_k)
        top_p = torch.where((top_p <= 0) | (top_p >= 1), TOP_P_OFF, top_p)
        return Batch(probs, top_k.to(torch.int32), top_p, valid)

    def log_probabilities(self, slots: Slots, output: Tensor) -> None:
        """See `Kernels.log_probabilities`."""
        scaled, greedy, valid = self._scaled(slots)
        # torch's own log_softmax adds a row in float32, in chains that cost 1e-4 nats at V = 262,144.
        log_probs = scaled - scaled.exp().sum(1, keepdim=True, dtype=torch.float64).log().to(torch.float32)
        log_probs[greedy] = -math.inf
        log_probs[greedy, self._logits(slots)[greedy].argmax(1)] = 0.0
        self._store(log_probs, valid, output)

    def log_filtered(self, batch: Batch, output: Tensor) -> None:
        """See `Kernels.log_filtered`."""
        self._store(batch.probs.log(), batch.valid, output)

    def keep_top_k(self, batch: Batch) -> Batch:
        """See `Kernels.keep_top_k`."""
        return batch._replace(probs=_renormalise(batch.probs, _top_k_mask(batch)))

    def keep_top_p(self, batch: Batch) -> Batch:
        """See `Kernels.keep_top_p`."""
        return batch._replace(probs=_renormalise(batch.probs, _top_p_mask(batch)))

    def draw(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        """See `Kernels.draw`."""
        # Memory that is new at each call costs more than the sums.
        if self._cdf.shape[0] < batch.probs.shape[0]:
            self._cdf = torch.empty(batch.probs.shape, dtype=torch.float64, device=batch.probs.device)
        cdf = self._cdf[: batch.probs.shape[0]].copy_(batch.probs).cumsum_(1)
        # The first token whose running sum exceeds u * total, which stays below the total: the last
        # token with mass takes the rounding, and no token without mass is ever chosen.
        total = cdf[:, -1]
        threshold = torch.minimum(stream * total, torch.nextafter(total, torch.zeros_like(total)))
        output.copy_(torch.searchsorted(cdf, threshold[:, None], right=True)[:, 0])

    def draw_top_k(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        """See `Kernels.draw_top_k`."""
        self.draw(self.keep_top_k(batch), stream, output)

    def draw_top_p(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        """See `Kernels.draw_top_p`."""
        self.draw(self.keep_top_p(batch), stream, output)

    def draw_joint(self, batch: Batch, stream: Tensor, output: Tensor) -> None:
        """See `Kernels.draw_joint`."""
        probs = _renormalise(batch.probs, _top_k_mask(batch) & _top_p_mask(batch))
        self.draw(batch._replace(probs=probs), stream, output)

    def _logits(self, slots: Slots) -> Tensor:
        rows = slots.logits[: slots.n] if slots.rows is None else slots.logits[slots.rows]
        return rows[:, : self.vocab_size]

    def _scaled(self, slots: Slots) -> tuple[Tensor, Tensor, Tensor]:
        """(logits - maximum) / temperature, which rows are greedy, which valid. Invalid rows are made greedy."""
        z = self._logits(slots).to(torch.float32)
        maximum = z.amax(1, keepdim=True)  # NaN where the row has one
        valid = maximum[:, 0].isfinite()
        temperature, top_k, _ = slots.parameters()
        greedy = (temperature == 0) | (top_k == 1) | ~valid
        # The difference first: z / T overflows at small T, a difference only where |z| exceeds 1.7e38.
        scaled = (z - maximum).contiguous()  # rows that lie alike are summed alike
        scaled /= temperature.clamp(min=MIN_TEMPERATURE)[:, None]
        scaled.index_fill_(0, (~valid).nonzero()[:, 0], 0.0)
        return scaled, greedy, valid

    def _store(self, log_probs: Tensor, valid: Tensor, output: Tensor) -> None:
        output[:, self.vocab_size :] = -math.inf
        output[:, : self.vocab_size] = log_probs
        output[~valid] = math.nan


def _top_k_mask(batch: Batch) -> Tensor:
    kth = batch.probs.sort(1, descending=True).values.gather(1, batch.top_k[:, None].to(torch.int64) - 1)
    return batch.probs >= kth


def _top_p_mask(batch: Batch) -> Tensor:
    descending = batch.probs.sort(1, descending=True).values
    inclusive = descending.cumsum(1, dtype=torch.float64)
    kept = ((inclusive - descending) < batch.top_p[:, None]).sum(1, keepdim=True)
    # A run of equal tokens is kept whole if its first is.
    return batch.probs >= descending.gather(1, kept - 1)


def _renormalise(probs: Tensor, mask: Tensor) -> Tensor:
    probs = torch.where(mask, probs, 0.0)
    return probs / probs.sum(1, keepdim=True, dtype=torch.float64).to(torch.float32)
