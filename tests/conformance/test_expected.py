"""Files of expected failures: what they change, and every way in which they can be wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import check
from conformance.expected import load, settle
from conformance.runner import Run
from conformance.subject import SPEC_VERSION
from reference import ReferenceSampling
from tests.conformance.samplers import PlainSampling, make

LINK = "https://example.org/issues/7"
CROSSING = "top-p/crossing-token/each-gap-n8-V8-fp32"


def write(folder: Path, *entries: dict[str, Any]) -> Path:
    """A file with these entries, each on top of one that is right; without the keys that are None."""
    path = folder / "expected.toml"
    right = {"match": "top-k/ties", "reason": "keeps exactly k", "link": LINK}
    lines = []
    for entry in entries:
        lines += ["[[expected-failure]]"]
        lines += [f"{key} = {value!r}" for key, value in (right | entry).items() if value is not None]
    path.write_text("\n".join(lines))
    return path


def test_an_expected_failure_fails_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    report = check(make("exactly-k"), only=["top-k/ties", "calls/empty"], expected_failures=path)
    by_clause = {result.clause: result for result in report.results}
    tied = by_clause["top-k/ties"]
    assert tied.status == "expected failure"
    assert tied.reason == f"keeps exactly k ({LINK})"
    assert tied.failed
    assert tied.reproducer
    assert by_clause["calls/empty"].status == "pass"
    assert report.exit_code == 0
    assert check(make("exactly-k"), only=["top-k/ties"]).exit_code == 1


def test_every_check_that_an_entry_names_must_fail(tmp_path: Path) -> None:
    report = check(ReferenceSampling, only="top-k/ties", expected_failures=write(tmp_path, {}))
    assert {(each.status, each.reason) for each in report.results} == {
        ("unexpected pass", f"keeps exactly k ({LINK})"),
    }
    assert report.exit_code == 1


def test_an_entry_may_name_one_check(tmp_path: Path) -> None:
    report = check(
        make("drops-crossing-token"),
        only="top-p/crossing-token",
        expected_failures=write(tmp_path, {"match": CROSSING}),
    )
    assert [each.id for each in report.results if each.status == "expected failure"] == [CROSSING]
    assert {each.status for each in report.results if each.id != CROSSING} <= {"pass", "fail"}


def test_a_crash_may_be_expected(tmp_path: Path) -> None:
    class Crashing(PlainSampling):
        def sample_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            if args[1]:
                raise SystemExit(3)
            return super().sample_kernel(*args, **kwargs)

    path = write(tmp_path, {"match": "top-p/crossing-token"})
    report = check(Crashing, only="top-p/crossing-token", expected_failures=path)
    assert {each.status for each in report.results} == {"expected failure"}
    assert all("SystemExit: 3" in each.error for each in report.results)
    lost = Run(ReferenceSampling, expected_failures=path).lost(CROSSING, "the process died", 1.0)
    assert lost.status == "expected failure"


@pytest.mark.parametrize("status", ["skip", "not applicable"])
def test_what_was_not_checked_stays_so(status: str) -> None:
    result = Run(ReferenceSampling).lost(CROSSING, "", 0.0)
    vars(result)["status"] = status
    assert settle(result, {CROSSING: "expected"}) is result


@pytest.mark.parametrize(("key", "here", "elsewhere"), [("tier", "quick", "full"), ("device", "cpu", "cuda")])
def test_an_entry_may_count_in_one_tier_or_on_one_kind_of_device(
    tmp_path: Path, key: str, here: str, elsewhere: str
) -> None:
    for value, status in ((here, "expected failure"), (elsewhere, "fail")):
        path = write(tmp_path, {key: value})
        report = check(make("exactly-k"), only="top-k/ties", expected_failures=path)
        assert {each.status for each in report.results} == {status}


def test_an_entry_for_another_part_of_the_plan_is_none_too_many(tmp_path: Path) -> None:
    report = check(ReferenceSampling, only="calls/empty", expected_failures=write(tmp_path, {}))
    assert {each.status for each in report.results} == {"pass"}


def test_an_empty_file_expects_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path)).entries == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[expected-failure]", "must be TOML that can be read"),
        ("\xff", "must be TOML that can be read"),
        ("[[expected-failures]]", "keys must be [[expected-failure]] alone, got ['expected-failures']"),
        ("expected-failure = 3", "expected-failure must be tables, each under [[expected-failure]], got 3"),
        ("expected-failure = [3]", "expected-failure must be tables, each under [[expected-failure]], got [3]"),
    ],
    ids=["toml", "utf-8", "key", "number", "numbers"],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{re.escape(message)}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no-such\.toml: expected_failures must be TOML that can be read"):
        load(tmp_path / "no-such.toml")


@pytest.mark.parametrize("key", ["match", "reason", "link"])
def test_an_entry_without_a_required_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=rf"entry 2: {key} must be given, got \{{"):
        load(write(tmp_path, {"match": "calls/empty"}, {key: None}))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"matches": "top-k/ties"}, "keys must be among ['match', 'reason', 'link', 'until', 'tier', 'device']"),
        ({"match": 3}, "match must be a line of text, got 3"),
        ({"reason": " "}, "reason must be a line of text, got ' '"),
        ({"link": "issue 7"}, "link must be an address, http://... or https://..., got 'issue 7'"),
        ({"until": "soon"}, f"until must be a version of the spec, such as {SPEC_VERSION!r}, got 'soon'"),
        ({"until": 2027.4}, f"until must be a version of the spec, such as {SPEC_VERSION!r}, got 2027.4"),
        ({"until": SPEC_VERSION}, f"until must be later than {SPEC_VERSION}, the spec's version: it expired"),
        ({"until": "2026.11"}, f"until must be later than {SPEC_VERSION}, the spec's version: it expired"),
        ({"tier": "huge"}, "tier must be one of ['deep', 'full', 'quick'], got 'huge'"),
        ({"device": "gpu"}, "device must be one of ['cpu', 'cuda'], got 'gpu'"),
    ],
    ids=lambda value: "-".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_a_wrong_entry_is_named(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    path = write(tmp_path, {"match": "calls/empty"}, entry)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: entry 2: {message}')}"):
        load(path)


def test_a_later_version_is_later_by_numbers(tmp_path: Path) -> None:
    year, _, number = SPEC_VERSION.partition(".")
    assert load(write(tmp_path, {"until": f"{year}.{int(number) + 9}"})).entries


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"match": "top-k"}], "entry 1: match must be a clause or a check of tier 'quick', got 'top-k'"),
        ([{"match": "graphs/replay-law"}], "entry 1: match must be what applies to this sampler on cpu"),
        (
            [{"match": CROSSING}, {"match": "top-p/crossing-token"}],
            f"entry 2: match must be what no other entry matches; entry 1 matches {CROSSING!r} too",
        ),
        ([{}, {}], "entry 2: match must be what no other entry matches; entry 1 matches 'top-k/ties/"),
    ],
    ids=["group", "not-applicable", "overlap", "twice"],
)
def test_an_entry_that_does_not_fit_the_plan_is_refused(
    tmp_path: Path, entries: list[dict[str, Any]], message: str
) -> None:
    path = write(tmp_path, *entries)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        check(ReferenceSampling, only="calls/empty", expected_failures=path)
