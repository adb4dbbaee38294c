"""The route table, row by row, and the one thing that it must never do: choose kernels that cannot obey a request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from optimized.routes import Route, choose_route
from reference import FilterFlags, SamplingContext, filter_flags
from reference.context import BatchFacts, batch_facts
from tests.reference.engine_context import ViewOnlyContext, engine_context

V = 100
NOTHING_PROMISED: FilterFlags = {"no_top_k": False, "no_top_p": False}

# One request of every kind that a route could get wrong: (T, k, p).
KINDS: dict[str, tuple[float, int, float]] = {
    "greedy-T0": (0.0, 0, 0.0),
    "greedy-T0-with-k-and-p": (0.0, 5, 0.5),
    "greedy-k1-with-p": (1.0, 1, 0.5),
    "plain": (1.0, 0, 1.0),
    "k-above-V": (1.0, V + 1, 0.0),
    "top-k": (1.0, 5, 0.0),
    "top-p": (1.0, 0, 0.5),
    "both": (1.0, 5, 0.5),
}

TABLE = {
    # Requests of the batch -> the route, with nothing promised by the caller.
    "all-greedy-by-T": (["greedy-T0"], Route.GREEDY),
    "all-greedy-by-k": (["greedy-k1-with-p"], Route.GREEDY),
    "all-greedy-both-ways": (["greedy-T0", "greedy-k1-with-p", "greedy-T0-with-k-and-p"], Route.GREEDY),
    "unfiltered": (["plain"], Route.UNFILTERED),
    "K05-k-above-V-is-unfiltered": (["plain", "k-above-V"], Route.UNFILTERED),
    "C10-greedy-among-unfiltered": (["greedy-T0", "plain"], Route.UNFILTERED),
    "top-p": (["top-p", "plain"], Route.TOP_P),
    "top-p-with-greedy": (["top-p", "greedy-T0"], Route.TOP_P),
    "top-k": (["top-k", "plain"], Route.TOP_K),
    "K08-top-k-on-one-of-three": (["plain", "top-k", "plain"], Route.TOP_K),
    "either": (["top-k", "top-p"], Route.EITHER),
    "greedy-with-both-does-not-count-as-both": (["greedy-T0-with-k-and-p", "top-k"], Route.EITHER),
    "greedy-k1-with-p-does-not-count-as-both": (["greedy-k1-with-p", "plain"], Route.EITHER),
    "O01-both-on-one": (["both"], Route.BOTH),
    "O02-both-among-others": (["top-k", "top-p", "both", "greedy-T0"], Route.BOTH),
}


def facts_of(kinds: list[str] | tuple[str, ...]) -> BatchFacts:
    temperature, top_k, top_p = (list(x) for x in zip(*(KINDS[kind] for kind in kinds), strict=True))
    facts = batch_facts(SamplingContext(temperature, [int(k) for k in top_k], top_p), V)
    assert facts is not None
    return facts


@pytest.mark.parametrize(("kinds", "route"), TABLE.values(), ids=TABLE)
def test_route_of_a_batch(kinds: list[str], route: Route) -> None:
    assert choose_route(facts_of(kinds), **NOTHING_PROMISED) is route


@pytest.mark.parametrize(
    ("no_top_k", "no_top_p", "route"),
    [
        pytest.param(True, True, Route.UNFILTERED, id="promised-none"),
        pytest.param(True, False, Route.TOP_P, id="promised-no-k"),
        pytest.param(False, True, Route.TOP_K, id="promised-no-p"),
        pytest.param(False, False, Route.BOTH, id="promised-nothing"),
    ],
)
def test_without_facts_the_promise_decides(
    no_top_k: bool,  # noqa: FBT001  # a column of the table
    no_top_p: bool,  # noqa: FBT001  # likewise
    route: Route,
) -> None:
    """G01: a captured graph sees other requests than these. EITHER and GREEDY would be guesses about them."""
    assert choose_route(None, no_top_k=no_top_k, no_top_p=no_top_p) is route


def obeys(route: Route, kind: str) -> bool:
    """Whether the route's kernels give a request of this kind its law. Written from the kernels, not the table.

    The softmax step makes a greedy row one-hot, and no filter takes the last token from it; `argmax` serves greedy
    rows alone; a kernel without a filter ignores it; the joint kernel is wrong for rows that use both.
    """
    temperature, top_k, top_p = KINDS[kind]
    if temperature == 0 or top_k == 1:
        return True
    uses_k, uses_p = 0 < top_k < V, 0 < top_p < 1
    return {
        Route.GREEDY: False,
        Route.UNFILTERED: not uses_k and not uses_p,
        Route.TOP_P: not uses_k,
        Route.TOP_K: not uses_p,
        Route.EITHER: not (uses_k and uses_p),
        Route.BOTH: True,
    }[route]


def batches() -> Iterator[tuple[str, ...]]:
    for size in range(1, len(KINDS) + 1):
        yield from combinations(KINDS, size)


def test_every_batch_gets_a_route_that_obeys_all_of_its_requests() -> None:
    """O02, K08, R06: all 255 sets of kinds, with every promise that is true of them."""
    seen = set()
    for kinds in batches():
        facts = facts_of(kinds)
        for no_top_k in {False, facts.no_top_k}:
            for no_top_p in {False, facts.no_top_p}:
                for given in (facts, None):
                    route = choose_route(given, no_top_k=no_top_k, no_top_p=no_top_p)
                    assert all(obeys(route, kind) for kind in kinds), (kinds, route)
                    seen.add(route)
    assert seen == set(Route)


def test_a_greedy_request_never_makes_the_route_worse() -> None:
    """A greedy request that carries k and p would push a batch to the BOTH route: 2.1 against 1.1 ms at n = 1024."""
    order = [Route.UNFILTERED, Route.TOP_P, Route.TOP_K, Route.EITHER, Route.BOTH]
    for kinds in batches():
        alone = choose_route(facts_of(kinds), **NOTHING_PROMISED)
        with_greedy = choose_route(facts_of((*kinds, "greedy-T0")), **NOTHING_PROMISED)
        assert with_greedy is alone
        loaded = choose_route(facts_of((*kinds, "greedy-T0-with-k-and-p")), **NOTHING_PROMISED)
        if alone is Route.GREEDY:
            assert loaded is Route.GREEDY
        else:
            # Its k and p count as used, for the flags say so to the caller too; but not as "both on one row".
            assert order.index(loaded) <= max(order.index(alone), order.index(Route.EITHER))


def test_a_true_promise_never_changes_the_law_only_the_route() -> None:
    """The flags of `filter_flags` and the facts agree, so the promise adds nothing where there are facts."""
    for kinds in batches():
        temperature, top_k, top_p = (list(x) for x in zip(*(KINDS[kind] for kind in kinds), strict=True))
        context = SamplingContext(temperature, [int(k) for k in top_k], top_p)
        facts = batch_facts(context, V)
        assert choose_route(facts, **filter_flags(context, V)) is choose_route(facts, **NOTHING_PROMISED)


@pytest.mark.parametrize(("kinds", "route"), TABLE.values(), ids=TABLE)
def test_an_engines_context_takes_the_same_route(kinds: list[str], route: Route) -> None:
    """Poison beyond the active requests would look like filters in use; the device view alone tells nothing."""
    temperature, top_k, top_p = (list(x) for x in zip(*(KINDS[kind] for kind in kinds), strict=True))
    context = engine_context(temperature, [int(k) for k in top_k], top_p)
    assert choose_route(batch_facts(context, V), **NOTHING_PROMISED) is route
    assert choose_route(batch_facts(ViewOnlyContext(context.gpu_view), V), **NOTHING_PROMISED) is Route.BOTH
