"""What judgements leave behind for a chart, and the charts that are drawn of it."""

from __future__ import annotations

import json
import math
import re
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from conformance.cases import Case, normal
from conformance.evidence import cdf, pit
from conformance.evidence.chart import CELLS, CdfChart, CellChart, HistogramChart, cell_chart
from conformance.evidence.coupling import inverse_cdf, running_law
from conformance.evidence.frequencies import frequencies
from conformance.report import charts
from reference import Law, LawOptions
from tests.conformance import reports

VOCAB, DRAWS = 4096, 2**12


def the_law(**changes: Any) -> Law:
    case = Case("chart", normal(2, VOCAB, 5), VOCAB, (1.0, 1.0), **changes)
    return case.law(LawOptions(), torch.device("cpu"))


def drawn(law: Law) -> torch.Tensor:
    return torch.multinomial(law.probs, DRAWS, replacement=True, generator=torch.Generator().manual_seed(1))


def test_the_cells_furthest_off_come_first_and_the_others_are_counted() -> None:
    counts = np.array([50, 10, 0, 90] + [50] * 40)
    expected = np.array([50.0, 50, 50, 50] + [50.0] * 40)
    chart = cell_chart("c{}".format, counts, expected - 1, expected + 1, np.full(44, 200))
    assert chart.labels[:3] == ("c2", "c1", "c3")
    assert chart.observed[:3] == (0, 10, 90)
    assert (chart.least[0], chart.greatest[0]) == (49.0, 51.0)
    assert chart.trials == (200,) * CELLS
    assert (len(chart.labels), chart.left_out) == (CELLS, 44 - CELLS)


def test_a_deviation_counts_by_its_own_scale() -> None:
    # 30 more where a million are expected is nothing, 10 where one is expected is much; within the bounds is less.
    counts, least, greatest = np.array([10**6 + 30, 10, 550]), np.array([1e6, 1.0, 500.0]), np.array([1e6, 1.0, 600.0])
    assert cell_chart(str, counts, least, greatest, None).labels == ("1", "0", "2")


def test_scatters_name_the_cells_that_are_off() -> None:
    # With top-k most cells hold nothing and are not judged: places among those judged are no tokens.
    law = the_law(top_k=(0, 64))
    ids = drawn(law)
    token = int(law.probs[1].topk(9).indices[8])
    ids[1, :400] = token
    found = {each.asked: each for each in frequencies(ids, law, 1e-6, 0)}
    by_token = found["scatter of counts over cells by token"]
    assert isinstance(by_token.chart, CellChart)
    assert by_token.chart.labels[0] == f"slot 1, token {token}"
    assert by_token.chart.trials is None
    by_place = found["scatter of counts over cells by place in a vector"]
    assert isinstance(by_place.chart, CellChart)
    assert by_place.chart.labels[0] == f"slot 1, place in a vector {token % 128}"
    cells = found["tokens and groups of tokens come as often as the law says"]
    assert isinstance(cells.chart, CellChart)
    assert cells.chart.labels[0] == f"slot 1, token {token}"


def test_a_distribution_function_keeps_its_largest_distance_and_its_sign() -> None:
    law = the_law()
    ids = drawn(law)
    ids[0, :600] = VOCAB - 1
    found = {each.asked: each for each in frequencies(ids, law, 1e-6, 0)}["distribution function in index order"]
    chart = found.chart
    assert isinstance(chart, CdfChart)
    assert not found.passed
    furthest = min(chart.off)
    exact = float((ids[0].bincount(minlength=VOCAB).cumsum(0) / DRAWS - law.probs[0].cumsum(0)).min())
    assert furthest == pytest.approx(exact, rel=1e-5)
    assert max(chart.off) < -exact
    assert math.isclose(float(found.allowed.split()[2].rstrip(",")), chart.allowed, rel_tol=1e-3)
    assert list(chart.at) == sorted(set(chart.at))


def test_uniform_numbers_keep_theirs_too() -> None:
    values = torch.rand(5000, generator=torch.Generator().manual_seed(2), dtype=torch.float64) ** 1.2
    chart = cdf.uniform_distance("", values, 0.0, 1e-6).chart
    assert isinstance(chart, CdfChart)
    # F_N(x) is about x^(1 / 1.2), above x.
    assert max(chart.off) == pytest.approx(max(x ** (1 / 1.2) - x for x in np.linspace(0, 1, 1000)), abs=0.03)
    assert min(chart.off) > -0.01


def test_the_transform_is_shown_in_20_bins() -> None:
    values = torch.rand(4000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 2
    chart = pit.uniform("", values, 0.0, 1e-6, 0)[1].chart
    assert isinstance(chart, HistogramChart)
    assert chart.expected is not None
    assert (len(chart.observed), len(chart.edges), len(chart.expected)) == (20, 21, 20)
    assert chart.observed[10:] == (0,) * 10
    assert sum(chart.observed) == pytest.approx(sum(chart.expected), rel=0.1)


def test_coupled_draws_are_counted_by_how_far_they_are_off() -> None:
    law = the_law(top_p=(0.9, 0.9))
    sums = running_law(law, 2.0**-24, 2.0**-24)
    u = torch.rand(2, 300, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    ids = torch.searchsorted(sums.upto, u, right=True)
    right = inverse_cdf("", ids, u, law, sums).chart
    assert isinstance(right, HistogramChart)
    assert (right.at_zero, sum(right.observed), right.beyond, right.limit) == (600, 0, 0, 1.0)
    ids[0, :7] = (ids[0, :7] + VOCAB // 2) % VOCAB
    ids[1, 0] = -1  # no violation can be given
    wrong = inverse_cdf("", ids, u, law, sums)
    assert isinstance(wrong.chart, HistogramChart)
    assert wrong.chart.at_zero == 592
    assert sum(wrong.chart.observed[: wrong.chart.edges.index(1.0)]) == 0
    assert sum(wrong.chart.observed) + wrong.chart.beyond == 8
    assert "592 inside their interval" in wrong.observed
    assert "8 beyond" in wrong.observed


def shown() -> list[dict[str, Any]]:
    """The judgements with charts of a right sampler and a broken one, each kind of chart and verdict once."""
    found = {}
    for report in (reports.right(), reports.broken()):
        for result in report.to_json()["results"]:
            for each in result["evidence"]:
                if (chart := each["chart"]) is not None:
                    found[chart["kind"], bool(chart.get("trials") or chart.get("expected")), each["passed"]] = each
    return list(found.values())


def test_every_statistical_judgement_has_a_small_chart() -> None:
    for report in (reports.right(), reports.broken()):
        judgements = [each for result in report.to_json()["results"] for each in result["evidence"]]
        assert all(each["chart"] for each in judgements if each["p_value"] is not None)
        # A quick run makes some 600 of them, and its report is to stay below 2 MB.
        assert max(len(json.dumps(each["chart"])) for each in judgements) < 3000


def test_all_kinds_of_charts_are_drawn_below() -> None:
    kinds = {(each["chart"]["kind"], each["passed"]) for each in shown()}
    assert kinds >= {("cells", True), ("cells", False), ("cdf", True), ("cdf", False), ("histogram", True)}


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text.replace("xlink:href", "href"))  # noqa: S314  # our own


def test_a_chart_is_svg_in_the_colours_of_its_page() -> None:
    for each in shown():
        text = charts.svg(each, "mine")
        root = parsed(text)
        assert root.attrib["role"] == "img"
        assert root[0].tag == "title"
        assert each["asked"] in (root[0].text or "")
        assert not re.search(r"#[0-9a-f]{6}\b|rgb|font-family|<style|<metadata", text)
        ids = re.findall(r' id="([^"]*)"', text)
        assert all(each.startswith("mine-") for each in ids)
        assert set(re.findall(r'(?:url\(#|href="#)([^)"]*)', text)) == set(ids)


def test_labels_are_text_whatever_they_hold() -> None:
    evidence = next(each for each in shown() if each["chart"]["kind"] == "cells")
    labels = ["<script>alert(1)</script>", "$\\frac{$", "\u4e2d\u6587 " * 50]
    chart = {key: value[:3] if isinstance(value, list) else value for key, value in evidence["chart"].items()}
    text = charts.svg(evidence | {"asked": "</title><script>", "chart": chart | {"labels": labels}}, "x")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "$\\frac{$" in "".join(parsed(text).itertext())


def test_a_failing_cell_lies_beyond_its_mark() -> None:
    def cells(observed: int) -> str:
        chart = {"kind": "cells", "labels": ["x"], "observed": [observed], "least": [500.0], "greatest": [500.0],
                 "trials": [1000], "left_out": 0}  # fmt: skip
        return charts.svg({"asked": "", "alpha": 1e-6, "chart": chart}, "x")

    # 5e-7 is for each side: P(X >= 577) = 6.3e-7 and P(X >= 578) = 4.5e-7.
    passing = cells(500).count("var(--alarm)")
    assert [cells(observed).count("var(--alarm)") > passing for observed in (422, 423, 577, 578)] == [
        True,
        False,
        False,
        True,
    ]


def test_the_overview_has_a_dot_for_each_judgement_and_a_mark_for_each_alpha() -> None:
    text = charts.p_values([("a/b", 0.5, 1e-9), ("c/d", 1.0, 1e-8), ("a/b", 0.0, 1e-9)], "all")
    assert [each for each in parsed(text).itertext() if "/" in each] == ["a/b", "c/d"]
    uses = re.findall(r"<use [^>]*var\(--(\w+)\)", text)
    assert sorted(each for each in uses if each != "line") == ["alarm"] * 3 + ["observed"] * 2
