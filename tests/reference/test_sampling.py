"""ReferenceSampling: the documented stream, the extremes of u, the options, and what a call must leave alone."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import FilterFlags, LawOptions, ReferenceSampling, SamplingContext
from tests.reference.helpers import DTYPES, bits, copy_of, generator, row, state
from tests.reference.naive import naive_law, token_at

# "By name": the package's attributes `law` and `sampling` need not be the modules.
SAMPLING_MODULE = importlib.import_module("reference.sampling")
OFF: FilterFlags = {"no_top_k": False, "no_top_p": False}


def requests(n: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0) -> SamplingContext:
    return SamplingContext([temperature] * n, [top_k] * n, [top_p] * n)


def mixed_requests() -> SamplingContext:
    return SamplingContext(
        [0.0, 1.0, 0.7, 1.3, 1.0, 2.0], [0, 1, 0, 5, 0, 9], [0.5, 0.0, 0.0, 0.0, 0.8, 0.6], capacity=8
    )


class TestStream:
    """Slot i's token is the first whose running sum exceeds r_i / 2^bits, r_i the i-th integer of the call."""

    @pytest.mark.parametrize("bit_count", [53, 24, 8], ids=lambda b: f"bits{b}")
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_tokens_are_those_of_the_generators_integers(self, dtype: torch.dtype, bit_count: int) -> None:
        """G02, G06: one number for all rows or steps. Tokens are recomputed with the naive law and exact fractions."""
        z = (torch.randn(6, 24, generator=generator(1)) * 2).to(dtype)
        context = mixed_requests()
        rng = generator(99)
        sampler = ReferenceSampling(24, rng, LawOptions(uniform_bits=bit_count))
        for _ in range(20):
            own = copy_of(rng)
            tokens = sampler.sample_kernel(z, 6, context, **OFF).tolist()
            integers = torch.randint(0, 2**bit_count, (6,), generator=own).tolist()
            assert state(own) == state(rng)
            for i, (token, r) in enumerate(zip(tokens, integers, strict=True)):
                law = naive_law(
                    z[i].tolist(),
                    context.gpu_view.temperature[i].item(),
                    int(context.gpu_view.top_k[i]),
                    context.gpu_view.top_p[i].item(),
                    vocab_size=24,
                )
                assert law is not None
                expected, distance = token_at(law.probs, Fraction(r, 2**bit_count))
                # Both CDFs are within 24 * 2^-53 of the real one, so further from a step there is one answer.
                if distance > 1e-13:
                    assert token == expected

    @pytest.mark.parametrize("bit_count", [1, 2, 3, 4, 5, 6, 7, 8, 10], ids=lambda b: f"bits{b}")
    def test_on_a_flat_row_of_2_to_the_bits_tokens_the_token_is_the_integer(self, bit_count: int) -> None:
        """Here u hits every step of the CDF: the first sum that *exceeds* u decides, not one that reaches it."""
        size = 2**bit_count
        rng = generator(5)
        expected = torch.randint(0, size, (4096,), generator=copy_of(rng))
        sampler = ReferenceSampling(size, rng, LawOptions(uniform_bits=bit_count))
        one = torch.zeros(4096, dtype=torch.int32)
        tokens = sampler.sample_kernel(
            torch.zeros(1, size), 4096, requests(1), **OFF, gather_indices=one, token_to_request_index=one
        )
        assert torch.equal(tokens, expected)

    def test_repeats_from_the_same_state_and_moves_on_from_call_to_call(self) -> None:
        """G01, G03: the same numbers every step; and both are needed: a repeatable run whose steps differ."""
        z, context = torch.zeros(8, 1000), requests(8)
        runs = []
        for _ in range(2):
            sampler = ReferenceSampling(1000, generator(3))
            runs.append([sampler.sample_kernel(z, 8, context, **OFF).tolist() for _ in range(3)])
        assert runs[0] == runs[1]
        # Two steps agree in all 8 slots once in 10^24; two slots in all 3 steps once in 10^9.
        assert len({tuple(step) for step in runs[0]}) == 3
        assert len(set(zip(*runs[0], strict=True))) == 8
        other = ReferenceSampling(1000, generator(4)).sample_kernel(z, 8, context, **OFF)
        assert other.tolist() != runs[0][0]

    @pytest.mark.parametrize("n", [1, 3, 17])
    def test_how_far_the_generator_moves_depends_on_n_alone(self, n: int) -> None:
        """G16: a step that was greedy, or had other content, shifted the stream of all later ones."""
        z = torch.randn(20, 50, generator=generator(2))
        nan = z.clone()
        nan[:, 3] = math.nan
        index = torch.zeros(n, dtype=torch.int64)
        calls: list[Callable[[ReferenceSampling], Tensor]] = [
            lambda s: s.sample_kernel(z, n, requests(n), **OFF),
            lambda s: s.sample_kernel(z, n, requests(n, temperature=0.0), no_top_k=True, no_top_p=True),
            lambda s: s.sample_kernel(z, n, requests(n, top_k=1), no_top_k=False, no_top_p=True),
            lambda s: s.sample_kernel(z.bfloat16(), n, requests(n, top_k=5, top_p=0.5), **OFF),
            lambda s: s.sample_kernel(nan, n, requests(n), **OFF),
            lambda s: s.sample_kernel(z, n, requests(n), **OFF, gather_indices=index, token_to_request_index=index),
            lambda s: s.sample_speculative(z, 0, n, 4, requests(n)),
        ]
        ends = set()
        for call in calls:
            rng = generator(8)
            call(ReferenceSampling(50, rng))
            ends.add(state(rng))
        assert len(ends) == 1
        assert ends != {state(generator(8))}

    def test_default_generators_stay_where_they_are(self) -> None:
        """Design section 4.8: randomness comes from rng and from nothing else."""
        before = bits(torch.get_rng_state())
        sampler = ReferenceSampling(50, generator(1))
        z = torch.randn(6, 50, generator=generator(2))
        tokens = sampler.sample_kernel(z, 6, mixed_requests(), **OFF)
        sampler.log_probs_kernel(z, mixed_requests())
        sampler.token_log_probs(z, tokens, mixed_requests(), top_n=3)
        assert bits(torch.get_rng_state()) == before


class TestExtremesOfU:
    @staticmethod
    def force(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
        def constant(_low: int, _high: int, size: tuple[int, ...], **_: Any) -> Tensor:
            return torch.full(size, value, dtype=torch.int64)

        monkeypatch.setattr(torch, "randint", constant)

    @pytest.mark.parametrize(
        ("z", "vocab", "first", "last"),
        [
            pytest.param([-math.inf, -math.inf, 0.0, 1.0], 4, 2, 3, id="masked-at-the-start"),
            pytest.param([0.0, 1.0, -math.inf, -math.inf], 4, 0, 1, id="masked-at-the-end"),
            pytest.param([-math.inf, 5.0, -math.inf], 3, 1, 1, id="one-token"),
            pytest.param([1.0, 2.0, 9.0, 9.0], 2, 0, 1, id="padding-at-the-end"),
            # Mass e^-30 = 9e-14 is above 2^-53: the largest u belongs to it. e^-40 = 4e-18 is below: it does not.
            pytest.param([0.0, -30.0], 2, 0, 1, id="tail-of-30-nats"),
            pytest.param([0.0, -40.0], 2, 0, 0, id="tail-of-40-nats"),
        ],
    )
    def test_u_0_and_u_max(
        self, monkeypatch: pytest.MonkeyPatch, z: list[float], vocab: int, first: int, last: int
    ) -> None:
        """M05, S07: u = 0 or u = 1 drew a token without mass at either end."""
        sampler = ReferenceSampling(vocab, generator())
        for value, token in ((0, first), (2**53 - 1, last)):
            self.force(monkeypatch, value)
            assert sampler.sample_kernel(row(z), 1, requests(1), **OFF).tolist() == [token]

    @pytest.mark.parametrize(("top_k", "top_p"), [(2, 0.0), (0, 0.6)])
    def test_filtered_tokens_at_both_ends(self, monkeypatch: pytest.MonkeyPatch, top_k: int, top_p: float) -> None:
        # softmax = .13 .30 .44 .13: both filters keep ids 1 and 2.
        z = row([math.log(p) for p in (0.13, 0.30, 0.44, 0.13)])
        sampler = ReferenceSampling(4, generator())
        context = requests(1, top_k=top_k, top_p=top_p)
        for value, token in ((0, 1), (2**53 - 1, 2)):
            self.force(monkeypatch, value)
            assert sampler.sample_kernel(z, 1, context, **OFF).tolist() == [token]

    def test_u_max_on_131072_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sum of rounded masses falls short of 1: the last token with mass takes the rest, none beyond it."""
        self.force(monkeypatch, 2**53 - 1)
        z = torch.randn(1, 131_072, generator=generator(6))
        z[0, 131_000:] = -math.inf
        assert ReferenceSampling(131_072, generator()).sample_kernel(z, 1, requests(1), **OFF).tolist() == [130_999]


class CountingLaw:
    """Stands in for `law` and counts the rows that it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real = SAMPLING_MODULE.law
        self.rows: list[int] = []
        monkeypatch.setattr(SAMPLING_MODULE, "law", self)

    def __call__(self, logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.rows.append(logits.shape[0])
        return self.real(logits, *args, **kwargs)


class TestCost:
    def test_a_million_slots_of_one_row_cost_one_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A law a slot would be 10^6 sorts; and the counts must be those of the law: 4 tokens, 4 binomials."""
        count = CountingLaw(monkeypatch)
        probs = [0.4, 0.3, 0.2, 0.1]
        n = 1_000_000
        index = torch.zeros(n, dtype=torch.int32)
        sampler = ReferenceSampling(4, generator(10))
        tokens = sampler.sample_kernel(
            row([math.log(p) for p in probs]),
            n,
            requests(1),
            **OFF,
            gather_indices=index,
            token_to_request_index=index,
        )
        assert count.rows == [1]
        for token, p in enumerate(probs):
            # Six standard deviations: a right sampler with another seed fails once in 10^8.
            assert abs(int((tokens == token).sum()) - n * p) <= 6 * math.sqrt(n * p * (1 - p))

    def test_distinct_pairs_of_row_and_request_cost_one_law_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        count = CountingLaw(monkeypatch)
        gather, request = torch.tensor([0, 1, 0, 1, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 0, 0, 0])
        sampler = ReferenceSampling(9, generator())
        sampler.sample_kernel(
            torch.zeros(2, 9), 7, requests(2), **OFF, gather_indices=gather, token_to_request_index=request
        )
        assert sum(count.rows) == 4

    def test_chunks_change_no_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """S06: 64 rows in chunks of 3 give the tokens and log-probs of one chunk."""
        z = torch.randn(64, 20, generator=generator(3))
        context = requests(64, top_p=0.9)
        whole = ReferenceSampling(20, generator(4))
        tokens, log_probs = whole.sample_kernel(z, 64, context, **OFF), whole.log_probs_kernel(z, context)
        monkeypatch.setattr(SAMPLING_MODULE, "_ELEMENTS_PER_CHUNK", 60)
        count = CountingLaw(monkeypatch)
        parts = ReferenceSampling(20, generator(4))
        assert torch.equal(parts.sample_kernel(z, 64, context, **OFF), tokens)
        assert bits(parts.log_probs_kernel(z, context)) == bits(log_probs)
        assert count.rows == [*[3] * 21, 1] * 2


class TestNothingElseMoves:
    def test_n_0_touches_nothing(self) -> None:
        rng = generator(3)
        sampler = ReferenceSampling(5, rng)
        before = state(rng)
        assert sampler.sample_kernel(torch.empty(0, 5), 0, requests(0), **OFF).shape == (0,)
        output = torch.full((4,), -7)[2:2]
        assert sampler.sample_kernel(torch.zeros(3, 5), 0, requests(2), **OFF, output=output) is output
        assert sampler.sample_speculative(torch.zeros(3, 5), 0, 0, 3, requests(2)).shape == (0,)
        assert state(rng) == before

    @pytest.mark.parametrize("step", [1, 3], ids=["dense", "strided"])
    def test_output_is_the_callers_and_nothing_around_it(self, step: int) -> None:
        """R17, U03: placeholders left in the output, or writes beyond n."""
        n, poison = 5, -123_456_789
        buffer = torch.full((40,), poison, dtype=torch.int64)
        output = buffer[7 : 7 + n * step : step]
        z = torch.randn(9, 30, generator=generator(1))
        expected = ReferenceSampling(30, generator(2)).sample_kernel(z, n, requests(n), **OFF)
        got = ReferenceSampling(30, generator(2)).sample_kernel(z, n, requests(n), **OFF, output=output)
        assert got is output
        assert expected.dtype == got.dtype == torch.int64
        assert torch.equal(got, expected)
        written = set(range(7, 7 + n * step, step))
        assert all(buffer[i] == poison for i in range(40) if i not in written)

    def test_inputs_keep_every_bit(self) -> None:
        """A03, O07: the caller's logits came back divided by T, filtered or normalised."""
        z = torch.randn(9, 30, generator=generator(1))
        z[2, 3], z[4, 4], z[5] = math.nan, -0.0, -math.inf
        context = mixed_requests()
        gather, request = torch.tensor([8, 1, 2, 4, 5, 0, 99]), torch.tensor([5, 4, 3, 2, 1, 0, -1], dtype=torch.int32)
        inputs = [z, gather, request, *vars(context.gpu_view).values(), *context.active_request_metadata.values()]
        before = [bits(x) for x in inputs]
        sampler = ReferenceSampling(30, generator(2))
        tokens = sampler.sample_kernel(z, 6, context, **OFF, gather_indices=gather, token_to_request_index=request)
        sampler.log_probs_kernel(z[:6], context, token_to_request_index=request)
        sampler.token_log_probs(z[:6], tokens, context, top_n=2, token_to_request_index=request)
        assert [bits(x) for x in inputs] == before

    def test_results_are_not_each_others_memory(self) -> None:
        """A04: two results shared storage."""
        sampler = ReferenceSampling(30, generator(2))
        z = torch.zeros(4, 30)
        first, second = (sampler.sample_kernel(z, 4, requests(4), **OFF) for _ in range(2))
        kept = second.tolist()
        first.fill_(-1)
        assert second.tolist() == kept

    def test_strided_and_wide_logits_give_the_same_tokens(self) -> None:
        """R14: the row stride taken for the width. M01: padding drawn; it holds the largest values here."""
        z = torch.randn(6, 30, generator=generator(1))
        wide = torch.cat([z, torch.full((6, 5), 99.0)], 1)
        expected = ReferenceSampling(30, generator(2)).sample_kernel(z, 6, mixed_requests(), **OFF)
        for view in (wide, wide[:, :30], wide.t().contiguous().t(), wide.repeat_interleave(2, 1)[:, ::2]):
            tokens = ReferenceSampling(30, generator(2)).sample_kernel(view, 6, mixed_requests(), **OFF)
            assert torch.equal(tokens, expected)

    def test_flags_change_no_token(self) -> None:
        z = torch.randn(6, 30, generator=generator(1))
        tokens = [
            ReferenceSampling(30, generator(2)).sample_kernel(z, 6, requests(6), no_top_k=k, no_top_p=p).tolist()
            for k in (False, True)
            for p in (False, True)
        ]
        assert tokens == [tokens[0]] * 4

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "all-masked"])
    def test_an_invalid_row_disturbs_nobody(self, bad: float) -> None:
        """M07, M08: some id in range for the row itself, the same tokens for all others."""
        z = torch.randn(6, 30, generator=generator(1))
        expected = ReferenceSampling(28, generator(2)).sample_kernel(z, 6, mixed_requests(), **OFF).tolist()
        z[3] = bad
        tokens = ReferenceSampling(28, generator(2)).sample_kernel(z, 6, mixed_requests(), **OFF).tolist()
        assert 0 <= tokens[3] < 28
        assert tokens[:3] + tokens[4:] == expected[:3] + expected[4:]

    def test_a_slot_draws_the_same_token_among_other_batchmates(self) -> None:
        """T01, K08: a row's support changed with its batchmates. Same n and slot, so the token is the same."""
        z = torch.randn(6, 30, generator=generator(1))
        expected = ReferenceSampling(30, generator(2)).sample_kernel(z, 6, mixed_requests(), **OFF).tolist()
        for slot in range(6):
            others = torch.randn(6, 30, generator=generator(50 + slot))
            others[slot] = z[slot]
            view = mixed_requests().gpu_view
            lists: list[list[Any]] = [[0.0] * 6, [1] * 6, [0.1] * 6]
            for values, own in zip(lists, (view.temperature, view.top_k, view.top_p), strict=True):
                values[slot] = own[slot].item()
            tokens = ReferenceSampling(30, generator(2)).sample_kernel(others, 6, SamplingContext(*lists), **OFF)
            assert tokens[slot].item() == expected[slot]
