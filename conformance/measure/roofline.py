"""How near samplers come to the memory's bandwidth, as a picture: rates against sizes, under the rate of a bare read.

A rate is what a sampler must move at least, over its time: one that moves more, or waits, lies below the read. The
read's own line falls off to the left, where a call is over before the memory is busy: nothing can lie far above it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from conformance.measure.session import READ
from conformance.measure.tables import WRONG, heading
from conformance.measure.workload import Workload

Json = dict[str, Any]

PANELS = {
    "none": "no filter",
    "top-k": "top-k",
    "top-p": "top-p",
    "both": "top-k and top-p",
    "mixed": "half of the rows top-k, half top-p",
}
"""Which cases a panel has, and its title."""

_PANEL = (3.4, 2.7)
"""Inches, wide and high: at 150 dots an inch three side by side fit a page that is 1,500 pixels wide."""

_FRAME = 0.7
"""Inches for the title and the label of the x axes."""

_MARKERS = "os^Dv<>Ph*"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which those who see few colours can tell apart; without colour the markers do."""

_LETTERS = 13
"""Of the picture's title, an inch."""

_ROOM = 1.6
"""Between the points and the frame, as a factor."""

_STYLE: dict[str, Any] = {
    "text.parse_math": False,  # a $ in a name is a $
    "font.size": 8,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "axes.titlesize": 8.5,
    "figure.titlesize": 9,
    "figure.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
}


class _Point(NamedTuple):
    """megabytes: of logits that must be read. rate: GB a second."""

    megabytes: float
    rate: float
    wrong: bool


def panel_of(case: str) -> str:
    """The panel, one of `PANELS`, in which a case is drawn; "" for one with other options than "mixed"."""
    workload = Workload.of(case)
    if workload.options - {"mixed"}:
        return ""
    used = "both" if workload.top_k and workload.top_p else "top-k" if workload.top_k else "top-p"
    return "mixed" if workload.options else used if workload.filters != "none" else "none"


def write(report: Json, path: Path) -> None:
    """Write the picture as PNG. report: as for `figure`, and the same errors."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # each key is one of hundreds of literals
        figure(report).savefig(path, format="png", dpi=150)


def figure(report: Json) -> Figure:
    """The picture. report: as `Bench.to_json` gives it or `conformance.measure.result.read` reads it.

    Raises ValueError where no sampler has a "cold" time of a case that is drawn.
    """
    panels: dict[str, list[Json]] = {name: [] for name in PANELS}
    for row in report["rows"]:
        if row["kind"] == "cold" and row["rate"] and (panel := panel_of(row["case"])):
            panels[panel].append(row)
    panels = {name: rows for name, rows in panels.items() if any(row["sampler"] != READ for row in rows)}
    if not panels:
        raise ValueError("roofline must be of a report with 'cold' times of cases without options, got none")
    columns = 2 if len(panels) in {1, 3} else 3
    lines = -(-(len(panels) + 1) // columns)  # one place is the legend's
    made = Figure(figsize=(columns * _PANEL[0], lines * _PANEL[1] + _FRAME), layout="constrained")
    axes = list(made.subplots(lines, columns, squeeze=False).flat)
    for (name, rows), each in zip(panels.items(), axes, strict=False):
        used = dict.fromkeys(Workload.of(row["case"]).filters for row in rows)
        each.set_title(PANELS[name] + (f" ({', '.join(used)})" if name != "none" else ""))
        _draw(each, report, rows)
    _scale(axes[: len(panels)], [point for rows in panels.values() for point in _points(rows)], report["best_rate"])
    for empty in axes[len(panels) :]:
        empty.set_axis_off()
    handles = {label: handle for each in axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    axes[len(panels)].legend(handles.values(), handles.keys(), loc="center", frameon=False)
    made.supxlabel("MB of logits that must be read")
    made.supylabel("GB/s: bytes that must be moved, over the time")
    made.suptitle(_title(report, int(_LETTERS * columns * _PANEL[0])))
    return made


def _title(report: Json, letters: int) -> str:
    """Card and versions, in lines that do not end between a name and its version."""
    joined = heading(report)[0].replace(" ", "\xa0").replace(",\xa0", ", ")
    return textwrap.fill(joined, letters)


def _draw(axes: Axes, report: Json, rows: list[Json]) -> None:
    if best := report["best_rate"]:
        axes.axhline(best / 1e9, color="black", linestyle=":", label=f"best bare read: {_number(best / 1e9)} GB/s")
    of: dict[str, list[_Point]] = {
        name: _points(row for row in rows if row["sampler"] == name) for name in (READ, *report["samplers"])
    }
    axes.plot(*_columns(of[READ]), color="#777777", linestyle="--", marker="+", label="bare read of the same logits")
    for number, name in enumerate(report["samplers"]):
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        axes.plot(*_columns(of[name]), color=colour, marker=marker, label=name)
        if wrong := [point for point in of[name] if point.wrong]:
            axes.plot(*_columns(wrong), "x", color="#cc0000", markersize=10, markeredgewidth=2, label=f"{WRONG} calls")


def _points(rows: Iterable[Json]) -> list[_Point]:
    """By size."""
    return sorted(_Point(Workload.of(row["case"]).read_bytes / 1e6, row["rate"] / 1e9, row["wrong"]) for row in rows)


def _columns(points: list[_Point]) -> tuple[list[float], list[float]]:
    return [point.megabytes for point in points], [point.rate for point in points]


def _scale(panels: list[Axes], points: list[_Point], best: float | None) -> None:
    """The same for all panels, so that they can be compared."""
    x, y = _columns(points)
    y += [best / 1e9] if best else []
    for axes in panels:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(min(x) / _ROOM, max(x) * _ROOM)
        axes.set_ylim(min(y) / _ROOM, max(y) * _ROOM)
        _ticks(axes.xaxis, x)
        _ticks(axes.yaxis, y)


def _ticks(axis: Axis, values: list[float]) -> None:
    """Whole powers of ten alone where there are enough of them."""
    wide = max(values) / min(values) > 100
    axis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axis.set_minor_formatter(NullFormatter())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
