"""Documents of every format: each text is translated exactly once, and everything else stays as it is."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
from document_samples import MAKERS, OFFICE, Words, all_text
from lxml import etree
from upper_case import UpperCaseTranslator

from headway.documents import translate_document

FEW = range(4)
MANY = range(100, 140)
_RUN = re.compile(r"\{[^}]*\}r")


def make(name: str, seed: int, folder: Path) -> tuple[Words, Path]:
    words, path = Words(seed), folder / f"{seed}.{name}"
    MAKERS[name](words, path)
    return words, path


def words_in(text: str) -> Counter[str]:
    """Return how often each made word occurs. Tags inside of words are ignored."""
    return Counter(
        re.findall(r"(?:tra|TRA|kee|KEE)[a-zA-Z]{4}(?![a-zA-Z])", re.sub(r"(?<=[a-z])</?w:[^>]*>(?=\w)", "", text))
    )


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("name", MAKERS)
def test_each_text_is_translated_exactly_once_and_nothing_is_lost(name: str, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        words, path = make(name, seed, tmp_path)
        translator = UpperCaseTranslator()
        target = path.with_stem(f"{seed}-out")
        translate_document(translator, path, target)
        read = words_in(" ".join(translator.texts))
        assert read == Counter(words.translated) + Counter(read & Counter(words.kept)), path
        found = words_in(all_text(target))
        is_bilingual = name in ("po", "xliff")  # keeps the source
        expected = {word.upper(): 1 for word in words.translated} | dict.fromkeys(words.kept, 1)
        expected |= dict.fromkeys(words.translated, 1) if is_bilingual else {}
        if is_bilingual:  # inline codes are in both languages
            found = Counter(dict.fromkeys(found, 1))
        assert {word: count for word, count in found.items() if word in expected} == expected, path


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_translation_that_changes_no_word_gives_the_same_document(name: str, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        _, path = make(name, seed, tmp_path)
        target = path.with_stem(f"{seed}-out")
        translate_document(UpperCaseTranslator(identity=True), path, target)
        assert structure(target) == structure(path), path


def structure(path: Path) -> object:
    """Return what must not change if the translation equals the source."""
    if path.suffix[1:] in OFFICE:
        with zipfile.ZipFile(path) as archive:
            return {name: _office_xml(archive.read(name)) for name in archive.namelist()}
    text = path.read_bytes()
    if path.suffix == ".po":
        return re.sub(rb'^msgstr.*\n(?:".*\n)*', b"", text, flags=re.MULTILINE)
    if path.suffix == ".xliff":
        return re.sub(rb'(?s)(<source>(.*?)</source>)<target[^>]*>\2</target>| state="translated"', rb"\1", text)
    return text


def _office_xml(data: bytes) -> bytes:
    """Return XML in which each object has a run, and adjacent texts with the same formatting are one run."""
    if not data.startswith(b"<"):
        return data
    root = etree.fromstring(data)
    for run in [each for each in root.iter() if _is_run(each)]:
        for child in list(run):
            if etree.QName(child).localname != "rPr":
                own = deepcopy(run)
                own[:] = [*deepcopy(run.findall("{*}rPr")), child]
                run.addprevious(own)
        run.getparent().remove(run)
    for paragraph in root.iter("{*}p", "{*}hyperlink", "{*}ins"):
        previous: etree._Element | None = None
        for run in list(paragraph):
            pieces = [child for child in run if etree.QName(child).localname == "t"] if _is_run(run) else []
            if not _is_run(run) or len(pieces) != len(run) - (run.find("{*}rPr") is not None) or not pieces:
                previous = None
                continue
            text = "".join(piece.text or "" for piece in pieces)
            for piece in pieces[1:]:
                run.remove(piece)
            pieces[0].text = text
            pieces[0].attrib.pop("{http://www.w3.org/XML/1998/namespace}space", None)
            if previous is not None and _format(previous) == _format(run):
                last = previous.find("{*}t")
                assert last is not None
                last.text = (last.text or "") + text
                paragraph.remove(run)
            elif not text:
                paragraph.remove(run)
            else:
                previous = run
    found: bytes = etree.tostring(root, method="c14n")
    return found


def _is_run(element: etree._Element) -> bool:
    return isinstance(element.tag, str) and bool(_RUN.fullmatch(element.tag))


def _format(run: etree._Element) -> bytes:
    properties = run.find("{*}rPr")
    found: bytes = b"" if properties is None else etree.tostring(properties, method="c14n")
    return found
