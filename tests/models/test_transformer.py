import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from state_life import StateLife
from torch import Tensor, nn

from headway.decode import SearchModel
from headway.errors import ConfigError, LengthError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.positions import sinusoids

V = 11
SMALL: dict[str, Any] = {
    "d_model": 16, "num_heads": 4, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0,
}  # fmt: skip
FOREIGN: dict[str, Any] = {
    "sinusoid_layout": "halves", "sinusoid_spacing": "inclusive", "position_offset": 2,
    "scale_embedding": False, "embedding_norm": True, "output_bias": True,
}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "activation": "swiglu"},
    {"positions": "learned", "max_length": 64, "d_key": 3, "d_value": 5},
    FOREIGN,
    {"positions": "rotary", "score": "additive", "qk_projection": "hidden", "norm": "pre"},
    {"positions": "none", "score": "cosine"},
    {"encoder_window": 3, "decoder_window": 4},
    {"decoder_window": 2, "positions": "rotary", "score": "additive"},
    {
        "decoder_window": 4,
        "positions": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "norm": "pre",
    },
]


def transformer(**changes: Any) -> Transformer:
    """Return a small model with random weights, so that every part affects the results."""
    model = build_model(TransformerConfig.parse({**SMALL, **changes}, "test"), V, V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.fixture(
    params=VARIANTS,
    ids=["paper", "pre-norm", "learned", "foreign", "rotary", "no positions", "windows", "rotary window", "relative"],
)
def model(request: pytest.FixtureRequest) -> Transformer:
    return transformer(**request.param)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(1, V, shape)


# Sizes.


@pytest.mark.parametrize(
    ("preset", "d", "f", "h", "layers", "dropout"),
    [
        ("base", 512, 2048, 8, 6, 0.1),
        ("big", 1024, 4096, 16, 6, 0.3),
        ("tiny", 128, 512, 4, 2, 0.1),
        ("small", 256, 1024, 4, 3, 0.1),
    ],
)
def test_presets_have_their_sizes(preset: str, d: int, f: int, h: int, layers: int, dropout: float) -> None:
    config = TransformerConfig.preset(preset)
    sizes = (config.d_model, config.d_ff, config.num_heads, config.encoder_layers, config.decoder_layers)
    assert sizes == (d, f, h, layers, layers)
    assert (config.dropout, config.attention_dropout, config.feed_forward_dropout) == (dropout, 0, 0)
    assert (config.norm, config.activation, config.positions, config.tie) == ("post", "relu", "sinusoidal", "all")
    with torch.device("meta"):  # counted without allocating memory
        model = build_model(config, 37000, 37000)
    norm = 2 * d
    attention = 4 * (d * d + d)  # query, key, value and output, with biases
    feed_forward = (d * f + f) + (f * d + d)
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    expected = 37000 * d + layers * (encoder + decoder)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    # Table 3 of the paper gives 65 and 213 million for a vocabulary of about 37,000.
    assert expected == {"base": 63_082_496, "big": 214_245_376}.get(preset, expected)


def test_the_default_is_the_base_model() -> None:
    assert TransformerConfig() == TransformerConfig.preset("base")
    assert TransformerConfig.preset("big", d_ff=8).d_ff == 8
    assert TransformerConfig.parse({"preset": "tiny", "dropout": 0}, "x").dropout == 0


def test_ties() -> None:
    everything, target, none = (transformer(tie=tie) for tie in ("all", "target", "none"))
    assert everything.source_embedding.weight is everything.target_embedding.weight
    assert everything.target_embedding.weight is everything.projection.weight
    assert target.source_embedding.weight is not target.target_embedding.weight
    assert target.target_embedding.weight is target.projection.weight
    weights = (none.source_embedding.weight, none.target_embedding.weight, none.projection.weight)
    assert len({id(weight) for weight in weights}) == 3


@pytest.mark.parametrize("tie", ["target", "none"])
def test_the_sides_may_have_vocabularies_of_different_sizes(tie: str) -> None:
    model = build_model(TransformerConfig.parse({**SMALL, "tie": tie}, "test"), 20, 30)
    assert model(torch.full((1, 3), 19), torch.full((1, 2), 29)).shape == (1, 2, 30)


def test_one_matrix_for_all_needs_one_vocabulary() -> None:
    with pytest.raises(
        ConfigError, match="tie = 'all' needs one vocabulary for both sides, but the source has 20 and the target"
    ):
        build_model(TransformerConfig.parse(SMALL, "test"), 20, 30)


# What the model may attend to.


def test_the_future_cannot_leak(model: Transformer) -> None:
    source, target = random_tokens(2, 5), random_tokens(2, 7)
    logits = model(source, target)
    for position in range(1, 7):
        changed = target.clone()
        changed[:, position] = changed[:, position] % (V - 1) + 1
        other = model(source, changed)
        torch.testing.assert_close(other[:, :position], logits[:, :position])
        assert not torch.allclose(other[:, position], logits[:, position])


def test_every_source_token_reaches_every_position(model: Transformer) -> None:
    source, target = random_tokens(1, 5), random_tokens(1, 3)
    logits = model(source, target)
    for position in range(5):
        changed = source.clone()
        changed[:, position] = changed[:, position] % (V - 1) + 1
        assert (model(changed, target) != logits).any(-1).all()


def test_padding_changes_nothing(model: Transformer) -> None:
    sources, targets = [random_tokens(n) for n in (6, 1, 4)], [random_tokens(n) for n in (2, 7, 5)]

    def padded(rows: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)

    together = model(padded(sources), padded(targets))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(source.unsqueeze(0), target.unsqueeze(0))[0]
        torch.testing.assert_close(together[row, : len(target)], alone, atol=1e-5, rtol=1e-5)


def test_embeddings_of_both_sides_are_dropped_out_in_training() -> None:
    model = transformer(dropout=0.5)
    source, target = random_tokens(1, 5), random_tokens(1, 4)
    mask = torch.ones(1, 1, 5, dtype=torch.bool)
    seen: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    model.train().decode(target, model.encode(source, mask), mask)
    embedded = (
        model.source_positions(model.source_embedding(source)),
        model.target_positions(model.target_embedding(target)),
    )
    for inputs, whole in zip(seen, embedded, strict=True):
        kept = inputs != 0
        assert 0 < kept.sum() < kept.numel()
        torch.testing.assert_close(inputs[kept], 2 * whole[kept])


def test_blocks_of_both_sides_are_left_out_in_training() -> None:
    """At a probability of nearly one, the stacks return their input."""
    model = transformer(layer_dropout=0.999999).train()
    x, memory, mask = torch.randn(2, 3, 16), torch.randn(2, 3, 16), torch.ones(1, 3, 3, dtype=torch.bool)
    assert torch.equal(model.encoder(x, mask), x)
    assert torch.equal(model.decoder(x, memory, mask), x)


# Results with and without cache agree.


def test_is_a_search_model(model: Transformer) -> None:
    assert isinstance(model, SearchModel)


def test_step_by_step_equals_all_at_once(model: Transformer) -> None:
    # In 40 steps, the buffers, which grow by 32 positions, grow once.
    source, target = random_tokens(3, 6), random_tokens(3, 40)
    source[1, 4:] = 0
    expected = model(source, target)
    state = model.start([row[row != 0].tolist() for row in source])
    for step in range(40):
        torch.testing.assert_close(model.step(state, target[:, step]).logits(), expected[:, step], atol=1e-5, rtol=1e-5)


@pytest.mark.slow_but_every(5)
@pytest.mark.parametrize("seed", range(3))
def test_rows_survive_every_reordering(model: Transformer, seed: int) -> None:
    random.seed(seed)
    StateLife(model, random_tokens).reorder_admit_and_leave(steps=12)


def test_rows_past_the_first_buffer_meet_new_ones() -> None:
    life = StateLife(transformer(), random_tokens)
    state, rows = life.started(1, 1)
    for _ in range(34):
        life.advance_and_compare(state, rows)
    for _ in range(2):
        rows += life.admitted(state, 2, 1)
        life.advance_and_compare(state, rows)


def test_rows_that_come_and_go_need_no_more_room_than_the_longest_of_them() -> None:
    # As in a server: one long-lived state, whose sentences leave after 6 steps each. Learned positions end at 8.
    life = StateLife(transformer(positions="learned", max_length=8), random_tokens)
    state, rows = life.started(1, 1)
    for step in range(1, 25):
        life.advance_and_compare(state, rows)
        if step % 3 == 0:
            rows += life.admitted(state, 1, 1)
        if len(rows[0].prefix) == 6:
            stay = torch.arange(1, len(rows))
            life.model.reorder_rows(state, stay, stay)
            rows = rows[1:]


def test_learned_positions_limit_both_sides() -> None:
    model = transformer(positions="learned", max_length=4)
    assert (model.max_length, transformer().max_length) == (4, None)
    message = "a sequence of 5 tokens is longer than the 4 positions"
    with pytest.raises(LengthError, match=message):
        model.start(random_tokens(1, 5).tolist())
    with pytest.raises(LengthError, match=message):
        model(random_tokens(1, 4), random_tokens(1, 5))
    state = model.start(random_tokens(1, 4).tolist())
    for _ in range(4):
        model.step(state, random_tokens(1)).logits()
    with pytest.raises(LengthError, match=message):
        model.step(state, random_tokens(1)).logits()


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative_bias"])
def test_other_positions_let_decoding_pass_any_table(positions: str) -> None:
    model = transformer(encoder_layers=1, decoder_layers=1, positions=positions)
    assert model.max_length is None
    source, target = random_tokens(1, 2), random_tokens(1, 260)
    state = model.start(source.tolist())
    for token in target[0]:
        logits = model.step(state, token.unsqueeze(0)).logits()
    assert state.prefix_kv.lengths.tolist() == [260]
    torch.testing.assert_close(logits, model(source, target)[:, -1], atol=1e-4, rtol=1e-4)


# Options of imported models.


def test_without_their_options_models_are_what_they_were() -> None:
    """A configuration that was written before these options existed contains none of them."""
    config = TransformerConfig.parse(SMALL, "config.json of old")
    assert not set(FOREIGN) & SMALL.keys()
    model = build_model(config, V, V)
    names = model.state_dict().keys()
    assert not any("embedding_norm" in name or "source_norm" in name or "target_norm" in name for name in names)
    assert "projection.bias" not in names
    tokens = random_tokens(2, 5)
    expected = 4 * model.source_embedding.weight[tokens] + sinusoids(5, 16)
    assert torch.equal(model.embed_source(tokens), expected)
    assert torch.equal(model.embed_target(tokens), expected)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_embeddings_are_what_the_options_say(scaled: bool, normed: bool) -> None:
    model = transformer(
        **FOREIGN | {"scale_embedding": scaled, "embedding_norm": normed, "tie": "target"}, d_model=8, num_heads=2
    )
    tokens = random_tokens(2, 3)
    # Frequencies 10000^(-i / 3) for i = 0 .. 3, sines first, from position 2 on.
    angles = torch.arange(2, 5).unsqueeze(1) * 10000 ** (-torch.arange(4) / 3)
    positions = torch.cat([angles.sin(), angles.cos()], 1)
    for embed, embedding, norm in (
        (model.embed_source, model.source_embedding, model.source_norm),
        (model.embed_target, model.target_embedding, model.target_norm),
    ):
        x = embedding.weight[tokens] * (8**0.5 if scaled else 1) + positions
        if normed:
            assert isinstance(norm, nn.LayerNorm)
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            x = x * norm.weight + norm.bias
        torch.testing.assert_close(embed(tokens), x, atol=1e-5, rtol=1e-5)


def test_rows_are_embedded_at_positions_of_their_own(model: Transformer) -> None:
    tokens = random_tokens(3, 6)
    whole = model.embed_target(tokens)
    positions = torch.tensor([4, 0, 5])
    rows = torch.arange(3)
    torch.testing.assert_close(model.embed_target_at(tokens[rows, positions], positions), whole[rows, positions])


def test_the_output_bias_is_added_to_the_logits() -> None:
    with_bias, without = transformer(output_bias=True), transformer()
    missing, extra = without.load_state_dict(with_bias.state_dict(), strict=False)
    assert (missing, extra) == ([], ["projection.bias"])
    source, target = random_tokens(2, 4), random_tokens(2, 3)
    expected = without(source, target) + with_bias.projection.bias
    torch.testing.assert_close(with_bias(source, target), expected)
    assert torch.equal(build_model(TransformerConfig(output_bias=True), 5, 5).projection.bias, torch.zeros(5))


# Configuration.


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_heads": 7}, "num_heads = 7 does not divide d_model = 512; choose a divisor, or set d_key and d_value"),
        ({"dropout": 1.5}, "dropout = 1.5: input should be less than 1"),
        ({"dropout": -0.1}, "dropout = -0.1: input should be greater than or equal to 0"),
        ({"attention_dropout": 1}, "attention_dropout = 1: input should be less than 1"),
        ({"preset": "huge"}, "preset = 'huge': expected one of tiny, small, base, big"),
        ({"preset": ["base"]}, r"preset = \['base'\]: expected one of tiny, small, base, big"),
        ({"num_head": 8}, "unknown key 'num_head'; did you mean 'num_heads'?"),
        ({"norm": "per"}, "norm = 'per': input should be 'post', 'pre' or 'none'"),
        ({"encoder_layers": 0}, "encoder_layers = 0: input should be greater than or equal to 1"),
        ({"sinusoid_layout": "thirds"}, "sinusoid_layout = 'thirds': input should be 'interleaved' or 'halves'"),
        ({"sinusoid_spacing": "log"}, "sinusoid_spacing = 'log': input should be 'paper' or 'inclusive'"),
        ({"position_offset": -1}, "position_offset = -1: input should be greater than or equal to 0"),
        ({"score": "scaled"}, r"score = 'scaled': did you mean 'scaled_dot'\?"),
        ({"qk_projection": "deep"}, "qk_projection = 'deep': input should be 'linear' or 'hidden'"),
        ({"residual": "maybe"}, "residual = 'maybe': input should be a valid boolean"),
        (
            {"positions": "rotary", "d_key": 7},
            "positions = 'rotary' rotates pairs of units, but .* keys of a head have 7 units; set d_key",
        ),
        (
            {"positions": "rotary", "position_offset": 2},
            "position_offset = 2 has no effect with positions = 'rotary'; remove it, or set positions to 'sinus",
        ),
        ({"positions": "none", "sinusoid_layout": "halves"}, "sinusoid_layout = 'halves' has no effect with positions"),
        ({"positions": "rotary", "sinusoid_spacing": "inclusive"}, "sinusoid_spacing = 'inclusive' has no effect with"),
        (
            {"positions": "none", "max_length": 60},
            "max_length = 60 has no effect with positions = 'none'; remove it, or set positions to 'learned'",
        ),
        ({"activation": "tanh"}, "activation = 'tanh': input should be 'relu', 'gelu'"),
        (
            {"positions": "rotary", "relative_buckets": 8},
            "relative_buckets has no effect with positions = 'rotary'; remove it, or set positions to 'relative_b",
        ),
        ({"positions": "relative_bias", "max_length": 60}, "max_length = 60 has no effect with positions = 'relative_"),
        (
            {"positions": "relative_bias", "relative_buckets": 7},
            "relative_buckets = 7: input should be a multiple of 2",
        ),
        (
            {"positions": "relative_bias", "relative_max_distance": 16},
            "relative_max_distance = 16 must be more than half of relative_buckets = 32",
        ),
    ],
)
def test_mistakes_are_explained(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^recipe.toml: {message}"):
        TransformerConfig.parse(keys, "recipe.toml")


def test_heads_of_their_own_width_need_not_divide() -> None:
    config = TransformerConfig.parse({**SMALL, "num_heads": 3, "d_key": 4, "d_value": 2}, "test")
    assert build_model(config, V, V)(random_tokens(1, 2), random_tokens(1, 3)).shape == (1, 3, V)


def test_each_combination_of_options_builds_and_runs() -> None:
    for tie, norm, positions in itertools.product(
        ("all", "target", "none"), ("post", "pre", "none"), ("sinusoidal", "learned", "rotary", "none")
    ):
        logits = transformer(tie=tie, norm=norm, positions=positions)(random_tokens(1, 2), random_tokens(1, 3))
        assert logits.isfinite().all()
