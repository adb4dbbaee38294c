"""Small errors before the suite, and before the test that kernel libraries use: a cosine similarity above 0.99.

``python -m tests.benchmarks.small_errors [--device cuda] [--markdown FILE]`` draws from real samplers with each error,
at V = 128,256; the cosine test gets five times the draws.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from conformance import Claims
from conformance.cases import Case, normal
from conformance.clauses import TIERS, plan
from conformance.clauses.law import judge_draws
from conformance.evidence.budget import ALPHA_FIXED_SEEDS
from conformance.evidence.counts import counts_of
from conformance.subject import Subject
from tests.conformance.tilted import TILTS, NeighboursParameters, make

WIDTH = 128_256
LOGITS = Case("normal", normal(1, WIDTH, 19), WIDTH, dtype="bf16")
"""Normal logits of standard deviation 2, rounded to bf16: half of the mass on some 1,300 tokens."""

REQUESTS = LOGITS.but(name="two-requests", temperature=(0.7, 1.0), rows=(0,) * 100, requests=(0, 1) * 50)
"""A hundred slots of two requests with one logits row."""

ALPHA = ALPHA_FIXED_SEEDS / sum(clause.statistical for clause, _ in plan(TIERS["full"])) / 2
"""What the last look of one check of tier "full" may spend."""

COSINE_DRAWS = 5

ERRORS: dict[str, tuple[Any, Case, int]] = {
    "none: a right sampler": (make(""), LOGITS, 10**7),
    **{
        name: (make(name), LOGITS, 10**7 if "signs" in name else 10**6)
        for name in (
            "temperature x 1.01",
            "lowest 0.3 % of mass never drawn",
            "even tokens -2 %, odd +2 %",
            "random signs of 3 %",
            "last partial tile dead",
        )
    },
    "one slot in a hundred with its neighbour's parameters": (NeighboursParameters, REQUESTS, 10**6),
}


def draw(subject: Subject, case: Case, draws: int) -> Tensor:
    """int64 [slots, draws / slots]."""
    sampler = subject.sampler(case.vocab_size, 1)
    repeats = -(-draws // case.slots)
    calls = [min(2**18, repeats - i) for i in range(0, repeats, 2**18)]
    return torch.cat([subject.call(sampler, case, n).view(n, case.slots) for n in calls]).T.contiguous()


def cosine(ids: Tensor, case: Case, subject: Subject) -> float:
    """The least cosine between how often tokens came and their probabilities, over the requests of the case."""
    law = case.law(subject.claims.options, subject.device)
    requests = case.pattern()[1].to(ids.device)
    counts = counts_of(ids, case.vocab_size).to(torch.float64)
    return min(
        float(torch.cosine_similarity(counts[requests == request].sum(0), law.probs[requests == request][0], dim=0))
        for request in requests.unique().tolist()
    )


def variation(name: str, case: Case, subject: Subject) -> str:
    """Total variation distance of the error, where the sampler is a tilt."""
    tilt = TILTS.get(name)
    if tilt is None:
        return "0" if name.startswith("none") else ""
    probs = case.law(subject.claims.options, subject.device).probs
    tilted = tilt(probs)
    return f"{float((tilted / tilted.sum() - probs).abs().sum() / 2):.2g}"


def rows(device: torch.device, console: Console) -> Iterable[list[str]]:
    """One line of the table each."""
    for name, (factory, case, draws) in track(ERRORS.items(), console=console, description="errors"):
        subject = Subject(factory, Claims(), device, name, "full")
        failed = [e for e in judge_draws(subject, case, draw(subject, case, draws), ALPHA) if not e.passed]
        worst = min(failed, key=lambda each: 1.0 if each.p_value is None else each.p_value, default=None)
        seen = "passes" if worst is None else f"FAILS: {worst.asked}, p = {worst.p_value:.1g}"
        similarity = cosine(draw(subject, case, COSINE_DRAWS * draws), case, subject)
        verdict = "passes" if similarity > 0.99 else "FAILS"
        yield [name, variation(name, case, subject), f"{draws:.0e}".replace("e+0", "e"), seen,
               f"{similarity:.5f}, {verdict}"]  # fmt: skip


def main() -> int:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    header = ["error", "total variation", "draws", "this suite", f"cosine at {COSINE_DRAWS} times the draws"]
    table = [header, ["---"] * len(header), *rows(torch.device(options.device), Console(stderr=True))]
    text = "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"
    print(text, end="")  # noqa: T201  # the command's output
    if options.markdown:
        options.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
