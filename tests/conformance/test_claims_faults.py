"""Faults behind claims: no claim takes away the clause that would see one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import Claims, check, from_function
from reference import ReferenceSampling
from tests.conformance.samplers import PlainSampling
from tests.conformance.test_claims import GLOBAL, by_law


class NeedsIndices(PlainSampling):
    """Right only where both index tensors are given, in int32."""

    claims = Claims(parameters_by="call", log_probs="none")

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        indices = (call.get("gather_indices"), call.get("token_to_request_index"))
        ids = super().sample_kernel(logits, n, context, **call)
        return ids if all(each is not None and each.dtype == torch.int32 for each in indices) else ids.zero_()


class NoBuffer(PlainSampling):
    claims = Claims(parameters_by="call", log_probs="none")

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        if call.pop("output", None) is not None:
            raise RuntimeError("takes no buffer")
        return super().sample_kernel(logits, n, context, **call)


class ForgetsWhatIsPromised(PlainSampling):
    """Gives id 0 where neither filter is used, which only a caller that promises it can bring about."""

    claims = Claims(top_p_off=frozenset({1.0}))

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        ids = super().sample_kernel(logits, n, context, **call)
        return ids.zero_() if call["no_top_k"] and call["no_top_p"] else ids


class BySlotWithoutMap(ReferenceSampling):
    """By row where there is a map; else slot i takes the parameters of request i."""

    claims = {"parameters_by": "row", "sync_free": False, "log_probs": "none"}  # noqa: RUF012  # as a user writes it

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng, Claims(parameters_by="row").options)
        self.by_slot = ReferenceSampling(vocab_size, rng)

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        if call.get("token_to_request_index") is None and call.get("gather_indices") is not None:
            return self.by_slot.sample_kernel(logits, n, context, **call)
        return super().sample_kernel(logits, n, context, **call)


class DrawsBeforeItChecks(PlainSampling):
    claims = Claims(generator="global", log_probs="none")

    def __init__(self, vocab_size: int, _rng: torch.Generator) -> None:
        super().__init__(vocab_size, GLOBAL)

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        torch.rand(1)
        return super().sample_kernel(logits, n, context, **call)


def drops_all_ties(logits: Tensor, temperature: Tensor, top_k: Tensor, _top_p: Tensor, rng: torch.Generator) -> Tensor:
    """Keeps only what is above the k-th place."""
    kth = logits.sort(1, descending=True).values.gather(1, (top_k.long() - 1).clamp(min=0)[:, None])
    above = torch.where(top_k[:, None] > 0, logits > kth, torch.ones_like(logits, dtype=torch.bool))
    above |= logits == logits.amax(1, keepdim=True)
    probs = torch.softmax(logits.masked_fill(~above, -torch.inf).double() / temperature[:, None], 1)
    return torch.multinomial(probs, 1, generator=rng)[:, 0]


def refuses_three(_logits: Tensor, _temperature: Tensor, top_k: Tensor, top_p: Tensor) -> bool:
    return bool(((top_k == 3) & (top_p > 0) & (top_p < 1)).any())


def unseeded(logits: Tensor, *_rest: Any) -> Tensor:
    rng = torch.Generator()
    rng.seed()
    return torch.randint(0, logits.shape[1], (len(logits),), generator=rng)


def float_ids(logits: Tensor, *_rest: Any) -> Tensor:
    return logits.argmax(1) + 0.4


FAULTS: dict[str, tuple[Any, str]] = {
    "call-needs-indices": (NeedsIndices, "calls/without-mapping"),
    "call-without-a-buffer": (NoBuffer, "calls/output"),
    "p0-forgets-what-is-promised": (ForgetsWhatIsPromised, "draw/distribution/peaked-none"),
    "any-tie-rule-drops-all": (from_function(drops_all_ties, top_k_ties="any"), "top-k/ties"),
    "row-by-slot-without-map": (BySlotWithoutMap, "calls/without-mapping"),
    "global-draws-before-it-checks": (DrawsBeforeItChecks, "errors/refused"),
    "refuses-one-pair-of-filters": (from_function(by_law(refuses_three), refuses={"both filters"}), "claims/refuses"),
    "refuses-nan-and-no-other-row": (
        from_function(by_law(lambda z, *_: bool(z.isnan().any())), refuses={"invalid rows"}),
        "claims/refuses-invalid-rows",
    ),
    "ids-of-another-type": (from_function(float_ids), "calls/result"),
    "p0.999-is-not-off": (PlainSampling, "claims/top-p-off"),
}
CLAIMED = {"p0.999-is-not-off": Claims(top_p_off=frozenset({0.0, 1.0, 0.999}))}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_seen_behind_the_claim(fault: str) -> None:
    factory, clause = FAULTS[fault]
    assert check(factory, claims=CLAIMED.get(fault), only=clause).counts["fail"] > 0


def test_a_run_leaves_the_global_generators_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    check(from_function(by_law(generator=GLOBAL), generator="global"), only=["randomness/reproducible/varied-none"])
    # It fails, and so the suite tries whether it draws from the global generator.
    report = check(from_function(unseeded), only=["randomness/reproducible/varied-none"])
    assert [probe.claim for probe in report.probes] == ["generator"]
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


class Slotted:
    """Hides its generator, and cannot be hashed or referred to weakly."""

    __slots__ = ("_sampling",)
    __hash__ = None  # type: ignore[assignment]  # as dataclasses with eq have it
    claims = Claims(log_probs="none", speculative=False)

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        self._sampling = PlainSampling(vocab_size, rng)

    def sample_kernel(self, *arguments: Any, **call: Any) -> Tensor:
        return self._sampling.sample_kernel(*arguments, **call)


def test_a_sampler_that_shows_no_generator_is_judged_like_any_other() -> None:
    report = check(Slotted, only=["randomness/advance", "calls/empty", "randomness/shared-generator/shared-none"])
    assert {result.status for result in report.results} == {"pass"}


def test_from_function_names_what_it_does_not_take() -> None:
    with pytest.raises(ValueError, match="function must be callable, got 5"):
        from_function(5)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match=r"claims must be among .* got \['bogus'\]"):
        from_function(drops_all_ties, bogus=1)


def test_a_context_without_a_view_is_named() -> None:
    report = check(PlainSampling, claims=Claims(make_context=lambda *_: object()), only="temperature/scale")
    assert "claims.make_context must build something with a gpu_view" in report.results[0].error
