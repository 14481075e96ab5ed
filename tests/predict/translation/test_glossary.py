"""Glossaries: which entries apply, how files are read, what is refused, and that translations satisfy entries."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway import kernels
from headway.decode import DecodingOptions, Sampling
from headway.errors import ConfigError, DataError, HeadwayError, LengthError
from headway.predict import Glossary, GlossaryTerm, Source, Translator
from headway.predict.phrases import WordPhrase
from headway.predict.translation import glossary as glossary_module
from headway.predict.translation.glossary import TARGET_PATTERN, ModelGlossary, prepare_glossary
from headway.text.words import contains_words

Make = Callable[..., Translator]


def found(glossary: Glossary, text: str) -> list[str]:
    return [entry.source for entry in glossary.matches(text)]


ROWS = [
    ("Haus", "house|home"),
    ("rote Haus", "red house"),
    ("Haus und Hof", "house and yard"),
    ("Mars", "Mars", "exact"),
    ("mars", "bar"),
    ("C++", "C++"),
    ("猫", "cat"),
    ("l'eau", "water"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("das haus!", ["Haus"]),
        ("Hausboot im Rathaus", []),
        ("Das  ROTE\tHaus", ["rote Haus"]),
        ("das rote Haus und Hof", ["Haus und Hof"]),  # the longest first: 12 characters and 9
        ("Haus, rote Haus", ["Haus", "rote Haus"]),
        ("Haus Haus", ["Haus"]),
        ("der Mars", ["Mars"]),
        ("der mars, der MARS", ["mars"]),
        ("in C++ und C", ["C++"]),
        ("黑猫在睡觉", ["猫"]),
        ("de l'eau", ["l'eau"]),
        ("", []),
    ],
)
def test_the_longest_whole_words_apply(text: str, expected: list[str]) -> None:
    assert found(Glossary(ROWS), text) == expected


@given(text=st.lists(st.sampled_from([*"abc", " ", "ab", "-", "A", "\u0301"]), max_size=12).map("".join))
@settings(derandomize=True, max_examples=300)
def test_matches_are_those_of_a_plain_search(text: str) -> None:
    """Some entry applies exactly if the text contains a source phrase as whole words, letter for letter."""
    text = text.lstrip().lstrip("\u0301")  # a mark with nothing before it
    rows = [("a", "x", "exact"), ("ab c", "x", "exact"), ("b-a", "x", "exact")]
    plain = {source for source, *_ in rows if contains_words(" ".join(text.split()), source)}
    applied = set(found(Glossary(rows), text.strip()))
    assert applied <= plain
    assert bool(applied) == bool(plain)


def test_alternatives_may_begin_with_a_capital_letter_if_case_is_ignored() -> None:
    ignored, exact = Glossary([("Haus", "house|home"), ("Mars", "mars", "exact")]).entries
    assert ignored.accepted_targets == ("house", "home", "House", "Home")
    assert exact.accepted_targets == ("mars",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", 'Haus\thouse|home\n\nMars, "der"\tMars\texact\n'),
        ("a.txt", 'source\ttarget\tcase\nHaus\thouse|home\t\nMars, "der"\tMars\texact\n'),
        ("a.csv", '\ufeffHaus,house|home\r\n"Mars, ""der""",Mars,exact\r\n'),
        ("a.csv", 'Source,Target\n\n" Haus ",house | home\n"Mars, ""der""",Mars,exact\n'),
    ],
)
def test_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    glossary = headway.Glossary.load(tmp_path / name)
    assert [(each.source, each.targets, each.case) for each in glossary.entries] == [
        ("Haus", ("house", "home"), "ignore"),
        ('Mars, "der"', ("Mars",), "exact"),
    ]
    assert glossary == Glossary([("Haus", "house|home"), ('Mars, "der"', "Mars", "exact")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a.tsv: is empty"),
        (b"\n \n", r"a.tsv: has no entries; expected lines with a source and a target phrase"),
        (b"a\tb\nH\0us\tb\n", r"a.tsv, line 2: looks binary"),
        (b"a\tb\nH\xe4us\tb\n", r"a.tsv, line 2: byte 2 of the line \(0xE4\) is not UTF-8"),
        (b"a\tb\nHaus\n", r"a.tsv, line 2: 1 column; expected a source phrase, a target phrase and optionally"),
        (b"a\tb\texact\td\n", r"a.tsv, line 1: 4 columns; expected .*; separate columns with tabs"),
        (b"a\tb\n\t b\n", r"a.tsv, line 2: a phrase is empty; expected words in each column"),
        (b"a\tb||c\n", r"a.tsv, line 1: a phrase is empty"),
        (b"a\t" + b"b|" * 100 + b"b\n", r"a.tsv, line 1: 101 alternatives; expected at most 100"),
        (b"a\tb\x07\n", r"a.tsv, line 1: 'b\\x07' contains a control character"),
        (b"a\tb\tnever\n", r"a.tsv, line 1: case rule 'never'; expected ignore or exact"),
        (b"Haus\thome\n\nhaus\thouse\n", r"a.tsv, line 3: 'haus' is translated as 'house', but as 'home' in .*line 1;"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        Glossary.load(tmp_path / "a.tsv")
    assert "\n" not in str(caught.value)


def test_bad_quotes_in_a_csv_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"c"d,e\n')
    with pytest.raises(DataError, match=r"a.csv, line 2: not valid CSV"):
        Glossary.load(tmp_path / "a.csv")


def test_the_same_entry_twice_is_one() -> None:
    assert found(Glossary([("Haus", "house|home"), ("haus", "home|house"), ("Haus", "Haus", "exact")]), "Haus") == [
        "Haus"
    ]


def test_entries_that_a_model_cannot_produce_are_refused(make_translator: Make) -> None:
    characters, bpe = make_translator("characters"), make_translator("bpe")
    with pytest.raises(ConfigError, match=r"glossary, row 2: 'Qu' contains characters or words that this model's voc"):
        characters.translate("das", glossary=Glossary([("das", "Haus|Qu"), ("rote", "Qu")]))
    long = Glossary([("das", "x" * 60)])
    with pytest.raises(LengthError, match=r"row 1: 'x+' has 60 tokens; expected at most 50; shorten the entry"):
        bpe.translate("das", glossary=long)
    with pytest.raises(LengthError, match=r"has 3 tokens; expected at most 2"):
        bpe.translate("das", DecodingOptions(max_length=2), glossary=Glossary([("das", "xyz")]))
    for options in ({"beam_size": 1}, {"groups": 2}):
        with pytest.raises(ConfigError, match=r"a glossary cannot be combined with (groups|beam_size = 1)"):
            bpe.translate("das", DecodingOptions.parse(options, "test"), glossary=Glossary([("das", "der")]))


TERMS = Glossary([("das", "Baum"), ("rote", "grüne|und"), ("Haus", "ein", "exact"), ("nie", "nie")])


class TestTranslations:
    @pytest.mark.parametrize("kind", ["bpe", "characters", "whitespace", pytest.param("words", marks=pytest.mark.slow)])
    def test_contain_what_applies_and_nothing_else_changes(self, make_translator: Make, kind: str) -> None:
        model = make_translator(kind)
        glossary = Glossary([("das", "Baum"), ("rote", "grüne|und"), ("Haus", "ein", "exact")])
        texts = ["das rote Haus", "der Baum", "rote haus"]
        options = DecodingOptions(n_best=2)
        translations = model.translate(texts, options, glossary=glossary)
        free = model.translate(texts[1], options)
        assert [each.ids for each in translations[1].candidates] == [each.ids for each in free.candidates]
        expected = [["das", "rote", "Haus"], [], ["rote"]]
        for translation, sources in zip(translations, expected, strict=True):
            assert translation.glossary == translation.candidates[0].glossary
            for candidate in translation.candidates:
                assert candidate.glossary is not None
                assert [term.source for term in candidate.glossary] == sources
                for term in candidate.glossary:
                    assert term.met
                    words = [*term.targets, *(target.capitalize() for target in term.targets)]
                    assert any(WordPhrase(word).occurs_in(candidate.text) for word in words)

    def test_begin_without_a_space(self, make_translator: Make) -> None:
        model = make_translator("bpe")
        found = [model.translate("das", glossary=Glossary([("das", word)])) for word in ("Baum", "Haus", "ein", "und")]
        raw = [model.bundle.target_tokenizer.decode(each.candidates[0].ids) for each in found]
        assert any(text.startswith(" ") for text in raw), "the test needs a search that begins with ' Baum'"
        assert [each.text for each in found] == [text.strip() for text in raw]

    def test_without_a_glossary_have_none(self, make_translator: Make) -> None:
        assert make_translator().translate("das").glossary is None

    def test_tell_what_was_not_met(self, make_translator: Make) -> None:
        options = DecodingOptions(no_repeat_ngram=1, max_length=3)
        found = make_translator("whitespace").translate("das rote", options, glossary=Glossary([("das", "und und")]))
        assert found.glossary == (GlossaryTerm("das", ("und und",), met=False),)

    def test_of_long_texts_take_the_entries_of_each_part(self, make_translator: Make) -> None:
        model = make_translator("whitespace", settings={"max_source_tokens": 4})
        found = model.translate("das ein der rote Baum Haus und", glossary=_known(TERMS, 3))
        assert found.glossary is not None
        assert [(term.source, term.met) for term in found.glossary] == [("das", True), ("rote", True), ("Haus", True)]

    def test_keep_prefix_and_phrases(self, make_translator: Make) -> None:
        source = Source("das rote", prefix="der", include=("Haus",))
        found = make_translator().translate(source, glossary=_known(TERMS, 3))
        assert found.text.startswith("der")
        assert found.candidates[0].unmet == ()
        assert found.glossary is not None
        assert all(term.met for term in found.glossary)

    def test_of_samples_are_checked_and_ordered(self, make_translator: Make) -> None:
        model = make_translator("whitespace")
        options = DecodingOptions(sampling=Sampling(seed=3), n_best=20, max_length=4)
        free = model.translate("das rote", options)
        found = model.translate("das rote", options, glossary=_known(TERMS, 3))
        assert sorted(each.ids for each in found.candidates) == sorted(each.ids for each in free.candidates)
        met = [sum(term.met for term in each.glossary or ()) for each in found.candidates]
        assert met == sorted(met, reverse=True)
        assert met[0] > 0

    def test_of_ensembles_contain_it(self, make_translator: Make) -> None:
        assert_contains_terms(Translator.ensemble([make_translator(seed=seed) for seed in (3, 4)]))

    @pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
    def test_in_int8_contain_it(self, make_translator: Make) -> None:
        assert_contains_terms(make_translator(settings={"precision": "int8"}, d_model=64, d_ff=64))


def assert_contains_terms(model: Translator) -> None:
    found = model.translate("das rote Haus", glossary=_known(TERMS, 3))
    assert found.glossary is not None
    assert [term.met for term in found.glossary] == [True, True, True]


def _known(glossary: Glossary, count: int) -> Glossary:
    """The first entries, which every test vocabulary can spell."""
    return Glossary([(each.source, "|".join(each.targets), each.case) for each in glossary.entries[:count]])


def test_a_glossary_goes_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(TERMS))
    assert copy == TERMS
    assert hash(copy) == hash(TERMS)
    assert found(copy, "das Haus") == found(TERMS, "das Haus")
    assert copy != Glossary([("das", "Baum")])


def test_errors_are_of_one_kind() -> None:
    with pytest.raises(HeadwayError, match=r"glossary, row 1: 1 column"):
        Glossary([("das",)])
    with pytest.raises(HeadwayError, match=r"contains a control character"):
        Glossary([("a", "\ud800")])


def test_threads_that_need_a_glossary_share_one(make_translator: Make) -> None:
    tokenizer = make_translator().bundle.target_tokenizer
    rows = [(f"Haus {number}", "house") for number in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: prepare_glossary(Glossary(rows), tokenizer, None), range(8)))
    assert all(each is found[0] for each in found)


def test_no_thread_waits_for_a_glossary_that_it_does_not_need(
    make_translator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, began, may_end = make_translator().bundle.target_tokenizer, Event(), Event()
    prepare = glossary_module._prepare

    def slow(glossary: Glossary, *rest: Any) -> Any:
        if len(glossary) > 1:
            began.set()
            assert may_end.wait(60)
        return prepare(glossary, *rest)

    monkeypatch.setattr(glossary_module, "_prepare", slow)
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(prepare_glossary, Glossary([("a", "Haus"), ("b", "das")]), tokenizer, None)
        assert began.wait(60)
        prepare_glossary(Glossary([("a", "das")]), tokenizer, None)
        may_end.set()
        large.result()


def test_a_glossary_that_cannot_be_prepared_is_not_kept(make_translator: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, glossary = make_translator().bundle.target_tokenizer, Glossary([("a", "das")])

    def fail(*_: Any) -> Any:
        raise DataError("no", where="test")

    with monkeypatch.context() as patch:
        patch.setattr(glossary_module, "_prepare", fail)
        with pytest.raises(DataError):
            prepare_glossary(glossary, tokenizer, None)
    assert glossary not in glossary_module._PREPARED[tokenizer]
    prepare_glossary(glossary, tokenizer, None)


def test_every_maximum_length_uses_the_same_prepared_glossary(make_translator: Make) -> None:
    tokenizer, glossary = make_translator().bundle.target_tokenizer, Glossary([("das", "xyz")])
    assert prepare_glossary(glossary, tokenizer, 40) is prepare_glossary(glossary, tokenizer, None)
    with pytest.raises(LengthError, match="expected at most 2"):
        prepare_glossary(glossary, tokenizer, 2)


@given(text=st.lists(st.sampled_from(["a", "b", "c", " ", "-"]), max_size=14).map("".join))
@settings(derandomize=True, max_examples=50)
def test_overlapping_occurrences_do_not_both_apply(text: str) -> None:
    """The longest applies first, and no two of those that apply share a word."""
    glossary = Glossary([(source, "x", "exact") for source in ("a", "a a", "a a b", "b c", "c-a", "b", "c a a")])
    words = sum(len(entry.source.split()) for entry in glossary.matches(text))
    assert words <= len(text.replace("-", " ").split())


def test_the_cache_is_bounded_and_keeps_no_tokenizer_alive(make_translator: Make) -> None:
    tokenizer = make_translator().bundle.target_tokenizer
    first = prepare_glossary(Glossary([("Haus", "house")]), tokenizer, None)
    for number in range(70):
        glossary = Glossary([("Haus", "house"), (f"das {number}", "the")])
        assert prepare_glossary(glossary, tokenizer, None) is prepare_glossary(glossary, tokenizer, None)
    assert prepare_glossary(Glossary([("Haus", "house")]), tokenizer, None) is not first
    copied = copy.copy(tokenizer)
    prepared = prepare_glossary(Glossary([("Haus", "house")]), copied, None)
    assert [*map(prepared.phrases, prepared.matches("das Haus"))] == [*map(first.phrases, first.matches("Haus"))]
    reference = weakref.ref(copied)
    del copied
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("end", ["", "\x85", " ", "|"])
def test_many_alternatives_take_no_long_time(end: str) -> None:
    began = time.process_time()
    re.search(TARGET_PATTERN, "|".join(["abc"] * 5000) + end)
    assert time.process_time() - began < 5


def test_alternatives_are_counted_before_they_are_tokenized(
    make_translator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a short text to which entries with very many alternatives apply would take long to refuse."""
    translator = make_translator()
    letters = "abcdefghijklmnopqrstuvwxyz"
    glossary = Glossary([(letter, "|".join(["a"] * 100)) for letter in letters])
    monkeypatch.setattr(ModelGlossary, "phrases", None)
    (refused,) = translator.translate_each([" ".join(letters)], glossary=glossary)
    assert "2,600 phrases of the glossary" in str(refused)


def test_the_garbage_collector_stays_away_from_large_glossaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops all threads, and looks at all entries each time."""
    phases: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        phases.append(phase)

    monkeypatch.setattr(glossary_module, "_MANY_ENTRIES", 3000)
    rows = [[f"word{number}", f"Wort{number}"] for number in range(3000)]
    gc.collect()
    gc.callbacks.append(note)
    try:
        glossary = Glossary(rows)
        num_young = gc.get_count()[0]
    finally:
        gc.callbacks.remove(note)
    assert len(phases) <= 4  # some collections before it begins
    assert num_young < len(glossary)
    assert gc.isenabled()
