"""The sampler under test: how it is built, called, and drawn from."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conformance.cases import DTYPES, Case
from conformance.claims import Claims
from conformance.engine import EngineContext, plain_context
from conformance.evidence.budget import looks
from conformance.idiom import CallEach, WithGenerator, own_values
from conformance.streams import STREAMS
from reference import FilterFlags, Law, LawOptions, filter_flags

SPEC_VERSION = "2027.3"

_LAUNCH_ELEMENTS = {"cpu": 2**22, "cuda": 2**30}
"""n * V of one call: on a CPU 16 MB of float32, on a GPU 4 GiB. Within 2^32 / V rows."""


@dataclass(frozen=True)
class Manner:
    """One way of putting a case to a sampler. The law does not depend on it.

    logits: changes how the logits lie in memory, not what they are.
    context: makes another context of the one that the sampler wants.
    gather: names logits rows by gather_indices; else they are laid out slot by slot.
    index_dtype, index_device ("cpu" or "same"), index_padding, index_step: of both index tensors; entries
        are `index_step` apart in memory.
    promise: pass what `Subject.flags` may promise; else False for both.
    """

    name: str = "plain"
    logits: Callable[[Tensor], Tensor] = field(default=lambda logits: logits)
    context: Callable[[Any], Any] = field(default=lambda context: context)
    gather: bool = True
    index_dtype: torch.dtype = torch.int32
    index_device: str = "same"
    index_padding: int = 0
    index_step: int = 1
    promise: bool = True


PLAIN = Manner()

NO_PROMISE: FilterFlags = {"no_top_k": False, "no_top_p": False}

_OFF = LawOptions()


@dataclass(frozen=True)
class Subject:
    """A factory of samplers on a device, with its claims.

    make_sampler: `make_sampler(vocab_size, rng)`, a `reference.Sampling` or what quacks like one.
    name: `module:attribute` where it can be imported so, for reproducers.
    seed: None where all seeds follow from the suite's own names.
    scope: id of the clause that it is judged by, part of every seed.
    """

    make_sampler: Callable[..., Any]
    claims: Claims
    device: torch.device
    name: str
    tier: str
    seed: int | None = None
    scope: str = ""

    def seed_of(self, *parts: object) -> int:
        """A seed below 2^63, from (spec version, tier, run seed, clause, parts)."""
        text = "/".join(str(part) for part in (SPEC_VERSION, self.tier, self.seed, self.scope, *parts))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self, seed: int) -> torch.Generator:
        """A generator on the subject's device."""
        return torch.Generator(self.device).manual_seed(seed)

    def sampler(self, vocab_size: int, seed: int, *, alone: bool = False, **options: Any) -> Any:
        """A new sampler. Its generator is its own, and seeded, or the global one, which is seeded then.

        alone: with nothing in between that sees its calls first.
        """
        if self.claims.generator == "global":
            torch.manual_seed(seed)
        rng = self.generator(seed)
        made = self.make_sampler(vocab_size, rng, **options)
        if not isinstance(getattr(made, "rng", None), torch.Generator):
            made = WithGenerator(made, rng)
        if alone:
            return made
        return CallEach(made, self.context_of) if self.claims.parameters_by == "call" else made

    def rng(self, sampler: Any) -> torch.Generator:
        """The generator that the sampler draws from."""
        if self.claims.generator == "own":
            own: torch.Generator = sampler.rng
            return own
        if self.device.type == "cpu":
            return torch.default_generator
        found: torch.Generator = torch.cuda.default_generators[self.device.index or 0]
        return found

    def call(self, sampler: Any, case: Case, repeats: int = 1, manner: Manner = PLAIN, **more: Any) -> Tensor:
        """One call that samples the case's slot pattern `repeats` times over. Returns int64 [n].

        The result is the caller's to keep, also where the sampler returns a buffer that it will use again.
        """
        logits, keywords = self.arguments(case, repeats, manner)
        n = case.slots * repeats
        context = manner.context(self.context(case))
        flags = self.flags(case) if manner.promise else NO_PROMISE
        ids: Tensor = sampler.sample_kernel(logits, n, context, **{**flags, **keywords, **more})
        return ids if "output" in more else ids.clone()

    def context(self, case: Case) -> Any:
        """The parameters of the case's requests, in a context as the sampler wants it."""
        return self.context_of(*case.parameters())

    def context_of(self, temperature: list[float], top_k: list[int], top_p: list[float]) -> Any:
        """The same of any parameters."""
        if self.claims.make_context is not None:
            made = self.claims.make_context(temperature, top_k, top_p, self.device)
            if not hasattr(made, "gpu_view"):
                raise ValueError(f"claims.make_context must build something with a gpu_view, got {type(made).__name__}")
            return made
        if min(0, *self.claims.top_k_off, *self.claims.greedy_temperatures) < 0:  # it may come to hold them later
            return EngineContext(temperature, top_k, top_p, device=self.device, padding=0)
        return plain_context(temperature, top_k, top_p, self.device)

    def engine_context(self, temperature: list[float], top_k: list[int], top_p: list[float]) -> Any:
        """The same as an engine lays it out: with padding, paused requests and stale entries; or the engine's own."""
        if self.claims.make_context is not None:
            return self.context_of(temperature, top_k, top_p)
        return EngineContext(temperature, top_k, top_p, device=self.device)

    def own_values(
        self, vocab_size: int, temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float]
    ) -> tuple[list[float], list[int], list[float]]:
        """Parameters in the contract's terms as values that the sampler takes."""
        return own_values(self.claims, vocab_size, list(temperature), list(top_k), list(top_p))

    def flags(self, case: Case) -> FilterFlags:
        """What a caller may promise of the case."""
        return self.flags_of(self.context(case), case.vocab_size)

    def flags_of(self, context: Any, vocab_size: int) -> FilterFlags:
        """What a caller may promise of a context, by the values that are claimed to be off."""
        claims = self.claims
        if (claims.top_k_off, claims.top_p_off) == (_OFF.top_k_off, _OFF.top_p_off):
            return filter_flags(context, vocab_size)
        metadata = getattr(context, "active_request_metadata", None)
        if metadata is None:
            return NO_PROMISE
        active = context.total_request_count - context.paused_request_count
        top_k, top_p = (metadata[name][:active].tolist() for name in ("top_k", "top_p"))
        return {
            "no_top_k": all(k in claims.top_k_off or k >= vocab_size for k in top_k),
            "no_top_p": all(p in claims.top_p_off for p in top_p),
        }

    def serves_invalid_rows(self) -> bool:
        """Whether it may be given rows that are invalid."""
        return "invalid rows" not in self.claims.refuses

    def log_probs_law(self, case: Case) -> Law:
        """The law that the log-probs of the case's slots follow: of what is drawn from, or of softmax(logits)."""
        if self.claims.log_probs == "raw":
            case = case.but(temperature=(1.0,) * case.request_count, top_k=(0,), top_p=(0.0,))
            return case.law(_OFF, self.device)
        return case.law(self.claims.options, self.device)

    def log_probs(self, sampler: Any, logits: Tensor, context: Any) -> Tensor:
        """The sampler's log-probs; an empty tensor where it claims none."""
        if self.claims.log_probs == "none":
            return torch.empty(0)
        log_probs: Tensor = sampler.log_probs_kernel(logits, context)
        return log_probs

    def arguments(self, case: Case, repeats: int, manner: Manner = PLAIN) -> tuple[Tensor, dict[str, Tensor]]:
        """The logits and index tensors of `call`."""
        rows, requests = (index.repeat(repeats) for index in case.pattern())
        logits = case.logits(self.device).clone()  # a sampler that writes to it spoils its own call alone
        keywords = {"token_to_request_index": self.index(requests, manner)}
        if manner.gather:
            keywords["gather_indices"] = self.index(rows, manner)
        else:
            logits = logits[rows.to(self.device)]
        return manner.logits(logits), keywords

    def index(self, values: Tensor, manner: Manner = PLAIN) -> Tensor:
        """An index tensor in the manner's dtype, place and length."""
        padded = torch.nn.functional.pad(values, (0, manner.index_padding)).to(manner.index_dtype)
        spread = torch.full((len(padded), manner.index_step), 2**30, dtype=manner.index_dtype)
        spread[:, 0] = padded
        return (spread.to(self.device) if manner.index_device == "same" else spread)[:, 0]

    def draw(self, case: Case, draws: int, manner: Manner = PLAIN, *, seed: int | None = None) -> Tensor:
        """At least `draws` draws in all, in as many calls of one sampler as it takes.

        Returns int64 [slots, draws / slots].
        """
        return next(self.drawing(case, [draws], manner, seed=seed))

    def drawing(
        self, case: Case, stops: Iterable[int], manner: Manner = PLAIN, *, seed: int | None = None
    ) -> Iterator[Tensor]:
        """All draws so far, int64 [slots, draws / slots], after at least each number of them; of one sampler."""
        sampler = self.sampler(case.vocab_size, self.seed_of(case.id, manner.name) if seed is None else seed)
        ids: list[Tensor] = []
        done = 0
        for stop in stops:
            per_call, calls = self.launches(case, stop - done)
            ids += [self.call(sampler, case, per_call, manner).view(per_call, case.slots) for _ in range(calls)]
            done += per_call * calls * case.slots
            ids = [torch.cat(ids)]
            yield ids[0].T.contiguous()

    def launches(self, case: Case, draws: int) -> tuple[int, int]:
        """Repeats of the pattern in one call, and number of calls."""
        repeats = max(1, -(-draws // case.slots))
        most = max(1, _LAUNCH_ELEMENTS[self.device.type] // (case.vocab_size * case.slots))
        calls = -(-repeats // most)
        return -(-repeats // calls), calls

    def reproducer(self, case: Case, kind: str, check_id: str) -> str:
        """At most six lines of Python that show a failure again.

        kind: "draws" makes the first call of the check and counts what it gave, "log-probs" prints the
        log-probs, "check" runs the whole check.
        """
        device = str(self.device)
        if kind == "check" or not self._speaks_the_contract(case):
            claims, unsaid = "", ""
            if self.claims != Claims.of(self.make_sampler):
                stated = self.claims.stated()
                objects = [
                    name for name in ("make_context", "stream") if name in stated and stated[name] not in STREAMS
                ]
                claims = f", claims=Claims(**{ {name: stated[name] for name in stated if name not in objects} })"
                unsaid = "".join(f"  # and with the {name} that it was run with" for name in objects)
            lines = [f"from conformance import *; {self._import()}{unsaid}"]
            arguments = f"tier={self.tier!r}, device={device!r}, seed={self.seed}, only={check_id!r}{claims}"
            lines += [
                f"report = check(make_sampler, {arguments})",
                "print(*report.results[0].failed, report.results[0].error, sep='\\n')",
            ]
            return "\n".join(lines)
        seed = f"torch.Generator({device!r}).manual_seed({self.seed_of(case.id, PLAIN.name)})"
        lines = [
            f"import torch; from math import inf, nan; from reference import SamplingContext; {self._import()}",
            f"logits = ({case.code}).to({DTYPES[case.dtype]}).to({device!r})",
            f"context = SamplingContext({case.parameters_code()}, device={device!r})",
            f"sampler = make_sampler({case.vocab_size}, {seed})",
        ]
        rows, requests = case.pattern_code()
        if kind == "log-probs":
            return "\n".join([*lines, f"print(sampler.log_probs_kernel(logits[{rows}], context))"])
        first, _ = next(looks(case.draws, 1.0))
        repeats, _ = self.launches(case, first)
        n = case.slots * repeats
        rows, requests = (f"{index}.int().repeat({repeats}).to({device!r})" for index in (rows, requests))
        flags = ", ".join(f"{name}={flag}" for name, flag in self.flags(case).items())
        indices = f"gather_indices={rows}, token_to_request_index={requests}"
        counts = "dict(zip(*map(torch.Tensor.tolist, slot.unique(return_counts=True))))"
        lines += [
            f"ids = sampler.sample_kernel(logits, {n}, context, {flags}, {indices})",
            f"print(*[{counts} for slot in ids.view(-1, {case.slots}).T], sep='\\n')",
        ]
        return "\n".join(lines)

    def _speaks_the_contract(self, case: Case) -> bool:
        """Whether the sampler takes the case as a plain call: else a reproducer of six lines cannot show it."""
        claims = self.claims
        temperature, top_k, _ = case.parameters()
        own_way = claims.make_context is not None or claims.parameters_by == "call" or claims.generator == "global"
        return not own_way and min(temperature) >= 0 and min(top_k) >= 0

    def _import(self) -> str:
        """How to get the factory; a comment where it has no name of its own."""
        module, _, attribute = self.name.partition(":")
        if not attribute.isidentifier():
            return f"# make_sampler is {self.name}"
        if module == "__main__":
            return f"# make_sampler is {attribute} of the script that was run"
        found = getattr(sys.modules.get(module), attribute, None)
        if found is not self.make_sampler and "__main__" not in module:
            return f"# make_sampler is what was made of {self.name}"
        return f"from {module} import {attribute}" + (" as make_sampler" if attribute != "make_sampler" else "")
