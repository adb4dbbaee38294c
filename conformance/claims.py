"""What a sampler claims of itself. The suite checks each claim."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from reference import LawOptions


@dataclass(frozen=True)
class Claims:
    """Capabilities and declared options of a sampler. The defaults are the contract's.

    log_probs: it has a `log_probs_kernel`.
    sync_free: no call waits for the device.
    cuda_graph: `make_sampler(vocab_size, rng, enable_cuda_graph=True)` gives a sampler whose calls may
        be captured in a CUDA graph, and each replay draws what an eager call would have drawn.
    options: on which defensible points it differs from the law.
    """

    log_probs: bool = True
    sync_free: bool = True
    cuda_graph: bool = False
    options: LawOptions = LawOptions()

    def check(self) -> None:
        """Raise a ValueError for options that the law knows and this suite cannot judge yet."""
        default = LawOptions()
        for name in ("log_probs", "parameters_by", "uniform_bits"):
            claimed, allowed = getattr(self.options, name), getattr(default, name)
            if claimed != allowed:
                raise ValueError(f"claims.options.{name} must be {allowed!r} in this version, got {claimed!r}")

    @staticmethod
    def of(make_sampler: Any) -> Claims:
        """The claims that a factory states itself, in a mapping named `claims`, on top of the defaults."""
        stated = dict(getattr(make_sampler, "claims", {}))
        known = {field.name for field in fields(Claims)}
        if unknown := sorted(set(stated) - known):
            raise ValueError(f"claims must be among {sorted(known)}, got {unknown}")
        return Claims(**stated)
