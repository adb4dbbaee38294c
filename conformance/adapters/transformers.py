"""The sampling of Hugging Face transformers: its logits warpers for temperature, top-k and top-p, and multinomial.

python -m conformance run --sampler conformance.adapters.transformers:make_sampler
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from conformance.adapters.function import from_function


def sample(logits: Tensor, temperature: float, top_k: int, top_p: float, _rng: torch.Generator) -> Tensor:
    """As `generate` has it: float32 logits, a warper only where it does something, one multinomial draw a row.

    logits: [n, V]. temperature 0 is `do_sample=False`. Returns int64 [n].
    """
    scores = logits.to(torch.float32)
    if temperature == 0:
        return scores.argmax(dim=-1)
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(temperature))
    if top_k != 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    no_prompt: Any = torch.empty((len(scores), 0), dtype=torch.int64)
    kept: Any = scores
    probs = warpers(no_prompt, kept).softmax(dim=-1)
    return torch.multinomial(probs, num_samples=1).squeeze(1)


make_sampler = from_function(
    sample,
    parameters_by="call",
    generator="global",  # `generate` takes no generator
    top_p_ties="any",  # it sorts: which of the tied tokens stays is the sort's choice
    top_p_off={1.0},  # p = 0 keeps the most probable token
    refuses={"invalid rows"},  # multinomial's "probability tensor contains either `inf`, `nan` or element < 0"
    sync_free=False,
    most_draws=2**17,  # it sorts whole vocabularies
)
