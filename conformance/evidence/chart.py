"""What a judgement compared, in few numbers: enough to draw it, too little to weigh a report down.

Floats keep 6 significant digits: a chart is a few hundred pixels wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

CELLS = 24
"""Cells shown, those furthest off: as many as can be labelled legibly in one chart."""

POINTS = 64
"""Points of a distribution function: one for every few pixels of a chart."""

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.float64] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class CellChart:
    """Counts of cells against the expected ones, the cell furthest off first.

    labels. observed: counts. least, greatest: in a right sampler the expected count lies between them. trials: draws
    that each count was taken from; None where that number is itself a Poisson number. left_out: how many more
    cells were judged, each less far off.
    """

    labels: tuple[str, ...]
    observed: tuple[int, ...]
    least: tuple[float, ...]
    greatest: tuple[float, ...]
    trials: tuple[int, ...] | None
    left_out: int
    kind: Literal["cells"] = "cells"


@dataclass(frozen=True)
class CdfChart:
    """An observed distribution function minus the expected one.

    at: in [0, 1], the expected distribution function. off: the difference furthest from 0 near there. allowed: a
    difference beyond this, to either side, fails.
    """

    at: tuple[float, ...]
    off: tuple[float, ...]
    allowed: float
    kind: Literal["cdf"] = "cdf"


@dataclass(frozen=True)
class HistogramChart:
    """How many numbers fell into each bin.

    of: what the numbers are. edges: of the bins, one more than there are bins. observed: counts. expected: counts, or
    None where the law gives none. at_zero: numbers of 0, where they lie in no bin; else None. beyond: numbers above the
    last edge. limit: the greatest number allowed, or None.
    """

    of: str
    edges: tuple[float, ...]
    observed: tuple[int, ...]
    expected: tuple[float, ...] | None = None
    at_zero: int | None = None
    beyond: int = 0
    limit: float | None = None
    kind: Literal["histogram"] = "histogram"


Chart = CellChart | CdfChart | HistogramChart


def cell_chart(
    label: Callable[[int], str], counts: Counts, least: Array, greatest: Array, trials: Counts | None
) -> CellChart:
    """The cells furthest outside [least, greatest], in standard deviations of a count there.

    label: names the cell at a place. The others: [K]. A standard deviation is taken as at least 1, one draw.
    """
    middle = (least + greatest) / 2
    variance = middle if trials is None else middle * (1 - middle / np.maximum(trials, 1))
    outside = np.maximum(counts - greatest, least - counts) / np.sqrt(np.maximum(variance, 1))
    shown = np.argsort(-outside, kind="stable")[:CELLS]
    return CellChart(
        labels=tuple(label(place) for place in shown.tolist()),
        observed=tuple(int(count) for count in counts[shown].tolist()),
        least=rounded(least[shown].tolist()),
        greatest=rounded(greatest[shown].tolist()),
        trials=None if trials is None else tuple(int(number) for number in trials[shown].tolist()),
        left_out=len(counts) - len(shown),
    )


def rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Each to 6 significant digits."""
    return tuple(float(f"{value:.6g}") for value in values)
