"""The reference sampler: draws from the law exactly, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from reference.contract import Sampling
from reference.law import _ELEMENTS_PER_CHUNK, Law, LawOptions, law
from reference.slots import Slots

_MASS_BITS = 60
"""A row's distribution is held as integers that sum to about 2^60: sums of integers are exact, so the
CDF is the same on every device and never falls, and V <= 2^31 rounding errors of 1/2 stay below 2^-30."""


class ReferenceSampling(Sampling):
    """Draws from the law by inverse CDF.

    options: declared deviations from the law, see `LawOptions`.

    The stream: each call takes n integers of `options.uniform_bits` bits from `rng`, in slot order.
    Slot i's integer r stands for u = r / 2^bits in [0, 1); its token is the first, in index order,
    whose running sum exceeds u. A token of probability 0 is never drawn, also at u = 0.
    """

    claims: ClassVar[dict[str, Any]] = {"sync_free": False, "stream": "reference", "most_draws": 2**19}

    def __init__(self, vocab_size: int, rng: torch.Generator, options: LawOptions | None = None) -> None:
        super().__init__(vocab_size, rng)
        self.options = options or LawOptions()
        bits = self.options.uniform_bits
        if type(bits) is not int or not 1 <= bits <= 53:
            raise ValueError(f"options.uniform_bits must be an int in [1, 53], got {bits!r}")

    def _check(self, slots: Slots) -> None:
        """By logits row, the request of a slot has the number of the row that it gathers: there must be one."""
        count = slots.temperature.shape[0]
        if self._by_row(slots) and slots.n and (highest := int(slots.rows.amax())) >= count:  # type: ignore[union-attr]
            raise ValueError(f"gather_indices must name rows that have one of the {count} parameters, got {highest}")

    def _by_row(self, slots: Slots) -> bool:
        return self.options.parameters_by == "row" and slots.rows is not None

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:  # noqa: ARG002
        """See `Sampling.sample_kernel`. The flags change nothing: the law holds without them."""
        bits = self.options.uniform_bits
        u = torch.randint(0, 2**bits, (slots.n,), generator=self.rng, device=self.rng.device, dtype=torch.int64)
        threshold = u.to(output.device) << (_MASS_BITS - bits)
        for in_chunk, of_slot, chunk in self._laws(slots, self.options):
            output[in_chunk] = _first_above(_cdf(chunk.probs), of_slot, threshold[in_chunk])

    def _log_probs(self, slots: Slots, output: Tensor) -> None:
        """See `Sampling.log_probs_kernel`. `options.log_probs` chooses processed or raw ones."""
        options = self.options
        if options.log_probs == "raw":
            off = torch.ones(slots.n, device=output.device)
            no_filter = torch.zeros_like(off, dtype=torch.int32)
            slots = replace(slots, requests=None, temperature=off, top_k=no_filter, top_p=off)
            options = LawOptions()
        for in_chunk, of_slot, chunk in self._laws(slots, options):
            output[in_chunk] = chunk.log_probs.to(torch.float32)[of_slot]

    def _laws(self, slots: Slots, options: LawOptions) -> Iterator[tuple[Tensor, Tensor, Law]]:
        """The law of each distinct (logits row, request), in chunks.

        Yields the slots that a chunk serves, the chunk's row of each of them, and the chunk.
        """
        slot = torch.arange(slots.n, device=slots.logits.device)
        rows = slot if slots.rows is None else slots.rows
        requests = slot if slots.requests is None else slots.requests
        if self._by_row(slots):
            requests = rows
        # One number a pair: both lie below 2^31.
        pairs, of_slot = torch.unique(rows.to(torch.int64) << 31 | requests, return_inverse=True)
        per_chunk = max(1, _ELEMENTS_PER_CHUNK // slots.logits.shape[1])
        for start in range(0, len(pairs), per_chunk):
            row, request = pairs[start : start + per_chunk] >> 31, pairs[start : start + per_chunk] & (2**31 - 1)
            chunk = law(
                slots.logits[row],
                slots.temperature[request],
                slots.top_k[request],
                slots.top_p[request],
                vocab_size=self.vocab_size,
                options=options,
                bands=False,
            )
            whole = len(pairs) <= per_chunk
            in_chunk = slot if whole else ((of_slot >= start) & (of_slot < start + per_chunk)).nonzero()[:, 0]
            yield in_chunk, of_slot[in_chunk] - start, chunk


def _cdf(probs: Tensor) -> Tensor:
    """int64 [n, W]: running sums of the probabilities in units of 2^-60. All zeros for a NaN row."""
    mass = torch.round(probs.nan_to_num(0.0) * 2.0**_MASS_BITS).to(torch.int64)
    return mass.cumsum(1)


def _first_above(cdf: Tensor, row: Tensor, threshold: Tensor) -> Tensor:
    """First index whose running sum exceeds the threshold, by bisection; int64, of `row`'s shape.

    A threshold beyond the total (which rounding leaves within V / 2 units of 2^60) counts as the
    last unit, so that the last token with mass takes it.
    """
    threshold = torch.minimum(threshold, cdf[:, -1][row] - 1)
    low = torch.zeros_like(row)
    high = torch.full_like(row, cdf.shape[1] - 1)
    for _ in range((cdf.shape[1] - 1).bit_length()):
        middle = (low + high) // 2
        above = cdf[row, middle] > threshold
        low = torch.where(above, low, middle + 1)
        high = torch.where(above, middle, high)
    return low
