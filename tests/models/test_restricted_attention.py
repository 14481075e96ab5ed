"""Restricted self-attention: the positions in a window, and that every form of a model respects it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from state_life import StateLife
from torch import Tensor

from headway import kernels
from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions, Request, SearchVocabulary, search
from headway.decode.ensemble import Ensemble
from headway.engine import SearchTransformer, local_attention
from headway.engine.accelerate import accelerate, layer_accelerations
from headway.engine.local_attention import LocalMultiHeadAttention
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import MultiHeadAttention, record_attention
from headway.nn.block_config import BlockConfig
from headway.nn.blocks import DecoderBlock, EncoderBlock
from headway.nn.masks import causal_mask
from headway.nn.positions import RelativeBias
from headway.text.tokenizer import Tokenizer

V = 11
SIZES: dict[str, Any] = {
    "d_model": 16, "num_heads": 2, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def transformer(**changes: Any) -> Transformer:
    """Return a small model with random weights."""
    model = build_model(TransformerConfig.parse({**SIZES, **changes}, "test"), V, V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(1, V, shape)


def encoder_block(window: int | None, **changes: Any) -> EncoderBlock:
    torch.manual_seed(0)
    return EncoderBlock(BlockConfig(d_model=8, num_heads=2, d_ff=8, encoder_window=window, **changes))


def decoder_block(window: int | None) -> DecoderBlock:
    torch.manual_seed(0)
    return DecoderBlock(BlockConfig(d_model=8, num_heads=2, d_ff=8, decoder_window=window))


# Positions in a window.


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (1, ["1000", "0100", "0010", "0001"]),
        (2, ["1000", "1100", "0110", "0011"]),
        (3, ["1100", "1110", "0111", "0011"]),
        (4, ["1100", "1110", "1111", "0111"]),
        (7, ["1111"] * 4),
    ],
)
def test_a_window_of_the_encoder_is_centered_around_its_position(window: int, expected: list[str]) -> None:
    block = encoder_block(window)
    with record_attention(block.attention) as seen:
        block(torch.randn(1, 4, 8))
    assert ["".join(str(int(weight > 0)) for weight in row) for row in seen[0][0, 0]] == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (1, ["1000", "0100", "0010", "0001"]),
        (2, ["1000", "1100", "0110", "0011"]),
        (3, ["1000", "1100", "1110", "0111"]),
        (4, ["1000", "1100", "1110", "1111"]),
    ],
)
def test_a_window_of_the_decoder_has_the_latest_positions(window: int, expected: list[str]) -> None:
    block, memory = decoder_block(window), torch.randn(1, 6, 8)
    with record_attention(block.attention) as seen, record_attention(block.cross_attention) as seen_memory:
        block(torch.randn(1, 4, 8), memory, causal_mask(4))
    assert ["".join(str(int(weight > 0)) for weight in row) for row in seen[0][0, 0]] == expected
    assert (seen_memory[0] > 0).all(), "attention to the memory is never restricted"


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_only_positions_inside_the_window_have_a_gradient(
    window: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_attention, "_MIN_BLOCK", 3)
    monkeypatch.setattr(local_attention, "_MIN_LENGTH", 0)
    length = 17
    layers: dict[str, Any] = {"encoder": encoder_block(window), "decoder": decoder_block(window)}
    for name, layer in layers.items():
        layer = accelerate(layer) if fast else layer
        for position in (0, 1, 8, 16):
            x = torch.randn(1, length, 8, requires_grad=True)
            if name == "encoder":
                y, first, last = layer(x), position - window // 2, position + (window - 1) // 2
            else:
                y, first, last = layer(x, torch.randn(1, 3, 8), causal_mask(length)), position - window + 1, position
            (gradient,) = torch.autograd.grad(y[0, position].square().sum(), x)
            influences = [bool(each.any()) for each in gradient[0]]
            assert influences == [first <= each <= last for each in range(length)]


@pytest.mark.parametrize("training", [False, True])
def test_a_window_that_covers_everything_changes_no_bit(training: bool) -> None:
    plain, windowed = transformer().train(training), transformer(encoder_window=15, decoder_window=7).train(training)
    windowed.load_state_dict(plain.state_dict())
    source, target = random_tokens(3, 8), random_tokens(3, 7)
    source[1, 5:] = 0
    outputs = [model(source, target) for model in (plain, windowed)]
    assert torch.equal(*outputs)
    gradients = [
        torch.autograd.grad(each.sum(), model.projection.weight)
        for each, model in zip(outputs, (plain, windowed), strict=True)
    ]
    assert torch.equal(gradients[0][0], gradients[1][0])


# Blocks of queries.


def test_long_sequences_are_divided_and_short_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[int] = []
    original = local_attention._divide

    def noted(query: Tensor, *others: Any) -> Any:
        divided.append(query.size(2))
        return original(query, *others)

    monkeypatch.setattr(local_attention, "_divide", noted)
    attention = accelerate(MultiHeadAttention(8, 2, window=(4, 3)))
    assert type(attention) is LocalMultiHeadAttention
    for length in (20, 116, 117, 300):  # from 3 (32 + 4 + 3) on
        x = torch.randn(2, length, 8)
        expected = MultiHeadAttention.forward(attention, x)
        torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=1e-4)
    assert divided == [117, 300]


@pytest.mark.parametrize("shape", [None, (2, 150, 150), (1, 150, 150), (2, 1, 150), (150, 150), (150,), (2, 150, 1)])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "cosine"])
def test_blocks_follow_every_mask(shape: tuple[int, ...] | None, score: Any) -> None:
    bias = RelativeBias(2, num_buckets=8, max_distance=5) if score == "cosine" else None
    layer = MultiHeadAttention(8, 2, window=(5, 2), score=score, rotary=True, relative_bias=bias)
    attention, x = accelerate(layer).train(), torch.randn(2, 150, 8, requires_grad=True)
    mask = None if shape is None else torch.rand(shape) < 0.5
    found, expected = attention(x, mask=mask), MultiHeadAttention.forward(attention, x, mask=mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    upstream = torch.randn_like(found)
    gradients = [torch.autograd.grad(each, x, upstream)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_observers_see_the_weights_of_whole_sequences() -> None:
    attention = accelerate(MultiHeadAttention(8, 2, window=(4, 3))).eval()
    x = torch.randn(1, 200, 8)
    expected = attention(x)
    with record_attention(attention) as seen:
        torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=1e-4)
    assert seen[0].shape == (1, 2, 200, 200)
    assert int((seen[0][0, 0, 100] > 0).sum()) == 8


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    def saved(length: int, window: tuple[int, int] | None) -> int:
        layer, sizes = accelerate(MultiHeadAttention(8, 2, window=window)).train(), dict[int, int]()

        def note(x: Tensor) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            layer(torch.randn(1, length, 8, requires_grad=True), mask=torch.ones(1, 1, length, dtype=torch.bool))
        return sum(sizes.values())

    assert 1.9 < saved(900, (4, 3)) / saved(450, (4, 3)) < 2.1
    assert saved(900, None) / saved(450, None) > 3  # the square of the length, and memory proportional to it


# Decoding.


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("kind", ["plain", "converted", "ensemble"])
@torch.no_grad()
def test_decoding_with_a_cache_equals_the_whole_prefix(kind: str, positions: str) -> None:
    """Compare while beams are reordered, sequences leave and new ones enter."""
    model: Any = transformer(encoder_window=3, decoder_window=4, positions=positions)
    if kind == "ensemble":
        other = transformer(decoder_window=2, positions=positions)
        model = Ensemble([model, other])
    elif kind == "converted":
        model = Converted(model)
    StateLife(model, random_tokens).reorder_admit_and_leave(steps=20)


class Converted(SearchTransformer):
    """Scores whole targets with the original model."""

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = self._model(source, target)
        return logits


needs_int8 = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("precision", ["plain", "float32", "bfloat16", pytest.param("int8", marks=needs_int8)])
@pytest.mark.parametrize("beams", [1, 4])
@torch.no_grad()
def test_the_cache_keeps_the_window_whatever_the_length(precision: Any, beams: int) -> None:
    model: Any = transformer(decoder_window=5)
    if precision != "plain":
        model = SearchTransformer(model, precision)
    state = model.start([[3, 4, 2]], beams=beams)
    most, least = 0, 256 if precision == "int8" else 32
    for _ in range(500):
        model.step(state, random_tokens(beams)).logits()
        model.reorder_rows(state, torch.arange(beams))
        most = max(most, state.prefix_kv.keys[0].size(1))
    assert state.prefix_kv.lengths.tolist() == [500]
    assert most <= 1.5 * max(least, 5 * beams) + 33 * beams


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("int8", marks=needs_int8)])
@pytest.mark.parametrize("changes", [{}, {"positions": "rotary"}])
@torch.no_grad()
def test_lower_precisions_stay_near_the_reference(precision: Any, changes: dict[str, Any]) -> None:
    """Sources are shorter and longer than the int8 kernel supports, and targets are longer than the window."""
    sizes = {"d_model": 64, "d_ff": 64}  # with a width of 16, rounding is already 5 %
    model = transformer(encoder_window=4, decoder_window=3, **sizes, **changes)
    sources = [random_tokens(n).tolist() for n in (3, 40, 120)]
    tokens, found = random_tokens(12, 3), []
    for search_model in (SearchTransformer(model, precision), SearchTransformer(model)):
        state = search_model.start(sources)
        logits = [search_model.step(state, each).logits().log_softmax(-1) for each in tokens]
        found.append(torch.stack(logits))
    error = (found[0] - found[1]).abs().mean() / (found[1] - found[1].mean()).abs().mean()
    assert 0 < error < 0.05


@torch.no_grad()
def test_searches_agree_in_all_forms() -> None:
    model = transformer(encoder_window=4, decoder_window=3)
    requests = [Request(source=tuple(random_tokens(n).tolist()), limit=20) for n in (3, 9, 14)]
    for beam_size in (1, 4):
        options = DecodingOptions(beam_size=beam_size)
        found = [
            [each[0].tokens for each in search(form, requests, options, SearchVocabulary(1, 2, banned=(0, 1)))]
            for form in (model, SearchTransformer(model), Ensemble([model, model]))
        ]
        assert found[0] == found[1] == found[2]


# Configurations, folders and exports.


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="decoder_window = 3 has no effect: a classifier has no decoder"):
        ClassifierConfig.parse({"decoder_window": 3}, "test")
    with pytest.raises(ConfigError, match="encoder_window"):
        TransformerConfig.parse({"encoder_window": 0}, "test")


def test_windows_are_saved_and_folders_without_them_have_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer("characters", list("abcdefg"))
    config = TransformerConfig.parse({**SIZES, "encoder_window": 3, "decoder_window": 5}, "test")
    model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
    Bundle(TaskConfig(), model, tokenizer, tokenizer).save(tmp_path / "model", "# Card")
    loaded = Bundle.load(tmp_path / "model").model
    assert isinstance(loaded, Transformer)
    assert (loaded.config.encoder_window, loaded.config.decoder_window) == (3, 5)
    assert loaded.decoder.make_caches([loaded.decoder.project_memory(torch.zeros(1, 1, 16))[0]])[0].window == 5
    old = {name: value for name, value in config.as_dict().items() if "window" not in name}
    without = TransformerConfig.parse(old, "an old folder")
    assert without.encoder_window is without.decoder_window is None
    assert "window" not in str(without.as_dict())


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2"])  # ONNX has windows
@pytest.mark.parametrize("name", ["encoder_window", "decoder_window"])
def test_no_export_ignores_a_window(form: str, name: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer("characters", list("abcdefg"))
    config = TransformerConfig.parse({**SIZES, name: 3}, "test")
    bundle = Bundle(TaskConfig(), build_model(config, tokenizer.vocab_size, tokenizer.vocab_size), tokenizer, tokenizer)
    with pytest.raises(ConfigError, match=f"{name} = 3 cannot be exported to .*; supported: the default"):
        export_to(form, bundle, tmp_path / "out")


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_a_classifier_pools_one_position_of_restricted_attention(pooling: str) -> None:
    """The last block must not compute the pooled position from all keys."""
    model = EncoderClassifier(
        ClassifierConfig.parse(
            {"d_model": 16, "d_ff": 16, "num_heads": 2, "encoder_window": 3, "pooling": pooling}, "t"
        ),
        V,
        3,
    ).eval()
    source = random_tokens(2, 12)
    embedded = model.embed_source(source).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.logits_from(embedded, source).square().sum(), embedded)
    influences = gradient[0].any(1).tolist()
    expected = {"first": [True] * 2 + [False] * 11, "last": [False] * 10 + [True] * 2, "mean": [True] * 12}
    assert influences == expected[pooling]


def test_info_names_the_form_of_restricted_attention() -> None:
    forms = layer_accelerations(accelerate(transformer(encoder_window=3)))
    assert {form.plain_reason for form in forms} == {None}
