"""The bands: wide enough for every right float32 sampler, too narrow for the wrong ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from reference import Law, LawOptions
from tests.reference import float32_samplers as samplers
from tests.reference.float32_samplers import RIGHT
from tests.reference.helpers import law_of
from tests.reference.naive import naive_law
from tests.reference.test_law_oracle import OPTIONS, PARAMETERS, ROWS


def random_rows(n: int, width: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(width)) * 2


def near_tied(n: int, width: int) -> Tensor:
    """Logits in few clusters, 0 to 3 float32 steps apart within one: rounding w = z / T merges and reorders them."""
    rng = torch.Generator().manual_seed(width + 1)
    base = torch.tensor([5.0, 3.3, 2.7, 1.1, -0.3, -2.0])
    z = base[torch.randint(0, 6, (n, width), generator=rng)]
    for _ in range(3):
        up = torch.rand(n, width, generator=rng) < 0.5
        z = torch.where(up, torch.nextafter(z, torch.tensor(math.inf)), z)
    return z


def flat(n: int, width: int) -> Tensor:
    """All tokens within 1e-3 nats: the edge of a nucleus passes thousands of nearly equal ones."""
    return torch.randn(n, width, generator=torch.Generator().manual_seed(width + 2)) * 1e-3


def huge(n: int, width: int) -> Tensor:
    """Logits around 1,000, a few float32 steps apart: with a low temperature |w| is 1e5 and more."""
    rng = torch.Generator().manual_seed(width + 3)
    return 1000 + torch.randint(0, 40, (n, width), generator=rng) * 2.0**-14


def masked(n: int, width: int) -> Tensor:
    """Half of the tokens are -inf."""
    z = random_rows(n, width)
    z[:, ::2] = -math.inf
    return z


KINDS = {
    "random": (random_rows, 0.7),
    "near-tied": (near_tied, 0.8),
    "near-tied-T1.3": (near_tied, 1.3),
    "flat": (flat, 0.9),
    "huge-w1e5": (huge, 0.01),
    "huge-w1e6": (huge, 0.001),
    "masked": (masked, 1.7),
}
FILTERS = [(0, 0.5), (0, 0.9), (0, 0.999), (0, 1 - 2.0**-20), (0, 1e-4), (5, 0.0), (50, 0.0), (50, 0.8), (7, 0.95)]
FILTER_IDS = [f"topk{k}-topp{p:g}" for k, p in FILTERS]


def outside(kept: Tensor, found: Law) -> Tensor:
    """Bool [n]: rows whose kept set lacks a must-keep token or holds one outside may-keep."""
    return ((found.must_keep & ~kept) | (kept & ~found.may_keep)).any(1)


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS, ids=FILTER_IDS)
@pytest.mark.parametrize("kind", KINDS)
def test_right_float32_samplers_lie_inside(kind: str, top_k: int, top_p: float) -> None:
    """P08: a sampled token fell outside the mask that a second computation found. No right sampler may be blamed."""
    make, temperature = KINDS[kind]
    for n, width in ((40, 7), (20, 64), (6, 1000), (3, 4096)):
        z = make(n, width)
        found = law_of(z, temperature, top_k, top_p)
        for name, sampler in RIGHT.items():
            assert not outside(sampler(z, temperature, top_k, top_p), found).any(), (name, width)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (1000, 0.95), (0, 0.9999)])
@pytest.mark.parametrize("kind", ["random", "flat", "near-tied"])
def test_right_float32_samplers_lie_inside_at_v32768(kind: str, top_k: int, top_p: float) -> None:
    """N24: masks drifted from the reference as the vocabulary grew; sums over 8 tiles carry 8 more roundings."""
    make, temperature = KINDS[kind]
    z = make(2, 32_768)
    found = law_of(z, temperature, top_k, top_p)
    for name, sampler in RIGHT.items():
        assert not outside(sampler(z, temperature, top_k, top_p), found).any(), name


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS, ids=FILTER_IDS)
@pytest.mark.parametrize("kind", ["random", "near-tied", "bf16", "huge-w1e5"])
def test_samplers_that_split_ties_lie_inside_their_declared_rule(kind: str, top_k: int, top_p: float) -> None:
    """T01, T03: sort-based samplers split ties, rightly so where they say it."""
    make, temperature = KINDS.get(kind, KINDS["random"])
    rules = {
        "lowest-index": (LawOptions("lowest-index", "lowest-index"), samplers.sorted_by_index),
        "any": (LawOptions("any", "any"), samplers.sorted_in_any_order),
    }
    for n, width in ((40, 7), (20, 64), (6, 1000), (3, 4096)):
        z = make(n, width)
        if kind == "bf16":
            z = z.bfloat16().float()
        for name, (options, sampler) in rules.items():
            found = law_of(z, temperature, top_k, top_p, options=options)
            assert not outside(sampler(z, temperature, top_k, top_p), found).any(), (name, width)


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS, ids=FILTER_IDS)
@pytest.mark.parametrize("kind", ["random", "near-tied", "flat"])
def test_joint_samplers_lie_inside_their_declared_order(kind: str, top_k: int, top_p: float) -> None:
    """O02: both filters on the whole row, rightly so where a sampler says it."""
    make, temperature = KINDS[kind]
    for n, width in ((40, 7), (20, 64), (6, 1000)):
        z = make(n, width)
        found = law_of(z, temperature, top_k, top_p, options=LawOptions(filter_order="joint"))
        assert not outside(samplers.joint(z, temperature, top_k, top_p), found).any(), width


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize(
    ("logits", "temperature", "top_k", "top_p"),
    [
        pytest.param([22741.232421875, 22741.2265625, 22741.23046875], 2.61120453615149e-06, 2, 0.999, id="w9e9"),
        pytest.param([27066.140625, 27066.1328125, 27066.138671875, 27066.140625], 1.169e-06, 2, 0.0, id="w2e10"),
        pytest.param([61292.59765625, 61292.73046875, 61292.7265625], 4.374172476673266e-06, 0, 0.5, id="w1e10"),
    ],
)
def test_exponents_of_1e10(name: str, logits: list[float], temperature: float, top_k: int, top_p: float) -> None:
    """One float32 step of w = 1e10 is 1,024 nats: z * (1 / T) merges tokens that far apart, so both may be kept."""
    z = torch.tensor([logits])
    assert not outside(RIGHT[name](z, temperature, top_k, top_p), law_of(z, temperature, top_k, top_p)).any()


class TestWrongSamplersLieOutside:
    """On ordinary rows: random normal float32 logits, where the law leaves nothing open."""

    def seen(self, kept: samplers.KeptSet, width: int, temperature: float, top_k: int, top_p: float) -> Tensor:
        """Bool [20]: the rows on which the sampler's kept set is seen to be wrong."""
        z = random_rows(20, width)
        return outside(kept(z, temperature, top_k, top_p), law_of(z, temperature, top_k, top_p))

    def seen_by_one_token(self, kept: samplers.KeptSet, width: int, top_k: int, top_p: float) -> Tensor:
        """The same for sets that are wrong by one token, on the rows where the law leaves none open."""
        open_rows = law_of(random_rows(20, width), 1.0, top_k, top_p).band[:, 0]
        decided = torch.ones(20, dtype=torch.bool)
        decided[open_rows] = False
        # A band of 2e-5 of the mass meets edge tokens of 1e-3 in 2 % of rows: 10 of 20 is far away.
        assert decided.sum() >= 10
        return self.seen(kept, width, 1.0, top_k, top_p)[decided]

    @pytest.mark.parametrize("width", [64, 1000])
    @pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.5), (0, 0.9), (5, 0.0), (50, 0.9)])
    def test_n13_one_too_many(self, width: int, top_k: int, top_p: float) -> None:
        assert self.seen_by_one_token(samplers.one_more, width, top_k, top_p).all()

    @pytest.mark.parametrize("width", [64, 1000])
    @pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.5), (0, 0.9), (5, 0.0), (50, 0.9)])
    def test_n01_one_too_few(self, width: int, top_k: int, top_p: float) -> None:
        assert self.seen_by_one_token(samplers.one_less, width, top_k, top_p).all()

    @pytest.mark.parametrize("top_p", [0.9, 0.95])
    def test_c01_softmax_in_bf16(self, top_p: float) -> None:
        """A bf16 probability is off by up to 2^-9, so tokens within 2^-8 nats of the edge become one run: at V = 32,768
        with 5,000 tokens a nat there, 20 of them. By luck the run ends where the nucleus does, in 1 row of 20."""
        seen = self.seen(samplers.bf16_softmax, 32_768, 1.0, 0, top_p)
        assert seen.sum() >= 0.75 * len(seen)

    @pytest.mark.parametrize("top_p", [0.95, 0.96])
    def test_c01_running_sum_in_bf16(self, top_p: float) -> None:
        """Bf16 sums near 1 move in steps of 2^-8, so the cut falls at the middle of two steps: at 0.9512 in place of
        0.95, at 0.9590 in place of 0.96. At V = 4,096 and std 2 that is 17 tokens too many, and 17 too few."""
        assert self.seen(samplers.bf16_cumsum, 4096, 1.0, 0, top_p).all()

    def test_o02_both_filters_on_the_whole_row(self) -> None:
        assert self.seen(samplers.joint, 1000, 1.0, 50, 0.8).all()

    @pytest.mark.parametrize("temperature", [0.5, 2.0])
    def test_o05_filters_before_temperature(self, temperature: float) -> None:
        assert self.seen(samplers.temperature_last, 1000, temperature, 0, 0.9).all()


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(given_row=ROWS, parameters=PARAMETERS, options=OPTIONS)
def test_must_keep_within_kept_within_may_keep(
    given_row: tuple[list[float], str], parameters: tuple[float, int, float], options: LawOptions
) -> None:
    """A band that does not hold the exact law would fail a perfect sampler. Kept sets are those of the naive law."""
    values, _ = given_row
    z = torch.tensor([values])
    found = law_of(z, *parameters, options=options)
    naive = naive_law(z[0].tolist(), *parameters, len(values), options)
    assert naive is not None
    exact = torch.zeros_like(found.must_keep)
    exact[0, naive.kept] = True
    assert not (found.must_keep & ~exact).any()
    assert not (exact & ~found.may_keep).any()
    band = (found.may_keep & ~found.must_keep).nonzero()
    assert sorted(map(tuple, found.band.tolist())) == sorted(map(tuple, band.tolist()))


@pytest.mark.parametrize(
    ("top_p", "rows"),
    [pytest.param(0.5, 4, id="p0.5"), pytest.param(0.9, 20, id="p0.9"), pytest.param(0.99, 90, id="p0.99")],
)
def test_the_band_of_bf16_logits_is_empty_or_tiny(top_p: float, rows: int) -> None:
    """A band as wide as the nucleus would pass anything. Bound, for V = 512 bf16 logits of std 2 at T = 1, |z| <= 10:

    - one token's error is at most E = 2^-24 (2 (10 + 10) + 4 * 20 + 8) = 128 * 2^-24 nats;
    - a share of the mass is known to e^(2E), the sums' slack 2 (9 + 16 + 1) 2^-24 and 2^-24 of the comparison:
      delta = (256 + 52 + 1) * 2^-24 = 1.84e-5;
    - only logits within 2E = 2^-16 of each other can change places. bf16 logits of 2^-7 and more are at least 2^-15
      away from all others, and the edge lies among such: asserted.
    Hence the band holds only runs of equal logits whose preceding mass lies within delta of p.

    rows: of 200 rows, how many may have a band. The preceding mass of the edge's token is placed evenly over its
    mass m, so 2 delta / m of rows have one: with masses lognormal of std 2 the edge is at z = 4 - 2 q(p), q the normal
    quantile, m = e^z / (512 e^2) = 0.0144, 0.0011 and 0.00014: 0.5, 7 and 53 rows on average; plus 5 std.
    """
    z = random_rows(200, 512).bfloat16()
    assert z.abs().max() <= 10
    found = law_of(z, 1.0, 0, top_p)
    p = float(torch.tensor(top_p))
    delta = 309 * 2.0**-24
    for i, values in enumerate(z.tolist()):
        band = found.band[found.band[:, 0] == i][:, 1].tolist()
        total = math.fsum(math.exp(x) for x in values)
        for j in band:
            before = math.fsum(math.exp(x) for x in values if x > values[j]) / total
            assert abs(before - p) <= delta
            assert abs(values[j]) >= 2.0**-7
        if band:
            # Runs of the band all begin within 2 delta of each other.
            smallest = min(math.exp(values[j]) for j in band) / total
            assert len({values[j] for j in band}) <= 1 + 2 * delta / smallest
    assert len(found.band[:, 0].unique()) <= rows


@pytest.mark.parametrize(("temperature", "may"), [(1.0, 2), (100.0, 3)])
def test_tokens_that_float32_cannot_order_are_undecided(temperature: float, may: int) -> None:
    """Top-k by float32 probabilities: 2^-17 nats apart at T = 1 differ after 2 * 40 roundings of 2^-24, at T = 100 the
    2^-23.6 nats that are left of it do not outlast one."""
    found = law_of(torch.tensor([[8.0, 8 - 2.0**-17, 8 - 2.0**-16, 0.0]]), temperature, 2, 0.0)
    assert int(found.may_keep.sum()) == may
    assert int((found.probs > 0).sum()) == 2
