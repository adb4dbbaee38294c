"""Clauses on what a call must not touch or depend on (law 9)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Case, for_each_mix, normal, probabilities
from conformance.clauses import Tier, clause, needs_cuda, needs_slots
from conformance.clauses.law import EIGHT, draws_follow_law, judge_draws
from conformance.evidence import Evidence, exact
from conformance.evidence.counts import follows_law
from conformance.evidence.support import support
from conformance.subject import Manner, Subject


def _batch(tier: Tier) -> Iterator[Case]:
    yield from for_each_mix(Case("batch", normal(8, 1000, 13), 1000, tuple(0.2 * i for i in range(8)), dtype="bf16",
                                 draws=tier.large_draws // 4))  # fmt: skip


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.uint8).cpu().clone()


@clause(
    "isolation/inputs",
    "Inputs keep every bit: logits, index tensors, and the context's tensors.",
    "law 9",
    # bf16 logits are often copied to float32 first; float32 ones may be the very memory that is worked in.
    lambda tier: [case.but(dtype=dtype) for case in _batch(tier) for dtype in ("fp32", "fp16", "bf16")],
)
def _inputs(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    for gather in (True, False):
        logits, keywords = subject.arguments(case, 4, Manner(gather=gather))
        yield _inputs_kept(subject, case, logits, keywords)
    logits = case.logits(subject.device).clone()
    yield _inputs_kept(subject, case, logits, {})


def _inputs_kept(subject: Subject, case: Case, logits: Tensor, keywords: dict[str, Tensor]) -> Evidence:
    n = case.slots if not keywords else 4 * case.slots
    context = subject.context(case)
    view, metadata = context.gpu_view, getattr(context, "active_request_metadata", {})
    tensors = {"logits": logits, **keywords}
    tensors |= {f"gpu_view.{name}": getattr(view, name) for name in ("temperature", "top_k", "top_p")}
    tensors |= {f"active_request_metadata[{name!r}]": tensor for name, tensor in metadata.items()}
    before = {name: _bytes(tensor) for name, tensor in tensors.items()}
    sampler = subject.sampler(case.vocab_size, 1)
    sampler.sample_kernel(logits, n, context, **subject.flags(case), **keywords)
    if logits.shape[0] == case.slots:
        subject.log_probs(sampler, logits, context)
    changed = [name for name, tensor in tensors.items() if not torch.equal(_bytes(tensor), before[name])]
    return exact(f"inputs after calls with {list(keywords) or 'no index tensors'}", passed=not changed,
                 observed=f"changed: {changed}", allowed="none")  # fmt: skip


def _padded_rows(logits: Tensor) -> Tensor:
    return torch.nn.functional.pad(logits, (3, 2), value=60.0)[:, 3:-2]


def _transposed(logits: Tensor) -> Tensor:
    return logits.T.contiguous().T


def _every_other(logits: Tensor) -> Tensor:
    spread = torch.full((2 * logits.shape[0], 2 * logits.shape[1]), 60.0, dtype=logits.dtype, device=logits.device)
    spread[::2, ::2] = logits
    return spread[::2, ::2]


@clause(
    "isolation/strides",
    "The law of a row does not depend on how it lies in memory: slices, transposed and spread views work.",
    "law 9",
    lambda tier: for_each_mix(
        Case("strided", probabilities(*[EIGHT[-i:] + EIGHT[:-i] for i in range(4)]), 8, (0.7, 1.0, 0.0, 1.5),
             draws=tier.draws // 8)
    ),
    statistical=True,
)  # fmt: skip
def _strides(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    for layout in (_padded_rows, _transposed, _every_other):
        for gather in (True, False):
            name = f"{layout.__name__}, {'gathered' if gather else 'in order'}"
            manner = Manner(name, logits=layout, gather=gather)
            yield from draws_follow_law(subject, case, alpha / 6, manner)


@clause(
    "isolation/expanded",
    "One row in memory, expanded to many with stride 0, works.",
    "law 9",
    lambda tier: [Case("expanded", probabilities(EIGHT), 8, top_p=(0.6,), rows=(0,), draws=tier.draws // 8)],
    statistical=True,
    not_applicable=lambda subject: needs_slots(subject, by_call=True),
)
def _expanded(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    n = min(case.draws, 2**14)
    context = subject.context(case)
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    flags = subject.flags_of(context, case.vocab_size)
    zeros = torch.zeros(n, dtype=torch.int32, device=subject.device)
    logits = case.logits(subject.device).expand(n, -1)
    ids = sampler.sample_kernel(logits, n, context, **flags, token_to_request_index=zeros)[None]
    law = case.law(subject.claims.options, subject.device)
    yield support(ids, law)
    yield follows_law(ids.clamp(0, 7), law, alpha)


TIED = "torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]])"
"""Ties at the k-th place and at the nucleus edge: kernels differ there, and batches choose kernels."""


def _beside(_tier: Tier) -> Iterator[Case]:
    for size in (1, 2, 5, 17):
        for name, k, p in (("off", 0, 0.0), ("top-p", 0, 0.6), ("both", 3, 0.6), ("greedy", 1, 0.0)):
            for place in {0, size // 2, size - 1} if name == "both" else {size // 2}:
                top_k = tuple(2 if i == place else k for i in range(size))
                top_p = tuple(0.0 if i == place else p for i in range(size))
                yield Case(f"at{place}-beside-{name}", TIED, 8, (1.0,) * size, top_k, top_p, rows=(0,) * size,
                           draws=2**8 * size)  # fmt: skip


@clause(
    "isolation/batchmates",
    "The law of a row does not depend on its batchmates, on its place among them, or on their number.",
    "law 9",
    _beside,
    statistical=True,
)
def _batchmates(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    # Calls of just this many slots, one logits row a slot: what an engine's small steps look like.
    sampler = subject.sampler(case.vocab_size, subject.seed_of(case.id))
    context = subject.context(case)
    logits = case.logits(subject.device).expand(case.slots, -1).clone()
    flags = subject.flags(case)
    ids = [sampler.sample_kernel(logits, case.slots, context, **flags).clone() for _ in range(case.draws // case.slots)]
    yield from judge_draws(subject, case, torch.stack(ids).T, alpha)


@clause(
    "isolation/memory-reuse",
    "Memory that other work has left full of garbage does not show in the tokens or in the log-probs.",
    "law 9",
    _batch,
)
def _memory(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    def run() -> tuple[Tensor, Tensor]:
        sampler = subject.sampler(case.vocab_size, 2)
        ids = subject.call(sampler, case, 8)
        log_probs = subject.log_probs(sampler, case.logits(subject.device), subject.context(case))
        return ids.clone(), _bytes(log_probs)

    clean_ids, clean_log_probs = run()
    for fill in (float("nan"), 1e30):
        # The allocator hands the same blocks out again.
        garbage = [torch.full((64, 1000), fill, device=subject.device) for _ in range(8)]
        del garbage
        ids, log_probs = run()
        same = bool((ids == clean_ids).all()) and torch.equal(log_probs, clean_log_probs)
        yield exact(f"same seed after memory was filled with {fill}", passed=same,
                    observed=f"{int((ids != clean_ids).sum())} tokens differ; log-probs equal: "
                    f"{torch.equal(log_probs, clean_log_probs)}", allowed="bit for bit the same")  # fmt: skip


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    """Any operation that waits for the device raises a RuntimeError.

    The caller's filters for other warnings stay in force within.
    """
    with warnings.catch_warnings():
        # torch says that the mode is a prototype and may miss some operations.
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")  # says it once more


@clause(
    "isolation/sync-free",
    "No call waits for the device.",
    "law 9",
    _batch,
    not_applicable=lambda subject: (
        needs_cuda(subject) or (needs_slots(subject) if subject.claims.parameters_by == "call" else None)
    ),
    claim="sync_free",
)
def _sync_free(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    sampler = subject.sampler(case.vocab_size, 1)
    logits, keywords = subject.arguments(case, 4)
    on_cpu = {name: index.cpu() for name, index in keywords.items()}
    context = subject.context(case)
    flags = subject.flags_of(context, case.vocab_size)

    def calls(index: dict[str, Any]) -> None:
        sampler.sample_kernel(logits, 4 * case.slots, context, **flags, **index)
        sampler.sample_kernel(logits, case.slots, context, no_top_k=False, no_top_p=False)
        subject.log_probs(sampler, logits, context)

    for name, index in (("on the device", keywords), ("on the CPU", on_cpu)):
        calls(index)  # the first call may compile and load
        torch.cuda.synchronize()
        waited = ""
        try:
            with _no_synchronisation():
                calls(index)
        except RuntimeError as error:
            waited = str(error).splitlines()[0]
        yield exact(f"torch's sync debug mode, index tensors {name}", passed=not waited,
                    observed=waited or "no synchronisation", allowed="no synchronisation")  # fmt: skip
