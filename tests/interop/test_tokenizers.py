"""Imported tokenizers return the ids of their own libraries, in Headway's order, and no special ids."""

from __future__ import annotations

import codecs
import json
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from causal_models import tokenizer
from foreign import MOSES_SPECIAL, SENTENCES, corpus, fsmt_tokenizer, moses, pieces, spm, transformers
from gluing import search_phrases
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import BundleError, ConfigError, DataError, MissingPackageError
from headway.interop.importing import _license
from headway.interop.tokenizer_exporting import tokenizer_files
from headway.interop.tokenizer_importing import read_language_model_tokenizer
from headway.predict import Source
from headway.predict.phrases import contains_any_phrase
from headway.text.base import EOS, NUM_SPECIAL, UNK, ContinuationDecoder, TextTokenizer
from headway.text.huggingface import FastTokenizer, tokens_by_id
from headway.text.imported import ImportedTokenizer
from headway.text.loading import load_tokenizer
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.special_tokens import SpecialTokens, SpecialTokenTemplate

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "__de__"]
FORGED = [*SPECIAL, "a </s> b", " </s> ", "</s></s>", "x<pad>", "<unk>", "the __de__ dog", "▁</s>", "<0x0A>"]
TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text(st.sampled_from(" ▁</s>padunkm_e\u0308ﬁé😀"))
    | st.lists(st.sampled_from([*FORGED, *SENTENCES])).map(" ".join)
)


def from_spm(model: bytes) -> SentencePieceTokenizer:
    """Its own pieces after four special tokens, and a mask and a language at the end."""
    own = [piece for piece in pieces(model) if piece not in SPECIAL]
    names = ["<pad>", "</s>", "</s>", "<unk>", *own, "<mask>", "__de__"]
    return SentencePieceTokenizer(model, names, [len(names) - 2, len(names) - 1])


def library(kind: str) -> dict[str, Any]:
    """A tokenizer.json as in the families: special tokens in the vocabulary and as added tokens, and a template."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram() if kind == "unigram" else tokenizers.models.BPE())
    words: Any = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    if kind == "bytes":
        words, made.decoder = (
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
            tokenizers.decoders.ByteLevel(),
        )
    made.pre_tokenizer = words
    special = SPECIAL[:5]
    if kind == "unigram":
        trainer: Any = tokenizers.trainers.UnigramTrainer(
            vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    made.train_from_iterator(corpus(), trainer)
    made.add_special_tokens(["__de__"])
    end = made.token_to_id("</s>")
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", end)]
    )
    content: dict[str, Any] = json.loads(made.to_str())
    return content


def order(content: dict[str, Any], spare: int = 2) -> list[int]:
    """<pad>, then <s> as the begin symbol, </s>, <unk>, the others, and rows that the tokenizer does not use."""
    made = tokenizers.Tokenizer.from_str(json.dumps(content))
    first = [made.get_vocab()[token] for token in ("<pad>", "<s>", "</s>", "<unk>")]
    return [*first, *(index for index in range(made.get_vocab_size() + spare) if index not in first)]


def from_moses() -> MosesTokenizer:
    """Fairseq's pieces after the four special tokens, and a mask and a language at the end."""
    known, merges = moses()
    names = ["<pad>", "</s>", "</s>", "<unk>", *known, "<mask>", "__de__"]
    return MosesTokenizer("de", merges, names, [len(names) - 2, len(names) - 1])


FAST = {kind: library(kind) for kind in ("unigram", "bytes", "words")}
MADE: dict[str, TextTokenizer] = {
    **{kind: FastTokenizer(content, order(content)) for kind, content in FAST.items()},
    "spm unigram": from_spm(spm("unigram")),
    "spm bpe": from_spm(spm("bpe")),
    "spm bytes": from_spm(spm("unigram", byte_fallback=True)),
    "moses": from_moses(),
}
each_kind = pytest.mark.parametrize("kind", MADE)


# The same pieces as in the library.


@pytest.mark.parametrize("kind", FAST)
def test_fast_ids_are_the_librarys(kind: str) -> None:
    theirs, ours = tokenizers.Tokenizer.from_str(json.dumps(FAST[kind])), MADE[kind]
    old = order(FAST[kind])
    for text in SENTENCES:
        expected = theirs.encode(text, add_special_tokens=False).ids
        ids = ours.encode(text)
        assert [old[index] for index in ids] == expected
        assert ours.decode(ids) == theirs.decode(expected)
    assert ours.encode_batch(SENTENCES) == [ours.encode(text) for text in SENTENCES]


@pytest.mark.parametrize(
    ("kind", "model_type", "fallback"),
    [("spm unigram", "unigram", False), ("spm bpe", "bpe", False), ("spm bytes", "unigram", True)],
)
@settings(max_examples=50)
@given(text=TEXTS)
def test_sentencepiece_ids_are_its_own(kind: str, model_type: str, fallback: bool, text: str) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_proto=spm(model_type, byte_fallback=fallback))
    ours = MADE[kind]
    assert isinstance(ours, SentencePieceTokenizer)
    known = set(pieces(spm(model_type, byte_fallback=fallback))) - set(SPECIAL)
    expected = [piece if piece in known else None for piece in theirs.encode(text, out_type=str)]
    ids = ours.encode(text)
    assert [None if index == UNK else ours.pieces[index] for index in ids] == expected
    if None not in expected:
        assert ours.decode(ids) == theirs.decode(theirs.encode(text)).strip(" ")


@pytest.fixture(scope="module")
def fairseqs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fsmt_tokenizer(tmp_path_factory.mktemp("fsmt"), split_special_tokens=True)


@settings(max_examples=50)
@given(text=TEXTS)
def test_moses_ids_are_fairseqs(fairseqs: Any, text: str) -> None:
    ours = from_moses()
    ids = ours.encode(text)
    expected = fairseqs.encode(re.sub(r"\s", " ", text), add_special_tokens=False)
    names = [*MOSES_SPECIAL, *moses()[0]]
    assert [ours.pieces[index] for index in ids] == [names[index] for index in expected]
    assert ours.decode(ids) == ours.decode([index for index in ids if index != UNK])


@pytest.mark.parametrize("text", [*SENTENCES, "das 3-4-jährige „Kind“ ruft: a < b & c … ja!", "It's the dog's house."])
def test_moses_text_is_fairseqs(fairseqs: Any, text: str) -> None:
    known, merges = moses()
    target = MosesTokenizer("en", merges, ["<pad>", "</s>", "</s>", "<unk>", *known])
    ids = [index for index in target.encode(text) if index != UNK]
    pieces_of_text = [target.pieces[index] for index in ids]
    assert target.decode(ids) == fairseqs.convert_tokens_to_string(pieces_of_text)


def test_moses_takes_tabs_and_line_ends_for_spaces() -> None:
    ours = from_moses()
    assert ours.encode("der\tHund\nund") == ours.encode("der Hund und")
    assert ours.decode(ours.encode("der\tHund")) == "der Hund"


def test_characters_that_moses_drops_are_unknown_in_any_vocabulary() -> None:
    ours = MosesTokenizer("en", [], ["<pad>", "<s>", "</s>", "<unk>", "a</w>", "</w>"])
    assert ours.encode("日 a") == [UNK, 4]


def test_moses_files_have_one_list_of_merges() -> None:
    known, merges = moses()
    names = ["<pad>", "</s>", "</s>", "<unk>", *known]
    source, target = MosesTokenizer("de", merges, names), MosesTokenizer("en", merges[:-1], names)
    with pytest.raises(ConfigError, match="differ in merges or lower-casing"):
        tokenizer_files(source, target, SpecialTokens((), (EOS,), ()), ("de", "en"))


def test_moses_lower_cases_where_it_did(tmp_path: Path) -> None:
    known, merges = moses()
    names = ["<pad>", "</s>", "</s>", "<unk>", *known]
    ours = MosesTokenizer("de", merges, names, lower_case=True)
    expected = fsmt_tokenizer(tmp_path, do_lower_case=True).tokenize("Die KLEINE Katze")
    assert [ours.pieces[index] for index in ours.encode("Die KLEINE Katze")] == [
        piece if piece in known else "<unk>" for piece in expected
    ]


def test_moses_files_are_fairseqs_again(tmp_path: Path) -> None:
    known, merges = moses()
    source, target = from_moses(), MosesTokenizer("en", merges, ["<pad>", "</s>", "</s>", "<unk>", *known[::-1]])
    for name, content in tokenizer_files(source, target, SpecialTokens((), (EOS,), ()), ("de", "en")).items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.FSMTTokenizer.from_pretrained(tmp_path)
    for text in [*SENTENCES, *FORGED]:
        assert theirs(text.replace("\t", " ")).input_ids == [*source.encode(text), EOS]
        ids = [index for index in target.encode(text) if index != UNK]
        assert theirs.decode(ids, skip_special_tokens=True) == target.decode(ids)


def test_byte_fallback_knows_every_character() -> None:
    ours = MADE["spm bytes"]
    assert UNK not in ours.encode("龍 😹")
    assert ours.decode(ours.encode("龍 😹")) == "龍 😹"


# Generated tokens can be shown while they are generated.

CAUSAL: dict[str, TextTokenizer] = {
    **{kind: MADE[kind] for kind in ("unigram", "bytes", "spm unigram", "spm bytes")},
    **{
        form: FastTokenizer(content, range(len(tokens_by_id(content, "test"))))
        for form in ("gpt_neox", "llama2")
        if (content := json.loads(tokenizer(form).backend_tokenizer.to_str()))
    },
}


def bytes_of(names: Iterable[str]) -> bytes:
    """Return the bytes of displayed tokens, in which a part of a character is shown as <0xE2>."""
    parts = re.split("<0x([0-9A-F]{2})>", "".join(names))
    return b"".join(bytes.fromhex(part) if at % 2 else part.encode() for at, part in enumerate(parts))


@pytest.mark.parametrize("kind", CAUSAL)
@settings(max_examples=20)
@given(data=st.data())
def test_any_tokens_are_decoded_as_their_bytes(kind: str, data: st.DataObject) -> None:
    made = CAUSAL[kind]
    assert isinstance(made, ImportedTokenizer)
    usable = [index for index in range(made.vocab_size) if index not in made.reserved_ids]
    of_bytes = [index for index in usable if "<0x" in made.display([index])[0]]
    some = st.sampled_from(usable) | (st.sampled_from(of_bytes) if of_bytes else st.nothing())
    text = data.draw(st.text(st.sampled_from("añ漢😀 ")))
    ids = [*made.encode(text), *data.draw(st.lists(some, max_size=8)), *made.encode(text)]
    ids = [index for index in ids if index != UNK]
    decoder, shown = codecs.getincrementaldecoder("utf-8")("replace"), ""
    parts, joined = ContinuationDecoder(made), ""
    for end, name in enumerate(made.display(ids), start=1):
        shown += decoder.decode(bytes_of([name]))
        assert made.decode_continuation(ids[:end]) == shown
        joined += parts.decode(ids[end - 1 : end])
        assert joined == shown


@pytest.mark.parametrize("kind", ["bytes", "spm bytes", "gpt_neox", "llama2"])
@settings(max_examples=20)
@given(text=st.text(st.sampled_from("añ漢😀"), max_size=8))
def test_only_an_incomplete_character_at_the_end_is_left_out(kind: str, text: str) -> None:
    made = CAUSAL[kind]
    ids = made.encode(text)
    whole = made.decode_continuation(ids)
    assert whole.strip(" ") == text.strip(" ")
    for end in range(len(ids)):
        assert made.decode_continuation(ids[:end]) == bytes_of(made.display(ids[:end])).decode(errors="ignore")


# Text never produces special ids.


@each_kind
@settings(max_examples=60)
@given(text=TEXTS)
def test_text_makes_no_special_id(kind: str, text: str) -> None:
    tokenizer = MADE[kind]
    assert isinstance(tokenizer, ImportedTokenizer)
    reserved = tokenizer.reserved_ids - {UNK}
    assert reserved >= {0, 1, 2}
    assert not reserved & set(tokenizer.encode(text))


@pytest.mark.parametrize("text", ["a </s> b", "<pad>", "der __de__ Hund <mask>"])
def test_a_text_about_special_tokens_stays_text(text: str) -> None:
    assert MADE["bytes"].decode(MADE["bytes"].encode(text)) == text


@each_kind
def test_special_ids_are_no_text(kind: str) -> None:
    tokenizer = MADE[kind]
    assert isinstance(tokenizer, ImportedTokenizer)
    ids = tokenizer.encode("der Hund")
    between = [each for index in ids for each in (*sorted(tokenizer.reserved_ids), index)]
    assert tokenizer.decode(between) == tokenizer.decode(ids) == "der Hund"
    names = tokenizer.display(sorted(tokenizer.reserved_ids))
    assert {"<pad>", "</s>", "<unk>", "<mask>", "__de__"} <= set(names)
    assert "".join(tokenizer.tokens("der Hund")).strip() == "der Hund"


# Files.


@each_kind
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    tokenizer = MADE[kind]
    tokenizer.save(tmp_path / "folder", "tokenizer")
    loaded = load_tokenizer(tmp_path / "folder", "tokenizer")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.kind, loaded.vocab_size) == (tokenizer.kind, tokenizer.vocab_size)
    assert loaded.encode_batch([*SENTENCES, *FORGED]) == tokenizer.encode_batch([*SENTENCES, *FORGED])
    every = range(tokenizer.vocab_size)
    assert loaded.display(every) == tokenizer.display(every)
    assert loaded.decode(every) == tokenizer.decode(every)
    assert len({each.fingerprint for each in MADE.values()}) == len(MADE)


def damaged(folder: Path, kind: str, **changes: Any) -> Path:
    MADE[kind].save(folder, "tokenizer")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in (content | changes).items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bytes", {"order": None}, r"tokenizer\.json: damaged \(KeyError"),
        ("bytes", {"library": {}}, r"tokenizer\.json: not a fast Hugging Face tokenizer "),
        ("bytes", {"reserved": [10**6]}, r"reserved id 1000000 is not in a vocabulary of"),
        ("words", {"library": {"model": {"type": "Other", "vocab": {}}}}, r"the library `tokenizers` cannot read it"),
        ("spm bpe", {"pieces": None}, r"tokenizer\.json: damaged \(KeyError"),
        ("moses", {"merges": [["a"]]}, r"tokenizer\.json: damaged \(ValueError"),
        ("moses", {"reserved": [float("inf")]}, r"tokenizer\.json: damaged \(OverflowError"),
        ("moses", {"pieces": ["\ud800"]}, r"tokenizer\.json: a piece contains a lone surrogate"),
        ("spm bpe", {"model": "0"}, r"tokenizer\.spm: differs from the model with which tokenizer\.json was saved"),
    ],
)
def test_damage_is_named(kind: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=message):
        load_tokenizer(damaged(tmp_path, kind, **changes), "tokenizer")


def test_a_missing_or_foreign_model_is_named(tmp_path: Path) -> None:
    MADE["spm bpe"].save(tmp_path, "tokenizer")
    (tmp_path / "tokenizer.spm").unlink()
    with pytest.raises(BundleError, match=r"tokenizer\.spm: cannot be read"):
        load_tokenizer(tmp_path, "tokenizer")
    with pytest.raises(BundleError, match=r"x\.spm: not a SentencePiece model, or a damaged one"):
        SentencePieceTokenizer(b"no model", SPECIAL, origin="x.spm")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingPackageError, match=r"'sentencepiece', which is not installed; pip install 'headway\["):
        SentencePieceTokenizer(spm(), ["<pad>"] * NUM_SPECIAL)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(MissingPackageError, match=r"'sacremoses', which is not installed; pip install 'headway\[moses"):
        MosesTokenizer("de", [], ["<pad>"] * NUM_SPECIAL)


@each_kind
def test_wrong_arguments_are_named(kind: str) -> None:
    tokenizer = MADE[kind]
    with pytest.raises(ConfigError, match=rf"id {tokenizer.vocab_size} is not in this vocabulary"):
        tokenizer.decode([tokenizer.vocab_size])
    with pytest.raises(ConfigError, match=r"id -1 is not in this vocabulary"):
        tokenizer.display([-1])
    with pytest.raises(DataError, match=r"text 2, character 1: lone surrogate"):
        tokenizer.encode_batch(["a", "\ud800"])
    with pytest.raises(ConfigError, match=r"unknown tag '<2en>'; this vocabulary has no tags"):
        tokenizer.tag_id("<2en>")
    assert tokenizer.merge_steps("der Hund") == []


# Files of strangers.


@pytest.mark.parametrize(
    ("normalizer", "message"),
    [
        ({"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}, "cannot encode a text .*"),
        ({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "cannot (read|encode) .*"),
    ],
)
def test_a_panic_of_the_library_is_an_error(normalizer: dict[str, Any], message: str) -> None:
    content = library("unigram")
    ids = order(content)
    with pytest.raises(BundleError, match=rf"the library `tokenizers` {message}"):
        FastTokenizer(content | {"normalizer": normalizer}, ids).encode("a" * 40 + "!")


def test_ids_with_gaps_take_no_memory() -> None:
    content = library("unigram")
    content["added_tokens"] = [*content["added_tokens"], {**content["added_tokens"][0], "id": 10**8, "content": "far"}]
    began = time.process_time()
    assert FastTokenizer(content, order(library("unigram"))).decode([NUM_SPECIAL]) is not None
    assert time.process_time() - began < 5


def test_files_that_are_nested_deeply_are_refused(tmp_path: Path) -> None:
    normalizer: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(400):
        normalizer = {"type": "Sequence", "normalizers": [normalizer]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(library("bytes") | {"normalizer": normalizer}))
    with pytest.raises(BundleError, match=r"tokenizer.json: more than 100 nested levels"):
        read_language_model_tokenizer(tmp_path, "llama")


def test_the_license_of_a_long_model_card_is_read_in_linear_time(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\n" + "\n" * 60_000)
    began = time.process_time()
    assert _license(tmp_path) is None
    assert time.process_time() - began < 1
    (tmp_path / "README.md").write_text("--- \nlanguage: de\nlicense:   cc-by-4.0 \n---\nlicense: no\n")
    assert _license(tmp_path) == "cc-by-4.0"


# SpecialTokenTemplate.

TOLD = SpecialTokenTemplate(
    source_prefix=("source_language", 7),
    source_suffix=(EOS, "target_language"),
    target_prefix=("target_language",),
    languages={"de": 4, "en": 5},
    source_language="de",
)


def test_a_frame_has_the_languages_chosen() -> None:
    special = TOLD.fill(target_language="en")
    assert special == SpecialTokens((4, 7), (EOS, 5), (5,))
    assert special.add_to_source([9, 9]) == [4, 7, 9, 9, EOS, 5]
    assert special.source_overhead == 4
    assert TOLD.fill(source_language="en", target_language="de") == SpecialTokens((5, 7), (EOS, 4), (4,))
    assert SpecialTokenTemplate().fill() == SpecialTokens((), (EOS,), ())
    assert SpecialTokenTemplate.parse(TOLD.as_dict(), "test") == TOLD


def test_languages_that_a_model_is_told() -> None:
    assert TOLD.source_languages == TOLD.target_languages == ("de", "en")
    only_target = TOLD.model_copy(update={"source_prefix": ()})
    assert (only_target.source_languages, only_target.target_languages) == ((), ("de", "en"))


@pytest.mark.parametrize(
    ("template", "asked", "message"),
    [
        (
            TOLD,
            {},
            r"translates into several languages, and one must be selected: none was given; choose one of de, en ",
        ),
        (
            TOLD,
            {"target_language": "fr"},
            r"got 'fr'; choose one of de, en \(target_language= in Python, --to on the command line",
        ),
        (
            TOLD,
            {"source_language": "fr", "target_language": "en"},
            r"translates from several .* --from on the command line\)",
        ),
        (
            SpecialTokenTemplate(),
            {"target_language": "en"},
            r"target language 'en': this model has only one target language, which",
        ),
        (SpecialTokenTemplate(), {"source_language": "en"}, r"source language 'en': .*omit it .*--from"),
    ],
)
def test_wrong_languages_are_named(template: SpecialTokenTemplate, asked: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        template.fill(**asked)


@pytest.mark.slow_but_every(3)
@each_kind
@given(data=st.data())
@settings(derandomize=True, max_examples=15)
def test_a_search_ends_with_every_phrase_as_whole_words(kind: str, data: st.DataObject) -> None:
    tokenizer = MADE[kind]
    every = ["Haus", "unter Haus", "das", "*aus", "Hau*", "e", "s"]
    known = [word for word in every if UNK not in tokenizer.encode(word.strip("*"))]
    words = st.lists(st.sampled_from(known), min_size=1, max_size=2)
    chosen = data.draw(st.lists(words.map(tuple), min_size=1, max_size=3).map(tuple))
    found = search_phrases(tokenizer, Source("x", include=chosen), data.draw(st.integers(0, 9)), 3)
    assert found
    for unmet, text in found:
        assert unmet == ()
        assert all(contains_any_phrase(tokenizer, text, several) for several in chosen), text
