"""The law: for given logits and parameters, which tokens may be drawn, and with which probability.

Everything is real arithmetic evaluated in float64; the order of tokens is decided on the logits as
given, whatever their dtype, so it is exact. An fp32 sampler cannot decide membership exactly at the
edge of a filter, so the law also says which tokens every right sampler keeps (``must_keep``) and
which one may keep (``may_keep``). The width of that band is derived in `_log_error` and `sum_error`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

TieRule = Literal["keep-all", "lowest-index", "any"]

MIN_TEMPERATURE = 1e-6
"""Temperatures in (0, 1e-6) act as 1e-6."""

_ROUNDING = 2.0**-24
"""Unit roundoff of float32: the largest relative error of one correctly rounded operation."""

_SMALLEST_NORMAL = 2.0**-126
"""GPU fast exponentials flush smaller float32 results to zero, so such tokens may be lost."""

_MAX_EXPONENT = 300.0
"""Cap on a token's log-mass above the maximum's, in nats, when its band is wider than that (from
|w| = 1e9 on): e^300 * V still fits a float64 sum, and outweighs everything else as it would uncapped."""

_ELEMENTS_PER_CHUNK = 2**21
"""Rows are processed in chunks of about this many logits. At most 32 temporaries of 8 bytes a logit live
at once, the sort's own among them: 0.54 GB."""


@dataclass(frozen=True)
class LawOptions:
    """The points on which sampler authors defensibly differ. The defaults are the law.

    top_k_ties, top_p_ties: tokens tied at the edge of the filter are all kept (``keep-all``), kept
        in index order until the filter is full (``lowest-index``), or any choice among them is
        right (``any``: `probs` shows the lowest-index choice, the band admits the others).
    greedy_ties: a greedy row with tied maxima gives the lowest index, or ``any`` of them.
    filter_order: top-p acts on the renormalised survivors of top-k, or both act on the whole
        distribution (``joint``).
    top_k_off, top_p_off: values that switch a filter off. k >= V always does. A p of 0 that is not
        "off" keeps the most probable token only.
    greedy_temperatures: values of T that mean greedy.
    log_probs: of the distribution drawn from (``processed``), or of softmax(logits) (``raw``).
    parameters_by: a slot that gathers another logits row takes its parameters by ``slot`` or by
        logits ``row``.
    uniform_bits: resolution of the random number behind a draw.
    """

    top_k_ties: TieRule = "keep-all"
    top_p_ties: TieRule = "keep-all"
    greedy_ties: Literal["lowest-index", "any"] = "lowest-index"
    filter_order: Literal["top-k-first", "joint"] = "top-k-first"
    top_k_off: frozenset[int] = frozenset({0})
    top_p_off: frozenset[float] = frozenset({0.0, 1.0})
    greedy_temperatures: frozenset[float] = frozenset({0.0})
    log_probs: Literal["processed", "raw"] = "processed"
    parameters_by: Literal["slot", "row"] = "slot"
    uniform_bits: int = 53


@dataclass(frozen=True)
class Law:
    """What the law says of n rows.

    log_mass: float64 [n, W], in nats above the row's maximum: -inf where a token cannot be drawn; a row of
        NaN where the row is invalid.
    total: float64 [n], the sum of the masses. `probs` and `log_probs` follow from the two.
    must_keep, may_keep: bool [n, W]. Tokens outside `may_keep` must never be drawn.
    band: int64 [b, 2], the (row, token) pairs in `may_keep` but not in `must_keep`.
    band_mass: float64 [b], the mass of each, in units of its row's kept mass.
    log_error: float64 [n], bound on |log(p_fp32 / p)| before filtering, over the tokens that
        carry at least 2^-40 of the row's mass.
    valid: bool [n], false for rows with a NaN, a +inf or no finite logit.
    grid: spacing of the random numbers behind the draws: 2^-24, or wider where `LawOptions.uniform_bits` says so.
    """

    log_mass: Tensor
    total: Tensor
    must_keep: Tensor
    may_keep: Tensor
    band: Tensor
    band_mass: Tensor
    log_error: Tensor
    valid: Tensor
    grid: float = _ROUNDING

    @cached_property
    def probs(self) -> Tensor:
        """float64 [n, W], the exact distribution; a row of NaN where the row is invalid."""
        return self.log_mass.exp() / self.total[:, None]

    @property
    def log_probs(self) -> Tensor:
        """float64 [n, W], its logarithm in nats: also finite where `probs` underflows."""
        return self.log_mass - self.total.log()[:, None]


def law(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    *,
    vocab_size: int | None = None,
    options: LawOptions | None = None,
    bands: bool = True,
) -> Law:
    """The law for each row of `logits`.

    logits: float32, float16 or bfloat16 [n, W]; columns from `vocab_size` on are padding.
    temperature, top_k, top_p: [n], one entry a row, as stored (float32, int, float32).
    bands: False for those who draw from it: no error is allowed for, so that `must_keep` and `may_keep` are
        the tokens with mass, which takes half the time.

    Works through the rows in chunks; beyond the result (10 bytes a logit) it needs about 0.5 GB.
    Raises ValueError where the parameters have not one entry a row.
    """
    options = options or LawOptions()
    for name, values in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)):
        if values.shape != logits.shape[:1]:
            raise ValueError(f"{name} must have shape ({logits.shape[0]},), got {tuple(values.shape)}")
    width = logits.shape[1]
    rows_per_chunk = max(1, _ELEMENTS_PER_CHUNK // max(1, width))
    n = logits.shape[0]
    device = logits.device

    def of_rows(rows: slice) -> Law:
        return _law_of_chunk(
            logits[rows],
            temperature[rows].to(torch.float64),
            top_k[rows].to(torch.int64),
            top_p[rows].to(torch.float64),
            vocab_size if vocab_size is not None else width,
            options,
            bands=bands,
        )

    if n <= rows_per_chunk:
        return of_rows(slice(n))
    log_mass = torch.empty(n, width, dtype=torch.float64, device=device)
    total = torch.empty(n, dtype=torch.float64, device=device)
    must = torch.empty(n, width, dtype=torch.bool, device=device)
    may = torch.empty_like(must)
    log_error = torch.empty(n, dtype=torch.float64, device=device)
    valid = torch.empty(n, dtype=torch.bool, device=device)
    band_tokens = [torch.empty(0, 2, dtype=torch.int64, device=device)]
    band_masses = [torch.empty(0, dtype=torch.float64, device=device)]
    for start in range(0, n, rows_per_chunk):
        rows = slice(start, start + rows_per_chunk)
        part = of_rows(rows)
        log_mass[rows], total[rows] = part.log_mass, part.total
        must[rows], may[rows] = part.must_keep, part.may_keep
        log_error[rows], valid[rows] = part.log_error, part.valid
        part.band[:, 0] += start
        band_tokens.append(part.band)
        band_masses.append(part.band_mass)
    return Law(log_mass, total, must, may, torch.cat(band_tokens), torch.cat(band_masses), log_error, valid, part.grid)


def is_greedy(temperature: Tensor, top_k: Tensor, options: LawOptions) -> Tensor:
    """Bool, of the arguments' shape: all mass on the maximum (k = 1, or T says so)."""
    return (top_k == 1) | _is_one_of(temperature, options.greedy_temperatures)


def _is_one_of(values: Tensor, members: frozenset[int] | frozenset[float]) -> Tensor:
    # Compared in the parameters' own dtype; 0, 1, -1 are exact in it.
    found = torch.zeros_like(values, dtype=torch.bool)
    for member in members:
        found |= values == member
    return found


def _log_error(w: Tensor, w_max: Tensor) -> Tensor:
    """Bound on the error of a token's log-mass relative to the maximum's, in nats, for fp32 math.

    w: float64 [n, W], z / T. Roundings, each at most 2^-24 relative:
    - w itself, as z / T or z * (1 / T): two roundings, for the token and for the maximum;
    - w - w_max, and its product with log2(e), itself rounded: three, and one to spare for an
      implementation that subtracts before it divides;
    - the exponential (hardware exp2: 2 ulp, so four roundings) and the normaliser's division,
      rounded twice: six, and two to spare.
    """
    error = _ROUNDING * (2 * (w.abs() + w_max.abs()) + 4 * (w_max - w) + 8)
    return torch.where(w.isfinite(), error, 0.0)


def _mass_bounds(w: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest mass of each token, in units of the maximum's exact mass."""
    log_mass = w - w[:, :1]
    return torch.exp(log_mass - error), torch.exp((log_mass + error).clamp(max=_MAX_EXPONENT))


def sum_error(width: int) -> float:
    """Relative error of an fp32 sum of `width` non-negative terms, summed as GPU block scans do.

    A sum is off by at most (longest chain of additions) * 2^-24. Tiles of 4,096 are summed as a
    tree (12 additions), then carried from tile to tile (W / 4,096); a per-thread run of 16 inside
    the tile adds 16. Twice that, because a mass is compared with a total summed the same way.
    """
    tile = 4096
    chain = math.ceil(math.log2(max(2, min(width, tile)))) + 16 + math.ceil(width / tile)
    return 2 * chain * _ROUNDING


def _law_of_chunk(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    vocab_size: int,
    options: LawOptions,
    *,
    bands: bool,
) -> Law:
    width = logits.shape[1]
    column = torch.arange(width, device=logits.device)
    # Adding 0 turns -0.0 into 0.0: some sorts order them by their bits.
    z = torch.where(column < vocab_size, logits + 0.0, -math.inf)
    valid = ~(z.isnan() | (z == math.inf)).any(1) & (z > -math.inf).any(1)
    z = torch.where(valid[:, None], z, 0.0).contiguous()

    # Everything from here on is in descending order; `order` leads back. Stable: ties by index.
    z, order = torch.sort(z, dim=1, descending=True, stable=True)

    def unsort(values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(1, order, values)

    finite = z > -math.inf
    w = z.to(torch.float64) / temperature.clamp(min=MIN_TEMPERATURE)[:, None]
    mass = torch.exp(w - w[:, :1])
    ties = _Ties.of(z)
    top_k_off = (_is_one_of(top_k, options.top_k_off) | (top_k >= vocab_size))[:, None]
    k, p = top_k.clamp(min=1)[:, None], top_p[:, None]  # a k below 1 that is not "off" keeps what k = 1 keeps
    keep_k = ((ties.before(options.top_k_ties) < k) | top_k_off) & finite
    keep = keep_k & _top_p(mass, finite if options.filter_order == "joint" else keep_k, ties, p, options)
    greedy = is_greedy(temperature, top_k, options)[:, None]
    first = column == 0
    keep = torch.where(greedy, first, keep)
    total = (mass * keep).sum(1)
    log_mass = torch.where(valid[:, None], unsort(torch.where(keep, w - w[:, :1], -math.inf)), math.nan)
    if not bands:
        kept = log_mass > -math.inf
        no_band = torch.empty(0, 2, dtype=torch.int64, device=logits.device)
        return Law(log_mass, total, kept, kept, no_band, total[:0], torch.zeros_like(total), valid)

    error = _log_error(w, w[:, :1])
    must_k, may_k = _top_k_band(w, error, ties, k, options)
    must_k, may_k = (must_k | top_k_off) & finite, (may_k | top_k_off) & finite
    least, greatest = _mass_bounds(w, error)
    must, may = _top_p_band(w, error, least, greatest, finite, must_k, may_k, ties, p, options)
    must &= least >= _SMALLEST_NORMAL * mass.sum(1, keepdim=True)
    tied = (ties.start == 0) & finite
    may = torch.where(greedy, tied if options.greedy_ties == "any" else first, may | keep)
    must = torch.where(greedy, first & (may.sum(1, keepdim=True) == 1), must & keep)

    band_row, band_position = (may & ~must).nonzero(as_tuple=True)
    band = torch.stack([band_row, order[band_row, band_position]], 1)
    band_mass = mass[band_row, band_position] / total[band_row]
    carries_mass = mass >= 2.0**-40 * mass.sum(1, keepdim=True)
    in_band = valid[band_row]
    grid = 2.0 ** -min(24, options.uniform_bits)
    return Law(
        log_mass,
        total,
        must_keep=unsort(must) & valid[:, None],
        may_keep=torch.where(valid[:, None], unsort(may), column < vocab_size),
        band=band[in_band],
        band_mass=band_mass[in_band],
        log_error=(error * carries_mass).amax(1).clamp(max=_MAX_EXPONENT),
        valid=valid,
        grid=grid,
    )


@dataclass(frozen=True)
class _Ties:
    """Runs of equal logits in sorted order. All int64 [n, W]."""

    position: Tensor
    start: Tensor  # position of the run's first token: how many tokens are strictly larger
    end: Tensor  # one past its last

    @staticmethod
    def of(z: Tensor) -> _Ties:
        width = z.shape[1]
        position = torch.arange(width, device=z.device).expand_as(z)
        edge = torch.ones_like(z, dtype=torch.bool)
        edge[:, 1:] = z[:, 1:] != z[:, :-1]
        start = torch.where(edge, position, 0).cummax(1).values
        next_edge = torch.where(edge, position, width).roll(-1, 1)
        next_edge[:, -1] = width
        end = next_edge.flip(1).cummin(1).values.flip(1)
        return _Ties(position, start, end)

    def before(self, rule: TieRule) -> Tensor:
        """How many tokens come before this one in the exact law."""
        return self.start if rule == "keep-all" else self.position

    def surely_before(self, rule: TieRule) -> Tensor:
        """How many tokens of its own run come before this one in every right sampler."""
        return self.position - self.start if rule == "lowest-index" else torch.zeros_like(self.start)

    def never_before(self, rule: TieRule) -> Tensor:
        """How many tokens of its own run, itself included, come before it in no right sampler."""
        if rule == "any":
            return torch.ones_like(self.start)
        return self.end - (self.start if rule == "keep-all" else self.position)


def _at(sorted_w: Tensor, index: Tensor) -> Tensor:
    """sorted_w at index; +inf before the first token, -inf beyond the last."""
    width = sorted_w.shape[1]
    value = sorted_w.gather(1, index.clamp(0, width - 1))
    return torch.where(index < 0, math.inf, torch.where(index >= width, -math.inf, value))


def _top_k_band(w: Tensor, error: Tensor, ties: _Ties, k: Tensor, options: LawOptions) -> tuple[Tensor, Tensor]:
    """Must and may sets of top-k. Fewer than m tokens exceed x iff the m-th is at most x."""
    rule = options.top_k_ties
    may = _at(w, k - 1 - ties.surely_before(rule)) <= w + 2 * error
    must = _at(w, k - 1 + ties.never_before(rule)) <= w - 2 * error
    return must, may


def _top_p(mass: Tensor, survivors: Tensor, ties: _Ties, p: Tensor, options: LawOptions) -> Tensor:
    """Exact nucleus: kept while the survivors that come before hold less than p of the mass."""
    mass = mass * survivors
    inclusive = mass.cumsum(1)
    before_index = ties.before(options.top_p_ties)
    before = (inclusive - mass).gather(1, before_index)
    off = _is_one_of(p, options.top_p_off)
    return off | (before < p * inclusive[:, -1:]) | (before_index == 0)


def _top_p_band(
    w: Tensor,
    error: Tensor,
    least: Tensor,
    greatest: Tensor,
    finite: Tensor,
    must_k: Tensor,
    may_k: Tensor,
    ties: _Ties,
    p: Tensor,
    options: LawOptions,
) -> tuple[Tensor, Tensor]:
    """Must and may sets of top-p on top of those of top-k.

    Each mass lies between `least` and `greatest`, each token of the top-k band may be there or not,
    tokens closer than twice the error may change places, sums are off by `sum_error`.
    """
    rule = options.top_p_ties
    joint = options.filter_order == "joint"
    high = _prefix(greatest * (finite if joint else may_k))
    low = _prefix(least * (finite if joint else must_k))

    descending = -w
    surely_larger = torch.searchsorted(descending, descending - 2 * error)
    maybe_larger = torch.searchsorted(descending, descending + 2 * error)
    tied_before = ties.start + ties.surely_before(rule)
    a_low = low.gather(1, surely_larger) + low.gather(1, tied_before) - low.gather(1, ties.start)
    b_high = high[:, -1:] - high.gather(1, surely_larger) - high.gather(1, tied_before) + high.gather(1, ties.start)
    # Rounding of the prefixes in float64 must not turn "nothing comes before" into something.
    never = ties.never_before(rule)
    not_before_high = high.gather(1, ties.end) - high.gather(1, ties.end - never)
    not_before_low = low.gather(1, ties.end) - low.gather(1, ties.end - never)
    a_high = torch.where(maybe_larger == never, 0.0, high.gather(1, maybe_larger) - not_before_high).clamp(min=0)
    b_low = low[:, -1:] - low.gather(1, maybe_larger) + not_before_low

    # 2^-24: samplers that compare with 1 - p round it; the sums' own error is relative.
    slack = sum_error(w.shape[1])
    before_low = a_low / (a_low + b_high) * (1 - slack) - _ROUNDING
    before_high = torch.where(a_high > 0, a_high / (a_high + b_low) * (1 + slack) + _ROUNDING, 0.0)
    off = _is_one_of(p, options.top_p_off)
    return must_k & (off | (before_high < p) | (a_high == 0)), may_k & (off | (before_low < p))


def _prefix(mass: Tensor) -> Tensor:
    """[n, W + 1]: column i is the sum of the first i masses."""
    return torch.nn.functional.pad(mass.cumsum(1), (1, 0))
