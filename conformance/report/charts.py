"""The charts of a report, as SVG that stands in an HTML page.

Colours are CSS variables of the page, so that a chart follows it into the dark; text is text, in the page's font.
The charts are 360 pixels wide, and legible on a phone without being scaled.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy import special

WIDTH = 360
"""Pixels: the narrowest phones in use."""

LEAST_P = 1e-24
"""Smaller p-values are drawn here: beyond it only the number of zeros grows."""

_INK, _MUTED, _LINE, _OBSERVED, _ALLOWED, _ALARM = (f"#00000{i}" for i in range(1, 7))
_VARIABLES = ("ink", "muted", "line", "observed", "allowed", "alarm")
"""Stand-ins for the page's variables, in this order: matplotlib takes nothing but colours."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "conformance",  # ids that do not change from run to run
    "text.parse_math": False,  # a $ in a label is a $
    "path.simplify": False,
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib; it is wide, so that other fonts fit where it does
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "xtick.color": _LINE,
    "xtick.labelcolor": _MUTED,
    "ytick.color": _LINE,
    "ytick.labelcolor": _INK,
    "grid.color": _LINE,
    "grid.linewidth": 0.5,
}  # fmt: skip

_ROW, _FRAME = 14, 46
"""Pixels: of one row of text, and of the axis with its label."""

_LABEL = 30
"""Characters of a row's label."""


def svg(evidence: dict[str, Any], name: str) -> str:
    """The chart of a judgement, as `<svg>`. evidence: as in a report's JSON, with a chart. name: unique in the page."""
    chart = evidence["chart"]
    draw = {"cells": _cells, "cdf": _cdf, "histogram": _histogram}[chart["kind"]]
    title = f"{evidence['asked']}: observed against expected"
    return _svg(lambda figure: draw(figure, chart, evidence["alpha"]), _height(chart), name, title)


def p_values(judgements: Iterable[tuple[str, float, float]], name: str) -> str:
    """One row for each clause with its p-values and alphas, as `<svg>`. judgements: (clause, p-value, alpha)."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for clause, p_value, alpha in sorted(judgements):
        rows.setdefault(clause, []).append((p_value, alpha))
    title = "p-value of every statistical judgement, against the alpha below which it fails"
    return _svg(lambda figure: _p_values(figure, rows), _FRAME + _ROW * len(rows), name, title)


def _height(chart: dict[str, Any]) -> int:
    return _FRAME + _ROW * (1 + len(chart["labels"])) if chart["kind"] == "cells" else 190


def _cells(figure: Figure, chart: dict[str, Any], alpha: float | None) -> None:
    """A row for each cell: how many standard deviations lie between observed and expected."""
    labels = [_short(label) for label in chart["labels"]]
    observed, least, greatest = (np.array(chart[key], dtype=np.float64) for key in ("observed", "least", "greatest"))
    middle = (least + greatest) / 2
    trials = None if chart["trials"] is None else np.array(chart["trials"], dtype=np.float64)
    variance = middle if trials is None else middle * (1 - middle / np.maximum(trials, 1))
    deviation = np.sqrt(np.maximum(variance, 1))  # a count cannot be nearer to right than by one draw
    axes = _rows(figure, ["", *labels])
    place = np.arange(1, len(labels) + 1)
    off = (observed - middle) / deviation
    wrong = np.zeros(len(labels), dtype=bool)
    axes.hlines(place, (least - middle) / deviation, (greatest - middle) / deviation, color=_ALLOWED, linewidth=8)
    if trials is not None and alpha:
        share = alpha / 2 / (len(labels) + chart["left_out"])
        down, up = _limits(least, greatest, trials, share)
        for fails_at in (down, up):
            axes.plot((fails_at - middle) / deviation, place, "|", color=_ALARM, markersize=8)
        wrong = (observed < down) | (observed > up)
    for which, colour in ((~wrong, _OBSERVED), (wrong, _ALARM)):
        axes.plot(off[which], place[which], "o", color=colour, markersize=4)
    axes.axvline(0, color=_LINE, linewidth=0.8, zorder=0)
    axes.margins(x=0.06)
    axes.set_xlabel("standard deviations from the expected count")
    numbers = [f"{int(seen):,} / {_count(mean)}" for seen, mean in zip(observed, middle, strict=True)]
    for row, number in enumerate(["drawn / expected", *numbers]):
        axes.text(1.02, row, number, transform=axes.get_yaxis_transform(), va="center", color=_MUTED, size=8)


def _limits(least: Any, greatest: Any, trials: Any, alpha: float) -> tuple[Any, Any]:
    """The counts at which a cell begins to fail, downwards and upwards; NaN where none does."""
    down = special.bdtrik(alpha, trials, np.clip(least / trials, 0, 1))
    up = trials - special.bdtrik(alpha, trials, 1 - np.clip(greatest / trials, 0, 1))
    return np.where(down > 0, down, np.nan), np.where(up < trials, up, np.nan)


def _cdf(figure: Figure, chart: dict[str, Any], _alpha: float | None) -> None:
    axes = _plain(figure)
    allowed = chart["allowed"]
    axes.axhspan(-allowed, allowed, color=_ALLOWED, linewidth=0)
    axes.axhline(0, color=_LINE, linewidth=0.8)
    for side in (-allowed, allowed):
        axes.axhline(side, color=_ALARM, linewidth=1)
    axes.plot(chart["at"], chart["off"], ".-", color=_OBSERVED, linewidth=1.2, markersize=3)
    axes.set_xlim(0, 1)
    axes.set_xlabel("expected distribution function")
    axes.set_ylabel("observed minus expected")


def _histogram(figure: Figure, chart: dict[str, Any], _alpha: float | None) -> None:
    (_bars if chart["expected"] else _violations)(_plain(figure), chart)


def _bars(axes: Axes, chart: dict[str, Any]) -> None:
    """Linear bins with what is expected of each."""
    axes.stairs(chart["observed"], chart["edges"], color=_OBSERVED, fill=True, alpha=0.35)
    axes.stairs(chart["observed"], chart["edges"], color=_OBSERVED, linewidth=1.2)
    axes.stairs(chart["expected"], chart["edges"], color=_INK, linewidth=1, linestyle="--", baseline=None)
    axes.set_ylim(0, 1.25 * max(1, *chart["observed"], *chart["expected"]))
    axes.set_xlabel("each draw, as a uniform number")
    axes.set_ylabel("draws (dashed: expected)")


def _violations(axes: Axes, chart: dict[str, Any]) -> None:
    """One bar for zero, one for each bin, one for what lies beyond: bins grow by a factor, bars do not."""
    edges = chart["edges"]
    bars = [chart["at_zero"] or 0, *chart["observed"], chart["beyond"]]
    inside = 1 + sum(edge <= (chart["limit"] or np.inf) for edge in edges[1:])
    colours = [_OBSERVED if place < inside else _ALARM for place in range(len(bars))]
    axes.bar(range(len(bars)), bars, color=colours, width=0.9)
    axes.axvline(inside - 0.5, color=_ALARM, linewidth=1, linestyle="--")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 4 * max(1, *bars))
    axes.annotate("allowed", (inside - 0.7, 0.98), xycoords=("data", "axes fraction"), ha="right", va="top")
    axes.annotate("wrong", (inside - 0.3, 0.98), xycoords=("data", "axes fraction"), va="top", color=_ALARM)
    axes.set_xticks([0, *(place + 0.5 for place in range(1, len(edges), 4))], ["0", *map("{:.0e}".format, edges[1::4])])
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("distance outside the interval, in units of what is allowed")
    axes.set_ylabel("draws")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _p_values(figure: Figure, rows: dict[str, list[tuple[float, float]]]) -> None:
    axes = _rows(figure, [_short(clause) for clause in rows], right=14)
    for place, judgements in enumerate(rows.values()):
        shown = np.maximum([p_value for p_value, _ in judgements], LEAST_P)
        failed = np.array([p_value < alpha for p_value, alpha in judgements])
        alphas = sorted({float(f"{alpha:.1e}") for _, alpha in judgements})
        axes.plot(alphas, [place] * len(alphas), "|", color=_ALARM, markersize=8)
        for which, colour in ((~failed, _OBSERVED), (failed, _ALARM)):
            axes.plot(shown[which], [place] * int(which.sum()), "o", color=colour, markersize=4, alpha=0.6, mew=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}" if value < 1 else "1"))
    least = min(p_value for judgements in rows.values() for pair in judgements for p_value in pair)
    axes.set_xlim(max(LEAST_P, least) / 10, 3)
    axes.set_xlabel("p-value")


def _rows(figure: Figure, labels: list[str], right: int = 96) -> Axes:
    """Axes with a labelled row for each label, the first on top."""
    height = _FRAME + _ROW * len(labels)
    left = 8 + 5.3 * max((len(label) for label in labels), default=0)
    axes = figure.add_axes(
        (left / WIDTH, (_FRAME - 8) / height, (WIDTH - left - right) / WIDTH, _ROW * len(labels) / height)
    )
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks([])  # labels of ticks would take several times as long
    for place, label in enumerate(labels):
        axes.text(-0.02, place, label, transform=axes.get_yaxis_transform(), ha="right", va="center")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    return axes


def _plain(figure: Figure) -> Axes:
    axes = figure.add_axes((0.17, 0.22, 0.79, 0.73))
    axes.tick_params(axis="y", labelcolor=_MUTED, labelsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return axes


def _short(label: str) -> str:
    """In characters that matplotlib's font has."""
    text = label.encode("ascii", "replace").decode()
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 3]}..."


def _count(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def _svg(draw: Callable[[Figure], None], height: int, name: str, title: str) -> str:
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # each key is one of hundreds of literals
        figure = Figure(figsize=(WIDTH / 72, height / 72))  # in SVG, 72 pixels are matplotlib's inch
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _for_page(buffer.getvalue(), height, name, title)


def _for_page(text: str, height: int, name: str, title: str) -> str:
    """Without what only a file of its own needs, and with ids that no other chart of the page has."""
    text = text[text.index("<svg") :]
    for needless in (
        r"<!--.*?-->",
        r"<metadata>.*?</metadata>",
        r"<style[^>]*>.*?</style>",
        r' transform="rotate\(-0 [^"]*"',
    ):
        text = re.sub(needless, "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r' (?:d|x|y|transform|width|height)="[^"]*"', _rounded, text)
    text = re.sub(r' style="[^"]*"', _styled, text)
    text = re.sub(r"\s*\n\s*", " ", text)
    opening = f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height}"><title>{html.escape(title)}</title>'
    return opening + re.sub(r" ?<g/>| (?=<)", "", text[text.index(">") + 1 :]).strip()


def _rounded(attribute: re.Match[str]) -> str:
    return re.sub(r"(\.\d)\d+", r"\1", attribute[0])


def _styled(attribute: re.Match[str]) -> str:
    text = re.sub(r"#00000([1-6])", lambda found: f"var(--{_VARIABLES[int(found[1]) - 1]})", attribute[0])
    return re.sub(r"font: (?:\S+ )*?([\d.]+px) [^;\"]*", r"font-size: \1", re.sub(r"font-family: [^;]*; ", "", text))
