"""FlashInferSampling against the composition it replaces, on one CUDA device, in one run.

    python -m tests.benchmarks.dispatcher [--markdown FILE]

The composition, as FlashInfer's documentation and users put it together: logits / temperature in
fp32, torch.softmax, one FlashInfer kernel; for batches in which both filters are in use,
`top_k_top_p_sampling_from_logits`. Both sides get the same inputs and run in turn, round by round,
with the L2 cache overwritten before each call (CUDA events; medians).
Host time is the mean wall time of a call that nobody waits for. Ratios are composition / dispatcher.
"""

from __future__ import annotations

import argparse
import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flashinfer import __version__ as flashinfer_version
from flashinfer import sampling as flashinfer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from optimized import FlashInferSampling
from reference import SamplingContext, filter_flags

VOCAB = 128_256
BATCHES = (1, 8, 64, 256, 1024)
MIXES = ("none", "top-p", "top-k", "mixed", "both", "none + greedy row", "gather")
FIRST_FOUR = MIXES[:4]
ROUNDS = 30
CALLS_PER_ROUND = 10


@dataclass(frozen=True)
class Cell:
    """One line of the table. Times in microseconds."""

    n: int
    mix: str
    composition: float
    dispatcher: float
    host_composition: float
    host_dispatcher: float

    @property
    def ratio(self) -> float:
        """How many times faster the dispatcher is."""
        return self.composition / self.dispatcher


def make_logits(rows: int, seed: int) -> Tensor:
    """bf16 [rows, VOCAB], peaked as a model's are: normal of std 2, 20 tokens a row raised by 8."""
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = torch.empty(rows, VOCAB, dtype=torch.bfloat16, device="cuda").normal_(0, 2, generator=generator)
    raised = torch.randint(VOCAB, (rows, 20), generator=generator, device="cuda")
    return logits.scatter_add_(1, raised, torch.full_like(raised, 8, dtype=torch.bfloat16))


def parameters(mix: str, n: int) -> tuple[list[float], list[int], list[float]]:
    """Temperature, top_k and top_p of each request."""
    odd = [i % 2 == 1 for i in range(n)]
    temperature = [0.8] * n
    if mix == "none + greedy row":
        temperature[n // 2] = 0.0
    top_k = {"top-k": [50] * n, "both": [50] * n, "mixed": [0 if o else 50 for o in odd]}.get(mix, [0] * n)
    top_p = {"top-p": [0.9] * n, "both": [0.9] * n, "mixed": [0.9 if o else 0.0 for o in odd]}.get(mix, [0.0] * n)
    return temperature, top_k, top_p


def composition(mix: str, n: int, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Callable[..., Tensor]:
    """The composition for one mix. Its filter tensors are prepared outside of the timing."""
    temperature = torch.where(temperature == 0, 1.0, temperature)[:, None]  # it has no greedy rows
    k_or_all = torch.where(top_k == 0, VOCAB, top_k)
    p_or_one = torch.where(top_p == 0, 1.0, top_p)

    def draw(logits: Tensor, rng: torch.Generator, gather: Tensor | None) -> Tensor:
        rows = logits[:n] if gather is None else logits[gather[:n].to(torch.int64)]
        scaled = rows.float() / temperature
        if mix in {"mixed", "both"}:
            return flashinfer.top_k_top_p_sampling_from_logits(scaled, k_or_all, p_or_one, generator=rng)
        probs = torch.softmax(scaled, dim=-1)
        if mix == "top-p":
            return flashinfer.top_p_sampling_from_probs(probs, top_p, generator=rng)
        if mix == "top-k":
            return flashinfer.top_k_sampling_from_probs(probs, top_k, generator=rng)
        return flashinfer.sampling_from_probs(probs, generator=rng)

    return draw


def composed_log_probs(logits: Tensor, context: SamplingContext) -> Tensor:
    """Log-probs as the composition gives them: softmax, both renormalisations, log."""
    view = context.gpu_view
    probs = torch.softmax(logits.float() / view.temperature[:, None], dim=-1)
    probs = flashinfer.top_k_renorm_probs(probs, torch.where(view.top_k == 0, VOCAB, view.top_k))
    return flashinfer.top_p_renorm_probs(probs, torch.where(view.top_p == 0, 1.0, view.top_p)).log()


class Timer:
    """Times several calls in turn with a cold L2 cache."""

    def __init__(self) -> None:
        # Overwrites the L2 (60 MB) many times over, and takes about 0.5 ms: long enough for the host to
        # enqueue a whole call meanwhile, so that device times hold no host time.
        self._flush = torch.empty(2**31, dtype=torch.uint8, device="cuda")

    def device(self, calls: list[Callable[[], object]]) -> list[float]:
        """Median device microseconds of each call."""
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(3):
            for call in calls:
                call()
        for _ in range(ROUNDS):
            for call, into in zip(calls, times, strict=True):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                self._flush.zero_()
                start.record()
                call()
                end.record()
                torch.cuda.synchronize()
                into.append(start.elapsed_time(end) * 1e3)
        return [statistics.median(t) for t in times]

    def host(self, calls: list[Callable[[], object]]) -> list[float]:
        """Host microseconds of each call when nobody waits for it, run in turn."""
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(ROUNDS):
            for call, into in zip(calls, times, strict=True):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(CALLS_PER_ROUND):
                    call()
                into.append((time.perf_counter() - start) / CALLS_PER_ROUND * 1e6)
        torch.cuda.synchronize()
        return [statistics.median(t) for t in times]


def sampling_cells(timer: Timer) -> Iterator[Cell]:
    """Time every batch size and mix."""
    for n in BATCHES:
        plenty, plain = make_logits(16 * n, 1), [make_logits(n, seed) for seed in (2, 3, 4)]
        for mix in MIXES:
            temperature, top_k, top_p = parameters(mix, n)
            context = SamplingContext(temperature, top_k, top_p, device="cuda")
            flags = filter_flags(context, VOCAB)
            sampler = FlashInferSampling(VOCAB, torch.Generator("cuda").manual_seed(0))
            rng = torch.Generator("cuda").manual_seed(0)
            view = context.gpu_view
            composed = composition(mix, n, view.temperature, view.top_k, view.top_p)
            gather = torch.randperm(16 * n, device="cuda").to(torch.int32) if mix == "gather" else None
            inputs = itertools.cycle([plenty] if gather is not None else plain)

            def old(inputs: Any = inputs, gather: Any = gather, composed: Any = composed, rng: Any = rng) -> Tensor:
                return composed(next(inputs), rng, gather)

            def new(inputs: Any = inputs, gather: Any = gather, sampler: Any = sampler, context: Any = context,
                    flags: Any = flags, n: int = n) -> Tensor:  # fmt: skip
                return sampler.sample_kernel(next(inputs), n, context, **flags, gather_indices=gather)

            yield Cell(n, mix, *timer.device([old, new]), *timer.host([old, new]))


def log_prob_cells(timer: Timer) -> Iterator[Cell]:
    """Time log-probs of a batch in which every row uses both filters, and of one without filters."""
    for n, mix in itertools.product(BATCHES, ("log-probs none", "log-probs both")):
        logits = make_logits(n, 2)
        context = SamplingContext(*parameters(mix.removeprefix("log-probs "), n), device="cuda")
        sampler = FlashInferSampling(VOCAB, torch.Generator("cuda").manual_seed(0))

        def old(logits: Tensor = logits, context: SamplingContext = context, mix: str = mix) -> Tensor:
            if mix == "log-probs none":
                return torch.log_softmax(logits.float() / context.gpu_view.temperature[:, None], dim=-1)
            return composed_log_probs(logits, context)

        def new(logits: Tensor = logits, context: SamplingContext = context, sampler: Any = sampler) -> Tensor:
            return sampler.log_probs_kernel(logits, context)

        yield Cell(n, mix, *timer.device([old, new]), *timer.host([old, new]))


def main() -> None:
    """Print the table; write it as markdown where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    options = parser.parse_args()
    timer = Timer()
    total = len(BATCHES) * (len(MIXES) + 2)
    cells = list(track(itertools.chain(sampling_cells(timer), log_prob_cells(timer)), "timing", total=total))

    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, FlashInfer {flashinfer_version}"
    title = f"{card}, Python {platform.python_version()}; V = {VOCAB:,}, bf16, T = 0.8, k = 50, p = 0.9"
    header = ["n", "batch", "composition us", "dispatcher us", "ratio", "host us: composition", "host us: dispatcher"]
    rows = [
        [str(c.n), c.mix, f"{c.composition:.0f}", f"{c.dispatcher:.0f}", f"{c.ratio:.2f}",
         f"{c.host_composition:.0f}", f"{c.host_dispatcher:.0f}"]
        for c in cells
    ]  # fmt: skip
    first_four = [math.log(c.ratio) for c in cells if c.mix in FIRST_FOUR]
    summary = f"Geometric mean of the ratios of {', '.join(FIRST_FOUR)}: {math.exp(statistics.mean(first_four)):.2f}"
    table = Table(*header, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table, summary)
    if options.markdown:
        lines = [title, "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        options.markdown.write_text("\n".join([*lines, "", summary, ""]))


if __name__ == "__main__":
    main()
