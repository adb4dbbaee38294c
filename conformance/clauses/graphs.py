"""Clauses on CUDA graphs, for samplers that claim them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from conformance.cases import Case, normal
from conformance.clauses import clause, needs_cuda, one_call
from conformance.clauses.law import judge_draws
from conformance.clauses.randomness import FLAT
from conformance.engine import set_parameters
from conformance.evidence import Evidence, exact
from conformance.evidence.counts import matches
from conformance.subject import Subject

_N, _V = 8, 1000
_OFF_K, _OFF_P = (0,) * _N, (0.0,) * _N
_SOME_GREEDY = (0.0, 0.7, 1.0, 0.0, 1.3, 0.7, 1.0, 2.0)

CONTENTS = {
    # Promise (no_top_k, no_top_p), and later contents of gpu_view that keep it.
    (True, True): [((1.0,) * _N, _OFF_K, _OFF_P), (_SOME_GREEDY, _OFF_K, _OFF_P), ((0.0,) * _N, _OFF_K, _OFF_P)],
    (True, False): [((1.0,) * _N, _OFF_K, (0.7,) * _N), (_SOME_GREEDY, _OFF_K, (0.9, 0.5, 1.0, 0.0) * 2)],
    (False, True): [((1.0,) * _N, (3,) * _N, _OFF_P), (_SOME_GREEDY, (1, 5, 0, 50) * 2, _OFF_P)],
    (False, False): [
        ((1.0,) * _N, (3, 0) * 4, (0.0, 0.7) * 4),
        ((0.8,) * _N, (50,) * _N, (0.9,) * _N),
        (_SOME_GREEDY, (4, 1, 0, 2000) * 2, (0.5, 0.9, 0.0, 1.0) * 2),
    ],
}


def contents(subject: Subject, promise: tuple[bool, bool]) -> list[tuple[list[float], list[int], list[float]]]:
    """`CONTENTS` in values that the sampler takes."""
    return [subject.own_values(_V, *content) for content in CONTENTS[promise]]


def _needs_graphs(subject: Subject) -> str | None:
    return needs_cuda(subject) or one_call(subject)


class _Captured:
    """One call in a graph, with the buffers that its replays read and write."""

    def __init__(self, subject: Subject, promise: tuple[bool, bool], repeats: int) -> None:
        self.subject, self.repeats, self.promise = subject, repeats, promise
        self.sampler = subject.sampler(_V, subject.seed_of(promise), enable_cuda_graph=True)
        self.context = subject.context_of(*contents(subject, promise)[0])
        case = _case(promise, 0)
        self.logits, self.keywords = subject.arguments(case, repeats)
        self.logits = self.logits.clone()
        self.output = torch.full((_N * repeats,), -1, dtype=torch.int64, device=subject.device)
        self.eager()  # compiles, loads and allocates what the capture must not
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(subject.rng(self.sampler))
        with torch.cuda.graph(self.graph):
            self.eager()

    def eager(self) -> Tensor:
        ids: Tensor = self.sampler.sample_kernel(
            self.logits, _N * self.repeats, self.context, no_top_k=self.promise[0], no_top_p=self.promise[1],
            output=self.output, **self.keywords,
        )  # fmt: skip
        return ids.clone()

    def replay(self) -> Tensor:
        self.output.fill_(-1)
        self.graph.replay()
        return self.output.clone()


def _case(promise: tuple[bool, bool], content: int) -> Case:
    temperature, top_k, top_p = CONTENTS[promise][content]
    return Case(f"promise-{promise[0]:d}{promise[1]:d}-content{content}", normal(_N, _V, 14), _V, temperature,
                top_k, top_p, dtype="bf16")  # fmt: skip


@clause(
    "graphs/replay-law",
    "Replays of one captured call follow the law of whatever parameters gpu_view holds by then, as long as these keep "
    "the promise of no_top_k and no_top_p.",
    "contract",
    lambda _tier: [_case(promise, 0) for promise in CONTENTS],
    statistical=True,
    not_applicable=_needs_graphs,
    claim="cuda_graph",
)
def _replay_law(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    promise = _promise(case)
    captured = _Captured(subject, promise, repeats=64)
    held = contents(subject, promise)
    for content in range(len(held)):
        set_parameters(captured.context, *held[content])
        ids = torch.cat([captured.replay().view(64, _N) for _ in range(64)]).T
        yield from judge_draws(subject, _case(promise, content), ids, alpha / len(held))


@clause(
    "graphs/replay-is-eager",
    "From one generator state, replays and eager calls of the sampler, in any mixture, give the same tokens as eager "
    "calls alone, and leave the generator in the same state.",
    "contract",
    lambda _tier: [_case(promise, 0) for promise in CONTENTS],
    not_applicable=_needs_graphs,
    claim="cuda_graph",
)
def _replay_is_eager(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    promise = _promise(case)
    captured = _Captured(subject, promise, repeats=4)
    rng = subject.rng(captured.sampler)
    held = contents(subject, promise)
    seed = subject.seed_of(case.id)
    mixtures = ("replay replay replay replay", "eager replay replay eager", "replay eager eager replay")
    for mixture in mixtures:
        rng.manual_seed(seed)
        expected, state = [], None
        for step in range(4):
            set_parameters(captured.context, *held[step % len(held)])
            expected.append(captured.eager())
        state = rng.get_offset()
        rng.manual_seed(seed)
        got = []
        for step, kind in enumerate(mixture.split()):
            set_parameters(captured.context, *held[step % len(held)])
            got.append(captured.replay() if kind == "replay" else captured.eager())
        differ = sum(int((a != b).sum()) for a, b in zip(expected, got, strict=True))
        yield exact(mixture, passed=differ == 0 and rng.get_offset() == state,
                    observed=f"{differ} tokens differ; generator offset {rng.get_offset()}",
                    allowed=f"none; offset {state}")  # fmt: skip


@clause(
    "graphs/replay-fresh",
    "Each replay draws fresh numbers: replays are independent of each other and of eager calls between them.",
    "contract",
    lambda _tier: [_case(promise, 0) for promise in CONTENTS],
    statistical=True,
    not_applicable=_needs_graphs,
    claim="cuda_graph",
)
def _replay_fresh(subject: Subject, case: Case, alpha: float) -> Iterator[Evidence]:
    promise = _promise(case)
    captured = _Captured(subject, promise, repeats=64)
    # Flat rows, and filters that are on but keep all: equal numbers show as equal tokens.
    flat = FLAT.but(top_k=(0 if promise[0] else 999,), top_p=(0.0 if promise[1] else 0.9999,))
    captured.logits.copy_(flat.logits(subject.device))
    temperature, top_k, top_p = flat.parameters()
    set_parameters(captured.context, temperature * _N, top_k * _N, top_p * _N)
    steps = torch.stack([captured.replay() if step % 3 else captured.eager() for step in range(96)])
    pairs = []
    for lag in (1, 2, 3):
        blocks = steps[: 96 // (2 * lag) * 2 * lag].view(-1, 2, lag, steps.shape[1])
        same = int((blocks[:, 0] == blocks[:, 1]).sum())
        pairs.append((f"calls i and i + {lag}", same, blocks[:, 0].numel()))
    yield matches(pairs, flat.law(subject.claims.options, subject.device), alpha)


def _promise(case: Case) -> tuple[bool, bool]:
    flags = case.name.split("-")[1]
    return flags[0] == "1", flags[1] == "1"
