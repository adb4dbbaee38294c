"""Small things that several test files need."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from reference import Law, LawOptions, law

FLOAT32_ROUNDING = 2.0**-24
"""Unit roundoff of float32: storing a number changes it by at most this share."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def row(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits [1, W]."""
    return torch.tensor([list(values)], dtype=dtype)


def log_of(probs: Sequence[float]) -> list[float]:
    """Logits whose softmax is `probs`, up to `log_rounding`."""
    return [math.log(p) if p > 0 else -math.inf for p in probs]


def log_rounding(probs: Sequence[float]) -> float:
    """Largest relative error of softmax(float32(log(probs))).

    Each logit is off by |ln p| 2^-24; a ratio of two masses by twice the largest. 1.01 covers e^x - 1 > x
    and the float64 arithmetic, both far smaller.
    """
    return 1.01 * 2 * max(-math.log(p) for p in probs if p > 0) * FLOAT32_ROUNDING


def law_of(
    logits: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    vocab_size: int | None = None,
    options: LawOptions | None = None,
) -> Law:
    """The law of rows that share their parameters, stored as an engine stores them."""
    n = logits.shape[0]
    return law(
        logits,
        torch.full((n,), temperature, dtype=torch.float32),
        torch.full((n,), top_k, dtype=torch.int32),
        torch.full((n,), top_p, dtype=torch.float32),
        vocab_size=vocab_size,
        options=options,
    )


def as_float32(value: float) -> float:
    """The value that a float32 tensor holds."""
    return float(torch.tensor(value, dtype=torch.float32))


def ids(mask: Tensor) -> list[int]:
    """The columns where a [W] mask is true."""
    return [int(i) for i in mask.nonzero()[:, 0]]


def bits(tensor: Tensor) -> bytes:
    """Every bit of a tensor's elements, NaN payloads and the sign of zero included."""
    return tensor.detach().contiguous().clone().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def copy_of(rng: torch.Generator) -> torch.Generator:
    """A generator in the same state."""
    return torch.Generator().set_state(rng.get_state())


def state(rng: torch.Generator) -> bytes:
    return bits(rng.get_state())
