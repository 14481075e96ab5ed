"""The glossaries that a service stores, and what it sends of them to workers."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from pathlib import Path

import pytest

from headway.errors import ConfigError, DataError
from headway.serve.errors import GlossariesFullError, UnknownDictionaryError, UnknownGlossaryError
from headway.serve.glossaries import Dictionary, GlossaryLines, GlossaryStore, StoredGlossary

ROWS = [["Haus", "house"], ["Mars", "Mars", "exact"]]


def make(owner: str = "one", name: str = "terms") -> StoredGlossary:
    return StoredGlossary.create(
        owner, name, [Dictionary.from_rows("DE", "en-GB", ROWS), Dictionary.from_rows("de", "fr", ROWS[:1])]
    )


def store(folder: Path | None = None, glossaries: int = 10, characters: int = 1000) -> GlossaryStore:
    return GlossaryStore(folder, max_glossaries=glossaries, max_characters=characters)


def test_lines_are_the_glossary() -> None:
    lines = pickle.loads(pickle.dumps(GlossaryLines(make().dictionary("de", "en").lines)))
    assert [(each.source, each.targets, each.case) for each in lines.build().entries] == [
        ("Haus", ("house",), "ignore"),
        ("Mars", ("Mars",), "exact"),
    ]
    assert lines.build() is lines.build()  # built once


def test_entries_that_differ_only_in_case_both_apply() -> None:
    lines = GlossaryLines("Essen\tfood\nessen\teat\nHaus\thouse\nHAUS\thouse")
    assert [(each.source, each.case) for each in lines.build().entries] == [
        ("Essen", "exact"),
        ("essen", "exact"),
        ("Haus", "ignore"),
        ("HAUS", "ignore"),
    ]
    with pytest.raises(DataError):
        GlossaryLines("a\tb\na\tc").build()


@pytest.mark.parametrize("phrase", ["a\tb", "a\nb", "\ud800"])
def test_phrases_that_lines_cannot_contain(phrase: str) -> None:
    with pytest.raises(DataError, match="row 2"):
        Dictionary.from_rows("de", "en", [["a", "b"], ["c", phrase]])


def test_dictionaries_by_languages_without_region() -> None:
    glossary = make()
    assert glossary.dictionary("de-AT", "EN-US").rows == ROWS
    with pytest.raises(UnknownDictionaryError, match="en to de"):
        glossary.dictionary("en", "de")
    more = glossary.with_entries(Dictionary.from_rows("de", "en", [["Haus", "home"], ["Hof", "yard"]]))
    assert more.dictionary("de", "en").rows == [["Haus", "home"], ["Mars", "Mars", "exact"], ["Hof", "yard"]]
    assert more.dictionary("de", "fr") == glossary.dictionary("de", "fr")
    fewer = more.without_dictionary(more.dictionary("de", "en"))
    assert [(each.source, each.target) for each in fewer.dictionaries] == [("de", "fr")]
    with pytest.raises(ConfigError, match="several dictionaries"):
        StoredGlossary.create("one", "x", [Dictionary.from_rows("de", "en", ROWS)] * 2)
    for name in ("", "x" * 1025, "a\nb"):
        with pytest.raises(ConfigError, match="name"):
            glossary.with_name(name)


def test_owners_do_not_see_each_other() -> None:
    own, others = make("one"), make("two")
    found = store()
    found.put(own)
    found.put(others)
    assert found.owned_by("one") == [own]
    assert found.get("two", others.id) == others
    with pytest.raises(UnknownGlossaryError):
        found.get("one", others.id)


def test_limits() -> None:
    glossary = make()
    few = store(glossaries=1)
    few.put(glossary)
    few.put(glossary.with_name("other"))  # replaces it
    with pytest.raises(GlossariesFullError, match="at most 1 glossaries"):
        few.put(make())
    with pytest.raises(GlossariesFullError, match="20 characters"):
        store(characters=20).put(glossary)
    store(characters=glossary.size).put(glossary)


def test_a_folder_keeps_them(tmp_path: Path) -> None:
    glossaries = [make(name=name) for name in ("ä", "b", "c")]
    first = store(tmp_path / "glossaries")
    for each in glossaries:
        first.put(each)
    first.delete(glossaries[1])
    second = store(tmp_path / "glossaries")
    assert second.owned_by("one") == [glossaries[0], glossaries[2]]
    assert store().owned_by("one") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(make().as_dict())])
def test_files_that_are_not_glossaries_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        store(tmp_path)


def test_a_built_glossary_is_freed_with_its_lines() -> None:
    """A worker freezes what it keeps, so a cycle of references would never be collected."""
    lines = GlossaryLines("a\tb")
    built, gone = weakref.ref(lines.build()), weakref.ref(lines)
    gc.disable()
    try:
        del lines
        assert (built(), gone()) == (None, None)
    finally:
        gc.enable()
