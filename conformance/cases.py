"""Inputs. A case is its own source: what a reproducer prints is what the suite ran."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from conformance.engine import plain_context
from reference import Law, LawOptions, law

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """Logits, the parameters of some requests, and a pattern of slots that is repeated to any length.

    name: says what is special; `id` adds the sizes.
    code: a Python expression over torch for the logits, float32 [rows, W] on the CPU.
    temperature, top_k, top_p: one entry a request; a single entry stands for all. Long ones are given
        as expressions too.
    rows, requests: logits row and request of each slot of the pattern; None means 0, 1, 2, ...
    draws: total number of draws that the tier gives it.
    literal: names of parameters that are given as they are, also where a sampler has other values for "off".
    """

    name: str
    code: str
    vocab_size: int
    temperature: tuple[float, ...] | str = (1.0,)
    top_k: tuple[int, ...] | str = (0,)
    top_p: tuple[float, ...] | str = (0.0,)
    dtype: str = "fp32"
    rows: tuple[int, ...] | None = None
    requests: tuple[int, ...] | None = None
    draws: int = 2**16
    literal: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Readable and greppable: ``crossing-n4-V8-fp32``."""
        return f"{self.name}-n{self.slots}-V{self.vocab_size}-{self.dtype}"

    @property
    def request_count(self) -> int:
        """Number of requests."""
        return len(self.parameters()[0])

    @property
    def slots(self) -> int:
        """Length of the slot pattern."""
        return len(self.rows or self.requests or range(self.request_count))

    def parameters(self) -> tuple[list[float], list[int], list[float]]:
        """Temperature, top_k and top_p, one entry a request."""
        temperature, top_k, top_p = (_evaluate(x) for x in (self.temperature, self.top_k, self.top_p))
        n = max(len(temperature), len(top_k), len(top_p))
        return tuple(x * n if len(x) == 1 else x for x in (temperature, top_k, top_p))  # type: ignore[return-value]

    def parameters_code(self) -> str:
        """The same as arguments in Python."""
        n = self.request_count
        columns = (self.temperature, self.top_k, self.top_p)
        codes = [(x, 0) if isinstance(x, str) else (str(list(x)), len(x)) for x in columns]
        return ", ".join(f"{code} * {n}" if length == 1 < n else code for code, length in codes)

    def logits(self, device: torch.device) -> Tensor:
        """[rows, W], in the case's dtype."""
        return _logits(self.code, self.dtype, str(device))

    def context(self, device: torch.device) -> Any:
        """The parameters of its requests."""
        return plain_context(*self.parameters(), device)

    def pattern(self) -> tuple[Tensor, Tensor]:
        """Logits row and request of each slot, int64 [slots] on the CPU."""
        default = range(self.slots)
        return torch.tensor(list(self.rows or default)), torch.tensor(list(self.requests or default))

    def pattern_code(self) -> tuple[str, str]:
        """The same in Python."""
        whole = f"torch.arange({self.slots})"
        rows, requests = (f"torch.tensor({list(x)})" if x is not None else whole for x in (self.rows, self.requests))
        return rows, requests

    def law(self, options: LawOptions, device: torch.device) -> Law:
        """The law of each slot of the pattern, in float64 on `device`."""
        return _law(self, options, str(device))

    def but(self, **changes: object) -> Case:
        """The same case with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # fields by name


@lru_cache(maxsize=16)
def _logits(code: str, dtype: str, device: str) -> Tensor:
    logits: Tensor = _eval(code)
    return logits.to(DTYPES[dtype]).to(device)


def _evaluate(values: Any) -> list[Any]:
    found: list[Any] = _eval(values) if isinstance(values, str) else list(values)
    return found


@lru_cache(maxsize=64)
def _eval(code: str) -> Any:
    return eval(code, {"torch": torch, "inf": math.inf, "nan": math.nan})  # noqa: S307  # code of this package only


@lru_cache(maxsize=16)
def _law(case: Case, options: LawOptions, device: str) -> Law:
    logits = case.logits(torch.device(device))
    rows, requests = (index.to(device) for index in case.pattern())
    view = case.context(torch.device(device)).gpu_view
    of_request = rows if options.parameters_by == "row" else requests
    return law(
        logits[rows],
        view.temperature[of_request],
        view.top_k[of_request],
        view.top_p[of_request],
        vocab_size=case.vocab_size,
        options=options,
    )


def probabilities(*rows: Iterable[float]) -> str:
    """Code for logits whose softmax is the given rows, to float32 rounding; 0 becomes -inf."""
    return f"torch.tensor({[list(row) for row in rows]}).log()"


def values(*rows: Iterable[float]) -> str:
    """Code for the given logits."""
    return f"torch.tensor({[list(row) for row in rows]})"


def normal(rows: int, width: int, seed: int, std: float = 2.0) -> str:
    """Code for normal logits."""
    return f"(torch.randn({rows}, {width}, generator=torch.Generator().manual_seed({seed})) * {std})"


def head_and_tail(width: int, gap: float) -> str:
    """Code for one head token, in the middle, and width - 1 tail tokens `gap` nats below it."""
    return f"torch.full((1, {width}), -{gap}).index_fill(1, torch.tensor([{width // 2}]), 0.0)"


MIXES = {
    "none": ((0,), (0.0,)),
    "top-p": ((0,), (0.7,)),
    "top-k": ((3,), (0.0,)),
    "both": ((4,), (0.7,)),
}
"""A top-k and a top-p for each combination of filters; with "mixed" below, one for each route."""


def for_each_mix(case: Case) -> Iterator[Case]:
    """The case under each combination of filters, and under a batch that mixes them."""
    n = case.request_count
    for mix, (top_k, top_p) in MIXES.items():
        yield case.but(name=f"{case.name}-{mix}", top_k=top_k, top_p=top_p)
    if n > 1:
        top_k_row, top_p_row = MIXES["top-k"][0][0], MIXES["top-p"][1][0]
        yield case.but(
            name=f"{case.name}-mixed",
            top_k=tuple(0 if i % 2 else top_k_row for i in range(n)),
            top_p=tuple(top_p_row if i % 2 else 0.0 for i in range(n)),
        )
