"""Single draws, against the random number behind each: no statistics, and no chance of a false alarm.

`Running` says within what a right sampler's running sums lie. `inverse_cdf` judges draws by one number each.
`conformance.evidence.replay` judges those of rejection kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.evidence import Evidence
from conformance.evidence.budget import MISS
from conformance.evidence.chart import HistogramChart, rounded
from reference import Law
from reference.law import sum_error

FLOAT32 = 2.0**-24
"""The unit roundoff that `reference.law` derives its bounds for: others scale them."""

_FLOAT64 = 2.0**-53

_EDGES = (0.0, *(10.0 ** (halves / 2) for halves in range(-6, 13)))
"""Of bins for violations in units of d, two a decade. d is about 1e-6, so that 1e6 d is as far as can be."""

_DECADES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Those of the edges that are put in words."""


@dataclass(frozen=True)
class Running:
    """Running sums in index order of rows that sum to 1, and how far a right sampler's may be off.

    upto: float64 [n, W], F(t), the sum up to and with token t. error: float64 [n, W], d(t).
    """

    upto: Tensor
    error: Tensor

    def before(self) -> tuple[Tensor, Tensor]:
        """F(t - 1) and d(t - 1); the sum before the first token is 0 exactly."""
        return _shift(self.upto), _shift(self.error)


def running(probs: Tensor, mass_error: Tensor, width: int, roundoff: float, apart: Tensor | float) -> Running:
    """Running sums of `probs` with their bounds.

    probs: float64 [n, m], each row sums to 1: some tokens of rows of `width`. mass_error: [n, m], bound on
    each token's |log(p_sampler / p)|. roundoff: of the sampler's arithmetic. apart: [n, 1] or a number, what else
    may lie between the number given and the one compared with, and mass that may be there or not.

    d(t) is the sum of
    - the masses' errors. With A = F(t), B = 1 - A, and dA, dB the most that the masses up to t and beyond it change
      (sums of p * (e^error - 1)): |F'(t) - F(t)| = |(A' B - A B') / (A' + B')| <= (dA B + dB A) / (1 - dA - dB);
    - the sums' errors, relative to the sum as all terms are positive: `sum_error` is that of a running sum
      against a total, be the total softmax's normaliser or the q of a rejection round. Eight roundings more for
      u * q, for a running sum cut into levels (row, warp, thread: a difference each), and for their comparison;
    - W * 2^-53 for the float64 sums of this function, one addition after the other;
    - `apart`.
    """
    upto = probs.cumsum(1)
    change = (probs * torch.expm1(mass_error)).cumsum(1)
    most = change[:, -1:]
    masses = (change * (1 - upto).clamp(min=0) + (most - change) * upto) / (1 - most).clamp(min=_FLOAT64)
    sums = upto * (sum_error(width) * roundoff / FLOAT32 + 8 * roundoff)
    error = masses + sums + width * _FLOAT64 + apart
    # More than 1 says no more than 1, and stays a number where the masses are anybody's guess.
    return Running(upto, error.nan_to_num(1.0).clamp(max=1.0))


def mass_error(law: Law, roundoff: float) -> Tensor:
    """Bound on |log(p_sampler / p)| of each token before normalisation, float64 [n, W].

    The error that `reference.law` derives is e(w) = r * (2 (|w| + |w_max|) + 4 gap + 8) with r = 2^-24 and gap =
    w_max - w; `law.log_error` is its maximum over the tokens of at least 2^-40 of the row's mass. A row's
    mass is at most W times its maximum's, so every gap up to G = 40 ln 2 - ln W belongs to those. Let g be the
    largest kept one. |w| changes by no more than the gap does, so e falls by at least 2 r for each nat of
    gap below g, and rises by at most 6 r from the maximum's, which is at most `log_error`, for each nat.
    """
    gap = -law.log_mass
    heavy = gap <= 40 * math.log(2) - math.log(gap.shape[1])
    largest = torch.where(heavy, gap, 0.0).amax(1, keepdim=True)
    nats = torch.where(heavy, -2 * (largest - gap), 6 * gap)
    error = (law.log_error[:, None] + FLOAT32 * nats) * (roundoff / FLOAT32)
    return torch.where(gap < math.inf, error, 0.0)


def band_share(law: Law) -> Tensor:
    """[n, 1]: how far keeping or dropping the law's band can move a running sum.

    Dropping mass x and adding y of a band that holds b in units of the kept mass moves it by at most
    max(x, y) / (1 - x) <= b / (1 - b).
    """
    share = law.total.new_zeros(len(law.total)).index_add(0, law.band[:, 0], law.band_mass)
    return torch.where(share < 1, share / (1 - share).clamp(min=_FLOAT64), 1.0)[:, None]


def running_law(law: Law, roundoff: float, resolution: float) -> Running:
    """`running` of a law's probabilities."""
    width = law.log_mass.shape[1]
    return running(law.probs, mass_error(law, roundoff), width, roundoff, resolution + band_share(law))


def inverse_cdf(asked: str, ids: Tensor, u: Tensor, law: Law, sums: Running, distance: float | None = None) -> Evidence:
    """Each drawn token t has F(t - 1) - d(t - 1) <= u <= F(t) + d(t).

    ids: int64 [slots, draws]. u: float64 [slots, draws]. law, sums: of each slot. distance: see `seen`.

    A token outside may-keep is wrong wherever u lies. The last token with mass has F = 1, which no u exceeds: it
    takes what rounding leaves of the sum.
    """
    width = law.log_mass.shape[1]
    at = ids.clamp(0, width - 1)
    inside = (ids == at) & law.may_keep.gather(1, at)
    before, before_error = sums.before()
    below = before.gather(1, at) - u
    above = u - sums.upto.gather(1, at)
    # 0 / 0 at t = 0, where u is never below 0.
    ratio = torch.maximum(
        torch.where(below > 0, below / before_error.gather(1, at), 0.0), above / sums.error.gather(1, at)
    )
    ratio = torch.where(inside, ratio, math.inf)
    wrong = ~(ratio <= 1)
    most = float(torch.where(inside, torch.maximum(below, above), 0.0).max().clamp(min=0))
    histogram = _histogram(ratio)
    observed = f"largest violation {most:.2g}, {_decades(histogram)}"
    if bool(wrong.any()):
        slot, draw = (int(i) for i in wrong.nonzero()[0])
        number = float(u[slot, draw])
        expected = _between(sums, slot, number)
        observed = (
            f"{int(wrong.sum())} of {ids.numel()} draws wrong; the first: slot {slot}, draw {draw}, "
            f"number {number:.10f}: id {int(ids[slot, draw])}, expected {expected}; {observed}"
        )
    evidence = seen(asked, observed, ids.numel(), sums, distance, passed=not bool(wrong.any()))
    return replace(evidence, chart=histogram)


def detectable(draws: float, bound: float, distance: float | None = None) -> float:
    """The misplaced mass that coupled draws show. bound: the largest d(t).

    A right sampler's own running sum may be off by d, and another d is allowed. So of a running sum that is moved by
    m, a part m - 2 d shows. Undirected draws (distance None) all miss it with probability (1 - m + 2 d)^N, which is
    1e-6 at m = ln(1e6) / N + 2 d. Directed ones lie `distance` from where it begins to show, at most.
    """
    return 2 * bound + (-math.log(MISS) / max(1, draws) if distance is None else 2 * distance)


def seen(asked: str, observed: str, draws: int, sums: Running, distance: float | None, *, passed: bool) -> Evidence:
    """Evidence of coupled draws, with the misplaced mass that they would have shown."""
    bound = float(sums.error.max())
    return Evidence(
        passed,
        asked,
        observed,
        f"no token whose interval lies further than d from its number; d is at most {bound:.2g}",
        draws=draws,
        detectable=min(1.0, detectable(draws, bound, distance)),
        effect="mass moved anywhere" if distance is None else "an edge of the running sums moved",
    )


def _shift(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values[:, :-1], (1, 0))


def _between(sums: Running, slot: int, number: float) -> str:
    """The ids that a number allows, in words."""
    before, before_error = sums.before()
    upto, error = sums.upto[slot], sums.error[slot]
    has_mass = upto > before[slot]
    allowed = (before[slot] - before_error[slot] <= number) & (number <= upto + error) & has_mass
    found = allowed.nonzero()[:, 0].tolist()
    return f"{found[0]}" if len(found) == 1 else f"one of {len(found)} ids from {found[0]} on" if found else "none"


def _histogram(ratio: Tensor) -> HistogramChart:
    """How many draws lie how far outside their interval, in units of d."""
    edges = torch.tensor(_EDGES, dtype=torch.float64, device=ratio.device)
    bins = torch.bucketize(ratio.reshape(-1).nan_to_num(nan=math.inf, posinf=math.inf), edges)
    inside, *counts, beyond = bins.bincount(minlength=len(_EDGES) + 1).tolist()
    return HistogramChart(
        of="how far each draw lies outside its interval, in units of what is allowed",
        edges=rounded(_EDGES),
        observed=tuple(counts),
        at_zero=inside,
        beyond=beyond,
        limit=1.0,
    )


def _decades(histogram: HistogramChart) -> str:
    """The same in words."""
    counts = []
    start = 0
    for limit in _DECADES:
        stop = _EDGES.index(limit)
        counts.append(f"{sum(histogram.observed[start:stop])} up to {limit:g} d")
        start = stop
    beyond = sum(histogram.observed[start:]) + histogram.beyond
    return f"{histogram.at_zero} inside their interval, {', '.join(counts)}, {beyond} beyond"
