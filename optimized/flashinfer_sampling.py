"""The dispatcher: for each batch, the cheapest FlashInfer kernels that follow the law."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimized.kernels import Kernels
from optimized.kernels.portable import PortableKernels
from optimized.routes import Route, choose_route
from reference import Sampling
from reference.arguments import Slots, check_log_probs_call, check_sample_call
from reference.context import Context, batch_facts


class FlashInferSampling(Sampling):
    """Samples with FlashInfer on a CUDA device, and with portable torch kernels on a CPU.

    vocab_size: number of real tokens; wider logits are allowed.
    rng: its device decides the kernels. On CUDA, FlashInfer must be installed.
    config: accepted for engines that hand every sampler their configuration; not read.
    enable_cuda_graph: allow calls to be captured in a CUDA graph. Before the capture, call
        `graph.register_generator_state(rng)` and sample once with the shapes to be captured. Each
        replay then draws fresh numbers, the ones that an eager call would have drawn in its place.
        The route depends on no_top_k and no_top_p alone, so a replay is right for whatever
        `context.gpu_view` holds by then, as long as it keeps that promise. Eager calls cost about
        10 us more of host time than with False.

    See `optimized.routes` for which kernels serve which batch.
    """

    claims: ClassVar[dict[str, Any]] = {"cuda_graph": True}

    def __init__(
        self,
        vocab_size: int,
        rng: torch.Generator,
        config: object = None,
        enable_cuda_graph: bool = False,  # noqa: FBT001, FBT002  # engines may pass it by position
    ) -> None:
        super().__init__(vocab_size, rng)
        self.config = config
        self.enable_cuda_graph = enable_cuda_graph
        self._device = rng.device
        if self._device.type == "cuda" and self._device.index is None:  # as torch.Generator("cuda") has it
            self._device = torch.device("cuda", torch.cuda.current_device())
        if rng.device.type == "cuda":
            from optimized.kernels.flashinfer import FlashInferKernels  # noqa: PLC0415  # needs a GPU

            self._kernels: Kernels = FlashInferKernels(
                vocab_size, rng, self._device, enable_cuda_graph=enable_cuda_graph
            )
        else:
            if enable_cuda_graph:
                raise ValueError(f"enable_cuda_graph must be False with an rng on {rng.device}, got True")
            self._kernels = PortableKernels(vocab_size, rng)
        self._part_size = max(1, self._kernels.max_elements // vocab_size)

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
        eager: bool = False,  # noqa: ARG002  # the contract's, without a meaning here
        cache_key: Hashable = None,  # noqa: ARG002  # likewise
    ) -> Tensor:
        """See `reference.Sampling.sample_kernel`. Never waits for the device."""
        slots = check_sample_call(
            self.vocab_size, logits, n, context, no_top_k, no_top_p, gather_indices, token_to_request_index, output
        )
        self._check_device(logits, gather_indices, token_to_request_index)
        if output is None:
            output = torch.empty(n, dtype=torch.int64, device=logits.device)
        if n == 0:
            return output
        facts = None if self.enable_cuda_graph else batch_facts(context, self.vocab_size)
        route = choose_route(facts, no_top_k=no_top_k, no_top_p=no_top_p)
        size = self._part_size
        stream = self._kernels.reserve(n, -(-n // size))
        if n <= size:
            self._sample(route, slots, stream, output)
            return output
        for index, (at, part) in enumerate(slots.parts(size)):
            self._sample(route, part, self._kernels.part(stream, index, at), output[at])
        return output

    def log_probs_kernel(
        self, logits: Tensor, context: Context, *, token_to_request_index: Tensor | None = None
    ) -> Tensor:
        """See `reference.Sampling.log_probs_kernel`."""
        slots = check_log_probs_call(self.vocab_size, logits, context, token_to_request_index)
        self._check_device(logits, None, token_to_request_index)
        facts = None if self.enable_cuda_graph else batch_facts(context, self.vocab_size)
        log_probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        for at, part in slots.parts(self._part_size) if slots.n else ():
            if facts is not None and facts.no_top_k and facts.no_top_p:
                self._kernels.log_probabilities(part, log_probs[at])
                continue
            batch = self._kernels.probabilities(part)
            if facts is None or not facts.no_top_k:
                batch = self._kernels.keep_top_k(batch)
            if facts is None or not facts.no_top_p:
                batch = self._kernels.keep_top_p(batch)
            self._kernels.log_filtered(batch, log_probs[at])
        return log_probs

    def _sample(self, route: Route, slots: Slots, stream: Any, output: Tensor) -> None:
        kernels = self._kernels
        if route is Route.GREEDY:
            kernels.argmax(slots, output)
            return
        batch = kernels.probabilities(slots)
        if route is Route.UNFILTERED:
            kernels.draw(batch, stream, output)
        elif route is Route.TOP_K:
            kernels.draw_top_k(batch, stream, output)
        elif route is Route.TOP_P:
            kernels.draw_top_p(batch, stream, output)
        elif route is Route.EITHER:
            kernels.draw_joint(batch, stream, output)
        else:
            kernels.draw_top_p(kernels.keep_top_k(batch), stream, output)

    def _check_device(self, logits: Tensor, *indices: Tensor | None) -> None:
        if logits.device != self._device:
            raise ValueError(f"logits must be on the rng's device {self._device}, got {logits.device}")
        if logits.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if not self.enable_cuda_graph:
                raise ValueError(
                    "enable_cuda_graph must be True for a call to be captured, got False: "
                    "the graph would repeat its random numbers at every replay"
                )
            for name, index in zip(("gather_indices", "token_to_request_index"), indices, strict=True):
                if index is not None and index.device != logits.device:
                    raise ValueError(f"{name} must be on {logits.device} to be captured, got {index.device}")
