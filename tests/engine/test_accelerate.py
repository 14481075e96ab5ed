"""Accelerated and plain models: the same results for each value of each field of each config, and exact recognition."""

from __future__ import annotations

import os
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from config_variants import CONFIGS, undeclared, variants
from fast_and_plain import VOCABULARY, assert_equal_outcomes, assert_fast_where_possible
from torch import Tensor, nn
from torch.nn import functional as F

from headway import kernels
from headway.config import Config
from headway.engine.accelerate import accelerate, compile_blocks, describe_forward_acceleration, layer_accelerations
from headway.engine.attention import KernelMultiHeadAttention, attention_weights, scaled_dot_product_attention
from headway.engine.layers import AutocastDropout, KernelDropout, KernelPostNorm
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import attention as plain_attention
from headway.nn.attention import MultiHeadAttention, observe_attention, record_attention
from headway.nn.block_config import BlockConfig
from headway.nn.blocks import EncoderBlock, FeedForward, PostNorm
from headway.nn.dropout import Dropout

NAMED = [(f"{config.__name__}-{name}", each) for config in CONFIGS for name, each in variants(config)]
EACH = pytest.mark.parametrize("config", [each for _, each in NAMED], ids=[name for name, _ in NAMED])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.mark.parametrize("config", CONFIGS)
def test_each_field_of_each_config_is_compared(config: type[Config]) -> None:
    assert undeclared(config) == [], "give values for these fields in config_variants.py"


@pytest.mark.slow_but_every(7)
@EACH
def test_accelerated_is_plain(config: Config) -> None:
    assert_equal_outcomes(config)


@pytest.mark.slow_but_every(5)
@EACH
def test_every_layer_that_kernels_support_is_fast(config: Any) -> None:
    model = accelerate(build_model(config, VOCABULARY, VOCABULARY))
    assert layer_accelerations(model)
    assert_fast_where_possible(config, model)


# Recognition is exact.


def block(**options: Any) -> EncoderBlock:
    return EncoderBlock(BlockConfig(d_model=8, num_heads=2, d_ff=8, **options))


def test_an_option_that_no_fast_form_knows_keeps_a_layer_plain() -> None:
    layer = block()
    layer.attention.sinks = 3  # type: ignore[assignment]
    layer.feed_forward.clamp = True  # type: ignore[assignment]
    layer.feed_forward_residual.factors = torch.nn.Parameter(torch.ones(8))
    layer.attention_residual.gate = None  # type: ignore[assignment]  # an option that is off
    accelerate(layer)
    assert type(layer.attention) is MultiHeadAttention
    assert type(layer.feed_forward) is FeedForward
    reasons = {form.name: form.plain_reason for form in layer_accelerations(layer)}
    assert reasons["attention"] == "sinks = 3 is not listed in headway/engine/accelerate.py"
    assert reasons["feed_forward"] == "clamp = True is not listed in headway/engine/accelerate.py"
    assert reasons["feed_forward_residual"] == "factors = Parameter is not listed in headway/engine/accelerate.py"
    assert reasons["attention_residual"] is None


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba")
@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({}, ""),
        ({"score": "dot"}, "; 1 MultiHeadAttention compute scores and weights separately (score)"),
        ({"qk_norm": True}, "; 1 MultiHeadAttention train in several operations (query_norm, key_norm)"),
        ({"d_value": 5}, "; 1 MultiHeadAttention train in several operations (unequal widths)"),
    ],
)
def test_what_runs_is_described(options: dict[str, Any], ending: str) -> None:
    described = describe_forward_acceleration(block(**options))
    assert re.fullmatch(r"(\d+) of \1 layers have a fast form" + re.escape(ending), described)


def test_compiled_code_is_cached_in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code in PyTorch's default folder, among the temporary files, may be anybody's."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "chosen")
    compile_blocks([])
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "chosen"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_blocks([])
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "headway" / "inductor")


def test_a_type_that_no_fast_form_knows_stays_plain() -> None:
    class Scaled(PostNorm):
        """A layer from other code."""

    class RMSNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.square().mean(-1, keepdim=True).sqrt()

    layer = block()
    layer.attention_residual = Scaled(8, 0.1)
    assert isinstance(layer.feed_forward_residual, PostNorm)
    layer.feed_forward_residual.norm = RMSNorm()  # type: ignore[assignment]
    x, expected = torch.randn(2, 3, 8), deepcopy(layer)
    accelerate(layer)
    assert type(layer.attention_residual) is Scaled
    assert type(layer.feed_forward_residual) is PostNorm
    reasons = {form.name: form.plain_reason for form in layer_accelerations(layer)}
    assert reasons["attention_residual"] == "unknown type Scaled"
    assert reasons["feed_forward_residual"] == "norm = RMSNorm has no fast form"
    torch.testing.assert_close(layer.eval()(x), expected.eval()(x))


def test_layers_stay_the_same_objects_with_the_same_weights() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.preset("tiny", d_model=16, num_heads=2, d_ff=16), 9, 9)
    modules, parameters = list(model.modules()), dict(model.named_parameters())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert accelerate(model) is model
    assert list(model.modules()) == modules
    assert list(model.named_parameters()) == list(parameters.items())
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert type(model.embedding_dropout) is AutocastDropout
    types = [type(module) for module in modules]
    assert [type(module) for module in accelerate(model).modules()] == types
    model.load_state_dict(state)


def test_without_kernels_an_accelerated_model_computes_the_plain_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_available", lambda: False)
    assert_equal_outcomes(variants(TransformerConfig)[0][1])


# Hooks.


@pytest.mark.parametrize("place", ["attention.projection", "feed_forward.dropout", "feed_forward.inner"])
def test_hooks_on_parts_of_a_fused_layer_are_called(place: str) -> None:
    layer, x, calls = accelerate(block(feed_forward_dropout=0.1)).train(), torch.randn(2, 3, 8), []
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    torch.manual_seed(0)
    expected = layer(x, mask)
    layer.get_submodule(place).register_forward_hook(lambda *_: calls.append(place))
    torch.manual_seed(0)
    torch.testing.assert_close(layer(x, mask), expected)
    assert calls == [place]


@pytest.fixture(params=[False, True], ids=["explicit", "fused"])
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force the explicit product, or PyTorch's fused attention."""
    monkeypatch.setattr("headway.engine.attention._fused_is_faster", lambda *_: request.param)


@pytest.mark.usefixtures("fused")
def test_an_observer_sees_the_weights_and_changes_no_bit() -> None:
    module = accelerate(MultiHeadAttention(8, 2)).eval()
    assert type(module) is KernelMultiHeadAttention
    x, memory, mask = torch.randn(3, 4, 8), torch.randn(3, 6, 8), torch.rand(3, 4, 6) < 0.6
    mask[..., 0] = True
    without = module(x, memory, mask=mask)
    with record_attention(module) as seen:
        observed = module(x, memory, mask=mask)
    module(x, memory, mask=mask)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(3, 2, 4))
    assert (seen[0].masked_select(~mask.unsqueeze(1)) == 0).all()
    assert torch.equal(observed, without)


@pytest.mark.usefixtures("fused")
def test_an_observer_may_replace_the_weights() -> None:
    module, x = accelerate(MultiHeadAttention(8, 2)), torch.randn(1, 4, 8)
    with observe_attention(lambda _module, weights: torch.zeros_like(weights)):
        torch.testing.assert_close(module(x), module.output.bias.expand(1, 4, 8))


# Attention functions.


@pytest.mark.usefixtures("fused")
@TYPES
@pytest.mark.parametrize("shape", [None, (2, 1, 7, 9), (2, 1, 1, 9), (1, 1, 7, 9), (7, 9), (9,)])
def test_attention_is_the_plain_attention(dtype: torch.dtype, shape: tuple[int, ...] | None) -> None:
    query, key, value = (torch.randn(2, 3, n, k, dtype=dtype, requires_grad=True) for n, k in ((7, 8), (9, 8), (9, 6)))
    mask = None if shape is None else torch.rand(*shape) < 0.6
    if mask is not None:
        mask.view(-1, 9)[-1] = False  # nothing to attend to
    upstream, found = torch.randn(2, 3, 7, 6, dtype=dtype), []
    for function in (scaled_dot_product_attention, plain_attention.scaled_dot_product_attention):
        output = function(query, key, value, mask)
        found.append([output, *torch.autograd.grad(output, (query, key, value), upstream)])
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, atol=tolerance, rtol=tolerance)
    weights = attention_weights(query, key, mask)
    torch.testing.assert_close(weights, plain_attention.attention_weights(query, key, mask), atol=tolerance, rtol=0)


def test_many_keys_take_the_fused_attention_and_agree() -> None:
    query, key = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 1024, 8)
    expected = plain_attention.scaled_dot_product_attention(query, key, key)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, key), expected)
    torch.testing.assert_close(expected, F.scaled_dot_product_attention(query, key, key))


# Dropout.


@TYPES
@pytest.mark.parametrize("p", [0.1, 0.5, 0.97])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 5, 30)])
def test_plain_and_accelerated_dropout_are_equal_bit_for_bit(
    shape: tuple[int, ...], p: float, dtype: torch.dtype
) -> None:
    x, upstream, found = torch.randn(*shape).to(dtype), torch.randn(*shape).to(dtype), []
    for kind in (Dropout, KernelDropout):
        torch.manual_seed(3)
        inputs = x.clone().requires_grad_()
        output = kind(p).train()(inputs)
        found.append((output, *torch.autograd.grad(output, inputs, upstream), torch.get_rng_state()))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_fused_residuals_drop_the_same_elements() -> None:
    x, y = torch.randn(2, 3, 10), torch.randn(2, 3, 10)
    outputs = []
    for kind in (PostNorm, KernelPostNorm):
        torch.manual_seed(3)
        outputs.append(kind(10, 0.4).train()(x, lambda _: y))
    torch.testing.assert_close(*outputs)
