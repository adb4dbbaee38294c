"""Malformed calls: each gives a ValueError that names the argument, its value and what is allowed, and does nothing.

Nothing means: the generator, the caller's output and the logits keep every bit. A call that fails after it has drawn
shifts the stream of every later step; one that fails after it has written leaves half a step in the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from optimized import FlashInferSampling
from reference import LawOptions, ReferenceSampling, Sampling, SamplingContext
from tests.reference.engine_context import EngineContext, ViewOnlyContext, engine_context
from tests.reference.helpers import bits, generator, state

VOCAB = 8
REQUESTS = 4

SAMPLERS: dict[str, Callable[[], Sampling]] = {
    "reference": lambda: ReferenceSampling(VOCAB, generator(7)),
    "flashinfer-cpu": lambda: FlashInferSampling(VOCAB, generator(7)),
}


@dataclass
class Inputs:
    """The arguments of a right call; a case replaces some of them."""

    logits: Any = field(default_factory=lambda: torch.randn(6, VOCAB, generator=generator(1)))
    output: Any = field(default_factory=lambda: torch.full((REQUESTS,), -7, dtype=torch.int64))
    context: Any = field(default_factory=lambda: SamplingContext([1.0] * REQUESTS, [3] * REQUESTS, [0.5] * REQUESTS))

    def sample(self, sampler: Sampling, **change: Any) -> Any:
        arguments = {
            "logits": self.logits,
            "n": REQUESTS,
            "context": self.context,
            "no_top_k": False,
            "no_top_p": False,
            "output": self.output,
        }
        return sampler.sample_kernel(**(arguments | change))

    def log_probs(self, sampler: Sampling, **change: Any) -> Any:
        return sampler.log_probs_kernel(**({"logits": self.logits[:4], "context": self.context} | change))

    def speculative(self, sampler: Sampling, **change: Any) -> Any:
        arguments = {
            "required_logits": self.logits,
            "num_decode": 1,
            "num_prefill": 2,
            "num_speculative_tokens": 1,
            "context": self.context,
        }
        return sampler.sample_speculative(**(arguments | change))

    def token_log_probs(self, sampler: Sampling, **change: Any) -> Any:
        arguments = {"logits": self.logits[:4], "token_ids": torch.tensor([0, 1, 2, 7]), "context": self.context}
        return sampler.token_log_probs(**(arguments | change))


def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def views(**change: Any) -> ViewOnlyContext:
    """A context of the device view alone; a parameter given as None is missing."""
    view = {
        "temperature": torch.ones(REQUESTS),
        "top_k": torch.full((REQUESTS,), 3, dtype=torch.int32),
        "top_p": torch.full((REQUESTS,), 0.5),
    } | change
    return ViewOnlyContext(SimpleNamespace(**{name: x for name, x in view.items() if x is not None}))  # type: ignore[arg-type]


def engine(*, temperature: float = 1.0, top_k: int = 3, top_p: float = 0.5) -> EngineContext:
    """A real engine's context; the last active request has these parameters."""
    return engine_context([1.0] * 3 + [temperature], [3] * 3 + [top_k], [0.5] * 3 + [top_p])


LOGITS = {
    "list": ([[0.0] * VOCAB] * 6, r"logits must be a tensor, got list"),
    "none": (None, r"logits must be a tensor, got NoneType"),
    "1-dimension": (torch.zeros(VOCAB), r"logits must have 2 dimensions.*\(8,\)"),
    "3-dimensions": (torch.zeros(1, 6, VOCAB), r"logits must have 2 dimensions.*\(1, 6, 8\)"),
    "too-narrow": (torch.zeros(6, 7), r"logits must be at least vocab_size = 8 wide.*\(6, 7\)"),
    "float64": (
        torch.zeros(6, VOCAB, dtype=torch.float64),
        r"logits must have dtype float32, float16, bfloat16.*float64",
    ),
    "int64": (torch.zeros(6, VOCAB, dtype=torch.int64), r"logits must have dtype .*int64"),
}
INDEX = {
    "list": ([0, 1, 2, 3], r"{name} must be a tensor, got list"),
    "float": (torch.zeros(4), r"{name} must have dtype int32, int64, got float32"),
    "int16": (ints(0, 1, 2, 3, dtype=torch.int16), r"{name} must have dtype int32, int64, got int16"),
    "bool": (torch.zeros(4, dtype=torch.bool), r"{name} must have dtype int32, int64, got bool"),
    "2-dimensions": (torch.zeros(4, 1, dtype=torch.int64), r"{name} must have 1 dimension.*\(4, 1\)"),
    "0-dimensions": (torch.tensor(0), r"{name} must have 1 dimension.*\(\)"),
    "short": (ints(0, 1, 2), r"{name} must have .*at least n = 4 entries.*\(3,\)"),
    "negative": (ints(0, 1, -1, 3), r"{name} must hold values in \[0, \d\), got -1"),
    "too-large": (ints(0, 1, 99, 3, dtype=torch.int32), r"{name} must hold values in \[0, \d\), got 99"),
}
PARAMETERS = {
    "temperature-float64": (
        views(temperature=torch.ones(4, dtype=torch.float64)),
        r"temperature must have dtype float32.*float64",
    ),
    "temperature-missing": (views(temperature=None), r"gpu_view\.temperature must be a tensor, got NoneType"),
    "temperature-list": (views(temperature=[1.0] * 4), r"gpu_view\.temperature must be a tensor, got list"),
    "temperature-2-dimensions": (
        views(temperature=torch.ones(4, 1)),
        r"gpu_view\.temperature must have 1 dimension.*\(4, 1\)",
    ),
    "temperature-short": (
        views(temperature=torch.ones(3)),
        r"at most the 3 requests that context\.gpu_view holds.*got 4",
    ),
    "temperature-nan": (
        views(temperature=torch.tensor([1, 1, 1, math.nan])),
        r"temperature must be finite.*nan for request 3",
    ),
    "temperature-negative": (
        views(temperature=torch.tensor([1, -1.0, 1, 1])),
        r"temperature must be finite and at least 0.*-1\.0 for request 1",
    ),
    "temperature-inf": (
        views(temperature=torch.tensor([math.inf, 1, 1, 1])),
        r"temperature must be finite.*inf for request 0",
    ),
    "R04-top_k-0-dimensions": (
        views(top_k=torch.tensor(3, dtype=torch.int32)),
        r"gpu_view\.top_k must have 1 dimension.*\(\)",
    ),
    "R04-top_k-2-dimensions": (
        views(top_k=torch.ones(4, 8, dtype=torch.int32)),
        r"gpu_view\.top_k must have 1 dimension.*\(4, 8\)",
    ),
    "top_k-float": (views(top_k=torch.ones(4)), r"gpu_view\.top_k must have dtype int32, int64, got float32"),
    "top_k-short": (views(top_k=ints(1, 1)), r"at most the 2 requests that context\.gpu_view holds.*got 4"),
    "K07-top_k-minus-1": (views(top_k=ints(0, 0, -1, 0)), r"top_k must be at least 0.*-1 for request 2"),
    "top_p-bf16": (
        views(top_p=torch.ones(4, dtype=torch.bfloat16)),
        r"gpu_view\.top_p must have dtype float32, got bfloat16",
    ),
    "top_p-short": (views(top_p=torch.ones(1)), r"at most the 1 requests that context\.gpu_view holds.*got 4"),
    "top_p-above-1": (views(top_p=torch.tensor([0.5, 1.5, 0, 0])), r"top_p must be in \[0, 1\].*1\.5 for request 1"),
    "top_p-negative": (views(top_p=torch.tensor([0.5, -0.5, 0, 0])), r"top_p must be in \[0, 1\].*-0\.5 for request 1"),
    "top_p-nan": (views(top_p=torch.tensor([math.nan, 0, 0, 0])), r"top_p must be in \[0, 1\].*nan for request 0"),
    "engine-temperature-nan": (engine(temperature=math.nan), r"temperature must be finite.*nan for request 3"),
    "engine-temperature-negative": (engine(temperature=-1.0), r"temperature must be .*-1\.0 for request 3"),
    "engine-top_k-minus-1": (engine(top_k=-1), r"top_k must be at least 0.*-1 for request 3"),
    "engine-top_p-2": (engine(top_p=2.0), r"top_p must be in \[0, 1\].*2\.0 for request 3"),
    "none": (None, r"context must have a gpu_view, got NoneType"),
    "no-gpu_view": (SimpleNamespace(top_k=1), r"context must have a gpu_view, got SimpleNamespace"),
    "too-few-requests": (SamplingContext([1.0] * 3, [0] * 3, [0.0] * 3), r"at most the 3 requests.*got 4"),
}

Call = Callable[[Inputs, Sampling], Any]


def calling(method: str, **change: Any) -> Call:
    """One of the methods of Inputs, with these arguments in place of the right ones."""
    return lambda inputs, sampler: getattr(inputs, method)(sampler, **change)


CASES: dict[str, tuple[Call, str]] = {}
for _id, (_logits, _message) in LOGITS.items():
    _tokens = torch.zeros(6 if _logits is None else len(_logits), dtype=torch.int64)
    CASES[f"sample-logits-{_id}"] = calling("sample", logits=_logits), _message
    CASES[f"log-probs-logits-{_id}"] = calling("log_probs", logits=_logits), _message
    CASES[f"speculative-logits-{_id}"] = calling("speculative", required_logits=_logits), _message
    CASES[f"token-log-probs-logits-{_id}"] = calling("token_log_probs", logits=_logits, token_ids=_tokens), _message
for _id, (_index, _message) in INDEX.items():
    for _method, _name in (
        ("sample", "gather_indices"),
        ("sample", "token_to_request_index"),
        ("log_probs", "token_to_request_index"),
        ("token_log_probs", "token_to_request_index"),
        ("speculative", "gather_indices"),
    ):
        CASES[f"{_method}-{_name}-{_id}"] = calling(_method, **{_name: _index}), _message.format(name=_name)
for _id, (_context, _message) in PARAMETERS.items():
    CASES[f"sample-context-{_id}"] = calling("sample", context=_context), _message
    CASES[f"log-probs-context-{_id}"] = calling("log_probs", context=_context), _message
CASES |= {
    "sample-n-negative": (calling("sample", n=-1), r"n must be an int of at least 0, got -1"),
    "sample-n-float": (calling("sample", n=4.0), r"n must be an int of at least 0, got 4\.0"),
    "sample-n-bool": (calling("sample", n=True), r"n must be an int of at least 0, got True"),
    "sample-n-none": (calling("sample", n=None), r"n must be an int of at least 0, got None"),
    "sample-n-tensor": (
        calling("sample", n=torch.tensor(4)),
        r"n must be an int of at least 0, got tensor\(4\)",
    ),
    "sample-too-few-rows": (
        lambda i, s: i.sample(s, logits=i.logits[:3]),
        r"logits must have at least n = 4 rows.*\(3, 8\)",
    ),
    "sample-no_top_k-1": (calling("sample", no_top_k=1), r"no_top_k must be True or False, got 1"),
    "sample-no_top_k-none": (calling("sample", no_top_k=None), r"no_top_k must be True or False, got None"),
    "sample-no_top_p-tensor": (
        calling("sample", no_top_p=torch.ones(1, dtype=torch.bool)),
        r"no_top_p must be True or False, got tensor",
    ),
    "sample-no_top_p-string": (calling("sample", no_top_p="no"), r"no_top_p must be True or False, got 'no'"),
    "sample-output-list": (calling("sample", output=[0] * 4), r"output must be a tensor, got list"),
    "sample-output-int32": (
        calling("sample", output=ints(*[0] * 4, dtype=torch.int32)),
        r"output must have dtype int64, got int32",
    ),
    "sample-output-long": (calling("sample", output=ints(*[0] * 5)), r"output must have shape \(4,\).*\(5,\)"),
    "sample-output-short": (calling("sample", output=ints(*[0] * 3)), r"output must have shape \(4,\).*\(3,\)"),
    "sample-output-column": (
        calling("sample", output=torch.zeros(4, 1, dtype=torch.int64)),
        r"output must have shape \(4,\).*\(4, 1\)",
    ),
    "sample-gather-row-of-the-count": (
        calling("sample", gather_indices=ints(0, 1, 2, 6)),
        r"gather_indices must hold values in \[0, 6\), got 6",
    ),
    "sample-map-request-of-the-count": (
        calling("sample", token_to_request_index=ints(0, 1, 2, 4)),
        r"token_to_request_index must hold values in \[0, 4\), got 4",
    ),
    "log-probs-too-few-requests": (lambda i, s: i.log_probs(s, logits=i.logits), r"at most the 4 requests.*got 6"),
    "speculative-decode-negative": (
        calling("speculative", num_decode=-1),
        r"num_decode must be an int of at least 0, got -1",
    ),
    "speculative-prefill-float": (
        calling("speculative", num_prefill=2.0),
        r"num_prefill must be an int of at least 0, got 2\.0",
    ),
    "speculative-tokens-bool": (
        calling("speculative", num_speculative_tokens=True),
        r"num_speculative_tokens must be .*got True",
    ),
    "speculative-tokens-negative": (
        calling("speculative", num_speculative_tokens=-1),
        r"num_speculative_tokens must be .*got -1",
    ),
    "speculative-too-few-rows": (
        calling("speculative", num_speculative_tokens=4),
        r"logits must have at least n = 7 rows.*\(6, 8\)",
    ),
    "speculative-too-many-requests": (
        calling("speculative", num_decode=2, num_prefill=3, num_speculative_tokens=0),
        r"num_(decode|prefill).* 4",
    ),
    "speculative-context-none": (
        calling("speculative", context=None),
        r"context must have a gpu_view, got NoneType",
    ),
    "token-log-probs-top_n-negative": (
        calling("token_log_probs", top_n=-1),
        r"top_n must be an int in \[0, vocab_size = 8\], got -1",
    ),
    "token-log-probs-top_n-above-V": (
        calling("token_log_probs", top_n=9),
        r"top_n must be an int in \[0, vocab_size = 8\], got 9",
    ),
    "token-log-probs-top_n-bool": (calling("token_log_probs", top_n=True), r"top_n must be an int .*got True"),
    "token-log-probs-ids-list": (
        calling("token_log_probs", token_ids=[0, 1, 2, 3]),
        r"token_ids must be a tensor, got list",
    ),
    "token-log-probs-ids-float": (
        calling("token_log_probs", token_ids=torch.zeros(4)),
        r"token_ids must have dtype int32, int64, got float32",
    ),
    "token-log-probs-ids-short": (
        calling("token_log_probs", token_ids=ints(1, 2)),
        r"token_ids must have shape \(4,\).*\(2,\)",
    ),
    "token-log-probs-ids-column": (
        calling("token_log_probs", token_ids=torch.zeros(4, 1, dtype=torch.int64)),
        r"token_ids must have shape \(4,\).*\(4, 1\)",
    ),
    "token-log-probs-ids-of-the-count": (
        calling("token_log_probs", token_ids=ints(0, 1, 2, 8)),
        r"token_ids must hold values in \[0, 8\), got 8",
    ),
    "token-log-probs-ids-negative": (
        calling("token_log_probs", token_ids=ints(0, -1, 2, 3)),
        r"token_ids must hold values in \[0, 8\), got -1",
    ),
    "token-log-probs-map-too-large": (
        calling("token_log_probs", token_to_request_index=ints(0, 1, 2, 4)),
        r"token_to_request_index must hold values in \[0, 4\), got 4",
    ),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize(("call", "message"), CASES.values(), ids=CASES)
def test_a_malformed_call_says_why_and_does_nothing(make: Callable[[], Sampling], call: Call, message: str) -> None:
    sampler, inputs = make(), Inputs()
    before = state(sampler.rng), bits(inputs.logits), bits(inputs.output)
    with pytest.raises(ValueError, match=message):
        call(inputs, sampler)
    assert (state(sampler.rng), bits(inputs.logits), bits(inputs.output)) == before


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_the_unchanged_calls_are_right(make: Callable[[], Sampling]) -> None:
    """Else every case above might fail for another reason than its own."""
    sampler, inputs = make(), Inputs()
    assert inputs.sample(sampler) is inputs.output
    assert inputs.log_probs(sampler).shape == (4, VOCAB)
    assert inputs.speculative(sampler).shape == (4,)
    assert inputs.token_log_probs(sampler, top_n=8).top_ids.shape == (4, 8)
    for context in (views(), engine()):
        assert inputs.sample(sampler, context=context).shape == (4,)


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_what_lies_beyond_n_is_not_an_error(make: Callable[[], Sampling]) -> None:
    """Engines pad index tensors with whatever; the entries that nobody reads must not be judged."""
    beyond = ints(3, 2, 1, 0, -99, 10**9)
    assert Inputs().sample(make(), gather_indices=beyond, token_to_request_index=beyond).shape == (4,)


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31, 8.0, True, None, "8"])
@pytest.mark.parametrize("cls", [ReferenceSampling, FlashInferSampling])
def test_constructors_refuse_a_vocabulary_size(cls: Any, vocab_size: Any) -> None:
    with pytest.raises(ValueError, match=r"vocab_size must be an int in \[1, 2\*\*31\), got "):
        cls(vocab_size, generator())


@pytest.mark.parametrize("rng", [None, 42, "cpu", torch])
@pytest.mark.parametrize("cls", [ReferenceSampling, FlashInferSampling])
def test_constructors_refuse_what_is_no_generator(cls: Any, rng: Any) -> None:
    with pytest.raises(ValueError, match=rf"rng must be a torch.Generator, got {type(rng).__name__}"):
        cls(8, rng)


@pytest.mark.parametrize("bit_count", [0, -1, 54, 2.5])
def test_reference_refuses_a_resolution(bit_count: Any) -> None:
    with pytest.raises(ValueError, match=rf"uniform_bits must be .*\[1, 53\], got {bit_count}"):
        ReferenceSampling(8, generator(), LawOptions(uniform_bits=bit_count))
