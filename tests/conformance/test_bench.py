"""`bench`: what it finds, what it says of what cannot be had, its JSON, its tables."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from conformance import from_function
from conformance.measure import result, tables
from conformance.measure.baselines import TorchComposition
from conformance.measure.bench import WORKLOADS, bench
from conformance.measure.clock import KINDS, CpuClock
from conformance.measure.ratio import Ratio
from conformance.measure.result import Bench
from conformance.measure.session import READ
from conformance.measure.workload import Workload
from conformance.report import schema
from optimized import FlashInferSampling
from reference import ReferenceSampling
from tests.conformance.test_report_schema import objects

TOPK, LOG_PROBS, BOTH = "n2-V64-fp32-topk5", "n2-V64-fp32-none-logprobs", "n2-V64-fp32-topk5-topp0.9"
ROUNDS = 8


class AlwaysZero(TorchComposition):
    """Draws a token that top-k drops."""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros_like(super().sample_kernel(*args, **kwargs))


class Raising(TorchComposition):
    def sample_kernel(self, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        raise RuntimeError("no kernel\nfor <this> | batch")


class Misshapen(TorchComposition):
    """A result that can be kept, and not be checked."""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().sample_kernel(*args, **kwargs).double()[:, None]


class Armed(TorchComposition):
    """Raises once `when` says so, until it says otherwise; "once" lasts for one call."""

    when = ""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.when:
            Armed.when = self.when if self.when == "always" else ""
            raise RuntimeError("fired")
        return super().sample_kernel(*args, **kwargs)


@pytest.fixture(scope="module")
def found() -> result.Bench:
    """A run with everything in it."""
    samplers = {"right": ReferenceSampling, "torch": TorchComposition, "zero": AlwaysZero, "raising": Raising}
    return bench(samplers, [TOPK, LOG_PROBS], rounds=ROUNDS)


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    Armed.when = ""


def test_a_row_for_each_time_that_can_be_had(found: result.Bench) -> None:
    rows = {(row.case, row.sampler, row.kind): row for row in found.rows}
    names = {TOPK: (READ, "right", "torch", "zero"), LOG_PROBS: (READ, "right", "torch", "zero", "raising")}
    assert set(rows) == {(case, name, kind) for case in names for name in names[case] for kind in ("cold", "warm")}
    assert max(row.of_best or 0 for row in found.rows if (row.sampler, row.kind) == (READ, "cold")) == 1
    for (case, name, kind), row in rows.items():
        moved = Workload.of(case).read_bytes if name == READ else Workload.of(case).moved_bytes
        assert (row.moved_bytes, row.rate) == (moved, moved / row.seconds)
        assert row.of_best == moved / row.seconds / found.best_rate
        assert (row.over_read is None) == (name == READ)
        assert (row.over_first is None) == (name in {READ, "right"})
        for ratio in (row.over_read, row.over_first):
            assert ratio is None or (ratio.low <= ratio.value <= ratio.high and ratio.rounds == ROUNDS)
        assert rows[case, READ, kind].seconds > 0
    assert (found.kinds, found.rounds, found.device) == (["cold", "warm"], ROUNDS, "cpu")
    assert (found.interrupted, found.not_timed) == (False, [])
    assert found.samplers["torch"] == "conformance.measure.baselines:TorchComposition"


def test_calls_are_counted_and_checked(found: result.Bench) -> None:
    calls = {(each.case, each.sampler): each for each in found.calls}
    assert calls[TOPK, READ].counts is None
    for name in ("right", "torch", "zero"):
        counts = calls[TOPK, name].counts
        assert counts is not None
        assert counts.operations > 0
    assert [key for key, each in calls.items() if each.wrong] == [(TOPK, "zero")]
    finding, *_others = calls[TOPK, "zero"].wrong
    assert "one that the law allows" in finding.asked
    assert "outside" in finding.observed
    assert "may-keep set" in finding.allowed


def test_a_wrong_sampler_is_marked_everywhere(found: result.Bench) -> None:
    assert {(row.case, row.sampler) for row in found.rows if row.wrong} == {(TOPK, "zero")}
    assert result.exit_code(found.to_json()) == 1
    for sheet in tables.sheets(found.to_json()):
        (row,) = (row for row in sheet.rows if row[0] == TOPK)
        assert [tables.WRONG in cell for name, cell in zip(sheet.columns, row, strict=True) if "zero" in name] == [
            True for name in sheet.columns if "zero" in name
        ]
        assert not any(tables.WRONG in cell for row in sheet.rows if row[0] == LOG_PROBS for cell in row)
    first, *others = tables.remarks(found.to_json())
    assert first.startswith(f"WRONG: zero on {TOPK}: asked: every drawn id")
    assert first.endswith(" more like it)")  # a finding for each set of logits
    assert not any(tables.WRONG in line for line in others)
    # A wrong ratio is in no mean.
    assert [line.rpartition(":")[0] for line in tables.means(found.to_json())] == [
        "torch / right, cold, geometric mean of 2",
        "zero / right, cold, geometric mean of 1",
        "raising / right, cold, geometric mean of 1",
    ]


def test_where_the_first_is_wrong_all_ratios_are(found: result.Bench) -> None:
    report = found.to_json()
    report["samplers"] = dict(sorted(report["samplers"].items(), reverse=True))  # zero, torch, right, raising
    sheet = next(tables.sheets(report))
    row = dict(zip(sheet.columns, next(row for row in sheet.rows if row[0] == TOPK), strict=True))
    assert row["torch / zero"] == row["zero / read"] == row["zero GB/s"] == row["% of best read"] == "WRONG"


def test_a_sampler_that_raises_is_named_and_the_others_go_on(found: result.Bench) -> None:
    assert result.Missing(TOPK, "raising", "", "RuntimeError: no kernel for <this> | batch") in found.missing
    assert f"n/a: raising, {TOPK}: RuntimeError: no kernel for <this> | batch" in tables.remarks(found.to_json())
    alone = bench({"raising": Raising}, [TOPK], rounds=ROUNDS)
    assert result.exit_code(alone.to_json()) == 1
    assert alone.rows == []
    assert alone.to_json()["best_rate"] is None


def test_results_of_another_shape_are_wrong() -> None:
    found = bench({"odd": Misshapen}, [TOPK], kinds=["cold"], rounds=ROUNDS)
    ((finding,),) = (each.wrong for each in found.calls if each.sampler == "odd")
    assert finding.asked == "a call gives int64 [2]"
    assert result.exit_code(found.to_json()) == 1


@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize("when", ["always", "once"])
def test_what_is_raised_between_rounds_is_told_of_whom_it_can_be_told(when: str) -> None:
    def arm(number: int, _total: int, _what: str) -> None:
        Armed.when = when if number == 2 else Armed.when

    samplers = {"torch": TorchComposition, "armed": Armed}
    found = bench(samplers, [TOPK], kinds=["cold"], rounds=ROUNDS, progress=arm)
    told = [each for each in found.missing if each.case]
    if when == "always":
        assert told == [result.Missing(TOPK, "armed", "cold", f"RuntimeError: fired (timing armed on {TOPK} (cold))")]
        assert {row.sampler for row in found.rows} == {READ, "torch"}
    else:
        why = "one of them raised beside the others, and none alone: RuntimeError: fired"
        why += f" (timing armed on {TOPK} (cold))"
        assert told == [result.Missing(TOPK, "", "", why)]
        assert found.rows == []


@pytest.mark.usefixtures("disarmed")
def test_a_run_ends_where_cuda_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_clock: CpuClock) -> None:
        if broken:
            raise RuntimeError("an illegal memory access")

    broken: list[int] = []
    monkeypatch.setattr(CpuClock, "wait", wait)

    def break_it(number: int, _total: int, _what: str) -> None:
        if number == ROUNDS + 2:
            broken.append(number)
            Armed.when = "always"

    cases = [TOPK, BOTH, "n1-V64-fp32-none"]
    found = bench({"armed": Armed}, cases, kinds=["cold"], rounds=ROUNDS, progress=break_it)
    assert {row.case for row in found.rows} == {TOPK}
    assert found.not_timed == cases[1:]
    assert found.missing[-1].sampler in {READ, "armed"}
    assert found.missing[-1].why.endswith("This left CUDA broken: nothing more can be timed in its process")
    assert result.exit_code(found.to_json()) == 1
    assert "ended early, and not timed: " + ", ".join(cases[1:]) in tables.remarks(found.to_json())


@pytest.mark.parametrize("step", [0, 3, ROUNDS + 1], ids=["ready", "timing", "checking"])
def test_an_interruption_keeps_what_was_done(step: int) -> None:
    def interrupt(number: int, total: int, what: str) -> None:
        assert number < total == 2 * (ROUNDS + 2)
        if number == ROUNDS + 2 + step:
            assert what.startswith(BOTH)
            raise KeyboardInterrupt

    found = bench({"torch": TorchComposition}, [TOPK, BOTH], kinds=["cold"], rounds=ROUNDS, progress=interrupt)
    assert {(row.case, row.sampler) for row in found.rows} == {(TOPK, READ), (TOPK, "torch")}
    assert {each.case for each in found.calls} == {TOPK}
    assert (found.interrupted, found.not_timed, result.exit_code(found.to_json())) == (True, [BOTH], 1)
    assert tables.remarks(found.to_json())[-1] == f"interrupted, and not timed: {BOTH}"


def test_what_there_is_after_each_case_can_be_kept() -> None:
    kept: list[tuple[set[str], list[str], int]] = []

    def keep(found: Bench) -> None:
        kept.append(({row.case for row in found.rows}, list(found.not_timed), result.exit_code(found.to_json())))

    bench({"torch": TorchComposition}, [TOPK, BOTH], kinds=["cold"], rounds=ROUNDS, keep=keep)
    assert kept == [({TOPK}, [BOTH], 1)], "the last is what is returned"


def drawn(logits: torch.Tensor, *_parameters: Any) -> torch.Tensor:
    return logits.argmax(1)


@pytest.mark.parametrize(
    ("claims", "case", "why"),
    [
        ({"log_probs": "none"}, LOG_PROBS, "it claims no log-probs"),
        ({"refuses": {"both filters"}}, BOTH, "it refuses both filters at once"),
        ({"refuses": {"temperature 0"}}, "n2-V64-fp32-none-greedyrow", "no temperature is greedy by its claims"),
        ({"parameters_by": "row"}, "n2-V64-fp32-none-gather", "it takes parameters by the number of the row, "),
    ],
)
def test_what_cannot_be_had_by_the_claims_is_said(claims: dict[str, Any], case: str, why: str) -> None:
    found = bench({"mine": from_function(drawn, **claims)}, [case], rounds=ROUNDS)
    assert found.rows == []
    (told,) = (each for each in found.missing if each.case)
    assert (told.case, told.sampler, told.kind) == (case, "mine", "")
    assert told.why.startswith(why)


def test_kinds_that_the_device_lacks_are_said_unless_others_were_chosen(found: result.Bench) -> None:
    lacks = [result.Missing("", "", kind, "only a CUDA device has it") for kind in ("graph", "host")]
    assert [each for each in found.missing if not each.case] == lacks
    chosen = bench({"torch": TorchComposition}, [TOPK], kinds=["warm"], rounds=ROUNDS)
    assert chosen.missing == []
    assert {row.kind for row in chosen.rows} == {"warm"}
    assert chosen.to_json()["best_rate"] is None
    assert {row["of_best"] for row in chosen.to_json()["rows"]} == {None}


def test_graphs_and_the_host_are_timed_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuClock, "kinds", tuple(KINDS))  # as a CUDA device has them; a capture then raises
    found = bench({"torch": TorchComposition, "captured": FlashInferSampling}, [TOPK], rounds=ROUNDS)
    assert found.missing[0] == result.Missing("", "torch", "graph", "it claims no CUDA graphs")
    (raised,) = found.missing[1:]
    assert (raised.case, raised.sampler, raised.kind) == (TOPK, "captured", "graph")
    assert raised.why.startswith("ValueError: enable_cuda_graph must be False")
    assert {(row.sampler, row.kind) for row in found.rows if row.kind in {"graph", "host"}} == {
        (READ, "graph"), ("torch", "host"), ("captured", "host"),
    }  # fmt: skip
    for row in found.rows:
        if row.kind == "host":
            assert (row.over_read, row.moved_bytes, row.rate, row.of_best) == (None,) * 4
            assert (row.over_first is None) == (row.sampler == "torch")
    titles = [sheet.title.partition(":")[0] for sheet in tables.sheets(found.to_json())]
    assert titles == ["cold", "warm", "host", "counts of one call"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cases": ["n2"]}, "case must be n<slots>-V"),
        ({"cases": []}, "samplers and cases must not be empty"),
        ({"samplers": {}}, "samplers and cases must not be empty"),
        ({"samplers": {READ: TorchComposition}}, "samplers must leave the name 'read' to the bare read"),
        ({"rounds": 7}, "rounds must be at least 8, got 7"),
        ({"kinds": ["host"]}, r"time must be among \['cold', 'warm'\] on cpu, got \['host'\]"),
        ({"kinds": []}, r"time must be among \['cold', 'warm'\] on cpu, got \[\]"),
        ({"device": "gpu"}, "device must be a CPU or a CUDA device, got 'gpu'"),
    ],
    ids=["case", "no-case", "no-sampler", "read", "rounds", "host-on-cpu", "no-kind", "device"],
)
def test_wrong_arguments_are_refused(changes: dict[str, Any], said: str) -> None:
    arguments = {"samplers": {"torch": TorchComposition}, "cases": [TOPK], "rounds": ROUNDS, **changes}
    with pytest.raises(ValueError, match=said):
        bench(**arguments)


def test_named_sets_hold_workloads() -> None:
    assert list(WORKLOADS) == ["quick", "standard", "wide"]
    for ids in WORKLOADS.values():
        assert len(set(ids)) == len(ids)
        assert [Workload.of(each).id for each in ids] == list(ids)


def test_json_is_read_as_it_was_written_a_line_for_each_row(found: result.Bench, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    found.write(path)
    assert result.read(path) == found.to_json()
    lines = [
        json.loads(line.rstrip(",")) for line in path.read_text().splitlines() if line.startswith("{") and line[1:]
    ]
    assert [line for line in lines if "seconds" in line] == found.to_json()["rows"]
    assert [line for line in lines if "counts" in line] == found.to_json()["calls"]
    assert [line for line in lines if "why" in line] == found.to_json()["missing"]


def test_numbers_that_json_does_not_have_become_null(found: result.Bench, tmp_path: Path) -> None:
    ratio = Ratio(math.inf, math.nan, math.inf, ROUNDS)
    odd = replace(next(row for row in found.rows if row.over_first), over_first=ratio, of_best=math.nan)
    replace(found, rows=[odd], best_rate=math.nan).write(tmp_path / "report.json")
    report = result.read(tmp_path / "report.json")
    assert report["best_rate"] is report["rows"][0]["of_best"] is report["rows"][0]["over_first"]["value"] is None
    assert tables.means(report) == []
    assert tables.NONE in tables.markdown(report)


def test_what_is_no_report_is_refused_where_it_is_wrong(found: result.Bench, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for change, said in (
        ({"rounds": 3}, "breaks its schema at $.rounds: 3 is less than the minimum of 8"),
        ({"rows": [{}]}, "breaks its schema at $.rows[0]: 'case' is a required property"),
        ({"extra": 1}, "'extra' was unexpected"),
        ({"schema": 3}, "must have schema 1, got 3"),
    ):
        path.write_text(json.dumps({**found.to_json(), **change}))
        with pytest.raises(ValueError, match="report") as raised:
            result.read(path)
        assert said in str(raised.value)
    path.write_text("{}")
    with pytest.raises(ValueError, match="must hold a report of `python -m conformance bench --report`"):
        result.read(path)


def test_every_field_is_described_and_no_other_is_admitted() -> None:
    described = list(objects(json.loads(result.FORM.path.read_text(encoding="utf-8"))))
    assert len(described) == 7
    for each in described:
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
        for field in each["properties"].values():
            assert "$ref" in field or field["description"].endswith(".")
    assert schema.violation({}, result.FORM) == "$: 'schema' is a required property"


ENVIRONMENT = {
    "python": "3.12.3", "torch": "2.11.0", "machine": "x86_64", "gpu": "NVIDIA H200", "driver": "570.1",
    "SM clock": "1980 MHz", "temperature": "34",
}  # fmt: skip


def test_the_terminal_and_markdown_say_the_same(found: result.Bench) -> None:
    report = replace(
        found, environment=ENVIRONMENT, card_after={"SM clock": "1755 MHz"}, slow_floors=["read on x"], exposed=3
    ).to_json()
    console = Console(file=io.StringIO(), width=400)
    tables.show(report, console)
    shown, page = console.file.getvalue(), tables.markdown(report)  # type: ignore[attr-defined]
    for text in (shown, page):
        for part in (
            "NVIDIA H200, driver 570.1, torch 2.11.0, python 3.12.3", "SM clock 1980 MHz, then 1755 MHz",
            "; temperature 34", "8 rounds", TOPK, "torch / right", "right GB/s", "% of best read",
            "counts of one call: operations", "geometric mean of 2",
            "slow floor, so that ratios to it look better than they are: read on x",
            "3 timings hold time of the host", "graph: only a CUDA device has it",
        ):  # fmt: skip
            assert part in text
    assert "**WRONG**: zero on" in page
    assert "no kernel for &#60;this&#62; &#124; batch" in page
    header, rule, *rows = (line for line in page.splitlines() if line.startswith("|"))
    assert {line.count("|") for line in (header, rule, *rows[:2])} == {header.count("|")}


def test_a_gpu_has_more_kinds_and_counts(found: result.Bench) -> None:
    hosts = [
        replace(row, kind="host", over_read=None, moved_bytes=None, rate=None, of_best=None)
        for row in found.rows
        if row.kind == "cold" and row.sampler != READ
    ]
    calls = [
        replace(each, counts=each.counts and replace(each.counts, launches=4.0, syncs=0.5)) for each in found.calls
    ]
    cold, _, host, counts = tables.sheets(replace(found, rows=[*found.rows, *hosts], calls=calls).to_json())
    assert cold.title == "cold: each call reads logits that no cache holds"
    names = ["right", "torch", "zero", "raising"]
    assert host.columns == ["case", *(f"{name} us" for name in names), *(f"{name} / right" for name in names[1:])]
    assert counts.title == "counts of one call: operations / launches / syncs"
    assert counts.rows[0][1].endswith(" / 4 / 0.5")
