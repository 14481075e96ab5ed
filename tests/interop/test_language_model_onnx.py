"""The ONNX graph of a decoder-only language model computes the same logits and texts, with cached keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from causal_models import published
from own_causal_models import FORMS, LLAMA, logits, made
from torch import Tensor

import headway
from headway.bundle import LanguageModelBundle
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.interop.importing import import_language_model
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.predict import LanguageModel
from headway.text.base import BOS, PAD

MODELS: dict[str, dict[str, Any]] = {
    **{name: options for name, (_, options) in FORMS.items()},
    "post": {"norm": "post", "positions": "sinusoidal", "scale_embedding": True, "output_bias": True},
    "mistral-untied": {**FORMS["mistral"][1], "tie": "none"},
    "no-positions": {**LLAMA, "positions": "none", "num_kv_heads": 1, "d_key": 3, "d_value": 5},
}
GUIDE = Path(__file__).parents[2] / "docs" / "onnx.md"


class Graph:
    """The graph of a folder, and the keys and values that it has returned."""

    def __init__(self, folder: Path) -> None:
        path = folder / "language_model.onnx"
        onnx.checker.check_model(path, full_check=True)  # types and shapes are inferred throughout
        self.session = onnxruntime.InferenceSession(path)
        self.caches: dict[str, Any] = {}

    def read(self, tokens: list[list[int]], positions: list[int]) -> Tensor:
        """Return the logits of the tokens, which follow those of earlier calls."""
        shapes = {given.name: given.shape for given in self.session.get_inputs() if given.name.startswith("prefix_")}
        empty = {
            name: np.zeros((len(tokens), heads, 0, width), np.float32) for name, (_, heads, _, width) in shapes.items()
        }
        given = {"tokens": np.array(tokens), "positions": np.array(positions), **(self.caches or empty)}
        names = [output.name for output in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(None, given), strict=True))
        read = torch.from_numpy(found.pop("logits"))
        self.caches = {f"prefix_{name}": cache for name, cache in found.items()}
        return read


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("name", MODELS)
def test_padded_prompts_and_steps_with_a_cache(name: str, tmp_path: Path) -> None:
    """Three rows: padding in front of prompts, then two calls with several tokens, then single tokens."""
    bundle = made(**MODELS[name])
    export_to("onnx", bundle, tmp_path)
    graph, draws = Graph(tmp_path), torch.Generator().manual_seed(1)
    texts = [torch.randint(4, bundle.tokenizer.vocab_size, (length,), generator=draws).tolist() for length in (7, 3, 1)]
    rest = torch.randint(4, bundle.tokenizer.vocab_size, (3, 20), generator=draws).tolist()
    padding = [7 - len(text) for text in texts]
    found = [graph.read([[PAD] * n + text for n, text in zip(padding, texts, strict=True)], [-n for n in padding])]
    for start, end in ((0, 4), (4, 9), *((at, at + 1) for at in range(9, 20))):
        positions = [len(text) + start for text in texts]
        found.append(graph.read([row[start:end] for row in rest], positions))
    for row, (text, others, n) in enumerate(zip(texts, rest, padding, strict=True)):
        expected = logits(bundle.model, text + others)
        mine = torch.cat([each[row] for each in found])[n:]
        assert (mine - expected).abs().max() <= 1e-4 * max(1, float(expected.std()))
        assert expected.std() > 0.2


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-untied"])
def test_greedy_texts_of_the_guide(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = made(**MODELS[name])
    export_to("onnx", bundle, tmp_path / "mine-onnx")
    monkeypatch.chdir(tmp_path)
    section = GUIDE.read_text(encoding="utf-8").partition("## Language models")[2]
    names: dict[str, Any] = {}
    exec(section.split("```python\n")[1].split("```")[0], names)
    model = LanguageModel(bundle)
    for text in ("abc", "", "a b éa"):
        expected = model.generate(text, temperature=0, max_new_tokens=20)[0]
        found = names["continue_text"]([BOS, *bundle.tokenizer.encode(text)], 20)
        assert found == list(expected.ids)
        assert len(set(found)) > 3


def test_the_folder_is_also_a_headway_model(tmp_path: Path) -> None:
    bundle = made(**MODELS["llama"])
    export_to("onnx", bundle, tmp_path)
    model = headway.load(tmp_path)
    assert isinstance(model, LanguageModel)
    expected = LanguageModel(bundle).generate("abc", temperature=0, max_new_tokens=8)
    assert model.generate("abc", temperature=0, max_new_tokens=8)[0].text == expected[0].text
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Before a prompt comes: 1. A text ends with the id 2." in card
    assert "at most 40 tokens" in card


def test_an_imported_model_without_special_tokens(tmp_path: Path) -> None:
    """GPT-2 has one special token: the rows of padding, begin and unknown are copies that are never generated."""
    before, encoder = published("gpt2", tmp_path / "hf")
    bundle = import_language_model(tmp_path / "hf").bundle
    export_to("onnx", bundle, tmp_path / "onnx")
    old = encoder("der kleine Frosch schläft").input_ids
    order: Any = bundle.tokenizer.library_ids  # type: ignore[attr-defined]
    headway_ids = {theirs: ours for ours, theirs in reversed([*enumerate(order)])}
    found = Graph(tmp_path / "onnx").read([[headway_ids[index] for index in old]], [0])[0]
    columns = [ours for ours in range(len(order)) if ours not in (0, 1, 3)]
    expected = logits(before, old)[:, [order[ours] for ours in columns]]
    assert (found[:, columns] - expected).abs().max() <= 1e-4
    assert (found[:, [0, 1, 3]] < expected.min() - 100).all()


def test_what_the_graph_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="score = 'cosine' cannot be exported to ONNX; supported: scaled_dot"):
        export_to("onnx", made(score="cosine"), tmp_path / "onnx")
    bundle = made()
    recurrent = RecurrentLM(RecurrentLMConfig(d_model=8, num_layers=1), bundle.tokenizer.vocab_size)
    with pytest.raises(ConfigError, match=r"model\.kind = 'recurrent_lm' cannot be exported to ONNX; supported: decod"):
        export_to("onnx", LanguageModelBundle(bundle.task, recurrent, bundle.tokenizer), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
