import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headway.errors import ConfigError, LengthError
from headway.nn import LearnedPositions, SinusoidalPositions, sinusoids
from headway.nn.attention import MultiHeadAttention, attention_weights, record_attention
from headway.nn.block_config import BlockConfig
from headway.nn.blocks import DecoderStack, EncoderStack
from headway.nn.positions import NoPositions, RelativeBias, RotaryPositions, RotaryScaling


def by_formula(position: int, dimension: int, d_model: int) -> float:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) the cosine of the same."""
    angle = position / 10000 ** (2 * (dimension // 2) / d_model)
    return math.cos(angle) if dimension % 2 else math.sin(angle)


@pytest.mark.parametrize("d_model", [1, 2, 7, 8, 512])
def test_by_the_papers_formula(d_model: int) -> None:
    table = sinusoids(1001, d_model)
    assert table.dtype == torch.float32
    for position in (0, 1, 2, 77, 1000):
        expected = torch.tensor([by_formula(position, dimension, d_model) for dimension in range(d_model)])
        torch.testing.assert_close(table[position], expected, atol=1e-6, rtol=0)


def test_first_positions_by_hand() -> None:
    # d_model = 4: the second pair rotates 100 times slower than the first.
    expected = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
    torch.testing.assert_close(sinusoids(2, 4), torch.tensor(expected))


@given(
    d_model=st.integers(1, 20),
    offset=st.integers(0, 50),
    base=st.sampled_from([100.0, 10000.0]),
    last_exponent=st.booleans(),
    interleaved=st.booleans(),
)
def test_an_offset_starts_the_table_later(
    d_model: int, offset: int, base: float, last_exponent: bool, interleaved: bool
) -> None:
    def table(length: int, start: int) -> Tensor:
        return sinusoids(length, d_model, offset=start, base=base, last_exponent=last_exponent, interleaved=interleaved)

    assert torch.equal(table(5, offset), table(5 + offset, 0)[offset:])


@pytest.mark.parametrize("d_model", [1, 6, 7])
def test_halves_are_the_interleaved_dimensions_in_another_order(d_model: int) -> None:
    order = [*range(0, d_model, 2), *range(1, d_model, 2)]
    assert torch.equal(sinusoids(9, d_model, interleaved=False), sinusoids(9, d_model)[:, order])


def test_last_exponent_spaces_the_wavelengths_up_to_the_base() -> None:
    # tensor2tensor: pos / base^(i / (d/2 - 1)); with d = 6 the exponents are 0, 1/2, 1.
    sines = sinusoids(4, 6, interleaved=False, base=100.0, last_exponent=True)[:, :3]
    expected = [[math.sin(position / speed) for speed in (1, 10, 100)] for position in range(4)]
    torch.testing.assert_close(sines, torch.tensor(expected))
    assert sinusoids(3, 2, last_exponent=True)[1].tolist() == pytest.approx([math.sin(1), math.cos(1)])


@given(position=st.integers(0, 200), shift=st.integers(0, 50))
def test_a_shift_is_one_rotation_for_all_positions(position: int, shift: int) -> None:
    # "for any fixed offset k, PE(pos + k) can be represented as a linear function of PE(pos)" (section 3.5): each pair
    # (sin, cos) is rotated by k / 10000^(2i / d).
    d_model = 8
    rotation = torch.zeros(d_model, d_model)
    for i in range(0, d_model, 2):
        angle = shift / 10000 ** (i / d_model)
        sin, cos = math.sin(angle), math.cos(angle)
        rotation[i : i + 2, i : i + 2] = torch.tensor([[cos, sin], [-sin, cos]])
    table = sinusoids(position + shift + 1, d_model)
    torch.testing.assert_close(rotation @ table[position], table[position + shift], atol=1e-5, rtol=0)


def test_added_to_the_input_from_any_start() -> None:
    positions = SinusoidalPositions(6)
    x = torch.randn(2, 5, 6)
    assert torch.equal(positions(x), x + sinusoids(5, 6))
    assert torch.equal(positions(x, start=3), x + sinusoids(8, 6)[3:])


@pytest.mark.parametrize("length", [256, 257, 700])
def test_no_length_is_too_long(length: int) -> None:
    positions = SinusoidalPositions(4, interleaved=False, offset=2, base=500.0, last_exponent=True)
    expected = sinusoids(length, 4, interleaved=False, offset=2, base=500.0, last_exponent=True)
    torch.testing.assert_close(positions(torch.zeros(1, length, 4))[0], expected)


@pytest.mark.parametrize(
    "positions",
    [SinusoidalPositions(4), LearnedPositions(4, 400), NoPositions()],
    ids=["sinusoidal", "learned", "none"],
)
def test_one_position_for_each_row(positions: SinusoidalPositions | LearnedPositions | NoPositions) -> None:
    positions.reserve(301)
    wanted = torch.tensor([300, 0, 7])
    x = torch.randn(3, 4)
    expected = torch.stack(
        [positions(row.view(1, 1, 4), start=int(at))[0, 0] for row, at in zip(x, wanted, strict=True)]
    )
    assert torch.equal(positions.add_at(x, wanted), expected)


def test_a_table_that_grew_while_decoding_can_be_trained_with() -> None:
    positions = SinusoidalPositions(4)
    with torch.inference_mode():
        positions.reserve(300)
    x = torch.randn(1, 300, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(positions(x).square().sum(), x)
    torch.testing.assert_close(gradient, 2 * (x + sinusoids(300, 4)).detach())


def test_sinusoids_are_not_weights() -> None:
    assert not SinusoidalPositions(4).state_dict()


def test_learned_positions_are_rows_of_a_table() -> None:
    positions = LearnedPositions(4, 6)
    x = torch.randn(2, 3, 4)
    assert torch.equal(positions(x), x + positions.table[:3])
    assert torch.equal(positions(x, start=3), x + positions.table[3:])
    assert sorted(positions.state_dict()) == ["table"]


def test_learned_positions_end() -> None:
    positions = LearnedPositions(4, 6)
    message = "a sequence of 7 tokens is longer than the 6 positions that this model has learned; split the text"
    with pytest.raises(LengthError, match=message):
        positions(torch.zeros(1, 7, 4))
    with pytest.raises(LengthError, match=message):
        positions(torch.zeros(1, 1, 4), start=6)
    with pytest.raises(LengthError, match=message):
        positions.reserve(7)
    with pytest.raises(ConfigError, match="max_length = 0: learned positions need at least 1"):
        LearnedPositions(4, 0)


def test_no_positions_change_nothing() -> None:
    positions, x = NoPositions(), torch.randn(2, 3, 4)
    assert torch.equal(positions(x, start=5), x)
    assert not positions.state_dict()


# Rotary positions.

ROTARY = RotaryPositions(8)


def test_rotation_by_hand() -> None:
    # Four units are two pairs with the angles pos and pos / 10000^(2 / 4) = pos / 100. At position 3:
    a, b = 3.0, 0.03
    turned = RotaryPositions(4)(torch.tensor([1.0, 0.0, 0.0, 2.0]).expand(1, 1, 4, 4))
    expected = [math.cos(a), math.sin(a), -2 * math.sin(b), 2 * math.cos(b)]
    torch.testing.assert_close(turned[0, 0, 3], torch.tensor(expected))
    assert turned[0, 0, 0].tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize("start", [0, 5, 300])
def test_rotation_is_a_product_with_a_complex_number(start: int) -> None:
    x = torch.randn(2, 3, 7, 10)
    pairs = torch.view_as_complex(torch.unflatten(x, -1, (5, 2)))
    angles = torch.arange(start, start + 7).unsqueeze(1) * 10000.0 ** (-2 * torch.arange(5, dtype=torch.float64) / 10)
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).float()
    torch.testing.assert_close(RotaryPositions(10)(x, start), expected, atol=1e-5, rtol=1e-5)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400), st.integers(0, 1000))
def test_products_depend_only_on_the_distance(query_at: int, key_at: int, shift: int, seed: int) -> None:
    torch.manual_seed(seed)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(move: int) -> Tensor:
        both: Tensor = ROTARY(query, query_at + move) * ROTARY(key, key_at + move)
        return both.sum()

    torch.testing.assert_close(product(shift), product(0), atol=1e-4, rtol=0)


def test_rotation_tells_distances_apart_and_keeps_lengths() -> None:
    rotary, x = RotaryPositions(8), torch.randn(1, 1, 1, 8).expand(1, 1, 50, 8)
    turned = rotary(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    products = (turned[0, 0, :1] * turned[0, 0]).sum(-1)
    assert len(products.unique()) == 50


def test_each_row_is_turned_to_a_position_of_its_own() -> None:
    rotary, x, wanted = RotaryPositions(6), torch.randn(3, 2, 1, 6), torch.tensor([300, 0, 7])
    rotary.reserve(301)
    expected = torch.cat([rotary(row.unsqueeze(0), start=int(at)) for row, at in zip(x, wanted, strict=True)])
    assert torch.equal(rotary.rotate_at(x, wanted), expected)


def test_a_rotation_that_grew_while_decoding_can_be_trained_with() -> None:
    rotary = RotaryPositions(4)
    with torch.inference_mode():
        rotary.reserve(300)
    x = torch.randn(1, 1, 300, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(rotary(x).square().sum(), x)
    torch.testing.assert_close(gradient, 2 * x.detach())  # the table is kept for the lengths that it covers


def test_a_rotation_has_no_weights_and_keeps_the_precision() -> None:
    rotary = RotaryPositions(4)
    assert not rotary.state_dict()
    assert rotary(torch.randn(1, 1, 2, 4).bfloat16()).dtype == torch.bfloat16


def test_an_odd_width_has_no_pairs() -> None:
    with pytest.raises(ConfigError, match=r"rotate pairs of units, .* keys of a head have 5 units; choose an even d"):
        RotaryPositions(5)


def test_a_part_of_the_units_can_be_rotated() -> None:
    x = torch.randn(1, 2, 5, 12)
    turned = RotaryPositions(12, rotated=4)(x)
    torch.testing.assert_close(turned[..., :4], RotaryPositions(4)(x[..., :4]))
    assert torch.equal(turned[..., 4:], x[..., 4:])


def test_linear_scaling_divides_positions() -> None:
    x = torch.randn(1, 1, 1, 8).expand(1, 1, 9, 8)
    slow = RotaryPositions(8, base=100.0, scaling=RotaryScaling(kind="linear", factor=4))(x)
    torch.testing.assert_close(slow[:, :, ::4], RotaryPositions(8, base=100.0)(x)[:, :, :3])


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_scaling_slows_only_long_wavelengths(kind: Any) -> None:
    scaling = RotaryScaling(kind=kind, factor=8, original_length=1024)
    frequencies = 10000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)
    scaled, magnitude = scaling.scale_frequencies(frequencies, 10000.0)
    ratio = frequencies / scaled
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(8)
    assert bool((ratio.diff() >= -1e-9).all())
    assert magnitude == (1.0 if kind == "llama3" else pytest.approx(0.1 * math.log(8) + 1))


def test_scaling_without_its_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs original_length"):
        RotaryScaling.parse({"kind": "yarn", "factor": 2}, "test")


# Relative biases.


def buckets(bias: RelativeBias, distances: list[int]) -> list[int]:
    """Return the bucket of each distance: the numbers in its table, of which each row contains its own index."""
    with torch.no_grad():
        bias.table.copy_(torch.arange(len(bias.table)).unsqueeze(1).expand_as(bias.table))
        found: list[int] = bias(torch.tensor([distances]))[0, 0].long().tolist()
    return found


def test_buckets_by_hand() -> None:
    # Of 8 buckets, 4 contain one distance. Bucket 4 + k begins at 4 * (16 / 4)^(k / 4): 4, 5.7, 8, 11.3.
    causal = RelativeBias(1, num_buckets=8, max_distance=16, bidirectional=False)
    expected = [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7]
    assert buckets(causal, [-distance for distance in range(18)]) == expected
    assert buckets(causal, [1, 2, 50, -1000]) == [0, 0, 0, 7]
    # In both directions there are 4 each, 2 of one distance. Bucket 2 + k begins at 2 * 8^(k / 2): 2, 5.7.
    both = RelativeBias(1, num_buckets=8, max_distance=16)
    assert buckets(both, [0, -1, -2, -5, -6, -99]) == [0, 1, 2, 2, 3, 3]
    assert buckets(both, [1, 2, 5, 6, 99]) == [5, 6, 6, 7, 7]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_buckets_of_t5_follow_its_formula(bidirectional: bool) -> None:
    exact = 8 if bidirectional else 16  # half of the buckets of one direction
    distances = range(exact, 300)
    # The slack is for distances with which a bucket begins exactly, such as 16, 32 and 64.
    places = [math.log(distance / exact) / math.log(128 / exact) * exact + 1e-9 for distance in distances]
    expected = [min(exact + math.floor(place), 2 * exact - 1) for place in places]
    assert buckets(RelativeBias(1, bidirectional=bidirectional), [-distance for distance in distances]) == expected


@torch.no_grad()
def test_biases_are_added_to_scores_by_distance() -> None:
    torch.manual_seed(0)
    bias = RelativeBias(2, num_buckets=4, max_distance=3)
    attention, x = MultiHeadAttention(8, 2, relative_bias=bias), torch.randn(3, 5, 8)
    with record_attention(attention) as weights:
        attention(x)
    query, kv = attention.project(x)
    scores = query @ kv.keys.mT / math.sqrt(4)
    for t in range(5):
        for s in range(5):
            # Each direction has two buckets: distance 0 and 1 or more before; distance 1 or more after, but never 0.
            scores[:, :, t, s] += bias.table[0 if s == t else 1 if s < t else 3]
    torch.testing.assert_close(weights[0], scores.softmax(-1))
    assert not torch.allclose(weights[0], attention_weights(query, kv.keys))


def test_the_biases_of_a_sequence_are_those_of_its_distances() -> None:
    bias, positions = RelativeBias(3, num_buckets=8, max_distance=7, bidirectional=False), torch.arange(20)
    assert torch.equal(bias.biases_for_length(20), bias(positions - positions.unsqueeze(1)))
    assert bias.biases_for_length(1).shape == (3, 1, 1)


@pytest.mark.parametrize("stack", [EncoderStack, DecoderStack])
def test_all_blocks_of_a_stack_share_one_table(stack: type[EncoderStack] | type[DecoderStack]) -> None:
    config = BlockConfig(d_model=8, num_heads=2, d_ff=8, positions="relative_bias")
    model = stack(3, config)
    tables = [name for name, _ in model.named_parameters() if "relative_bias" in name]
    assert tables == ["blocks.0.attention.relative_bias.table"]
    model.blocks[2].get_parameter("attention.relative_bias.table").data.fill_(3)
    assert bool((model.blocks[0].get_parameter("attention.relative_bias.table") == 3).all())
    assert model.blocks[0].get_submodule("attention.relative_bias").bidirectional == (stack is EncoderStack)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_buckets": 2}, "relative_buckets = 2: expected an even number of at least 4"),
        ({"num_buckets": 9}, "relative_buckets = 9: expected an even number"),
        ({"max_distance": 16}, "relative_max_distance = 16 with relative_buckets = 32: expected more than 16"),
    ],
)
def test_buckets_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RelativeBias(2, **options)  # type: ignore[arg-type]
