"""What is timed: a sampler, or the bare read, on a workload. Lanes are ready to run, and keep what they drew."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from conformance.claims import Claims
from conformance.evidence import Evidence, exact, log_probs, pit
from conformance.evidence.cdf import uniform_distance
from conformance.evidence.support import support
from conformance.measure.clock import Call, Clock, Kind
from conformance.measure.workload import Workload, make_logits
from conformance.subject import NO_PROMISE, Subject
from reference import Law, law

ALPHA = 1e-9
"""False alarms of the law check of one lane. A thousand lanes then raise one in a million runs."""

_WARM_UP = 3
_MOST_CALLS = 32
_HOST_CALLS = 10
"""Few enough that the queue of launches never fills: 1,024 of them on today's drivers."""

_MOST_GRAPHS = 8
_LEAST_NODES = 4
"""Of a graph of bare reads. As many as the sets of logits that `CudaClock` gives at least: else some would be warm."""

_ENOUGH_DRAWS, _MORE_SECONDS = 2**12, 0.25
"""What a check adds to the draws that were timed: so many, or as many as fit into so many seconds. By
`conformance.evidence.cdf.detectable`, 4,096 draws show a shift of 0.093, all but once in a million times."""

_CHECKED_LOGITS = {"cpu": 2**20, "cuda": 2**25}
"""Logits whose law is computed for the check of a workload: about a second on one core, less on an H200."""


class Inputs:
    """The logits of a workload, as many sets as its lanes take in turn, and the law of the first few.

    logits: sets of [rows, V], views of one tensor. checked: so many sets have a law.
    """

    def __init__(self, workload: Workload, clock: Clock, device: torch.device, tensors: dict[Any, Tensor]) -> None:
        """tensors: kept between workloads that can share them."""
        self.workload, self.device = workload, device
        sets = clock.inputs(workload.read_bytes)
        of = (workload.logits_kind, workload.rows * sets, workload.vocab_size, workload.dtype)
        if of not in tensors:
            tensors[of] = make_logits(*of, device)
        self.logits: list[Tensor] = list(tensors[of].split(workload.rows))
        rows = workload.gather_indices()
        self.gather_indices = None if rows is None else rows.to(device)
        whole = _CHECKED_LOGITS[device.type] // (workload.n * workload.vocab_size)
        self.checked = min(sets, max(2, whole))
        self.checked_slots = min(workload.n, max(1, _CHECKED_LOGITS[device.type] // workload.vocab_size))
        self._sums = self._fingerprints()
        self._laws: dict[Any, Law] = {}

    def swap(self) -> None:
        """Have the first two sets change places in memory. A sampler that goes by addresses takes one for the other."""
        kept = self.logits[0].clone()
        self.logits[0].copy_(self.logits[1])
        self.logits[1].copy_(kept)

    def intact(self) -> bool:
        """Whether the logits are as they were made: the law is computed from what they are when it is asked for."""
        return self._fingerprints() == self._sums

    def _fingerprints(self) -> list[int]:
        return torch.stack([_sum_of_words(logits) for logits in self.logits[: self.checked]]).tolist()

    def law(self, subject: Subject, index: int) -> Law:
        """The law of the slots that are checked of a set, as the sampler's claims choose it."""
        options = subject.claims.options
        if (index, options) not in self._laws:
            slots = self.checked_slots
            logits = self.logits[index]
            rows = logits[:slots] if self.gather_indices is None else logits[self.gather_indices[:slots].long()]
            columns: Any = subject.own_values(self.workload.vocab_size, *self.workload.parameters())
            if "logprobs" in self.workload.options and subject.claims.log_probs == "raw":
                columns = [1.0] * slots, [0] * slots, [0.0] * slots
            dtypes = (torch.float32, torch.int32, torch.float32)
            given = (
                torch.tensor(x[:slots], dtype=dtype, device=self.device)
                for x, dtype in zip(columns, dtypes, strict=True)
            )
            self._laws[index, options] = law(rows, *given, options=options)
        return self._laws[index, options]


class Lane(Protocol):
    """Something that is timed again and again."""

    def time(self, kind: Kind, number: int) -> float:
        """Seconds of one call, in round `number`."""

    def check(self) -> list[Evidence]:
        """Whether the calls that were timed did what they should."""


def why_not(claims: Claims, workload: Workload) -> str:
    """Why a sampler cannot be given a workload, by its claims; "" where it can."""
    both = workload.top_k and workload.top_p and "mixed" not in workload.options
    greedy = claims.greedy_temperatures - ({0.0} if "temperature 0" in claims.refuses else set())
    if "logprobs" in workload.options and claims.log_probs == "none":
        return "it claims no log-probs"
    if both and "both filters" in claims.refuses:
        return "it refuses both filters at once"
    if "gather" in workload.options and claims.parameters_by == "row":
        return "it takes parameters by the number of the row, and only the first n of the rows have some"
    if "greedyrow" in workload.options and not greedy:
        return "no temperature is greedy by its claims"
    return ""


class SamplerLane:
    """A sampler on a workload.

    Raises ValueError where its claims say that it cannot be given the workload.
    """

    def __init__(self, subject: Subject, inputs: Inputs, clock: Clock) -> None:
        self._subject, self._inputs, self._clock = subject, inputs, clock
        self.workload = inputs.workload
        if why := why_not(subject.claims, self.workload):
            raise ValueError(f"case must be one for {subject.name}, got {self.workload.id!r}: {why}")
        self._sampler, self._context, self.call = self._made()
        self._drawn: dict[int, list[Tensor]] = {}
        self._misshapen: set[str] = set()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._captured: dict[str, Any] = {}
        self._patient = True
        self._calls, self._host_calls = self._calls_a_round()

    def some_call(self) -> object:
        """One call, on the first set of logits."""
        return self.call(self._inputs.logits[0])

    def time(self, kind: Kind, number: int) -> float:
        """See `Lane.time`. Of what the last call of the round gave, a copy is kept for `check`, where it has a law."""
        if kind == "graph":
            return self._time_graph(number)
        sets, last = len(self._inputs.logits), number % self._inputs.checked
        if kind == "warm":
            indices = [last] * self._calls
        else:
            number_of = self._host_calls if kind == "host" else min(self._calls, sets)
            indices = [(last - before) % sets for before in reversed(range(number_of))]
        results: list[Tensor] = []

        def one(index: int) -> None:
            results[:] = [self.call(self._inputs.logits[index])]

        calls = [partial(one, index) for index in indices]
        if kind == "warm":
            calls[0]()
        elif len(calls) < sets:
            self._clock.cool()  # the sets of one round come again before all others have been read
        seconds = self._clock.host(calls) if kind == "host" else self._on_device(calls)
        self._keep(last, results[0])
        return seconds

    def check(self) -> list[Evidence]:
        """See `Lane.check`: every token kept has mass, and all together follow the law; or log-probs are the law's.

        Further calls add draws, with two sets of logits in each other's place.
        """
        if not self._drawn and not self._misshapen:
            raise ValueError(f"{self.workload.id} must be timed before its calls are checked")
        found = [
            exact(
                "the calls leave the logits as they are",
                passed=self._inputs.intact(),
                observed="others, since a sampler of this session was called",
                allowed="none written",
            )
        ]
        shape = f"float32 [{self.workload.n}, {self.workload.vocab_size} or more]"
        asked = f"a call gives {shape if 'logprobs' in self.workload.options else f'int64 [{self.workload.n}]'}"
        if not self._misshapen:
            self._draw_more()
        found.append(exact(asked, passed=not self._misshapen, observed=sorted(self._misshapen), allowed="nothing else"))
        # By rank a wrong temperature shifts every row alike. By index each row is shifted another way: it averages out.
        orders = {"in index order": False, "in rank order": True}
        values: dict[str, list[Tensor]] = {order: [] for order in orders}
        slack = dict.fromkeys(orders, 0.0)
        for index, results in self._drawn.items():
            law = self._inputs.law(self._subject, index)
            if "logprobs" in self.workload.options:
                width = self.workload.vocab_size
                found += [each for result in results for each in log_probs.match_law(result[:, :width], law)]
                continue
            ids = torch.stack(results, dim=1)
            found.append(support(ids, law))
            if found[-1].passed:
                for order, by_rank in orders.items():
                    values[order].append(pit.transform(ids, law, seed=index, by_rank=by_rank).flatten())
                    slack[order] = max(slack[order], pit.slack(law, by_rank=by_rank))
        for order, of_all in values.items():
            if of_all:
                asked = f"all draws together follow the law {order}"
                found.append(uniform_distance(asked, torch.cat(of_all), slack[order], ALPHA / len(orders)))
        return found

    def _draw_more(self) -> None:
        self._inputs.swap()
        number = min(-(-_ENOUGH_DRAWS // self.workload.n), int(_MORE_SECONDS / self._one))
        for call in range(max(2, number)):
            self._keep(1 - call % 2, self.call(self._inputs.logits[call % 2]))
        self._inputs.swap()

    def _made(self, **options: Any) -> tuple[Any, Any, Callable[..., Tensor]]:
        """A sampler, its context, and the call: logits [rows, V] -> ids [n] or log-probs."""
        subject, workload = self._subject, self.workload
        sampler = subject.sampler(workload.vocab_size, subject.seed_of(workload.id, *options), **options)
        context = subject.context_of(*subject.own_values(workload.vocab_size, *workload.parameters()))
        if "logprobs" in workload.options:
            return sampler, context, lambda logits: sampler.log_probs_kernel(logits, context)
        flags = NO_PROMISE if "unpromised" in workload.options else subject.flags_of(context, workload.vocab_size)
        call = partial(
            sampler.sample_kernel, n=workload.n, context=context, gather_indices=self._inputs.gather_indices, **flags
        )
        return sampler, context, call

    def _calls_a_round(self) -> tuple[int, int]:
        """Of the device, and of the host."""
        for index in range(_WARM_UP):
            self.call(self._inputs.logits[index % 2])
        self._clock.wait()
        self._one = statistics.median(
            self._on_device([partial(self.call, self._inputs.logits[index % 2])]) for index in range(_WARM_UP)
        )
        calls = self._clock.target / self._one
        return min(_MOST_CALLS, math.ceil(calls)), min(_HOST_CALLS, math.ceil(10 * calls))

    def _time_graph(self, number: int) -> float:
        graphs = self._graphs or self._capture()
        last = number % min(self._inputs.checked, len(graphs))
        order = [graphs[(last - before) % len(graphs)] for before in reversed(range(max(self._calls, len(graphs))))]
        seconds = self._on_device([graph.replay for graph in order])
        self._keep(last, self._captured["outputs"][last])
        return seconds

    def _on_device(self, calls: Sequence[Call]) -> float:
        """Calls that waited for the device the last time will wait again: one try is enough until one does not."""
        before = self._clock.exposed
        seconds = self._clock.device(calls, patient=self._patient)
        self._patient = self._clock.exposed == before
        return seconds

    def check_graph(self) -> None:
        """Raise ValueError for a sampler that claims no CUDA graphs."""
        if not self._subject.claims.cuda_graph:
            raise ValueError(f"time must not be 'graph' for {self._subject.name}, which claims no CUDA graphs")

    def _capture(self) -> list[torch.cuda.CUDAGraph]:
        self.check_graph()
        sampler, context, call = self._made(enable_cuda_graph=True)
        graphs, outputs = [], []
        for logits in self._inputs.logits[:_MOST_GRAPHS]:
            output = torch.empty(self.workload.n, dtype=torch.int64, device=self._subject.device)
            wants = self._subject.claims.output and "logprobs" not in self.workload.options
            step = partial(call, logits, output=output) if wants else partial(call, logits)
            step()  # compiles and allocates what a capture must not
            self._clock.wait()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._subject.rng(sampler))
            with torch.cuda.graph(graph):
                outputs.append(step())
            graphs.append(graph)
        self._graphs = graphs
        self._captured = {"sampler": sampler, "context": context, "outputs": outputs}  # alive as long as the graphs
        return self._graphs

    def _keep(self, index: int, result: Any) -> None:
        if not isinstance(result, Tensor):
            self._misshapen.add(type(result).__name__)
            return
        if not self._well_formed(result):
            self._misshapen.add(f"{str(result.dtype).removeprefix('torch.')} {list(result.shape)}")
            return
        kept = self._drawn.setdefault(index, [])
        if "logprobs" in self.workload.options:
            kept.clear()  # they are large, and the same each time
        kept.append(result[: self._inputs.checked_slots].clone())

    def _well_formed(self, result: Tensor) -> bool:
        n, shape = self.workload.n, list(result.shape)
        if "logprobs" in self.workload.options:
            return result.dtype == torch.float32 and shape[:-1] == [n] and shape[-1] >= self.workload.vocab_size
        return result.dtype == torch.int64 and shape == [n]


class ReadLane:
    """The bare read of a workload's logits: on a CUDA device each row's maximum, on a CPU a sum over their words.

    Where rows are gathered, so many that lie side by side are read.
    """

    def __init__(self, inputs: Inputs, clock: Clock) -> None:
        self._clock = clock
        self.workload = inputs.workload
        self._logits = [logits[: self.workload.n] for logits in inputs.logits]
        self._read: Callable[[Tensor], Tensor] = _sum_of_words
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if inputs.device.type == "cuda":
            self._read = self._fastest()
        once = self._seconds(1, 2)
        self._calls = min(_MOST_CALLS, max(1, math.ceil(clock.target / once)))

    def time(self, kind: Kind, number: int) -> float:
        """See `Lane.time`."""
        if kind == "host":
            raise ValueError("time must not be 'host' where the bare read is the baseline: the host does nothing in it")
        sets = {"cold": len(self._logits), "warm": 1, "graph": _MOST_GRAPHS}[kind]
        return self._seconds(min(sets, len(self._logits)), self._calls, number)

    def check(self) -> list[Evidence]:
        """See `Lane.check`."""
        logits = self._logits[0]
        if self._read is _sum_of_words:
            return []  # an operation of torch, whose result is no more than a reason to read
        maxima = self._read(logits).amax(1)
        right = bool((maxima == logits.amax(1).float()).all())
        return [exact("the bare read gives each row's maximum", passed=right, observed=right, allowed=True)]

    def _seconds(self, sets: int, calls: int, number: int = 0) -> float:
        if self._read is _sum_of_words:
            chosen = [self._logits[(number * calls + i) % sets] for i in range(calls)]
            return self._clock.device([partial(self._read, each) for each in chosen])
        return self._clock.device([self._graph(self._read, sets).replay]) / max(sets, _LEAST_NODES)

    def _graph(self, read: Callable[[Tensor], Tensor], sets: int) -> torch.cuda.CUDAGraph:
        """Several nodes a graph, every other one on a second branch: none waits for the last programs of another.

        On an H200, with eight nodes, a branch alone read 66 MB at 3.9 TB/s, two branches at 4.4.
        """
        if sets not in self._graphs:
            read(self._logits[0])
            self._clock.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                first, second = torch.cuda.current_stream(), torch.cuda.Stream()
                if second == first:  # torch hands out 32 streams in turn
                    second = torch.cuda.Stream()
                second.wait_stream(first)
                for node in range(max(sets, _LEAST_NODES)):
                    with torch.cuda.stream(second if node % 2 else first):
                        read(self._logits[node % sets])
                first.wait_stream(second)
            self._graphs[sets] = graph
        return self._graphs[sets]

    def _fastest(self) -> Callable[[Tensor], Tensor]:
        from conformance.measure.read_kernel import candidates  # noqa: PLC0415  # Triton is there with CUDA alone

        sets = len(self._logits)
        best, least = None, math.inf
        for read in candidates(self.workload.n, self.workload.vocab_size, self._logits[0].device):
            self._graphs.clear()
            replay: Call = self._graph(read, sets).replay
            seconds = statistics.median(self._clock.device([replay]) for _ in range(5))
            if seconds < least:
                best, least = read, seconds
        self._graphs.clear()
        assert best is not None
        return best


def _sum_of_words(logits: Tensor) -> Tensor:
    """A sum of int64 runs at memory speed on a core, a maximum of bf16 at half of it. Up to 14 bytes are left out."""
    data = logits.view(-1).view(torch.uint8)
    data = data[-data.storage_offset() % 8 :]
    if len(data) < 8:
        return data.sum()
    return data[: len(data) // 8 * 8].view(torch.int64).sum()
