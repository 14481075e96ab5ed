"""ONNX graphs of masked language models and of classifiers on language models compute the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from config_variants import undeclared, variants
from own_masked_models import FORMS, LOCAL, MODERN, TEXTS, classifier, made
from torch import Tensor

import headway
from headway.bundle import ClassifierBundle, TaskConfig
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.nn.embedding import pad_sequences
from headway.predict import MaskedLanguageModel
from headway.predict.classification.classifier import Classifier
from headway.text.base import BOS, EOS, MASK, PAD
from headway.text.tokenizer import Tokenizer

MASKED: dict[str, dict[str, Any]] = {
    **{name: options for name, (_, options) in FORMS.items()},
    "groups": {**LOCAL, "num_kv_heads": 2, "qk_norm": True, "encoder_window": 4},
    "all-windows": {**LOCAL, "global_every": None, "norm_kind": "rms", "rotary_fraction": 0.5},
    "sinusoidal": {"positions": "sinusoidal", "scale_embedding": True, "embedding_norm": False, "norm": "none"},
}
CLASSIFIERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": ({"num_segments": 2}, {"pooling": "first", "dense": "tanh"}),
    "modernbert": (LOCAL, {"pooling": "mean", "dense": "gelu", "dense_norm": True}),
    "recipe": (MODERN, {"pooling": "mean"}),
    "gpt2": ({"kind": "decoder_only"}, {"pooling": "last"}),
    "llama": (
        {**MODERN, "kind": "decoder_only", "norm_kind": "rms", "num_kv_heads": 2, "decoder_window": 3},
        {"pooling": "attention", "dense": "relu"},
    ),
    "neox": ({"kind": "decoder_only", "positions": "rotary", "parallel": True}, {"pooling": "mean_max"}),
}


def session(folder: Path, name: str) -> Any:
    onnx.checker.check_model(folder / name, full_check=True)  # types and shapes are inferred throughout
    return onnxruntime.InferenceSession(folder / name)


def run(session: Any, given: str, tokens: Tensor) -> Tensor:
    (found,) = session.run(["logits"], {given: tokens.numpy()})
    return torch.from_numpy(found)


def batches(tokenizer: Any, prefix: list[int]) -> list[Tensor]:
    """Return padded texts, a text alone, and texts of which one is much longer than a window."""
    rows = [[*prefix, *tokenizer.encode(text), EOS] for text in TEXTS]
    long = [*prefix, *range(10, 60), EOS]
    return [pad_sequences(each, PAD, torch.device("cpu")) for each in (rows, rows[:1], [rows[1], long])]


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("name", MASKED)
@torch.inference_mode()
def test_masked_models(name: str, tmp_path: Path) -> None:
    bundle = made(**MASKED[name])
    export_to("onnx", bundle, tmp_path / "onnx")
    graph = session(tmp_path / "onnx", "masked_language_model.onnx")
    for batch in batches(bundle.tokenizer, [BOS]):
        found, expected = run(graph, "tokens", batch), bundle.model(batch)
        assert found.isfinite().all()
        assert (found - expected)[batch != PAD].abs().max() <= 1e-4
        assert expected.std() > 0.3


@pytest.mark.parametrize("name", CLASSIFIERS)
@torch.inference_mode()
def test_classifiers(name: str, tmp_path: Path) -> None:
    body, options = CLASSIFIERS[name]
    bundle = classifier(body, **options)
    export_to("onnx", bundle, tmp_path / "onnx")
    graph = session(tmp_path / "onnx", "classifier.onnx")
    for batch in batches(bundle.tokenizer, []):
        found, expected = run(graph, "source", batch), bundle.model(batch)
        assert (found - expected).abs().max() <= 1e-4 * max(1, float(expected.abs().max()))
    assert expected.std() > 0.3
    again = headway.load(tmp_path / "onnx")
    assert isinstance(again, Classifier)
    assert again.classify(TEXTS) == Classifier(bundle).classify(TEXTS)


@pytest.mark.slow
@torch.inference_mode()
def test_every_value_of_every_option_of_a_classifier(tmp_path: Path) -> None:
    assert undeclared(SequenceClassifierConfig) == []
    tokenizer = Tokenizer("characters", list("abcdefghij"))
    source = torch.tensor([[4, 5, 6, 7, EOS], [8, EOS, PAD, PAD, PAD]])
    for number, (name, config) in enumerate(list[Any](variants(SequenceClassifierConfig))):
        torch.manual_seed(0)
        model = SequenceClassifier(config, tokenizer.vocab_size, 3).eval()
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
        bundle = ClassifierBundle(TaskConfig(kind="classification"), model, tokenizer, ("a", "b", "c"))
        export_to("onnx", bundle, tmp_path / str(number))
        graph = onnxruntime.InferenceSession(tmp_path / str(number) / "classifier.onnx")
        torch.testing.assert_close(run(graph, "source", source), model(source), atol=1e-4, rtol=1e-4, msg=name)


def test_the_folder_is_also_a_headway_model_and_its_card_shows_how_to_run_the_graph(tmp_path: Path) -> None:
    bundle = made(**LOCAL)
    export_to("onnx", bundle, tmp_path / "onnx")
    model, text = headway.load(tmp_path / "onnx"), f"the {MASK} dog"
    assert isinstance(model, MaskedLanguageModel)
    expected = model.fill(text)
    assert expected == MaskedLanguageModel(bundle).fill(text)
    before, after = (bundle.tokenizer.encode(part) for part in ("the", " dog"))
    ids = [BOS, *before, bundle.tokenizer.mask_id, *after, EOS]
    code = (tmp_path / "onnx/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"ids": np.array([ids])}
    exec(code.replace("THIS_FOLDER", str(tmp_path / "onnx")), names)
    probabilities = torch.from_numpy(names["logits"])[0, 1 + len(before)].softmax(0)
    special = {*range(4), bundle.tokenizer.mask_id}
    best = next(index for index in probabilities.argsort(descending=True).tolist() if index not in special)
    assert float(probabilities[best]) == pytest.approx(expected[0].probability, rel=1e-3)
    assert bundle.tokenizer.decode([best]).strip() == expected[0].words[0]


@pytest.mark.parametrize("options", [{"score": "cosine"}, {"qk_projection": "hidden"}])
def test_what_the_graphs_do_not_have_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    (name,) = options
    for bundle in (made(**options), classifier(options)):
        with pytest.raises(ConfigError, match=f"{name} = '{options[name]}' cannot be exported to ONNX; supported: "):
            export_to("onnx", bundle, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
