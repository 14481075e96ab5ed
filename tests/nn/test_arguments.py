"""Layers, losses and models that are called by hand: a wrong tensor raises an error that names it, never PyTorch's."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import headway.models
import headway.nn
from headway.errors import ConfigError, ShapeError
from headway.models import (
    ClassifierConfig,
    DecoderOnly,
    DecoderOnlyConfig,
    EncoderClassifier,
    MaskedConfig,
    MaskedTransformer,
    RecurrentConfig,
    RecurrentLM,
    RecurrentLMConfig,
    RecurrentModel,
    SequenceClassifier,
    SequenceClassifierConfig,
    Transformer,
    TransformerConfig,
)
from headway.nn import (
    AttentionPooling,
    BahdanauDecoder,
    BlockConfig,
    Causal,
    DecoderBlock,
    DecoderStack,
    DocumentMask,
    Dropout,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    FixedVectorDecoder,
    GatedFeedForward,
    LearnedPositions,
    LuongDecoder,
    MultiHeadAttention,
    NoNorm,
    NoPositions,
    Pooling,
    PostNorm,
    PreNorm,
    RecurrentAttention,
    RecurrentEncoder,
    RecurrentLayer,
    RelativeBias,
    ResidualConvolution,
    RotaryPositions,
    ScoreFunction,
    SinusoidalPositions,
    TokenEmbedding,
    attention_weights,
    causal_mask,
    label_smoothed_cross_entropy,
    make_score,
    padding_mask,
    projected_cross_entropy,
    scaled_dot_product_attention,
)

B, S, T, D, H, V = 3, 5, 4, 8, 2, 11
CONFIG = BlockConfig(d_model=D, num_heads=H, d_ff=16)
PRE_NORM = BlockConfig(d_model=D, num_heads=H, d_ff=16, norm="pre", norm_kind="rms", activation="swiglu")
X, MEMORY, MASK = torch.randn(B, T, D), torch.randn(B, S, D), causal_mask(T).expand(B, T, T)
MEMORY_MASK = torch.ones(B, 1, S, dtype=torch.bool)
TOKENS, TARGET = torch.randint(1, V, (B, S)), torch.randint(1, V, (B, T))
LENGTHS = torch.tensor([5, 3, 1])
BLOCKS: dict[str, Any] = {"d_model": D, "num_heads": H, "d_ff": 16, "max_length": 16}
RECURRENT: dict[str, Any] = {"layers": 1, "dropout": 0.0}


def encoder() -> RecurrentEncoder:
    return RecurrentEncoder("gru", 6, D, bidirectional=True, vector_pooling="final", **RECURRENT)


def decoding(decoder: Any) -> Callable[..., Any]:
    """Return a function of the target's embeddings alone, with the state after an encoded source."""
    state = decoder.initial_state(encoder()(torch.randn(B, S, 6), LENGTHS))
    return lambda y: decoder(y, state)


def attending() -> Callable[..., Any]:
    attention = RecurrentAttention(D, "general")
    memory = attention.encode_memory(encoder()(torch.randn(B, S, 6), LENGTHS))
    return lambda query: attention(query, memory)


def reading(layer: RecurrentLayer) -> Callable[..., Any]:
    return lambda x, state: layer(x, (state,))


def residual(norm: Any) -> Callable[..., Any]:
    return lambda x: norm(x, torch.relu)


# What to call, a valid argument for each tensor, and the changed arguments that are valid, too.
ANY_DIMENSIONS = {"fewer", "more"}
CASES: list[tuple[Any, Callable[..., Any], dict[str, Tensor], set[str]]] = [
    (attention_weights, attention_weights, {"query": X, "key": MEMORY, "mask": torch.ones(B, T, S) > 0}, set()),
    (
        scaled_dot_product_attention,
        scaled_dot_product_attention,
        {"query": X, "key": MEMORY, "value": torch.randn(B, S, 3), "mask": torch.ones(B, T, S) > 0},
        {"value wider"},
    ),
    (MultiHeadAttention, MultiHeadAttention(D, H), {"x": X, "mask": MASK}, set()),
    (MultiHeadAttention, MultiHeadAttention(D, H), {"x": X, "memory": MEMORY, "mask": MEMORY_MASK}, set()),
    (MultiHeadAttention, MultiHeadAttention(D, H, window=(1, 1), rotary=True), {"x": X, "mask": MASK}, set()),
    (MultiHeadAttention, MultiHeadAttention(D, H).project_queries, {"x": X}, set()),
    (MultiHeadAttention, MultiHeadAttention(D, H).project_memory, {"memory": MEMORY}, set()),
    (MultiHeadAttention, MultiHeadAttention(D, H).project, {"x": X}, set()),
    (FeedForward, FeedForward(D, 16), {"x": X}, ANY_DIMENSIONS),
    (GatedFeedForward, GatedFeedForward(D, 16), {"x": X}, ANY_DIMENSIONS),
    (PostNorm, residual(PostNorm(D, 0.0)), {"x": X}, set()),
    (PreNorm, residual(PreNorm(D, 0.0)), {"x": X}, set()),
    (NoNorm, residual(NoNorm(0.0)), {"x": X}, {"x wider"}),
    *(
        case
        for config in (CONFIG, PRE_NORM)
        for case in (
            (EncoderBlock, EncoderBlock(config), {"x": X, "mask": MASK}, set[str]()),
            (EncoderStack, EncoderStack(2, config), {"x": X, "mask": MASK}, set[str]()),
            (
                DecoderBlock,
                DecoderBlock(config),
                {"x": X, "memory": MEMORY, "mask": MASK, "memory_mask": MEMORY_MASK},
                set[str](),
            ),
            (
                DecoderStack,
                DecoderStack(2, config),
                {"x": X, "memory": MEMORY, "mask": MASK, "memory_mask": MEMORY_MASK},
                set[str](),
            ),
        )
    ),
    (ResidualConvolution, ResidualConvolution(D, 3), {"x": X, "mask": torch.ones(B, T) > 0}, set()),
    (Dropout, Dropout(0.0), {"x": X}, {"fewer", "more", "x wider", "x other type"}),
    (TokenEmbedding, TokenEmbedding(V, D), {"tokens": TOKENS}, {"tokens wider"}),
    (SinusoidalPositions, SinusoidalPositions(D), {"x": X}, set()),
    (LearnedPositions, LearnedPositions(D, 16), {"x": X}, set()),
    (NoPositions, NoPositions(), {"x": X}, {"fewer", "more", "x wider", "x other type"}),
    (RotaryPositions, RotaryPositions(D), {"x": X[:, None]}, set()),
    (RelativeBias, RelativeBias(H), {"distances": torch.arange(12).view(3, 4)}, {"more", "distances wider"}),
    (Pooling, Pooling("mean_max", D), {"x": X, "mask": torch.ones(B, T) > 0}, set()),
    (Pooling, Pooling("last", D), {"x": X, "mask": torch.ones(B, T) > 0}, set()),
    (AttentionPooling, AttentionPooling(D), {"x": X, "mask": torch.ones(B, T) > 0}, set()),
    (RecurrentLayer, reading(RecurrentLayer("gru", D, 6)), {"x": X, "state": torch.zeros(B, 6)}, set()),
    (RecurrentEncoder, encoder(), {"x": torch.randn(B, S, 6), "lengths": LENGTHS}, set()),
    (RecurrentAttention, attending(), {"query": X}, set()),
    (FixedVectorDecoder, decoding(FixedVectorDecoder("lstm", 6, D, every_step=True, **RECURRENT)),
     {"y": torch.randn(B, T, 6)}, set()),
    (FixedVectorDecoder, decoding(FixedVectorDecoder("gru", 6, D, every_step=False, **RECURRENT)),
     {"y": torch.randn(B, T, 6)}, set()),
    (BahdanauDecoder, decoding(BahdanauDecoder("gru", 6, D, score="additive", **RECURRENT)),
     {"y": torch.randn(B, T, 6)}, set()),
    (LuongDecoder, decoding(LuongDecoder("gru", 6, D, score="dot", input_feeding=True, **RECURRENT)),
     {"y": torch.randn(B, T, 6)}, set()),
    *(
        (ScoreFunction, make_score(kind, D, H), {"query": torch.randn(B, H, T, D), "key": torch.randn(B, H, S, D)},
         set[str]())
        for kind in ("dot", "general", "additive", "cosine")
    ),
    (label_smoothed_cross_entropy, lambda **given: label_smoothed_cross_entropy(smoothing=0.1, **given),
     {"logits": torch.randn(B, V), "targets": torch.tensor([1, 0, 3]), "prior": torch.full((V,), 1 / V)}, set()),
    (projected_cross_entropy, projected_cross_entropy,
     {"hidden": torch.randn(B, D), "weight": torch.randn(V, D), "targets": torch.tensor([1, 0, 3])},
     {"weight another batch"}),
    (Transformer, Transformer(TransformerConfig(**{**BLOCKS, "positions": "learned"}), V, V),
     {"source": TOKENS, "target": TARGET}, {"source wider", "target wider"}),
    (Transformer, Transformer(TransformerConfig(d_model=D, num_heads=H, d_ff=16), V, V).decode,
     {"target": TARGET, "memory": MEMORY, "source_mask": MEMORY_MASK}, {"target wider"}),
    (Transformer, Transformer(TransformerConfig(d_model=D, num_heads=H, d_ff=16), V, V).encode,
     {"source": TOKENS, "source_mask": MEMORY_MASK}, set()),
    (DecoderOnly, DecoderOnly(DecoderOnlyConfig(**BLOCKS), V), {"tokens": TOKENS}, {"tokens wider"}),
    (MaskedTransformer, MaskedTransformer(MaskedConfig(**BLOCKS, num_segments=2), V),
     {"tokens": TOKENS, "segments": torch.zeros(B, S, dtype=torch.long)}, set()),
    (RecurrentModel, RecurrentModel(RecurrentConfig(d_model=D), V, V), {"source": TOKENS, "target": TARGET},
     {"source wider", "target wider"}),
    (RecurrentLM, RecurrentLM(RecurrentLMConfig(d_model=D), V), {"tokens": TOKENS}, {"tokens wider"}),
    (EncoderClassifier, EncoderClassifier(ClassifierConfig(**BLOCKS), V, 3), {"source": TOKENS}, {"source wider"}),
    (SequenceClassifier, SequenceClassifier(SequenceClassifierConfig(body=MaskedConfig(**BLOCKS)), V, 3),
     {"source": TOKENS}, {"source wider"}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    """Turn off jaxtyping's own checks, which only run in tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def changed(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if tensor.dtype == torch.bool:  # fewer dimensions broadcast
        yield "of numbers", tensor.float()
        yield "of integers", tensor.long()
        yield "more", tensor[None, None]
        yield "wider", torch.cat([tensor, tensor], -1)
        return
    yield "fewer", tensor[0]
    yield "more", tensor[None]
    yield "wider", torch.cat([tensor, tensor[..., :1]], -1)
    yield "other type", tensor.long() if tensor.is_floating_point() else tensor.float()
    yield "another batch", torch.cat([tensor, tensor])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_a_wrong_tensor_is_named(case: tuple[Any, Callable[..., Any], dict[str, Tensor], set[str]]) -> None:
    _, call, arguments, accepted = case
    call(**arguments)
    for name, tensor in arguments.items():
        for change, wrong in changed(tensor):
            if {change, f"{name} {change}"} & accepted or (change == "another batch" and len(arguments) == 1):
                continue
            with pytest.raises(ShapeError, match="; expected ") as caught:
                call(**{**arguments, name: wrong})
            if change in ("of numbers", "of integers", "other type"):
                assert caught.value.where == name
            else:  # it may be the other argument that does not fit
                assert caught.value.where in arguments


def test_every_public_layer_and_model_is_tried() -> None:
    tried = {case[0] for case in CASES}
    for module in (headway.nn, headway.models):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and issubclass(value, nn.Module) and "forward" in vars(value):
                assert value in tried, name


def test_messages_say_what_was_given_and_expected() -> None:
    layer = MultiHeadAttention(512, 8)
    with pytest.raises(ShapeError) as caught:
        layer(torch.zeros(2, 10, 256))
    expected = "floating-point numbers of the shape (batch, length, 512)"
    assert str(caught.value) == f"x: a tensor of float32 with the shape (2, 10, 256); expected {expected}"
    with pytest.raises(ShapeError, match=r"memory: .*\(3, 7, 512\); expected .* \(2, length, 512\)$"):
        layer(torch.zeros(2, 10, 512), torch.zeros(3, 7, 512))
    with pytest.raises(
        ShapeError, match=r"mask: a tensor of float32 .*; expected booleans; True means .*mask\.bool\(\)"
    ):
        layer(torch.zeros(2, 10, 512), mask=torch.ones(10, 10))
    with pytest.raises(ShapeError, match=r"mask: .*\(2, 10\); expected .* \(2, 7, 10\); use mask\.unsqueeze\(1\)"):
        layer(torch.zeros(2, 7, 512), torch.zeros(2, 10, 512), mask=torch.ones(2, 10) > 0)
    with pytest.raises(ShapeError, match=r"mask: .*\(2, 1, 7, 10\); .*; all heads share one mask"):
        layer(torch.zeros(2, 7, 512), torch.zeros(2, 10, 512), mask=torch.ones(2, 1, 7, 10) > 0)
    with pytest.raises(ShapeError, match=r"mask: a list, not a tensor"):
        layer(torch.zeros(2, 7, 512), mask=[1, 1])


@pytest.mark.parametrize("mask", [Causal(), DocumentMask(torch.zeros(B, T, dtype=torch.long))])
def test_masks_of_one_sequence_refuse_a_memory(mask: Any) -> None:
    layer = MultiHeadAttention(D, H)
    layer(X, mask=mask)
    with pytest.raises(ShapeError, match="mask: a mask of 3 x 4 positions for 3 x 4 queries and 5 keys"):
        layer(X, MEMORY, mask=mask)


def test_the_parts_of_a_layer_are_called_by_hand_too() -> None:
    layer = MultiHeadAttention(D, H)
    for mask, message in (
        (torch.ones(T, T), "expected booleans"),
        (torch.ones(B, 1, T, T) > 0, "heads share one mask"),
    ):
        with pytest.raises(ShapeError, match=message):
            layer.attend(*layer.project(X), mask)
    with pytest.raises(ShapeError, match=r"mask: a mask of 1 x 4 positions for 3 x 4 queries"):
        layer(X, mask=DocumentMask(torch.zeros(1, T, dtype=torch.long)))
    with pytest.raises(ShapeError, match=r"tokens: .*\(5,\); expected integers of the shape \(batch, length\)"):
        padding_mask(TOKENS[0], 0)
    with pytest.raises(ConfigError, match="'dotted' is not a score function; expected 'scaled_dot' or"):
        make_score("dotted", D)


def test_numbers_outside_the_vocabulary_are_named() -> None:
    with pytest.raises(ShapeError, match=r"tokens: contains the number 11; expected 0 to 10"):
        TokenEmbedding(V, D)(torch.tensor([[1, 11]]))
    with pytest.raises(ShapeError, match=r"targets: contains the number -1; expected 0 to 10"):
        label_smoothed_cross_entropy(torch.zeros(1, V), torch.tensor([-1]))


def test_nothing_is_checked_while_a_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((torch.compiler, "is_compiling"), (torch.jit, "is_tracing")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: True)
            with pytest.raises(RuntimeError, match="mat1 and mat2"):
                FeedForward(D, 16)(torch.zeros(2, D + 1))


@pytest.mark.slow
def test_a_traced_and_an_exported_block_have_other_sizes_than_the_example() -> None:
    """Checks of sizes would warn, and fix the sizes of what is traced."""
    block, mask = EncoderBlock(CONFIG).eval(), padding_mask(TARGET, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch.jit itself
        traced: Any = torch.jit.trace(block, (X, mask), check_trace=False)  # type: ignore[no-untyped-call]
    longer = torch.randn(1, 9, D)
    torch.testing.assert_close(traced(longer, torch.ones(1, 1, 9) > 0), block(longer))
    program = torch.export.export(block, (X, mask), strict=False)
    torch.testing.assert_close(program.module()(X, mask), block(X, mask))
