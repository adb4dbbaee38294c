"""Clauses on how a sampler is called: outputs, gathering, mapping, flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.cases import Case, for_each_mix, normal, probabilities, values
from conformance.clauses import Tier, clause, needs_cuda, needs_slots
from conformance.clauses.law import EIGHT, draws_follow_law, judge_draws
from conformance.evidence import Evidence, exact
from conformance.evidence.log_probs import match_law
from conformance.subject import Manner, Subject

BLOCKS = f"torch.full((32, 64), -inf).scatter(1, torch.arange(64).view(32, 2), {normal(32, 2, 15)})"
"""Row r can give ids 2 r and 2 r + 1 only: a wrong row shows at the first draw."""

PARAMETERS = (
    (0.0, 1.0, 1.0, 2.0, 0.5, 1.0),
    (0, 1, 3, 0, 4, 0),
    (0.0, 0.0, 0.0, 0.6, 0.7, 1.0),
)


def rows_apart(tier: Tier) -> Iterator[Case]:
    """Eight slots over rows that share no id."""
    rows = (31, 0, 5, 5, 17, 30, 5, 2)
    yield from for_each_mix(Case("rows-apart", BLOCKS, 64, (0.5, 0.0, 1.0, 2.0, 1.0, 1.0, 0.7, 1.0), rows=rows,
                                 requests=tuple(range(8)), draws=tier.draws // 16))  # fmt: skip


def parameters_apart(tier: Tier) -> list[Case]:
    """Slots whose rows and requests go different ways."""
    return [
        Case("parameters-apart", probabilities(EIGHT, EIGHT[::-1]), 8, *PARAMETERS, rows=(0, 1, 0, 0, 1, 1, 0, 1, 0),
             requests=(5, 0, 1, 2, 3, 4, 0, 5, 2), draws=tier.draws // 2),
        Case("parameters-apart-k", probabilities(EIGHT), 8, top_k=(1, 2, 4), rows=(0,) * 4, requests=(2, 0, 0, 1),
             draws=tier.draws // 8),
    ]  # fmt: skip


def _mixes(tier: Tier) -> Iterator[Case]:
    rows = probabilities(*[EIGHT[-i:] + EIGHT[:-i] for i in range(4)])
    yield from for_each_mix(Case("four-rows", rows, 8, (0.7, 1.0, 0.0, 1.5), draws=tier.draws // 8))
    yield Case("all-greedy", rows, 8, (0.0, 1.0, 0.0, 1.0), (0, 1, 0, 1), (0.5,), draws=2**12)


@clause("calls/gather", "Slot i samples logits row gather_indices[i], in any order, also repeatedly.", "contract",
        rows_apart, statistical=True)  # fmt: skip
@clause(
    "calls/parameters-by-slot",
    "Slot i uses the parameters of request token_to_request_index[i]: by output slot, never by logits row.",
    "contract",
    parameters_apart,
    statistical=True,
    reproduce="draws",
    not_applicable=needs_slots,
)
def _plain(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from draws_follow_law(subject, case, alpha)


@clause(
    "calls/parameters-by-row",
    "Slot i uses the parameters of the request with the number of the row that it gathers.",
    "claims.parameters_by",
    lambda tier: [
        Case("by-row", probabilities(EIGHT, EIGHT[::-1], EIGHT), 8, (0.5, 1.0, 2.0), (2, 0, 5), draws=tier.draws // 2),
    ],
    statistical=True,
    not_applicable=lambda subject: None if subject.claims.parameters_by == "row" else "parameters_by is not 'row'",
)
def _by_row(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from draws_follow_law(subject, case.but(rows=(2, 0, 1, 0, 2), requests=(0, 1, 2, 0, 1)), alpha)


@clause("calls/without-gather", "Without gather_indices slot i samples row i.", "contract", rows_apart,
        statistical=True)  # fmt: skip
def _without_gather(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from draws_follow_law(subject, case, alpha, Manner("without-gather", gather=False))


@clause(
    "calls/without-mapping",
    "Without token_to_request_index slot i uses the parameters of request i, also where it gathers another row; "
    "logits may have far more rows than n.",
    "contract",
    rows_apart,
    statistical=True,
)
def _without_mapping(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    repeats = 64
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    rows = case.pattern()[0].repeat(repeats).to(subject.device)
    # 16 times as many rows as slots, all but the gathered ones NaN.
    logits = torch.full((16 * len(rows), 64), float("nan"), device=subject.device)
    where = torch.randperm(len(logits), generator=torch.Generator().manual_seed(1))[: len(rows)].to(subject.device)
    logits[where] = case.logits(subject.device)[rows]
    columns: Any = [column * repeats for column in case.parameters()]
    if subject.claims.parameters_by == "row":
        # A request for each of the rows; those of the slots lie where the rows do.
        off = subject.own_values(case.vocab_size, [1.0], [0], [0.0])
        of_row = [value * len(logits) for value in off]
        for every, own in zip(of_row, columns, strict=True):
            for at, value in zip(where.tolist(), own, strict=True):
                every[at] = value
        columns = of_row
    context = subject.context_of(*columns)
    flags = subject.flags_of(context, case.vocab_size)
    ids = [sampler.sample_kernel(logits, len(rows), context, **flags, gather_indices=where).clone() for _ in range(8)]
    yield from judge_draws(subject, case, torch.cat(ids).view(-1, case.slots).T, alpha)


@clause(
    "calls/index-tensors",
    "Index tensors may be int32 or int64, on the CPU or the device, longer than n, and not contiguous.",
    "contract",
    parameters_apart,
    statistical=True,
)
def _index_tensors(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    for dtype in (torch.int32, torch.int64):
        for device in ("cpu", "same"):
            for step in (1, 2):
                name = f"{dtype}, {device}, {step} apart"
                manner = Manner(name, index_dtype=dtype, index_device=device, index_padding=3, index_step=step)
                yield from draws_follow_law(subject, case.but(draws=case.draws // 8), alpha / 8, manner)


@clause("calls/flags", "False for no_top_k and no_top_p is always allowed.", "contract", _mixes,
        statistical=True)  # fmt: skip
def _flags(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    yield from draws_follow_law(subject, case, alpha, Manner("no-promise", promise=False))


@clause(
    "calls/bare",
    "Without index tensors slot i samples row i with the parameters of request i; eager and cache_key are accepted.",
    "contract",
    _mixes,
    statistical=True,
)
def _bare(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    repeats = 256
    columns: Any = [column * repeats for column in case.parameters()]
    context = subject.context_of(*columns)
    logits = case.logits(subject.device)[case.pattern()[0].repeat(repeats).to(subject.device)]
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    calls: list[dict[str, object]] = [{}, {"eager": True}, {"cache_key": ("step", 1)}, {"eager": False}]
    ids = [
        sampler.sample_kernel(logits, len(logits), context, **subject.flags(case), **call).clone() for call in calls * 4
    ]
    yield from judge_draws(subject, case, torch.cat(ids).view(-1, case.slots).T, alpha)


@clause(
    "calls/result",
    "The result is int64 [n] on the logits' device, whatever the batch.",
    "contract",
    lambda _tier: for_each_mix(Case("result", normal(4, 8, 16), 8, (0.0, 1.0, 1.0, 0.5), dtype="bf16")),
)
def _result(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    for repeats in (1, 5):
        ids = subject.call(subject.sampler(8, 1), case, repeats)
        observed = (tuple(ids.shape), ids.dtype, ids.device)
        allowed = ((4 * repeats,), torch.int64, case.logits(subject.device).device)
        yield exact("shape, dtype and device", passed=observed == allowed, observed=observed, allowed=allowed)


@clause(
    "calls/output",
    "output is written whole and returned; nothing around it is touched; with it the tokens are the same.",
    "contract",
    lambda _tier: [
        *for_each_mix(Case("output", normal(4, 8, 17), 8, (0.0, 1.0, 1.0, 0.5))),
        Case("output-greedy", normal(4, 8, 17), 8, (0.0,) * 4),
    ],
    claim="output",
)
def _output(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    # A slice that starts at an odd entry is aligned to 8 bytes only.
    for repeats, start in ((1, 8), (33, 8), (1, 1001), (33, 1001)):
        n = case.slots * repeats
        buffer = torch.full((start + n + 1024,), -77, dtype=torch.int64, device=subject.device)
        output = buffer[start : start + n]
        ids = subject.call(subject.sampler(8, 1), case, repeats, output=output)
        around = torch.cat([buffer[:start], buffer[start + n :]])
        own = subject.call(subject.sampler(8, 1), case, repeats)
        observed = {
            "returned": ids.data_ptr() == output.data_ptr() and ids.shape == output.shape,
            "entries not written": int((output == -77).sum()),
            "entries around it touched": int((around != -77).sum()),
            "tokens unlike those without output": int((output != own).sum()),
        }
        right = list(observed.values()) == [True, 0, 0, 0]
        yield exact(f"a poisoned buffer, {start} entries before n = {n}", passed=right, observed=observed,
                    allowed="True, 0, 0, 0")  # fmt: skip


@clause(
    "calls/empty",
    "n = 0 returns an empty tensor and touches nothing.",
    "contract",
    lambda _tier: [Case("empty", values([1.0, 2.0]), 2, top_k=(1,), rows=(0,))],
)
def _empty(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    sampler = subject.sampler(2, 1)
    rng = subject.rng(sampler)
    state = rng.get_state()
    context = subject.context(case)
    ids = sampler.sample_kernel(case.logits(subject.device)[:0], 0, context, no_top_k=False, no_top_p=False)
    more = {"output": torch.empty(0, dtype=torch.int64, device=subject.device)} if subject.claims.output else {}
    given = sampler.sample_kernel(case.logits(subject.device), 0, context, no_top_k=False, no_top_p=False, **more)
    yield exact("with rows and an output", passed=given.shape == (0,), observed=tuple(given.shape), allowed="(0,)")
    still = torch.equal(state, rng.get_state())
    yield exact("shape, dtype, generator", passed=(tuple(ids.shape), ids.dtype, still) == ((0,), torch.int64, True),
                observed=f"{tuple(ids.shape)}, {ids.dtype}, generator unmoved: {still}",
                allowed="(0,), torch.int64, generator unmoved: True")  # fmt: skip


@clause(
    "calls/speculative",
    "sample_speculative serves the decode requests first, 1 + S rows each, then one row for each prefill request.",
    "contract",
    lambda tier: [
        Case("speculative", BLOCKS, 64, (0.0, 1.0, 0.0, 2.0, 0.0), (0, 1, 2, 0, 0), (0.0, 0.0, 0.0, 0.3, 0.5),
             rows=tuple(range(11)), requests=(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4), draws=tier.draws // 8),
    ],
    claim="speculative",
    not_applicable=needs_slots,
    statistical=True,
)  # fmt: skip
def _speculative(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    sampler = subject.sampler(64, subject.seed_of(case.id))
    context = subject.engine_context(*case.parameters())
    logits = case.logits(subject.device)
    calls = min(256, case.draws // case.slots)
    ids = [sampler.sample_speculative(logits[:11], 3, 2, 2, context).clone() for _ in range(calls)]
    order = torch.randperm(32, generator=torch.Generator().manual_seed(2)).to(subject.device)
    where = torch.argsort(order).int()  # row r of the logits lies at where[r] of the shuffled ones
    shuffled = logits[order]
    ids += [sampler.sample_speculative(shuffled, 3, 2, 2, context, gather_indices=where).clone() for _ in range(calls)]
    yield from judge_draws(subject, case, torch.stack(ids).T, alpha)


@clause(
    "calls/side-stream",
    "A call on another stream than the default one is ordered on that stream.",
    "contract",
    rows_apart,
    statistical=True,
    not_applicable=needs_cuda,
)
def _side_stream(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    stream = torch.cuda.Stream()
    logits, keywords = subject.arguments(case, 64)
    rows = case.pattern()[0].to(subject.device)
    late = torch.full_like(logits, float("nan"))
    context = subject.context(case)
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    flags = subject.flags_of(context, case.vocab_size)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # The logits arrive late: work on another stream would still see NaN.
        busy = torch.ones(4096, 4096, device=subject.device)
        for _ in range(20):
            busy = busy @ busy * 1e-4
        late.copy_(logits)
        ids = [sampler.sample_kernel(late, 64 * case.slots, context, **flags, **keywords).clone() for _ in range(4)]
        together = torch.cat(ids)
        log_probs = subject.log_probs(sampler, late[rows], context)
    stream.synchronize()
    yield from judge_draws(subject, case, together.view(-1, case.slots).T, alpha)
    if subject.claims.log_probs != "none":
        yield from match_law(log_probs, subject.log_probs_law(case))
