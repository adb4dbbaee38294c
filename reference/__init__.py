"""The law of token sampling, the contract of a sampler, and a sampler that follows both to the letter."""

from reference.context import FilterFlags, SamplingContext, filter_flags
from reference.contract import Sampling, TokenLogProbs
from reference.law import Law, LawOptions, law
from reference.sampling import ReferenceSampling

__all__ = [
    "FilterFlags",
    "Law",
    "LawOptions",
    "ReferenceSampling",
    "Sampling",
    "SamplingContext",
    "TokenLogProbs",
    "filter_flags",
    "law",
]
