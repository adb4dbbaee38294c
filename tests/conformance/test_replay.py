"""The replay of rejection kernels accepts every draw of an independent float32 emulation, and none of its faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.cases import Case
from conformance.evidence import Evidence
from conformance.evidence.replay import rejection
from conformance.philox import curand_uniform, curand_words
from reference import LawOptions
from tests.conformance.kernels import FAULTS, draw

WIDTH, DRAWS, ROUNDS = 500, 3000, 40
CPU = torch.device("cpu")
FLOAT32 = 2.0**-24

GRID = "torch.randn(1, 500, generator=torch.Generator().manual_seed({})).mul({}).round().mul({})"
LOGITS = {
    "peaked": GRID.format(1, 24, 0.125),
    "flat": GRID.format(2, 4, 0.125),
    "ties": GRID.format(3, 2, 1.0),
    "equal": "torch.zeros(1, 500)",
    # Two tokens of 0.3 over a tail: the second pivot comes to lie just below them, and is rejected.
    "two": f"({GRID.format(4, 2, 0.125)} + 1.25).index_put((torch.tensor(0), torch.tensor([100, 400])), "
    "torch.tensor([6.0, 5.875]))",
}
FILTERS = {"top-k": (20, 0.0), "top-p": (0, 0.7), "both": (60, 0.6), "none": (0, 0.0), "k2": (2, 0.0), "p0.4": (0, 0.4)}


def numbers(seed: int = 5, offset: int = 512) -> Tensor:
    rows = np.arange(DRAWS, dtype=np.uint64)
    words = curand_words(seed, rows, np.full(DRAWS, offset, dtype=np.uint64), ROUNDS)
    return torch.from_numpy(curand_uniform(words))


def case_of(logits: str, filters: str) -> Case:
    k, p = FILTERS[filters]
    return Case(logits, LOGITS[logits], WIDTH, (0.8,), (k,), (p,))


def drawn(case: Case, u: Tensor, fault: str = "") -> Tensor:
    """The dispatcher's kernels: softmax, and for both filters the renormalised survivors of top-k."""
    k, p = case.top_k[0], case.top_p[0]
    assert isinstance(k, int)
    assert isinstance(p, float)
    probs = torch.softmax(case.logits(CPU) / 0.8, 1)
    if k and p:
        kept = probs >= probs.sort(1, descending=True).values[:, k - 1 : k]
        probs = torch.where(kept, probs, 0.0)
        probs /= probs.sum(1, keepdim=True)
        k = 0
    n = u.shape[1]
    return torch.cat([
        draw(
            probs.expand(len(part[0]), -1),
            torch.full((len(part[0]),), k or WIDTH),
            torch.full((len(part[0]),), p or 2.0),
            part,
            fault,
        )
        for part in u.float().split(1000, 1)
    ]).view(n)  # fmt: skip


def judge(case: Case, ids: Tensor, u: Tensor) -> Evidence:
    k, p = case.top_k[0], case.top_p[0]
    base = case.but(top_k=(k if p else 0,), top_p=(0.0,)).law(LawOptions(), CPU)
    law = case.law(LawOptions(), CPU)
    return rejection("", ids[None], u[:, None], base, law, FLOAT32, FLOAT32)


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("filters", FILTERS)
def test_the_kernels_pass(logits: str, filters: str) -> None:
    case = case_of(logits, filters)
    u = numbers()
    evidence = judge(case, drawn(case, u), u)
    assert evidence.passed, evidence
    assert evidence.draws == DRAWS
    # Few draws lie near a step: the replay tells nearly all ids exactly, else it would accept too much.
    assert int(evidence.observed.split()[0]) > 0.95 * DRAWS


@pytest.mark.parametrize(
    ("fault", "logits", "filters"),
    [
        ("wide-k", "peaked", "top-k"),
        ("wide-k", "flat", "top-k"),
        ("wide-p", "peaked", "top-p"),
        ("wide-p", "flat", "top-p"),
        ("wide-p", "ties", "both"),
        ("first-pivot-only", "two", "k2"),
        ("first-pivot-only", "two", "p0.4"),
        ("far-pivot", "two", "k2"),
        ("far-pivot", "two", "p0.4"),
        ("same-number", "flat", "top-k"),
        ("same-number", "peaked", "top-p"),
        ("keeps-q", "flat", "top-k"),
        ("low-inclusive", "ties", "top-k"),
    ],
)
def test_a_broken_kernel_fails(fault: str, logits: str, filters: str) -> None:
    case = case_of(logits, filters)
    for seed in range(3):
        u = numbers(seed)
        evidence = judge(case, drawn(case, u, fault), u)
        assert not evidence.passed, evidence
        assert "draws wrong; the first: slot 0, draw " in evidence.observed


def test_every_fault_is_used() -> None:
    marks = test_a_broken_kernel_fails.pytestmark  # type: ignore[attr-defined]  # set by the decorator
    assert {fault for fault, *_ in marks[0].args[1]} == set(FAULTS)


@pytest.mark.parametrize("filters", ["top-k", "top-p", "both"])
@pytest.mark.parametrize("offset", [512 ^ 4, 512 + 1, 512 ^ 256], ids=["bit-2", "next", "bit-8"])
def test_a_wrong_offset_fails(filters: str, offset: int) -> None:
    case = case_of("peaked", filters)
    evidence = judge(case, drawn(case, numbers(offset=offset)), numbers())
    assert not evidence.passed


def test_one_wrong_id_is_seen_and_named() -> None:
    case = case_of("peaked", "top-k")
    u = numbers()
    ids = drawn(case, u)
    right = int(ids[1234])
    ids[1234] = int(ids[ids != right][0])
    evidence = judge(case, ids, u)
    assert not evidence.passed
    assert "1 of 3000 draws wrong; the first: slot 0, draw 1234" in evidence.observed
    assert f"id {int(ids[1234])}, expected {right} in round" in evidence.observed


def test_too_few_rounds_leave_draws_undecided_and_do_not_pass() -> None:
    case = case_of("flat", "top-k")
    u = numbers()
    evidence = judge(case, drawn(case, u), u[:1])
    assert not evidence.passed
    assert "draws wrong" not in evidence.observed
    assert evidence.draws is not None
    assert evidence.draws < DRAWS / 2
