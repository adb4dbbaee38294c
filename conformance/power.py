"""What each kind of test sees at a number of draws, and how many draws an error needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from conformance.cases import Case, head_and_tail
from conformance.clauses import Tier, plan
from conformance.clauses.coupling import NEAR
from conformance.evidence import cdf, counts, coupling, dispersion, frequencies, pit
from conformance.evidence.budget import ALPHA_FIXED_SEEDS, MISS, draws_for
from conformance.evidence.coupling import FLOAT32, running_law
from reference import Law, LawOptions

DRAWS = (10**5, 10**6, 10**7, 10**8)
ERRORS = (0.05, 0.01, 0.005, 0.002, 0.001)


@dataclass(frozen=True)
class Kind:
    """One kind of test.

    sees: the least error, as a probability, that is seen with this many draws with probability 1 - 1e-6; 1 is none.
    """

    name: str
    error: str
    sees: Callable[[float], float]

    def needs(self, error: float) -> int | None:
        """The least number of draws that see this error; None where no number does."""
        return draws_for(error, self.sees)


def kinds(tier: Tier) -> Iterator[Kind]:
    """The tests of a tier on the inputs, with the allowances, and at the alpha that they have there."""
    alpha = alpha_of(tier)
    law = _law_of(tier, "draw/distribution", "most-draws-large")
    cells = cells_of(law)
    for what, name in (("one half of the tokens", "parity 0"), ("a lane", "lane 0"), ("a tile", "tile 0")):
        yield _cell(what, name, cells, alpha / 4)
    yield _cell("the likeliest token", f"token {int(law.probs[0].argmax())}", cells, alpha / 4)
    for gap in tier.tail_gaps:
        width = tier.large_vocab
        tail = cells_of(_law(Case("gap", head_and_tail(width, gap), width)))
        yield _cell(f"the tail at {gap} nats", f"token {width // 2}", tail, alpha / 4)
    found = list(frequencies.scatters(law, 0, 0))
    for_tokens, for_others = frequencies.shares(alpha / 2, len(found) - 1)
    for scatter in found:
        yield _scatter(scatter, for_tokens if scatter.name == "token" else for_others)
    for by_rank in (False, True):
        yield _distribution(law, alpha / 8, by_rank=by_rank)
    yield _near(_law_of(tier, "randomness/seeds", "flat-none"), 2 * alpha)
    yield _coupling(tier, directed=False)
    yield _coupling(tier, directed=True)


def alpha_of(tier: Tier) -> float:
    """Of the last look of one check: half of an even share of the run's."""
    return ALPHA_FIXED_SEEDS / sum(clause.statistical for clause, _ in plan(tier)) / 2


def cells_of(law: Law) -> counts.Cells:
    """The cells that are judged one by one, without draws."""
    return counts.cells_of(torch.zeros_like(law.probs, dtype=torch.int64), law)


def _law_of(tier: Tier, clause: str, name: str) -> Law:
    return _law(next(case for each, case in plan(tier) if (each.id, case.name) == (clause, name)))


def _law(case: Case) -> Law:
    return case.law(LawOptions(), torch.device("cpu"))


def _cell(what: str, name: str, cells: counts.Cells, alpha: float) -> Kind:
    at = cells.names.index(f"slot 0, {name}")
    share = alpha / (2 * len(cells.names))
    return Kind(what, "mass in or out", partial(_one_cell, cells.low[[at]], cells.high[[at]], share))


def _one_cell(low: counts.Array, high: counts.Array, alpha: float, draws: float) -> float:
    number = np.array([int(draws)])
    return min(1.0, counts.detectable(counts.Cells([""], number, number, low, high), alpha))


def _scatter(scatter: frequencies.Scatter, alpha: float) -> Kind:
    none = torch.zeros(len(scatter.labels), dtype=torch.int64)

    def sees(draws: float) -> float:
        table = scatter.table(none, dispersion.poisson_mean(int(draws))).numpy()
        return dispersion.Tail(dispersion.PoissonCells(*table), alpha).detectable(1 - MISS) / 2

    return Kind(f"scatter by {scatter.name}, {int(scatter.kept.sum()):,}", "cells off in turns", sees)


def _distribution(law: Law, alpha: float, *, by_rank: bool) -> Kind:
    slack = pit.slack(law, by_rank=by_rank)

    def sees(draws: float) -> float:
        return min(1.0, slack + cdf.detectable(draws, alpha))

    return Kind(f"distribution by {'rank' if by_rank else 'index'}", "mass moved across", sees)


def _near(law: Law, share: float) -> Kind:
    """share: of a check without looks. Half goes to equal tokens, a quarter to scatter, a quarter to near pairs."""
    low, high = (np.array([bound]) for bound in pit.near_bounds(pit.slack(law)))
    return Kind("pairs near each other", "pairs that repeat", partial(_one_cell, low, high, share / 8))


def _coupling(tier: Tier, *, directed: bool) -> Kind:
    """As for float32 arithmetic and cuRAND's uniform numbers."""
    which = ("coupling/directed", "edges-none") if directed else ("coupling/undirected", "peaked-none")
    bound = float(running_law(_law_of(tier, *which), FLOAT32, FLOAT32).error.max())
    distance = NEAR if directed else None

    def sees(draws: float) -> float:
        return min(1.0, coupling.detectable(draws, bound, distance))

    kind, what = ("directed", "an edge moved") if directed else ("undirected", "mass moved")
    return Kind(f"coupling, {kind}", what, sees)


def to_json(tier: Tier) -> dict[str, Any]:
    """Both tables, JSON-ready."""
    return {
        "tier": tier.name,
        "alpha": alpha_of(tier),
        "miss": MISS,
        "tests": [
            {
                "test": kind.name,
                "error": kind.error,
                "sees": {str(draws): kind.sees(draws) for draws in DRAWS},
                "needs": {str(error): kind.needs(error) for error in ERRORS},
            }
            for kind in kinds(tier)
        ],
    }


def show(tier: Tier, console: Console) -> None:
    """Both tables in one."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("test", no_wrap=True)
    table.add_column("the error", no_wrap=True)
    for draws in DRAWS:
        table.add_column(f"sees at {draws:.0e}".replace("e+0", "e"), justify="right", width=7)
    for error in ERRORS:
        table.add_column(f"needs for {error:.1%}", justify="right", width=5)
    for kind in kinds(tier):
        sees = [f"{value:.2g}" if (value := kind.sees(draws)) < 1 else "-" for draws in DRAWS]
        needs = ["-" if (number := kind.needs(error)) is None else f"{number:.1e}" for error in ERRORS]
        table.add_row(kind.name, kind.error, *sees, *(each.replace("e+0", "e") for each in needs))
    console.print(table)
    console.print(
        f"Tier {tier.name}, V = {tier.large_vocab:,}, the logits of its largest case. A check fails a right sampler\n"
        f"with probability {2 * alpha_of(tier):.1e} at most; each test overlooks an error of the size shown with\n"
        f"probability {MISS:.0e}. Errors are probabilities: so much of the mass is misplaced."
    )
