"""The law of one row, written a second time: plain loops over Python lists, exact fractions, no torch.

It shares nothing with `reference.law` but the names of the options, so that the two can only agree
where both are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from reference import LawOptions

LAW = LawOptions()


@dataclass(frozen=True)
class NaiveLaw:
    """kept: ids in rising order. probs: one entry a column. margin: how far the closest top-p decision
    was from falling the other way, as a share of the mass; infinite where top-p decided nothing."""

    kept: list[int]
    probs: list[float]
    margin: float


def naive_law(
    z: list[float], temperature: float, top_k: int, top_p: float, vocab_size: int, options: LawOptions = LAW
) -> NaiveLaw | None:
    """The law of the row z, None where the row is invalid."""
    real = z[:vocab_size]
    if any(math.isnan(x) or x == math.inf for x in real) or all(x == -math.inf for x in real):
        return None
    alive = [j for j, x in enumerate(real) if x != -math.inf]
    best = min((j for j in alive if all(real[i] <= real[j] for i in alive)), default=0)
    if top_k == 1 or temperature in options.greedy_temperatures:
        return _one_token(best, len(z))

    survivors = alive
    if top_k not in options.top_k_off and top_k < vocab_size:
        survivors = [j for j in alive if len(_before(real, alive, j, options.top_k_ties)) < top_k]
    mass = _masses(real, alive, best, temperature)
    kept, margin = survivors, math.inf
    if top_p not in options.top_p_off:
        pool = alive if options.filter_order == "joint" else survivors
        total = math.fsum(mass[i] for i in pool)
        kept = []
        for j in survivors:
            before = _before(real, pool, j, options.top_p_ties)
            share = math.fsum(mass[i] for i in before) / total
            if not before or share < top_p:
                kept.append(j)
            if before:
                margin = min(margin, abs(share - top_p))
    total = math.fsum(mass[j] for j in kept)
    return NaiveLaw(kept, [mass[j] / total if j in kept else 0.0 for j in range(len(z))], margin)


def naive_log_softmax(z: list[float], temperature: float = 1.0) -> list[float]:
    """log softmax(z / T) without filters, -inf only where z is."""
    alive = [j for j, x in enumerate(z) if x != -math.inf]
    best = max(alive, key=lambda j: z[j])
    mass = _masses(z, alive, best, temperature)
    log_total = math.log(math.fsum(mass.values()))
    divisor = _temperature(temperature)
    gap = {j: float((Fraction(z[j]) - Fraction(z[best])) / divisor) for j in alive}
    return [gap[j] - log_total if j in gap else -math.inf for j in range(len(z))]


def token_at(probs: Iterable[float], u: Fraction) -> tuple[int, Fraction]:
    """First index whose running sum exceeds u, and how far u is from the closest step of the sum."""
    running, token, distance = Fraction(0), -1, Fraction(1)
    for j, prob in enumerate(probs):
        if prob == 0.0:
            continue
        running += Fraction(prob)
        distance = min(distance, abs(running - u))
        if token < 0 and running > u:
            token = j
    return token, distance


def _one_token(token: int, width: int) -> NaiveLaw:
    return NaiveLaw([token], [1.0 if j == token else 0.0 for j in range(width)], math.inf)


def _before(z: list[float], pool: list[int], j: int, ties: str) -> list[int]:
    """The tokens of the pool that a filter takes before j."""
    return [i for i in pool if z[i] > z[j] or (ties != "keep-all" and z[i] == z[j] and i < j)]


def _temperature(temperature: float) -> Fraction:
    return max(Fraction(temperature), Fraction(1, 10**6))


def _masses(z: list[float], alive: list[int], best: int, temperature: float) -> dict[int, float]:
    """exp((z - maximum) / T), with an exponent that is exact until it is rounded to a float, once."""
    divisor = _temperature(temperature)
    return {j: math.exp(float((Fraction(z[j]) - Fraction(z[best])) / divisor)) for j in alive}
