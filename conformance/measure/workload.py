"""Workloads: what a sampler is timed on. The id says all of it, and is all that is needed to make it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from conformance.cases import DTYPES

TEMPERATURE = 0.8
"""Of each row, unless the workload is `varied` or greedy."""

_SPREAD = {
    "gather": "the rows are taken by gather_indices out of four times as many",
    "greedyrow": "one row is greedy",
    "logprobs": "log-probs instead of tokens",
    "mixed": "half of the rows use top-k alone, the others top-p alone",
    "onerow": "one row uses the filters, the others none",
    "unpromised": "no_top_k and no_top_p are False whatever the rows use",
    "varied": "each row has a temperature, top_k and top_p of its own",
}
LOGITS = {
    "peaked": "normal of std 2, and 20 tokens a row raised by 8: as a model's are",
    "flat": "normal of std 0.1",
    "ties": "peaked, rounded to whole numbers: most tokens share their logit with thousands",
    "inf": "peaked, and nine tokens in ten are -inf, as a grammar leaves them",
}
OPTIONS = {**_SPREAD, **{name: f"logits: {says}" for name, says in LOGITS.items() if name != "peaked"}}
"""What may follow the filters in an id."""

_FORM = "n<slots>-V<vocabulary>-<fp32|fp16|bf16>-<none|topk<k>|topp<p>|topk<k>-topp<p>>, then any of"
_GATHERED = 4


@dataclass(frozen=True)
class Workload:
    """One call to be timed, such as ``n64-V128256-bf16-topk50-gather``.

    n: slots. top_k, top_p: of the rows that filter; 0 for none. options: names in `OPTIONS`.
    """

    n: int
    vocab_size: int
    dtype: str
    top_k: int = 0
    top_p: float = 0.0
    options: frozenset[str] = field(default_factory=frozenset)

    @staticmethod
    def of(id: str) -> Workload:  # noqa: A002  # the name of the property that it reverses
        """The workload of an id. Raises ValueError for one that is none."""
        found = re.fullmatch(
            r"n([1-9]\d*)-V([1-9]\d*)-(fp32|fp16|bf16)-(?:none|topk(\d+))?(?:-?topp(\d*\.?\d+))?((?:-[a-z]+)*)", id
        )
        options = found[6].split("-")[1:] if found else []
        wrong = ValueError(f"case must be {_FORM} {sorted(OPTIONS)}, got {id!r}")
        if not found or not set(options) <= set(OPTIONS):
            raise wrong
        n, vocab_size, top_k, top_p = int(found[1]), int(found[2]), int(found[4] or 0), float(found[5] or 0)
        made = Workload(n, vocab_size, found[3], top_k, top_p, frozenset(options))
        if made.id != id:
            raise ValueError(f"{wrong}: it would be {made.id!r}" if made.possible else str(wrong))
        if not made.possible:
            raise ValueError(
                "case must use both filters to be mixed, some filter for onerow, but not with mixed or greedyrow, "
                "k <= V, p < 1, one kind of logits, and for logprobs neither gather nor unpromised, "
                f"got {id!r}"
            )
        return made

    @property
    def possible(self) -> bool:
        """Whether the options go together."""
        options = self.options
        needed = 2 if "mixed" in options else 1 if "onerow" in options else 0
        return (
            (self.top_k > 0) + (self.top_p > 0) >= needed
            and self.top_k <= self.vocab_size
            and self.top_p < 1
            and len(options & set(LOGITS)) <= 1
            and not ("onerow" in options and options & {"mixed", "greedyrow"})
            and not ("logprobs" in options and options & {"gather", "unpromised"})
        )

    @property
    def filters(self) -> str:
        """As in the id."""
        used = [f"topk{self.top_k}"] * (self.top_k > 0) + [f"topp{_positional(self.top_p)}"] * (self.top_p > 0)
        return "-".join(used) or "none"

    @property
    def id(self) -> str:
        """Readable and greppable, and the whole of it: see `of`."""
        return "-".join([f"n{self.n}-V{self.vocab_size}-{self.dtype}", self.filters, *sorted(self.options)])

    @property
    def read_bytes(self) -> int:
        """Of the logits that must be read once."""
        return self.n * self.vocab_size * DTYPES[self.dtype].itemsize

    @property
    def moved_bytes(self) -> int:
        """What any sampler must move at least: the logits are read, and ids (8 bytes) or log-probs (4) written."""
        written = self.n * self.vocab_size * 4 if "logprobs" in self.options else self.n * 8
        return self.read_bytes + written

    @property
    def logits_kind(self) -> str:
        """One of `LOGITS`."""
        return next(iter(self.options & set(LOGITS)), "peaked")

    @property
    def rows(self) -> int:
        """Logits rows of one call."""
        return self.n * (_GATHERED if "gather" in self.options else 1)

    def parameters(self) -> tuple[list[float], list[int], list[float]]:
        """Temperature, top_k and top_p of each request, in the contract's terms."""
        n, options = self.n, self.options
        temperature, top_k, top_p = [TEMPERATURE] * n, [self.top_k] * n, [self.top_p] * n
        if "varied" in options:
            # Around the homogeneous ones, and another for nearly every row.
            temperature = [0.6 + 0.4 * (i * 7 % n) / n for i in range(n)]
            top_k = [min(self.vocab_size, max(1, k // 2 + i * 5 % (k + 1))) if k else 0 for i, k in enumerate(top_k)]
            top_p = [p * (1 - 0.1 * (i * 3 % n) / n) for i, p in enumerate(top_p)]
        if "mixed" in options:
            top_k = [0 if i % 2 else k for i, k in enumerate(top_k)]
            top_p = [p if i % 2 else 0.0 for i, p in enumerate(top_p)]
        if "onerow" in options:
            top_k = [k if i == n // 2 else 0 for i, k in enumerate(top_k)]
            top_p = [p if i == n // 2 else 0.0 for i, p in enumerate(top_p)]
        if "greedyrow" in options:
            temperature[n // 2] = 0.0
        return temperature, top_k, top_p

    def gather_indices(self) -> Tensor | None:
        """int32 [n] on the CPU, the logits row of each slot; None where slot i has row i."""
        if "gather" not in self.options:
            return None
        return torch.randperm(self.rows, generator=torch.Generator().manual_seed(1))[: self.n].to(torch.int32)


def _positional(number: float) -> str:
    """The fewest digits that give the number back, without an exponent."""
    return np.format_float_positional(number, trim="-")


def make_logits(kind: str, rows: int, width: int, dtype: str, device: torch.device) -> Tensor:
    """[rows, width], the same at each call on a device. kind: one of `LOGITS`."""
    generator = torch.Generator(device).manual_seed(2)
    logits = torch.empty(rows, width, dtype=DTYPES[dtype], device=device)
    logits.normal_(0, 0.1 if kind == "flat" else 2, generator=generator)
    if kind != "flat":
        raised = torch.randint(width, (rows, 20), generator=generator, device=device)
        logits.scatter_add_(1, raised, torch.full_like(raised, 8, dtype=logits.dtype))
    if kind == "ties":
        logits.round_()
    if kind == "inf":
        logits.masked_fill_(torch.arange(width, device=device) % 10 != 0, -math.inf)
    return logits
