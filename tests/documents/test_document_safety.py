"""Documents from strangers: what is refused, with which reason, and that broken documents end in an error."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from document_samples import MAKERS, Words

from headway.documents import (
    DocumentError,
    DocumentLimits,
    ReadingOptions,
    document_format,
    fill_document,
    read_document,
)
from headway.documents.content import limit_processor_time
from headway.errors import HeadwayError

_DOCX = document_format("a.docx")


@pytest.fixture
def word(tmp_path: Path) -> Path:
    path = tmp_path / "a.docx"
    MAKERS["docx"](Words(1), path)
    return path


def changed(path: Path, change: Callable[[str, bytes], bytes], **added: bytes) -> Path:
    """Return a copy of a package with changed and added files."""
    copy = path.with_name("changed" + path.suffix)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, change(name, source.read(name)))
        for name, data in added.items():
            target.writestr(name, data)
    return copy


def same(_: str, data: bytes) -> bytes:
    return data


def refusal(path: Path, limits: DocumentLimits | None = None) -> str:
    with pytest.raises(DocumentError) as error:
        read_document(path, document_format(path.name), ReadingOptions(limits=limits or DocumentLimits()))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse
    assert "1,073,741,824 bytes; expected at most 67,108,864" in refusal(path)


def test_zip_bombs_are_refused(word: Path) -> None:
    assert "compressed by a factor of" in refusal(changed(word, same, **{"bomb.xml": bytes(20 << 20)}))
    assert "the unpacked document has" in refusal(word, DocumentLimits(unpacked_bytes=1000))
    assert "files; expected at most 3" in refusal(word, DocumentLimits(files=3))
    assert "the XML has" in refusal(word, DocumentLimits(xml_bytes=100))


def test_pictures_may_be_compressed_as_much_as_they_like(word: Path) -> None:
    copy = changed(word, same, **{"word/media/white.bmp": bytes(20 << 20)})
    assert read_document(copy, _DOCX).texts


def test_strict_open_xml_is_refused(word: Path) -> None:
    def strict(_: str, data: bytes) -> bytes:
        return data.replace(
            b"http://schemas.openxmlformats.org/wordprocessingml/2006/main",
            b"http://purl.oclc.org/ooxml/wordprocessingml/main",
        )

    assert "Strict Open XML variant; save it as an ordinary" in refusal(changed(word, strict))


def test_a_file_that_is_larger_than_the_archive_says_is_not_unpacked(word: Path) -> None:
    copy = changed(word, lambda name, data: data + b" " * 100_000 if name == "word/document.xml" else data)
    with zipfile.ZipFile(copy) as archive:
        size = archive.getinfo("word/document.xml").file_size
    data = copy.read_bytes()
    copy.write_bytes(data.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    assert "damaged" in refusal(copy)


def test_macros_are_refused(word: Path, tmp_path: Path) -> None:
    macro = changed(word, same)
    with zipfile.ZipFile(macro, "a") as archive:
        archive.writestr("word/vbaProject.bin", b"x")
    assert "macros" in refusal(macro)
    typed = changed(word, lambda _, data: data.replace(b"document.main+xml", b"document.macroEnabled.main+xml"))
    assert "macros" in refusal(typed)
    assert "macros" in refusal(tmp_path / "a.docm")


def test_encrypted_documents_are_refused(word: Path, tmp_path: Path) -> None:
    ole = tmp_path / "ole.docx"
    ole.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1000))
    assert "encrypted" in refusal(ole)
    data = bytearray(word.read_bytes())
    at = data.index(b"PK\x01\x02") + 8  # the flags in the directory
    data[at] |= 1
    word.write_bytes(data)
    assert "encrypted" in refusal(word)
    odt = tmp_path / "a.odt"
    MAKERS["odt"](Words(1), odt)
    entry = b"<manifest:encryption-data/></manifest:manifest>"
    assert "encrypted" in refusal(changed(odt, lambda _, data: data.replace(b"</manifest:manifest>", entry)))


@pytest.mark.parametrize("entity", ['SYSTEM "file:///etc/passwd"', '"lol"'])
def test_entities_are_refused(entity: str, word: Path, tmp_path: Path) -> None:
    doctype = f"<!DOCTYPE x [<!ENTITY e {entity}>]>".encode()
    xliff = (
        b'<xliff version="1.2"><file><body><trans-unit id="1"><source>a &e;</source></trans-unit></body></file></xliff>'
    )
    (tmp_path / "a.xlf").write_bytes(doctype + xliff)
    assert "document type" in refusal(tmp_path / "a.xlf")

    def add(name: str, data: bytes) -> bytes:
        return data.replace(b"<w:document", doctype + b"<w:document", 1) if name == "word/document.xml" else data

    assert "word/document.xml: the XML has a document type" in refusal(changed(word, add))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.xyz", b"a", "'.xyz' are not supported; expected .txt"),
        ("a", b"a", "the file has no extension"),
        ("a.docx", b"hello", "no valid zip archive"),
        ("a.txt", b"\xff\xfa", "not valid UTF-8 (byte 0)"),
        ("a.txt", b"a\0b", "null characters"),
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.po", b"hello", "no msgid"),
        ("a.srt", b"hello", "no subtitles"),
        ("a.xlf", b"<a/>", "not XLIFF"),
        ("a.xlf", b"<a>", "not valid"),
        ("a.xlf", b"<a>\0</a>", "Char 0x0 out of allowed range"),
        ("a.html", b"<meta charset=nonsense>", "'nonsense', which is unknown"),
    ],
)
def test_wrong_content_is_refused(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert reason in refusal(tmp_path / name)


def test_a_document_of_another_office_type_is_refused(word: Path, tmp_path: Path) -> None:
    for extension in ("pptx", "odt"):
        other = tmp_path / f"b.{extension}"
        other.write_bytes(word.read_bytes())
        assert "is not a" in refusal(other)


def test_the_source_is_never_the_target(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(HeadwayError, match="same file"):
        fill_document(lambda texts: [], tmp_path / "a.txt", tmp_path / "a.txt")


def test_a_place_that_cannot_be_written_to_is_an_error_before_the_work(tmp_path: Path) -> None:
    def translate(texts: object) -> list[str]:
        pytest.fail("it was translated in vain")

    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "file").touch()
    with pytest.raises(HeadwayError, match="cannot be written"):
        fill_document(translate, tmp_path / "a.txt", tmp_path / "file" / "b.txt")


def test_the_processor_time_is_limited() -> None:
    @limit_processor_time(DocumentLimits(processor_s=0.01))
    def compute() -> None:
        while True:
            pass

    with pytest.raises(DocumentError, match=r"takes too long to process; expected at most 0.01 s of processor time"):
        compute()


@pytest.mark.slow
def test_a_process_that_reads_a_document_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("*a* [b](c)\n\n" * 200_000)  # some seconds
    start = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'headway.documents.isolated', 'read', {str(tmp_path)!r}, "
        "'md', '{}', str(os.getpid())])\n"
        "while os.getpriority(os.PRIO_PROCESS, child.pid) < 19: time.sleep(0.01)\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        status = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        parent.kill()
    deadline = time.monotonic() + 30
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (tmp_path / "texts.json").exists()


def test_a_folder_is_not_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.docx").mkdir()
    assert "it is not a file" in refusal(tmp_path / "a.docx")


def fuzzed(data: bytes, seed: int) -> bytes:
    """Change some bytes of a file, or cut it."""
    chance, found = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[at] = chance.randrange(256)
            case 1:
                del found[at : at + chance.randint(1, 40)]
            case 2:
                found[at:at] = found[at // 2 : at // 2 + chance.randint(1, 60)]
            case _:
                found[at:at] = chance.choice([b"<", b">", b'"', b"\\", b"]", b"*", b"&#x0;", b"\0", b"{", b"%"])
        if not found:
            break
    return bytes(found)


def fuzzed_part(seed: int, name: str, data: bytes) -> bytes:
    """Change some bytes of an XML file of a package."""
    return fuzzed(data, seed) if name.endswith(".xml") else data


def run_fuzzed(name: str, folder: Path, seeds: range) -> None:
    original, path = folder / f"original.{name}", folder / f"fuzzed.{name}"
    for seed in seeds:
        if seed % 20 == seeds.start % 20:
            MAKERS[name](Words(seed), original)
        if name in ("docx", "odt", "pptx") and seed % 2:  # also inside of the archive
            path.write_bytes(changed(original, partial(fuzzed_part, seed)).read_bytes())
        else:
            path.write_bytes(fuzzed(original.read_bytes(), seed))
        target = folder / f"target.{name}"
        message = ""
        try:
            fill_document(lambda texts: [text.text for text in texts], path, target)
        except HeadwayError as error:
            message = str(error)
        assert bool(message) != target.exists(), seed
        assert "\n" not in message, seed
        target.unlink(missing_ok=True)


@pytest.mark.parametrize("name", MAKERS)
def test_broken_documents_end_in_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    run_fuzzed(name, tmp_path, range(10))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_many_broken_documents_end_in_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    run_fuzzed(name, tmp_path, range(1000, 1500))


def test_the_type_of_a_file_may_be_that_of_its_extension(word: Path) -> None:
    """As some programs write it: a default for .xml instead of a type for the document."""

    def with_default(name: str, data: bytes) -> bytes:
        if name != "[Content_Types].xml":
            return data
        text = data.decode()
        (kind,) = re.findall(r'<Override PartName="/word/document.xml" ContentType="([^"]+)"/>', text)
        text = text.replace(f'<Override PartName="/word/document.xml" ContentType="{kind}"/>', "")
        return re.sub(r'(<Default Extension="xml" ContentType=")[^"]+', rf"\g<1>{kind}", text).encode()

    copy = changed(word, with_default)
    assert read_document(copy, _DOCX).texts == read_document(word, _DOCX).texts


def test_a_damaged_entry_is_named(word: Path) -> None:
    copy = word.with_name("lzma.docx")
    with zipfile.ZipFile(word) as source, zipfile.ZipFile(copy, "w", zipfile.ZIP_LZMA) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        (info,) = (each for each in target.infolist() if each.filename == "word/document.xml")
        start, size = info.header_offset + 30 + len(info.filename), info.compress_size
    data = bytearray(copy.read_bytes())
    data[start + size // 2 : start + size // 2 + 40] = bytes(40)
    copy.write_bytes(data)
    assert "damaged" in refusal(copy)


@pytest.mark.parametrize(
    ("text", "extension"),
    [
        ("Great! " * 20_000, "md"),
        pytest.param("[^" * 50_000, "md", marks=pytest.mark.slow),
        ("a" + " " * 100_000 + "b", "md"),
        ("1\n00:00:01,000 --> 00:00:02,000\n" + "a\n" * 20_000, "srt"),
        ("1\n00:00:01,000 --> 00:00:02,000\n<" + "a" * 100_000, "srt"),
        pytest.param("<p>" + "<b>x</b> " * 30_000, "html", marks=pytest.mark.slow),
    ],
    ids=["exclamation", "footnotes", "spaces", "lines", "tag", "pairs"],
)
def test_time_grows_with_the_length_only(text: str, extension: str, tmp_path: Path) -> None:
    """Each of these took minutes, or would have."""
    source, target = tmp_path / f"a.{extension}", tmp_path / f"b.{extension}"
    source.write_text(text)
    began = time.process_time()
    fill_document(lambda texts: [each.text for each in texts], source, target)
    assert time.process_time() - began < 20
