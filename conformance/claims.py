"""What a sampler claims of itself. The suite checks each claim, and probes what is not claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from conformance.streams import STREAMS, Stream
from reference import LawOptions

LEAST_DRAWS = 2**17
"""What tier "quick" gives a case with a small vocabulary: fewer would show too little to be called a verdict."""

LEAST_BITS, FLOAT32_BITS = 16, 24
"""A random number of fewer bits than 16 reaches less than half of a vocabulary of today. 24 are float32's."""

TieRule = Literal["keep-all", "lowest-index", "any"]
GreedyTies = Literal["lowest-index", "any"]
FilterOrder = Literal["top-k-first", "joint"]
LogProbs = Literal["processed", "raw", "none"]
ParametersBy = Literal["slot", "row", "call"]
InvalidRows = Literal["in-range", "any"]
Generator = Literal["own", "global"]

REFUSALS = ("temperature 0", "top_k 0", "top_p 0", "top_p 1", "both filters", "invalid rows")
"""What a sampler may claim to refuse with an exception. The suite then asks for it only to see the exception."""

_CHOICES: dict[str, Any] = {
    "top_k_ties": TieRule, "top_p_ties": TieRule, "greedy_ties": GreedyTies, "filter_order": FilterOrder,
    "log_probs": LogProbs, "parameters_by": ParametersBy, "invalid_rows": InvalidRows, "generator": Generator,
}  # fmt: skip
_SETS = {
    "top_k_off": (int, "ints"),
    "top_p_off": (float, "numbers in [0, 1]"),
    "greedy_temperatures": (float, "finite numbers"),
    "refuses": (str, f"some of {list(REFUSALS)}"),
}


@dataclass(frozen=True)
class Claims:
    """Capabilities of a sampler, and its choices where samplers defensibly differ. The defaults are the contract's.

    A factory states what differs in an attribute named `claims`: such an object, or a mapping of its fields.

    Capabilities. What is claimed is checked. What is not is tried once, and reported where it works.

    token_log_probs: it has a `token_log_probs`.
    speculative: it has a `sample_speculative`.
    output: `sample_kernel` writes into the caller's `output`.
    argument_errors: a malformed call raises a ValueError that names the argument, and does nothing else.
    sync_free: no call waits for the device.
    cuda_graph: `make_sampler(vocab_size, rng, enable_cuda_graph=True)` gives a sampler whose calls may
        be captured in a CUDA graph, and each replay draws what an eager call would have drawn.
    stream: its documented stream: which random numbers decide which draw, and how. An object
        of the sampler's author, or one of `conformance.streams.STREAMS`; in a factory's mapping its name will do.

    Choices. The law with the choice made takes the place of the law.

    log_probs: those of the distribution that is drawn from ("processed"), of softmax(logits) ("raw"), or "none".
    top_k_ties, top_p_ties: tokens tied at the edge of the filter are all kept ("keep-all"), kept in index order
        until the filter is full ("lowest-index"), or any choice among them is right ("any").
    greedy_ties: a greedy row with tied maxima gives the "lowest-index", or "any" of them.
    filter_order: top-p acts on the renormalised survivors of top-k ("top-k-first"), or both on the whole
        distribution ("joint").
    top_k_off, top_p_off, greedy_temperatures: values that switch a filter off, or mean greedy. k >= V always is
        off. A p of 0 that is not off keeps the most probable token; a T of 0 that is not greedy acts as 1e-6.
    parameters_by: of which request a slot takes its parameters: the one that `token_to_request_index` names
        ("slot"), the one with the number of the logits row that it gathers ("row"), or there is one
        temperature, top_k and top_p for the whole "call". The suite then makes a call for each set of parameters,
        and what is about several requests (`speculative`, `token_log_probs`) is no claim.
    generator: it draws from the `rng` that it is made with ("own"), or from torch's default generator of the
        device ("global").
    uniform_bits: how many bits the random number behind a draw has. 24 or more ask for the same.
    invalid_rows: a row with a NaN, a +inf or no finite logit gives an id "in-range" and log-probs of NaN, or
        "any" id and log-probs. Its neighbours are as without it, either way.
    refuses: what raises an exception instead of being served, among `REFUSALS`.

    Manner of judging.

    make_context: `make_context(temperature, top_k, top_p, device)`, of three lists and a torch.device, builds
        the context of an engine whose sampler wants its own class; it has a `gpu_view`, as the contract says. None
        gives a `reference.SamplingContext`.
    most_draws: no case gets more draws than this: for samplers that are slow by design. The report shows the draws.
    """

    token_log_probs: bool = True
    speculative: bool = True
    output: bool = True
    argument_errors: bool = True
    sync_free: bool = True
    cuda_graph: bool = False
    stream: Stream | None = None

    log_probs: LogProbs = "processed"
    top_k_ties: TieRule = "keep-all"
    top_p_ties: TieRule = "keep-all"
    greedy_ties: GreedyTies = "lowest-index"
    filter_order: FilterOrder = "top-k-first"
    top_k_off: frozenset[int] = frozenset({0})
    top_p_off: frozenset[float] = frozenset({0.0, 1.0})
    greedy_temperatures: frozenset[float] = frozenset({0.0})
    parameters_by: ParametersBy = "slot"
    generator: Generator = "own"
    uniform_bits: int = FLOAT32_BITS
    invalid_rows: InvalidRows = "in-range"
    refuses: frozenset[str] = frozenset()

    make_context: Callable[..., Any] | None = None
    most_draws: int | None = None

    def __post_init__(self) -> None:
        """Raise a ValueError that names the field that is no claim."""
        self._check_choices()
        for name in _SETS:
            object.__setattr__(self, name, _set(name, getattr(self, name)))
        if isinstance(self.stream, str) and self.stream in STREAMS:
            object.__setattr__(self, "stream", STREAMS[self.stream])
        self._check_objects()
        by_call = self.parameters_by == "call"
        if self.log_probs == "none" or by_call:
            object.__setattr__(self, "token_log_probs", False)  # they are log-probs; and of several requests
        if by_call:
            object.__setattr__(self, "speculative", False)  # it is about several requests

    def _check_choices(self) -> None:
        for name in ("token_log_probs", "speculative", "output", "argument_errors", "sync_free", "cuda_graph"):
            if type(value := getattr(self, name)) is not bool:
                raise ValueError(f"claims.{name} must be True or False, got {value!r}")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise ValueError(f"claims.{name} must be one of {list(get_args(choices))}, got {value!r}")
        bits = self.uniform_bits
        if type(bits) is not int or not LEAST_BITS <= bits <= 53:
            raise ValueError(f"claims.uniform_bits must be an int in [{LEAST_BITS}, 53], got {bits!r}")
        if self.most_draws is not None and (type(self.most_draws) is not int or self.most_draws < LEAST_DRAWS):
            raise ValueError(f"claims.most_draws must be an int of at least {LEAST_DRAWS}, got {self.most_draws!r}")

    def _check_objects(self) -> None:
        if self.make_context is not None and not callable(self.make_context):
            raise ValueError(f"claims.make_context must be callable, got {self.make_context!r}")
        if self.stream is not None and (isinstance(self.stream, type) or not isinstance(self.stream, Stream)):
            raise ValueError(f"claims.stream must be a Stream or one of {sorted(STREAMS)}, got {self.stream!r}")

    @property
    def options(self) -> LawOptions:
        """The choices that the law knows of."""
        chosen = {option.name: getattr(self, option.name) for option in fields(LawOptions)}
        # A call with one set of parameters is judged slot by slot; log-probs that do not exist have no law.
        chosen["parameters_by"] = "row" if self.parameters_by == "row" else "slot"
        chosen["log_probs"] = "raw" if self.log_probs == "raw" else "processed"
        return LawOptions(**chosen)

    def but(self, **changes: Any) -> Claims:
        """The same claims with some fields changed."""
        return replace(self, **changes)

    def stated(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as plain data: a stream by its name, sets as sorted lists."""
        default = Claims()
        return {name: value for name, value in self.to_json().items() if value != default.to_json()[name]}

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["stream"] = self.stream.name if self.stream else None
        found["make_context"] = getattr(
            self.make_context, "__qualname__", None if self.make_context is None else "given"
        )
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in found.items()}

    @staticmethod
    def of(make_sampler: Any) -> Claims:
        """The claims that a factory states itself, in an attribute named `claims`, on top of the defaults."""
        stated = getattr(make_sampler, "claims", {})
        if isinstance(stated, Claims):
            return stated
        if not isinstance(stated, Mapping):
            raise ValueError(f"claims must be a conformance.Claims or a mapping of its fields, got {stated!r}")
        known = {each.name for each in fields(Claims)}
        if unknown := sorted(set(stated) - known, key=str):
            raise ValueError(f"claims must be among {sorted(known)}, got {unknown}")
        return Claims(**stated)


def _set(name: str, value: Any) -> frozenset[Any]:
    """A frozenset of what may stand there, from any set, list or tuple."""
    kind, allowed = _SETS[name]
    wrong = ValueError(f"claims.{name} must be a set of {allowed}, got {value!r}")
    if not isinstance(value, (set, frozenset, list, tuple)):
        raise wrong
    for each in value:
        number = isinstance(each, (int, float)) and not isinstance(each, bool)
        right = {
            int: type(each) is int and abs(each) < 2**31,
            float: number and (0 <= each <= 1 if name == "top_p_off" else abs(each) < 3e38),
            str: each in REFUSALS,
        }[kind]
        if not right:
            raise wrong
    # The sampler sees float32.
    return frozenset(float(np.float32(each)) if kind is float else each for each in value)
