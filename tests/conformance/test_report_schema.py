"""The schema of reports: what it admits, what it refuses, and how that is said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import Claims, Report
from conformance.report import schema
from tests.conformance import reports

Json = dict[str, Any]
SCHEMA: Json = json.loads(schema.PATH.read_text(encoding="utf-8"))


def objects(node: Any) -> Iterator[Json]:
    """Every object that the schema describes."""
    if isinstance(node, dict):
        if "properties" in node:
            yield node
        for each in node.values():
            yield from objects(each)


def statistical(data: Json) -> Json:
    """The first judgement with a p-value."""
    found: Json = next(each for result in data["results"] for each in result["evidence"] if each["p_value"] is not None)
    return found


@pytest.mark.parametrize(
    "make",
    [reports.right, reports.broken, reports.crashed, reports.interrupted, reports.with_every_status],
    ids=lambda make: make.__name__,
)
def test_reports_of_real_runs_are_read_as_they_were_written(make: Callable[[], Report], tmp_path: Path) -> None:
    report = make()
    report.write(tmp_path / "report.json")
    assert schema.load(tmp_path / "report.json") == report.to_json()


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lambda data: data.pop("spec"), "$: 'spec' is a required property"),
        (lambda data: data.update(extra=1), "$: Additional properties are not allowed ('extra' was unexpected)"),
        (lambda data: data["results"][0].update(status="failed"), "$.results[0].status: 'failed' is not one of"),
        (lambda data: data["results"][0].pop("must"), "$.results[0]: 'must' is a required property"),
        (lambda data: statistical(data).update(p_value=2), "p_value: 2 is greater than the maximum of 1"),
        (lambda data: statistical(data).update(why=""), "'why' was unexpected"),
        (lambda data: statistical(data)["chart"].update(kind="pie"), ".chart"),
        (lambda data: statistical(data)["chart"].update(left_out=-1), "chart.left_out: -1 is less than the minimum"),
        (lambda data: data["claims"].update(top_k_ties="most"), "$.claims.top_k_ties: 'most' is not one of"),
        (lambda data: data["counts"].update(run=True), "$.counts.run: True is not of type 'integer'"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused_where_it_is_wrong(
    breaks: Callable[[Json], object], said: str, tmp_path: Path
) -> None:
    data = reports.right().to_json()
    breaks(data)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="breaks its schema") as raised:
        schema.load(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "must be a file that can be read"),
        ("{", "must hold JSON"),
        ('{"schema": NaN}', "NaN is no number in JSON"),
        ("[" * 10**5, "must hold JSON"),
        ("\udcff", "must hold JSON"),
        ("[]", "must hold a report"),
        ('{"verdict": "conformant"}', "must hold a report"),
        ('{"schema": 2}', "must have schema 3, got 2"),
    ],
    ids=["none", "cut", "nan", "deep", "bytes", "list", "other", "old"],
)
def test_files_that_hold_no_report_are_named(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="report") as raised:
        schema.load(path)
    assert said in str(raised.value)
    assert repr(str(path)) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    report = reports.right()
    evidence = replace(report.results[0].evidence[1], p_value=float("nan"), detectable=float("inf"))
    report = replace(report, results=[replace(report.results[0], evidence=[evidence])])
    report.write(tmp_path / "report.json")
    (read,) = schema.load(tmp_path / "report.json")["results"][0]["evidence"]
    assert (read["p_value"], read["detectable"]) == (None, None)
    assert read["alpha"] == evidence.alpha


def test_every_field_is_described_and_no_other_is_admitted() -> None:
    described = list(objects(SCHEMA))
    assert len(described) == 9
    for each in described:
        assert each["additionalProperties"] is False
        for field in each["properties"].values():
            assert "$ref" in field or field["description"].endswith(".")


def test_claims_and_counts_are_those_of_the_code() -> None:
    assert list(SCHEMA["$defs"]["claims"]["properties"]) == list(Claims().to_json())
    assert list(SCHEMA["$defs"]["counts"]["properties"]) == list(reports.right().counts)


def test_without_jsonschema_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    schema._validator.cache_clear()
    with pytest.raises(ValueError, match=r"pip install 'sampling-conformance\[report\]'"):
        schema.violation({})
