"""Small masked language models and sequence classifiers of `transformers`, with tokenizers in their published forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from causal_models import byte_level
from foreign import corpus, saved, transformers
from tokenizers import models, normalizers, pre_tokenizers, trainers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", SIZES),
    "bert-untied": ("BertConfig", {**SIZES, "tie_word_embeddings": False, "hidden_act": "relu", "layer_norm_eps": 0.1}),
    "roberta": ("RobertaConfig", {**SIZES, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "activation": "relu"},
    ),
    "modernbert": ("ModernBertConfig", {**SIZES, "num_hidden_layers": 5, "local_attention": 8}),
}


def tokenizer(form: str) -> Any:
    """Return a tokenizer in the published form of a family."""
    if form == "roberta":
        learned = json.loads(byte_level())["model"]
        vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *learned["vocab"]])}
        vocabulary["<mask>"] = len(vocabulary)
        return transformers.RobertaTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in learned["merges"]])
    if form == "modernbert":
        library = tokenizers.Tokenizer.from_str(byte_level())
        library.add_special_tokens(SPECIAL)
        ids = [("[CLS]", library.token_to_id("[CLS]")), ("[SEP]", library.token_to_id("[SEP]"))]
        library.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
        )
        names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        tokens = {f"{name}_token": token for name, token in names.items()}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **tokens)
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    return transformers.BertTokenizer(vocab=json.loads(library.to_str())["model"]["vocab"], do_lower_case=True)


def published(name: str, folder: Path, purpose: str = "MaskedLM", **changes: Any) -> tuple[Any, Any]:
    """Write the folder of a model with random weights, and return the model and its tokenizer."""
    kind, options = FAMILIES[name]
    encoder = tokenizer(name)
    ids = {"pad_token_id": encoder.pad_token_id, "vocab_size": len(encoder) + 2}
    if name == "modernbert":
        ends = encoder.cls_token_id, encoder.sep_token_id
        ids |= dict(zip(("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), ends * 2, strict=True))
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**options, **ids, **changes})
    model = getattr(transformers, f"AutoModelFor{purpose}").from_config(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (weight.dim() == 1 and key.endswith("weight")))
    saved(model, encoder, folder)
    return model, encoder
