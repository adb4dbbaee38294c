"""A plain sampler that is right, and ways to break it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reference import Sampling
from reference.slots import Slots


class PlainSampling(Sampling):
    """Sort, mask, inverse CDF, in float64. `fault` names one thing to do wrong; "" does all right."""

    def __init__(self, vocab_size: int, rng: torch.Generator, fault: str = "") -> None:
        super().__init__(vocab_size, rng)
        self.fault = fault
        self._buffer = torch.empty(2**17, dtype=torch.int64)
        self._seen: dict[int, Any] = {}
        self._calls = 0

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **call: Any) -> Tensor:
        fault = self.fault
        if fault == "errors-late":
            torch.rand(1, generator=self.rng)
        if fault == "mutates-logits":
            logits.mul_(1.5)
        if fault == "masks-in-place":
            logits.float().masked_fill_(logits == logits.amax(1, keepdim=True), 0.0)
        if fault == "caches-the-context":
            view = self._seen.setdefault(id(context), copy.deepcopy(context.gpu_view))
            context = SimpleNamespace(gpu_view=view)
        if fault == "keeps-the-first-context":
            context = self._seen.setdefault(-1, context)
        index = call.get("token_to_request_index")
        if fault == "reads-int64-as-int32" and index is not None and index.dtype == torch.int64:
            call["token_to_request_index"] = index.contiguous().view(torch.int32)
        if fault == "index-from-the-end" and index is not None:
            call["token_to_request_index"] = index[-n:]
        if fault == "" and n <= len(self._buffer) and call.get("output") is None:
            # Not a fault: the result is the sampler's own buffer, used again at the next call.
            return super().sample_kernel(logits, n, context, **call | {"output": self._buffer[:n]})
        if fault not in {"int32-result", "short-write", "writes-beyond", "aligns-down", "returns-copy"}:
            return super().sample_kernel(logits, n, context, **call)
        output: Tensor | None = call.get("output")
        ids = super().sample_kernel(logits, n, context, **call | {"output": None})
        if fault == "int32-result":
            return ids.int()
        if output is None:
            return ids
        if fault == "short-write":
            output[: n - 1] = ids[: n - 1]
            return output
        output.copy_(ids)
        if fault == "writes-beyond":
            torch.as_strided(output, (n + 1,), (1,), output.storage_offset())[n] = 0
        if fault == "aligns-down" and output.data_ptr() % 16:
            torch.as_strided(output, (1,), (1,), output.storage_offset() - 1).fill_(0)
        return ids if fault == "returns-copy" else output

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:  # noqa: ARG002
        fault = self.fault
        rows = torch.arange(slots.n) if slots.rows is None else slots.rows
        requests = torch.arange(slots.n) if slots.requests is None else slots.requests
        if fault == "neighbours-parameters":
            requests = (requests + 1) % int(requests.max() + 1)
        if fault == "parameters-by-row":
            requests = rows % len(slots.temperature)
        if fault == "first-request-for-all":
            requests = torch.zeros_like(requests)
        if fault == "row-off-by-one":
            rows = (rows + 1) % slots.logits.shape[0]
        # A row's law is found once, however many slots share it.
        pairs, of_slot = torch.unique(torch.stack([rows, requests], 1), dim=0, return_inverse=True)
        probs = self._probs(slots, pairs[:, 0], pairs[:, 1])
        if fault == "one-slot-is-greedy" and slots.n == 1:
            output.copy_(probs.nan_to_num(0.0).argmax(1))
            return
        backwards = (slots.top_p[pairs[:, 1]] == 1) & (fault == "p-one-scans-backwards")
        probs = torch.where(backwards[:, None], probs.flip(1), probs)
        ids = self._draw(probs, of_slot, all_greedy=bool((slots.temperature[requests] == 0).all()))
        output.copy_(torch.where(backwards[of_slot], probs.shape[1] - 1 - ids, ids))

    def _log_probs(self, slots: Slots, output: Tensor) -> None:
        fault = self.fault
        requests = torch.arange(slots.n) if slots.requests is None else slots.requests
        if fault == "log-probs-read-flat":
            flat = torch.as_strided(slots.logits, slots.logits.shape, (slots.logits.shape[1], 1))
            slots = replace(slots, logits=flat)
        if fault == "log-probs-clamp-temperature":
            slots = replace(slots, temperature=slots.temperature.clamp(max=10.0))
        probs = self._probs(slots, torch.arange(slots.n), requests, log_probs=True)
        if fault == "log-probs-odd-width" and self.vocab_size % 4:
            probs[:, -1] = 0.0
        if fault == "log-probs-16-rows":
            probs[16:] = probs[:1]
        if fault == "log-probs-lone-row" and slots.n == 1:
            probs = probs.sqrt()
        if fault == "log-probs-nan-spreads":
            probs[probs.isnan().any(1).roll(1)] = math.nan
        if fault == "log-probs-not-normalised":
            probs *= 1 - 1e-3
        if fault == "log-probs-lose-a-larger-token":
            kept = (probs > 0).sum(1) > 2
            second = probs.topk(min(2, probs.shape[1]), 1).indices[:, -1]
            probs[kept, second[kept]] = 0.0
        if fault == "log-probs-flat-within-1e-3":
            top = probs.amax(1, keepdim=True)
            probs = torch.where(probs > top * (1 - 1e-3), top, probs)
        output.fill_(-math.inf)
        output[:, : self.vocab_size] = probs[:, : self.vocab_size].log()
        output[probs.isnan().any(1)] = math.nan

    def _probs(self, slots: Slots, rows: Tensor, requests: Tensor, *, log_probs: bool = False) -> Tensor:
        """float64 [n, V], NaN for invalid rows."""
        fault = self.fault
        width = slots.logits.shape[1] if fault == "draws-padding" else self.vocab_size
        z = slots.logits[rows][:, :width].double()
        t, k, p = (x[requests].double()[:, None] for x in (slots.temperature, slots.top_k, slots.top_p))
        if fault == "tiny-temperature-is-greedy":
            t = torch.where(t < 1e-5, 0.0, t)
        if fault == "bare-call-ignores-top-p" and slots.rows is None and slots.requests is None and not k.any():
            p = torch.zeros_like(p)
        if log_probs and fault == "log-probs-without-temperature":
            t = torch.ones_like(t)
        invalid = ~(z.amax(1).isfinite())
        if fault == "padding-makes-invalid":
            invalid |= slots.logits[rows].isnan().any(1)
        if fault == "nan-spreads" and bool(invalid.any()):
            z = torch.zeros_like(z)
        z = torch.where(invalid[:, None], 0.0, z)
        greedy = (t == 0) | (k == 1)
        if fault in {"greedy-by-temperature", "zero-temperature-is-uniform"}:
            greedy = torch.zeros_like(greedy)
        scale = t.clamp(min=1e-6)
        if fault == "zero-temperature-is-uniform":
            scale = torch.where(t == 0, math.inf, scale)
        w = z / (torch.ones_like(scale) if fault == "temperature-last" else scale)
        if fault == "bf16-temperature":
            w = (z.bfloat16() / scale.bfloat16()).double()
        if fault == "temperature-twice":
            w = w / scale
        mass = torch.softmax(w, 1)
        if fault == "drops-tail":
            mass = torch.where(mass < 1e-6 * mass.amax(1, keepdim=True), 0.0, mass)
        if fault == "bf16-softmax":
            mass = torch.softmax(w.bfloat16(), 1).double()
        greedy_rows = torch.nn.functional.one_hot(z.argmax(1), width).double()
        if not (k > 0).any() and not ((p > 0) & (p < 1)).any() and fault not in {"k-plus-one", "p-one-cuts-tail"}:
            mass = torch.where(greedy, greedy_rows, mass / mass.sum(1, keepdim=True))
            return torch.where(invalid[:, None], math.nan, mass)
        order = torch.sort(mass, dim=1, descending=True, stable=True)
        sorted_mass = order.values
        k = torch.where((k <= 0) | (k > width), width, k)
        k = k + 1 if fault == "k-plus-one" else k
        kth = sorted_mass.gather(1, (k.long() - 1).clamp(max=width - 1))
        keep = sorted_mass >= kth
        if fault == "k-of-V-is-strict":
            keep &= (slots.top_k[requests][:, None] != width) | (sorted_mass > kth)
        if fault == "nearly-tied-at-k":
            keep = sorted_mass >= kth * (1 - 1e-3)
        if fault == "exactly-k":
            keep = torch.arange(width) < k
        survivors = sorted_mass if fault == "joint-filters" else sorted_mass * keep
        survivors = survivors / survivors.sum(1, keepdim=True)
        before = survivors.cumsum(1) - survivors
        off = (p <= 0) | (p >= 1)
        if fault == "drops-crossing-token":
            nucleus = (before + survivors <= p) | (torch.arange(width) == 0)
        elif fault == "keeps-one-more":
            nucleus = torch.cat([torch.ones_like(before[:, :1], dtype=torch.bool), before[:, :-1] < p], 1)
        else:
            last = (before < p).sum(1, keepdim=True) - 1
            nucleus = survivors >= survivors.gather(1, last.clamp(min=0))
        if fault == "splits-ties-at-p":
            nucleus = before < p
        keep &= nucleus | off
        if fault == "ignores-top-p":
            keep = sorted_mass >= kth
        if fault == "p-one-cuts-tail":
            keep &= (before < 1 - 1e-3) | ~off
        mass = torch.zeros_like(mass).scatter(1, order.indices, torch.where(keep, sorted_mass, 0.0))
        if fault == "temperature-last":
            mass = torch.where(mass > 0, torch.softmax(z / scale, 1), 0.0)
        mass = torch.where(greedy, greedy_rows, mass / mass.sum(1, keepdim=True))
        return torch.where(invalid[:, None], math.nan, mass)

    def _draw(self, probs: Tensor, of_slot: Tensor, *, all_greedy: bool) -> Tensor:
        """int64 [n]. probs: float64 [pairs, W]. of_slot: int64 [n], the pair of each slot."""
        fault = self.fault
        state = self.rng.get_state()
        generator = None if fault == "default-generator" else self.rng
        u = torch.rand(len(of_slot), generator=generator, dtype=torch.float64)
        if fault == "repeats-numbers" or (fault == "greedy-step-does-not-advance" and all_greedy):
            self.rng.set_state(state)
        if fault == "takes-the-next-numbers":
            # Tokens from the numbers that the generator gives next, as if torch's draws had a counter of their own.
            self.rng.set_state(state)
            u = torch.rand(len(u), generator=self.rng, dtype=torch.float32).double()
            self.rng.set_state(state)
        if fault == "advances-half":
            self.rng.set_state(state)
            torch.rand(len(u) // 2, generator=self.rng, dtype=torch.float64)
        self._calls += 1
        if fault == "every-other-call-repeats" and self._calls % 2 == 0:
            self.rng.set_state(self._seen.get(0, state))
            u = torch.rand(len(u), generator=self.rng, dtype=torch.float64)
        self._seen[0] = state
        if fault == "rows-64-apart-share":
            u = u[torch.arange(len(u)) // 128 * 128 + torch.arange(len(u)) % 64]
        if fault == "one-number-for-all-rows":
            u = u[:1].expand_as(u).clone()
        if fault == "rows-share-in-pairs":
            u = u[torch.arange(len(u)) // 2 * 2]
        if fault == "number-depends-on-row-before":
            u = (u + probs.nan_to_num(0.5).amax(1)[of_slot].roll(1)) % 1
        if fault == "antithetic-rows":
            u = torch.where(torch.arange(len(u)) % 2 == 0, u, 1 - u.roll(1))
        if fault == "coarse-numbers":
            u = (u * 2**8).floor() / 2**8
        cdf = probs.nan_to_num(0.0).cumsum(1)
        right = fault != "draws-first-at-zero"
        threshold = u * cdf[of_slot, -1] * (1.0 if right else (u > 2**-9).double())
        ids = torch.empty_like(of_slot)
        for pair in range(len(cdf)):
            mine = of_slot == pair
            ids[mine] = torch.searchsorted(cdf[pair], threshold[mine], right=right)
        return ids.clamp(max=probs.shape[1] - 1)


FAULTS = {
    # fault: the clause that must fail
    "drops-crossing-token": "top-p/crossing-token",
    "keeps-one-more": "top-p/crossing-token",
    "ignores-top-p": "top-p/crossing-token",
    "splits-ties-at-p": "top-p/ties",
    "p-one-cuts-tail": "top-p/off",
    "k-plus-one": "top-k/kept-set",
    "exactly-k": "top-k/ties",
    "joint-filters": "top-p/after-top-k",
    "temperature-last": "temperature/before-filters",
    "temperature-twice": "temperature/scale",
    "bf16-temperature": "draw/every-dtype",
    "bf16-softmax": "log-probs/law",
    "coarse-numbers": "draw/distribution",
    "draws-padding": "vocabulary/padding",
    "draws-first-at-zero": "vocabulary/masked",
    "greedy-by-temperature": "greedy/temperature-zero",
    "zero-temperature-is-uniform": "greedy/temperature-zero",
    "log-probs-without-temperature": "log-probs/small",
    "nan-spreads": "invalid/isolated",
    "neighbours-parameters": "calls/parameters-by-slot",
    "parameters-by-row": "calls/parameters-by-slot",
    "first-request-for-all": "calls/parameters-by-slot",
    "row-off-by-one": "calls/gather",
    "int32-result": "calls/result",
    "short-write": "calls/output",
    "writes-beyond": "calls/output",
    "returns-copy": "calls/output",
    "mutates-logits": "isolation/inputs",
    "repeats-numbers": "randomness/steps",
    "takes-the-next-numbers": "randomness/shared-generator",
    "one-number-for-all-rows": "randomness/rows",
    "rows-share-in-pairs": "randomness/rows",
    "antithetic-rows": "randomness/rows",
    "default-generator": "randomness/default-generators",
    "greedy-step-does-not-advance": "randomness/advance",
    "errors-late": "errors/refused",
    "advances-half": "randomness/steps",
    "every-other-call-repeats": "randomness/steps",
    "rows-64-apart-share": "randomness/rows",
    "one-slot-is-greedy": "isolation/batchmates",
    "bare-call-ignores-top-p": "calls/bare",
    "masks-in-place": "isolation/inputs",
    "caches-the-context": "calls/engine-context",
    "tiny-temperature-is-greedy": "temperature/tiny",
    "padding-makes-invalid": "vocabulary/padding",
    "drops-tail": "draw/tail/gap16",
    "log-probs-odd-width": "log-probs/law/random-both-n16-V3",
    "log-probs-16-rows": "log-probs/law/kinds-both-n512-V2",
    "log-probs-not-normalised": "log-probs/law/random-none-n2048-V1",
    "log-probs-lose-a-larger-token": "log-probs/law/random-none-n7-V4096",
    "log-probs-flat-within-1e-3": "log-probs/law/kinds-both-n7-V4096",
    "log-probs-clamp-temperature": "log-probs/temperatures",
    "log-probs-read-flat": "log-probs/small",
    "log-probs-lone-row": "log-probs/batches",
    "log-probs-nan-spreads": "log-probs/batches",
    "number-depends-on-row-before": "isolation/swap-batchmates",
    "k-of-V-is-strict": "top-k/sentinels",
    "p-one-scans-backwards": "top-p/sentinels",
    "nearly-tied-at-k": "vocabulary/row-kinds",
    "keeps-the-first-context": "calls/contexts-in-turn",
    "aligns-down": "calls/output",
    "reads-int64-as-int32": "calls/index-tensors",
    "index-from-the-end": "calls/index-tensors",
}


def make(fault: str) -> Any:
    """A factory of samplers with that fault."""
    return partial(PlainSampling, fault=fault)
