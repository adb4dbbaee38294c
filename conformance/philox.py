"""Philox4x32-10 on the host: the counter-based generator behind cuRAND's and torch's CUDA streams.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A block of four 32-bit numbers is a
function of a 128-bit counter and a 64-bit key, so any number of any stream is found without those before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""32-bit words, one in each uint64: a product of two of them still fits."""

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_STREAMS_PER_CHUNK = 2**14
"""128 kB a word: the temporaries of a chunk stay in a core's cache, which makes it several times faster."""


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox4x32.

    counter: [4, n], each word below 2^32, word 0 the lowest. key: two words, the lower first.

    Returns [4, n], each word below 2^32. Raises ValueError for another shape, or a key word out of range.
    """
    if counter.ndim != 2 or counter.shape[0] != 4:
        raise ValueError(f"counter must have shape (4, n), got {counter.shape}")
    if not all(0 <= word < 2**32 for word in key):
        raise ValueError(f"key must be two words in [0, 2**32), got {key}")
    return _blocks(counter, *key)


def _blocks(counter: Words, key_0: int, key_1: int) -> Words:
    word_0, word_1, word_2, word_3 = counter
    for _ in range(_ROUNDS):
        product_0, product_1 = _MULTIPLIERS[0] * word_0, _MULTIPLIERS[1] * word_2
        word_0 = (product_1 >> _HALF) ^ word_1 ^ np.uint64(key_0)
        word_2 = (product_0 >> _HALF) ^ word_3 ^ np.uint64(key_1)
        word_1, word_3 = product_1 & _LOW, product_0 & _LOW
        key_0, key_1 = (key_0 + _KEY_STEPS[0]) % 2**32, (key_1 + _KEY_STEPS[1]) % 2**32
    return np.stack([word_0, word_1, word_2, word_3])


def curand_words(seed: int, subsequences: Words, offsets: Words, count: int) -> Words:
    """The first `count` numbers of cuRAND's Philox streams, as 32-bit words.

    seed: 64 bits, the key. subsequences, offsets: [n], as `curand_init` takes them. Number i of a stream is
    word (offset + i) % 4 of the block whose counter is (offset + i) // 4 in its lower half, and the
    subsequence in its upper.

    Returns [count, n]. Raises ValueError for a seed out of range or lengths that differ.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
    if subsequences.shape != offsets.shape or offsets.ndim != 1:
        raise ValueError(f"subsequences and offsets must be [n] both, got {subsequences.shape} and {offsets.shape}")
    words = np.empty((count, len(offsets)), dtype=np.uint64)
    for start in range(0, len(offsets), _STREAMS_PER_CHUNK):
        at = slice(start, start + _STREAMS_PER_CHUNK)
        words[:, at] = _words(seed, subsequences[at], offsets[at], count)
    return words


def _words(seed: int, subsequences: Words, offsets: Words, count: int) -> Words:
    four = np.uint64(4)
    first, lane = offsets // four, offsets % four
    rows = np.stack([subsequences & _LOW, subsequences >> _HALF])
    blocks = []
    for block in range(-(-(int(lane.max(initial=0)) + count) // 4)):
        index = first + np.uint64(block)
        blocks.append(philox4x32(np.stack([index & _LOW, index >> _HALF, *rows]), (seed % 2**32, seed >> 32)))
    numbers = np.concatenate(blocks)
    if not lane.any():
        return numbers[:count]
    places = np.arange(count, dtype=np.int64)[:, None] + lane.astype(np.int64)
    found: Words = np.take_along_axis(numbers, places, axis=0)
    return found


def curand_uniform(words: Words) -> npt.NDArray[np.float64]:
    """`curand_uniform` of 32-bit words x, in (0, 1]: x * 2^-32 + 2^-33 in float32, given as float64.

    The conversion of x and the addition each round to 24 bits, by at most 2^-25; the product is exact. So
    values above 1/2 lie on a grid of 2^-24, and the 128 largest x give 1.0 itself.
    """
    scaled = words.astype(np.float32) * np.float32(2.0**-32)
    return (scaled + np.float32(2.0**-33)).astype(np.float64)
