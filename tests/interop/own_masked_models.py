"""Masked language models of Headway with random weights, in the forms that can be exported, and classifiers on them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import torch
from foreign import corpus

from headway.bundle import ClassifierBundle, MaskedLanguageModelBundle, TaskConfig
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.text.base import MASK
from headway.text.tokenizer import Tokenizer, TokenizerConfig

RECIPE = tomllib.loads((Path(__file__).parents[2] / "recipes/books-bert.toml").read_text())["model"]
TEXTS = ["der kleine Frosch schläft.", "a", "the big dog runs over the house and sleeps under the tree", "naïve é"]
LABELS = ("negative", "so so", "positive")
SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24, "encoder_layers": 4, "max_length": 64}
MODERN: dict[str, Any] = {"norm": "pre", "bias": "none", "activation": "geglu", "positions": "rotary"}
LOCAL: dict[str, Any] = {**MODERN, "encoder_window": 5, "global_every": 3}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"num_segments": 2, "norm_epsilon": 1e-12}),
    "bert-without-segments": ("bert", {"activation": "gelu_tanh", "tie": "none", "norm_epsilon": 0.1}),
    "bert-without-output-bias": ("bert", {"activation": "relu", "output_bias": False}),
    "modernbert": ("modernbert", {**LOCAL, "local_rotary_base": 50.0, "rotary_base": 900.0}),
    "modernbert-one-base": ("modernbert", {**LOCAL, "rotary_base": 50.0, "activation": "swiglu", "tie": "none"}),
    "modernbert-itself": ("modernbert", {**LOCAL, "encoder_window": 1, "output_bias": False}),
    "modernbert-global": ("modernbert", {**MODERN, "norm_epsilon": 0.1}),
    "books-bert.toml": ("modernbert", {key: value for key, value in RECIPE.items() if key not in SIZES}),
}


def bpe() -> Tokenizer:
    """Return a byte-level tokenizer."""
    return Tokenizer.train(corpus(), TokenizerConfig(vocab_size=330), tags=[MASK])


def drawn(model: Any) -> Any:
    """Give a model random weights, so large that every part affects the logits."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (weight.dim() == 1 and name.endswith("weight")))
    return model.eval()


def made(tokenizer: Any = None, **options: Any) -> MaskedLanguageModelBundle:
    """Return a model with these options, and a tokenizer of bytes unless one is given."""
    tokenizer = tokenizer or bpe()
    model = MaskedTransformer(MaskedConfig.parse({**SIZES, **options}, "model"), tokenizer.vocab_size)
    return MaskedLanguageModelBundle(TaskConfig(kind="masked_language_model"), drawn(model), tokenizer)


def classifier(body: dict[str, Any], **options: Any) -> ClassifierBundle:
    """Return a classifier on a masked language model, or on a decoder-only one if ``body`` has this kind."""
    tokenizer, sizes = bpe(), {"kind": "masked", **SIZES}
    if body.get("kind") == "decoder_only":
        sizes["decoder_layers"] = sizes.pop("encoder_layers")
    config = SequenceClassifierConfig.parse({"body": {**sizes, **body}, **options}, "model")
    model = drawn(SequenceClassifier(config, tokenizer.vocab_size, len(LABELS)))
    return ClassifierBundle(TaskConfig(kind="classification"), model, tokenizer, LABELS)
