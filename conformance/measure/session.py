"""Times several samplers on several workloads in one process, round by round, side by side."""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from conformance.claims import Claims
from conformance.evidence import Evidence
from conformance.measure.clock import Kind, clock_of
from conformance.measure.counts import Counts, count
from conformance.measure.lane import Inputs, Lane, ReadLane, SamplerLane
from conformance.measure.ratio import Ratio, paired_ratio
from conformance.measure.workload import Workload
from conformance.runner import device_of, environment, name_of
from conformance.subject import Subject

READ = "read"
"""The name under which every session has the bare read of a workload's logits."""

FLOOR_SHARE = 0.9
"""A bare read that reaches less of the best rate seen is no floor; for so many bytes that a start counts little."""

_LARGE = 64e6


class Timed(NamedTuple):
    """One thing that is timed: a sampler, or `READ`, on a workload, and the kind of time."""

    sampler: str
    workload: Workload
    kind: Kind

    def __str__(self) -> str:
        return f"{self.sampler} on {self.workload.id} ({self.kind})"


class Session:
    """Samplers on a device, ready to be timed.

    samplers: factories `make_sampler(vocab_size, rng)` by name, each with the claims that it states.
    device: "cpu" or "cuda". On a CPU the process runs in one thread from then on, and keeps the memory that it frees.

    seconds: of each `Timed`, by the number of the round.
    """

    def __init__(self, samplers: Mapping[str, Callable[..., Any]], device: str | torch.device = "cpu") -> None:
        self.device = device_of(device)
        if READ in samplers:
            raise ValueError(f"samplers must leave the name {READ!r} to the bare read, got {sorted(samplers)}")
        self.subjects = {
            name: Subject(make, Claims.of(make), self.device, name_of(make), "measure", 0)
            for name, make in samplers.items()
        }
        try:
            self.clock = clock_of(self.device)
        except RuntimeError as error:
            raise ValueError(f"device must have 1 GiB of memory to spare, got {str(self.device)!r}: {error}") from error
        self.environment = {**environment(self.device), **card(self.device)}
        self.seconds: dict[Timed, dict[int, float]] = {}
        self._rounds = 0
        self._tensors: dict[Any, torch.Tensor] = {}
        self._inputs: dict[Workload, Inputs] = {}
        self._lanes: dict[tuple[str, Workload], Lane] = {}

    def versions(self) -> dict[str, str]:
        """As `environment`, but now: a sampler may have loaded what lay on the path without being installed."""
        return environment(self.device)

    def time(self, timed: Iterable[Timed], rounds: int, progress: Callable[[], None] = lambda: None) -> None:
        """Time each once a round, in an order that is another in each round. progress: called after each round.

        Raises ValueError, before anything is timed, for a sampler, workload or kind of time that cannot be had.
        """
        timed = list(dict.fromkeys(timed))
        for each in timed:
            if each.kind not in self.clock.kinds:
                raise ValueError(f"time must be one of {list(self.clock.kinds)} on {self.device}, got {each.kind!r}")
            if each.kind == "host" and each.sampler == READ:
                raise ValueError(f"time must not be 'host' for {READ!r}: the host does nothing in it")
            with _named(each):
                lane = self.lane(each.sampler, each.workload)
            if each.kind == "graph" and isinstance(lane, SamplerLane):
                lane.check_graph()
            self.seconds.setdefault(each, {})
        for _ in range(rounds):
            order = timed.copy()
            random.Random(self._rounds).shuffle(order)  # noqa: S311  # an order, not a secret
            for each in order:
                lane = self.lane(each.sampler, each.workload)
                with _named(each):
                    self.seconds[each][self._rounds] = lane.time(each.kind, self._rounds)
            self._rounds += 1
            progress()

    def lane(self, sampler: str, workload: Workload) -> Lane:
        """A sampler, or `READ`, on a workload, made and warmed up at the first call."""
        key = sampler, workload
        if key not in self._lanes:
            if sampler != READ and sampler not in self.subjects:
                raise ValueError(f"sampler must be one of {[READ, *self.subjects]}, got {sampler!r}")
            if workload not in self._inputs:
                self._inputs[workload] = Inputs(workload, self.clock, self.device, self._tensors)
            inputs = self._inputs[workload]
            self._lanes[key] = (
                ReadLane(inputs, self.clock)
                if sampler == READ
                else SamplerLane(self.subjects[sampler], inputs, self.clock)
            )
        return self._lanes[key]

    def forget(self, workload: Workload) -> None:
        """Free the memory of a workload and its lanes; what was timed is kept."""
        self._inputs.pop(workload, None)
        self._lanes = {key: lane for key, lane in self._lanes.items() if key[1] != workload}
        self._tensors.clear()

    def median(self, timed: Timed) -> float:
        """Seconds."""
        return statistics.median(self.seconds[timed].values())

    def ratio(self, timed: Timed, baseline: Timed, confidence: float = 0.99) -> Ratio:
        """Of the rounds in which both were timed."""
        ours, theirs = self.seconds[timed], self.seconds[baseline]
        common = [number for number in ours if number in theirs]
        return paired_ratio([ours[each] for each in common], [theirs[each] for each in common], confidence)

    def wrong(self, sampler: str, workload: Workload) -> list[Evidence]:
        """What the calls that were timed did wrong."""
        return [each for each in self.lane(sampler, workload).check() if not each.passed]

    def counts(self, sampler: str, workload: Workload) -> Counts:
        """What one call launches, and whether it waits."""
        lane = self.lane(sampler, workload)
        if not isinstance(lane, SamplerLane):
            raise ValueError(f"sampler must be one of {list(self.subjects)} to be counted, got {sampler!r}")
        return count(lane.some_call, self.device)

    @property
    def exposed(self) -> int:
        """How many times calls waited for the device, so that their time on it holds time of the host."""
        return self.clock.exposed

    @property
    def best_rate(self) -> float:
        """Bytes a second, the best of all bare reads out of no cache."""
        return max((self._rate(each) for each in self._cold_reads()), default=float("nan"))

    def slow_floors(self) -> list[str]:
        """Bare reads of 64 MB or more that reach less than 90 % of the best rate of this run, in words."""
        return [
            f"{each} reads {self._rate(each) / 1e9:.0f} GB/s, {self._rate(each) / self.best_rate:.0%} of the best"
            for each in self._cold_reads()
            if each.workload.read_bytes >= _LARGE and self._rate(each) < FLOOR_SHARE * self.best_rate
        ]

    def _cold_reads(self) -> list[Timed]:
        """Those of which there is a time: an interruption may have left none."""
        return [each for each, times in self.seconds.items() if times and (each.sampler, each.kind) == (READ, "cold")]

    def _rate(self, timed: Timed) -> float:
        return timed.workload.read_bytes / self.median(timed)


@contextmanager
def _named(timed: Timed) -> Iterator[None]:
    """An error says what was timed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"(timing {timed})")
        raise


def card(device: torch.device) -> dict[str, str]:
    """The card's driver and clocks as they are now, where its tool is there to ask. Empty on a CPU."""
    program = shutil.which("nvidia-smi")
    if device.type != "cuda" or program is None:
        return {}
    asked = {
        "driver": "driver_version",
        "SM clock": "clocks.sm",
        "memory clock": "clocks.mem",
        "power limit": "power.limit",
        "temperature": "temperature.gpu",
    }
    command: list[str] = [program, f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader"]
    command.append(f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}")  # torch and the tool number cards apart
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the tool it found
    values = [value.strip() for value in found.stdout.strip().split(",")]
    return dict(zip(asked, values, strict=True)) if found.returncode == 0 and len(values) == len(asked) else {}
