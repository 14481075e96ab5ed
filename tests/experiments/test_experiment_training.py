from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from headway.decode import DecodingOptions
from headway.errors import DivergenceError
from headway.experiments import training, what_heads_see
from headway.experiments.corpus import experiment_corpus
from headway.experiments.experiment import Settings
from headway.experiments.label_smoothing import identity_error
from headway.experiments.training import (
    encode_pairs,
    greedy_translate,
    load_bundle_on_device,
    measure_bleu,
    resolve_recipe,
    train_variant,
    vocabulary_size,
)
from headway.experiments.what_heads_see import remove_head
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.predict import Translator
from headway.text.base import EOS
from headway.text.special_tokens import SpecialTokenTemplate
from headway.training.loop import Result

SHORT: dict[str, dict[str, Any]] = {"training": {"steps": 2}}


@pytest.fixture
def quick(tmp_path: Path) -> Settings:
    return Settings(quick=True, seeds=(1,), data_folder=None, work_folder=tmp_path, say=lambda _: None)


def test_a_variant_is_trained_once(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = experiment_corpus(quick)
    first = train_variant(quick, corpus, 1, SHORT)
    assert (first.model_folder / "config.json").is_file()
    assert first.dev_loss > 0
    assert first.training_seconds > 0
    other = train_variant(quick, corpus, 2, SHORT)
    assert other.run_folder != first.run_folder
    monkeypatch.delattr(training, "train")  # trained models need none
    assert train_variant(quick, corpus, 1, SHORT) == first
    joined = experiment_corpus(quick, join=True)
    with pytest.raises(NameError):
        train_variant(quick, joined, 1, SHORT)  # different text, so a different run


def test_an_interrupted_training_stops_the_experiment(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "train", lambda *_: Result(1, True, None, {}))
    with pytest.raises(KeyboardInterrupt):
        train_variant(quick, experiment_corpus(quick), 1, SHORT)
    monkeypatch.undo()
    assert train_variant(quick, experiment_corpus(quick), 1, SHORT).dev_loss > 0  # nothing was recorded as done


def test_a_training_that_diverges_says_so_and_leaves_its_tokenizer(quick: Settings) -> None:
    corpus = experiment_corpus(quick)
    wild: dict[str, dict[str, Any]] = {"optimizer": {"learning_rate": 1e30}, "training": {"steps": 30}}
    with pytest.warns(UserWarning, match="will probably diverge"), pytest.raises(DivergenceError):
        train_variant(quick, corpus, 1, wild)
    words = {word for pair in corpus.read_pairs(corpus.train_name) for side in pair for word in side.split()}
    assert vocabulary_size(quick, corpus, 1, wild) == len(words) + 4  # padding, unknown, begin and end


def test_changes_are_what_differs(quick: Settings) -> None:
    corpus = experiment_corpus(quick)
    common, changed = (
        resolve_recipe(quick, corpus, 1).as_dict(),
        resolve_recipe(quick, corpus, 1, {"model": {"num_heads": 1}}).as_dict(),
    )
    assert common["model"].pop("num_heads") == 4
    assert changed["model"].pop("num_heads") == 1
    assert common == changed


def test_the_full_form_is_of_the_size_that_is_stated(quick: Settings) -> None:
    full = Settings(quick=False, seeds=(1,), data_folder=None, work_folder=quick.work_folder, say=print)
    recipe = resolve_recipe(full, experiment_corpus(quick), 1)
    assert (recipe.training.steps, recipe.data.max_tokens) == (600, 2048)
    width, inner, vocabulary = 128, 256, 3000
    encoder, decoder = 2 * (4 * width**2 + 2 * width * inner), 2 * (8 * width**2 + 2 * width * inner)
    assert encoder + decoder + vocabulary * width == pytest.approx(1e6, rel=0.1)
    # Two operations per weight and token in the forward pass, twice as many in the backward pass.
    assert 6 * 2048 * (encoder + decoder + vocabulary * width) == pytest.approx(13e9, rel=0.1)


def test_a_recurrent_model_keeps_none_of_the_transformers_keys(quick: Settings) -> None:
    recipe = resolve_recipe(quick, experiment_corpus(quick), 1, {"model": {"kind": "recurrent", "d_model": 8}})
    assert recipe.model.as_dict() | {"kind": "recurrent", "d_model": 8} == recipe.model.as_dict()


def test_translations_are_those_of_greedy_search(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator(settings={"avoid_flagged": False})
    sources = ["das rote Haus", "der Baum", "ein", "und das Haus und der grüne Baum"]
    expected = []
    for text in sources:
        limit = len([*translator.bundle.source_tokenizer.encode(text), EOS]) * 3 // 2 + 10
        expected.append(translator.translate(text, DecodingOptions(beam_size=1, max_length=limit)).text)
    assert greedy_translate(translator.bundle, sources) == expected
    assert len(set(expected)) > 1


def test_encoded_pairs_end_in_the_end_symbol(make_translator: Callable[..., Translator]) -> None:
    bundle = make_translator().bundle
    ((source, target),) = encode_pairs(bundle, [("das Haus", "ein Baum")])
    assert source == [*bundle.source_tokenizer.encode("das Haus"), EOS]
    assert target == [*bundle.target_tokenizer.encode("ein Baum"), EOS]


def test_loaded_models_are_ready(quick: Settings) -> None:
    bundle = load_bundle_on_device(train_variant(quick, experiment_corpus(quick), 1, SHORT).model_folder)
    assert not bundle.model.training


def test_scores_are_kept_by_pairs_and_model(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = experiment_corpus(quick)
    trained = train_variant(quick, corpus, 1, SHORT)
    asked: list[int] = []

    def translate(_: object, sources: list[str]) -> list[str]:
        asked.append(len(sources))
        return [target for _, target in corpus.test_pairs[: len(sources)]]

    monkeypatch.setattr(training, "greedy_translate", translate)
    for _ in range(2):
        assert measure_bleu(quick, trained, corpus.test_pairs[:5]) == pytest.approx(100)
        assert measure_bleu(quick, trained, corpus.test_pairs[1:6]) < 100  # the same number, but different ones
    assert asked == [5, 5]
    (trained.model_folder / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.setattr(training, "load_bundle_on_device", lambda _: None)
    measure_bleu(quick, trained, corpus.test_pairs[:5])
    assert asked == [5, 5, 5]


def test_sentences_stand_in_the_models_frame(make_translator: Callable[..., Translator]) -> None:
    """A model that expects its sources between two tokens and a third token at the beginning of its targets."""
    plain = make_translator().bundle
    template = SpecialTokenTemplate(source_prefix=(7,), source_suffix=(8, EOS), target_prefix=(9,))
    bundle = replace(plain, imported_token_template=template)
    ((source, target),) = encode_pairs(bundle, [("das Haus", "ein Baum")])
    assert source == [7, *bundle.source_tokenizer.encode("das Haus"), 8, EOS]
    assert target == [9, *bundle.target_tokenizer.encode("ein Baum"), EOS]
    sources = ["das rote Haus", "der Baum"]
    translator = Translator(bundle, device="cpu", avoid_flagged=False)
    assert greedy_translate(bundle, sources) == [
        each.text for each in translator.translate(sources, DecodingOptions(beam_size=1))
    ]
    (links,) = what_heads_see._align(bundle, [("das Haus", "ein Baum")], layer=0)
    assert links <= set(product(range(2), range(2)))
    example = what_heads_see._maps(bundle, ("das Haus", "ein Baum"))
    assert len(example["source"]) == len(source)


def test_every_attention_is_examined(make_translator: Callable[..., Translator]) -> None:
    """Also for an encoder that is deeper than the decoder."""
    model = make_translator(encoder_layers=3).bundle.model
    assert isinstance(model, Transformer)
    found = [(kind, layer) for kind, layer, _ in what_heads_see._attentions(model)]
    assert found == [
        *(("encoder self-attention", layer) for layer in range(3)),
        ("decoder self-attention", 0),
        ("cross-attention", 0),
    ]


def test_a_removed_head_adds_nothing() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(3, 4, 8)
    layer.output.weight.data[:, :4] = 0  # the part of the first head: without it nothing changes
    whole = layer(x)
    with remove_head(layer, 0):
        torch.testing.assert_close(layer(x), whole)
    with remove_head(layer, 1):  # then only the bias is left
        torch.testing.assert_close(layer(x), layer.output.bias.expand_as(x))
    assert torch.equal(layer(x), whole)


def test_the_identity_holds_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = 5 * torch.randn(40, 30), torch.randint(30, (40,))
    assert identity_error(logits, targets) < 1e-4
    wrong = "headway.experiments.label_smoothing.label_smoothed_cross_entropy"
    monkeypatch.setattr(wrong, lambda logits, targets, _: F.cross_entropy(logits, targets, reduction="none"))
    assert identity_error(logits, targets) > 1e-2
