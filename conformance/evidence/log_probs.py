"""Log-probs against the law, token by token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance.evidence import Evidence, exact
from reference import Law
from reference.law import MIN_TEMPERATURE, sum_error

_ROUNDING = 2.0**-24
"""Unit roundoff of float32."""


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
    return (
        2 * law.log_error[valid][:, None]
        + 4 * _ROUNDING * log_p.abs()
        + sum_error(law.probs.shape[1])
        + 3 * _ROUNDING * (1 + log_p.abs())
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


def invariants(log_probs: Tensor, logits: Tensor, temperature: Tensor) -> list[Evidence]:
    """What holds of right log-probs whatever the filters: a second opinion, on the sampler and on the law.

    log_probs: float32 [rows, V]; logits: [rows, V], as given, without padding columns; temperature: float32 [rows],
        where T <= 0 counts as the smallest. Rows without a finite maximum are left out.

    The kept set is upward closed: no token is lost that is larger than a kept one, by more than rounding can hide.
    The probabilities sum to 1. Two kept tokens differ by what z / T says.
    """
    valid = logits.amax(1).isfinite()  # NaN where the row has one
    z, got = logits[valid].to(torch.float64), log_probs[valid].to(torch.float64)
    w = z / temperature[valid].to(torch.float64).clamp(min=MIN_TEMPERATURE)[:, None]
    kept = got > -math.inf
    error = _exponent_error(w, w.amax(1, keepdim=True))
    return [_upward_closed(w, kept, error), _sums_to_one(got, kept, error), _ratios(got, w, kept, error)]


def _exponent_error(w: Tensor, largest: Tensor) -> Tensor:
    """Bound on the error of an fp32 log-mass relative to the row's largest, in nats; float64, of w's shape.

    w = z / T. Roundings of at most 2^-24, each relative to what is rounded: 1 / T and its product with z (two, for
    the token and for the largest: |w| + |largest| each); the difference, and its product with log2(e), which is
    rounded too (three) and one for subtracting first; the exponential, 2 ulp (four), two for the division by the
    normaliser, two to spare. It grows as w falls, so the smaller of two tokens bounds both. Infinite for w = -inf.
    """
    return _ROUNDING * (2 * (w.abs() + largest.abs()) + 4 * (largest - w) + 8)


def _upward_closed(w: Tensor, kept: Tensor, error: Tensor) -> Evidence:
    """No lost token lies above a kept one by more than both may be off, which is at most twice the lower one's."""
    lowest, at = torch.where(kept, w, math.inf).min(1, keepdim=True)
    above = torch.where(kept, -math.inf, w - lowest)
    # A kept token of logit -inf has an infinite bound, and is wrong by itself.
    wrong = (above > 2 * error.gather(1, at)) | (kept & (w == -math.inf))
    observed = "no kept token below a lost one"
    if bool(wrong.any()):
        row, token = (int(i) for i in wrong.nonzero()[0])
        observed = (
            f"{int(wrong.any(1).sum())} rows; the first: row {row} keeps id {int(at[row])} and has id {token} wrong, "
            f"whose z / T is {float(above[row, token]):.6g} nats larger"
        )
    return exact(
        "the tokens kept are the largest ones",
        passed=not wrong.any(),
        observed=observed,
        allowed="no lost token above a kept one, by more than twice the rounding of z / T",
    )


def _sums_to_one(got: Tensor, kept: Tensor, error: Tensor) -> Evidence:
    """Sum of the probabilities, in float64.

    What is summed for the normaliser and what is returned may come from two evaluations of each mass: twice its
    error, weighted by the mass. The normaliser is one sum, off by half of `sum_error`. The log-prob is rounded as
    in `tolerance`. Tokens that underflow carry less than V 2^-126.
    """
    probs = torch.where(kept, got, -math.inf).exp()
    log_probs = torch.where(kept, got, 0.0)
    of_token = torch.where(kept, 2 * error + 3 * _ROUNDING * (1 + log_probs.abs()), 0.0)
    slack = sum_error(got.shape[1]) / 2 + (probs * of_token).sum(1)
    off = probs.sum(1) - 1
    return _worst("the probabilities of each row sum to 1", off.abs() / slack, off, slack, "the sum less 1")


def _ratios(got: Tensor, w: Tensor, kept: Tensor, error: Tensor) -> Evidence:
    """Differences of log-probs between each kept token and the largest one, against those of z / T.

    Both share the normaliser, whatever it is, so no sum comes in: each token's own error, of which the lower one's
    is the larger; two divisions by a filter's normaliser, each rounded twice, for both (eight roundings); both
    log-probs' own rounding and the grid of tiny probabilities, as in `tolerance`.
    """
    of = torch.where(kept, w, -math.inf).argmax(1, keepdim=True)
    first = got.gather(1, of)
    off = torch.where(kept, (got - first) - (w - w.gather(1, of)), 0.0)
    log_probs = torch.where(kept, got, 0.0)
    slack = (
        2 * error
        + 8 * _ROUNDING
        + 3 * _ROUNDING * (2 + log_probs.abs() + first.abs())
        + (-149 * math.log(2) - log_probs).exp()
    )
    # A row that keeps nothing has no pairs.
    excess = torch.where(kept, off.abs() / slack, 0.0)
    return _worst("two log-probs of a row differ as z / T does", excess, off, slack, "the difference's error in nats")


def _worst(asked: str, excess: Tensor, off: Tensor, slack: Tensor, what: str) -> Evidence:
    """Passed where no entry exceeds 1 (NaN does)."""
    if not excess.numel():
        return exact(asked, passed=True, observed="no rows", allowed="1 of the tolerance")
    excess = excess.nan_to_num(math.inf)
    at = torch.unravel_index(excess.argmax(), excess.shape)
    where = ", ".join(f"{name} {int(i)}" for name, i in zip(("row", "id"), at, strict=False))
    return exact(
        asked,
        passed=bool(excess.amax() <= 1),
        observed=f"at most {float(excess[at]):.3g} of the tolerance; at {where} {what} is {float(off[at]):.3g}",
        allowed=f"1 of the tolerance, which is {float(slack[at]):.3g} there",
    )
