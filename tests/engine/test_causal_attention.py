"""Causal attention without a (T, T) mask: fast forms compared with the definition, and what PyTorch is asked for."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from fast_and_plain import attention_outcome
from torch import Tensor
from torch.nn import functional as F

from headway import kernels
from headway.engine import attention as fast_attention
from headway.engine.accelerate import accelerate
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import Causal, MultiHeadAttention, causal_mask
from headway.nn.attention import observe_attention

needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
LENGTH = 21
OPTIONS: list[dict[str, Any]] = [
    {},
    {"rotary": True},
    {"dropout": 0.3},
    {"score": "additive"},
    {"num_kv_heads": 1},
    {"num_kv_heads": 2, "qk_norm_epsilon": 1e-6},
    {"window": (2, 0)},
    {"window": (9, 0)},
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fast_and_plain_forms_equal_a_mask_of_all_pairs(
    options: dict[str, Any], long: bool, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``long``: PyTorch's fused attention, as for long sequences, or attention in blocks if there is a window."""
    torch.manual_seed(0)
    plain = MultiHeadAttention(32, 4, **options).train(training)
    layer, x = accelerate(deepcopy(plain)), torch.randn(3, LENGTH, 32)
    assert type(layer) is not MultiHeadAttention
    expected = attention_outcome(plain, x, causal_mask(LENGTH))
    for found, other in zip(attention_outcome(plain, x, Causal()), expected, strict=True):
        assert torch.equal(found, other)
    if long:
        monkeypatch.setattr(fast_attention, "_fused_is_faster", lambda *_: True)
        monkeypatch.setattr("headway.engine.local_attention._MIN_BLOCK", 2)
        monkeypatch.setattr("headway.engine.local_attention._MIN_LENGTH", 1)
    for found, other in zip(attention_outcome(layer, x, Causal()), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_long_sequences_are_left_to_flash_attention(num_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is told that attention is causal, gets no tensor, and repeats no heads."""
    requests: list[tuple[int, dict[str, Any]]] = []
    attend = F.scaled_dot_product_attention

    def record(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        requests.append((key.size(1), options))
        return attend(query, key, value, **options)

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a (T, T) mask was made")

    layer = accelerate(MultiHeadAttention(32, 4, num_kv_heads=num_kv_heads))
    monkeypatch.setattr(fast_attention, "_fused_is_faster", lambda *_: True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    monkeypatch.setattr(Causal, "to_tensor", refuse)
    layer(torch.randn(2, LENGTH, 32), mask=Causal()).sum().backward()
    assert requests == [(num_kv_heads, {"is_causal": True, "enable_gqa": num_kv_heads < 4})]


@needs_kernels
@pytest.mark.parametrize("architecture", ["decoder_only", "transformer"])
def test_models_make_no_mask_of_all_pairs(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoders of both architectures, in training and evaluation, for short and for long sequences."""
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "decoder_layers": 2}
    model: Any
    inputs: tuple[Tensor, ...]
    if architecture == "decoder_only":
        model = DecoderOnly(DecoderOnlyConfig.parse(sizes | {"max_length": 8}, "test"), 11)
        inputs = (torch.randint(4, 11, (2, 8)),)
    else:
        model = Transformer(TransformerConfig.parse(sizes | {"encoder_layers": 1}, "test"), 11, 11)
        inputs = (torch.randint(4, 11, (2, 5)), torch.randint(4, 11, (2, 8)))
    expected = model.eval()(*inputs)

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a (T, T) mask was made")

    accelerate(model)
    monkeypatch.setattr(Causal, "to_tensor", refuse)
    for training, long in ((True, False), (False, True), (True, True)):
        monkeypatch.setattr(fast_attention, "_fused_is_faster", lambda *_, long=long: long)
        found = model.train(training)(*inputs)
        found.sum().backward()
        if not training:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_observed_weights_are_zero_after_the_query() -> None:
    layer = accelerate(MultiHeadAttention(32, 4)).eval()
    seen: list[Tensor] = []
    with observe_attention(lambda _, weights: seen.append(weights)), torch.inference_mode():
        layer(torch.randn(3, LENGTH, 32), mask=Causal())
    assert torch.equal(seen[0] > 0, causal_mask(LENGTH).unsqueeze(1).expand_as(seen[0]))
