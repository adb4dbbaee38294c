"""Puts cases and calls as a sampler wants them, by its claims."""

from __future__ import annotations

from conformance.cases import Case
from conformance.claims import Claims


def in_terms_of(claims: Claims, case: Case) -> Case:
    """The case in values that the sampler takes."""
    return case if claims.most_draws is None or case.draws <= claims.most_draws else case.but(draws=claims.most_draws)
