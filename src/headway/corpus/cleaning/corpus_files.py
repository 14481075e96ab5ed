"""Detect the formats of a corpus's files, and write the kept lines in the same format."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from headway.corpus.cleaning.corpus_lines import CorpusKind, LineFormat, LineParser, line_format
from headway.data.bad_lines import LineProblem
from headway.data.readers import read_content, uncompressed_name
from headway.data.tmx import read_tmx
from headway.errors import ConfigError, DataError
from headway.jobs.join import open_output
from headway.jobs.plan import content_digest
from headway.storage import atomic_write_folder

_LOOKED_AT = 1 << 16  # number of bytes to check at the beginning of a file
_MAX_NUL_SHARE = 0.01
_MAX_REPLACED_SHARE = 0.3
InputFormat = LineFormat | Literal["tmx"]
_DIGEST = 16  # characters
_COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True)
class CorpusInput:
    """One file with records or texts, or two files with one text per line each.

    Attributes:
        paths: The files, which are read line by line.
        name: The display name of the input.
        format: The format of the lines.
    """

    paths: tuple[Path, ...]
    name: str
    format: InputFormat


def corpus_inputs(
    files: Sequence[Path], kind: CorpusKind, fields: Sequence[str] | None = None, *, has_languages: bool = True
) -> list[CorpusInput]:
    """Group files into inputs. Plain text files of a corpus of pairs are grouped in twos (source, target).

    Raises:
        ConfigError: A file does not exist, has no partner or no labels, or the fields do not match its format.
        DataError: A file is binary.
    """
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path}: {'a folder' if path.is_dir() else 'no such file'}; expected a file")
    inputs: list[CorpusInput] = []
    waiting: Path | None = None
    for path in files:
        form: InputFormat = "tmx" if uncompressed_name(path).suffix == ".tmx" else line_format(path)
        if form != "tmx":
            refuse_binary(path)
            LineParser.of(form, kind, fields)  # checks the fields
        elif kind != "pairs":
            raise ConfigError(
                f"{path}: a translation memory contains pairs; specify their languages with --from and --to"
            )
        if form == "text" and kind == "labels":
            raise ConfigError(f"{path}: plain text has no labels; expected .tsv (label first) or .jsonl")
        if form != "text" or kind == "texts":
            inputs.append(CorpusInput((path,), str(path), form))
        elif waiting is None:
            waiting = path
        else:
            inputs.append(CorpusInput((waiting, path), f"{waiting} and {path}", form))
            waiting = None
    if waiting is not None:
        raise ConfigError(
            f"{waiting}: has no partner; each corpus needs two files, SOURCE TARGET, or one .tsv, .jsonl or .tmx file"
        )
    if kind == "texts" and len(files) > 1 and not has_languages:
        raise ConfigError(
            f"{len(files)} files without languages; pairs need --from and --to, and several files of single texts need "
            "--from"
        )
    return inputs


def convert_translation_memories(
    inputs: Sequence[CorpusInput], languages: Sequence[str | None], folder: Path
) -> list[CorpusInput]:
    """Return inputs that can be read line by line: translation memories are converted to two text files in ``folder``.

    Each line contains a translation unit with both languages. A unit that cannot be read becomes a line that is not
    valid text. Files that an earlier run has written are reused.

    Raises:
        DataError: A translation memory is damaged.
    """
    return [
        CorpusInput(_converted(item.paths[0], languages, folder), item.name, "text") if item.format == "tmx" else item
        for item in inputs
    ]


def _converted(path: Path, languages: Sequence[str | None], folder: Path) -> tuple[Path, ...]:
    names = ("source", "target")
    sides = [str(code) for code in languages]
    folder /= "-".join([content_digest(path)[:_DIGEST], *sides])
    if not folder.exists():
        with atomic_write_folder(folder) as new, ExitStack() as stack:
            outputs = [stack.enter_context((new / name).open("wb")) for name in names]
            for unit in read_tmx(read_content(path), path, sides):
                texts = ("\0", "\0") if isinstance(unit, LineProblem) else unit
                for output, text in zip(outputs, texts, strict=True):
                    output.write(text.replace("\n", " ").replace("\r", " ").encode() + b"\n")
    return tuple(folder / name for name in names)


def refuse_binary(path: Path) -> None:
    """Check that a file looks like text.

    Raises:
        DataError: The file is binary or not in UTF-8.
    """
    start = b""
    for block in read_content(path):
        start += block
        if len(start) >= _LOOKED_AT:
            break
    start = start[:_LOOKED_AT]
    if start.count(0) > _MAX_NUL_SHARE * len(start):
        raise DataError(f"{path}: looks binary (it contains NUL); expected UTF-8 text (UTF-16 must be converted)")
    text = start.decode("utf-8", errors="replace")
    if text.count("\ufffd") > _MAX_REPLACED_SHARE * len(text):
        raise DataError(
            f"{path}: not UTF-8 text; convert the file, for example with iconv -f LATIN1 -t UTF-8, or decompress it"
        )


@dataclass(frozen=True)
class KeptFiles:
    """The output files for the kept lines.

    Attributes:
        names: The file names: two for pairs in text files, otherwise one.
        format: The format of the lines.
    """

    names: tuple[str, ...]
    format: InputFormat

    @classmethod
    def of(cls, inputs: Sequence[CorpusInput], kind: CorpusKind, languages: Sequence[str | None]) -> KeptFiles:
        """Return the output files for these inputs: in their format if all have the same, otherwise text files."""
        formats = {item.format for item in inputs}
        form = formats.pop() if len(formats) == 1 else "text"
        suffixes = {path.suffix if path.suffix in _COMPRESSIONS else "" for item in inputs for path in item.paths}
        compression = suffixes.pop() if len(suffixes) == 1 else ""
        if form != "text":
            names = [str(form)]
        elif kind == "pairs":
            names = ["source", "target"] if languages[0] == languages[1] else [str(code) for code in languages]
        else:
            names = [languages[0] or "txt"]
        return cls(tuple(f"kept.{name}{compression}" for name in names), form)


@contextmanager
def open_outputs(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Open files for writing, and flush them to disk at the end. Their extensions determine the compression."""
    with ExitStack() as stack:
        yield [stack.enter_context(open_output(path, path.suffix)) for path in paths]
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def json_line(record: dict[str, Any]) -> bytes:
    """Return a record as a JSON line in UTF-8."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
