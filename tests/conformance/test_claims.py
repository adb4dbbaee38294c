"""Each claim both ways: a sampler that is as it claims passes, one that is not fails the clause that decides it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance import Claims, check, from_function
from conformance.claims import REFUSALS
from conformance.probes import CAPABILITIES, CHOICES, probes
from conformance.streams import STREAMS
from conformance.subject import Subject
from reference import LawOptions, ReferenceSampling, law
from tests.conformance.samplers import PlainSampling, make

GROUPS = [
    "calls/bare/four-rows-mixed", "calls/context-update", "calls/contexts-in-turn", "calls/empty",
    "calls/engine-context/parameters-apart-n9", "calls/gather/rows-apart-both", "calls/gpu-view-alone", "calls/output",
    "calls/parameters", "calls/result", "calls/speculative", "calls/without-mapping/rows-apart-mixed", "claims",
    "errors/refused/n-", "errors/context/top", "greedy", "invalid/isolated/broken-mixed", "invalid/law/broken-mixed",
    "invalid/log-probs", "isolation/swap-batchmates/swap-mixed", "log-probs/batches/rows-both", "log-probs/mapping",
    "log-probs/small", "log-probs/token", "randomness/advance", "randomness/default",
    "randomness/reproducible/varied-both",
    "temperature/before", "top-k/off", "top-k/sentinels", "top-k/ties/tied", "top-p/after-top-k", "top-p/off/p-off-n",
    "top-p/off/p-off-beside", "top-p/sentinels", "top-p/ties",
]  # fmt: skip
"""A case at least of all that a claim may change. None depends on claims in the rest: large vocabularies and rows."""


def by_options(**options: Any) -> Any:
    """The reference with other options, and those claims."""
    made: Any = partial(ReferenceSampling, options=LawOptions(**options))
    made.claims = {"sync_free": False, **options}
    return made


def by_law(
    refuses: Callable[[Tensor, Tensor, Tensor, Tensor], Any] = lambda *_: False,
    generator: torch.Generator | None = None,
    invalid_id: int = 0,
    **options: Any,
) -> Any:
    """A function that draws from the law with these options, or raises where `refuses` of its arguments is true."""

    def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, rng: torch.Generator) -> Tensor:
        if refuses(logits, temperature, top_k, top_p):
            raise RuntimeError("not served here")
        rows = len(logits)
        parameters = [torch.as_tensor(each).expand(rows) for each in (temperature, top_k, top_p)]
        found = law(logits, *parameters, options=LawOptions(**options), bands=False)
        steps = found.probs.nan_to_num(0.0).cumsum(1)
        u = torch.rand(rows, 1, dtype=torch.float64, generator=generator or rng)
        ids = torch.searchsorted(steps, u * steps[:, -1:], right=True)[:, 0].clamp(max=logits.shape[1] - 1)
        return torch.where(found.valid, ids, invalid_id)

    return sample


class OwnContext(SimpleNamespace):
    """An engine's class, which its sampler insists on."""

    @staticmethod
    def make(temperature: list[float], top_k: list[int], top_p: list[float], device: torch.device) -> OwnContext:
        columns = (torch.tensor(temperature), torch.tensor(top_k, dtype=torch.int32), torch.tensor(top_p))
        names = ("temperature", "top_k", "top_p")
        return OwnContext(gpu_view=SimpleNamespace(**dict(zip(names, (c.to(device) for c in columns), strict=True))))


class WantsItsContext(PlainSampling):
    claims = Claims(make_context=OwnContext.make)

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        assert isinstance(context, (OwnContext, SimpleNamespace))
        if not hasattr(context, "gpu_view") or type(context) is OwnContext:
            return super().sample_kernel(logits, n, context, **call)
        raise TypeError(f"an OwnContext is wanted, got {type(context).__name__}")


class NoOutput:
    """Neither checks its arguments nor takes a buffer, and has nothing but `sample_kernel`."""

    claims = Claims(output=False, argument_errors=False, log_probs="none", speculative=False)

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        self.sampling = PlainSampling(vocab_size, rng)

    def sample_kernel(  # the contract's arguments, without `output`
        self, logits: Tensor, n: int, context: Any, *, no_top_k: bool, no_top_p: bool,
        gather_indices: Tensor | None = None, token_to_request_index: Tensor | None = None, **_more: Any,
    ) -> Tensor:  # fmt: skip
        if "output" in _more:
            raise TypeError("sample_kernel() got an unexpected keyword argument 'output'")
        return self.sampling.sample_kernel(
            logits, n, context, no_top_k=no_top_k, no_top_p=no_top_p, gather_indices=gather_indices,
            token_to_request_index=token_to_request_index,
        ).clone()  # fmt: skip


def both_filters(_logits: Any, _temperature: Any, top_k: Tensor, top_p: Tensor) -> Any:
    on = (top_k > 0) & (top_k < _logits.shape[1])
    return bool((on & (top_p > 0) & (top_p < 1)).any())


GLOBAL = torch.default_generator

SOUND: dict[str, tuple[Any, dict[str, str]]] = {
    # name: (a factory that states its claims, {a claim put back to its default: the clause that must then fail})
    "k-lowest-index": (by_options(top_k_ties="lowest-index"), {"top_k_ties": "top-k/ties"}),
    "p-lowest-index": (by_options(top_p_ties="lowest-index"), {"top_p_ties": "top-p/ties"}),
    "joint-filters": (by_options(filter_order="joint"), {"filter_order": "top-p/after-top-k"}),
    "p0-keeps-one": (by_options(top_p_off=frozenset({1.0})), {"top_p_off": "claims/top-p-zero"}),
    "no-p-is-off": (by_options(top_p_off=frozenset()), {"top_p_off": "top-p/off"}),
    "T0-is-no-greedy": (
        by_options(greedy_temperatures=frozenset()),
        {"greedy_temperatures": "greedy/temperature-zero"},
    ),
    "raw-log-probs": (by_options(log_probs="raw"), {"log_probs": "log-probs/small"}),
    "by-row": (by_options(parameters_by="row"), {"parameters_by": "calls/parameters-by-slot"}),
    "sentinels-below-zero": (
        from_function(
            by_law(lambda _z, _t, k, _p: bool((k == 0).any()), top_k_off=frozenset({-1}),
                   greedy_temperatures=frozenset({-1.0})),
            top_k_off={-1}, greedy_temperatures={-1.0}, refuses={"top_k 0"},
        ),
        {},
    ),
    "one-call-one-set": (
        from_function(by_law(), parameters_by="call"),
        {"parameters_by": "calls/parameters-by-slot"},
    ),
    "global-generator": (
        from_function(by_law(generator=GLOBAL), generator="global"),
        {"generator": "randomness/reproducible/varied-none"},
    ),
    "refuses-zeros-and-one": (
        from_function(
            by_law(lambda _z, t, k, p: bool(((t == 0) | (k == 0) | (p == 0) | (p == 1)).any())),
            refuses={"temperature 0", "top_k 0", "top_p 0", "top_p 1"},
        ),
        {"refuses": "claims/refuses"},
    ),
    "refuses-both": (from_function(by_law(both_filters), refuses={"both filters"}), {"refuses": "claims/refuses"}),
    "refuses-invalid": (
        from_function(by_law(lambda z, *_: not bool(z.amax(1).isfinite().all())), refuses={"invalid rows"}),
        {"refuses": "invalid/law"},
    ),
    "invalid-gives-minus-one": (
        from_function(by_law(invalid_id=-1), invalid_rows="any"),
        {"invalid_rows": "invalid/law"},
    ),
    "own-context": (WantsItsContext, {}),
    "bare-sample-kernel": (NoOutput, {"output": "calls/output", "argument_errors": "errors/refused"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_is_as_it_claims_passes(name: str) -> None:
    report = check(SOUND[name][0], only=GROUPS)
    assert [result.id for result in report.results if result.status not in {"pass", "not applicable"}] == []


@pytest.mark.parametrize(
    ("name", "claim", "clause"),
    [(name, claim, clause) for name, (_, wrong) in SOUND.items() for claim, clause in wrong.items()],
)
def test_without_the_claim_its_clause_fails(name: str, claim: str, clause: str) -> None:
    factory = SOUND[name][0]
    claims = Claims.of(factory).but(**{claim: getattr(Claims(), claim)})
    assert check(factory, claims=claims, only=clause).counts["fail"] > 0


@pytest.mark.parametrize(
    ("claims", "clause"),
    [
        (Claims(top_k_ties="lowest-index"), "top-k/ties"),
        (Claims(top_p_ties="lowest-index"), "top-p/ties"),
        (Claims(filter_order="joint"), "top-p/after-top-k"),
        (Claims(top_p_off=frozenset({1.0})), "claims/top-p-zero"),
        (Claims(greedy_temperatures=frozenset()), "claims/temperature-zero"),
        (Claims(greedy_temperatures=frozenset({0.0, 2.0})), "claims/greedy-temperatures"),
        (Claims(top_k_off=frozenset({0, 3})), "top-k/sentinels"),
        (Claims(log_probs="raw"), "log-probs/small"),
        (Claims(parameters_by="row"), "calls/parameters-by-row"),
        (Claims(generator="global"), "randomness/reproducible"),
        *((Claims(refuses=frozenset({refusal})), "claims/refuses") for refusal in REFUSALS),
    ],
    ids=lambda value: "-".join(map(str, value.stated().items())) if isinstance(value, Claims) else value,
)
def test_a_claim_that_the_contract_s_sampler_does_not_keep_fails(claims: Claims, clause: str) -> None:
    assert check(PlainSampling, claims=claims, only=clause).counts["fail"] > 0


def test_a_random_number_of_few_bits_passes_by_that_claim_alone() -> None:
    coarse = by_options(uniform_bits=16)
    for bits, failures in ((16, 0), (24, 1)):
        claims = Claims.of(coarse).but(uniform_bits=bits)
        assert check(coarse, claims=claims, only="draw/tail/gap12").counts["fail"] == failures


def found(factory: Any, claims: Claims, failed: set[str]) -> dict[tuple[str, str], bool]:
    subject = Subject(factory, claims, torch.device("cpu"), "a:b", "quick")
    return {(probe.claim, probe.tried): probe.works for probe in probes(subject, failed, whole=True, limit=60.0)}


def test_what_works_without_being_claimed_is_reported() -> None:
    modest = Claims(log_probs="none", speculative=False, output=False, argument_errors=False, top_k_ties="any")
    assert found(ReferenceSampling, modest, set()) == {
        ("log_probs", "processed"): True,
        ("speculative", "True"): True,
        ("output", "True"): True,
        ("argument_errors", "True"): True,
        ("stream", "reference"): True,
        ("top_k_ties", "keep-all"): True,
    }


def test_what_is_not_claimed_and_does_not_work_is_no_failure() -> None:
    tried = found(NoOutput, NoOutput.claims, set())
    # Its draws are those of the reference: that much does work.
    assert [each for each, works in tried.items() if works] == [("stream", "reference")]
    assert {claim for claim, _ in tried} == {"argument_errors", "log_probs", "output", "speculative", "stream"}


@pytest.mark.parametrize(
    ("fault", "clause", "fits"),
    [
        ("exactly-k", "top-k/ties", ("top_k_ties", "lowest-index")),
        ("parameters-by-row", "calls/parameters-by-slot", ("parameters_by", "row")),
    ],
)
def test_a_failure_that_another_choice_would_mend_says_which(fault: str, clause: str, fits: tuple[str, str]) -> None:
    assert found(make(fault), Claims(stream=STREAMS["reference"]), {clause}) == {fits: True}


def test_every_claim_is_documented_and_every_capability_has_a_clause() -> None:
    names = set(Claims().to_json())
    assert all(f"{name}:" in (Claims.__doc__ or "").replace(",", ":") for name in names)
    assert {*CAPABILITIES, *CHOICES} <= names


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sync_free": 1}, "sync_free"),
        ({"log_probs": "logits"}, "log_probs"),
        ({"top_k_ties": "none"}, "top_k_ties"),
        ({"parameters_by": "token"}, "parameters_by"),
        ({"generator": None}, "generator"),
        ({"uniform_bits": 8}, "uniform_bits"),
        ({"uniform_bits": 24.0}, "uniform_bits"),
        ({"top_k_off": {0.5}}, "top_k_off"),
        ({"top_k_off": 0}, "top_k_off"),
        ({"top_p_off": {2.0}}, "top_p_off"),
        ({"greedy_temperatures": {float("nan")}}, "greedy_temperatures"),
        ({"refuses": {"everything"}}, "refuses"),
        ({"refuses": "top_p 0"}, "refuses"),
        ({"make_context": "mine"}, "make_context"),
        ({"most_draws": 10}, "most_draws"),
        ({"stream": "mine"}, "stream"),
    ],
    ids=lambda value: "-".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else value,
)
def test_what_is_no_claim_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^claims\.{named} must be "):
        Claims(**fields)


def test_a_reproducer_states_claims_that_the_factory_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.conformance.test_claims:exactly_k"
    report = check(
        exactly_k, claims=Claims(top_k_off=frozenset({0, -1}), log_probs="none"), name=name, only="top-k/ties"
    )
    failed = [result for result in report.results if result.status == "fail"]
    assert failed
    exec(failed[0].reproducer, {})  # noqa: S102  # the text that a user is told to run
    assert "passed=False" in capsys.readouterr().out


exactly_k = make("exactly-k")
