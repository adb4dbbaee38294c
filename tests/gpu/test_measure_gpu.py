"""Timing on a CUDA device: the bare read, launches and waits of a call, calls that wait, graphs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.measure import READ, Kind, Session, Timed, Workload
from conformance.measure.baselines import TorchComposition
from conformance.measure.lane import SamplerLane
from conformance.measure.workload import make_logits
from optimized import FlashInferSampling

pytestmark = pytest.mark.gpu

WORKLOAD = Workload.of("n8-V32000-bf16-topk50")
ROUNDS = 8
MOST_LAUNCHES = 10
"""Of a call: a softmax, filters, the draw, and what sees to greedy and invalid rows. A loop over rows has more."""


class OneMore(FlashInferSampling):
    """Launches one kernel more."""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().sample_kernel(*args, **kwargs) + 0


class Waits(FlashInferSampling):
    """Looks at one id on the host."""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        ids = super().sample_kernel(*args, **kwargs)
        assert ids[0].item() >= 0
        return ids


@pytest.fixture(scope="module")
def session() -> Session:
    samplers = {"plain": FlashInferSampling, "more": OneMore, "waits": Waits, "torch": TorchComposition}
    return Session(samplers, device="cuda")


# The bare read.


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("n", "width"), [(1, 1003), (3, 1), (64, 32_000), (7, 128_256), (2, 300_001)])
def test_each_way_to_read_gives_each_rows_maximum(n: int, width: int, dtype: str) -> None:
    from conformance.measure.read_kernel import candidates  # noqa: PLC0415  # needs Triton

    device = torch.device("cuda")
    logits = make_logits("peaked", n, width, dtype, device)
    logits[-1] = -math.inf
    logits[-1, -1] = -5.0  # the last token of all is a maximum: what is left out at an end is seen
    ways = candidates(n, width, device)
    assert ways != []
    for read in ways:
        assert torch.equal(read(logits).amax(1), logits.amax(1).float())


@pytest.mark.parametrize("id", ["n1-V1003-bf16-none", "n8-V1003-fp16-none", "n64-V32000-fp32-none-gather"])
def test_the_bare_read_is_timed_and_checked_at_any_size(session: Session, id: str) -> None:  # noqa: A002  # as in `of`
    workload = Workload.of(id)
    kinds: tuple[Kind, ...] = ("cold", "warm", "graph")
    session.time([Timed(READ, workload, kind) for kind in kinds], ROUNDS)
    assert all(session.median(Timed(READ, workload, kind)) > 0 for kind in kinds)
    assert session.wrong(READ, workload) == []
    assert len(session.lane(READ, workload).check()) == 1


def test_a_read_that_skips_something_is_seen(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lane: Any = session.lane(READ, WORKLOAD)
    read, skipped = lane._read, torch.arange(WORKLOAD.vocab_size, device="cuda") < 24_000
    # All eight maxima lie in the last quarter of their rows once in 65,536 sets of logits; these are always the same.
    monkeypatch.setattr(lane, "_read", lambda logits: read(logits.masked_fill(skipped, -math.inf)))
    assert session.wrong(READ, WORKLOAD) != []


def test_64_megabytes_are_read_at_half_of_the_best_rate_or_more(session: Session) -> None:
    # 66, 263 and 131 MB: in the larger ones the start counts for less.
    ids = ("n256-V128256-bf16-none", "n1024-V128256-bf16-none", "n256-V128256-fp32-none")
    workloads = [Workload.of(each) for each in ids]
    session.time([Timed(READ, workload, "cold") for workload in workloads], ROUNDS)
    rates = [each.read_bytes / session.median(Timed(READ, each, "cold")) for each in workloads]
    assert max(rates) <= session.best_rate
    assert min(rates) >= 0.5 * session.best_rate
    assert [session.wrong(READ, workload) for workload in workloads] == [[], [], []]


# What a call launches, and whether it waits.


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("filters", ["none", "topk50", "topp0.9", "topk50-topp0.9"])
def test_the_dispatcher_launches_a_few_kernels_and_never_waits(session: Session, filters: str, n: int) -> None:
    workload = Workload.of(f"n{n}-V32000-bf16-{filters}")
    found = session.counts("plain", workload)
    assert found == session.counts("plain", workload)
    assert found.launches is not None
    assert found.launches == int(found.launches)
    assert 1 <= found.launches <= MOST_LAUNCHES
    assert found.syncs == 0.0


def test_one_kernel_more_is_one_launch_more(session: Session) -> None:
    plain, more = (session.counts(name, WORKLOAD) for name in ("plain", "more"))
    assert plain.launches is not None
    assert (more.launches, more.operations, more.syncs) == (plain.launches + 1, plain.operations + 1, 0.0)


def test_a_look_at_a_value_is_one_wait(session: Session) -> None:
    assert session.counts("waits", WORKLOAD).syncs == 1.0


def test_only_the_times_of_calls_that_wait_hold_time_of_the_host(session: Session) -> None:
    session.lane("plain", WORKLOAD)
    before = session.exposed
    session.time([Timed("plain", WORKLOAD, kind) for kind in ("cold", "warm", "graph")], ROUNDS)
    assert session.exposed == before
    session.time([Timed("waits", WORKLOAD, "cold")], ROUNDS)
    assert session.exposed >= before + ROUNDS
    after = session.exposed
    session.time([Timed("plain", WORKLOAD, "cold"), Timed(READ, WORKLOAD, "cold")], ROUNDS)
    assert session.exposed == after


# Calls that were timed.


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "rest",
    ["n8-V1003-{}-none", "n1-V1003-{}-topk50", "n64-V32000-{}-topk50-topp0.9-mixed", "n8-V1003-{}-topp0.9-gather"],
)
def test_what_the_dispatcher_draws_in_each_kind_of_time_follows_the_law(
    session: Session, rest: str, dtype: str
) -> None:
    workload = Workload.of(rest.format(dtype))
    timed = [Timed("plain", workload, kind) for kind in session.clock.kinds]
    session.time(timed, ROUNDS)
    assert [each.kind for each in timed] == ["cold", "warm", "graph", "host"]
    assert all(session.median(each) > 0 for each in timed)
    assert session.wrong("plain", workload) == []
    session.forget(workload)


@pytest.mark.parametrize("kind", ["cold", "graph"])
def test_log_probs_are_checked(session: Session, kind: Kind) -> None:
    workload = Workload.of("n8-V1003-bf16-topk50-topp0.9-logprobs")
    session.time([Timed("plain", workload, kind)], ROUNDS)
    assert session.wrong("plain", workload) == []
    session.forget(workload)


def test_each_replay_of_a_graph_draws_anew(session: Session) -> None:
    workload = Workload.of("n64-V32000-bf16-none")
    session.time([Timed("plain", workload, "graph")], 4 * ROUNDS)
    lane = session.lane("plain", workload)
    assert isinstance(lane, SamplerLane)
    for draws in lane._drawn.values():
        assert len(draws) > 1
        # Two draws of a row are the same token about as often as not; those of 64 rows never are.
        assert len({tuple(ids.tolist()) for ids in draws}) == len(draws)
    assert session.wrong("plain", workload) == []
    session.forget(workload)


def test_a_graph_of_a_sampler_that_claims_none_is_refused_before_anything_is_timed(session: Session) -> None:
    before = {timed: len(seconds) for timed, seconds in session.seconds.items()}
    with pytest.raises(
        ValueError, match=r"time must not be 'graph' for .*TorchComposition, which claims no CUDA graphs"
    ):
        session.time([Timed("plain", WORKLOAD, "cold"), Timed("torch", WORKLOAD, "graph")], 2)
    assert {timed: len(seconds) for timed, seconds in session.seconds.items()} == before


def test_the_host_has_no_time_in_the_bare_read(session: Session) -> None:
    with pytest.raises(ValueError, match=f"time must not be 'host' for '{READ}'"):
        session.time([Timed(READ, WORKLOAD, "host")], 1)


def test_the_environment_names_the_card(session: Session) -> None:
    assert session.environment["gpu"] == torch.cuda.get_device_name()
