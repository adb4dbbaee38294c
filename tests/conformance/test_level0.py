"""The exact checks: what they cover, that each sees what it is for, and that none asks more than the law."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance import check
from conformance.cases import Case, probabilities
from conformance.clauses import CLAUSES, TIERS
from conformance.clauses.isolation import _no_synchronisation
from conformance.clauses.law import EIGHT, row_kinds
from conformance.clauses.metamorphic import _near_a_step
from conformance.evidence.log_probs import invariants, match_law
from reference import LawOptions, ReferenceSampling, law

CPU = torch.device("cpu")
UPWARD, SUM, RATIO = range(3)


def rows(width: int = 200) -> Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(1)) * 2


def verdicts(log_probs: Tensor, logits: Tensor, temperature: Tensor | None = None) -> list[bool]:
    temperature = torch.ones(len(logits)) if temperature is None else temperature
    return [each.passed for each in invariants(log_probs, logits, temperature)]


# What the log-probs are checked on.


@pytest.mark.parametrize(
    ("tier", "widths"),
    [
        ("quick", {1, 2, 3, 1000, 4096}),
        ("full", {1, 2, 3, 1000, 4096, 32_000, 50_257, 57_344, 57_345, 128_256, 131_072, 151_936, 262_144}),
    ],
)
def test_every_vocabulary_and_batch_size_has_every_kind_of_row(tier: str, widths: set[int]) -> None:
    cases = list(CLAUSES["log-probs/law"].cases(TIERS[tier]))
    for name in ("random-both", "random-none", "random-mixed", "kinds-both", "kinds-none"):
        named = [case for case in cases if case.name == name]
        assert {case.vocab_size for case in named} >= widths
        assert {case.slots for case in named} >= {1, 7, 8, 16, 512, 2048}
        # The kinds go in turn: four rows hold all. Each width has such a batch.
        assert {case.vocab_size for case in named if case.slots >= 4} >= widths
    assert sum(case.slots for case in cases) > 10_000


@pytest.mark.parametrize("width", [1, 2, 3, 1000, 4096])
def test_kinds_of_rows_are_what_they_are_called(width: int) -> None:
    z = Case("kinds", row_kinds(64, width, 1), width, (1.0,) * 64).logits(CPU)
    tied, masked, narrow, flat = (z[kind::4] for kind in range(4))
    assert torch.equal(tied * 4, (tied * 4).round())
    assert masked.isfinite().any(1).all()
    assert masked.isfinite().sum(1).max() <= -(-width // 29)
    assert float(narrow.max() - narrow.min()) < 1.2e-3
    assert (flat == flat[:, :1]).all()
    assert width < 1000 or (len(narrow[0].unique()) > 0.9 * width and len(tied[0].unique()) < 80)


# The invariants.


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 0.7, 1.0, 100.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.0), (20, 0.0), (0, 0.8), (20, 0.8), (1, 0.0)])
def test_right_log_probs_of_two_kinds_hold_every_invariant(temperature: float, top_k: int, top_p: float) -> None:
    z = rows()
    t = torch.full((4,), temperature)
    truth = law(z, t, torch.full((4,), top_k), torch.full((4,), top_p))
    assert verdicts(truth.log_probs.float(), z, t) == [True] * 3
    # fp32 all through, over the law's kept set: softmax, then a filter's normaliser, then the logarithm.
    probs = torch.softmax(z / t[:, None], 1) * (truth.log_mass > -math.inf)
    assert verdicts((probs / probs.sum(1, keepdim=True)).log(), z, t) == [True] * 3


def test_a_kept_set_that_is_not_upward_closed_is_seen_by_that_alone() -> None:
    z = rows()
    lost = z.clone()
    lost[2, z[2].topk(3).indices[2]] = -math.inf
    assert verdicts(torch.log_softmax(lost, 1), z) == [False, True, True]
    # By an ulp of z it may be: the two may change places in fp32.
    near = torch.tensor([[1.0, 1.0 + 2**-23, 1.0 - 2**-23]])
    assert verdicts(torch.tensor([[0.0, -math.inf, -math.inf]]), near) == [True] * 3


def test_a_kept_token_of_logit_minus_infinity_is_seen() -> None:
    z = torch.tensor([[0.0, 1.0, -math.inf]])
    log_probs = torch.log_softmax(z, 1)
    assert verdicts(log_probs, z) == [True] * 3
    log_probs[0, 2] = -80.0
    assert not verdicts(log_probs, z)[UPWARD]


@pytest.mark.parametrize("factor", [1 + 1e-4, 1 - 1e-4])
def test_a_sum_that_is_not_one_is_seen_by_that_alone(factor: float) -> None:
    # The tolerance of such rows is 3e-6: that of one sum, and of the log-probs' own error.
    log_probs = torch.log_softmax(rows(), 1)
    log_probs[1] += math.log(factor)
    assert verdicts(log_probs, rows()) == [True, False, True]


def test_nothing_kept_or_nan_fails_the_sum() -> None:
    assert not verdicts(torch.full((4, 200), -math.inf), rows())[SUM]
    assert not verdicts(torch.full((4, 200), math.nan), rows())[SUM]


@pytest.mark.parametrize("error", [2e-5, -2e-5])
def test_a_wrong_ratio_is_seen_where_the_sum_hides_it(error: float) -> None:
    log_probs = torch.log_softmax(rows(), 1)
    log_probs[3, log_probs[3].argmin()] += error  # of a probability of 1e-6
    assert verdicts(log_probs, rows()) == [True, True, False]


def test_a_wrong_temperature_is_seen_though_the_law_is_not_asked() -> None:
    z, t = rows(), torch.full((4,), 0.7)
    assert not verdicts(torch.log_softmax(z / 0.7003, 1), z, t)[RATIO]
    assert not verdicts(torch.log_softmax((z.bfloat16() / 0.7).float(), 1), z, t)[RATIO]


def test_invalid_rows_are_left_to_the_law() -> None:
    z = rows()
    z[0, 3], z[1, 5], z[2] = math.nan, math.inf, -math.inf
    log_probs = torch.log_softmax(z, 1)
    assert verdicts(log_probs, z) == [True] * 3
    assert verdicts(log_probs[:3], z[:3]) == [True] * 3


def test_invariants_and_the_law_agree_on_the_hardest_rows() -> None:
    z = Case("kinds", row_kinds(64, 1000, 2), 1000, (1.0,) * 64).logits(CPU)
    t = torch.logspace(-6, 2, 64)
    truth = law(z, t, torch.arange(64), torch.linspace(0, 1, 64))
    assert all(each.passed for each in match_law(truth.log_probs.float(), truth))
    assert verdicts(truth.log_probs.float(), z, t) == [True] * 3


# What the checks must not ask.


class OtherOrderWhenStrided(ReferenceSampling):
    """Sums in another order where memory is not contiguous, as GPU kernels do: an ulp of difference."""

    def log_probs_kernel(self, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        log_probs = super().log_probs_kernel(logits, *args, **kwargs)
        if logits.is_contiguous():
            return log_probs
        return torch.where(log_probs.isfinite(), torch.nextafter(log_probs, log_probs - 1), log_probs)


def test_strided_log_probs_may_differ_by_rounding() -> None:
    report = check(OtherOrderWhenStrided, only=["log-probs/small", "log-probs/batches", "log-probs/law/random"])
    assert [result.id for result in report.results if result.status != "pass"] == []


def test_the_sync_mode_warns_of_itself_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []

    def warn(mode: str) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", warn)
    with _no_synchronisation():
        assert modes == ["error"]
        # What else is warned of within is an error still, as this run has it.
        with pytest.raises(UserWarning, match="something else"):
            warnings.warn("something else", stacklevel=1)
    assert modes == ["error", "default"]


# Sentinels.


def test_two_fp32_samplers_differ_no_more_often_than_is_allowed() -> None:
    case = Case("eight", probabilities(EIGHT), 8)
    bound = _near_a_step(case.law(LawOptions(), CPU))
    assert bound < 1e-4  # of 4,096 draws, at most one in two runs
    z = case.logits(CPU)[0]
    u = torch.rand(2**22, generator=torch.Generator().manual_seed(2))
    # One scales the number by the total, one divides by it; one sums forwards, one backwards; one by exp2.
    first = torch.softmax(z, 0).cumsum(0)
    mass = torch.exp2((z - 3.0) * 1.4426950408889634)
    second = 1 - (mass / mass.sum()).flip(0).cumsum(0).flip(0).roll(-1)
    second[-1] = 2.0
    one = torch.searchsorted(first, u * first[-1], right=True).clamp(max=7)
    other = torch.searchsorted(second, u, right=True)
    differ = float((one != other).double().mean())
    assert 0 < differ <= bound
