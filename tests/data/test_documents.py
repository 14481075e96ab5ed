"""Documents in plain text and JSONL: what a document is, pieces of long ones, and bad files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data import documents
from headway.data.documents import END, DocumentEncoder, TextCorpus, read_documents, read_texts
from headway.errors import ConfigError, DataError
from headway.text.base import EOS
from headway.text.corpus_encoder import CorpusEncoder
from headway.text.tokenizer import Tokenizer, TokenizerConfig


def read(folder: Path, **options: Any) -> list[str]:
    return [text for text, empty in read_documents(TextCorpus.parse(options, "test"), folder) if empty == ""]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n\nthree\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("file", ["one\ntwo\n\n\nthree"]),
        ("line", ["one", "two", "three"]),
        ("blank_lines", ["one\ntwo", "three"]),
    ],
)
def test_a_document_is_a_file_a_line_or_a_paragraph(text: Path, documents: str, expected: list[str]) -> None:
    assert read(text, files=["a.txt"], documents=documents) == [each + END for each in expected]


def test_jsonl_has_one_document_per_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one\\n\\ntwo"}\n{"body": "three"}\n', encoding="utf-8")
    assert read(tmp_path, files=["a.jsonl"], fields=["body"]) == ["one\n\ntwo" + END, "three" + END]


def test_compressed_files_folders_and_patterns(text: Path) -> None:
    (text / "more").mkdir()
    (text / "more" / "b.txt.gz").write_bytes(gzip.compress(b"four"))
    corpus = TextCorpus.parse({"files": ["a.txt", "more"]}, "test").expanded(text)
    assert corpus.files == ("a.txt", "more/b.txt.gz")
    assert len(read(text, files=corpus.files)) == 2
    assert TextCorpus.parse({"files": ["*/b.*"]}, "test").expanded(text).files == ("more/b.txt.gz",)
    with pytest.raises(DataError, match="no file; expected"):
        TextCorpus.parse({"files": ["*.md"]}, "test").expanded(text)


def test_long_documents_come_in_pieces_that_join_to_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_PIECE", 20)
    whole = "\n".join(f"line {number}" + "\n" * (number % 3) for number in range(40))
    (tmp_path / "a.txt").write_text(whole, encoding="utf-8")
    pieces = read(tmp_path, files=["a.txt"])
    assert len(pieces) > 10
    assert "".join(pieces) == whole + END
    assert all(piece.endswith(END) is (piece is pieces[-1]) for piece in pieces)
    assert not any(piece[0].isspace() for piece in pieces)


def test_the_encoder_ends_documents_with_eos_and_loses_nothing() -> None:
    tokenizer = Tokenizer.train(iter(["one two three"]), TokenizerConfig(kind="characters"))
    packed = DocumentEncoder(CorpusEncoder(tokenizer)).encode(["one ", "two" + END, END, "one" + END])
    rows = np.split(packed.ids, np.cumsum(packed.lengths)[:-1])
    assert [tokenizer.decode(row.tolist()) for row in rows] == ["one ", "two", "", "one"]
    assert [bool(len(row)) and int(row[-1]) == EOS for row in rows] == [False, True, True, True]


def test_text_for_a_tokenizer_has_no_marks(text: Path) -> None:
    corpus = TextCorpus.parse({"files": ["a.txt"], "documents": "line"}, "test")
    assert list(read_texts(corpus, text)) == [("one",), ("two",), ("three",)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\n", "contains only white space"),
        ("a.txt", b"one\ntw\xff", r"line 2: byte 3 of the line \(0xFF\) is not UTF-8"),
        ("a.txt", b"one\n\0", "looks binary"),
        ("a.jsonl", b'{"text": "a\\u0000b"}', r"line 1: the text contains the character U\+0000"),
        ("a.jsonl", b'{"txt": "a"}', "did you mean 'txt'"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path, files=[name])


def test_files_must_be_a_list() -> None:
    with pytest.raises(ConfigError, match="expected a list"):
        TextCorpus.parse({"files": "a.txt"}, "test")


def test_keys_of_parallel_corpora_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave the key out"):
        TextCorpus.parse({"files": ["a.txt"], "target_language": "en"}, "test")
    with pytest.raises(ConfigError, match="the name of one field"):
        TextCorpus.parse({"files": ["a.jsonl"], "fields": ["a", "b"]}, "test")
