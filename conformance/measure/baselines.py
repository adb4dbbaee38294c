"""Samplers as people put them together, to compare with: on plain torch, and on FlashInfer's kernels.

They take what the timings give them and check nothing. What does not change from call to call is prepared at the first
call with a context.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor


class _Parameters(NamedTuple):
    """Of the requests, [n] each on the device; T of greedy rows is 1, a k that is off V.

    greedy: rows whose temperature is 0, or None where there is none. top_k, top_p, both: whether some row uses that.
    """

    temperature: Tensor
    k: Tensor
    p: Tensor
    greedy: Tensor | None
    top_k: bool
    top_p: bool
    both: bool


class _Baseline:
    claims: ClassVar[dict[str, Any]] = {
        "filter_order": "joint", "output": False, "argument_errors": False, "token_log_probs": False,
        "speculative": False, "sync_free": False,
    }  # fmt: skip

    _p_off = 2.0
    """A p that no sum reaches: in float32 a sum over part of a row comes to 1 before its tail."""

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        self.vocab_size, self.rng = vocab_size, rng
        self._prepared: dict[int, tuple[Any, _Parameters]] = {}

    def sample_kernel(
        self, logits: Tensor, n: int, context: Any, *, gather_indices: Tensor | None = None, **_promises: bool
    ) -> Tensor:
        """See `reference.Sampling.sample_kernel`; without a token-to-request map, and without `output`."""
        given = self._parameters(context)
        rows = logits[:n] if gather_indices is None else logits[gather_indices[:n].to(torch.int64)]
        ids = self._draw(rows, given).to(torch.int64)
        return ids if given.greedy is None else torch.where(given.greedy, rows.argmax(1), ids)

    def log_probs_kernel(self, logits: Tensor, context: Any) -> Tensor:
        """See `reference.Sampling.log_probs_kernel`; without a map."""
        given = self._parameters(context)
        if given.top_k or given.top_p:
            log_probs = self._filtered(logits, given).log().float()
        else:
            log_probs = torch.log_softmax(logits.float() / given.temperature[:, None], dim=-1)
        if given.greedy is None:
            return log_probs
        chosen = torch.full_like(log_probs, -math.inf).scatter_(1, logits.argmax(1, keepdim=True), 0.0)
        return torch.where(given.greedy[:, None], chosen, log_probs)

    def _draw(self, rows: Tensor, given: _Parameters) -> Tensor:
        raise NotImplementedError

    def _filtered(self, rows: Tensor, given: _Parameters) -> Tensor:
        """Probabilities, renormalised, [n, V]."""
        raise NotImplementedError

    def _parameters(self, context: Any) -> _Parameters:
        if id(context) not in self._prepared:
            view = context.gpu_view
            greedy, off_k, off_p = view.temperature == 0, view.top_k == 0, view.top_p == 0
            self._prepared[id(context)] = (
                context,
                _Parameters(
                    torch.where(greedy, 1.0, view.temperature),
                    torch.where(off_k, self.vocab_size, view.top_k),
                    torch.where(off_p, self._p_off, view.top_p),
                    greedy if bool(greedy.any()) else None,
                    not bool(off_k.all()),
                    not bool(off_p.all()),
                    not bool((off_k | off_p).all()),
                ),
            )
        return self._prepared[id(context)][1]


class TorchComposition(_Baseline):
    """softmax, a sort where something filters, `torch.multinomial`: what works everywhere."""

    # The order of the sort decides among ties.
    claims: ClassVar[dict[str, Any]] = {**_Baseline.claims, "top_k_ties": "any", "top_p_ties": "any"}

    def _draw(self, rows: Tensor, given: _Parameters) -> Tensor:
        return torch.multinomial(self._filtered(rows, given), 1, generator=self.rng)[:, 0]

    def _filtered(self, rows: Tensor, given: _Parameters) -> Tensor:
        probs = torch.softmax(rows.float() / given.temperature[:, None], dim=-1)
        if not (given.top_k or given.top_p):
            return probs
        ordered, order = probs.sort(dim=-1, descending=True)
        if given.top_p:
            ordered[ordered.cumsum(-1) - ordered >= given.p[:, None]] = 0
        if given.top_k:
            ordered[torch.arange(ordered.shape[1], device=rows.device) >= given.k[:, None]] = 0
        kept = torch.zeros_like(probs).scatter_(-1, order, ordered)
        return kept / kept.sum(-1, keepdim=True)


class TorchInverseCdf(_Baseline):
    """The careful way on plain torch: a stable sort of the logits, sums and a search in float64.

    Its operations are those that `ReferenceSampling` consists of, so that the ratio of the two is much the same on
    all CPUs.
    """

    claims: ClassVar[dict[str, Any]] = {**TorchComposition.claims, "filter_order": "top-k-first"}

    def _draw(self, rows: Tensor, given: _Parameters) -> Tensor:
        cdf = self._filtered(rows, given).cumsum(-1)
        u = torch.rand(len(rows), 1, generator=self.rng, dtype=torch.float64, device=rows.device)
        return torch.searchsorted(cdf, u * cdf[:, -1:], right=True)[:, 0]

    def _filtered(self, rows: Tensor, given: _Parameters) -> Tensor:
        probs = torch.softmax(rows.double() / given.temperature[:, None], dim=-1)
        if not (given.top_k or given.top_p):
            return probs
        order = rows.sort(dim=-1, descending=True, stable=True).indices
        ordered = probs.gather(-1, order)
        if given.top_k:
            ordered[torch.arange(ordered.shape[1], device=rows.device) >= given.k[:, None]] = 0
            ordered /= ordered.sum(-1, keepdim=True)
        if given.top_p:
            ordered[ordered.cumsum(-1) - ordered >= given.p[:, None]] = 0
        kept = torch.zeros_like(probs).scatter_(-1, order, ordered)
        return kept / kept.sum(-1, keepdim=True)


class _OnFlashInfer(_Baseline):
    claims: ClassVar[dict[str, Any]] = {**_Baseline.claims, "filter_order": "top-k-first"}
    _p_off = 1.0  # as its documentation has it

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        super().__init__(vocab_size, rng)
        try:
            self._kernels: Any = import_module("flashinfer").sampling
        except ImportError as error:
            raise ValueError(
                f"this baseline needs `pip install 'sampling-conformance[flashinfer]'`: {error}"
            ) from error

    def _from_probs(self, probs: Tensor, given: _Parameters) -> Tensor:
        kernels: Any = self._kernels
        drawn: Tensor
        if given.top_k and given.top_p:
            order = "top_k_first" if given.both else "joint"  # which are the same for rows that use one filter
            drawn = kernels.top_k_top_p_sampling_from_probs(
                probs, given.k, given.p, filter_apply_order=order, generator=self.rng
            )
        elif given.top_k:
            drawn = kernels.top_k_sampling_from_probs(probs, given.k, generator=self.rng)
        elif given.top_p:
            drawn = kernels.top_p_sampling_from_probs(probs, given.p, generator=self.rng)
        else:
            drawn = kernels.sampling_from_probs(probs, generator=self.rng)
        return drawn


class FlashInferComposition(_OnFlashInfer):
    """As users and documentation put it together: `logits / T` in float32, `torch.softmax`, one FlashInfer kernel.

    Batches in which both filters are in use go to `top_k_top_p_sampling_from_logits`, top-k first.
    """

    def _draw(self, rows: Tensor, given: _Parameters) -> Tensor:
        scaled = rows.float() / given.temperature[:, None]
        if given.top_k and given.top_p:
            drawn: Tensor = self._kernels.top_k_top_p_sampling_from_logits(scaled, given.k, given.p, generator=self.rng)
            return drawn
        return self._from_probs(torch.softmax(scaled, dim=-1), given)

    def _filtered(self, rows: Tensor, given: _Parameters) -> Tensor:
        probs = torch.softmax(rows.float() / given.temperature[:, None], dim=-1)
        probs = self._kernels.top_k_renorm_probs(probs, given.k)
        kept: Tensor = self._kernels.top_p_renorm_probs(probs, given.p)
        return kept


class FlashInferPath(_OnFlashInfer):
    """FlashInfer's own fast path that obeys the law: softmax with temperature, then the kernel that the batch needs."""

    def _draw(self, rows: Tensor, given: _Parameters) -> Tensor:
        return self._from_probs(self._softmax(rows, given), given)

    def _filtered(self, rows: Tensor, given: _Parameters) -> Tensor:
        probs = self._softmax(rows, given)
        if given.top_k:
            probs = self._kernels.top_k_renorm_probs(probs, given.k)
        return self._kernels.top_p_renorm_probs(probs, given.p) if given.top_p else probs

    def _softmax(self, rows: Tensor, given: _Parameters) -> Tensor:
        probs: Tensor = self._kernels.softmax(rows.float(), temperature=given.temperature)
        return probs
