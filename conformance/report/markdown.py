"""A report as Markdown, for the summary of a CI job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from conformance.report import view

LIMIT = 60_000
"""Bytes. A comment on GitHub holds 65,536 characters, the summary of a step 1 MiB."""

_OF_CLAUSES, _OF_EXPECTED, _OF_PROBES = 15_000, 8_000, 2_000
"""Bytes of each list, so that failures are left with more than half."""

_LONGEST = 600
"""Characters of one text in a table or a judgement."""

_LONGEST_CODE = 3_000
"""Characters of a reproducer or traceback. The suite's own have at most six lines."""


def summary(report: dict[str, Any]) -> str:
    """Verdict, counts, failing clauses, each failure with its reproducer, and what else one should know.

    report: as `Report.to_json` gives it or `conformance.report.schema.load` reads it. The result is shorter than
    60,000 bytes; what was left out for that is counted.
    """
    clauses = view.clauses(report)
    mark = {"good": view.MARKS["pass"], "bad": view.MARKS["fail"]}.get(view.tone(report), view.MARKS["skip"])
    counts = ", ".join(f"{number} {what}" for number, what in view.numbers(report))
    line = (
        f"<code>{inert(report['sampler'])}</code> on {inert(report['device'])}, tier {inert(report['tier'])}, "
        f"spec {inert(report['spec'])}: {counts}. {report['seconds']:.1f} s, "
        f"false alarms at most {report['alpha']:.0e} a run."
    )
    parts = [f"## {mark} {inert(report['verdict'])}", line]
    if report["interrupted"]:
        parts.append("**The run was interrupted.**")
    failing = [clause for clause in clauses if clause.failures]
    rows = (f"| <code>{inert(each.id)}</code> | {_verdict(each)} | {inert(each.must)} |" for each in failing)
    after = [
        *_list("### Expected failures", _expected(report), _OF_EXPECTED),
        *_list("### Tried without being claimed", (f"- {inert(probe)}" for probe in view.probes(report)), _OF_PROBES),
        _rest(clauses),
    ]
    parts += _list("### Clauses that fail\n\n| clause | verdict | MUST |\n|---|---|---|", rows, _OF_CLAUSES)
    left = LIMIT - sum(_size(part) for part in (*parts, *after)) - 200  # 200: headings and what is left out
    # The first failure of each clause comes before the second of any.
    failures = sorted(((place, result) for each in failing for place, result in enumerate(each.failures)), key=_place)
    parts += _list("### Failures", (_failure(result) for _, result in failures), left, between="\n\n")
    return "\n\n".join([*parts, *after]) + "\n"


def _list(heading: str, items: Iterable[str], limit: int, between: str = "\n") -> list[str]:
    """A heading with as many items as fit into `limit` bytes, and how many do not; nothing without items."""
    kept: list[str] = []
    left_out = used = 0
    for item in items:
        used += _size(item) + len(between)
        if left_out or used > limit:
            left_out += 1
        else:
            kept.append(item)
    if not kept and not left_out:
        return []
    # A table's rows follow its head without an empty line.
    joined = ["\n".join([heading, *kept]) if heading.endswith("|") else "\n\n".join([heading, between.join(kept)])]
    return [*joined, f"*{left_out:,} more are left out here.*"] if left_out else joined


def _place(ranked: tuple[int, view.Json]) -> int:
    return ranked[0]


def _verdict(clause: view.ClauseView) -> str:
    return f"{view.MARKS[clause.verdict]} {clause.words}" + (" (proposed, not counted)" if clause.proposed else "")


def _failure(result: view.Json) -> str:
    lines = [f"<details><summary><code>{inert(result['id'])}</code></summary>", ""]
    if result["reason"]:
        lines += [f"{inert(result['status'])}: {inert(result['reason'])}", ""]
    for each in result["evidence"]:
        if not each["passed"]:
            lines += [f"- asked: {inert(each['asked'])}", f"- observed: {inert(each['observed'])}",
                      f"- allowed: {inert(each['allowed'])}"]  # fmt: skip
            if each["alpha"] is not None:
                lines.append(f"- {inert(view.chance(each))}")
            lines.append("")
    if result["error"]:
        lines += [_fenced(result["error"].rstrip()[-_LONGEST_CODE:], ""), ""]
    if result["reproducer"]:
        lines += [_fenced(result["reproducer"][:_LONGEST_CODE], "python"), ""]
    return "\n".join([*lines, "</details>"])


def _expected(report: view.Json) -> Iterable[str]:
    """One line for each reason, which names its link."""
    of_reason: dict[str, list[str]] = {}
    for result in report["results"]:
        if result["status"] == "expected failure":
            of_reason.setdefault(result["reason"], []).append(result["id"])
    for reason, ids in of_reason.items():
        more = f" and {len(ids) - 1:,} more" if len(ids) > 1 else ""
        yield f"- <code>{inert(ids[0])}</code>{more}: {inert(reason)}"


def _rest(clauses: list[view.ClauseView]) -> str:
    number = {verdict: sum(clause.verdict == verdict for clause in clauses) for verdict in view.SEVERITY}
    others = ", ".join(f"{number[each]:,} {each}" for each in ("pass", "not applicable", "skip") if number[each])
    return f"Other clauses: {others or 'none'}."


def inert(text: str) -> str:
    """On one line and without a meaning in Markdown or HTML; addresses become links."""
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    pieces = re.split(r"(https?://[^\s()<>|`\\\"]+)", text)
    return "".join(f"<{piece}>" if at % 2 else _escaped(piece) for at, piece in enumerate(pieces))


def _escaped(text: str) -> str:
    # An underscore within a word has no meaning.
    return re.sub(r"[&<>|*`\[\]~\\$@#]|(?<!\w)_|_(?!\w)", lambda found: f"&#{ord(found[0])};", text)


def _fenced(code: str, language: str) -> str:
    """In a fence that is longer than any in the code."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    return f"{fence}{language}\n{code}\n{fence}"


def _size(text: str) -> int:
    return len(text.encode())
