"""Log-probs against the law, token by token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance.evidence import Evidence, exact
from reference import Law
from reference.law import sum_error


def match_law(log_probs: Tensor, law: Law) -> list[Evidence]:
    """float32 [rows, W] log-probs against the law of each row: support, values, invalid rows."""
    valid = law.valid
    return [
        _support(log_probs[valid], law, valid),
        _values(log_probs[valid], law, valid),
        exact(
            "log-probs of an invalid row are NaN",
            passed=bool(log_probs[~valid].isnan().all()),
            observed=f"{int((~log_probs[~valid].isnan()).sum())} entries that are not",
            allowed="NaN in every column",
        ),
    ]


def tolerance(log_p: Tensor, law: Law, valid: Tensor) -> Tensor:
    """How far a right fp32 log-prob may lie from `log_p`, in nats; float64, of its shape.

    Twice the row's bound on log-mass (the token's and the normaliser's); for tokens with less than 2^-40
    of the mass that bound grows by four roundings of their distance, |log p|; the normaliser's sum; and
    the result's own rounding, of the result and of each of two intermediate ones. A probability below
    2^-126, where it was kept at all, is a multiple of 2^-149.
    """
    rounding = 2.0**-24
    return (
        2 * law.log_error[valid][:, None]
        + 4 * rounding * log_p.abs()
        + sum_error(law.probs.shape[1])
        + 3 * rounding * (1 + log_p.abs())
        + (-149 * math.log(2) - log_p).exp()
    )


def _support(log_probs: Tensor, law: Law, valid: Tensor) -> Evidence:
    finite = log_probs > -math.inf
    missing = law.must_keep[valid] & ~finite
    extra = finite & ~law.may_keep[valid]
    wrong = (missing | extra) | log_probs.isnan()
    observed = "the law's support"
    if bool(wrong.any()):
        row, token = (int(i) for i in wrong.nonzero()[0])
        observed = (
            f"{int(missing.sum())} tokens lost, {int(extra.sum())} too many, {int(log_probs.isnan().sum())} NaN; "
            f"the first: row {row}, id {token}, log-prob {float(log_probs[row, token]):.6g}, "
            f"law {float(law.log_probs[valid][row, token]):.6g}"
        )
    return exact(
        "log-probs are finite just where the law has mass",
        passed=not wrong.any(),
        observed=observed,
        allowed="finite on must-keep tokens, -inf outside may-keep",
    )


def _values(log_probs: Tensor, law: Law, valid: Tensor) -> Evidence:
    in_valid = valid[law.band[:, 0]]
    row, token = (torch.cumsum(valid, 0) - 1)[law.band[in_valid, 0]], law.band[in_valid, 1]
    # Depending on which band tokens are kept, the normaliser is anything from the must-keep mass on.
    least = (law.probs[valid] * law.must_keep[valid]).sum(1)
    most = least.index_add(0, row, law.band_mass[in_valid])
    least, most = least[:, None], most[:, None]
    log_p = law.log_probs[valid].clone()
    log_p[row, token] = torch.maximum(log_p[row, token], law.band_mass[in_valid].log())
    compare = (log_probs > -math.inf) & (log_p > -math.inf)
    slack = torch.where(compare, tolerance(torch.where(compare, log_p, 0.0), law, valid), math.inf)
    above = log_probs - (log_p - least.log())
    below = (log_p - most.log()) - log_probs
    excess = torch.where(compare, torch.maximum(above, below) / slack, 0.0)
    worst = float(excess.max()) if excess.numel() else 0.0
    at = divmod(int(excess.argmax()), log_p.shape[1]) if excess.numel() else (0, 0)
    return exact(
        "log-probs are the law's, within the rounding of fp32",
        passed=worst <= 1,
        observed=f"at most {worst:.3g} of the tolerance; there row {at[0]}, id {at[1]}: "
        f"{float(log_probs[at]):.8g}, law {float(log_p[at]):.8g}" if excess.numel() else "no rows",
        allowed=f"1 of the tolerance, which is {float(slack[at]) if excess.numel() else 0:.3g} nats there",
    )  # fmt: skip
