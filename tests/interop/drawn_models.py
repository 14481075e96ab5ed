"""Random models of `transformers` for tests. All weights are large, so that every part affects the results."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headway.interop.huggingface.families import FAMILIES
from headway.models.transformer import Transformer
from headway.weights import named_weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = importlib.import_module("transformers")

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

V = 40
UNKNOWN = 3
SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 48,
}
PREFIXES = {
    "marian": "Marian",
    "m2m_100": "M2M100",
    "bart": "Bart",
    "mbart": "MBart",
    "fsmt": "FSMT",
    "pegasus": "Pegasus",
}
OWN: dict[str, dict[str, Any]] = {
    "marian": {"vocab_size": V, "pad_token_id": V - 1, "decoder_start_token_id": V - 1, "unk_token_id": UNKNOWN},
    "m2m_100": {"vocab_size": V},
    "bart": {"vocab_size": V},
    "mbart": {"vocab_size": V, "decoder_start_token_id": 30},
    "fsmt": {"src_vocab_size": V, "tgt_vocab_size": V + 3},
    "pegasus": {"vocab_size": V, "unk_token_id": UNKNOWN},
}
each_family = pytest.mark.parametrize("family", PREFIXES)


def drawn(family: str, seed: int = 0, **options: Any) -> Any:
    """Return a model of `transformers` with random weights, so that every part affects the results."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{PREFIXES[family]}Config")(**{**SIZES, **OWN[family], **options})
    model = getattr(transformers, FAMILIES[family].architecture)(config).eval()
    learned = family in ("bart", "mbart")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if learned or "embed_positions" not in name:
                weight.copy_(torch.randn_like(weight) * 0.5)
        if FAMILIES[family].has_output_bias:
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def sentences(model: Any, lengths: tuple[int, ...], size: int) -> list[list[int]]:
    """Return random foreign ids without special tokens, except for the end symbol at the end."""
    special = {model.config.pad_token_id, model.config.eos_token_id, model.config.decoder_start_token_id}
    ordinary = [token for token in range(size) if token not in special]
    return [
        [ordinary[int(i)] for i in torch.randint(len(ordinary), (n,))] + [model.config.eos_token_id] for n in lengths
    ]


def padded(rows: list[list[int]], pad: int) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)


def assert_same_weights(model: Transformer, expected: dict[str, Tensor]) -> None:
    weights = named_weights(model)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
