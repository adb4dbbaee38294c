"""Clauses on where the randomness comes from and where it goes (law 8)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance import generators
from conformance.cases import Case, for_each_mix, normal, values
from conformance.clauses import Tier, clause, needs_memory
from conformance.evidence import Evidence, exact, pit
from conformance.evidence.counts import Cells, binomial, matches
from conformance.evidence.support import support
from conformance.idiom import in_terms_of
from conformance.subject import Subject
from reference.law import sum_error

FLAT = Case("flat", "torch.zeros(1, 1000).index_fill(1, torch.tensor([7]), -inf)", 1000, rows=(0,), requests=(0,))
"""999 tokens, each as likely as any other: equal random numbers show as equal tokens, others once in 999."""

FILTERS = {"none": (0, 0.0), "top-p": (0, 0.9999), "top-k": (999, 0.0), "both": (999, 0.9999)}
"""Filters that are on and keep all 999, by whatever rule an engine breaks ties: so all routes have one law."""


def _flat(tier: Tier) -> Iterator[Case]:
    for name, (top_k, top_p) in FILTERS.items():
        yield FLAT.but(name=f"flat-{name}", top_k=(top_k,), top_p=(top_p,), draws=tier.draws // 8)


def _varied(tier: Tier) -> Iterator[Case]:
    temperature = tuple(0.0 if i == 3 else 0.5 + 0.2 * i for i in range(8))
    yield from for_each_mix(Case("varied", normal(8, 1000, 12), 1000, temperature, draws=tier.large_draws // 2))


@clause(
    "randomness/reproducible",
    "Same generator state, same inputs: same tokens, whatever other generators hold: torch's, NumPy's and Python's.",
    "law 8",
    _varied,
)
def _reproducible(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    seed = subject.seed_of(case.id)
    first, second = (subject.draw(case, case.draws, seed=seed) for _ in range(2))
    differ = int((first != second).sum())
    yield exact("two samplers with one seed", passed=differ == 0, observed=f"{differ} of {first.numel()} differ",
                allowed="none")  # fmt: skip
    sampler = subject.sampler(case.vocab_size, seed)
    rng = subject.rng(sampler)
    before = rng.get_state()
    once = subject.call(sampler, case, 4)
    rng.set_state(before)
    again = subject.call(sampler, case, 4)
    yield exact("the generator set back", passed=bool((once == again).all()),
                observed=f"{int((once != again).sum())} of {once.numel()} differ", allowed="none")  # fmt: skip
    with generators.kept():
        tokens = [_beside_other_generators(subject, case, seed, other) for other in (1, 2)]
    differ = int((tokens[0] != tokens[1]).sum())
    yield exact("other generators in two states", passed=differ == 0,
                observed=f"{differ} of {tokens[0].numel()} differ", allowed="none")  # fmt: skip


def _beside_other_generators(subject: Subject, case: Case, seed: int, other: int) -> Tensor:
    """Tokens of a sampler made and called while all generators but the claimed one are seeded with `other`."""
    random.seed(other)
    np.random.seed(other)  # noqa: NPY002  # the global state is what a sampler must not read
    torch.manual_seed(other)
    if subject.claims.generator == "own":
        return subject.call(subject.sampler(case.vocab_size, seed), case, 64)
    sampler = subject.sampler(case.vocab_size, other)
    torch.manual_seed(seed)
    return subject.call(sampler, case, 64)


@clause(
    "randomness/seeds",
    "Different seeds give independent tokens.",
    "law 8",
    _flat,
    statistical=True,
)
def _seeds(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    one, other = (subject.draw(case, case.draws, seed=subject.seed_of(case.id, which)) for which in (1, 2))
    yield from _pairs(subject, case, [("tokens of two seeds", one[0], other[0])], alpha)


@clause(
    "randomness/steps",
    "Calls are independent: no call repeats or shifts the numbers of another.",
    "law 8",
    _flat,
    statistical=True,
)
def _steps(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    # Rows i + lag of a call and i of the next meet where the generator advances too little; a call may also
    # repeat the last one whole. All lags, for calls 0-1, 2-3, ... and 1-2, 3-4, ...: in each, every draw
    # belongs to one pair.
    width, steps = 64, 64
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    ids = torch.stack([subject.call(sampler, case, width) for _ in range(steps)])
    lags = range(1 - width, width)
    for parity, name in ((0, "even"), (1, "odd")):
        one, other = ids[parity : steps - 1 : 2], ids[parity + 1 :: 2]
        cells = []
        for lag in lags:
            earlier, later = (one[:, lag:], other[:, : width - lag]) if lag >= 0 else (one[:, :lag], other[:, -lag:])
            cells.append((f"row i + {lag} of an {name} call and row i of the next", earlier, later))
        # Any dependence between equal rows and their neighbours; at all other lags equal numbers are what to look for.
        yield from _pairs(subject, case, cells, alpha / 2, near=cells[width - 2 : width + 1])


@clause(
    "randomness/rows",
    "Rows of one call are independent, also when they sample one logits row.",
    "law 8",
    _flat,
    statistical=True,
)
def _rows(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    per_call, _ = subject.launches(case, case.draws)
    ids = subject.draw(case, case.draws)[0].view(-1, per_call)
    cells = []
    lag = 1
    while 2 * lag <= per_call:
        blocks = ids[:, : per_call // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
        cells.append((f"rows i and i + {lag}", blocks[:, 0], blocks[:, 1]))
        lag *= 2
    yield from _pairs(subject, case, cells, alpha)


@clause(
    "randomness/routes",
    "Calls with different filters are independent too, in any order.",
    "law 8",
    lambda tier: [FLAT.but(name="alternating", draws=tier.draws // 4)],
    statistical=True,
)
def _routes(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    filters = FILTERS.values()
    routes = [in_terms_of(subject.claims, case.but(top_k=(top_k,), top_p=(top_p,))) for top_k, top_p in filters]
    width, rounds = 256, max(4, min(16, case.draws // 4096))
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    pairs = [(one, other) for one in range(4) for other in range(4)]
    seen: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {pair: [] for pair in pairs}
    for _ in range(rounds):
        for pair in pairs:
            first, second = (subject.call(sampler, routes[route], width) for route in pair)
            seen[pair].append((first, second))
    first, second = (torch.cat([torch.stack([p[i] for p in seen[pair]]) for pair in pairs]) for i in range(2))
    yield from _pairs(subject, case, [("consecutive calls of all pairs of routes", first, second)], alpha)


@clause(
    "randomness/shared-generator",
    "Numbers that torch draws from the same generator, before or after a call, are independent of the tokens.",
    "law 8",
    lambda tier: list(for_each_mix(Case("shared", "torch.zeros(1, 16)", 16, draws=tier.draws // 4))),
    statistical=True,
)
def _shared(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    rng = subject.rng(sampler)
    width, rounds = 1024, max(4, min(128, case.draws // 1024))
    tokens, numbers = [], []
    for _ in range(rounds):
        tokens.append(subject.call(sampler, case, width))
        numbers.append(torch.rand(width, generator=rng, device=rng.device).to(subject.device))
    law = case.law(subject.claims.options, subject.device)
    values = pit.transform(torch.stack(tokens).view(1, -1), law, subject.seed_of(case.id, "inside")).view(-1, width)
    uniforms = torch.stack(numbers).to(torch.float64)
    pairs = [
        ("tokens and the numbers after them", values, uniforms),
        ("tokens and the numbers before them", values[1:], uniforms[:-1]),
        ("tokens and the numbers after them, a row on", values[:, 1:], uniforms[:, :-1]),
        ("tokens and the numbers after them, a row back", values[:, :-1], uniforms[:, 1:]),
    ]
    # torch's uniforms have 24 bits.
    slack = pit.slack(law) + 2.0**-24
    yield from pit.independent("torch's numbers", pairs, slack, alpha, subject.seed_of(case.id, "judge"))


def _wide(_tier: Tier) -> list[Case]:
    # So many rows are fewer draws than any sampler may ask to be spared: nothing cuts the call short.
    width = 128_256
    return [Case("wide", f"torch.zeros(1, {width})", width, draws=2 * (2**32 // width))]


@clause(
    "randomness/wide-launch",
    "Rows beyond 2^32 / V of one call have numbers of their own: no row offset wraps around.",
    "law 8",
    _wide,
    statistical=True,
    not_applicable=lambda subject: needs_memory(subject, 64),
)
def _wide_launch(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    ids = subject.call(subject.sampler(case.vocab_size, subject.seed_of(case.id)), case, case.draws)
    law = case.law(subject.claims.options, subject.device)
    yield support(ids[None], law)
    # Where element b * V + t of the batch is addressed by 32 bits, row b + a and row b meet, a the whole or next number
    # of rows in 2^32 elements: at equal tokens if rows wrap, at tokens moved by the remainder if noise does.
    names, same, likely = [], [], []
    for lag in (2**32 // case.vocab_size, 2**32 // case.vocab_size + 1):
        shift = 2**32 - lag * case.vocab_size
        pairs = ids[lag:], ids[: len(ids) - lag]
        first, second = (rows[: 2**32 // case.vocab_size] for rows in pairs)
        for by in (0, shift):
            names.append(f"row b + {lag} gives the token of row b and {by}")
            same.append((int((first == second + by).sum()), len(first)))
            likely.append((case.vocab_size - abs(by)) / case.vocab_size**2)
    # However the rows are rounded, two are equal no more often than the likeliest token comes: its mass lies
    # between two steps of the CDF, each off by sum_error / 2 and by the grid of u.
    probability = np.array(likely) + sum_error(case.vocab_size) + 2 * law.grid
    counts, trials = np.array(same).T
    yield binomial(
        "rows far apart are equal, or shifted, no more often than chance has it",
        Cells(names, counts, trials, np.zeros(len(names)), probability),
        alpha,
    )


@clause(
    "randomness/advance",
    "A call advances the generator by an amount that n alone fixes, whatever the batch holds.",
    "law 8",
    lambda _tier: [Case("advance", values([1.0, 3.0, 2.0, 0.0]), 4, rows=(0,), requests=(0,))],
)
def _advance(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    batches = {
        "none": case,
        "all greedy": case.but(temperature=(0.0,)),
        "k = 1": case.but(top_k=(1,)),
        "top-p": case.but(top_p=(0.5,)),
        "top-k": case.but(top_k=(2,)),
        "both": case.but(top_k=(2,), top_p=(0.5,)),
        "one-hot": case.but(code=values([1.0, 900.0, 2.0, 0.0])),
        "invalid": case.but(code=values([1.0, float("nan"), 2.0, 0.0])),
    }
    if not subject.serves_invalid_rows():
        del batches["invalid"]
    batches = {name: in_terms_of(subject.claims, batch) for name, batch in batches.items()}
    for repeats in (1, 7, 64):
        states: dict[str, Any] = {}
        for name, batch in batches.items():
            sampler = subject.sampler(4, subject.seed_of(case.id))
            rng = subject.rng(sampler)
            before = rng.get_state()
            subject.call(sampler, batch, repeats)
            states[name] = rng.get_state()
        moved = not torch.equal(before, states["none"])
        differ = [name for name, state in states.items() if not torch.equal(state, states["none"])]
        yield exact(f"generator after n = {repeats}", passed=moved and not differ,
                    observed=f"moved: {moved}; elsewhere than for 'none': {differ}",
                    allowed="moved, and the same for every batch")  # fmt: skip


@clause(
    "randomness/default-generators",
    "torch's default generators stay untouched.",
    "law 8",
    _varied,
    not_applicable=lambda subject: (
        None if subject.claims.generator == "own" else "the sampler draws from the global generator"
    ),
)
def _default(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    def states() -> list[Tensor]:
        cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
        return [torch.get_rng_state(), *cuda]

    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    subject.call(sampler, case)
    before = states()
    subject.call(sampler, case)
    subject.log_probs(sampler, case.logits(subject.device), subject.context(case))
    after = states()
    moved = [name for name, a, b in zip(("CPU", "CUDA"), before, after, strict=False) if not torch.equal(a, b)]
    yield exact("default generators", passed=not moved, observed=f"moved: {moved}", allowed="none")


def _pairs(
    subject: Subject,
    case: Case,
    cells: list[tuple[str, Tensor, Tensor]],
    alpha: float,
    near: list[tuple[str, Tensor, Tensor]] | None = None,
) -> Iterator[Evidence]:
    """Each list of pairs is independent; the case's slots share one law that no tie rule changes.

    near: the lists to be looked at for dependence of any shape, beside equal tokens; all of them by default.
    """
    law = case.law(subject.claims.options, subject.device)
    same = [(name, int((one == other).sum()), one.numel()) for name, one, other in cells]
    yield matches(same, law, alpha / 2)

    def transformed(ids: Tensor, *which: object) -> Tensor:
        return pit.transform(ids.reshape(1, -1), law, subject.seed_of(case.id, *which))[0]

    pairs = [
        (name, transformed(one, name, 0), transformed(other, name, 1))
        for name, one, other in (cells if near is None else near)
    ]
    yield from pit.independent("pairs of draws", pairs, pit.slack(law), alpha / 2, subject.seed_of(case.id, "judge"))
