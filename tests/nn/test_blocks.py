import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.nn import (
    BlockConfig,
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    PostNorm,
    PreNorm,
    causal_mask,
    padding_mask,
)
from headway.nn.block_config import Activation, Gate, Norm
from headway.nn.blocks import NoNorm
from headway.nn.norms import RMSNorm
from headway.nn.positions import RotaryPositions
from headway.nn.scores import ScoreFunction

D, F_INNER, H = 12, 20, 3
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def randomised(module: ModuleT) -> ModuleT:
    """Initialize all weights at random, including those that start at zero or one."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return module


def layer_norm(x: Tensor, norm: nn.LayerNorm | RMSNorm) -> Tensor:
    assert isinstance(norm, nn.LayerNorm)
    """Ba et al. 2016, equation 4, with PyTorch's epsilon."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


# Feed-forward.


def test_feed_forward_by_hand() -> None:
    layer = FeedForward(1, 2)
    with torch.no_grad():
        layer.inner.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        layer.inner.bias.copy_(torch.tensor([1.0, 0.0]))
        layer.outer.weight.copy_(torch.tensor([[2.0, 3.0]]))
        layer.outer.bias.fill_(0.5)
    # max(0, x + 1) * 2 + max(0, -x) * 3 + 0.5
    x = torch.tensor([[-2.0], [-0.5], [1.0]])
    torch.testing.assert_close(layer(x), torch.tensor([[6.5], [3.0], [4.5]]))


def test_feed_forward_is_two_convolutions_of_kernel_size_1() -> None:
    layer = randomised(FeedForward(D, F_INNER))
    inner, outer = nn.Conv1d(D, F_INNER, 1), nn.Conv1d(F_INNER, D, 1)
    for convolution, linear in ((inner, layer.inner), (outer, layer.outer)):
        convolution.load_state_dict({"weight": linear.weight.detach().unsqueeze(-1), "bias": linear.bias.detach()})
    x = torch.randn(2, 5, D)
    torch.testing.assert_close(layer(x), outer(inner(x.transpose(1, 2)).relu()).transpose(1, 2))


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
        ("silu", lambda x: x / (1 + (-x).exp())),
    ],
)
def test_activations_by_formula(
    activation: Literal["relu", "gelu", "silu"], function: Callable[[Tensor], Tensor]
) -> None:
    layer = randomised(FeedForward(D, F_INNER, activation=activation))
    x = torch.randn(2, 5, D)
    expected = function(x @ layer.inner.weight.T + layer.inner.bias) @ layer.outer.weight.T + layer.outer.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(
    ("activation", "gate"),
    [
        ("glu", lambda x: 1 / (1 + (-x).exp())),
        ("reglu", lambda x: x.clamp(min=0)),
        ("geglu", lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
        ("geglu_tanh", lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2),
        ("swiglu", lambda x: x / (1 + (-x).exp())),
    ],
)
def test_gates_by_formula(activation: Gate, gate: Callable[[Tensor], Tensor]) -> None:
    layer = randomised(GatedFeedForward(D, F_INNER, activation=activation))
    x = torch.randn(2, 5, D)
    inner = gate(x @ layer.gate.weight.T + layer.gate.bias) * (x @ layer.inner.weight.T + layer.inner.bias)
    torch.testing.assert_close(layer(x), inner @ layer.outer.weight.T + layer.outer.bias)


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_inner_dropout_acts_in_training_only(kind: type[FeedForward] | type[GatedFeedForward]) -> None:
    plain, dropping = kind(D, F_INNER), kind(D, F_INNER, dropout=0.5)
    dropping.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, D)
    assert not torch.allclose(dropping(x), plain(x))
    assert torch.equal(dropping.eval()(x), plain(x))


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_feed_forward_starts_by_xaviers_rule(activation: Activation) -> None:
    layer = EncoderBlock(BlockConfig(d_model=48, num_heads=1, d_ff=144, activation=activation)).feed_forward
    bound = math.sqrt(6 / (48 + 144))
    for name, parameter in layer.named_parameters():
        largest = float(parameter.detach().abs().max())
        # 6,912 draws: all of them below 0.99 of the bound has probability 0.99^6912 < 1e-30.
        assert largest == 0 if name.endswith("bias") else 0.99 * bound < largest <= bound * (1 + 1e-6)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "glu", "reglu", "geglu", "swiglu"])
def test_options_choose_the_feed_forward_layer(activation: Activation) -> None:
    layer = EncoderBlock(BlockConfig(d_model=4, num_heads=1, d_ff=8, activation=activation)).feed_forward
    assert isinstance(layer, GatedFeedForward if activation in get_args(Gate) else FeedForward)


# Residual connections.


def test_post_norm_by_formula() -> None:
    residual = randomised(PostNorm(D, 0.0))
    x = torch.randn(2, 3, D)
    torch.testing.assert_close(residual(x, torch.sin), layer_norm(x + x.sin(), residual.norm))


def test_pre_norm_by_formula() -> None:
    residual = randomised(PreNorm(D, 0.0))
    x = torch.randn(2, 3, D)
    torch.testing.assert_close(residual(x, torch.sin), x + layer_norm(x, residual.norm).sin())


def test_no_norm_by_formula() -> None:
    x = torch.randn(2, 3, D)
    torch.testing.assert_close(NoNorm(0.0)(x, torch.sin), x + x.sin())
    assert not list(NoNorm(0.0).parameters())


def test_without_residual_connections_by_formula() -> None:
    x = torch.randn(2, 3, D)
    post, pre = randomised(PostNorm(D, 0.0, residual=False)), randomised(PreNorm(D, 0.0, residual=False))
    torch.testing.assert_close(post(x, torch.sin), layer_norm(x.sin(), post.norm))
    torch.testing.assert_close(pre(x, torch.sin), layer_norm(x, pre.norm).sin())
    torch.testing.assert_close(NoNorm(0.0, residual=False)(x, torch.sin), x.sin())


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_dropout_is_on_the_sublayers_output_alone(norm: Norm) -> None:
    # If nearly all of a sublayer's output is dropped, only the residual path is left, normalized or not.
    config = BlockConfig(d_model=D, num_heads=H, d_ff=F_INNER, norm=norm, dropout=0.999999)
    around = EncoderBlock(config).attention_residual
    x = torch.randn(2, 3, D)
    expected = layer_norm(x, around.norm) if isinstance(around, PostNorm) else x
    torch.testing.assert_close(around(x, torch.cos), expected)
    assert not torch.allclose(around.eval()(x, torch.cos), expected)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_the_options_choose_norms_and_residuals_around_sublayers(norm: Norm, residual: bool) -> None:
    block = DecoderBlock(BlockConfig(d_model=D, num_heads=H, d_ff=F_INNER, norm=norm, residual=residual))
    kind = {"post": PostNorm, "pre": PreNorm, "none": NoNorm}[norm]
    for around in (block.attention_residual, block.cross_attention_residual, block.feed_forward_residual):
        assert type(around) is kind
        assert around.residual is residual


# Blocks against PyTorch's own.


def attention_state(attention: MultiHeadAttention, prefix: str) -> dict[str, Tensor]:
    state = attention.state_dict()
    joined = {
        f"{prefix}.in_proj_{kind}": torch.cat([state[f"{part}.{kind}"] for part in ("query", "key", "value")])
        for kind in ("weight", "bias")
    }
    return joined | {f"{prefix}.out_proj.{kind}": state[f"output.{kind}"] for kind in ("weight", "bias")}


def block_state(block: EncoderBlock | DecoderBlock) -> dict[str, Tensor]:
    """Return the weights of a block under the names of PyTorch's layer with the same order of sublayers."""
    state = attention_state(block.attention, "self_attn")
    residuals = [block.attention_residual, block.feed_forward_residual]
    if isinstance(block, DecoderBlock):
        state |= attention_state(block.cross_attention, "multihead_attn")
        residuals.insert(1, block.cross_attention_residual)
    assert isinstance(block.feed_forward, FeedForward)
    modules: list[tuple[str, nn.Module]] = [
        ("linear1", block.feed_forward.inner),
        ("linear2", block.feed_forward.outer),
    ]
    for place, residual in enumerate(residuals, start=1):
        assert not isinstance(residual, NoNorm)
        modules.append((f"norm{place}", residual.norm))
    return state | {f"{name}.{key}": value for name, module in modules for key, value in module.state_dict().items()}


def options(norm: Norm) -> BlockConfig:
    return BlockConfig(d_model=D, num_heads=H, d_ff=F_INNER, norm=norm)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_block_equals_pytorchs(norm: Norm) -> None:
    block = randomised(EncoderBlock(options(norm)))
    theirs = nn.TransformerEncoderLayer(D, H, F_INNER, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    theirs.load_state_dict(block_state(block))
    x, tokens = torch.randn(2, 5, D), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    expected = theirs(x, src_key_padding_mask=tokens == 0)
    torch.testing.assert_close(block(x, padding_mask(tokens, 0)), expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_block_equals_pytorchs(norm: Norm) -> None:
    # PyTorch's order is fixed: self-attention, cross-attention, feed-forward. With equal weights, another order would
    # give another result, so this test fixes our order.
    block = randomised(DecoderBlock(options(norm)))
    theirs = nn.TransformerDecoderLayer(D, H, F_INNER, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    theirs.load_state_dict(block_state(block))
    x, memory, tokens = torch.randn(2, 4, D), torch.randn(2, 5, D), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    expected = theirs(
        x, memory, tgt_mask=~causal_mask(4).squeeze(0), tgt_is_causal=True, memory_key_padding_mask=tokens == 0
    )
    torch.testing.assert_close(block(x, memory, causal_mask(4), padding_mask(tokens, 0)), expected)


def test_a_block_takes_masks_that_broadcast_over_the_batch() -> None:
    block = EncoderBlock(options("post"))
    x = torch.randn(2, 4, D)
    torch.testing.assert_close(block(x, causal_mask(4)), block(x, causal_mask(4).expand(2, -1, -1)))
    torch.testing.assert_close(block(x, torch.ones(1, 1, 4, dtype=torch.bool)), block(x))


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_stacks_apply_their_blocks_in_turn_and_end_normed(norm: Norm) -> None:
    encoder, decoder = randomised(EncoderStack(2, options(norm))), randomised(DecoderStack(2, options(norm)))
    x, source, mask = torch.randn(2, 4, D), torch.randn(2, 5, D), causal_mask(4)
    memory = encoder.blocks[1](encoder.blocks[0](source))
    hidden = decoder.blocks[1](decoder.blocks[0](x, memory, mask), memory, mask)
    if norm == "pre":
        assert isinstance(encoder.norm, nn.LayerNorm)
        assert isinstance(decoder.norm, nn.LayerNorm)
        torch.testing.assert_close(encoder(source), layer_norm(memory, encoder.norm))
        torch.testing.assert_close(decoder(x, memory, mask), layer_norm(hidden, decoder.norm))
    else:
        torch.testing.assert_close(encoder(source), memory)
        torch.testing.assert_close(decoder(x, memory, mask), hidden)
    if norm == "post":
        last = decoder.blocks[1].feed_forward_residual
        assert isinstance(last, PostNorm)
        unscaled = (hidden - last.norm.bias) / last.norm.weight
        torch.testing.assert_close(unscaled.mean(-1), torch.zeros(2, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [EncoderStack, DecoderStack])
def test_layer_dropout_skips_whole_blocks_only_in_training(kind: type[EncoderStack] | type[DecoderStack]) -> None:
    """At a probability of 0.3, both blocks run in 0.49 of all passes, one of them in 0.21 each, and none in 0.09."""
    stack = randomised(kind(2, BlockConfig(d_model=D, num_heads=H, d_ff=F_INNER, layer_dropout=0.3)))
    x, memory, mask = torch.randn(1, 2, D), torch.randn(1, 3, D), causal_mask(2)
    others = (mask,) if kind is EncoderStack else (memory, mask)
    first, second = stack.blocks
    outcomes = [second(first(x, *others), *others), first(x, *others), second(x, *others), x]
    torch.testing.assert_close(stack.eval()(x, *others), outcomes[0])
    stack.train()
    counts = torch.zeros(4)
    for _ in range(500):
        hidden = stack(x, *others)
        counts += torch.tensor([torch.allclose(hidden, outcome, atol=1e-5) for outcome in outcomes])
    # Five standard deviations of the mean of 500 draws are at most 0.11.
    torch.testing.assert_close(counts / 500, torch.tensor([0.49, 0.21, 0.21, 0.09]), atol=0.11, rtol=0)
    assert counts.sum() == 500


def test_layer_dropout_follows_the_seed() -> None:
    stack = EncoderStack(20, BlockConfig(d_model=D, num_heads=H, d_ff=F_INNER, layer_dropout=0.5))
    x = torch.randn(1, 2, D)
    passes = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        passes.append(stack(x))
    assert torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[0], passes[2])


def test_only_attention_of_a_sequence_to_itself_is_rotary() -> None:
    changes: dict[str, Any] = {"score": "additive", "qk_projection": "hidden", "positions": "rotary", "d_key": 4}
    block = DecoderBlock(BlockConfig(d_model=D, num_heads=H, d_ff=F_INNER, **changes))
    assert isinstance(block.attention.rotary, RotaryPositions)
    assert block.cross_attention.rotary is None
    for attention in (block.attention, block.cross_attention):
        assert isinstance(attention.score, ScoreFunction)
        assert isinstance(attention.query_outer, nn.Linear)


def test_the_options_reach_every_sublayer() -> None:
    block = DecoderBlock(
        BlockConfig(
            d_model=D, num_heads=5, d_ff=7, d_key=4, d_value=2, dropout=0.1, attention_dropout=0.2,
            feed_forward_dropout=0.3, activation="gelu",
        )
    )  # fmt: skip
    for attention in (block.attention, block.cross_attention):
        assert (attention.num_heads, attention.d_key, attention.d_value, attention.dropout.p) == (5, 4, 2, 0.2)
    for residual in (block.attention_residual, block.cross_attention_residual, block.feed_forward_residual):
        assert residual.dropout.p == 0.1
    assert isinstance(block.feed_forward, FeedForward)
    assert block.feed_forward.dropout.p == 0.3
    assert block.feed_forward.activation is F.gelu
    assert block.feed_forward.inner.out_features == 7
