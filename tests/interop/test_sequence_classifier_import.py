"""Imported sequence classifiers compute the same logits as in `transformers`, and `headway classify` uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from masked_models import FAMILIES, published
from safetensors.torch import load_file, save_file

from headway.cli.commands.import_ import import_
from headway.errors import BundleError, ConfigError
from headway.interop.importing import import_classifier, import_from
from headway.models.sequence_classifier import SequenceClassifier
from headway.predict.classification.classifier import Classifier, load_classifier
from headway.text.base import EOS, PAD

LABELS = ["negative", "so so", "positive"]
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in FAMILIES if name != "bert-untied"},
    "bert-relu": ("bert", {"hidden_act": "relu", "layer_norm_eps": 0.1, "classifier_dropout": 0.4}),
    "modernbert-mean": ("modernbert", {"classifier_pooling": "mean", "classifier_activation": "relu"}),
    "modernbert-bias": ("modernbert", {"classifier_bias": True, "classifier_activation": "tanh"}),
}
TEXTS = ["der kleine Frosch schläft.", "the BIG dog, naïve café!", "a", "wir sehen 2024 漢字 unseen " * 20]


def classifier(name: str, folder: Path) -> tuple[Any, Any]:
    """Write the folder of a classifier with random weights, and return the model and its tokenizer."""
    family, changes = CLASSIFIERS[name]
    return published(family, folder, "SequenceClassification", id2label=dict(enumerate(LABELS)), **changes)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_and_labels_are_the_same(name: str, tmp_path: Path) -> None:
    model, encoder = classifier(name, tmp_path / "hf")
    import_(f"huggingface:{tmp_path / 'hf'}", tmp_path / "ours")
    ours = load_classifier(tmp_path / "ours")
    assert ours.labels == tuple(LABELS)
    limit = ours.bundle.model.max_length + 1
    encoder.model_max_length = limit
    batch = encoder(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        rows = [[*ours.bundle.tokenizer.encode(text)[: limit - 2], EOS] for text in TEXTS]
        width = max(map(len, rows))
        found = ours.bundle.model(torch.tensor([row + [PAD] * (width - len(row)) for row in rows]))
    assert (found - expected).abs().max() <= 1e-4
    assert expected.std() > 0.3
    results = ours.classify(TEXTS)
    for result, probabilities in zip(results, expected.softmax(1).tolist(), strict=True):
        assert list(result.probabilities.values()) == pytest.approx(probabilities, abs=1e-4)
    assert [result.label for result in results] == [LABELS[index] for index in expected.argmax(1).tolist()]


def test_the_dropout_before_the_projection_is_kept(tmp_path: Path) -> None:
    classifier("bert-relu", tmp_path / "bert")
    classifier("distilbert", tmp_path / "distilbert")
    found = [import_classifier(tmp_path / name).bundle.model for name in ("bert", "distilbert")]
    assert all(isinstance(model, SequenceClassifier) for model in found)
    assert [model.config.pooled_dropout for model in found] == [0.4, 0.2]


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes a key."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_older_files(tmp_path: Path) -> None:
    """They have keys of their time in config.json, number the labels without naming them, and RoBERTa has a pooler."""
    classifier("roberta", tmp_path)
    expected = import_classifier(tmp_path).bundle
    pooler = {"roberta.pooler.dense.weight": torch.ones(32, 32), "roberta.pooler.dense.bias": torch.ones(32)}
    save_file(load_file(tmp_path / "model.safetensors") | pooler, tmp_path / "model.safetensors")
    old = {"output_past": True, "directionality": "bidi", "pooler_type": "first_token_transform", "_num_labels": 3}
    edit(tmp_path, id2label=None, label2id=None, problem_type=None, **old)
    found = import_classifier(tmp_path).bundle
    assert found.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    named, numbered = (Classifier(each).classify(TEXTS) for each in (expected, found))
    assert [[*each.probabilities.values()] for each in named] == [[*each.probabilities.values()] for each in numbered]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"problem_type": "multi_label_classification"}, "problem_type = 'multi_label_classification' is not"),
        ("bert", {"problem_type": "regression"}, "problem_type = 'regression' is not supported; expected 'single_la"),
        ("bert", {"id2label": {"0": "score"}}, "one label predicts a number"),
        ("bert", {"id2label": {"0": "a", "2": "b"}}, "expected a name for each number from 0"),
        ("bert", {"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label contains the name 'a' twice"),
        ("bert", {"id2label": {"0": "a", "1": "b"}}, r"'classifier.*' has shape \[3.*requires \[2"),
        ("bert", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "relative_key" is not'),
        ("bert", {"is_decoder": True}, "is_decoder = true is not supported; expected false for BERT"),
        ("roberta", {"is_decoder": True}, "is_decoder = true is not supported; expected false for RoBERTa"),
        ("bert", {"embedding_size": 16}, "embedding_size = 16 is not supported for BERT"),
        ("distilbert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds = true is not supported"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling = 'max' is not supported; supported: cls, m"),
        ("modernbert", {"classifier_activation": "silu"}, "classifier_activation = 'silu' is not supported; supported"),
        ("modernbert", {"norm_bias": True}, "norm_bias = true is not supported; expected false for ModernBERT"),
        ("bert", {"architectures": ["GPT2ForSequenceClassification"], "model_type": "gpt2"}, "supported sequence cl"),
        ("bert", {"architectures": ["BertForTokenClassification"]}, "expected BertForMaskedLM for BERT"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    classifier(name, tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(BundleError, match=message):
        import_from(f"huggingface:{tmp_path}")


def test_a_classifier_has_no_languages(tmp_path: Path) -> None:
    classifier("bert", tmp_path)
    with pytest.raises(ConfigError, match="a classifier has no languages to choose"):
        import_from(f"huggingface:{tmp_path}", target_language="de")
