"""Clauses on log-probs (law 6 and the contract)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from conformance.cases import Case, for_each_mix, normal, probabilities, values
from conformance.clauses import Tier, clause, needs_slots
from conformance.clauses.law import BETWEEN_PREFIXES, EIGHT, row_kinds
from conformance.evidence import Evidence, exact
from conformance.evidence.log_probs import invariants, match_law, tolerance
from conformance.subject import Subject

_SMALL_SHAPES = ((2048, 1), (512, 2), (16, 3), (1, 1000), (7, 4096), (8, 4096))
_LARGE_SHAPES = (
    (16, 32_000), (8, 50_257), (7, 57_344), (16, 57_345), (8, 128_256), (16, 131_072), (7, 151_936), (7, 262_144),
    (1, 128_256), (512, 32_000), (2048, 4096),
)  # fmt: skip
"""Rows and vocabulary sizes: batches of a few rows, of a block's rows, and of a grid's; one token; vocabularies of
models, of no multiple of 4, and of one token more than a kernel's tiles hold."""


def _random_rows(tier: Tier) -> Iterator[Case]:
    """Rows that each have parameters of their own, over the sizes where implementations change course."""
    shapes = [*_SMALL_SHAPES, (tier.rows, 1000), *(_LARGE_SHAPES if tier.large_vocab > 4096 else ())]
    for i, (rows, width) in enumerate(shapes):
        random = f"torch.rand({rows}, generator=torch.Generator().manual_seed({width}))"
        temperature = f"({random} * 2 + 0.1).tolist()"
        top_k = f"({random} * {min(2 * width, 400)}).int().tolist()"
        top_p = f"(1 - {random}).flip(0).tolist()"
        dtype = ("fp32", "bf16", "fp16")[i % 3]
        case = Case("random-both", normal(rows, width, i), width, temperature, top_k, top_p, dtype=dtype)
        yield case
        yield case.but(name="random-none", top_k=(0,), top_p=(0.0,))
        yield case.but(
            name="random-mixed",
            top_k=f"[k * (i % 2) for i, k in enumerate({top_k})]",
            top_p=f"[p * (i % 3 == 0) for i, p in enumerate({top_p})]",
        )
        kinds = case.but(name="kinds-both", code=row_kinds(rows, width, i))
        yield kinds
        yield kinds.but(name="kinds-none", top_k=(0,), top_p=(0.0,))


_SWEEP = (1e-30, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.7, 1.0, 1.5, 3.0, 10.0, 30.0, 100.0)


def _sweep(_tier: Tier) -> Iterator[Case]:
    """Each kind of row at each temperature, with each combination of filters."""
    # The last row's logits lie within 8e-6: at T = 1e-6 its tokens share the mass.
    code = f"torch.cat([{row_kinds(4, 64, 20)}, {normal(1, 64, 21)} * 1e-6])"
    temperature = tuple(t for t in _SWEEP for _ in range(5))
    yield from for_each_mix(Case("T", code, 64, temperature, rows=(0, 1, 2, 3, 4) * len(_SWEEP)))


@clause(
    "log-probs/law",
    "log_probs_kernel returns the log of the law that is drawn from.",
    "law 6",
    _random_rows,
    reproduce="log-probs",
    claim="log_probs",
)
@clause(
    "log-probs/small",
    "The same on rows that can be checked by hand: filters, ties, greedy rows, padding, masked and tiny rows.",
    "law 6",
    lambda _tier: [
        Case("each-gap", probabilities(EIGHT), 8, top_p=BETWEEN_PREFIXES, rows=(0,) * 8),
        Case("each-k", probabilities(EIGHT), 8, top_k=tuple(range(1, 9)), rows=(0,) * 8),
        Case("each-T", values([3.0, 2.0, 1.0, 2.0]), 4, (0.0, 1e-4, 0.2, 0.5, 1.0, 5.0), top_p=(0.8,), rows=(0,) * 6),
        Case("k-then-p", probabilities((0.03, 0.20, 0.03, 0.35, 0.25, 0.05, 0.03, 0.06)), 8, top_k=(4,),
             top_p=(0.82,)),
        Case("greedy-ties", values([1.0, 3.0, 3.0]), 3, (0.0, 1.0), top_k=(0, 1), rows=(0, 0)),
        Case("padded", f"torch.cat([{normal(2, 8, 1)} - 20, torch.full((2, 5), 50.0)], 1)", 8, (0.7, 0.0),
             top_p=(0.7,)),
        Case("padded-nan", f"torch.cat([{normal(2, 8, 1)}, torch.full((2, 5), nan)], 1)", 8, (0.7, 1.0),
             top_p=(0.7, 0.0)),
        Case("masked", f"{normal(3, 64, 2)}.masked_fill(torch.arange(64) % 3 == 0, -inf)", 64, (0.7, 1.0, 0.0),
             top_k=(3, 0, 0)),
        Case("spread", f"{normal(2, 64, 3)} * 10", 64, (0.5, 1.0)),
    ],
    claim="log_probs",
)  # fmt: skip
@clause(
    "log-probs/temperatures",
    "The same at temperatures from the smallest to 100.",
    "law 3",
    _sweep,
    claim="log_probs",
)
@clause(
    "log-probs/off-filters",
    "Filters that are off lose no token of the tail, also beside rows that use them.",
    "law 5",
    lambda tier: [
        # Whether an fp32 sum reaches 1 before the tail is a matter of luck in each row: hence many rows.
        Case("wide-none", normal(64, tier.large_vocab, 9, std=5.0), tier.large_vocab, top_p="[0.0, 1.0] * 32"),
        Case("wide-beside", normal(64, tier.large_vocab, 9, std=5.0), tier.large_vocab,
             top_k="[0, 0, 50, 0] * 16", top_p="[1.0, 0.0, 0.9, 0.9] * 16"),
    ],
    claim="log_probs",
)  # fmt: skip
def _match(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    rows, _ = case.pattern()
    logits = case.logits(subject.device)[rows.to(subject.device)]
    context = subject.context(case)
    law = subject.log_probs_law(case)
    log_probs = subject.sampler(case.vocab_size, 0).log_probs_kernel(logits, context)
    yield _form(log_probs, logits)
    yield from match_law(log_probs, law)
    real = slice(case.vocab_size)
    temperature = context.gpu_view.temperature[: len(logits)]
    raw = subject.claims.log_probs == "raw"
    yield from invariants(log_probs[:, real], logits[:, real], torch.ones_like(temperature) if raw else temperature)
    # Judged by the law, not by the bits above: sums over memory that is aligned otherwise may go in another order.
    spread = torch.full((2 * logits.shape[0], 2 * logits.shape[1]), 60.0, dtype=logits.dtype, device=logits.device)
    spread[::2, ::2] = logits
    strided = subject.sampler(case.vocab_size, 0).log_probs_kernel(spread[::2, ::2], context)
    yield from of_call("strided logits", match_law(strided, law))


def of_call(which: str, evidence: list[Evidence]) -> Iterator[Evidence]:
    """Evidence that says which call it is of."""
    for each in evidence:
        yield replace(each, asked=f"{which}: {each.asked}")


def _form(log_probs: Tensor, logits: Tensor) -> Evidence:
    observed = (tuple(log_probs.shape), log_probs.dtype, log_probs.device)
    allowed = (tuple(logits.shape), torch.float32, logits.device)
    return exact("shape, dtype and device", passed=observed == allowed, observed=observed, allowed=allowed)


@clause(
    "log-probs/mapping",
    "Row i takes the parameters of request token_to_request_index[i]; the map may be int32 or int64, pageable, "
    "on the CPU or the device, and longer than the rows.",
    "contract",
    lambda _tier: [
        Case("mapped", values(*[[3.0, 2.0, 1.0, 2.5]] * 5), 4, (0.5, 1.0, 0.0), top_k=(0, 2, 0),
             top_p=(0.8, 0.0, 0.0), rows=(0, 1, 2, 3, 4), requests=(2, 0, 1, 1, 0)),
    ],
    claim="log_probs",
    not_applicable=needs_slots,
)  # fmt: skip
def _mapping(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    _, requests = case.pattern()
    law = subject.log_probs_law(case)
    logits = case.logits(subject.device)
    padded = torch.nn.functional.pad(requests, (0, 3))
    for index in (padded, padded.int(), padded.to(subject.device), padded.int().to(subject.device)):
        log_probs = subject.sampler(case.vocab_size, 0).log_probs_kernel(
            logits, subject.context(case), token_to_request_index=index
        )
        yield from match_law(log_probs, law)


@clause(
    "log-probs/of-drawn-tokens",
    "The log-prob of every token that was drawn is finite.",
    "law 6",
    lambda tier: for_each_mix(
        Case("drawn", normal(16, 1000, 10), 1000, tuple(0.5 + 0.1 * i for i in range(16)), dtype="bf16",
             draws=tier.large_draws)
    ),
    claim="log_probs",
)  # fmt: skip
def _drawn(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    ids = subject.draw(case, case.draws)
    log_probs = subject.sampler(case.vocab_size, 0).log_probs_kernel(case.logits(subject.device), subject.context(case))
    lost = int((~log_probs.gather(1, ids).isfinite()).sum())
    yield exact("log-probs of drawn tokens are finite", passed=lost == 0, observed=f"{lost} of {ids.numel()} are not",
                allowed="none")  # fmt: skip


@clause(
    "log-probs/token",
    "token_log_probs returns the chosen tokens' log-probs, and the top_n largest in order, ties by index.",
    "contract",
    lambda _tier: [
        Case(
            "token",
            f"({normal(6, 40, 11)}).mul(2).round().div(2)",
            40,
            (0.5, 0.8, 1.0, 0.0, 1.0, 2.0),
            top_k=(0, 5, 0, 0, 1, 0),
            top_p=(0.0, 0.0, 0.7, 0.0, 0.0, 0.9),
        ),
    ],
    claim="token_log_probs",
)
def _token(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    logits, context = case.logits(subject.device), subject.context(case)
    law = subject.log_probs_law(case)
    chosen = law.log_probs.argmax(1)
    got = subject.sampler(case.vocab_size, 0).token_log_probs(logits, chosen, context, top_n=5)
    expected = law.log_probs
    slack = tolerance(torch.where(expected > -math.inf, expected, 0.0), law, law.valid)
    rows = torch.arange(len(chosen), device=subject.device)
    error = (got.chosen - expected[rows, chosen]).abs() / slack[rows, chosen]
    yield exact(
        "chosen tokens' log-probs are the law's",
        passed=bool((error <= 1).all()),
        observed=f"at most {float(error.max()):.3g} of the tolerance",
        allowed="1 of the tolerance",
    )
    order = torch.sort(expected, dim=1, descending=True, stable=True)
    best_ids, best = order.indices[:, :5], order.values[:, :5]
    # Beyond the support all log-probs are -inf, so that any id may stand there.
    right = (got.top_ids == best_ids) | (best == -math.inf)
    yield exact("ids of the largest log-probs, ties by index", passed=bool(right.all()),
                observed=got.top_ids.tolist(), allowed=best_ids.tolist())  # fmt: skip
    close = torch.where(best > -math.inf, (got.top_values - best).abs() <= slack.gather(1, best_ids),
                        got.top_values == best)  # fmt: skip
    yield exact("values of the largest log-probs", passed=bool(close.all()), observed=got.top_values.tolist(),
                allowed=best.tolist())  # fmt: skip
