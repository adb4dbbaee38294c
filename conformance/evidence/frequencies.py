"""Everything that the draws of some slots say about how often tokens come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conformance.evidence import Evidence, cdf, partitions, pit
from conformance.evidence.counts import counts_follow_law, counts_of
from conformance.evidence.dispersion import PoissonCells, poisson_draws, poisson_mean, scattered
from reference import Law
from reference.law import sum_error


def frequencies(ids: Tensor, law: Law, alpha: float, seed: int) -> Iterator[Evidence]:
    """Single tokens and groups of them, all tokens at once, and the distribution functions.

    ids: int64 [slots, draws], inside the law's support. seed: of the suite's own numbers.
    """
    slots, draws = ids.shape
    width = law.probs.shape[1]
    counts = counts_of(ids, width)
    rng = np.random.default_rng(seed)
    # Which draws are left out must not depend on the draws: the last ones.
    left_out = torch.cat([counts_of(ids[i : i + 1, poisson_draws(draws, rng) :], width) for i in range(slots)])
    yield from judge_counts(counts, counts - left_out, law, alpha, seed)


def judge_counts(counts: Tensor, poisson: Tensor, law: Law, alpha: float, seed: int) -> Iterator[Evidence]:
    """The same from counts, int64 [slots, W]: of N draws a slot, and of a Poisson number of them.

    A quarter of alpha goes to cells one by one, a half to scatters, a quarter to distribution functions; all of it to
    cells where there are so few tokens that each is a cell.
    """
    few = law.probs.shape[1] <= partitions.HEAD
    yield counts_follow_law(counts, law, alpha if few else alpha / 4)
    if few:
        return
    yield from _scatters(poisson, int(counts[0].sum()), law, alpha / 2, seed)
    for by_rank in (False, True):
        ordered = counts, law.probs
        if by_rank:
            order = law.probs.sort(dim=1, descending=True, stable=True).indices
            ordered = counts.gather(1, order), law.probs.gather(1, order)
        asked = f"distribution function in {'rank' if by_rank else 'index'} order"
        yield cdf.distance(asked, *ordered, pit.slack(law, by_rank=by_rank), alpha / 8)


@dataclass(frozen=True)
class Scatter:
    """A partition of one slot's tokens, and what its cells hold for each draw.

    labels: int64 [W]. mass, slack, variance: float64 [cells], as in `PoissonCells`. kept: bool [cells], those judged.
    """

    name: str
    labels: Tensor
    mass: Tensor
    slack: Tensor
    variance: Tensor
    kept: Tensor

    def table(self, counts: Tensor, draws: float) -> Tensor:
        """float64 [4, kept cells]: the columns of `PoissonCells` after this many draws. counts: int64 [W]."""
        return self.columns(counts, draws)[:4, self.kept]

    def columns(self, counts: Tensor, draws: float) -> Tensor:
        """float64 [5, cells]: the same of all cells, and 1 for those judged, 0 for others."""
        seen = torch.zeros(len(self.mass), dtype=torch.int64, device=counts.device).scatter_add_(0, self.labels, counts)
        columns = seen, draws * self.mass, draws * self.slack, draws**2 * self.variance, self.kept
        return torch.stack([column.to(torch.float64) for column in columns])


def scatters(law: Law, slot: int, seed: int) -> Iterator[Scatter]:
    """The partitions whose cells are judged together."""
    probs = law.probs[slot]
    aligned, ends = partitions.aligned(probs), partitions.ends(probs)
    for name, labels in partitions.scatters(probs, seed):
        bounds = partitions.bounds(law, slot, labels, int(labels.max()) + 1, aligned=aligned)
        rounding, variance = partitions.step_errors(bounds, law.grid)
        slack = bounds.slack + rounding
        slack[labels[ends]] += sum_error(law.probs.shape[1]) / 2
        kept = bounds.law + bounds.slack > 0
        if name == "token":
            kept[ends] = False
        yield Scatter(name, labels, bounds.law, slack, variance, kept)


def shares(alpha: float, number: int) -> tuple[float, float]:
    """The alpha of the scatter over single tokens, and of each of the `number` others: half of it all, as the rest."""
    return alpha / 2, alpha / 2 / max(1, number)


def _scatters(poisson: Tensor, draws: int, law: Law, alpha: float, seed: int) -> Iterator[Evidence]:
    """Each partition's cells of all slots in one sum."""
    mean = poisson_mean(draws)
    tables: dict[str, list[Tensor]] = {}
    for slot, counts in enumerate(poisson):
        for scatter in scatters(law, slot, seed):
            tables.setdefault(scatter.name, []).append(scatter.columns(counts, mean))
    for_tokens, for_others = shares(alpha, len(tables) - 1)
    for name, parts in tables.items():
        *columns, kept = torch.cat(parts, 1).cpu().numpy()
        judged = kept.nonzero()[0]
        if not judged.size:
            continue  # one token has all the mass: support has judged every draw
        share = for_tokens if name == "token" else for_others
        label = _label(name, [part.shape[1] for part in parts], judged)
        seen, expected, slack, variance = (column[judged] for column in columns)
        cells = PoissonCells(seen, expected, slack, variance, label)
        yield scattered(f"scatter of counts over cells by {name}", cells, draws, share)


def _label(name: str, sizes: list[int], judged: npt.NDArray[np.int64]) -> Callable[[int], str]:
    """Names the cell at a place among those judged. sizes: cells of each slot."""
    starts = np.cumsum([0, *sizes])

    def label(place: int) -> str:
        slot = int(np.searchsorted(starts, judged[place], side="right")) - 1
        return f"slot {slot}, {name} {judged[place] - starts[slot]}"

    return label
