"""The dispatcher: for each batch, the cheapest FlashInfer kernels that follow the law."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from optimized.kernels import Kernels
from optimized.kernels.portable import PortableKernels
from optimized.routes import Route, choose_route
from reference import Sampling
from reference.context import BatchFacts
from reference.slots import Slots


class FlashInferSampling(Sampling):
    """Samples with FlashInfer on a CUDA device, and with portable torch kernels on a CPU.

    vocab_size: number of real tokens; wider logits are allowed.
    rng: its device decides the kernels. On CUDA, FlashInfer must be installed.
    config: accepted for engines that hand every sampler their configuration; not read.
    enable_cuda_graph: allow calls to be captured in a CUDA graph. Before the capture, call
        `graph.register_generator_state(rng)` and sample once with the shapes to be captured. Each
        replay then draws fresh numbers, the ones that an eager call would have drawn in its place.
        The route depends on no_top_k and no_top_p alone, so a replay is right for whatever
        `context.gpu_view` holds by then, as long as it keeps that promise. Keep the sampler as long as
        the graph. Eager calls take the same routes, so that without promises each filters twice, and
        cost about 10 us more of host time than with False.

    See `optimized.routes` for which kernels serve which batch.
    """

    claims: ClassVar[dict[str, Any]] = {"cuda_graph": True, "stream": "flashinfer"}

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
        self._part_size = max(1, self._kernels.max_elements // self._kernels.width)

    def _check(self, slots: Slots) -> None:
        device = slots.logits.device
        if device != self._device:
            raise ValueError(f"logits must be on the rng's device {self._device}, got {device}")
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if not self.enable_cuda_graph:
                raise ValueError(
                    "enable_cuda_graph must be True for a call to be captured, got False: "
                    "a graph would repeat its random numbers, and its route, at every replay"
                )
            for name, index in (("gather_indices", slots.rows), ("token_to_request_index", slots.requests)):
                if index is not None and index.device != device:
                    raise ValueError(f"{name} must be on {device} to be captured, got {index.device}")

    def _sample(self, slots: Slots, output: Tensor, *, no_top_k: bool, no_top_p: bool) -> None:
        """See `reference.Sampling.sample_kernel`. Never waits for the device."""
        route = choose_route(self._facts(slots), no_top_k=no_top_k, no_top_p=no_top_p)
        size = self._part_size
        stream = self._kernels.reserve(slots.n, -(-slots.n // size))
        if slots.n <= size:
            self._sample_part(route, slots, stream, output)
            return
        for index, (at, part) in enumerate(slots.parts(size)):
            self._sample_part(route, part, self._kernels.part(stream, index, at), output[at])

    def _log_probs(self, slots: Slots, output: Tensor) -> None:
        """See `reference.Sampling.log_probs_kernel`."""
        facts = self._facts(slots)
        no_top_k, no_top_p = (facts.no_top_k, facts.no_top_p) if facts is not None else (False, False)
        for at, part in slots.parts(min(self._part_size, self._kernels.max_filtered_rows)):
            if no_top_k and no_top_p:
                self._kernels.log_probabilities(part, output[at])
                continue
            batch = self._kernels.probabilities(part)
            if not no_top_k:
                batch = self._kernels.keep_top_k(batch)
            if not no_top_p:
                batch = self._kernels.keep_top_p(batch)
            self._kernels.log_filtered(batch, output[at])
            del batch  # else it lives on while the next part's is made

    def _facts(self, slots: Slots) -> BatchFacts | None:
        # A captured call will see other requests than these, and eager calls must take the same route.
        return None if self.enable_cuda_graph else slots.facts

    def _sample_part(self, route: Route, slots: Slots, stream: Any, output: Tensor) -> None:
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
