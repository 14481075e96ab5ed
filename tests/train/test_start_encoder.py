"""Translation models whose encoder is that of a masked language model: weights, output, exact resume, refusals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import headway
from headway.bundle import Bundle, MaskedLanguageModelBundle, named_weights
from headway.errors import ConfigError
from headway.experiments.training import merge_sections
from headway.models.transformer import Transformer
from headway.nn.masks import padding_mask
from headway.tasks import parse_recipe, task_of, train
from headway.text.base import BOS, EOS, PAD
from headway.train.fine_tuning import complete_recipe, load_initial_weights
from headway.train.recipe import Recipe
from headway.train.report import Listener

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 24, "encoder_layers": 2, "max_length": 64}
FORMS: dict[str, dict[str, Any]] = {
    "bert": {"num_segments": 2, "norm_epsilon": 1e-6},
    "sinusoidal": {"positions": "sinusoidal", "embedding_norm": False},
    "pre": {"norm": "pre", "embedding_norm": False, "positions": "rotary", "activation": "geglu", "encoder_window": 5},
    "alternating": {"positions": "rotary", "encoder_window": 5, "global_every": 2},
    "modern": {"norm": "pre", "positions": "rotary"},
    "segments": {"positions": "rotary", "num_segments": 2},
}
COMMON: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
    "training": {"steps": 2, "device": "cpu", "precision": "float32"},
    "checkpoints": {"every": 2, "average": 0},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parallel corpus, and masked models of several forms that were trained for two steps on its sources."""
    home, rng = tmp_path_factory.mktemp("start_encoder"), random.Random(1)
    words = {"rot": "red", "grün": "green", "Haus": "house", "Baum": "tree", "ein": "a"}
    texts = [rng.choices(list(words), k=rng.randint(3, 7)) for _ in range(40)]
    (home / "text.de").write_text("\n".join(map(" ".join, texts)), encoding="utf-8")
    (home / "text.en").write_text("\n".join(" ".join(words[word] for word in text) for text in texts))
    for name, form in FORMS.items():
        sections: dict[str, dict[str, Any]] = {
            "task": {"kind": "masked_language_model"},
            "data": {"folder": str(home), "train": [{"files": ["text.de"]}], "max_tokens": 96},
            "tokenizer": {"vocab_size": 320, "min_frequency": 1},
            "model": {**SIZES, **form},
        }
        train(parse_recipe(merge_sections(COMMON, sections), "test"), home / name)
    return home


def recipe(home: Path, form: str, *changes: dict[str, dict[str, Any]]) -> Recipe:
    sections: dict[str, dict[str, Any]] = {
        "data": {"folder": str(home), "train": [{"files": ["text.de", "text.en"]}], "max_tokens": 128},
        "training": {"start_from": str(home / form / "best")},
        "model": {"decoder_layers": 1, "tie": "target"},
        "tokenizer": {"joint": False, "vocab_size": 320},
    }
    return parse_recipe(merge_sections(COMMON, sections, *changes), "test")


def begin(chosen: Recipe, run: Path) -> tuple[Transformer, Any]:
    """Return the model of a run before its first step, and the prepared data."""
    task, chosen = task_of(chosen), complete_recipe(chosen, run)
    prepared = task.prepare(chosen, run, Listener())
    model = task.build_model(chosen, prepared)
    load_initial_weights(model, Path(str(chosen.training.start_from)))
    return cast("Transformer", model).eval(), prepared


@pytest.mark.parametrize("form", ["bert", "sinusoidal", "pre"])
def test_the_encoder_is_that_of_the_masked_model(home: Path, tmp_path: Path, form: str) -> None:
    masked = MaskedLanguageModelBundle.load(home / form / "best")
    model, prepared = begin(recipe(home, form), tmp_path)
    found, before = named_weights(model), named_weights(masked.model)
    names = {name: name for name in before if name.startswith("encoder.")}
    names |= {"embedding.weight": "source_embedding.weight"}
    assert len(names) > 20
    for old, new in names.items():
        assert torch.equal(found[new], before[old])

    assert prepared.tokenizers.source.fingerprint == masked.tokenizer.fingerprint
    assert len(prepared.tokenizers.target.encode("red house")) < len(masked.tokenizer.encode("red house"))
    encode = masked.tokenizer.encode
    rows = [[BOS, *encode("ein rot Haus"), EOS], [BOS, *encode("grün"), EOS]]
    source = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True)
    mask = source != PAD
    with torch.no_grad():
        memory, expected = model.encode(source, padding_mask(source, PAD)), masked.model.hidden(source)
    torch.testing.assert_close(memory[mask], expected[mask], atol=1e-5, rtol=1e-5)

    # Training reads sources as the masked model reads texts.
    data = prepared.train
    batch = data.batch(next(iter(data.plan_sequential(10_000, None))))
    first = (home / "text.de").read_text(encoding="utf-8").splitlines()
    assert {tuple(row[row > 0]) for row in batch.source} == {(BOS, *encode(text), EOS) for text in first}


def test_a_run_learns_resumes_exactly_and_translates(home: Path, tmp_path: Path) -> None:
    chosen = recipe(home, "bert", {"training": {"steps": 6, "unfreeze_every": 2}})
    train(chosen, tmp_path / "whole")
    train(recipe(home, "bert", {"training": {"steps": 3, "unfreeze_every": 2}}), tmp_path / "parts")
    train(chosen, tmp_path / "parts")
    whole, parts = (Bundle.load(tmp_path / run / "best") for run in ("whole", "parts"))
    found = named_weights(parts.model)
    assert all(torch.equal(weight, found[name]) for name, weight in named_weights(whole.model).items())
    assert whole.token_template.fill().add_to_source([7]) == [BOS, 7, EOS]
    translator = headway.load(tmp_path / "whole" / "best")
    assert isinstance(translator, headway.Translator)
    assert isinstance(translator.translate("ein rot Haus").text, str)


def test_both_sides_may_have_the_masked_models_vocabulary(home: Path, tmp_path: Path) -> None:
    chosen = recipe(home, "bert", {"tokenizer": {"joint": True}, "model": {"tie": "all"}})
    masked = MaskedLanguageModelBundle.load(home / "bert" / "best")
    model, prepared = begin(chosen, tmp_path)
    assert prepared.tokenizers.target.fingerprint == masked.tokenizer.fingerprint
    assert model.projection.weight is model.source_embedding.weight
    assert torch.equal(model.projection.weight, masked.model.embedding.weight)


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("alternating", {}, "the masked language model has global_every = 2, which the encoder of a transformer does"),
        ("modern", {}, r"has embedding_norm = true with norm = 'pre'"),
        ("segments", {}, r"has num_segments = 2 without positions = 'learned'"),
        ("bert", {"model": {"norm": "pre"}}, r"the recipe's \[model\] differs: norm is 'pre', the model has 'post'"),
        ("bert", {"model": {"encoder_window": 3}}, "differs: encoder_window is 3, the model has not set"),
        ("pre", {"model": {"encoder_window": 3}}, "differs: encoder_window is 3, the model has 5"),
        ("bert", {"model": {"max_length": 40}}, "differs: max_length is 40, the model has 64"),
        ("bert", {"model": {"kind": "recurrent", "cell": "gru"}}, r"the model there is a masked; set model\.kind = 't"),
        ("bert", {"model": {"tie": "all"}}, r"model\.tie = 'all' shares one embedding"),
        ("bert", {"tokenizer": {"kind": "characters"}}, r"tokenizer\.kind = 'characters', but .* has 'bpe'"),
        (
            "bert",
            {"data": {"train": [{"files": ["text.de", "text.en"], "target_language": "en"}]}},
            r"its vocabulary has no tag <2en>",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    home: Path, tmp_path: Path, form: str, changes: dict[str, Any], message: str
) -> None:
    if "kind" in changes.get("model", {}):  # a recurrent model has other keys
        chosen = recipe(home, form).as_dict() | {"model": changes["model"]}
        with pytest.raises(ConfigError, match=message):
            train(parse_recipe(chosen, "test"), tmp_path)
        return
    with pytest.raises(ConfigError, match=message):
        train(recipe(home, form, changes), tmp_path)
