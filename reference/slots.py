"""A checked call: which logits row and which request each output slot has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from reference.context import BatchFacts


@dataclass(frozen=True)
class Slots:
    """n output slots over some logits.

    logits: [rows, W] as given, W >= vocab_size.
    rows, requests: [n]; None means that slot i is row i, request i.
    temperature, top_k, top_p: [requests] on the logits' device.
    facts: what the CPU knows of the active requests, or None.

    `placed` gives the same with all index tensors on the logits' device and everything but the logits
    contiguous; what follows takes such.
    """

    logits: Tensor
    n: int
    rows: Tensor | None
    requests: Tensor | None
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    facts: BatchFacts | None

    def placed(self) -> Slots:
        """Ready for kernels. Copies nothing that is already in its place, and never waits for the device."""
        device = self.logits.device
        indices = [index for index in (self.rows, self.requests) if index is not None]
        tensors = (*indices, self.temperature, self.top_k, self.top_p)
        if all(tensor.device == device and tensor.is_contiguous() for tensor in tensors):
            return self

        def place(index: Tensor | None) -> Tensor | None:
            return None if index is None else index.to(device, non_blocking=True).contiguous()

        return replace(
            self,
            rows=place(self.rows),
            requests=place(self.requests),
            temperature=self.temperature.contiguous(),
            top_k=self.top_k.contiguous(),
            top_p=self.top_p.contiguous(),
        )

    def parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Temperature, top_k and top_p of each slot, [n] each."""
        take = slice(self.n) if self.requests is None else self.requests
        return self.temperature[take], self.top_k[take], self.top_p[take]

    def parts(self, size: int) -> Iterator[tuple[slice, Slots]]:
        """The call cut into parts of at most `size` slots: where each goes in the output, and the part."""
        for start in range(0, self.n, size):
            at = slice(start, min(start + size, self.n))
            own = at if self.requests is None else slice(None)  # without a map, slot i has parameter i
            part = Slots(
                logits=self.logits[at] if self.rows is None else self.logits,
                n=at.stop - at.start,
                rows=None if self.rows is None else self.rows[at],
                requests=None if self.requests is None else self.requests[at],
                temperature=self.temperature[own],
                top_k=self.top_k[own],
                top_p=self.top_p[own],
                facts=self.facts,
            )
            yield at, part
