"""The picture of rates: which panels, lines and marks it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.lines import Line2D

from conformance.measure import result, roofline
from conformance.measure.ratio import Ratio
from conformance.measure.result import Bench, Row
from conformance.measure.session import READ
from conformance.measure.workload import Workload

BEST = 4e12
FILTERS = ("none", "topk50", "topk1000", "topp0.9", "topk50-topp0.9", "topk50-topp0.9-mixed", "none-logprobs")


def report(*filters: str, names: tuple[str, ...] = ("ours", "theirs"), wrong: str = "") -> Bench:
    """As a card with that bandwidth would give it. wrong: the sampler whose calls are, on the smallest case."""
    rows = []
    for n in (1, 32, 1024):
        for each in filters:
            workload = Workload.of(f"n{n}-V128256-bf16-{each}")
            for number, name in enumerate((READ, *names)):
                seconds = workload.read_bytes * (1 + 3 * number) / BEST + 2e-6 * (1 + 8 * number)
                ratio = None if name == READ else Ratio(2.0, 1.9, 2.1, 20)
                rate = workload.read_bytes / seconds
                bad = n == 1 and name == wrong
                rows.append(Row(workload.id, name, "cold", seconds, ratio, ratio, 1, rate, rate / BEST, bad))
                rows.append(Row(workload.id, name, "warm", 1e-9, ratio, ratio, 1, 1e20, None, wrong=False))
    environment = {"gpu": "NVIDIA H200", "torch": "2.11.0", "python": "3.12.3"}
    samplers = {name: f"made_up:{name}" for name in names}
    return Bench(samplers, "cuda", ["cold", "warm"], 20, environment, best_rate=BEST, rows=rows)


def points(line: Line2D) -> tuple[list[float], list[float]]:
    """Sizes and rates."""
    x, y = (np.asarray(each, dtype=float).tolist() for each in line.get_data())
    return x, y


def test_a_panel_for_each_use_of_filters_and_one_legend() -> None:
    made = roofline.figure(report(*FILTERS).to_json())
    shown = [axes for axes in made.axes if axes.get_lines()]
    assert [axes.get_title() for axes in shown] == [
        "no filter", "top-k (topk50, topk1000)", "top-p (topp0.9)", "top-k and top-p (topk50-topp0.9)",
        "half of the rows top-k, half top-p (topk50-topp0.9)",
    ]  # fmt: skip
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in shown}) == 1
    (legend,) = (axes.get_legend() for axes in made.axes if axes.get_legend() is not None)
    labels = ["best bare read: 4,000 GB/s", "bare read of the same logits", "ours", "theirs"]
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == labels
    for axes in shown:
        assert [line.get_label() for line in axes.get_lines()] == labels
        assert len({line.get_marker() for line in axes.get_lines()[1:]}) == 3  # told apart without colour
        assert axes.get_xscale() == axes.get_yscale() == "log"
        ceiling, read, ours, _ = axes.get_lines()
        assert set(points(ceiling)[1]) == {BEST / 1e9}
        sizes, rates = points(ours)
        assert all(a < b < BEST / 1e9 for a, b in zip(rates, points(read)[1], strict=True))
        assert sizes == sorted(sizes)
    assert made.get_suptitle().replace("\xa0", " ") == "NVIDIA H200, torch 2.11.0, python 3.12.3"


@pytest.mark.parametrize("number", range(1, 6))
def test_there_is_a_place_for_each_panel_and_the_legend(number: int) -> None:
    filters = ("none", "topk50", "topp0.9", "topk50-topp0.9", "topk50-topp0.9-mixed")[:number]
    made = roofline.figure(report(*filters, names=("ours",)).to_json())
    assert sum(bool(axes.get_lines()) for axes in made.axes) == number
    assert sum(axes.get_legend() is not None for axes in made.axes) == 1


def test_wrong_calls_are_crossed_out() -> None:
    made = roofline.figure(report("none", wrong="theirs").to_json())
    cross = made.axes[0].get_lines()[-1]
    assert cross.get_label() == "WRONG calls"
    assert points(cross)[0] == [Workload.of("n1-V128256-bf16-none").read_bytes / 1e6]


def test_it_is_drawn_of_a_report_that_was_read(tmp_path: Path) -> None:
    report("none", "topk50").write(tmp_path / "report.json")
    roofline.write(result.read(tmp_path / "report.json"), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_without_a_read_there_is_no_ceiling() -> None:
    bare = report("none")
    bare.rows = [row for row in bare.rows if row.sampler != READ]
    bare.best_rate = float("nan")
    (panel, *_) = roofline.figure(bare.to_json()).axes
    assert "best" not in str(panel.get_lines()[0].get_label())


def test_where_nothing_is_to_be_drawn_it_says_so() -> None:
    with pytest.raises(ValueError, match="roofline must be of a report with 'cold' times of cases without options"):
        roofline.figure(report("none-logprobs").to_json())
