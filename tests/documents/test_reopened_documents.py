"""Translated documents, opened by other readers (office documents by LibreOffice), and documents of Debian packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from document_samples import MAKERS, OFFICE, Words
from independent_readers import READERS
from upper_case import UpperCaseTranslator

from headway.documents import DocumentError, fill_document, translate_document

NUM_DOCUMENTS = 20
# What LibreOffice converts documents to, so that other programs can read their texts.
READABLE = {"docx": "odt", "odt": "docx", "pptx": "odp"}
SHARED = Path("/usr/share")


def convert(files: list[Path], extension: str, folder: Path) -> None:
    program = shutil.which("soffice")
    if program is None:
        pytest.skip("LibreOffice is not installed (apt-get install libreoffice-writer-nogui libreoffice-impress-nogui)")
    subprocess.run(
        [
            *(program, f"-env:UserInstallation=file://{folder}/profile", "--headless"),
            *("--convert-to", extension, "--outdir", str(folder / "converted"), *map(str, files)),
        ],
        check=True,
        capture_output=True,
        timeout=500,
    )


def paragraphs(path: Path) -> list[str]:
    """Return the paragraphs of a document that LibreOffice has written. Runs and spans do not matter."""
    name = "word/document.xml" if path.suffix == ".docx" else "content.xml"
    with zipfile.ZipFile(path) as archive:
        xml = archive.read(name).decode()
    found = re.split(r"</(?:text|w):(?:p|h)>", xml)
    return [text for text in (re.sub(r"<[^>]*>", "", each) for each in found) if text.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFICE)
def test_libreoffice_opens_translated_documents_and_finds_the_same_paragraphs(name: str, tmp_path: Path) -> None:
    made: list[tuple[Words, Path, Path]] = []
    for seed in range(NUM_DOCUMENTS):
        words, source = Words(seed), tmp_path / f"source{seed}.{name}"
        target = tmp_path / f"target{seed}.{name}"
        MAKERS[name](words, source)
        translate_document(UpperCaseTranslator(), source, target)
        made.append((words, source, target))
    convert([path for _, *pair in made for path in pair], READABLE[name], tmp_path)
    for words, source, target in made:
        before, after = (
            paragraphs(tmp_path / "converted" / f"{path.stem}.{READABLE[name]}") for path in (source, target)
        )
        assert [text.upper() for text in before] == [text.upper() for text in after], source
        shown = set(re.findall("tra[a-z]{4}", "\n".join(before)))
        assert shown <= set(words.translated)
        assert shown == {word.lower() for word in re.findall("TRA[A-Z]{4}", "\n".join(after))}, source


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_other_readers_see_the_same_document_with_translated_texts(name: str, tmp_path: Path) -> None:
    for seed in range(NUM_DOCUMENTS):
        source, target = tmp_path / f"source.{name}", tmp_path / f"target.{name}"
        words = Words(seed)
        MAKERS[name](words, source)
        translate_document(UpperCaseTranslator(), source, target)
        assert (source.read_bytes() == target.read_bytes()) == (not words.translated)
        assert READERS[name](source) == READERS[name](target), seed


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["txt", "html", "md"])
def test_other_readers_see_the_same_documents_of_debian_packages(extension: str, tmp_path: Path) -> None:
    files = [path for path in sorted(SHARED.glob(f"doc/**/*.{extension}")) if 0 < path.stat().st_size < 100_000][::7]
    if not files:
        pytest.skip(f"no .{extension} files below {SHARED}/doc")
    num_read, differing = 0, list[Path]()
    for path in files[:40]:
        target = tmp_path / path.name
        try:
            translate_document(UpperCaseTranslator(identity=True), path, target)
            seen = READERS[extension](path)
        except (DocumentError, UnicodeDecodeError):  # not UTF-8
            continue
        num_read += 1
        if READERS[extension](target) != seen:
            differing.append(path)
    # Tags that follow each other without a space in a word are placed by words, so a few pages differ.
    assert len(differing) <= num_read // 20, differing


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["txt", "html", "md"])
def test_documents_of_debian_packages_stay_as_they_are_if_no_word_changes(extension: str, tmp_path: Path) -> None:
    files = [path for path in sorted(SHARED.rglob(f"*.{extension}")) if 0 < path.stat().st_size < 200_000][:60]
    if not files:
        pytest.skip(f"no .{extension} files below {SHARED}")
    num_read = 0
    for path in files:
        target = tmp_path / path.name
        try:
            fill_document(lambda texts: [text.text for text in texts], path, target)
        except DocumentError:  # not UTF-8
            continue
        num_read += 1
        assert _without_trailing_space(target.read_bytes()) == _without_trailing_space(path.read_bytes()), path
    assert num_read > len(files) // 2


def _without_trailing_space(data: bytes) -> bytes:
    return re.sub(rb"[ \t]+(?=\r?\n|\Z)", b"", data)
