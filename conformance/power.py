"""What each kind of test sees at a number of draws, and how many draws an error needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from conformance.clauses import Tier, plan
from conformance.evidence import cdf, counts, dispersion, pit
from conformance.evidence.budget import ALPHA_FIXED_SEEDS, MISS
from reference.law import sum_error

DRAWS = (10**5, 10**6, 10**7, 10**8)
ERRORS = (0.05, 0.01, 0.005, 0.002, 0.001)

PARTS = 16
"""A check's share of the budget goes to about so many tests; the power depends on its logarithm alone."""

DIRECTED = 1e-6
"""How near to an edge the numbers of directed coupling lie."""


@dataclass(frozen=True)
class Kind:
    """One kind of test.

    sees: the least error, as a probability, that is seen with this many draws with probability 1 - 1e-6.
    needs: the least number of draws that see this error; None where no number does.
    """

    name: str
    error: str
    sees: Callable[[float], float]
    needs: Callable[[float], int | None]


def kinds(tier: Tier) -> Iterator[Kind]:
    """The kinds of test of a tier, at the alpha that it gives to each."""
    alpha = alpha_of(tier)
    yield _cell("half of all tokens", 0.5, alpha)
    yield _cell("a token of 1 %", 0.01, alpha)
    for gap in tier.tail_gaps:
        tail = 1 / (1 + math.exp(gap) / (tier.large_vocab - 1))
        yield _cell(f"tail at {gap} nats, {tail:.2g}", tail, alpha)
    for cells in (64, 1024, tier.large_vocab):
        yield _scatter(cells, alpha)
    yield Kind(
        "distribution function",
        "mass moved across",
        partial(cdf.detectable, alpha=alpha),
        partial(cdf.draws_for, alpha=alpha),
    )
    near = 2 * pit.NEAR - pit.NEAR**2
    yield replace(_cell("pairs near each other", near, alpha), error="pairs that repeat")
    yield _coupling(tier, directed=False)
    yield _coupling(tier, directed=True)


def _cell(name: str, probability: float, alpha: float) -> Kind:
    def sees(draws: float) -> float:
        number, p = np.array([int(draws)]), np.array([probability])
        return counts.detectable(counts.Cells([""], number, number, p, p), alpha / 2)

    def needs(error: float) -> int | None:
        return counts.draws_for(error, probability, alpha) if error < min(1 - probability, probability) else None

    return Kind(name, "mass in or out", sees, needs)


def _scatter(cells: int, alpha: float) -> Kind:
    def sees(draws: float) -> float:
        even = dispersion.even_cells(cells, dispersion.poisson_mean(int(draws)))
        return dispersion.Tail(even, alpha).detectable(1 - MISS) / 2

    return Kind(
        f"scatter over {cells:,} cells",
        "cells off in turns",
        sees,
        partial(dispersion.draws_for, number=cells, alpha=alpha),
    )


def _coupling(tier: Tier, *, directed: bool) -> Kind:
    # As in `coupling.running`, without the masses' own errors, which depend on the logits.
    d = sum_error(tier.large_vocab) + 9 * 2.0**-24

    def sees(draws: float) -> float:
        return 2 * (d + DIRECTED) if directed else math.log(1 / MISS) / draws + 2 * d

    def needs(error: float) -> int | None:
        if directed:
            return 1 if error > 2 * (d + DIRECTED) else None
        return math.ceil(math.log(1 / MISS) / (error - 2 * d)) if error > 2 * d else None

    kind, what = ("directed", "an edge moved") if directed else ("undirected", "mass moved")
    return Kind(f"coupling, {kind}", what, sees, needs)


def alpha_of(tier: Tier) -> float:
    """The alpha of one test: the run's, evenly over all statistical checks, and over the parts of each."""
    return ALPHA_FIXED_SEEDS / sum(clause.statistical for clause, _ in plan(tier)) / PARTS


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
        f"Tier {tier.name}: each test fails a right sampler with probability {alpha_of(tier):.1e} at most, and\n"
        f"overlooks an error of the size shown with probability {MISS:.0e}. Errors are probabilities: so much of the\n"
        "mass is misplaced."
    )
