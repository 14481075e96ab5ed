"""Imported packages of Argos Translate give the texts of argostranslate, which ``argos_packages.py`` records."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from argos_packages import FORMS, PREFIX, TRANSLATIONS, packed

from headway.bundle import load_bundle
from headway.decode import DecodingOptions
from headway.interop.importing import ImportedBundle, import_from
from headway.predict import Translator
from headway.text.base import BOS, EOS, UNK
from headway.text.moses import MosesTokenizer

LIMIT = 200  # characters; a text that does not end is limited to other lengths in Argos


def imported(form: str) -> ImportedBundle:
    result = import_from(str(packed(form)))
    assert isinstance(result, ImportedBundle)
    return result


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("form", FORMS)
def test_texts_are_those_of_argostranslate(form: str) -> None:
    recorded = json.loads(TRANSLATIONS.read_text(encoding="utf-8"))
    found = imported(form)
    assert found.bundle.task.source_language == "de"
    assert found.bundle.task.target_language == "en"
    translator = Translator(found.bundle, avoid_flagged=False)
    ours = [result.text for result in translator.translate(recorded["sources"], protect=False)]
    pairs = [pair for pair in zip(recorded[form], ours, strict=True) if len(pair[0]) < LIMIT]
    assert [theirs for theirs, _ in pairs] == [text for _, text in pairs]
    assert len(pairs) > len(ours) * 0.8
    assert len({*ours}) > len(ours) // 2


def test_a_target_prefix_begins_each_translation() -> None:
    bundle = imported("prefix").bundle
    (prefix,) = bundle.token_template.fill().target_prefix
    assert bundle.target_tokenizer.display([prefix]) == [PREFIX]


def test_unknown_tokens_are_never_generated() -> None:
    """Argostranslate replaces them by words of the source. Here, the next best token takes their place."""
    bundle = imported("sentencepiece").bundle
    greedy, text = DecodingOptions(beam_size=1, length_penalty=0), "der kleine Frosch ½ schläft."
    expected = Translator(bundle, avoid_flagged=False).translate(text, greedy).text
    bias = torch.zeros(bundle.target_tokenizer.vocab_size)
    bias[UNK] = 50  # the most probable token of each step
    bundle.model.projection.register_parameter("bias", torch.nn.Parameter(bias, requires_grad=False))
    unknown = Translator(bundle, avoid_flagged=False, precision="float32")
    assert unknown.bundle.model(torch.tensor([[5, EOS]]), torch.tensor([[BOS]])).argmax(-1).item() == UNK
    assert unknown.translate(text, greedy).text == expected


def test_an_unpacked_package_is_imported_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(packed("bpe")) as archive:
        archive.extractall(tmp_path)
    found = import_from(str(tmp_path / "translate-de_en-1_0"))
    assert isinstance(found, ImportedBundle)
    found.bundle.save(tmp_path / "model", found.card)
    loaded = load_bundle(tmp_path / "model")
    tokenizer = loaded.tokenizers["source"]
    assert isinstance(tokenizer, MosesTokenizer)
    assert tokenizer.rules == "argos"
    assert tokenizer.encode("der kleine Frosch") == imported("bpe").bundle.source_tokenizer.encode("der kleine Frosch")
