"""Clauses on single draws, for samplers that document their random stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from conformance.cases import Case, for_each_mix, normal
from conformance.clauses import Tier, clause
from conformance.evidence import Evidence
from conformance.evidence.coupling import Running, inverse_cdf, running_law
from conformance.evidence.replay import rejection
from conformance.idiom import in_terms_of
from conformance.streams import Method, Stream
from conformance.subject import Subject
from reference import Law

_ROUNDS = 32
"""Numbers given for each draw of a rejection kernel. At V = 128,256 no case here needs more than 11 in 1e5 draws; a
draw that did would count as undecided, and be reported."""

_POSITIONS = {"cpu": 2**21, "cuda": 2**22}
"""Numbers searched: 5e-7 and 2.5e-7 apart on average, so nearly every edge finds one within `NEAR`."""

NEAR = 1e-6
"""Directed draws lie at most this far from where an edge's movement begins to show."""

_TILE, _LANES = 1024, (4, 32)


def _grid(rows: int, width: int, seed: int, step: float = 0.125) -> str:
    """Code for normal logits on a grid: different ones have clearly different float32 probabilities."""
    return f"{normal(rows, width, seed)}.div({step}).round().mul({step})"


def _not_searchable(subject: Subject) -> str | None:
    stream = subject.claims.stream
    if stream is not None and stream.positions(subject.device, 0, torch.zeros(1, dtype=torch.int64), 1) is None:
        return f"the stream {stream.name!r} cannot be searched on {subject.device}"
    return None


def _undirected_cases(tier: Tier) -> Iterator[Case]:
    width = tier.large_vocab
    draws, unfiltered = tier.coupled_draws, max(2**11, tier.coupled_draws)
    # Two logits rows in another order, three requests: a number that goes to the wrong slot meets another law.
    peaked = Case("peaked", _grid(2, width, 31), width, (0.7, 0.8, 1.0), rows=(0, 1, 1), requests=(2, 0, 1),
                  dtype="bf16", draws=draws)  # fmt: skip
    for case in for_each_mix(peaked):
        # The three kernels that draw by themselves get most.
        few = case.name in {"peaked-both", "peaked-mixed"}
        yield case.but(draws=max(2**9, draws // 8)) if few else case
    yield peaked.but(name="p-off", top_p=(1.0,), draws=unfiltered)
    yield Case("flat", f"torch.zeros(1, {width})", width, draws=unfiltered)
    draws = max(2**9, draws // 8)
    yield Case("k50", _grid(1, width, 32), width, (0.8,), (50,), dtype="bf16", draws=draws)
    ties = Case("ties", _grid(2, width, 33, 1.0), width, (0.8, 1.2), draws=draws // 2)
    for mix, top_k, top_p in (("top-p", (0,), (0.8,)), ("top-k", (40,), (0.0,)), ("both", (400,), (0.8,))):
        yield ties.but(name=f"ties-{mix}", top_k=top_k, top_p=top_p)
    # Two tokens of about 0.3 each: in rejection kernels the second pivot comes to lie below both, and decides.
    head = round(8 * 0.8 * math.log(0.72 * width)) / 8
    two = f"({_grid(1, width, 36)} / 8).index_put((torch.tensor(0), torch.tensor([{width // 5}, {width // 2}])), "
    two += f"torch.tensor([{head}, {head - 0.125}]))"
    for mix, k, p in (("k2", 2, 0.0), ("p0.4", 0, 0.4)):
        yield Case(f"two-{mix}", two, width, (0.8,), (k,), (p,), draws=draws)
    greedy = Case("greedy", _grid(2, width, 34), width, (0.0, 1.0, 0.7, 0.8), (0, 1, 0, 5), (0.0, 0.0, 0.8, 0.0),
                  rows=(0, 1, 0, 1), requests=(3, 1, 2, 0), draws=draws // 2)  # fmt: skip
    yield greedy.but(name="greedy-mixed")
    yield greedy.but(name="greedy-unfiltered", top_k=(0,), top_p=(0.0,))


def _directed_cases(tier: Tier) -> Iterator[Case]:
    width = tier.large_vocab
    one = Case("edges", _grid(1, width, 35), width, (0.8,), dtype="bf16", draws=2 * tier.edges)
    for mix, top_k, top_p in (("none", 0, 0.0), ("top-p", 0, 0.8), ("top-k", 50, 0.0), ("both", 200, 0.8)):
        yield one.but(name=f"edges-{mix}", top_k=(top_k,), top_p=(top_p,))


@clause(
    "coupling/undirected",
    "With a documented stream, each draw is the token that its random number stands for, call after call.",
    "claims.stream",
    _undirected_cases,
    claim="stream",
)
def _undirected(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    stream = _stream(subject)
    per_call, calls = subject.launches(case, -(-case.draws // 2))
    calls *= 2  # never a single one: the second begins where the first should have left the generator
    rng = subject.generator(subject.seed_of(case.id))
    sampler = subject.make_sampler(case.vocab_size, rng)
    copy = _copy(rng)
    rounds = 1 if stream.method(case, subject.device) == "inverse-cdf" else _ROUNDS
    ids, numbers = [], []
    for _ in range(calls):
        u = stream.numbers(copy, case.slots * per_call, rounds, case.vocab_size)
        numbers.append(u.view(len(u), per_call, case.slots))
        ids.append(subject.call(sampler, case, per_call).view(per_call, case.slots))
    u = torch.cat(numbers, 1).transpose(1, 2)
    yield _judge(subject, case, torch.cat(ids).T, u.to(subject.device))


@clause(
    "coupling/directed",
    "With a documented stream, draws whose numbers lie beside an edge of the running sums fall on the right side.",
    "claims.stream",
    _directed_cases,
    not_applicable=_not_searchable,
    claim="stream",
)
def _directed(subject: Subject, case: Case, _alpha: float) -> Iterator[Evidence]:
    stream = _stream(subject)
    law, base, method = _laws(subject, case)
    sums = running_law(law if method == "inverse-cdf" else base, stream.roundoff, stream.resolution)
    seed = subject.seed_of("positions")
    numbers = _searched(stream, str(subject.device), seed, _POSITIONS[subject.device.type])
    goals = _goals(law, base, sums, case.draws // 2, seed)
    positions, distance = _nearest(goals, numbers)

    rng = subject.generator(seed)
    sampler = subject.make_sampler(case.vocab_size, rng)
    logits, indices = subject.arguments(case, 1)
    context, flags = subject.context(case), subject.flags(case)
    ids = [
        sampler.sample_kernel(logits, 1, context, **flags, **indices).clone() for _ in stream.seek(rng, seed, positions)
    ]
    rounds = 1 if method == "inverse-cdf" else _ROUNDS
    u = stream.positions(subject.device, seed, positions, rounds)
    assert u is not None  # else not applicable
    yield _judge(subject, case, torch.cat(ids)[None], u[:, None].to(subject.device), distance)


def _stream(subject: Subject) -> Stream:
    stream = subject.claims.stream
    assert stream is not None  # else not applicable
    return stream


def _copy(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator(generator.device)
    copy.set_state(generator.get_state())
    return copy


def _laws(subject: Subject, case: Case) -> tuple[Law, Law, Method]:
    """The whole law of each slot, that before the filters which a rejection kernel tests, and the method."""
    options, device = subject.claims.options, subject.device
    method = _stream(subject).method(case, device)
    _, top_k, _ = case.parameters()
    if method != "rejection-after-top-k":
        top_k = [1 if k == 1 else 0 for k in top_k]  # k = 1 is greedy, and no filter
    unfiltered = in_terms_of(subject.claims, case.but(top_k=tuple(top_k), top_p=(0.0,)))
    return case.law(options, device), unfiltered.law(options, device), method


def _judge(subject: Subject, case: Case, ids: Tensor, u: Tensor, distance: float | None = None) -> Evidence:
    """ids: int64 [slots, draws]. u: float64 [rounds, slots, draws]."""
    stream = _stream(subject)
    law, base, method = _laws(subject, case)
    where = "" if distance is None else " beside the edges"
    asked = f"each id is the one of its number{where}, by {method}"
    if method == "inverse-cdf":
        sums = running_law(law, stream.roundoff, stream.resolution)
        return inverse_cdf(asked, ids, u[0], law, sums, distance)
    return rejection(asked, ids, u, base, law, stream.roundoff, stream.resolution, distance)


@lru_cache(maxsize=2)
def _searched(stream: Stream, device: str, seed: int, count: int) -> Tensor:
    """The numbers of positions 0 to count - 1, float64 [count]."""
    numbers = stream.positions(torch.device(device), seed, torch.arange(count), 1)
    assert numbers is not None  # else not applicable
    return numbers[0]


def _goals(law: Law, base: Law, sums: Running, count: int, seed: int) -> Tensor:
    """Numbers to look for, float64 [m, 2]: from the first upwards where the second is 1, downwards where it is -1.

    The movement of an edge F(t) shows from F(t) + d on above it and from F(t) - d on below. Of the tokens beside
    the filters' edge also the middle.
    """
    upto, error = (x[0].cpu() for x in (sums.upto, sums.error))
    before = torch.nn.functional.pad(upto[:-1], (1, 0))
    probs = upto - before
    kept, whole = law.probs[0].cpu(), base.probs[0].cpu()
    width = len(upto)
    generator = torch.Generator().manual_seed(seed)

    few = max(1, count // 16)
    least_kept = torch.where(kept > 0, -kept, -torch.inf).topk(few).indices
    most_dropped = torch.where(law.may_keep[0].cpu(), 0.0, whole).topk(few).indices
    beside = torch.cat([least_kept, most_dropped])
    head = probs.topk(min(width, count // 4)).indices
    tiles = torch.arange(_TILE, width, _TILE) - 1
    lanes = torch.cat([torch.randint(1, width // lane, (count // 16,), generator=generator) * lane - 1
                       for lane in _LANES])  # fmt: skip
    tokens = torch.cat([beside, head, tiles, lanes])
    rest = torch.rand(max(0, count - 2 * len(beside) - 2 * len(head) - len(tiles) - len(lanes)), generator=generator)
    tokens = torch.cat([tokens, torch.searchsorted(upto, rest.double()).clamp(max=width - 1)])
    edges = torch.cat([tokens, (torch.cat([beside, head]) - 1).clamp(min=0)]).unique()
    goals = [
        torch.stack([upto[edges] + side * error[edges], torch.full((len(edges),), float(side)).double()], 1)
        for side in (1, -1)
    ]
    middle = (before + probs / 2)[beside]
    goals.append(torch.stack([middle, torch.ones_like(middle)], 1))
    found: Tensor = torch.cat(goals).unique(dim=0)
    return found


def _nearest(goals: Tensor, numbers: Tensor) -> tuple[Tensor, float]:
    """Positions of the numbers nearest to the goals, ascending, and the largest distance."""
    goal, side = (column.contiguous() for column in goals.unbind(1))
    # Cells wider than NEAR: what is near a goal lies in its cell or in one beside it. Only those are sorted.
    cells = 2**19
    cell = (goal * cells).long()
    wanted = torch.zeros(cells + 2, dtype=torch.bool)
    for beside in (-1, 0, 1):
        wanted[(cell + beside).clamp(0, cells)] = True
    found = wanted[(numbers * cells).long()].nonzero()[:, 0]
    ascending, order = numbers[found].sort()
    place = torch.where(
        side > 0, torch.searchsorted(ascending, goal), torch.searchsorted(ascending, goal, right=True) - 1
    )
    exists = (place >= 0) & (place < len(ascending))
    goal, place = goal[exists], place[exists]
    distance = (ascending[place] - goal).abs()
    near = distance <= NEAR
    if not bool(near.any()):
        raise ValueError(f"stream.positions must give numbers within {NEAR:g} of the edges, got none")
    return found[order[place[near]]].unique(), float(distance[near].max())
