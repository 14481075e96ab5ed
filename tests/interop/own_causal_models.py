"""Decoder-only language models of Headway with random weights, in the forms that can be exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bundle import LanguageModelBundle, TaskConfig
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.text.tokenizer import Tokenizer, TokenizerConfig

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24, "decoder_layers": 2, "max_length": 40}
LLAMA: dict[str, Any] = {"norm_kind": "rms", "bias": "none", "activation": "swiglu", "positions": "rotary"}
YARN = {"kind": "yarn", "factor": 4.0, "original_length": 8}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_length": 16, "low_frequency_factor": 1.5}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie": "none", "activation": "gelu_tanh", "norm_epsilon": 0.1}),
    "neox": ("gpt_neox", {"positions": "rotary", "rotary_fraction": 0.5, "rotary_base": 300.0, "parallel": True}),
    "neox-sequential": ("gpt_neox", {"positions": "rotary", "rotary_scaling": {"kind": "linear", "factor": 2.0}}),
    "llama": ("llama", {**LLAMA, "num_kv_heads": 2, "tie": "none"}),
    "llama-biases": ("llama", {**LLAMA, "bias": "all", "rotary_scaling": LLAMA3, "activation": "geglu"}),
    "mistral": ("mistral", {**LLAMA, "decoder_window": 5, "d_key": 6, "d_value": 6, "rotary_scaling": YARN}),
    "qwen2": ("qwen2", {**LLAMA, "bias": "qkv", "decoder_window": 5}),
    "qwen3": ("qwen3", {**LLAMA, "qk_norm": True, "d_key": 6, "d_value": 6}),
    "qwen3-window": ("qwen3", {**LLAMA, "qk_norm": True, "decoder_window": 5, "num_kv_heads": 1}),
}


def made(tokenizer: Any = None, **options: Any) -> LanguageModelBundle:
    """Return a model with random weights, so that every part affects the logits."""
    tokenizer = tokenizer or Tokenizer.train(["ab abc abj éa"], TokenizerConfig(vocab_size=300))
    torch.manual_seed(0)
    model = DecoderOnly(DecoderOnlyConfig.parse({**SIZES, **options}, "model"), tokenizer.vocab_size)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    return LanguageModelBundle(TaskConfig(kind="language_model"), model.eval(), tokenizer)


def logits(model: Any, ids: list[int]) -> Tensor:
    """Return the logits of a model of Headway or of `transformers` for one text."""
    with torch.inference_mode():
        found = model(torch.tensor([ids]))
    return found[0] if isinstance(found, Tensor) else found.logits[0]
