"""Exported masked language models and their classifiers compute the same logits and ids in `transformers`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from config_variants import undeclared, variants
from foreign import corpus, transformers
from masked_models import published
from own_masked_models import FORMS, LABELS, LOCAL, MODERN, TEXTS, classifier, made
from torch import Tensor

from headway.cli.commands.export import export
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.interop.importing import import_classifier, import_masked_language_model
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.nn.embedding import pad_sequences
from headway.predict import MaskedLanguageModel
from headway.text.base import BOS, EOS, MASK, PAD
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.weights import named_weights

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"pooling": "first", "dense": "tanh"}),
    "bert-without-segments": ("bert-without-segments", {"pooling": "first", "dense": "tanh", "pooled_dropout": 0.3}),
    "modernbert": ("modernbert", {"pooling": "first", "dense": "gelu", "dense_norm": True}),
    "modernbert-mean": ("modernbert-global", {"pooling": "mean", "dense": "tanh", "dense_norm": True}),
}


@torch.inference_mode()
def masked_logits(model: Any, rows: list[list[int]]) -> list[Tensor]:
    """Return the logits of each row of a padded batch, without its padding."""
    batch = pad_sequences(rows, PAD, torch.device("cpu"))
    ours = isinstance(model, MaskedTransformer)
    found = model(batch) if ours else model(input_ids=batch, attention_mask=(batch != PAD).long()).logits
    return [each[: len(row)] for each, row in zip(found, rows, strict=True)]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance
        assert other.std() > 0.3


@pytest.mark.parametrize("name", FORMS)
def test_logits_and_ids_are_the_same(name: str, tmp_path: Path) -> None:
    model_type, options = FORMS[name]
    bundle = made(**options)
    bundle.save(tmp_path / "ours", "")
    export(tmp_path / "ours", "huggingface", tmp_path / "hf")
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert model.config.model_type == model_type
    assert not any(report.values()), report
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    rows = [[BOS, *bundle.tokenizer.encode(text), EOS] for text in TEXTS]
    assert tokenizer(TEXTS).input_ids == rows
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in rows] == TEXTS
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (PAD, bundle.tokenizer.mask_id)
    assert_same(masked_logits(model, rows), masked_logits(bundle.model, rows))
    again = import_masked_language_model(tmp_path / "hf").bundle
    assert [again.tokenizer.encode(text) for text in TEXTS] == [bundle.tokenizer.encode(text) for text in TEXTS]
    weights, before = named_weights(again.model), named_weights(bundle.model)
    assert all(torch.equal(weights[key], before[key]) for key in before)
    added = weights.keys() - before.keys()  # the forms have them always
    assert added <= {"segment_embedding.weight", "projection.bias"}
    assert not any(weights[key].any() for key in added)
    assert_same(masked_logits(again.model, rows), masked_logits(bundle.model, rows), 1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_classifiers_are_the_same(name: str, tmp_path: Path) -> None:
    form, options = HEADS[name]
    model_type, body = FORMS[form]
    bundle = classifier(body, **options)
    export_to("huggingface", bundle, tmp_path / "hf")
    loader = transformers.AutoModelForSequenceClassification
    model, report = loader.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert model.config.model_type == model_type
    assert not any(report.values()), report
    assert model.config.id2label == dict(enumerate(LABELS))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [*TEXTS, f"neither <eos> nor {MASK} is special", "Frosch " * 90]
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    limit = bundle.model.max_length
    rows = [[*bundle.tokenizer.encode(text)[: limit - 1], EOS] for text in texts]
    assert (batch.input_ids[:, 1:] == pad_sequences(rows, PAD, torch.device("cpu"))).all()
    with torch.inference_mode():
        found, expected = model(**batch).logits, bundle.model(batch.input_ids[:, 1:])
    assert_same(found, expected)
    again = import_classifier(tmp_path / "hf").bundle
    assert again.labels == LABELS
    assert again.model.config.pooled_dropout == bundle.model.config.pooled_dropout
    weights, before = named_weights(again.model), named_weights(bundle.model)
    assert all(torch.equal(weights[key], before[key]) for key in before)
    with torch.inference_mode():
        assert_same(again.model(batch.input_ids[:, 1:]), expected, 1e-5)


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_masks_in_a_text_are_filled_in_alike(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(corpus(), TokenizerConfig(kind=kind, vocab_size=330), tags=[MASK])
    bundle = made(tokenizer, **FORMS["modernbert"][1])
    export_to("huggingface", bundle, tmp_path)
    text = f"the small {MASK} sleeps"
    ours = MaskedLanguageModel(bundle).fill(text, top=3)
    theirs = transformers.pipeline("fill-mask", str(tmp_path))(text, top_k=20)
    special = {*range(4), tokenizer.mask_id}
    found = [each for each in theirs if each["token"] not in special][:3]
    assert [each["score"] for each in found] == pytest.approx([each.probability for each in ours], rel=1e-3)
    assert [each["token_str"].strip() for each in found] == [each.words[0].strip() for each in ours]


@pytest.mark.parametrize("name", ["bert", "bert-untied", "roberta", "distilbert", "modernbert"])
def test_an_imported_model_goes_back(name: str, tmp_path: Path) -> None:
    """RoBERTa and DistilBERT become BERT. The order of the ids may change."""
    before, encoder = published(name, tmp_path / "hf")
    export_to("huggingface", import_masked_language_model(tmp_path / "hf").bundle, tmp_path / "back")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer.mask_token == encoder.mask_token
    texts = ["der kleine Frosch 2024", f"the BIG{encoder.mask_token} dog, naïve café!"]
    old, new = encoder(texts).input_ids, tokenizer(texts).input_ids
    names = [[tokens.convert_ids_to_tokens(row) for row in rows] for tokens, rows in ((encoder, old), (tokenizer, new))]
    assert names[0] == names[1]
    with torch.inference_mode():
        first, second = (each(torch.tensor(rows[:1])).logits[0] for each, rows in ((before, old), (model, new)))
    vocabulary = encoder.get_vocab()
    assert_same(second[:, tokenizer.convert_tokens_to_ids([*vocabulary])], first[:, [*vocabulary.values()]])


def test_pairs_of_texts_keep_their_segments(tmp_path: Path) -> None:
    model, encoder = published("bert", tmp_path / "hf", "SequenceClassification", id2label={0: "no", 1: "yes"})
    export_to("huggingface", import_classifier(tmp_path / "hf").bundle, tmp_path / "back")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    pair = ["der kleine Frosch", "the big dog"], ["sleeps", "runs over the house"]
    with torch.inference_mode():
        expected = model(**encoder(*pair, padding=True, return_tensors="pt")).logits
        assert_same(back(**tokenizer(*pair, padding=True, return_tensors="pt")).logits, expected)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["bert", "modernbert"])
def test_every_value_of_every_option_is_exported_or_refused_by_name(base: str, tmp_path: Path) -> None:
    assert undeclared(MaskedConfig) == []
    (_, defaults), *others = list[Any](variants(MaskedConfig))
    tokenizer = Tokenizer("characters", list("abcdefghij"), tags=[MASK])
    rows, exported = [[BOS, 5, 6, 7, 4, 8, 9, EOS], [BOS, 7, 9, EOS]], 0
    for number, (name, variant) in enumerate(others):
        changes = {key: value for key, value in variant.as_dict().items() if value != getattr(defaults, key)}
        if changes.keys() & FORMS[base][1].keys():
            continue  # covered by another base
        try:
            bundle = made(tokenizer, **{**FORMS[base][1], **changes})
        except ConfigError:
            continue  # not a value for this base
        try:
            export_to("huggingface", bundle, tmp_path / str(number))
        except ConfigError as error:
            option = re.match(r"(\w+) = .* cannot be exported to .*; supported: ", str(error))
            assert option is not None
            assert option[1] in changes or "norm" in changes, name  # the norm decides on the form
            continue
        model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / str(number))
        for found, expected in zip(masked_logits(model, rows), masked_logits(bundle.model, rows), strict=True):
            scale = max(1.0, float(expected.std()))
            torch.testing.assert_close(found / scale, expected / scale, atol=2e-4, rtol=2e-4, msg=name)
        exported += 1
    assert exported > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "sinusoidal"}, r"positions = 'sinusoidal' cannot .* BERT \(for norm = 'post'\); supported: lea"),
        ({"norm": "none"}, r"norm = 'none' cannot be exported to Hugging Face's BERT .*; supported: post"),
        ({"activation": "geglu"}, "activation = 'geglu' cannot be exported to Hugging Face's BERT"),
        ({"embedding_norm": False}, "embedding_norm = False cannot be exported to Hugging Face's BERT"),
        ({"bias": "none"}, "bias = 'none' cannot be exported to Hugging Face's BERT"),
        ({"scale_embedding": True}, "scale_embedding = True cannot be exported"),
        ({**MODERN, "norm_kind": "rms"}, r"norm_kind = 'rms' cannot .* ModernBERT \(for norm = 'pre'\); supported"),
        ({**MODERN, "positions": "learned"}, "positions = 'learned' cannot be exported to Hugging Face's ModernBERT"),
        ({**MODERN, "bias": "all"}, "bias = 'all' cannot be exported to Hugging Face's ModernBERT"),
        ({**MODERN, "activation": "gelu"}, "activation = 'gelu' cannot be exported .*; supported: swiglu, geglu"),
        ({**MODERN, "num_segments": 2}, "num_segments = 2 cannot be exported to Hugging Face's ModernBERT"),
        ({**LOCAL, "encoder_window": 4}, "encoder_window = 4 cannot be exported .*; supported: odd numbers"),
        ({**LOCAL, "global_every": None}, "global_every = None cannot .* with encoder_window; supported: a number"),
    ],
)
def test_what_a_form_does_not_have_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        export_to("huggingface", made(**options), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ({}, {"pooling": "mean", "dense": "tanh"}, "pooling = 'mean' cannot be exported to Hugging Face's BERT; supp"),
        ({}, {"pooling": "first"}, "dense = 'none' cannot be exported to Hugging Face's BERT; supported: tanh"),
        (MODERN, {}, "dense = 'none' cannot be exported to Hugging Face's ModernBERT; supported: gelu, relu, tanh"),
        (MODERN, {"dense": "gelu"}, "dense_norm = False cannot be exported to Hugging Face's ModernBERT; supported: t"),
        ({"norm": "none"}, {}, "norm = 'none' cannot be exported to Hugging Face's BERT"),
    ],
)
def test_heads_that_a_form_does_not_have_are_named(
    body: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        export_to("huggingface", classifier(body, **options), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a masked language model cannot be exported to ctranslate2; choose"):
        export_to("ctranslate2", made(), tmp_path / "out")
    with pytest.raises(ConfigError, match="a masked language model has no languages to choose"):
        export_to("huggingface", made(), tmp_path / "out", target_language="de")
    with pytest.raises(ConfigError, match=r"body\.kind = 'decoder_only' cannot be exported to Hugging Face; supp"):
        export_to("huggingface", classifier({"kind": "decoder_only"}), tmp_path / "out")
