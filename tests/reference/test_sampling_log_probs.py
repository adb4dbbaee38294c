"""ReferenceSampling: log-probs, speculative rows, and parameters by slot or by row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import LawOptions, ReferenceSampling, SamplingContext, TokenLogProbs
from tests.reference.helpers import FLOAT32_ROUNDING, bits, generator, log_of, log_rounding, row, state
from tests.reference.naive import naive_law, naive_log_softmax

INF = math.inf


def sampler_of(vocab: int, **options: Any) -> ReferenceSampling:
    return ReferenceSampling(vocab, generator(3), LawOptions(**options))


def check(found: Tensor, expected: list[float]) -> None:
    """Float32 of the float64 law: half a unit in the last place, and 1e-12 of the law itself near log-prob 0."""
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, rel=FLOAT32_ROUNDING, abs=1e-12)


class TestProcessed:
    def test_against_the_naive_law(self) -> None:
        """P03, P08: log-probs of another distribution than the one drawn from."""
        z = torch.randn(6, 24, generator=generator(1)) * 2
        parameters: list[Any] = [[0.0, 1.0, 0.7, 1.3, 1.0, 2.0], [0, 1, 0, 5, 0, 9], [0.5, 0.0, 0.0, 0.0, 0.8, 0.6]]
        context = SamplingContext(*parameters)
        found = sampler_of(22).log_probs_kernel(z, context)
        assert found.shape == (6, 24)
        for i in range(6):
            stored = [x[i].item() for x in vars(context.gpu_view).values()]
            law = naive_law(z[i].tolist(), stored[0], int(stored[1]), stored[2], vocab_size=22)
            assert law is not None
            check(found[i], [math.log(p) if p > 0 else -INF for p in law.probs])

    def test_n02_the_crossing_token_by_hand(self) -> None:
        """N02: the log-prob of token 2 must be ln(.2 / .9)."""
        probs = [0.4, 0.3, 0.2, 0.1]
        found = sampler_of(4).log_probs_kernel(row(log_of(probs)), SamplingContext([1.0], [0], [0.8]))
        expected = [math.log(p / 0.9) for p in probs[:3]] + [-INF]
        # A relative error of a mass is an absolute one of its log; plus float32 of the result.
        error = log_rounding(probs) + FLOAT32_ROUNDING * math.log(10)
        assert found[0].tolist() == pytest.approx(expected, rel=0, abs=error)

    def test_rows_by_a_map_that_is_longer_and_repeats(self) -> None:
        """R11: per-token rows took the first request's parameters again and again."""
        z = row([3.0, 2.0, 1.0]).repeat(4, 1)
        context = SamplingContext([0.0, 1.0, 1.0], [0, 2, 0], [0.0, 0.0, 0.0])
        found = sampler_of(3).log_probs_kernel(z, context, token_to_request_index=torch.tensor([2, 1, 1, 0, 77]))
        assert [int((r > -INF).sum()) for r in found] == [3, 2, 2, 1]
        check(found[0], naive_log_softmax([3.0, 2.0, 1.0]))
        check(found[3], [0.0, -INF, -INF])

    def test_invalid_rows_are_nan_and_alone_in_that(self) -> None:
        z = torch.tensor([[1.0, 2.0], [math.nan, 0.0], [INF, 0.0], [-INF, -INF], [0.0, -INF]])
        found = sampler_of(2).log_probs_kernel(z, SamplingContext([1.0] * 5, [0] * 5, [0.0] * 5))
        assert found.isnan().all(1).tolist() == [False, True, True, True, False]
        check(found[0], naive_log_softmax([1.0, 2.0]))
        check(found[4], [0.0, -INF])

    @pytest.mark.parametrize("gap", [700.0, 1000.0, 30_000.0])
    def test_k11_a_finite_logit_that_no_filter_drops_has_a_finite_log_prob(self, gap: float) -> None:
        """K11, P06: values that underflow on their way became -inf. The law is the log of a mass that is not 0."""
        found = sampler_of(2).log_probs_kernel(row([0.0, -gap]), SamplingContext([1.0], [0], [0.0]))
        check(found[0], [0.0, -gap])

    def test_no_rows(self) -> None:
        found = sampler_of(5).log_probs_kernel(torch.empty(0, 6), SamplingContext([], [], []))
        assert found.shape == (0, 6)
        assert found.dtype == torch.float32


class TestRaw:
    OFF_SETS = pytest.mark.parametrize(
        "options",
        [
            pytest.param({}, id="law"),
            pytest.param({"top_p_off": frozenset({0.0})}, id="p1-is-not-off"),
            pytest.param({"top_p_off": frozenset({1.0})}, id="p0-is-not-off"),
            pytest.param({"top_k_off": frozenset({-1})}, id="k0-is-not-off"),
            pytest.param({"greedy_temperatures": frozenset({-1.0})}, id="T0-is-not-greedy"),
        ],
    )

    @OFF_SETS
    def test_p09_raw_log_probs_are_log_softmax_whatever_the_parameters(self, options: dict[str, Any]) -> None:
        """P09: "raw" log-probs were computed after T = 0.5 and k = 2. What means "off" must not matter either."""
        z = [1.5, -40.0, 2.0, -INF, 0.25]
        context = SamplingContext([0.5, 0.0, 1.0], [2, 0, 1], [0.0, 0.3, 0.9])
        found = sampler_of(5, log_probs="raw", **options).log_probs_kernel(row(z).repeat(3, 1), context)
        for i in range(3):
            check(found[i], naive_log_softmax(z))

    def test_drawing_is_not_raw(self) -> None:
        sampler = sampler_of(5, log_probs="raw")
        context = SamplingContext([1.0], [1], [0.0])
        z = row([0.0, 0.1, 0.2, 0.1, 0.0])
        drawn = {int(sampler.sample_kernel(z, 1, context, no_top_k=False, no_top_p=False)) for _ in range(20)}
        assert drawn == {2}

    def test_padding_is_minus_inf(self) -> None:
        found = sampler_of(2, log_probs="raw").log_probs_kernel(
            row([1.0, 2.0, 50.0]), SamplingContext([1.0], [0], [0.0])
        )
        check(found[0], [*naive_log_softmax([1.0, 2.0]), -INF])


class TestTokenLogProbs:
    # softmax at T = 1 of log(.4 .2 .2 .1 .1), k = 3: ties at the third place: .5 .25 .25, ids 1, 0 and 3.
    PROBS = (0.2, 0.4, 0.1, 0.2, 0.1)
    EXPECTED = (math.log(0.25), math.log(0.5), -INF, math.log(0.25), -INF)

    def found(self, ids: list[int], top_n: int, dtype: torch.dtype = torch.int64) -> TokenLogProbs:
        n = len(ids)
        z = row([*log_of(self.PROBS), 9.0]).repeat(n, 1)
        context = SamplingContext([1.0], [3], [0.0])
        return sampler_of(5).token_log_probs(
            z,
            torch.tensor(ids, dtype=dtype),
            context,
            top_n=top_n,
            token_to_request_index=torch.zeros(n, dtype=torch.int64),
        )

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_chosen_tokens(self, dtype: torch.dtype) -> None:
        """P04: the log-prob of the whole row's sum, not of the token."""
        found = self.found([0, 1, 2, 3, 4], 0, dtype)
        error = log_rounding(self.PROBS) + FLOAT32_ROUNDING * math.log(4)
        assert found.chosen.tolist() == pytest.approx(list(self.EXPECTED), rel=0, abs=error)
        assert found.chosen.dtype == torch.float32
        assert found.top_values.shape == found.top_ids.shape == (5, 0)

    @pytest.mark.parametrize("top_n", [1, 2, 3, 5])
    def test_most_probable_tokens_in_order_ties_by_index(self, top_n: int) -> None:
        """P07: alternatives unsorted, or of another count. Padding (id 5, the largest logit) is no alternative."""
        found = self.found([1, 1], top_n)
        assert found.top_ids.tolist() == [[1, 0, 3, 2, 4][:top_n]] * 2
        assert found.top_ids.dtype == torch.int64
        error = log_rounding(self.PROBS) + FLOAT32_ROUNDING * math.log(4)
        expected = [self.EXPECTED[j] for j in [1, 0, 3, 2, 4][:top_n]]
        assert found.top_values[1].tolist() == pytest.approx(expected, rel=0, abs=error)

    def test_nothing_is_drawn(self) -> None:
        sampler = sampler_of(5)
        before = state(sampler.rng)
        sampler.token_log_probs(torch.zeros(1, 5), torch.tensor([0]), SamplingContext([1.0], [0], [0.0]), top_n=5)
        sampler.log_probs_kernel(torch.zeros(1, 5), SamplingContext([1.0], [0], [0.0]))
        assert state(sampler.rng) == before


class Recorder(ReferenceSampling):
    """Keeps what `sample_speculative` hands to `sample_kernel`."""

    def sample_kernel(self, logits: Tensor, n: int, context: Any, **kwargs: Any) -> Tensor:
        self.seen = {"n": n, **kwargs}
        return super().sample_kernel(logits, n, context, **kwargs)


class TestSpeculative:
    @pytest.mark.parametrize(
        ("decode", "prefill", "draft", "expected"),
        [
            pytest.param(2, 0, 0, [0, 1], id="decode-only"),
            pytest.param(2, 0, 2, [0, 0, 0, 1, 1, 1], id="drafts"),
            pytest.param(0, 3, 5, [0, 1, 2], id="prefill-only"),
            pytest.param(2, 3, 1, [0, 0, 1, 1, 2, 3, 4], id="decode-then-prefill"),
            pytest.param(1, 1, 3, [0, 0, 0, 0, 1], id="one-of-each"),
            pytest.param(3, 2, 0, [0, 1, 2, 3, 4], id="no-drafts"),
        ],
    )
    def test_row_to_request_map(self, decode: int, prefill: int, draft: int, expected: list[int]) -> None:
        """R11, R12: per-token buffers sliced as if per request."""
        sampler = Recorder(7, generator())
        context = SamplingContext([1.0] * 5, [3] * 5, [0.0] * 5)
        tokens = sampler.sample_speculative(
            torch.zeros(9, 7), decode, prefill, draft, context, cache_key="k", eager=True
        )
        assert tokens.shape == (len(expected),)
        assert sampler.seen["n"] == len(expected)
        assert sampler.seen["token_to_request_index"].tolist() == expected
        assert sampler.seen["cache_key"] == "k"
        assert sampler.seen["eager"] is True
        assert (sampler.seen["no_top_k"], sampler.seen["no_top_p"]) == (False, False)  # the caller promised nothing

    def test_gathered_rows_keep_their_requests(self) -> None:
        """V01: greedy request 0 and flat request 1 on rows whose argmax is known; the gather reverses the rows."""
        z = torch.zeros(4, 1000)
        z[torch.arange(4), torch.tensor([500, 501, 502, 503])] = 1e-3
        context = SamplingContext([0.0, 1.0], [0, 0], [0.0, 0.0])
        tokens = ReferenceSampling(1000, generator(1)).sample_speculative(
            z, 1, 1, 1, context, gather_indices=torch.tensor([3, 2, 1, 0])
        )
        assert tokens[:2].tolist() == [503, 502]
        assert tokens[2].item() != 501  # once in 1,000 by chance; the seed is fixed

    def test_same_stream_as_sample_kernel_with_the_map(self) -> None:
        z = torch.randn(7, 50, generator=generator(1))
        context = SamplingContext([1.0, 0.7, 1.0], [0, 5, 0], [0.9, 0.0, 0.0])
        speculative = ReferenceSampling(50, generator(2)).sample_speculative(z, 2, 1, 2, context)
        plain = ReferenceSampling(50, generator(2)).sample_kernel(
            z, 7, context, no_top_k=False, no_top_p=False, token_to_request_index=torch.tensor([0, 0, 0, 1, 1, 1, 2])
        )
        assert torch.equal(speculative, plain)


class TestParametersBy:
    """Two rows with maxima at 10 and 20 and three requests: greedy, flat, greedy. Flat misses a maximum with 0.999."""

    Z = torch.zeros(3, 1000)
    Z[0, 10] = Z[1, 20] = Z[2, 30] = 1e-3
    CONTEXT = SamplingContext([0.0, 1.0, 0.0], [0, 0, 0], [0.0, 0.0, 0.0])

    def tokens(self, by: str, gather: list[int], request: list[int] | None = None) -> list[int]:
        sampler = ReferenceSampling(1000, generator(4), LawOptions(parameters_by=by))  # type: ignore[arg-type]
        found = sampler.sample_kernel(
            self.Z,
            len(gather),
            self.CONTEXT,
            no_top_k=True,
            no_top_p=True,
            gather_indices=torch.tensor(gather),
            token_to_request_index=None if request is None else torch.tensor(request),
        )
        return [int(t) for t in found]

    def test_by_slot(self) -> None:
        """The contract: slot 1 is flat although it samples row 0."""
        tokens = self.tokens("slot", [1, 0, 2])
        assert tokens[0] == 20
        assert tokens[1] not in {10, 20, 30}
        assert tokens[2] == 30

    def test_by_row(self) -> None:
        """FlashInfer's `indices=`: whoever samples row 1 is flat."""
        tokens = self.tokens("row", [1, 0, 2])
        assert tokens[0] not in {10, 20, 30}
        assert tokens[1:] == [10, 30]

    def test_by_row_without_a_gather_takes_the_request_map(self) -> None:
        """Nothing is gathered, so both readings are the same one: slot 0 is request 1, flat."""
        z = self.Z
        for by in ("slot", "row"):
            sampler = ReferenceSampling(1000, generator(4), LawOptions(parameters_by=by))
            tokens = sampler.sample_kernel(
                z, 3, self.CONTEXT, no_top_k=True, no_top_p=True, token_to_request_index=torch.tensor([1, 0, 2])
            ).tolist()
            assert tokens[0] not in {10, 20, 30}, by
            assert tokens[1:] == [20, 30], by

    def test_by_row_log_probs_take_the_request_map(self) -> None:
        """Log-probs gather nothing either: a map from row to request is just that."""
        request = torch.tensor([1, 0, 2])
        by_slot, by_row = (
            sampler_of(1000, parameters_by=by).log_probs_kernel(self.Z, self.CONTEXT, token_to_request_index=request)
            for by in ("slot", "row")
        )
        assert bits(by_row) == bits(by_slot)

    def test_by_row_a_row_without_parameters_is_refused(self) -> None:
        """Row 2 has no request: a ValueError before anything is drawn, not an IndexError after."""
        sampler = ReferenceSampling(1000, generator(4), LawOptions(parameters_by="row"))
        before = state(sampler.rng)
        context = SamplingContext([1.0, 1.0], [0, 0], [0.0, 0.0])
        with pytest.raises(ValueError, match="gather_indices"):
            sampler.sample_kernel(self.Z, 1, context, no_top_k=True, no_top_p=True, gather_indices=torch.tensor([2]))
        assert state(sampler.rng) == before
