"""The floor on a CUDA device: a Triton kernel that reads logits once, and keeps each row's maxima."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_SHAPES = ((2048, 4), (4096, 4), (8192, 8))
"""Tokens that a program reads at a time, and its warps."""

_STEPS = (1, 2, 4, 8)
"""How often it does so: more for large batches, where a program must be worth its start."""


@triton.jit
def _row_max_kernel(logits, maxima, width, parts, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * BLOCK * STEPS + tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    for _ in tl.static_range(STEPS):
        z = tl.load(logits + row * width + column, mask=column < width, other=-float("inf"))
        largest = tl.maximum(largest, z.to(tl.float32))
        column += BLOCK
    tl.store(maxima + row * parts + part, tl.max(largest, 0))


def candidates(n: int, width: int, device: torch.device) -> list[Callable[[Tensor], Tensor]]:
    """Ways to read contiguous [n, width] logits. Each returns float32 [n, parts] maxima, in memory of its own."""
    found: list[Callable[[Tensor], Tensor]] = []
    for (block, warps), steps in itertools.product(_SHAPES, _STEPS):
        parts = -(-width // (block * steps))
        if steps > 1 and block * steps >= 2 * width:
            continue  # most of it would read nothing
        maxima = torch.empty(n, parts, dtype=torch.float32, device=device)
        constants: dict[str, Any] = {"STEPS": steps, "BLOCK": block, "num_warps": warps}
        found.append(partial(_read, maxima=maxima, width=width, constants=constants))
    return found


def _read(logits: Tensor, *, maxima: Tensor, width: int, constants: dict[str, Any]) -> Tensor:
    _row_max_kernel[maxima.shape](logits, maxima, width, maxima.shape[1], **constants)
    return maxima
