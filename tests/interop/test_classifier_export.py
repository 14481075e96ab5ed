"""Exported classifiers: `transformers` and onnxruntime compute the same logits as Headway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from drawn_models import transformers
from torch import Tensor

from headway.bundle import ClassifierBundle, TaskConfig
from headway.errors import BundleError, ConfigError
from headway.interop import onnx_layers
from headway.interop.exporting import export_to
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.predict.classification.classifier import Classifier
from headway.text.base import PAD
from headway.text.tokenizer import Tokenizer, TokenizerConfig

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 24, "encoder_layers": 2, "max_length": 12}
CASES: list[dict[str, Any]] = [
    {},
    {"norm": "post", "activation": "gelu", "pooling": "max", "positions": "learned"},
    {"norm": "none", "activation": "silu", "pooling": "mean_max", "positions": "none", "scale_embedding": False},
    {"convolution": 3, "pooling": "last", "activation": "glu", "d_model": 14},
    {"convolution": 5, "pooling": "first", "positions": "learned", "activation": "reglu"},
    {"pooling": "attention", "activation": "geglu", "d_model": 15, "num_heads": 3, "d_key": 4, "d_value": 7},
    {"residual": False, "norm": "none", "masked": False, "pad_to_max_length": True, "pooling": "last"},
    {"pad_to_max_length": True, "pooling": "first", "activation": "swiglu"},
    {"encoder_layers": 0, "pooling": "mean"},
]
REFUSED: dict[str, set[str]] = {
    "score": {"dot", "additive", "general", "cosine", "feed_forward"},
    "qk_projection": {"hidden"},
    "positions": {"rotary"},
}
TEXTS = ["ab cd", "h", "a long text with more characters than the model reads", "dcba"]


def made(**changes: Any) -> ClassifierBundle:
    """Return a classifier with random weights, large enough for its logits to differ."""
    tokenizer = Tokenizer.train(["abcdefgh -"], TokenizerConfig(kind="characters"))
    model = EncoderClassifier(ClassifierConfig.parse({**SMALL, **changes}, "test"), tokenizer.vocab_size, 3)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return ClassifierBundle(TaskConfig(kind="classification"), model.eval(), tokenizer, ("bad", "good", "so so"))


def padded_ids(bundle: ClassifierBundle) -> Tensor:
    """Return texts of several lengths, up to the longest that the model reads."""
    limit = bundle.model.max_length
    rows = [[*bundle.tokenizer.encode(text)[: limit - 1], 2] for text in TEXTS]
    return torch.tensor([row + [PAD] * (limit - len(row)) for row in rows])


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=1e-4 * max(1.0, float(expected.abs().max())), rtol=0)


@pytest.mark.parametrize("changes", CASES, ids=str)
@torch.no_grad()
def test_onnxruntime_computes_our_logits(changes: dict[str, Any], tmp_path: Path) -> None:
    bundle = made(**changes)
    export_to("onnx", bundle, tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out/classifier.onnx")
    ids = padded_ids(bundle)
    for rows in (ids, ids[1:2, :3], torch.tensor([[2, PAD]])):  # a batch, one text, only the end symbol
        (found,) = session.run(["logits"], {"source": rows.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), bundle.model(rows), atol=1e-4, rtol=1e-4)
    assert bundle.model(ids).std() > 0.3


@pytest.mark.parametrize("changes", CASES, ids=str)
@torch.no_grad()
def test_transformers_computes_our_logits_from_text(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = made(**changes)
    export_to("huggingface", bundle, tmp_path / "out")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", trust_remote_code=True, output_loading_info=True
    )
    assert not any(loading.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, truncation=True)
    ids = padded_ids(bundle)
    assert torch.equal(batch["input_ids"], ids)
    found = model.eval()(**batch).logits
    assert_close(found, bundle.model(ids))
    assert_close(model(input_ids=ids).logits, bundle.model(ids))
    chosen = [model.config.id2label[index] for index in found.argmax(1).tolist()]
    assert chosen == [each.label for each in Classifier(bundle).classify(TEXTS)]
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert [each["label"] for each in pipeline(TEXTS, truncation=True)] == chosen
    assert model(**batch, labels=torch.tensor([0, 1, 2, 0])).loss.isfinite()


@pytest.mark.parametrize(
    ("form", "name"), [("huggingface", name) for name in REFUSED] + [("onnx", "score"), ("onnx", "qk_projection")]
)
def test_unsupported_options_are_refused_by_name(form: str, name: str, tmp_path: Path) -> None:
    for value in sorted(REFUSED[name]):
        with pytest.raises(ConfigError, match=f"{name} = '{value}' cannot be exported to .*") as raised:
            export_to(form, made(**{name: value}), tmp_path / "out")
        assert ClassifierConfig.model_fields[name].default in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_what_a_classifier_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="classifier cannot be exported to ctranslate2; choose huggingface or onnx"):
        export_to("ctranslate2", made(), tmp_path / "out")
    with pytest.raises(ConfigError, match="a classifier has no languages"):
        export_to("onnx", made(), tmp_path / "out", target_language="en")
    with pytest.raises(ConfigError, match="quantization 'int8'"):
        export_to("huggingface", made(), tmp_path / "out", quantization="int8")


def test_the_onnx_folder_is_also_a_headway_classifier(tmp_path: Path) -> None:
    bundle = made(pooling="first")
    export_to("onnx", bundle, tmp_path / "out")
    again = ClassifierBundle.load(tmp_path / "out")
    assert Classifier(again).classify(TEXTS) == Classifier(bundle).classify(TEXTS)


def test_the_cards_example_runs_on_the_exported_folder(tmp_path: Path) -> None:
    bundle = made()
    export_to("onnx", bundle, tmp_path / "out")
    code = (tmp_path / "out/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"ids": padded_ids(bundle).numpy()}
    exec(code.replace("THIS_FOLDER", str(tmp_path / "out")), names)
    assert names["logits"].shape == (len(TEXTS), 3)
    labels = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))["labels"]
    best = [labels[index] for index in np.argmax(names["logits"], 1)]
    assert best == [each.label for each in Classifier(bundle).classify(TEXTS)]


def test_a_graph_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_layers, "_position_table", lambda graph, *_: graph.constant(torch.zeros(99, 16)))
    with pytest.raises(BundleError, match="logits of the ONNX graphs differ from the model's"):
        export_to("onnx", made(), tmp_path / "out")
    assert not list(tmp_path.iterdir())
