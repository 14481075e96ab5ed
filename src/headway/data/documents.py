"""Documents for language models: plain text and JSONL, read in pieces so that documents of any size fit in memory.

A plain text file is one document, or has one document per line, or documents between blank lines. A ``.jsonl`` file has
one document per line, in the field ``text``. Files may be compressed (``.gz``, ``.zst``). Text is UTF-8.

Long documents are read in pieces of about 64 KiB, which end at line ends. The last piece of a document ends in
:data:`END`. Tokens never cross the border between two pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from headway.data.encoding import TextEncoder
from headway.data.readers import Corpus, TextSize, read_jsonl, read_lines, text_size
from headway.errors import DataError
from headway.text.base import EOS
from headway.text.corpus_encoder import PackedIds

END = "\0"  # ends a document; the readers refuse this character in text
_PIECE = 1 << 16  # characters
_GLOB = frozenset("*?[")


class TextCorpus(Corpus):
    """The files of a corpus of documents."""

    files: tuple[str, ...] = Field(
        description="Files of plain text or .jsonl, also .gz and .zst; folders, which stand for all files inside; and "
        "patterns such as books/*.txt.",
    )
    fields: tuple[str, ...] | None = Field(
        None, description="Name of the field of .jsonl records that contains the text (default text)."
    )
    documents: Literal["file", "line", "blank_lines"] = Field(
        "file", description="What a document is in plain text: the file, each line, or the text between blank lines."
    )
    weight: float = Field(
        1.0, gt=0, description="How many times an epoch reads each text; 0.5 reads half of it, drawn anew each epoch."
    )

    @model_validator(mode="after")
    def _check(self) -> TextCorpus:
        if not self.files or not all(self.files):
            raise ValueError("files: expected at least one file, folder or pattern")
        if self.fields is not None and len(self.fields) != 1:
            raise ValueError("fields: expected the name of one field, such as ['text']")
        if self.source_language or self.target_language:
            raise ValueError("a text has no source_language or target_language; leave the key out")
        return self

    def size(self, folder: Path) -> TextSize:
        """Return the numbers of lines and bytes of the files in ``folder``. There are no more pieces than lines."""
        sizes = [text_size(folder / name) for name in self.files]
        return TextSize(sum(size.lines for size in sizes), sum(size.num_bytes for size in sizes))

    def expanded(self, folder: Path) -> TextCorpus:
        """Return this corpus with folders and patterns replaced by the files that they mean, in alphabetical order.

        Raises:
            DataError: A folder is empty, or a pattern matches no file.
        """
        names: list[str] = []
        for name in self.files:
            path = folder / name
            if path.is_dir():
                files = sorted(str(Path(name, file.relative_to(path))) for file in path.rglob("*") if file.is_file())
            elif _GLOB & set(name):
                matches = glob(name, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
                files = sorted(match for match in matches if (folder / match).is_file())
            else:
                names.append(name)
                continue
            if not files:
                raise DataError(f"{path}: no file; expected files of plain text or .jsonl")
            names += files
        return self.model_copy(update={"files": tuple(names)})


def read_documents(corpus: TextCorpus, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the pieces of all documents, each with an empty second text.

    Raises:
        DataError: A file cannot be read, or contains no text.
    """
    for name in corpus.files:
        pieces = 0
        for piece in _read(folder / name, corpus):
            yield piece, ""
            pieces += 1
        if not pieces:
            raise DataError(f"{folder / name}: contains only white space; expected text")


def read_whole_documents(corpus: TextCorpus, folder: Path) -> Iterator[str]:
    """Yield each document as one text."""
    pieces: list[str] = []
    for piece, _ in read_documents(corpus, folder):
        pieces.append(piece.removesuffix(END))
        if piece.endswith(END):
            yield "".join(pieces)
            pieces = []


def read_texts(corpus: TextCorpus, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the pieces of all documents without the marks of their ends, for training a tokenizer."""
    for piece, _ in read_documents(corpus, folder):
        yield (piece.removesuffix(END),)


def _read(path: Path, corpus: TextCorpus) -> Iterator[str]:
    if path.with_suffix("" if path.suffix in (".gz", ".zst") else path.suffix).suffix in (".jsonl", ".json"):
        for number, (text,) in enumerate(read_jsonl(path, corpus.fields or ("text",)), start=1):
            if END in text:
                raise DataError(f"{path}, line {number}: the text contains the character U+0000; remove it")
            yield from _pieces(line + "\n" for line in text.split("\n"))
        return
    lines = read_lines(path)
    if corpus.documents == "file":
        yield from _pieces(line + "\n" for line in lines)
    elif corpus.documents == "line":
        for line in lines:
            yield from _pieces([line + "\n"])
    else:
        yield from _paragraphs(lines)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of each run of lines that are not blank."""
    run: list[str] = []
    for line in lines:
        if line.strip():
            run.append(line + "\n")
        elif run:
            yield from _pieces(run)
            run = []
    yield from _pieces(run)


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Yield one document in pieces of whole lines, without white space at its end; nothing if it is blank."""
    piece: list[str] = []
    size = 0
    for line in lines:
        # A piece ends before a line with text, because white space at its end belongs to the text that follows.
        if size >= _PIECE and line.strip():
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    last = "".join(piece).rstrip()
    if last:
        yield last + END


class DocumentEncoder:
    """Tokenizes pieces of documents, and adds EOS after the last piece of each."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self._encoder.vocab_size

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return the ids of each piece."""
        packed = self._encoder.encode([text.removesuffix(END) for text in texts])
        is_last = np.fromiter((text.endswith(END) for text in texts), bool, len(texts))
        ends = np.cumsum(packed.lengths)[is_last]
        return PackedIds(np.insert(packed.ids, ends, EOS), packed.lengths + is_last)


class NoText:
    """Tokenizes every text to an empty row, for the unused side of a store of documents."""

    vocab_size = 0

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return an empty row for each text."""
        return PackedIds(np.empty(0, np.uint32), np.zeros(len(texts), np.int64))
