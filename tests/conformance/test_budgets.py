"""Files of budgets: what is read of them, what is refused, and how they are re-based."""

from pathlib import Path

import pytest

from conformance.measure import READ, Timed, Workload
from conformance.measure.budgets import SAMPLER, load, rebased

ROOT = Path(__file__).parents[2]

HEAD = """
sampler = "reference:ReferenceSampling"
device = "cpu"
"""
AGAINST = """
[against]
other = "conformance.measure.baselines:TorchComposition"
"""
RATIO = """
[[budget]]
case = "n2-V64-fp32-topk5"
time = "cold"
over = "other"
at_most = 2.5
reason = "because"
"""
CASES = RATIO.replace('over = "other"', 'over_case = "n2-V64-fp32-none"')
COUNT = """
[[budget]]
case = "n2-V64-fp32-topk5"
count = "operations"
at_most = 300
reason = "each costs"   # a comment that stays
fixed = true
"""


def write(path: Path, *parts: str) -> Path:
    file = path / "budgets.toml"
    file.write_text("".join(parts), encoding="utf-8")
    return file


def test_a_file_says_what_is_divided_by_what(tmp_path: Path) -> None:
    budgets = load(write(tmp_path, HEAD, AGAINST, RATIO, CASES, COUNT))
    topk, none = Workload.of("n2-V64-fp32-topk5"), Workload.of("n2-V64-fp32-none")
    assert [each.pair for each in budgets.budgets] == [
        (Timed(SAMPLER, topk, "cold"), Timed("other", topk, "cold")),
        (Timed(SAMPLER, topk, "cold"), Timed(SAMPLER, none, "cold")),
        None,
    ]
    assert [each.id for each in budgets.budgets] == [
        "n2-V64-fp32-topk5: cold / other",
        "n2-V64-fp32-topk5: cold / n2-V64-fp32-none",
        "n2-V64-fp32-topk5: operations",
    ]
    assert budgets.undecided == "pass"
    assert budgets.most_rounds >= budgets.rounds


@pytest.mark.parametrize("file", ["budgets-cpu.toml", "budgets-h200.toml"])
def test_the_committed_budgets_can_be_read(file: str) -> None:
    budgets = load(ROOT / "tests" / "benchmarks" / file)
    assert budgets.measured_on, "written by gate --rebase"
    assert any(each.over is not None for each in budgets.budgets)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((HEAD,), r"budget must be tables, each under \[\[budget\]\], at least one"),
        ((HEAD, "= 3"), "budgets must be TOML that can be read"),
        (('device = "cpu"', COUNT), "sampler must be given"),
        ((HEAD.replace("cpu", "tpu"), COUNT), r"device must be one of \['cpu', 'cuda'\], got 'tpu'"),
        ((HEAD, "rounds = 3", COUNT), "rounds must be an int of at least 8, got 3"),
        ((HEAD, "rounds = 16\nmost_rounds = 12", COUNT), "most_rounds must be at least rounds, 16, got 12"),
        ((HEAD, "margin = -5", COUNT), "margin must be a number of at least 0, got -5"),
        ((HEAD, 'undecided = "retry"', COUNT), r"undecided must be one of \['pass', 'fail'\], got 'retry'"),
        ((HEAD, "colour = 1", COUNT), r"keys must be among .* got \['colour'\]"),
        ((HEAD, AGAINST, COUNT), r"against must name samplers that some budget is over, got \['other'\]"),
        ((HEAD, AGAINST.replace("other", READ), COUNT), "with names other than 'read' and 'sampler'"),
        ((HEAD, "[against]\nother = 3", COUNT), "against must hold lines of name"),
        ((HEAD, RATIO), r"budget 1: over must be one of \['read'\], got 'other'"),
        ((HEAD, COUNT, COUNT), "budget 2: must not be that of 1, got 'n2-V64-fp32-topk5: operations'"),
        ((HEAD, COUNT.replace("300", "-1")), "budget 1: at_most must be a number of at least 0, got -1"),
        ((HEAD, COUNT.replace("300", "inf")), "at_most must be a number of at least 0, got inf"),
        ((HEAD, COUNT.replace('"each costs"', '" "')), "reason must be a line of text, got ' '"),
        ((HEAD, COUNT.replace("reason", "# reason")), "reason must be given"),
        ((HEAD, COUNT.replace("operations", "watts")), "count must be one of .* got 'watts'"),
        ((HEAD, COUNT.replace("operations", "syncs")), "count must be 'operations' on a CPU, got 'syncs'"),
        ((HEAD, COUNT, 'time = "cold"'), "it must have time and over, time and over_case, or count"),
        ((HEAD, COUNT.replace('count = "operations"', "")), "it must have time and over"),
        ((HEAD, CASES, 'over = "read"'), "it must have time and over"),
        ((HEAD, CASES.replace("cold", "graph")), r"time must be one of \['cold', 'warm'\] on cpu, got 'graph'"),
        ((HEAD, CASES.replace("topk5", "none")), "over_case must be another case, got 'n2-V64-fp32-none'"),
        ((HEAD, CASES.replace("topk5", "topk")), "case must be .* got 'n2-V64-fp32-topk'"),
        ((HEAD, CASES.replace("-none", "-nothing")), "case must be .* got 'n2-V64-fp32-nothing'"),
        (
            (HEAD.replace("cpu", "cuda"), RATIO.replace('"cold"', '"host"').replace("other", READ)),
            "time must not be 'host' over 'read'",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path: Path, parts: tuple[str, ...], says: str) -> None:
    file = write(tmp_path, "\n".join(parts))
    with pytest.raises(ValueError, match=says) as error:
        load(file)
    assert str(file) in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budgets must be TOML that can be read"):
        load(tmp_path / "none.toml")


def test_rebasing_changes_numbers_and_nothing_else(tmp_path: Path) -> None:
    text = f'# What this is.\n{HEAD}measured_on = "elsewhere"\n{AGAINST}{RATIO}{CASES}{COUNT}'
    budgets = load(write(tmp_path, text))
    changed = rebased(budgets, {1: 3.25, 3: 241.0}, "here")
    by_hand = text.replace("2.5", "3.25", 1).replace("300", "241").replace("elsewhere", "here")
    assert changed == by_hand


def test_rebasing_a_file_that_does_not_say_where_it_was_measured_adds_that(tmp_path: Path) -> None:
    changed = rebased(load(write(tmp_path, HEAD, CASES)), {}, "here")
    assert load(write(tmp_path, changed)).measured_on == "here"
