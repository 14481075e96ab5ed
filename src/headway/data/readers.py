"""Read examples from the files of a corpus.

A corpus is a tab-separated file (``.tsv``), a file of comma-separated values with quotes (``.csv``), a file with one
JSON object per line (``.jsonl`` or ``.json``), a translation memory (``.tmx``, :mod:`headway.data.tmx`), or a pair of
line-aligned plain text files. Files may be compressed (``.gz``, ``.zst``). Text is UTF-8, and only ``\\n`` and
``\\r\\n`` end a line. U+0085, U+2028 and the other separators of :meth:`str.splitlines` are treated as text, so that
the two files of a corpus stay aligned and lines are counted as by ``wc -l``. Readers neither strip nor drop anything;
empty texts are removed later, by the filters.

Readers are generators: they keep only one block of the file in memory, and report a missing file when the first item is
requested. Invalid lines are handled by :class:`headway.data.bad_lines.BadLines`.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import zstandard
from pydantic import Field, field_validator, model_validator

from headway.config import Config, spelling_hint
from headway.data.bad_lines import BadLines, LineProblem
from headway.data.tmx import read_tmx
from headway.errors import ConfigError, DataError

_BLOCK_BYTES = 1 << 18
_MAX_SHOWN = 3  # maximum number of file names of a corpus in a message
_MAX_CELL = 1 << 30  # characters; a longer cell usually means that a quote is never closed
_COMPRESSIONS = (".gz", ".zst")
_Example = tuple[str, ...] | LineProblem

FileFormat = Literal["text", "tsv", "csv", "jsonl", "tmx"]
# To add a format, add its extension to _EXTENSIONS, and its reader and default fields to _examples.
_MAX_CHARACTER_BYTES = 4  # in UTF-8
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_LONE_RETURN = re.compile(rb"\r(?!\n|\Z)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_EXTENSIONS: dict[str, FileFormat] = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".tmx": "tmx"
}  # fmt: skip
_UNIT_END = b"</tu>"
_LANGUAGE = re.compile("[A-Za-z0-9_-]+")


class Corpus(Config):
    """Configuration of a corpus: its files, and the columns to read."""

    files: tuple[str, ...] = Field(
        description="One .tsv, .csv, .jsonl or .tmx file, or two line-aligned plain text files (source, target). "
        "Files may be compressed (.gz, .zst)."
    )
    fields: tuple[Annotated[str, Field(coerce_numbers_to_str=True)], ...] | None = Field(
        default=None,
        description="Columns to read. .tsv: numbers from 1 (default 1, 2). .jsonl, and .csv with a header line: names "
        "(default source, target; for classification label, text). .csv without a header line: numbers. .tmx: "
        "languages (default: the languages of [task]); de also matches de-DE.",
    )
    weight: float = Field(
        default=1.0,
        gt=0,
        description="Number of times that an epoch contains each example. With 0.5, each epoch contains a different "
        "random half.",
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
        "<2en>, is added before each source. Set this key for all corpora or for none.",
    )

    @property
    def shown_files(self) -> str:
        """The file names for a message; if there are many, only the first few."""
        names, rest = self.files[:_MAX_SHOWN], len(self.files) - _MAX_SHOWN
        return " + ".join(names) + (f" + {rest:,} more" if rest > 0 else "")

    @property
    def format(self) -> FileFormat:
        """The format of the files, determined from the file extension."""
        return _format_of(self.files[0]) if len(self.files) == 1 else "text"

    def size(self, folder: Path) -> TextSize:
        """Return the numbers of lines (for TMX: units) and bytes of the files in ``folder``."""
        sizes = [text_size(folder / name) for name in self.files]
        if self.format == "tmx":  # a TMX file may contain all units in a single line
            return TextSize(_count_units(folder / self.files[0]), sizes[0].num_bytes)
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
                "files: expected one .tsv, .csv, .jsonl or .tmx file, or two plain text files; "
                f"got {_listing(self.files)}"
            )
        formats = [_format_of(file) for file in self.files]
        if formats == ["text"]:
            raise ValueError(
                f"files: {self.files[0]!r} alone is neither .tsv, .csv, .jsonl nor .tmx; expected a .tsv, .csv, "
                ".jsonl or .tmx file, or two plain text files (source, target)"
            )
        if len(formats) == 2 and formats != ["text", "text"]:
            raise ValueError(
                f"files: two files are read as plain text, but got {_listing(self.files)}; a .tsv, .csv, .jsonl or "
                ".tmx file contains both sides, so list only this file"
            )
        if self.fields is not None:
            _check_fields(self.fields, self.format)
        return self


def _check_fields(fields: tuple[str, ...], form: FileFormat) -> None:
    if form == "text":
        raise ValueError("fields: plain text files have no fields; remove the key")
    if not fields:
        raise ValueError("fields: empty; remove the key to use the default")
    if len(set(fields)) < len(fields):
        raise ValueError(f"fields: {_listing(fields)} contains a field twice")
    if form == "tsv":
        for field in fields:
            if not _is_column(field):
                raise ValueError(f"fields: {field!r} is not a column number; columns of a .tsv are counted from 1")
    if form == "tmx":
        for field in fields:
            if not _LANGUAGE.fullmatch(field):
                raise ValueError(f"fields: {field!r} is not a language of a .tmx; expected tags such as de and en-GB")


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
    corpus: Corpus,
    folder: Path,
    text_names: tuple[str, ...] = ("source", "target"),
    *,
    bad_lines: BadLines | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield the examples of ``corpus`` in file order.

    Args:
        corpus: The corpus to read.
        folder: Base of relative file names.
        text_names: Names of the texts in an example, which are the default of ``Corpus.fields`` for .csv and .jsonl
            files.
        bad_lines: Handler for invalid lines. By default, they raise an error.

    Raises:
        ConfigError: The corpus does not have one field or file for each of ``text_names``.
        DataError: A file cannot be read, or lines are invalid and not skipped.
    """
    return (bad_lines or BadLines()).valid_items(
        _examples(corpus, [folder / file for file in corpus.files], text_names)
    )


def _examples(corpus: Corpus, paths: list[Path], text_names: tuple[str, ...]) -> Iterator[_Example]:
    if corpus.format == "text":
        if len(paths) != len(text_names):
            texts = _count(len(text_names), "text")
            raise ConfigError(f"files: {len(paths)} plain text files, but an example has {texts}")
        return _read_aligned(paths)
    if corpus.format == "tmx" and corpus.fields is None:
        raise ConfigError(
            f"fields: {corpus.files[0]} is a translation memory; specify the languages to read, such as ['de', 'en']"
        )
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
        case "tmx":
            return read_tmx(read_content(paths[0]), paths[0], fields)
        case _:
            return read_records(paths[0], fields)


def _read_aligned(paths: list[Path]) -> Iterator[_Example]:
    problems: list[LineProblem] = []
    readers = [_checked_lines(path, problems) for path in paths]
    for paired, texts in enumerate(zip_longest(*readers)):
        if None in texts:
            rest = [sum(1 for _ in reader) for reader in readers]
            lengths = [paired + (text is not None) + more for text, more in zip(texts, rest, strict=True)]
            counts = " but ".join(f"{path} has {_count(n, 'line')}" for path, n in zip(paths, lengths, strict=True))
            longest = paths[lengths.index(max(lengths))]
            yield LineProblem(
                counts,
                f"line {paired + 1} of {longest} has no counterpart",
                "line n of one file must match line n of the other: export both files together again, and remove "
                "lines only in pairs",
                is_fatal=True,
            )
        elif problems:
            yield problems[0]
            problems.clear()
        else:
            yield texts


def _read_tsv(path: Path, columns: list[int]) -> Iterator[_Example]:
    needed = max(columns) + 1
    problems: list[LineProblem] = []
    for number, line in enumerate(_checked_lines(path, problems), start=1):
        cells = line.split("\t")
        if problems:
            yield problems.pop()
        elif len(cells) < needed:
            actual = _count(len(cells), "column") if line.strip() else "blank"
            fault = f"{actual}, but {_count(needed, 'column')} needed"
            yield LineProblem(f"{path}, line {number}", fault, "columns are separated by one tab, without quotes")
        else:
            yield tuple([cells[column] for column in columns])


def _read_csv(path: Path, fields: tuple[str, ...]) -> Iterator[_Example]:
    """Read CSV as in RFC 4180: quoted cells may contain commas, line ends and doubled quotes."""
    csv.field_size_limit(_MAX_CELL)
    problems: list[LineProblem] = []
    lines = _checked_lines(path, problems, refuse_returns=False)
    rows = csv.reader((line + "\n" for line in lines), strict=True)
    columns: list[int] | None = [int(field) - 1 for field in fields] if all(map(_is_column, fields)) else None
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if not row:
                continue
            if columns is None:
                if problems:
                    raise DataError(str(problems[0]))
                if twice := [field for field in fields if row.count(field) > 1]:
                    raise DataError(f"{where}: several columns are named {twice[0]!r}; names must be unique")
                if missing := [field for field in fields if field not in row]:
                    raise DataError(
                        f"{where}: no column is named {missing[0]!r}; {spelling_hint(missing[0], row)} (use column "
                        "numbers in fields if the first line is an example)"
                    )
                columns = [row.index(field) for field in fields]
            elif problems:
                yield problems[0]
                problems.clear()
            elif len(row) <= max(columns):
                fault = f"{_count(len(row), 'column')}, but {max(columns) + 1} needed"
                yield LineProblem(where, fault, "columns are separated by commas")
            else:
                yield tuple([row[column] for column in columns])
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num}: not valid CSV ({error}); a cell with commas, quotes or line ends must be "
            "in double quotes, and quotes inside the cell must be doubled"
        ) from None


def read_records(path: Path, names: tuple[str, ...]) -> Iterator[_Example]:
    """Yield the fields ``names`` of the JSON object on each line, or a :class:`LineProblem` for an invalid line.

    Raises:
        DataError: The file cannot be read.
    """
    problems: list[LineProblem] = []
    for number, line in enumerate(_checked_lines(path, problems, refuse_returns=False), start=1):
        yield problems.pop() if problems else _fields_of(line, names, f"{path}, line {number}")


def _fields_of(line: str, names: tuple[str, ...], where: str) -> _Example:
    """Return the fields ``names`` of a JSON object, or the problem of the line."""
    if not line.strip():
        return LineProblem(where, "blank", "expected one JSON object on every line")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return LineProblem(where, f"not valid JSON ({error})", "expected one JSON object on every line")
    if not isinstance(record, dict):
        example = json.dumps(dict.fromkeys(names, "..."), ensure_ascii=False)
        return LineProblem(where, "JSON, but not an object", f"expected for example {example}")
    for name in names:
        if name not in record:
            return LineProblem(where, f"field {name!r} is missing", spelling_hint(name, record))
        if not isinstance(record[name], str) and type(record[name]) is not int:  # labels are often numbers
            return LineProblem(where, f"field {name!r} is {json.dumps(record[name])[:40]}", "expected a string")
    texts = tuple([str(record[name]) for name in names])
    if "\\" in line and any(map(_SURROGATE.search, texts)):
        fault = "a \\u escape is half of a surrogate pair, which is not a character"
        return LineProblem(where, fault, "expected both halves")
    return texts


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without their line ends (``\\n`` or ``\\r\\n``).

    A ``.gz`` or ``.zst`` file is decompressed, and a byte order mark at the start is skipped. The last line does not
    have to end with ``\\n``.

    Raises:
        DataError: The file is missing, empty, damaged, binary or not UTF-8.
    """
    for done, block in _blocks(path):
        yield from decode_lines(block, path, done).split("\n")


def _checked_lines(path: Path, problems: list[LineProblem], *, refuse_returns: bool = True) -> Iterator[str]:
    """Yield the lines of a file like :func:`read_lines`, but replace invalid characters.

    The problem of such a line is appended to ``problems`` before the line is yielded. With ``refuse_returns``, a
    carriage return inside a line is also a problem.

    Raises:
        DataError: The file is missing, empty or damaged.
    """
    for done, block in _blocks(path):
        text = _text_of(block)
        if text is not None and not (refuse_returns and "\r" in text):
            yield from text.split("\n")
            continue
        for number, line in enumerate(block.split(b"\n"), start=1):
            if problem := line_problem(line, path, done + number, refuse_returns=refuse_returns):
                problems.append(problem)
            yield line.removesuffix(b"\r").decode("utf-8", errors="replace")


def _text_of(block: bytes) -> str | None:
    """Decode whole lines, or return None if they contain NUL or are not UTF-8."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    return None if "\0" in text else text


def read_byte_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file like :func:`read_lines`, but as bytes, so that they may be binary.

    Raises:
        DataError: The file is missing, empty or damaged.
    """
    for _, block in _blocks(path):
        for line in block.split(b"\n"):
            yield line.removesuffix(b"\r")


def read_parts(path: Path) -> Iterator[str | LineProblem]:
    """Yield the text of a file in parts: whole lines that end with ``\\n``, or several parts of a long line.

    Memory use does not grow with the length of a line. A line that is not text, or such a part of a long line, is
    replaced with a :class:`LineProblem`.

    Raises:
        DataError: The file is missing, empty or damaged.
    """
    before = 0  # number of bytes that earlier blocks contain of the first line in the block
    for done, block in _blocks(path, whole_lines=False):
        text = _text_of(block)
        if text is not None and "\r" not in text:
            *lines, last = text.split("\n")
            yield from (line + "\n" for line in lines)
            if last:
                yield last
        else:
            yield from _checked_parts(block, path, done + 1, before)
        before = len(block) - block.rfind(b"\n") - 1 + (0 if b"\n" in block else before)


def _checked_parts(block: bytes, path: Path, number: int, bytes_before: int) -> Iterator[str | LineProblem]:
    for line in _LINE.findall(block):
        problem = line_problem(line, path, number, refuse_returns=True, bytes_before=bytes_before)
        yield problem or line.decode("utf-8").replace("\r\n", "\n").removesuffix("\r")
        number, bytes_before = number + 1, 0


def _blocks(path: Path, *, whole_lines: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of preceding lines.

    With ``whole_lines``, blocks do not include their last ``\\n``. Otherwise they do, and long lines are divided.
    """
    done, split = 0, line_blocks if whole_lines else _bounded_blocks
    is_empty = True
    with _readable(path, lambda: f"line {done:,}"):
        for block in split(_chunks(path)):
            if is_empty:
                block, is_empty = block.removeprefix(codecs.BOM_UTF8), False
            yield done, block
            done += block.count(b"\n") + whole_lines
    if is_empty:
        raise DataError(f"{path}: is empty; expected at least one line of UTF-8 text")


@contextmanager
def _readable(path: Path, position: Callable[[], str]) -> Iterator[None]:
    """Raise :class:`DataError` if the file cannot be read. ``position`` returns how much of it was read."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected UTF-8 text, plain or as .gz or .zst") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; expected a UTF-8 text file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read after {position()} ({error.strerror})") from None
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(
            f"{path}: damaged or incomplete after {position()} ({error}); download or compress the file again"
        ) from None


class TextSize(NamedTuple):
    """Numbers of lines and bytes in a text."""

    lines: int
    num_bytes: int


def text_size(path: Path) -> TextSize:
    """Return the decompressed size of a text file. Returns zeros if the file cannot be read."""
    lines = num_bytes = 0
    last = b"\n"
    try:
        for chunk in _chunks(path) if path.is_file() else ():  # a pipe can be read only once
            if chunk:
                lines, num_bytes, last = lines + chunk.count(b"\n"), num_bytes + len(chunk), chunk[-1:]
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, DataError):
        return TextSize(0, 0)
    is_open = last != b"\n"  # whether the last line has no newline
    return TextSize(lines + is_open, num_bytes + is_open)


def _count_units(path: Path) -> int:
    """Return the number of translation units in a TMX file, or 0 if it cannot be read."""
    count, rest = 0, b""
    try:
        for chunk in _chunks(path) if path.is_file() else ():
            content = rest + chunk.replace(b"\0", b"")  # UTF-16
            count += content.count(_UNIT_END)
            rest = content[-len(_UNIT_END) + 1 :]
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, DataError):
        return 0
    return count


def read_content(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in blocks of any size, decompressed if its name ends with .gz or .zst.

    Raises:
        DataError: The file is missing or damaged.
    """
    done = 0
    with _readable(path, lambda: f"byte {done:,}"):
        for chunk in _chunks(path):
            yield chunk
            done += len(chunk)


def uncompressed_name(path: Path) -> Path:
    """Return the name of a file without the extension of its compression."""
    return path.with_suffix("") if path.suffix in (".gz", ".zst") else path


def decode_lines(block: bytes, path: Path | str, lines_before: int) -> str:
    """Decode whole lines, and replace ``\\r\\n`` with ``\\n``. ``lines_before`` is the number of lines before
    ``block``.

    Raises:
        DataError: The block is binary or not UTF-8. The message contains ``path`` and the line number.
    """
    text = _text_of(block)
    if text is None:
        raise DataError(str(line_problem(block, path, lines_before + 1)))
    return text


def line_problem(
    block: bytes, path: Path | str, number: int, *, refuse_returns: bool = False, bytes_before: int = 0
) -> LineProblem | None:
    """Return the first problem in a block of whole lines, or None.

    Args:
        block: The lines, without the last ``\\n``.
        path: Path of the file, for the message.
        number: Line number of the first line.
        refuse_returns: Whether a carriage return inside a line is a problem.
        bytes_before: Number of bytes of the first line that precede ``block``.
    """

    def problem(position: int, fault: str, advice: str) -> LineProblem:
        line, offset = _locate(block, position)
        offset += bytes_before if line == 1 else 0
        return LineProblem(f"{path}, line {number + line - 1}", fault.format(byte=f"byte {offset} of the line"), advice)

    if (nul := block.find(b"\0")) >= 0:
        return problem(nul, "looks binary ({byte} is NUL)", "expected UTF-8 text (UTF-16 must be converted)")
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        advice = "expected UTF-8 text: convert the file, for example with iconv -f LATIN1 -t UTF-8"
        return problem(error.start, f"{{byte}} (0x{block[error.start]:02X}) is not UTF-8", advice)
    if refuse_returns and (lone := _LONE_RETURN.search(block)):
        advice = "expected lines that end with \\n or \\r\\n: remove it, or make it a line end in all corpus files"
        return problem(lone.start(), "a carriage return inside the line ({byte})", advice)
    return None


def _locate(block: bytes, position: int) -> tuple[int, int]:
    """Return the number of the line that contains the byte at ``position``, and the number of the byte in this line.

    Both are counted from 1.
    """
    return block.count(b"\n", 0, position) + 1, position - block.rfind(b"\n", 0, position)


def line_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of ``chunks`` in blocks of whole lines, without the ``\\n`` at the end of each block."""
    partial: list[bytes] = []  # the start of a line whose end has not been read yet
    for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*partial, head])
            partial.clear()
        partial.append(tail)
    if last := b"".join(partial):
        yield last


def _bounded_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of ``chunks`` in blocks that end after ``\\n`` or, in a long line, between two characters."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        end = rest.rfind(b"\n") + 1
        if not end and len(rest) >= _BLOCK_BYTES:
            end = len(rest) - 1  # the last character may be incomplete, or a carriage return before \n
            while rest[end] & 0xC0 == 0x80 and end > len(rest) - _MAX_CHARACTER_BYTES:
                end -= 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks of any size, decompressed if its name ends with .gz or .zst."""
    with path.open("rb") as file:
        start = file.read(_SIGNATURE_BYTES)
        _check_compression(path, start)
        raw = chain([start], iter(lambda: file.read(_BLOCK_BYTES), b""))
        match path.suffix:
            case ".gz":
                yield from _decompress(raw, lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16))  # 16: gzip header
            case ".zst":
                # The limit allows files created with `zstd --long=31`. Memory use depends on the window size of the
                # file.
                yield from _decompress(raw, zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj)
            case _:
                yield from raw


# First bytes of compressed files, name of the format, and file extension if the format is supported.
_COMPRESSED = (
    (re.compile(rb"\x1f\x8b"), "gzip", ".gz"),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), "Zstandard", ".zst"),
    (re.compile(rb"\xfd7zXZ\0"), "xz", None),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38)"), "bzip2", None),
    (re.compile(rb"PK\x03\x04"), "zip", None),
    (re.compile(rb"\x04\x22\x4d\x18"), "lz4", None),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "7z", None),
)


_SIGNATURE_BYTES = 16


def _check_compression(path: Path, start: bytes) -> None:
    """Raise :class:`DataError` if a file that begins with ``start`` does not have the format implied by its name."""
    name, suffix = next(((name, suffix) for begin, name, suffix in _COMPRESSED if begin.match(start)), (None, None))
    if name is not None and (suffix is None or suffix != path.suffix):
        advice = f"rename it so that its name ends in {suffix}" if suffix else "decompress it, or use gzip or zstd"
        raise DataError(f"{path}: compressed with {name}; {advice}")
    if name is None and start and path.suffix in (".gz", ".zst"):
        raise DataError(f"{path}: not compressed, although its name ends in {path.suffix}; rename it")


def _decompress(raw: Iterator[bytes], start: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress a stream of one or more gzip members or Zstandard frames (``cat a.gz b.gz``).

    Zero bytes after a member, which some programs add to fill tape blocks, are skipped. zlib and zstandard have the
    same interface, but no common type. zstandard's own reader is not used because it accepts a file that ends in the
    middle of a frame.
    """
    member = None
    for chunk in raw:
        while chunk := chunk if member else chunk.lstrip(b"\0"):
            member = member or start()
            yield member.decompress(chunk)
            chunk = b""
            if member.eof:
                chunk = member.unused_data
                member = None
    if member is not None:
        raise EOFError("the compressed stream ends too early")
