"""Times samplers on many workloads, all of them and the bare read in the same rounds: `bench`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from conformance.measure.clock import KINDS, Kind
from conformance.measure.counts import Counts
from conformance.measure.errors import in_words
from conformance.measure.lane import why_not
from conformance.measure.ratio import LEAST_ROUNDS, Ratio
from conformance.measure.result import CONFIDENCE, Bench, Calls, Finding, Missing, Row
from conformance.measure.session import READ, Session, Timed, card
from conformance.measure.workload import Workload

ROUNDS = 20
"""If it is not said how many."""

WORKLOADS: dict[str, tuple[str, ...]] = {
    "quick": (
        "n1-V32768-fp32-none", "n8-V32768-fp32-none", "n8-V32768-fp32-topk50", "n8-V32768-fp32-topp0.9",
        "n8-V32768-fp32-topk50-topp0.9", "n8-V32768-fp32-none-logprobs",
    ),
    "standard": tuple(
        f"n{n}-V128256-bf16-{what}"
        for n in (1, 8, 64, 256, 1024)
        for what in (
            "none", "topp0.9", "topk50", "topk50-topp0.9-mixed", "topk50-topp0.9", "none-greedyrow", "none-gather",
            "none-logprobs", "topk50-topp0.9-logprobs",
        )
    ),
    "wide": tuple(
        f"n{n}-V{vocab_size}-bf16-{what}"
        for vocab_size in (32000, 128256, 151936, 262144)
        for n in (8, 64, 256)
        for what in (
            "none", "topk50", "topp0.9", "topk50-topp0.9",
            # The hardest for a search for the edge: no gap to find, many tokens on it, next to none left.
            *(("topk50-topp0.9-flat", "topk50-topp0.9-ties", "topk50-topp0.9-inf") if n == 64 else ()),
        )
    ),
}  # fmt: skip
"""Named sets of ids. "quick" is for a CPU, the others are for a CUDA device: their logits are up to 1 GB a call."""

Progress = Callable[[int, int, str], None]
"""Called before each step with its number, the number of steps, and what is done in it."""


def bench(
    samplers: Mapping[str, Callable[..., Any]],
    cases: Iterable[str],
    *,
    device: str | torch.device = "cpu",
    kinds: Iterable[Kind] | None = None,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
    keep: Callable[[Bench], None] | None = None,
) -> Bench:
    """Time samplers on workloads, one workload after the other, and check the calls that were timed.

    samplers: factories `make_sampler(vocab_size, rng)` by name, each with the claims that it states. The others are
    compared with the first. cases: ids of workloads. kinds: of time; None for all that the device has.

    A sampler that raises is named with its error, and the run goes on without it in that workload. Interrupting it
    (KeyboardInterrupt) keeps the workloads that were done. keep: called with what there is after each workload, for
    those who expect the process to be killed. Raises ValueError, before anything is timed, for a case
    that is none, a kind that the device has not, too few rounds, and claims that are none.
    """
    started = time.perf_counter()
    workloads = [Workload.of(each) for each in dict.fromkeys(cases)]
    if not samplers or not workloads:
        raise ValueError(f"samplers and cases must not be empty, got {list(samplers)} and {len(workloads)} cases")
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds must be at least {LEAST_ROUNDS}, got {rounds}")
    session = Session(samplers, device)
    wanted = list(session.clock.kinds if kinds is None else dict.fromkeys(kinds))
    if not wanted or not set(wanted) <= set(session.clock.kinds):
        raise ValueError(f"time must be among {list(session.clock.kinds)} on {session.device}, got {wanted}")
    factories = {name: subject.name for name, subject in session.subjects.items()}
    found = Bench(factories, str(session.device), wanted, rounds, dict(session.environment))
    found.not_timed = [each.id for each in workloads]
    found.missing += _kinds_missing(session, wanted, every=kinds is None)
    steps = rounds + 2

    def told(before: int, step: int, what: str) -> None:
        if progress:
            progress(before + step, len(workloads) * steps, what)

    try:
        for number, workload in enumerate(workloads):
            one = _Together(session, workload, wanted, rounds)
            one.run(partial(told, number * steps))
            found.calls += one.calls
            found.missing += one.missing
            if one.broke_cuda:
                break
            found.not_timed = [each.id for each in workloads[number + 1 :]]
            if keep and number + 1 < len(workloads):
                _conclude(found, session, time.perf_counter() - started)
                keep(found)
    except KeyboardInterrupt:
        found.interrupted = True
    _conclude(found, session, time.perf_counter() - started)
    return found


def _conclude(found: Bench, session: Session, seconds: float) -> None:
    """What is known only at the end, or so far."""
    found.environment |= session.versions()
    found.card_after = card(session.device)
    found.best_rate, found.slow_floors, found.exposed = session.best_rate, session.slow_floors(), session.exposed
    wrong = {(each.case, each.sampler) for each in found.calls if each.wrong}
    first = next(iter(found.samplers))
    found.rows = [
        _row(session, each, first, wrong=(each.workload.id, each.sampler) in wrong) for each in session.seconds
    ]
    found.seconds = seconds


class _CudaBrokenError(Exception):
    """Nothing more can be done on the device in this process."""


class _Together:
    """The samplers on one workload. What was timed stays in the session if it was checked too."""

    def __init__(self, session: Session, workload: Workload, kinds: list[Kind], rounds: int) -> None:
        self._session, self._workload, self._kinds, self._rounds = session, workload, kinds, rounds
        self.calls: list[Calls] = []
        self.missing: list[Missing] = []
        self.broke_cuda = False

    def run(self, step: Callable[[int, str], None]) -> None:
        """Time and check them. step: called with the number of each step, and what is done in it."""
        checked = False
        try:
            step(0, f"{self._workload.id}: making ready")
            timed = self._side_by_side(self._able(self._claimed()), step)
            step(self._rounds + 1, f"{self._workload.id}: checking")
            self.calls = [self._checked(name) for name in _samplers(timed)]
            checked = True
        except _CudaBrokenError:
            self.broke_cuda = True
        finally:
            if not checked:
                self._drop()
            self._session.forget(self._workload)

    def _claimed(self) -> list[Timed]:
        """What can be timed by the claims of the samplers, with what the bare read has of it."""
        timed = []
        for name, subject in self._session.subjects.items():
            if why := why_not(subject.claims, self._workload):
                self._miss(name, "", why)
                continue
            kinds = (kind for kind in self._kinds if kind != "graph" or subject.claims.cuda_graph)
            timed += [Timed(name, self._workload, kind) for kind in kinds]
        needed = {each.kind for each in timed} - {"host"}
        return [*(Timed(READ, self._workload, kind) for kind in self._kinds if kind in needed), *timed]

    def _able(self, timed: list[Timed]) -> list[Timed]:
        """Those that raise nothing when they are timed alone; nothing where only the read is left."""
        session, workload = self._session, self._workload
        made = [name for name in _samplers(timed) if self._works(partial(session.lane, name, workload), name)]
        able = [
            each
            for each in timed
            if each.sampler in made and self._works(partial(session.time, [each], 1), each.sampler, each.kind)
        ]
        self._drop()
        return able if any(each.sampler != READ for each in able) else []

    def _side_by_side(self, timed: list[Timed], step: Callable[[int, str], None]) -> list[Timed]:
        """Those that were timed, all in the same rounds."""
        if not timed:
            return []
        number = itertools.count(1)
        try:
            self._session.time(timed, self._rounds, lambda: step(next(number), f"{self._workload.id}: timing"))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # samplers raise what they like
            self._drop()
            self._stop_if_broken("", in_words(error))
            able = self._able(timed)
            if able == timed:
                self._miss("", "", f"one of them raised beside the others, and none alone: {in_words(error)}")
                return []
            return self._side_by_side(able, step)
        return timed

    def _checked(self, name: str) -> Calls:
        counts: list[Counts] = []
        try:
            wrong = [
                Finding(each.asked, each.observed, each.allowed) for each in self._session.wrong(name, self._workload)
            ]
        except Exception as error:  # noqa: BLE001  # what went wrong on a device shows when it is next asked
            self._stop_if_broken(name, in_words(error))
            wrong = [Finding("the timed calls can be checked", in_words(error), "no error")]
        if name != READ:
            self._works(lambda: counts.append(self._session.counts(name, self._workload)), name, "counts")
        return Calls(self._workload.id, name, next(iter(counts), None), wrong)

    def _works(self, call: Callable[[], object], sampler: str, kind: str = "") -> bool:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # samplers raise what they like
            self._stop_if_broken(sampler, in_words(error))
            self._miss(sampler, kind, in_words(error))
            return False
        return True

    def _stop_if_broken(self, sampler: str, why: str) -> None:
        try:
            self._session.clock.wait()
        except RuntimeError as error:
            self._miss(sampler, "", f"{why}. This left CUDA broken: nothing more can be timed in its process")
            raise _CudaBrokenError from error

    def _miss(self, sampler: str, kind: str, why: str) -> None:
        self.missing.append(Missing(self._workload.id, sampler, kind, why))

    def _drop(self) -> None:
        seconds = self._session.seconds
        for each in [each for each in seconds if each.workload == self._workload]:
            del seconds[each]


def _samplers(timed: list[Timed]) -> list[str]:
    return list(dict.fromkeys(each.sampler for each in timed))


def _kinds_missing(session: Session, kinds: list[Kind], *, every: bool) -> list[Missing]:
    """Kinds that cannot be had on any workload. every: the device's own lack is told too, as nobody chose kinds."""
    lacks = [Missing("", "", kind, "only a CUDA device has it") for kind in KINDS if kind not in kinds and every]
    if "graph" in kinds:
        lacks += [
            Missing("", name, "graph", "it claims no CUDA graphs")
            for name, subject in session.subjects.items()
            if not subject.claims.cuda_graph
        ]
    return lacks


def _row(session: Session, timed: Timed, first: str, *, wrong: bool) -> Row:
    workload, is_read = timed.workload, timed.sampler == READ
    seconds = session.median(timed)

    def over(sampler: str) -> Ratio | None:
        other = timed._replace(sampler=sampler)
        return session.ratio(timed, other, CONFIDENCE) if other in session.seconds and other != timed else None

    moved = None if timed.kind == "host" else workload.read_bytes if is_read else workload.moved_bytes
    rate = None if moved is None else moved / seconds
    return Row(
        workload.id, timed.sampler, timed.kind, seconds, over(READ), None if is_read else over(first), moved, rate,
        None if rate is None else rate / session.best_rate, wrong,
    )  # fmt: skip
