"""Draws of rejection kernels, against a replay of their rounds in float64.

The replay goes wherever a right sampler could go: where a number lies within the running sums' error of a step,
every token near it is drawn; where a token's place among the kept ones or a pivot is within rounding of the
other side, both sides are taken. A drawn id is right if one of these paths ends in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from conformance.evidence import Evidence
from conformance.evidence.coupling import FLOAT32, Running, band_share, mass_error, running, running_law, seen
from reference import Law
from reference.law import sum_error

_CANDIDATES_PER_CHUNK = 2**21
"""At most a dozen numbers of 8 bytes live for each candidate: 0.2 GB."""

_MOST_BRANCHES = 4096
"""A draw with more branches than this counts as undecided, so that none takes all memory. At V = 128,256 about 1 draw
in 5,000 has more than 1,000: a number in the tail lies near dozens of tokens, each with a path of its own."""

_UNDECIDED = 0.01
"""Share of undecided draws beyond which the check fails: what is asked for every draw was not seen then."""

_REJECTED, _EITHER, _KEPT = 0, 1, 2


@dataclass(frozen=True)
class _Row:
    """One slot: its tokens in levels of equal probability, the most probable level first.

    probs, error: [W], before the filters, and bounds on their logarithms. level: int64 [W], n_levels where a
    token has no mass. value: [n_levels], a level's probability. status: [n_levels], rejected, either or kept.
    apart: see `running`. pivot_error: relative, of a pivot against a probability.
    """

    probs: Tensor
    error: Tensor
    level: Tensor
    value: Tensor
    status: Tensor
    width: int
    roundoff: float
    apart: Tensor
    pivot_error: float

    @staticmethod
    def of(base: Law, law: Law, error: Tensor, apart: Tensor, slot: int, roundoff: float) -> _Row:
        log_mass = base.log_mass[slot]
        has_mass = log_mass > -torch.inf
        distinct, index = torch.unique(-log_mass[has_mass], return_inverse=True)
        level = torch.full_like(log_mass, len(distinct), dtype=torch.int64)
        level[has_mass] = index
        status = law.must_keep[slot].to(torch.int64) + law.may_keep[slot]
        of_level = status.new_zeros(len(distinct)).scatter_(0, index, status[has_mass])
        # Two probabilities, off by their own errors; the first pivot's 1, off by the normaliser's sum; the pivots'
        # roundings, two for each of 256 rounds.
        scale = roundoff / FLOAT32
        pivot_error = 2 * float(error[slot].max()) + sum_error(len(log_mass)) * scale + 512 * roundoff
        value = torch.exp(-distinct) / base.total[slot]
        return _Row(
            base.probs[slot], error[slot], level, value, of_level, len(log_mass), roundoff, apart[slot], pivot_error
        )

    def above(self, levels: int) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of the first `levels` levels in index order, and the least and greatest u of each."""
        tokens = (self.level < levels).nonzero()[:, 0]
        mass = self.probs[tokens]
        sums = running((mass / mass.sum())[None], self.error[tokens][None], self.width, self.roundoff, self.apart)
        before, before_error = sums.before()
        least = before - before_error
        least[0, 0] = -1.0
        return tokens, least[0], (sums.upto + sums.error)[0]


@dataclass
class _Draws:
    """What became of a slot's draws. All [draws].

    expected, round: one of the ids that the replay allows, -1 where there is none, and its round.
    """

    ids: Tensor
    right: Tensor
    sure: Tensor
    undecided: Tensor
    expected: Tensor
    round: Tensor
    branches: Tensor

    @staticmethod
    def of(ids: Tensor) -> _Draws:
        right, sure, undecided = torch.zeros(3, len(ids), dtype=torch.bool, device=ids.device)
        expected, number, branches = torch.zeros(3, len(ids), dtype=torch.int64, device=ids.device)
        return _Draws(ids, right, sure, undecided, expected - 1, number, branches)


class _Branches(NamedTuple):
    """Paths that are still open. All [branches].

    sure: nothing on the way could have gone otherwise.
    """

    draw: Tensor
    round: Tensor
    levels: Tensor
    high: Tensor
    sure: Tensor

    def take(self, which: Tensor | slice) -> _Branches:
        return _Branches(*(values[which] for values in self))

    def joined(self, others: list[_Branches]) -> _Branches:
        return _Branches(*(torch.cat(parts) for parts in zip(self, *others, strict=True)))


def rejection(
    asked: str,
    ids: Tensor,
    u: Tensor,
    base: Law,
    law: Law,
    roundoff: float,
    resolution: float,
    distance: float | None = None,
) -> Evidence:
    """Each drawn token ends a path of the replay.

    ids: int64 [slots, draws]. u: float64 [rounds, slots, draws]. base: the law of each slot before the filters that
    the kernel tests; law: the whole law. roundoff, resolution: see `conformance.streams.Stream`. distance: see `seen`.

    Tokens of different logits must have different probabilities in the sampler's arithmetic: the replay tells them
    apart.
    """
    error = mass_error(base, roundoff)
    apart = resolution + band_share(base)
    sums = running_law(base, roundoff, resolution)
    slots = [
        _replay(_Row.of(base, law, error, apart, slot, roundoff), ids[slot], u[:, slot]) for slot in range(ids.shape[0])
    ]
    return _evidence(asked, slots, u, sums, distance)


def _evidence(asked: str, slots: list[_Draws], u: Tensor, sums: Running, distance: float | None) -> Evidence:
    total = sum(slot.ids.numel() for slot in slots)
    undecided = sum(int(slot.undecided.sum()) for slot in slots)
    sure = sum(int(slot.sure.sum()) for slot in slots)
    right = sum(int(slot.right.sum()) for slot in slots)
    wrong = total - undecided - right
    observed = (
        f"{sure} equal the only id that the replay allows, {right - sure} one of several that rounding allows, "
        f"{undecided} undecided"
    )
    if wrong:
        number, draws = next((i, s) for i, s in enumerate(slots) if bool((~s.right & ~s.undecided).any()))
        draw = int((~draws.right & ~draws.undecided).nonzero()[0, 0])
        observed = (
            f"{wrong} of {total} draws wrong; the first: slot {number}, draw {draw}, numbers "
            f"{[round(x, 10) for x in u[:3, number, draw].tolist()]}...: id {int(draws.ids[draw])}, "
            f"expected {int(draws.expected[draw])} in round {int(draws.round[draw])}; {observed}"
        )
    passed = not wrong and undecided <= _UNDECIDED * total
    return seen(asked, observed, total - undecided, sums, distance, passed=passed)


def _replay(row: _Row, ids: Tensor, u: Tensor) -> _Draws:
    """ids: int64 [draws]. u: [rounds, draws].

    Levels only fall along a path, so the states with most levels come first, each once for all draws.
    """
    draws = _Draws.of(ids)
    count = len(ids)
    start = torch.arange(count, device=ids.device)
    branches = _Branches(
        start,
        torch.zeros_like(start),
        torch.full_like(start, len(row.value)),
        torch.ones(count, dtype=torch.float64, device=ids.device),
        torch.ones_like(start, dtype=torch.bool),
    )
    while len(branches.draw):
        open_ends = ~draws.undecided[branches.draw] & ~draws.right[branches.draw]
        late = open_ends & (branches.round >= len(u))
        draws.undecided[branches.draw[late]] = True
        branches = branches.take(open_ends & ~late)
        if not len(branches.draw):
            break
        levels = int(branches.levels.max())
        here = branches.levels == levels
        branches = branches.take(~here).joined(_round(row, draws, u, branches.take(here), levels))
    draws.undecided &= ~draws.right
    return draws


def _round(row: _Row, draws: _Draws, u: Tensor, branches: _Branches, levels: int) -> list[_Branches]:
    """One round of the branches that draw among the first `levels` levels: those that go on."""
    tokens, least, greatest = row.above(levels)
    number = u[branches.round, branches.draw]
    first = torch.searchsorted(greatest, number).clamp(max=len(tokens) - 1)
    last = (torch.searchsorted(least, number, right=True) - 1).maximum(first)
    length = last - first + 1
    ends = length.cumsum(0)
    going_on = []
    start = 0
    while start < len(number):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(torch.searchsorted(ends, done + _CANDIDATES_PER_CHUNK)))
        at = slice(start, stop)
        going_on += _candidates(row, draws, branches.take(at), tokens, first[at], length[at])
        start = stop
    return going_on


def _candidates(
    row: _Row, draws: _Draws, branches: _Branches, tokens: Tensor, first: Tensor, length: Tensor
) -> list[_Branches]:
    """Each token that each branch may draw: the end of the branch, where it is kept, or new branches."""
    branch = torch.repeat_interleave(torch.arange(len(length), device=length.device), length)
    place = torch.arange(len(branch), device=length.device) - (length.cumsum(0) - length)[branch]
    token = tokens[first[branch] + place]
    level = row.level[token]
    status = row.status[level]
    draw = branches.draw[branch]
    alone = branches.sure[branch] & (length[branch] == 1)

    ends = status >= _EITHER
    draws.expected[draw[ends]] = token[ends]
    draws.round[draw[ends]] = branches.round[branch[ends]]
    hit = ends & (token == draws.ids[draw])
    draws.right[draw[hit]] = True
    draws.sure[draw[hit & alone & (status == _KEPT)]] = True

    on = (status <= _EITHER) & ~draws.right[draw]
    branch, level, alone, status = branch[on], level[on], alone[on] & (status[on] == _REJECTED), status[on]
    if not len(branch):
        return []
    high = branches.high[branch]
    pivot = (row.value[level] + high) / 2
    most = torch.minimum(_levels_above(row.value, pivot * (1 - row.pivot_error)), level)
    fewest = torch.minimum(_levels_above(row.value, pivot * (1 + row.pivot_error)), level)
    new = []
    for above, also in ((fewest, None), (most, most != fewest)):
        # A token of the pivot's probability would have these levels above it, as the first level below has.
        kept = row.status[above]
        certain = alone & (fewest == most) & (kept != _EITHER)
        for which, levels, highest in ((kept >= _EITHER, level, pivot), (kept <= _EITHER, above, high)):
            chosen = which & (levels > 0) if also is None else which & also & (levels > 0)
            of = branch[chosen]
            new.append(
                _Branches(branches.draw[of], branches.round[of] + 1, levels[chosen], highest[chosen], certain[chosen])
            )
    merged = _merge(new[0].joined(new[1:]))
    draws.branches.index_add_(0, merged.draw, torch.ones_like(merged.draw))
    draws.undecided |= draws.branches > _MOST_BRANCHES
    return [merged]


def _levels_above(value: Tensor, limit: Tensor) -> Tensor:
    """How many of the descending values exceed the limit."""
    return torch.searchsorted(-value, -limit)


def _merge(branches: _Branches) -> _Branches:
    """Drops copies: branches of one draw in the same state."""
    key = torch.stack([branches.draw, branches.round, branches.levels, branches.high.view(torch.int64)], 1)
    distinct, index = torch.unique(key, dim=0, return_inverse=True)
    kept = torch.empty(len(distinct), dtype=torch.int64, device=index.device)
    kept[index] = torch.arange(len(index), device=index.device)
    return branches.take(kept)
