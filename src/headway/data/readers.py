"""The files of a corpus, and readers that yield examples from them.

A corpus is one tab-separated file (``.tsv``), one file of comma-separated values with quotes (``.csv``), one file with
a JSON object per line (``.jsonl`` or ``.json``), or two line-aligned plain text files. Files may be compressed
(``.gz``, ``.zst``). Text is UTF-8, and only ``\\n`` and ``\\r\\n`` end a line. U+0085, U+2028 and the other separators
of :meth:`str.splitlines` are text, so that the two files of a corpus stay aligned and lines are counted as by
``wc -l``. Readers strip nothing and drop nothing. Empty texts are removed later, by the filters.

Readers are generators: they keep one block of the file in memory, and report a missing file when the first item is
requested.
"""

from __future__ import annotations

import codecs
import csv
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import zstandard
from pydantic import Field, field_validator, model_validator

from headway.config import Config, spelling_hint
from headway.errors import ConfigError, DataError

_BLOCK_BYTES = 1 << 18
_MAX_CELL = 1 << 30  # characters; a longer cell usually means that a quote is never closed
_COMPRESSIONS = (".gz", ".zst")

FileFormat = Literal["text", "tsv", "csv", "jsonl"]
# A new format gets its extension here, its defaults in _selected_fields and its reader in read_examples.
_EXTENSIONS: dict[str, FileFormat] = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}


class Corpus(Config):
    """The files of one corpus, and the columns to read from them."""

    files: tuple[str, ...] = Field(
        description="One .tsv, .csv or .jsonl file, or two line-aligned plain text files (source, target). Files may "
        "be compressed (.gz, .zst)."
    )
    fields: tuple[Annotated[str, Field(coerce_numbers_to_str=True)], ...] | None = Field(
        default=None,
        description="Columns to read. .tsv: numbers from 1 (default 1, 2). .jsonl, and .csv with a header line: names "
        "(default source, target; for classification label, text). .csv without a header line: numbers.",
    )
    weight: float = Field(
        default=1.0,
        gt=0,
        description="Number of times that an epoch contains each example. 0.5: a different random half in each epoch.",
    )
    source_language: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Source language of this corpus, for training that starts from an imported model with several "
        "source languages. Default: the language that the model assumes.",
    )
    target_language: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Target language of this corpus, for models with several target languages: its tag, such as "
        "<2en>, is put before each source. Either all corpora have this key or none.",
    )

    @property
    def format(self) -> FileFormat:
        """The format of the files, by their extension."""
        return _format_of(self.files[0]) if len(self.files) == 1 else "text"

    def size(self, folder: Path) -> TextSize:
        """Return the numbers of lines and bytes of the files in ``folder``. There are no more examples than lines."""
        sizes = [text_size(folder / name) for name in self.files]
        # A second file is aligned with the first, so it has the same number of lines.
        return TextSize(sizes[0].lines, sum(size.num_bytes for size in sizes))

    @field_validator("files", mode="before")
    @classmethod
    def _refuse_bare_name(cls, files: Any) -> Any:
        if isinstance(files, str):
            raise ValueError(f"expected a list of one or two files, for example [{json.dumps(files)}]")
        return files

    @model_validator(mode="after")
    def _check(self) -> Corpus:
        if len(self.files) not in (1, 2) or not all(self.files):
            raise ValueError(
                f"files: expected one .tsv, .csv or .jsonl file, or two plain text files; got {_listing(self.files)}"
            )
        formats = [_format_of(file) for file in self.files]
        if formats == ["text"]:
            raise ValueError(
                f"files: {self.files[0]!r} alone is neither .tsv, .csv nor .jsonl; "
                "give a .tsv, .csv or .jsonl file, or two plain text files (source, target)"
            )
        if len(formats) == 2 and formats != ["text", "text"]:
            raise ValueError(
                f"files: two files are read as plain text, but got {_listing(self.files)}; "
                "a .tsv, .csv or .jsonl file contains both sides, so give it alone"
            )
        if self.fields is not None:
            _check_fields(self.fields, self.format)
        return self


def _check_fields(fields: tuple[str, ...], form: FileFormat) -> None:
    if form == "text":
        raise ValueError("fields: plain text files have no fields; leave the key out")
    if not fields:
        raise ValueError("fields: empty; leave the key out for the default")
    if len(set(fields)) < len(fields):
        raise ValueError(f"fields: {_listing(fields)} names one field twice")
    if form == "tsv":
        for field in fields:
            if not _is_column(field):
                raise ValueError(f"fields: {field!r} is not a column number; columns of a .tsv are counted from 1")


def _is_column(field: str) -> bool:
    return field.isascii() and field.isdecimal() and int(field) > 0


def _format_of(file: str) -> FileFormat:
    path = Path(file)
    if path.suffix in _COMPRESSIONS:
        path = path.with_suffix("")
    return _EXTENSIONS.get(path.suffix, "text")


def _listing(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def read_examples(
    corpus: Corpus, folder: Path, text_names: tuple[str, ...] = ("source", "target")
) -> Iterator[tuple[str, ...]]:
    """Yield the examples of ``corpus`` in the order of its files.

    Args:
        corpus: The corpus to read.
        folder: Base of relative file names.
        text_names: Names of an example's texts, which are the default of ``Corpus.fields`` in .csv and .jsonl files.

    Raises:
        ConfigError: The corpus does not have one field or file for each of ``text_names``.
        DataError: A file cannot be read, or a line does not contain an example.
    """
    paths = [folder / file for file in corpus.files]
    if corpus.format == "text":
        if len(paths) != len(text_names):
            texts = _count(len(text_names), "text")
            raise ConfigError(f"files: {len(paths)} plain text files, but an example has {texts}")
        return _read_aligned(paths)
    fields = corpus.fields or (tuple(map(str, range(1, len(text_names) + 1))) if corpus.format == "tsv" else text_names)
    if len(fields) != len(text_names):
        raise ConfigError(
            f"fields: {_listing(fields)} selects {_count(len(fields), 'text')}, but an example has {len(text_names)} "
            f"here; name {len(text_names)} in fields ({corpus.files[0]})"
        )
    match corpus.format:
        case "tsv":
            return _read_tsv(paths[0], [int(field) - 1 for field in fields])
        case "csv":
            return _read_csv(paths[0], fields)
        case _:
            return read_jsonl(paths[0], fields)


def _read_aligned(paths: list[Path]) -> Iterator[tuple[str, ...]]:
    readers = [read_lines(path) for path in paths]
    for paired, texts in enumerate(zip_longest(*readers)):
        if None in texts:
            rest = [sum(1 for _ in reader) for reader in readers]
            lengths = [paired + (text is not None) + more for text, more in zip(texts, rest, strict=True)]
            counts = " but ".join(f"{path} has {_count(n, 'line')}" for path, n in zip(paths, lengths, strict=True))
            longest = paths[lengths.index(max(lengths))]
            raise DataError(
                f"{counts}: line {paired + 1} of {longest} has no partner; line n of one file must match line n of "
                "the other: export both again together, and remove lines only in pairs"
            )
        yield texts


def _read_tsv(path: Path, columns: list[int]) -> Iterator[tuple[str, ...]]:
    needed = max(columns) + 1
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) < needed:
            actual = _count(len(cells), "column") if line.strip() else "blank"
            raise DataError(
                f"{path}, line {number}: {actual}, but {_count(needed, 'column')} needed; "
                "columns are separated by one tab, without quotes"
            )
        yield tuple([cells[column] for column in columns])


def _read_csv(path: Path, fields: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Read RFC 4180: quoted cells may contain commas, line ends and doubled quotes."""
    csv.field_size_limit(_MAX_CELL)
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    columns: list[int] | None = [int(field) - 1 for field in fields] if all(map(_is_column, fields)) else None
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if not row:
                continue
            if columns is None:
                if twice := [field for field in fields if row.count(field) > 1]:
                    raise DataError(f"{where}: several columns are named {twice[0]!r}; names must differ")
                if missing := [field for field in fields if field not in row]:
                    raise DataError(
                        f"{where}: no column is named {missing[0]!r}; {spelling_hint(missing[0], row)} (give column "
                        "numbers in fields if the first line is an example)"
                    )
                columns = [row.index(field) for field in fields]
                continue
            if len(row) <= max(columns):
                raise DataError(f"{where}: {_count(len(row), 'column')}, but {max(columns) + 1} needed")
            yield tuple([row[column] for column in columns])
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num}: not valid CSV ({error}); a cell with commas, quotes or line ends must be "
            "in double quotes, and quotes in it must be doubled"
        ) from None


def read_jsonl(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the fields ``names`` of each line, which must be a JSON object.

    Raises:
        DataError: The file cannot be read, or a line has no such fields.
    """
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            raise DataError(f"{where}: blank; expected one JSON object on every line")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON ({error}); expected one JSON object on every line") from None
        if not isinstance(record, dict):
            example = json.dumps(dict.fromkeys(names, "..."), ensure_ascii=False)
            raise DataError(f"{where}: JSON, but not an object; expected for example {example}")
        for name in names:
            if name not in record:
                raise DataError(f"{where}: field {name!r} is missing; {spelling_hint(name, record)}")
            if not isinstance(record[name], str) and type(record[name]) is not int:  # labels are often numbers
                raise DataError(f"{where}: field {name!r} is {json.dumps(record[name])[:40]}; expected a string")
        texts = tuple([str(record[name]) for name in names])
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise DataError(f"{where}: a \\u escape is half of a surrogate pair, which is not a character") from None
        yield texts


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without their line ends (``\\n`` or ``\\r\\n``).

    A ``.gz`` or ``.zst`` file is decompressed, and a byte order mark at the start is skipped. The last line need not
    end in ``\\n``.

    Raises:
        DataError: The file is missing, empty, damaged, binary or not UTF-8.
    """
    for done, block in _blocks(path):
        yield from decode_lines(block, path, done).split("\n")


def read_byte_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as :func:`read_lines` does, but as bytes, so that they may be binary.

    Raises:
        DataError: The file is missing, empty or damaged.
    """
    for _, block in _blocks(path):
        for line in block.split(b"\n"):
            yield line.removesuffix(b"\r")


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of lines before it."""
    done = 0
    try:
        for block in line_blocks(_chunks(path)):
            if not done:
                block = block.removeprefix(codecs.BOM_UTF8)
            yield done, block
            done += block.count(b"\n") + 1
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected UTF-8 text, plain or as .gz or .zst") from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder; expected a file of UTF-8 text") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read after line {done:,} ({error.strerror})") from None
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(
            f"{path}: damaged or incomplete after line {done:,} ({error}); download or compress the file again"
        ) from None
    if not done:
        raise DataError(f"{path}: is empty; expected at least one line of UTF-8 text")


class TextSize(NamedTuple):
    """The size of a text."""

    lines: int
    num_bytes: int


def text_size(path: Path) -> TextSize:
    """Measure a file, decompressed, without decoding it. Returns zeros if the file cannot be read."""
    lines = num_bytes = 0
    try:
        for block in line_blocks(_chunks(path)):
            lines += block.count(b"\n") + 1
            num_bytes += len(block) + 1
    except (OSError, EOFError, zlib.error, zstandard.ZstdError):
        return TextSize(0, 0)
    return TextSize(lines, num_bytes)


def decode_lines(block: bytes, path: Path | str, lines_before: int) -> str:
    """Decode whole lines, and replace ``\\r\\n`` by ``\\n``. ``lines_before`` is the number of lines before ``block``.

    Raises:
        DataError: The block is binary or not UTF-8; the message names ``path`` and the line.
    """
    if (nul := block.find(b"\0")) >= 0:
        number, offset = _locate(block, nul)
        raise DataError(
            f"{path}, line {lines_before + number}: looks binary (byte {offset} of the line is NUL); "
            "expected UTF-8 text (UTF-16 must be converted)"
        )
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        number, offset = _locate(block, error.start)
        raise DataError(
            f"{path}, line {lines_before + number}: byte {offset} of the line (0x{block[error.start]:02X}) is not UTF-8"
            "; expected UTF-8 text: convert the file, for example with iconv -f LATIN1 -t UTF-8"
        ) from None
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    return text


def _locate(block: bytes, position: int) -> tuple[int, int]:
    """Return the number of the line that contains the byte at ``position``, and the byte's number in this line.

    Both are counted from 1.
    """
    return block.count(b"\n", 0, position) + 1, position - block.rfind(b"\n", 0, position)


def line_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of ``chunks`` in blocks of whole lines, without the ``\\n`` at the end of each block."""
    partial: list[bytes] = []  # the beginning of a line whose end has not been read yet
    for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*partial, head])
            partial.clear()
        partial.append(tail)
    if last := b"".join(partial):
        yield last


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks of any size, decompressed if its name ends in .gz or .zst."""
    with path.open("rb") as file:
        raw = iter(lambda: file.read(_BLOCK_BYTES), b"")
        match path.suffix:
            case ".gz":
                yield from _decompress(raw, lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16))  # 16: gzip header
            case ".zst":
                # The limit allows files made with `zstd --long=31`. Memory use depends on the window size of the file.
                yield from _decompress(raw, zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj)
            case _:
                yield from raw


def _decompress(raw: Iterator[bytes], start: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress a stream of one or more gzip members or Zstandard frames (``cat a.gz b.gz``).

    zlib and zstandard have the same interface, but no common type. zstandard's own reader is not used, because it
    accepts a file that ends in the middle of a frame.
    """
    member = None
    for chunk in raw:
        while chunk:
            member = member or start()
            yield member.decompress(chunk)
            chunk = b""
            if member.eof:
                chunk = member.unused_data
                member = None
    if member is not None:
        raise EOFError("the compressed stream ends too early")
