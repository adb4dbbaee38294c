"""Everything that the draws of some slots say about how often tokens come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from conformance.evidence import Evidence, cdf, partitions, pit
from conformance.evidence.counts import binomial, cells_of, counts_of
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
    asked = "tokens and groups of tokens come as often as the law says"
    yield binomial(asked, cells_of(counts, law), alpha if few else alpha / 4)
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


def _scatters(poisson: Tensor, draws: int, law: Law, alpha: float, seed: int) -> Iterator[Evidence]:
    """Each partition's cells of all slots in one sum; half of alpha for single tokens, the rest evenly."""
    width = poisson.shape[1]
    mean = poisson_mean(draws)
    columns: dict[str, list[Tensor]] = {}
    for slot, seen in enumerate(poisson):
        # The last token with mass takes the rounding of the whole sum.
        last = int((law.probs[slot] > 0).nonzero()[-1, 0])
        for name, labels in partitions.scatters(law.probs[slot], seed):
            number = int(labels.max()) + 1
            bounds = partitions.bounds(law, slot, labels, number)
            count = torch.zeros(number, dtype=torch.int64, device=seen.device).scatter_add_(0, labels, seen)
            rounding, variance = partitions.step_errors(bounds)
            slack = bounds.slack + rounding
            slack[labels[last]] += sum_error(width) / 2
            cells = torch.stack([count.to(torch.float64), mean * bounds.law, mean * slack, mean**2 * variance])
            keep = bounds.law + bounds.slack > 0
            if name == "token":
                keep[last] = False
            columns.setdefault(name, []).append(cells[:, keep])
    for name, parts in columns.items():
        table = torch.cat(parts, 1).cpu().numpy()
        if not table.size:
            continue  # one token has all the mass: support has judged every draw
        share = alpha / 2 if name == "token" else alpha / 2 / (len(columns) - 1)
        yield scattered(f"scatter of counts over cells by {name}", PoissonCells(*table), draws, share)
