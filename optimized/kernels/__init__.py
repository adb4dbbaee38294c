"""What the dispatcher asks of a set of kernels. One file behind this protocol is one backend."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from reference.slots import Slots

TOP_P_OFF = 2.0
"""A running fp32 sum can reach 1.0 before the tail, so p = 1 would still cut tokens: "off" is above 1."""


class Batch(NamedTuple):
    """Rows in slot order, ready to be filtered and drawn from.

    probs: float32 [n, >= vocab_size], each row sums to 1; one-hot for greedy and for invalid rows.
    top_k: int32 or int64 [n], vocab_size where off. top_p: float32 [n], TOP_P_OFF where off.
    valid: bool [n], false for rows with a NaN, a +inf or no finite logit. A draw may overwrite it.
    """

    probs: Tensor
    top_k: Tensor
    top_p: Tensor
    valid: Tensor


class Kernels(Protocol):
    """One backend. A `stream` is what `reserve` returned, or a `part` of it."""

    width: int
    """Columns of `Batch.probs`."""

    max_elements: int
    """Largest n * width that one call may be given."""

    max_filtered_rows: int
    """Largest n that `keep_top_p` may be given."""

    def reserve(self, n: int, parts: int) -> Any:
        """Take the random numbers of a call from the generator: an amount fixed by n and parts."""

    def part(self, stream: Any, index: int, at: slice) -> Any:
        """The numbers of the call's part `index`, which serves the slots `at`."""

    def argmax(self, slots: Slots, output: Tensor) -> None:
        """Lowest index of each slot's maximum."""

    def probabilities(self, slots: Slots) -> Batch:
        """Softmax of logits / temperature of each slot's row."""

    def log_probabilities(self, slots: Slots, output: Tensor) -> None:
        """Its log, for batches without filters; greedy rows 0 and -inf, invalid rows NaN."""

    def log_filtered(self, batch: Batch, output: Tensor) -> None:
        """Log of `batch.probs`, NaN for invalid rows."""

    def keep_top_k(self, batch: Batch) -> Batch:
        """Drop what top-k drops and renormalise; ties at the k-th place are all kept."""

    def keep_top_p(self, batch: Batch) -> Batch:
        """Drop what top-p drops and renormalise; equal tokens are kept together."""

    def draw(self, batch: Batch, stream: Any, output: Tensor) -> None:
        """One token a row, without filters."""

    def draw_top_k(self, batch: Batch, stream: Any, output: Tensor) -> None:
        """One token a row, after top-k."""

    def draw_top_p(self, batch: Batch, stream: Any, output: Tensor) -> None:
        """One token a row, after top-p."""

    def draw_joint(self, batch: Batch, stream: Any, output: Tensor) -> None:
        """One token a row, among those that top-k and top-p, each on the whole row, both keep."""
