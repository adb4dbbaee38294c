"""Files of expected failures: what a sampler is known to do wrong, each with a reason and a link.

    [[expected-failure]]
    match = "top-k/ties"            # a clause, or one check, as "top-k/ties/tied-k-n5-V6-fp32"
    reason = "keeps exactly k"
    link = "https://example.org/issues/7"
    until = "2027.4"                # optional: from this version of the spec on, the entry is an error
    tier = "quick"                  # optional: the entry counts in this tier alone
    device = "cpu"                  # optional: the entry counts on this kind of device alone, "cpu" or "cuda"

Every check that an entry names must fail, so that a fault that is mended is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.clauses import TIERS
from conformance.report import Result
from conformance.subject import SPEC_VERSION
from conformance.toml_file import Keys, check_keys, read


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


_LINE = (_matches(r".*\S.*"), "a line of text")
_REQUIRED: Keys = {
    "match": _LINE,
    "reason": _LINE,
    "link": (_matches(r"https?://\S+"), "an address, http://... or https://..."),
}
_KEYS: Keys = {
    **_REQUIRED,
    "until": (_matches(r"\d+\.\d+"), f"a version of the spec, such as {SPEC_VERSION!r}"),
    "tier": (_matches("|".join(TIERS)), f"one of {sorted(TIERS)}"),
    "device": (_matches("cpu|cuda"), "one of ['cpu', 'cuda']"),
}


@dataclass(frozen=True)
class Entry:
    """One expected failure. The fields are the keys of the file; `number` counts the entries from 1."""

    number: int
    match: str
    reason: str
    link: str
    until: str | None = None
    tier: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class ExpectedFailures:
    """What a file expects."""

    path: Path
    entries: tuple[Entry, ...]

    def reasons(self, checks: Iterable[tuple[str, str, bool]], tier: str, device: str) -> dict[str, str]:
        """Reason and link by the id of each check that must fail in a run on that tier and kind of device.

        checks: id, clause, and whether it applies, of every check of the plan.
        Raises ValueError for an entry that matches no check, or none that applies, and for a check that two match.
        """
        checks = list(checks)
        by: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.tier not in {None, tier} or entry.device not in {None, device}:
                continue
            named = [(id, applies) for id, clause, applies in checks if entry.match in {id, clause}]  # noqa: A001
            if not named:
                raise self._wrong(entry.number, "match", entry.match, f"a clause or a check of tier {tier!r}")
            if not any(applies for _, applies in named):
                raise self._wrong(
                    entry.number, "match", entry.match,
                    f"what applies to this sampler on {device}; an entry can be kept for one `device` or `tier`",
                )  # fmt: skip
            for each, applies in named:
                if each in by:
                    allowed = f"what no other entry matches; entry {by[each].number} matches {each!r} too"
                    raise self._wrong(entry.number, "match", entry.match, allowed)
                if applies:
                    by[each] = entry
        return {each: f"{entry.reason} ({entry.link})" for each, entry in by.items()}

    def _wrong(self, number: int, key: str, value: Any, allowed: str) -> ValueError:
        return _wrong(self.path, number, key, value, allowed)


def load(path: str | Path) -> ExpectedFailures:
    """Read a file of expected failures.

    Raises ValueError, with file, entry, key, value and what is allowed, for whatever is wrong with it.
    """
    path = Path(path)
    data = read(path, "expected_failures")
    entries = data.pop("expected-failure", [])
    if data:
        raise ValueError(f"{path}: keys must be [[expected-failure]] alone, got {sorted(data)}")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: expected-failure must be tables, each under [[expected-failure]], got {entries!r}")
    return ExpectedFailures(path, tuple(_entry(path, number, entry) for number, entry in enumerate(entries, 1)))


def settle(result: Result, reasons: Mapping[str, str]) -> Result:
    """The result as the file has it: a failure may be expected, and a pass may not. Other statuses stay."""
    status = {"fail": "expected failure", "pass": "unexpected pass"}.get(result.status)
    reason = reasons.get(result.id)
    return result if status is None or reason is None else replace(result, status=status, reason=reason)


def _entry(path: Path, number: int, values: dict[str, Any]) -> Entry:
    check_keys(f"{path}: entry {number}", values, _KEYS, _REQUIRED)
    entry = Entry(number, **values)
    if entry.until is not None and _version(entry.until) <= _version(SPEC_VERSION):
        raise _wrong(path, number, "until", entry.until, f"later than {SPEC_VERSION}, the spec's version: it expired")
    return entry


def _wrong(path: Path, number: int, key: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{path}: entry {number}: {key} must be {allowed}, got {value!r}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
