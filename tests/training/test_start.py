"""Starting from a model: its weights, and a recipe that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway.bundle import Bundle, TaskConfig
from headway.errors import BundleError, ConfigError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.training.fine_tuning import load_initial_weights
from headway.weights import named_weights

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
TOKENIZER = Tokenizer.train(["a b c d"], TokenizerConfig(kind="whitespace"))


def model(**changes: Any) -> Transformer:
    vocabulary = changes.pop("vocabulary", TOKENIZER.vocab_size)
    return build_model(TransformerConfig.parse({**SIZES, **changes}, "test"), vocabulary, vocabulary)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Bundle(TaskConfig(), model(), TOKENIZER, TOKENIZER).save(tmp_path / "model", "")
    return tmp_path / "model"


def test_training_starts_from_the_weights_of_the_folder(folder: Path) -> None:
    fresh = model(dropout=0.4, layer_dropout=0.2)  # what a model is trained with may differ
    theirs = named_weights(Bundle.load(folder).model)
    assert any(not torch.equal(tensor, theirs[name]) for name, tensor in named_weights(fresh).items())
    load_initial_weights(fresh, folder)
    for name, tensor in named_weights(fresh).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0)
    assert fresh.config.dropout == 0.4


def test_options_that_change_the_meaning_of_weights_must_agree(folder: Path) -> None:
    expected = r"start_from = .*differs: num_heads is 4, but 2 in the model; norm is 'pre', but 'post' in the model"
    with pytest.raises(ConfigError, match=expected):
        load_initial_weights(model(num_heads=4, norm="pre"), folder)


def test_another_vocabulary_is_refused(folder: Path) -> None:
    with pytest.raises(BundleError, match=r"embedding"):
        load_initial_weights(model(vocabulary=50), folder)


def test_the_folder_must_be_a_model(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=str(tmp_path)):
        load_initial_weights(model(), tmp_path)
