"""Smaller vocabularies: texts of kept tokens are segmented as before, and the logits of these tokens do not change."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign import SENTENCES, corpus, fsmt, m2m, marian, mbart, nllb, pieces, spm

from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions
from headway.engine import Shortlist
from headway.errors import ConfigError, DataError
from headway.interop.importing import import_huggingface
from headway.interop.vocabulary_cut import choose_tokens, cut_shortlist, cut_vocabulary
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import Translator
from headway.text.alphabets import alphabet_predicate
from headway.text.base import NUM_SPECIAL, UNK, TextTokenizer
from headway.text.merge_closure import symbols_of_merges
from headway.text.piece_model import PieceModel
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.tokenizer import Tokenizer, TokenizerConfig

TEXTS = corpus(60)
SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 24, "encoder_layers": 1, "decoder_layers": 1}


def translation_bundle(source: TextTokenizer, target: TextTokenizer | None = None, **options: Any) -> Bundle:
    torch.manual_seed(0)
    sizes = source.vocab_size, (target or source).vocab_size
    model = build_model(TransformerConfig.parse({**SMALL, **options}, "test"), *sizes)
    task = TaskConfig(source_language="de", target_language="en")
    return Bundle(task, model.eval(), source, target or source)


def own(kind: str = "bpe", **options: Any) -> Tokenizer:
    return Tokenizer.train(corpus(), TokenizerConfig(kind=kind, vocab_size=420, **options), tags=["<2en>"])


def sentence_pieces(model: bytes) -> SentencePieceTokenizer:
    names = ["<pad>", "<s>", "</s>", "<unk>", *pieces(model)[3:]]
    return SentencePieceTokenizer(model, names)


TOKENIZERS: dict[str, Callable[[], TextTokenizer]] = {
    "own bpe": own,
    "own bpe, digits apart": lambda: own(split_digits=True),
    "own words": lambda: own("words"),
    "own characters": lambda: own("characters"),
    "unigram": lambda: sentence_pieces(spm("unigram")),
    "sentencepiece bpe": lambda: sentence_pieces(spm("bpe")),
    "unigram with bytes": lambda: sentence_pieces(spm("unigram", byte_fallback=True)),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_of_kept_tokens_are_segmented_as_before(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    bundle = translation_bundle(tokenizer)
    cut = choose_tokens(bundle, texts=TEXTS, margin=0.0)
    kept = cut.kept_ids["source"]
    smaller = cut_vocabulary(bundle, cut).source_tokenizer
    assert smaller.vocab_size == len(kept) <= tokenizer.vocab_size
    new_ids = {old: new for new, old in enumerate(kept)}
    for text in (*TEXTS, *corpus(), *SENTENCES):
        ids = tokenizer.encode(text)
        if set(ids) <= new_ids.keys():
            assert smaller.encode(text) == [new_ids[index] for index in ids]
    assert [smaller.decode(smaller.encode(text)) for text in TEXTS] == [
        tokenizer.decode(tokenizer.encode(text)) for text in TEXTS
    ]
    assert smaller.tags == tokenizer.tags


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("name", ["own bpe", "unigram", "sentencepiece bpe"])
def test_any_choice_of_tokens_keeps_the_segmentation_into_them(name: str) -> None:
    tokenizer, draw = TOKENIZERS[name](), random.Random(0)
    texts = [*corpus(), *SENTENCES]
    segmented = tokenizer.encode_batch(texts)
    for _ in range(5):
        chosen = set(draw.sample(range(tokenizer.vocab_size), tokenizer.vocab_size // 3)) | tokenizer.mandatory_ids()
        kept = sorted(tokenizer.with_required_ids(chosen))
        smaller, new_ids = tokenizer.restrict_vocabulary(kept), {old: new for new, old in enumerate(kept)}
        whole = [(text, ids) for text, ids in zip(texts, segmented, strict=True) if set(ids) <= new_ids.keys()]
        words = [word for text in texts for word in text.split()]
        whole += [(word, ids) for word in words if set(ids := tokenizer.encode(word)) <= new_ids.keys()]
        assert whole
        for text, ids in whole:
            assert smaller.encode(text) == [new_ids[index] for index in ids]


def test_a_missing_token_is_divided_into_smaller_ones() -> None:
    bundle = translation_bundle(own())
    smaller = cut_vocabulary(bundle, choose_tokens(bundle, texts=["der Hund"])).source_tokenizer
    assert smaller.decode(smaller.encode("Straße 😀")) == "Straße 😀"
    assert UNK not in smaller.encode("Straße 😀")


@pytest.mark.slow_but_every(5)
@pytest.mark.parametrize("make", [marian, m2m, nllb, mbart, fsmt])
def test_imported_models_keep_logits_languages_and_segmentation(make: Any, tmp_path: Path) -> None:
    bundle = import_huggingface(make(tmp_path / "foreign")).bundle
    cut = choose_tokens(bundle, texts=TEXTS, margin=0.05)
    smaller = cut_vocabulary(bundle, cut)
    assert smaller.token_template.languages.keys() == bundle.token_template.languages.keys()
    languages = {
        key: known[0]
        for key, known in (
            ("source_language", bundle.token_template.source_languages),
            ("target_language", bundle.token_template.target_languages),
        )
        if known
    }
    old, new = (one.token_template.fill(**languages) for one in (bundle, smaller))
    kept = cut.kept_ids
    for side, before in bundle.tokenizers.items():
        new_ids = {index: position for position, index in enumerate(kept[side])}
        after = smaller.tokenizers[side]
        for text in TEXTS:
            assert after.encode(text) == [new_ids[index] for index in before.encode(text)]
    text = TEXTS[0]
    with torch.inference_mode():
        logits = [
            one.model(
                torch.tensor([special.add_to_source(one.source_tokenizer.encode(text))]),
                torch.tensor([[1, *special.target_prefix, *one.target_tokenizer.encode(text)]]),
            )
            for one, special in ((bundle, old), (smaller, new))
        ]
    torch.testing.assert_close(logits[1], logits[0][..., kept["target"]], atol=1e-4, rtol=0.0)
    assert sum(smaller.tokenizers[side].vocab_size for side in kept) <= sum(map(len, kept.values()))


def test_greedy_texts_are_those_of_the_whole_model_with_the_removed_tokens_banned(tmp_path: Path) -> None:
    bundle = import_huggingface(marian(tmp_path / "foreign")).bundle
    cut = choose_tokens(bundle, texts=corpus(12), margin=0.0)
    smaller = cut_vocabulary(bundle, cut)
    removed = sorted(set(range(bundle.target_tokenizer.vocab_size)) - set(cut.kept_ids["target"]))
    banning = bundle.model
    with torch.no_grad():
        banning.projection.bias[removed] = -1e4
    options = DecodingOptions(beam_size=1, max_length=20)
    texts = corpus(12)
    found = [Translator(one, avoid_flagged=False).translate(list(texts), options) for one in (bundle, smaller)]
    assert [one.text for one in found[0]] == [one.text for one in found[1]]


def test_sides_with_vocabularies_of_their_own_are_cut_apart() -> None:
    source, target = own(), own("words")
    bundle = translation_bundle(source, target, tie="target", output_bias=True)
    cut = choose_tokens(bundle, texts=TEXTS)
    smaller = cut_vocabulary(bundle, cut)
    assert (smaller.source_tokenizer.vocab_size, smaller.target_tokenizer.vocab_size) == tuple(
        len(cut.kept_ids[side]) for side in ("source", "target")
    )
    assert smaller.model.projection.weight.size(0) == len(cut.kept_ids["target"])


def test_languages_keep_the_tokens_with_their_letters() -> None:
    bundle = translation_bundle(own())
    tokenizer = bundle.source_tokenizer
    german = cut_vocabulary(bundle, choose_tokens(bundle, languages=["de", "en"], margin=0.0)).source_tokenizer
    assert german.display(german.encode("größer")) == tokenizer.display(tokenizer.encode("größer"))
    russian = choose_tokens(bundle, languages=["ru"], margin=0.0).kept_ids["source"]
    assert set(tokenizer.encode("собака")) <= set(russian)
    assert not set(tokenizer.encode("собака")) <= set(choose_tokens(bundle, languages=["de"]).kept_ids["source"])


@pytest.mark.parametrize(
    ("languages", "text", "belongs"),
    [
        (["de"], "Größe 12,5 %", True),
        (["de"], "naïve", False),
        (["de", "fr"], "naïve", True),
        (["en"], "собака", False),
        (["ru"], "собака, Moskva", True),
        (["ja"], "カード 犬", True),
        (["zh_Hans"], "犬", True),
        (["pt-BR"], "AÇÃO", True),
    ],
)
def test_letters_of_languages(languages: list[str], text: str, belongs: bool) -> None:
    assert alphabet_predicate(languages)(text) is belongs


def test_a_language_without_known_letters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"letters of the language 'xx' are unknown.*--keep-text"):
        alphabet_predicate(["xx"])


def test_empty_texts_are_refused() -> None:
    with pytest.raises(DataError, match="the texts to keep are empty"):
        choose_tokens(translation_bundle(own()), texts=[])


def test_characters_without_tokens_are_listed() -> None:
    bundle = translation_bundle(sentence_pieces(spm("unigram")))
    cut = choose_tokens(bundle, texts=["der Hund 犬", "犬 und 猫"])
    assert cut.unknown_characters == ("犬", "猫")
    assert cut.describe(bundle)[-1].endswith("no tokens for them: 犬 猫")


def test_a_margin_keeps_frequent_tokens_of_the_same_letters() -> None:
    bundle = translation_bundle(own())
    sizes = [
        len(choose_tokens(bundle, texts=TEXTS[:3], margin=margin).kept_ids["source"]) for margin in (0.0, 0.5, 100.0)
    ]
    assert sizes[0] < sizes[1] < sizes[2] < bundle.source_tokenizer.vocab_size


def test_a_shortlist_is_cut_like_the_vocabulary() -> None:
    bundle = translation_bundle(own())
    cut = choose_tokens(bundle, texts=TEXTS[:5], margin=0.0)
    kept = cut.kept_ids["source"]
    removed = next(index for index in range(bundle.source_tokenizer.vocab_size) if index not in kept)
    size = bundle.source_tokenizer.vocab_size
    table = np.tile(np.array([kept[-1], removed], np.int32), (size, 1))
    cut_list = cut_shortlist(Shortlist(np.array([2, removed], np.int32), table), cut, "new")
    assert cut_list.translations.shape == (len(kept), 2)
    assert set(map(tuple, cut_list.translations.tolist())) == {(len(kept) - 1, 0)}
    assert set(cut_list.always_allowed.tolist()) == {2}


def test_symbols_of_merges_by_hand() -> None:
    """Ab has rank 0 and abc rank 1, so that "abcb" becomes abc, b; the pair bc of rank 2 is never free."""
    ranks = {("a", "b"): 0, ("ab", "c"): 1, ("b", "c"): 2}
    assert symbols_of_merges("abcb", lambda *pair: ranks.get(pair)) == ["a", "b", "c", "b", "ab", "abc"]


def test_the_file_of_a_sentencepiece_model_without_changes_is_the_same() -> None:
    for model in (spm("unigram"), spm("bpe"), spm("unigram", byte_fallback=True)):
        assert PieceModel(model).without(set()) == model
    assert [PieceModel(spm(kind)).is_bpe for kind in ("unigram", "bpe")] == [False, True]


def test_special_ids_stay_where_they_are() -> None:
    for name, make in TOKENIZERS.items():
        kept = choose_tokens(translation_bundle(make()), texts=TEXTS[:2]).kept_ids["source"]
        assert kept[:NUM_SPECIAL] == list(range(NUM_SPECIAL)), name
