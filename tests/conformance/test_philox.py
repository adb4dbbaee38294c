"""Philox against the published vectors, a scalar version of its own, and the grid of curand_uniform."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from conformance.philox import Words, curand_uniform, curand_words, philox4x32

ONES = 2**32 - 1

# Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(*values: int) -> Words:
    return np.array(values, dtype=np.uint64)


def scalar(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    for step in range(10):
        keys = ((key[0] + step * 0x9E3779B9) & ONES, (key[1] + step * 0xBB67AE85) & ONES)
        high_0, low_0 = divmod(0xD2511F53 * counter[0], 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = (high_1 ^ counter[1] ^ keys[0], low_1, high_0 ^ counter[3] ^ keys[1], low_0)
    return counter


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN, ids=["zeros", "ones", "pi"])
def test_the_published_vectors(counter: tuple[int, ...], key: tuple[int, int], result: tuple[int, ...]) -> None:
    assert tuple(philox4x32(words(*counter)[:, None], key)[:, 0].tolist()) == result
    assert scalar(counter, key) == result


def test_random_blocks_equal_the_scalar_version() -> None:
    counters = np.random.default_rng(1).integers(0, 2**32, (4, 500), dtype=np.uint64)
    key = (0x89ABCDEF, 0x01234567)
    found = philox4x32(counters, key)
    for at in range(500):
        assert tuple(found[:, at].tolist()) == scalar(tuple(counters[:, at].tolist()), key)


def test_many_streams_equal_each_alone() -> None:
    # More than two chunks; lanes differ in the first and in no other.
    rows = np.arange(40_000, dtype=np.uint64)
    offsets = np.where(rows < 5, rows, 8)
    found = curand_words(11, rows, offsets, 3)
    for at in (0, 1, 4, 5, 16_383, 16_384, 32_767, 32_768, 39_999):
        assert (found[:, at] == curand_words(11, rows[at : at + 1], offsets[at : at + 1], 3)[:, 0]).all()


@pytest.mark.parametrize("offset", [0, 1, 4, 7, 2**34 - 2, 2**40 + 3])
def test_a_stream_is_read_number_by_number(offset: int) -> None:
    seed = 0xFEDCBA9876543210
    rows = (0, 5, 2**32 + 1)
    found = curand_words(seed, words(*rows), np.full(3, offset, dtype=np.uint64), 11)
    assert found.shape == (11, 3)
    for column, row in enumerate(rows):
        for i in range(11):
            block, lane = divmod(offset + i, 4)
            counter = (block & ONES, block >> 32, row & ONES, row >> 32)
            assert int(found[i, column]) == scalar(counter, (seed & ONES, seed >> 32))[lane]


def test_each_stream_has_an_offset_of_its_own() -> None:
    offsets = words(0, 3, 6, 256)
    found = curand_words(7, words(1, 1, 1, 1), offsets, 5)
    for column, offset in enumerate(offsets.tolist()):
        assert (found[:, column] == curand_words(7, words(1), words(offset), 5)[:, 0]).all()


def test_curand_uniform_is_two_float32_roundings() -> None:
    chosen = words(0, 1, 2**24 - 1, 2**24 + 1, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1)
    found = curand_uniform(chosen)
    for x, u in zip(chosen.tolist(), found.tolist(), strict=True):
        assert np.float32(u) == u
        assert abs(Fraction(u) - (Fraction(x, 2**32) + Fraction(1, 2**33))) <= 2 * Fraction(1, 2**25)
    assert found.min() == 2.0**-33
    assert (found == 1.0).tolist() == [False] * 6 + [True] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: philox4x32(words(1, 2, 3), (0, 0)), r"counter must have shape \(4, n\), got \(3,\)"),
        (lambda: philox4x32(np.zeros((4, 1), np.uint64), (2**32, 0)), "key must be two words"),
        (lambda: curand_words(2**64, words(0), words(0), 1), "seed must be in"),
        (lambda: curand_words(0, words(0, 1), words(0), 1), "subsequences and offsets must be"),
    ],
    ids=["counter", "key", "seed", "lengths"],
)
def test_wrong_arguments_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
