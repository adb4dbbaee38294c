"""The contract that every sampler here shares, and that an engine's sampler is judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from reference.arguments import (
    check_log_probs_call,
    check_sample_call,
    check_speculative_call,
    check_token_ids,
    check_vocab_size,
)
from reference.context import Context
from reference.slots import Slots


class TokenLogProbs(NamedTuple):
    """Log-probs of the chosen tokens and of the most probable ones."""

    chosen: Tensor  # float32 [rows]
    top_values: Tensor  # float32 [rows, top_n], descending; ties in index order
    top_ids: Tensor  # int64 [rows, top_n]


class Sampling(ABC):
    """Draws one token for each output slot.

    vocab_size: number of real tokens; logits may be wider, the rest is padding.
    rng: the only source of randomness. Every call with n > 0 advances it by an amount that n alone
        fixes.

    Wrong arguments raise a ValueError that names the argument, its value and what is allowed,
    before anything is launched, advanced or written.
    """

    def __init__(self, vocab_size: int, rng: torch.Generator) -> None:
        check_vocab_size(vocab_size)
        if not isinstance(rng, torch.Generator):
            raise ValueError(f"rng must be a torch.Generator, got {type(rng).__name__}")
        self.vocab_size = vocab_size
        self.rng = rng

    def sample_kernel(
        self,
        logits: Tensor,
        n: int,
        context: Context,
        *,
        no_top_k: bool,
        no_top_p: bool,
        gather_indices: Tensor | None = None,
        token_to_request_index: Tensor | None = None,
        output: Tensor | None = None,
        eager: bool = False,  # noqa: ARG002  # without a meaning here
        cache_key: Hashable = None,  # noqa: ARG002  # likewise
    ) -> Tensor:
        """Draw a token for each of n slots.

        logits: float32, float16 or bfloat16 [>= n, W], any strides, W >= vocab_size.
        n: number of slots; 0 returns an empty tensor and touches nothing.
        context: the requests' parameters, see `reference.context.Context`.
        no_top_k, no_top_p: the caller's promise that no active request uses that filter. False is
            always allowed; `filter_flags(context)` computes both.
        gather_indices: int32 or int64 [>= n], on the CPU or the logits' device. Slot i samples
            logits row gather_indices[i], else row i. A CPU tensor is copied behind the work already on the
            stream: one in pinned memory must not be written again before that.
        token_to_request_index: the same kind of tensor. Slot i uses the parameters of request
            token_to_request_index[i], else of request i.
        output: int64 [n], written whole and returned; nothing beyond it is touched.
        eager, cache_key: accepted, for callers that steer CUDA graphs with them.

        Returns int64 [n]. Raises ValueError for a malformed call.
        """
        slots = check_sample_call(
            self.vocab_size, logits, n, context, no_top_k, no_top_p, gather_indices, token_to_request_index, output
        )
        self._check(slots)
        if output is None:
            output = torch.empty(slots.n, dtype=torch.int64, device=logits.device)
        if slots.n:
            self._sample(slots.placed(), output, no_top_k=bool(no_top_k), no_top_p=bool(no_top_p))
        return output

    def log_probs_kernel(
        self, logits: Tensor, context: Context, *, token_to_request_index: Tensor | None = None
    ) -> Tensor:
        """Log-probs of the distribution that `sample_kernel` draws from, for every row of `logits`.

        logits: [rows, W]. token_to_request_index: [>= rows], row -> request, else row i is request i.

        Returns float32 [rows, W], in nats: -inf where a token cannot be drawn, NaN for an invalid
        row. Raises ValueError for a malformed call.
        """
        slots = check_log_probs_call(self.vocab_size, logits, context, token_to_request_index)
        self._check(slots)
        log_probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        if slots.n:
            self._log_probs(slots.placed(), log_probs)
        return log_probs

    def _check(self, slots: Slots) -> None:  # noqa: B027  # most samplers refuse nothing more
        """Raise a ValueError for what only this sampler refuses. Nothing has been launched yet."""

    @abstractmethod
    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:
        """Draw for at least one slot, into `output`. `slots` are placed."""

    @abstractmethod
    def _log_probs(self, slots: Slots, output: Tensor) -> None:
        """Write the log-probs of at least one row, one slot a row, into `output`. `slots` are placed."""

    def sample_speculative(
        self,
        required_logits: Tensor,
        num_decode: int,
        num_prefill: int,
        num_speculative_tokens: int,
        context: Context,
        *,
        gather_indices: Tensor | None = None,
        eager: bool = False,
        cache_key: Hashable = None,
    ) -> Tensor:
        """Draw a token for each row of a speculative step. Nothing is promised of the filters.

        required_logits: [>= n, W] with n = num_decode * (1 + num_speculative_tokens) + num_prefill:
            the decode requests first, 1 + S rows each, request-major; then one row for each prefill
            request. The other arguments are those of `sample_kernel`.

        Returns int64 [n].
        """
        check_speculative_call(
            self.vocab_size, required_logits, num_decode, num_prefill, num_speculative_tokens, context, gather_indices
        )
        decode_rows = num_decode * (1 + num_speculative_tokens)
        n = decode_rows + num_prefill
        row = torch.arange(n, device=required_logits.device)
        request = torch.where(row < decode_rows, row // (1 + num_speculative_tokens), row - decode_rows + num_decode)
        return self.sample_kernel(
            required_logits,
            n,
            context,
            no_top_k=False,
            no_top_p=False,
            gather_indices=gather_indices,
            token_to_request_index=request,
            eager=eager,
            cache_key=cache_key,
        )

    def token_log_probs(
        self,
        logits: Tensor,
        token_ids: Tensor,
        context: Context,
        *,
        top_n: int = 0,
        token_to_request_index: Tensor | None = None,
    ) -> TokenLogProbs:
        """Log-probs of the chosen tokens, and of the `top_n` most probable tokens, of each row.

        logits: [rows, W]; token_ids: int32 or int64 [rows]. Costs a `log_probs_kernel` here; a
        sampler that can avoid the [rows, W] tensor overrides it.
        """
        check_token_ids(token_ids, logits, self.vocab_size, top_n)
        log_probs = self.log_probs_kernel(logits, context, token_to_request_index=token_to_request_index)
        chosen = log_probs.gather(1, token_ids.to(torch.int64)[:, None])[:, 0]
        if top_n == 0:
            return TokenLogProbs(chosen, log_probs[:, :0], torch.empty_like(log_probs[:, :0], dtype=torch.int64))
        # A stable sort, not topk: equal log-probs must come in the same order on every device.
        top = torch.sort(log_probs[:, : self.vocab_size], dim=1, descending=True, stable=True)
        return TokenLogProbs(chosen, top.values[:, :top_n], top.indices[:, :top_n])
