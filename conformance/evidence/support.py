"""Which tokens were drawn at all, against which may be."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.evidence import Evidence, exact
from reference import Law

NEVER = 1e-24
"""Tokens this improbable count as outside the support. 1e10 draws at V = 262,144 meet one of them with
probability 3e-9, far below any check's share of the budget."""


def support(ids: Tensor, law: Law) -> Evidence:
    """Every drawn id lies in the law's may-keep set.

    ids: int64 [slots, draws]; law: of each slot.
    """
    width = law.probs.shape[1]
    allowed = law.may_keep & ((law.probs.nan_to_num(1.0) > NEVER) | in_band(law))
    in_range = (ids >= 0) & (ids < width)
    right = in_range & allowed.gather(1, ids.clamp(0, width - 1))
    wrong = int((~right).sum())
    observed = "none outside"
    if wrong:
        slot, at = (int(i) for i in (~right).nonzero()[0])
        token = int(ids[slot, at])
        says = f"law probability {float(law.probs[slot, token]):.3g}" if 0 <= token < width else "not in the vocabulary"
        observed = f"{wrong} of {ids.numel()} draws outside; the first: slot {slot} drew id {token} ({says})"
    return exact(
        "every drawn id is one that the law allows",
        passed=wrong == 0,
        observed=observed,
        allowed=f"ids in the may-keep set ({_summary(allowed)})",
    )


def in_band(law: Law) -> Tensor:
    """bool [slots, W]: tokens that a right sampler may keep or drop."""
    band = torch.zeros_like(law.may_keep)
    band[law.band[:, 0], law.band[:, 1]] = True
    return band


def _summary(allowed: Tensor) -> str:
    sizes = allowed.sum(1)
    if len(sizes) == 1 and int(sizes[0]) <= 8:
        return f"ids {allowed[0].nonzero()[:, 0].tolist()}"
    return f"{int(sizes.min())} to {int(sizes.max())} ids a slot"
