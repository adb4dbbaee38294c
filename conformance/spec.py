"""The specification as one page, made from the clauses: what is written there is what is checked."""

from __future__ import annotations

from itertools import groupby

from conformance.clauses import CLAUSES, TIERS, Clause
from conformance.subject import SPEC_VERSION

_GROUPS = {
    "calls": "How a sampler is called",
    "claims": "What claims decide",
    "coupling": "Single draws, of a documented random stream",
    "draw": "How often tokens are drawn",
    "errors": "Malformed calls",
    "graphs": "CUDA graphs",
    "greedy": "Greedy rows",
    "invalid": "Invalid rows",
    "isolation": "What a call must not touch or depend on",
    "log-probs": "Log-probs",
    "randomness": "Where randomness comes from, and where it goes",
    "temperature": "Temperature",
    "top-k": "Top-k",
    "top-p": "Top-p",
    "vocabulary": "Vocabulary",
}

_HEAD = """# Specification {version}

{count} clauses, each a MUST with an id, its source, and the check that holds it. This page is made by
`python -m conformance spec`; a test holds it to the code.

- **Sources.** `law n` is paragraph n of the law, which [`reference/law.py`](../reference/law.py) evaluates:
  1 vocabulary, 2 greedy rows, 3 temperature, 4 top-k, 5 top-p, 6 the draw and log-probs, 7 invalid rows,
  8 randomness, 9 nothing else moves. `contract` is [`reference/contract.py`](../reference/contract.py).
  `claims.x` is a field of [`Claims`](../conformance/claims.py): where a sampler claims another choice, the law with
  that choice takes the law's place.
- **Kind.** An exact check has no chance in it. A statistical one fails a right sampler with a probability that is its
  share of the run's budget ([evidence.md](evidence.md)).
- **Needs.** The claim without which the clause does not apply.
- **Proposed** clauses are reported, and not counted before the next version.
- **Cases** in the tiers {tiers}. `python -m conformance explain ID` shows them.

Versions: a new requirement enters as proposed; any change of clauses or cases changes the version, which is part of
every seed and of every report.
"""


def page() -> str:
    """The page, in Markdown."""
    lines = [_HEAD.format(version=SPEC_VERSION, count=len(CLAUSES), tiers=", ".join(TIERS))]
    clauses = sorted(CLAUSES.values(), key=lambda each: each.id)
    for group, members in groupby(clauses, lambda each: each.id.split("/")[0]):
        lines.append(f"## {_GROUPS[group]}\n")
        lines += [_entry(clause) for clause in members]
    return "\n".join(lines)


def _entry(clause: Clause) -> str:
    """One clause: id, requirement, and a line of what stands behind it."""
    counts = ", ".join(str(len(list(clause.cases(tier)))) for tier in TIERS.values())
    module = clause.check.__module__.replace(".", "/")
    facts = [
        f"source: {clause.source}",
        "statistical" if clause.statistical else "exact",
        f"cases: {counts}",
        f"check: [`{module.split('/')[-1]}.{clause.check.__name__}`](../{module}.py)",
    ]
    if clause.claim:
        facts.insert(2, f"needs: `{clause.claim}`")
    proposed = " *(proposed)*" if clause.proposed else ""
    return f"### {clause.id}{proposed}\n\n{clause.must}\n\n{'; '.join(facts)}\n"
