"""What a sampler claims of itself. The suite checks each claim."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from conformance.streams import STREAMS, Stream
from reference import LawOptions

LEAST_DRAWS = 2**17
"""What tier "quick" gives a case with a small vocabulary: fewer would show too little to be called a verdict."""


@dataclass(frozen=True)
class Claims:
    """Capabilities and declared options of a sampler. The defaults are the contract's.

    log_probs: it has a `log_probs_kernel`.
    sync_free: no call waits for the device.
    cuda_graph: `make_sampler(vocab_size, rng, enable_cuda_graph=True)` gives a sampler whose calls may
        be captured in a CUDA graph, and each replay draws what an eager call would have drawn.
    options: on which defensible points it differs from the law.
    stream: its documented stream: which random numbers decide which draw, and how. A factory's `claims` may
        name one of `conformance.streams.STREAMS`; another sampler passes an object of its own.
    most_draws: no case gets more draws than this: for samplers that are slow by design. The report shows the draws.
    """

    log_probs: bool = True
    sync_free: bool = True
    cuda_graph: bool = False
    options: LawOptions = LawOptions()
    stream: Stream | None = None
    most_draws: int | None = None

    def check(self) -> None:
        """Raise a ValueError for options that this suite cannot judge yet, and for claims that are none."""
        default = LawOptions()
        for name in ("log_probs", "parameters_by", "uniform_bits"):
            claimed, allowed = getattr(self.options, name), getattr(default, name)
            if claimed != allowed:
                raise ValueError(f"claims.options.{name} must be {allowed!r} in this version, got {claimed!r}")
        if self.most_draws is not None and (type(self.most_draws) is not int or self.most_draws < LEAST_DRAWS):
            raise ValueError(f"claims.most_draws must be an int of at least {LEAST_DRAWS}, got {self.most_draws!r}")
        if self.stream is not None and not isinstance(self.stream, Stream):
            raise ValueError(f"claims.stream must be a Stream, such as those in STREAMS, got {self.stream!r}")

    @staticmethod
    def of(make_sampler: Any) -> Claims:
        """The claims that a factory states itself, in a mapping named `claims`, on top of the defaults."""
        stated = dict(getattr(make_sampler, "claims", {}))
        known = {field.name for field in fields(Claims)}
        if unknown := sorted(set(stated) - known):
            raise ValueError(f"claims must be among {sorted(known)}, got {unknown}")
        if isinstance(name := stated.get("stream"), str):
            if name not in STREAMS:
                raise ValueError(f"claims.stream must be a Stream or one of {sorted(STREAMS)}, got {name!r}")
            stated["stream"] = STREAMS[name]
        return Claims(**stated)
