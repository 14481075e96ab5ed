"""Documents in plain text and JSONL: what a document is, pieces of long ones, and bad files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data import documents, readers
from headway.data.bad_lines import BadLines
from headway.data.documents import END_OF_DOCUMENT, DocumentEncoder, TextCorpus, read_documents, read_texts
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
    assert read(text, files=["a.txt"], documents=documents) == [each + END_OF_DOCUMENT for each in expected]


def test_jsonl_has_one_document_per_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one\\n\\ntwo"}\n{"body": "three"}\n', encoding="utf-8")
    assert read(tmp_path, files=["a.jsonl"], fields=["body"]) == [
        "one\n\ntwo" + END_OF_DOCUMENT,
        "three" + END_OF_DOCUMENT,
    ]


def test_compressed_files_folders_and_patterns(text: Path) -> None:
    (text / "more").mkdir()
    (text / "more" / "b.txt.gz").write_bytes(gzip.compress(b"four"))
    corpus = TextCorpus.parse({"files": ["a.txt", "more"]}, "test").with_expanded_files(text, print)
    assert corpus.files == ("a.txt", "more/b.txt.gz")
    assert len(read(text, files=corpus.files)) == 2
    assert TextCorpus.parse({"files": ["*/b.*"]}, "test").with_expanded_files(text, print).files == ("more/b.txt.gz",)
    with pytest.raises(DataError, match="no files; expected"):
        TextCorpus.parse({"files": ["*.md"]}, "test").with_expanded_files(text, print)


def test_long_documents_come_in_pieces_that_join_to_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_PIECE", 20)
    whole = "\n".join(f"line {number}" + "\n" * (number % 3) for number in range(40))
    (tmp_path / "a.txt").write_text(whole, encoding="utf-8")
    pieces = read(tmp_path, files=["a.txt"])
    assert len(pieces) > 10
    assert "".join(pieces) == whole + END_OF_DOCUMENT
    assert all(piece.endswith(END_OF_DOCUMENT) is (piece is pieces[-1]) for piece in pieces)
    assert not any(piece[0].isspace() for piece in pieces)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_a_long_line_is_read_in_pieces_that_end_before_single_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(documents, "_PIECE", 20)
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 7)
    whole = "short\n" + "ein Wort und öfter  zwei 日本 " * 20 + "end\nlast line"
    content = json.dumps({"text": whole}) if name == "a.jsonl" else whole
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    pieces = read(tmp_path, files=[name])
    assert "".join(pieces) == whole + END_OF_DOCUMENT
    assert 20 < max(map(len, pieces)) <= 41
    assert all(piece[0] == " " and piece[1] != " " for piece in pieces[1:-1])
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 1 << 18)
    assert read(tmp_path, files=[name]) == pieces


@pytest.mark.parametrize("documents_are", ["line", "blank_lines"])
def test_documents_with_long_lines_end_where_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents_are: str
) -> None:
    monkeypatch.setattr(documents, "_PIECE", 20)
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 7)
    first, second = "one two " * 20 + "x", "e\u0301" * 60
    (tmp_path / "a.txt").write_text(f"{first}\n\n{second}\n", encoding="utf-8")
    pieces = read(tmp_path, files=["a.txt"], documents=documents_are)
    assert "".join(pieces).split(END_OF_DOCUMENT) == [first, second, ""]
    assert not any(piece.startswith("\u0301") for piece in pieces)


def test_an_existing_path_is_taken_literally(text: Path) -> None:
    for name in ("book [v2].txt", "what?.txt", "b*"):
        (text / name).write_text("five", encoding="utf-8")
        assert TextCorpus.parse({"files": [name]}, "test").with_expanded_files(text, print).files == (name,)
    (text / "vol [1]").mkdir()
    (text / "vol [1]" / "c.txt").write_text("six", encoding="utf-8")
    assert TextCorpus.parse({"files": ["vol [1]"]}, "test").with_expanded_files(text, print).files == ("vol [1]/c.txt",)


def test_hidden_files_of_a_folder_are_left_out_and_named_ones_are_read(text: Path) -> None:
    for name in (".DS_Store", ".git/index", "sub/._a.txt", "Thumbs.db", ".notes/b.txt"):
        (text / name).parent.mkdir(exist_ok=True)
        (text / name).write_bytes(b"\0")
    messages: list[str] = []
    corpus = TextCorpus.parse({"files": [".", ".notes", ".DS_Store"]}, "test").with_expanded_files(
        text, messages.append
    )
    assert corpus.files == ("a.txt", ".notes/b.txt", ".DS_Store")
    assert len(messages) == 1
    assert "hidden files are skipped: 5 (.DS_Store, .git/index, .notes/b.txt, …)" in messages[0]


def test_bad_lines_are_listed_together_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\nt\0wo\nthree\xff\nfo\rur\r\nfive\r\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "six"}\n{"text": "\\u0000"}\n{"txt": 1}\n')
    corpus = TextCorpus.parse({"files": ["a.txt", "b.jsonl"], "documents": "line"}, "test")
    with pytest.raises(DataError, match="5 lines cannot be read") as caught:
        list(read_documents(corpus, tmp_path))
    assert [f"line {number}:" in str(caught.value) for number in range(1, 5)] == [False, True, True, True]
    bad_lines = BadLines("skip")
    assert [text for text, _ in read_documents(corpus, tmp_path, bad_lines=bad_lines)] == [
        f"{word}{END_OF_DOCUMENT}" for word in ("one", "five", "six")
    ]
    assert bad_lines.count == 5


def test_the_encoder_ends_documents_with_eos_and_loses_nothing() -> None:
    tokenizer = Tokenizer.train(iter(["one two three"]), TokenizerConfig(kind="characters"))
    packed = DocumentEncoder(CorpusEncoder(tokenizer)).encode(
        ["one ", "two" + END_OF_DOCUMENT, END_OF_DOCUMENT, "one" + END_OF_DOCUMENT]
    )
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
    with pytest.raises(ConfigError, match="remove the key"):
        TextCorpus.parse({"files": ["a.txt"], "target_language": "en"}, "test")
    with pytest.raises(ConfigError, match="the name of one field"):
        TextCorpus.parse({"files": ["a.jsonl"], "fields": ["a", "b"]}, "test")
