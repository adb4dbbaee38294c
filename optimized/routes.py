"""Which kernels serve a batch, and why. Decided on the CPU alone, so that no step waits for the GPU.

| route      | taken when                                              | work                                      |
|------------|---------------------------------------------------------|-------------------------------------------|
| GREEDY     | every active request is greedy                          | argmax                                    |
| UNFILTERED | no request uses a filter                                | softmax, draw                             |
| TOP_P      | no request uses top-k                                   | softmax, top-p draw                       |
| TOP_K      | no request uses top-p                                   | softmax, top-k draw                       |
| EITHER     | both filters are in use, but no request uses both       | softmax, joint draw                       |
| BOTH       | some request uses both, or the CPU cannot rule that out | softmax, top-k renormalise, top-p draw    |

The joint draw tests k and p on the whole distribution at once. The law applies p to what top-k left,
so the joint draw is right exactly for rows that use at most one filter.

Greedy rows inside a drawn batch need no route: the softmax step gives them a one-hot row.
"""

from __future__ import annotations

from enum import Enum

from reference.context import BatchFacts


class Route(Enum):
    """See the table above."""

    GREEDY = "greedy"
    UNFILTERED = "unfiltered"
    TOP_P = "top-p"
    TOP_K = "top-k"
    EITHER = "either"
    BOTH = "both"


def choose_route(facts: BatchFacts | None, *, no_top_k: bool, no_top_p: bool) -> Route:
    """The cheapest route that is right for the batch.

    facts: what the CPU metadata says; None where there is none, or where it must not be used
        because a captured graph will see other requests than these.
    no_top_k, no_top_p: the caller's promise.
    """
    if facts is not None:
        if facts.all_greedy:
            return Route.GREEDY
        no_top_k |= facts.no_top_k
        no_top_p |= facts.no_top_p
    if no_top_k and no_top_p:
        return Route.UNFILTERED
    if no_top_k:
        return Route.TOP_P
    if no_top_p:
        return Route.TOP_K
    if facts is not None and not facts.any_uses_both:
        return Route.EITHER
    return Route.BOTH
