"""Sessions that time samplers: who is timed when, which calls are judged right, what is refused, what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import from_function
from conformance.measure import READ, Ratio, Session, Timed, Workload
from conformance.measure.baselines import TorchComposition, TorchInverseCdf
from conformance.measure.lane import _sum_of_words
from optimized import FlashInferSampling
from reference import ReferenceSampling
from tests.conformance.samplers import make

SMALL = Workload.of("n4-V256-fp32-none")
FILTERED = Workload.of("n4-V256-fp32-topk5")
LOG_PROBS = Workload.of("n4-V256-fp32-topk5-logprobs")
UNFILTERED = Workload.of("n8-V4096-fp32-none")
"""Large enough for a law to be seen in the last calls of 24 rounds: 192 draws."""

GREEDY_ROW = Workload.of("n4-V256-fp32-topp0.5-greedyrow")
BOTH = Workload.of("n4-V256-fp32-topk5-topp0.9")
GATHERED = Workload.of("n4-V256-fp32-none-gather")


@pytest.fixture(autouse=True, scope="module")
def _threads() -> Iterator[None]:
    """A session on a CPU leaves the process with one thread, which is no business of the tests that come after."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Who is timed when.


class Twice(FlashInferSampling):
    """Does its work twice over."""

    def sample_kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        super().sample_kernel(*args, **kwargs)
        return super().sample_kernel(*args, **kwargs)


def logging(name: str, log: list[str]) -> Any:
    """A factory of samplers that write down when they are called."""

    def sample(logits: Tensor, _t: Tensor, _k: Tensor, _p: Tensor, _rng: torch.Generator) -> Tensor:
        log.append(name)
        return logits.argmax(1)

    return from_function(sample)


def test_each_round_times_all_once_in_an_order_of_its_own() -> None:
    log: list[str] = []
    names = ["a", "b", "c"]
    session = Session({name: logging(name, log) for name in names})
    timed = [Timed(name, SMALL, "cold") for name in names]
    session.time(timed, 1)
    log.clear()  # of making them ready
    session.time(timed, 12, progress=lambda: log.append("|"))
    rounds = "".join(log).rstrip("|").split("|")
    # Calls of one sampler stand together: of each run of a letter, one is left.
    orders = ["".join(letter for i, letter in enumerate(calls) if calls[i - 1 : i] != letter) for calls in rounds]
    assert all(sorted(order) == names for order in orders)
    assert len(orders) == 12
    assert len(set(orders)) > 2
    assert {order[0] for order in orders} == set(names)


def test_what_is_named_twice_is_timed_once_a_round() -> None:
    session = Session({"a": TorchComposition})
    session.time([Timed("a", SMALL, "cold"), Timed("a", SMALL, "cold")], 3)
    assert list(session.seconds) == [Timed("a", SMALL, "cold")]
    assert len(session.seconds[Timed("a", SMALL, "cold")]) == 3


def test_a_ratio_is_of_the_rounds_in_which_both_were_timed() -> None:
    session = Session({"a": TorchComposition, "b": TorchComposition})
    a, b = Timed("a", SMALL, "cold"), Timed("b", SMALL, "warm")
    session.time([a, b], 9)
    session.time([a], 2)
    session.time([b], 3)
    session.time([a, b], 1)
    assert [len(session.seconds[each]) for each in (a, b)] == [12, 13]
    assert session.ratio(a, b).rounds == 10
    # By their numbers, not by their places.
    session.seconds[a] = {number: 2.0 * number for number in range(1, 12)}
    session.seconds[b] = {number: 1.0 * number for number in range(20, 2, -1)}
    assert session.ratio(a, b) == Ratio(2.0, 2.0, 2.0, 9)
    assert session.median(a) == 12.0


def test_twice_the_work_takes_about_twice_as_long() -> None:
    session = Session({"once": FlashInferSampling, "twice": Twice})
    workload = Workload.of("n4-V4096-fp32-topk50")
    once, twice = (Timed(name, workload, "cold") for name in ("once", "twice"))
    session.time([once, twice], 24)
    found = session.ratio(twice, once)
    # Between half as much more and a third too much: the interval reaches into it, whatever else the machine does.
    assert found.low < 2.6
    assert found.high > 1.5
    assert found.low > 1
    back = session.ratio(once, twice)
    assert back.value == pytest.approx(1 / found.value, rel=0.05)
    assert session.exposed == 0


@pytest.mark.parametrize("id", ["n1-V3-bf16-none", "n3-V1003-fp16-none", "n2-V1000-fp32-none-gather"])
def test_the_bare_read_takes_any_shape(id: str) -> None:  # noqa: A002  # as in `Workload.of`
    session = Session({})
    read = [Timed(READ, Workload.of(id), kind) for kind in ("cold", "warm")]
    session.time(read, 2)
    assert all(seconds > 0 for each in read for seconds in session.seconds[each].values())
    assert session.wrong(READ, read[0].workload) == []
    assert session.best_rate == read[0].workload.read_bytes / session.median(read[0])


@pytest.mark.parametrize("first", range(5))
def test_the_bare_read_reads_all_but_a_few_bytes(first: int) -> None:
    logits = torch.randn(9, 1003, generator=torch.Generator().manual_seed(0)).bfloat16()[first:]
    data = logits.reshape(-1).view(torch.int16).numpy().tobytes()
    skipped = first * 1003 * 2 % 8
    words = np.frombuffer(data[-skipped % 8 :][: (len(data) - -skipped % 8) // 8 * 8], dtype=np.int64)
    assert len(data) - 8 * len(words) <= 14
    assert int(_sum_of_words(logits)) == int(words.sum())


def test_a_slow_floor_is_named() -> None:
    large, larger, small = (Workload.of(f"n{n}-V128256-bf16-none") for n in (256, 512, 1))
    session = Session({})
    assert np.isnan(session.best_rate)
    for workload, rate in ((large, 0.8), (larger, 1.0), (small, 0.1)):
        session.seconds[Timed(READ, workload, "cold")] = {0: workload.read_bytes / rate / 1e12}
    session.seconds[Timed(READ, large, "warm")] = {0: 1e-9}
    assert session.best_rate == pytest.approx(1e12)
    (said,) = session.slow_floors()
    assert large.id in said
    assert "800 GB/s, 80% of the best" in said


def test_what_is_forgotten_is_made_anew_and_its_times_are_kept() -> None:
    session = Session({"a": TorchComposition})
    timed = Timed("a", SMALL, "cold")
    session.time([timed], 2)
    lane = session.lane("a", SMALL)
    assert session.lane("a", SMALL) is lane
    session.forget(SMALL)
    session.time([timed], 2)
    assert session.lane("a", SMALL) is not lane
    assert list(session.seconds[timed]) == [0, 1, 2, 3]


# Calls that were wrong.

RIGHT: dict[str, Callable[..., Any]] = {
    "reference": ReferenceSampling,
    "flashinfer": FlashInferSampling,
    "torch": TorchComposition,
    "inverse cdf": TorchInverseCdf,
    "own buffer": make(""),  # its result is a buffer that it uses again
}


@pytest.fixture(scope="module")
def right() -> Session:
    return Session(RIGHT)


@pytest.mark.parametrize(
    "id",
    [
        "n8-V512-fp32-none",
        "n8-V512-bf16-topk50",
        "n8-V512-fp16-topp0.9",
        "n8-V512-fp32-topk50-topp0.9",
        "n8-V512-bf16-topk50-topp0.9-mixed",
        "n8-V512-fp32-topk50-gather",
        "n8-V512-fp32-none-greedyrow",
        "n8-V512-fp32-topk50-topp0.9-varied",
        "n8-V512-fp32-topk50-topp0.9-onerow",
        "n8-V512-fp32-topp0.9-unpromised",
        "n8-V512-fp32-topk50-inf",
        "n8-V512-bf16-topp0.9-inf",
        "n8-V512-fp32-topk50-ties",
        "n8-V512-fp32-topk50-topp0.9-ties",
        "n8-V512-fp32-none-flat",
        "n8-V512-fp32-none-logprobs",
        "n8-V512-bf16-topk50-topp0.9-logprobs",
        "n8-V512-fp32-topk50-topp0.9-inf-logprobs-mixed",
        "n1-V1003-fp32-none",
    ],
)
def test_right_samplers_are_judged_right(right: Session, id: str) -> None:  # noqa: A002  # as in `Workload.of`
    workload = Workload.of(id)
    right.time([Timed(name, workload, kind) for name in RIGHT for kind in ("cold", "warm")], 3)
    for name in RIGHT:
        found = right.lane(name, workload).check()
        assert found
        assert [each for each in found if not each.passed] == [], name
    right.forget(workload)


class Outside(FlashInferSampling):
    """Draws the least probable token in one slot of each call."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        ids = super().sample_kernel(logits, n, context, **call)
        ids[1] = logits[1].argmin()
        return ids


class Later(FlashInferSampling):
    """Draws in its first calls and takes a short cut in those that come after: they are the ones that are timed."""

    calls = 0

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        self.calls += 1
        return super().sample_kernel(logits, n, context, **call) if self.calls < 8 else logits[:n].argmax(1)


class Stale(FlashInferSampling):
    """Gives what it once drew to whoever asks."""

    once: Tensor | None = None

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        if self.once is None:
            self.once = super().sample_kernel(logits, n, context, **call)
        return self.once


class OffLogProbs(FlashInferSampling):
    """Log-probs that are 0.01 too large."""

    def log_probs_kernel(self, logits: Tensor, context: Any, **call: Any) -> Tensor:
        return super().log_probs_kernel(logits, context, **call) + 0.01


class Neighbour(FlashInferSampling):
    """Each row takes the parameters of another."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        call["token_to_request_index"] = (torch.arange(n, dtype=torch.int32) + 1) % n
        return super().sample_kernel(logits, n, context, **call)


class FirstRow(FlashInferSampling):
    """Draws for one row, and leaves the others."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:  # noqa: ARG002  # the fault
        return super().sample_kernel(logits, 1, context, **call)


class InPlace(FlashInferSampling):
    """Masks what is not among the first five, in the logits that it was given: they are masked for all from then on."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        logits.masked_fill_(logits < logits.topk(5, dim=1).values[:, 4:], -torch.inf)
        return super().sample_kernel(logits, n, context, **call)


@pytest.mark.parametrize(
    ("sampler", "workload", "says"),
    [
        (Outside, FILTERED, "every drawn id is one that the law allows"),
        (Neighbour, GREEDY_ROW, "every drawn id is one that the law allows"),
        (Stale, FILTERED, "every drawn id is one that the law allows"),
        (Stale, UNFILTERED, "all draws together follow the law"),
        (Later, UNFILTERED, "all draws together follow the law"),
        (OffLogProbs, LOG_PROBS, "log-probs are the law's"),
        (FirstRow, UNFILTERED, "a call gives int64 [8]"),
        (InPlace, FILTERED, "the calls leave the logits as they are"),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "id", "")),
)
def test_samplers_that_are_wrong_in_the_timed_calls_are_caught(
    sampler: Callable[..., Any], workload: Workload, says: str
) -> None:
    session = Session({"wrong": sampler, "right": FlashInferSampling})
    session.time([Timed(name, workload, "cold") for name in session.subjects], 24)
    found = [each.asked for each in session.wrong("wrong", workload)]
    assert any(asked.startswith(says) for asked in found), found
    # Who wrote to the logits cannot be told: all of the session were given them.
    assert [each.asked for each in session.wrong("right", workload)] == (found[:1] if sampler is InPlace else [])


# What cannot be had.


@pytest.mark.parametrize("device", ["nowhere", "meta", "cuda"])
def test_a_device_that_is_none_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device must be .*{device}"):
        Session({}, device)


def test_the_name_of_the_bare_read_is_taken() -> None:
    with pytest.raises(ValueError, match=f"must leave the name '{READ}'"):
        Session({"mine": TorchComposition, READ: TorchComposition})


def sample(logits: Tensor, *_: Any) -> Tensor:
    return logits.argmax(1)


NAMED: dict[str, Callable[..., Any]] = {
    "a": TorchComposition,
    "no log-probs": from_function(sample),
    "one filter": from_function(sample, refuses={"both filters"}),
    "never greedy": from_function(sample, refuses={"temperature 0"}),
    "by row": from_function(sample, parameters_by="row"),
}


@pytest.mark.parametrize(
    ("timed", "says"),
    [
        (Timed("b", SMALL, "cold"), r"sampler must be one of \['read', 'a', .*\], got 'b'"),
        (Timed("a", SMALL, "host"), r"time must be one of \['cold', 'warm'\] on cpu, got 'host'"),
        (Timed("a", SMALL, "graph"), "time must be one of .* got 'graph'"),
        (Timed("a", SMALL, "hot"), "time must be one of .* got 'hot'"),  # type: ignore[arg-type]  # as users may
        (Timed(READ, SMALL, "host"), "time must be one of .* got 'host'"),
        (Timed("no log-probs", LOG_PROBS, "cold"), f"case must be one for .*, got '{LOG_PROBS.id}': .*log-probs"),
        # Claims put such requests in other terms for the suite; a time of something else would be none of this case.
        (Timed("one filter", BOTH, "cold"), f"case must be one for .*, got '{BOTH.id}': .*both filters"),
        (Timed("never greedy", GREEDY_ROW, "cold"), f"case must be one for .*, got '{GREEDY_ROW.id}': .*greedy"),
        (Timed("by row", GATHERED, "cold"), f"case must be one for .*, got '{GATHERED.id}': .*number of the row"),
    ],
    ids=lambda value: str(value) if isinstance(value, Timed) else "",
)
def test_what_cannot_be_timed_is_refused_before_anything_is(timed: Timed, says: str) -> None:
    session = Session(NAMED)
    with pytest.raises(ValueError, match=says):
        session.time([Timed("a", SMALL, "cold"), Timed(READ, SMALL, "cold"), timed], 2)
    assert not any(session.seconds.values())
    assert np.isnan(session.best_rate)


def test_a_graph_of_a_sampler_that_claims_none_is_refused() -> None:
    lane = Session({"a": TorchComposition}).lane("a", SMALL)
    with pytest.raises(ValueError, match=r"time must not be 'graph' for .*TorchComposition"):
        lane.time("graph", 0)


# Counts.


class OneMore(TorchComposition):
    def sample_kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().sample_kernel(*args, **kwargs).neg_().neg()


def test_two_operations_more_are_two_more() -> None:
    session = Session({"plain": TorchComposition, "more": OneMore})
    plain, more = (session.counts(name, FILTERED) for name in ("plain", "more"))
    assert more.operations == plain.operations + 2
    assert (plain.launches, plain.syncs) == (None, None)
    assert plain == session.counts("plain", FILTERED)
    assert plain.to_json() == {"operations": plain.operations, "launches": None, "syncs": None}


def test_the_bare_read_is_not_counted() -> None:
    with pytest.raises(ValueError, match=r"sampler must be one of \['a'\] to be counted, got 'read'"):
        Session({"a": TorchComposition}).counts(READ, SMALL)
