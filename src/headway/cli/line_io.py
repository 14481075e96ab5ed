"""Lines in, lines out: how the commands read text, write results, report bad lines and show progress."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from io import BufferedIOBase
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar, cast

from headway.errors import ConfigError, DataError, HeadwayError

if TYPE_CHECKING:
    from headway.predict import Source

_STANDARD = Path("-")
_BATCH_LINES = 2048  # read ahead, so that sentences of similar length are translated together
_BATCH_BYTES = 1 << 20
_READ_BYTES = 1 << 18


def input_name(path: Path | None) -> str:
    """Return the name of an input for messages."""
    return "standard input" if path is None or path == _STANDARD else str(path)


def text_batches(text: str | None, path: Path | None, workers: int = 1) -> tuple[str, Iterable[Sequence[bytes | str]]]:
    """Return the name and the lines of a command's input: its argument TEXT, or else a file or standard input."""
    if text is None:
        return input_name(path), read_line_batches(path, workers)
    if path is not None:
        raise ConfigError("TEXT and --input exclude each other; give one of them")
    return "TEXT", [[text]]


def input_lines(path: Path | None) -> Iterator[str]:
    """Yield the lines of a file, which may be compressed, or of standard input (also "-"). Lines end in LF or CR LF."""
    from headway.data.readers import decode_lines

    for number, line in enumerate(chain.from_iterable(read_line_batches(path))):
        yield decode_lines(line, input_name(path), number)


def read_line_batches(path: Path | None, workers: int = 1) -> Iterator[list[bytes]]:
    """Yield the undecoded lines of a file or of standard input in batches of up to 2,048 lines for each worker.

    On standard input a batch holds whatever has arrived so far, so a program that writes one line and waits gets its
    answer at once. (A pipe holds about 64 KiB.)
    """
    from headway.data.readers import read_byte_lines

    if path is not None and path != _STANDARD:
        yield from _batches(read_byte_lines(path), workers)
        return
    for number, block in enumerate(_arriving(cast("BufferedIOBase", sys.stdin.buffer), workers)):
        lines = (block if number else block.removeprefix(codecs.BOM_UTF8)).split(b"\n")
        yield from _batches((line.removesuffix(b"\r") for line in lines), workers)


def _batches(lines: Iterable[bytes], workers: int) -> Iterator[list[bytes]]:
    """Yield batches of at most 2,048 lines and about one mebibyte for each worker."""
    lines, most_lines, most_bytes = iter(lines), workers * _BATCH_LINES, workers * _BATCH_BYTES
    while batch := list(islice(lines, 1)):
        size = len(batch[0])
        while len(batch) < most_lines and size < most_bytes and (more := next(lines, None)) is not None:
            batch.append(more)
            size += len(more)
        yield batch


def _arriving(stream: BufferedIOBase, workers: int) -> Iterator[bytes]:
    """Yield the complete lines that have arrived, as one block; wait only while there are none."""
    from headway.data.readers import line_blocks

    return line_blocks(iter(partial(stream.read1, workers * _READ_BYTES), b""))


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[str]]:
    """Open standard output (also "-"), or a file that appears only when everything is written."""
    from headway.storage import atomic_write

    if path is None or path == _STANDARD:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        with atomic_write(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        error.filename = error.filename or str(path)  # a device such as /dev/full gives no file name
        raise


def one_line(text: str) -> str:
    """Return text as one line of output: line breaks become spaces."""
    return text.replace("\r", " ").replace("\n", " ")


@contextmanager
def show_progress(what: str, source: Path | None, *, prints: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a job on standard error if it is a terminal: lines done, rate, time left.

    Args:
        what: Name of the job.
        source: Its input; None for standard input.
        prints: Whether results go to standard output. On a terminal they show the progress themselves.

    Yields:
        A function that counts finished lines and the bytes of input that they took.
    """
    typed = (source is None or source == _STANDARD) and sys.stdin.isatty()
    if not sys.stderr.isatty() or typed or (prints and sys.stdout.isatty()):
        yield lambda lines, size: None
        return
    from headway.cli.progress import progress_bar

    # The time left is estimated from bytes, because the number of lines is not known before the end. A compressed or
    # piped input has no known size, so it has no estimate either.
    plain = source is not None and source.is_file() and source.suffix not in (".gz", ".zst", ".bz2", ".xz")
    size = source.stat().st_size if source is not None and plain else None
    done, begin = 0, time.monotonic()
    with progress_bar(redirect_stdout=False, transient=True) as bar:
        task = bar.add_task(what, total=size, numbers="")

        def count_lines(lines: int, read: int) -> None:
            nonlocal done
            done += lines
            rate = done / max(time.monotonic() - begin, 1e-3)
            bar.update(task, advance=read, numbers=f"{done:,} lines  {rate:,.0f} lines/s")

        yield count_lines


Result = TypeVar("Result")


def process_lines(
    batches: Iterable[Sequence[bytes | str]],
    reader: LineReader,
    report: Report,
    lines_of: Callable[[int, Source | HeadwayError, Any], str],
    *,
    what: str,
    source: Path | None,
    output: Path | None,
) -> Generator[tuple[list[Source], list[Any]], None, None]:
    """Yield the lines of each batch that could be read, and an empty list, which the caller fills with their results.

    There must be one result or error for each line. They are written, in the order of the lines, when the caller asks
    for the next batch. After an error in the caller, close the generator; the output then stays as it was.

    Args:
        batches: The lines of the input.
        reader: Parses them.
        report: Counts the results, and raises or reports the errors of lines.
        lines_of: Formats the output for a line, given its number, its source and its result. If the line could not be
            read, its error takes the place of both.
        what: Name of the job, for the progress.
        source: The input file; None for standard input.
        output: The output file; None for standard output.
    """
    with show_progress(what, source, prints=output is None) as count_lines, output_file(output) as file:
        for batch in batches:
            first, found = report.lines + 1, list[Any]()
            lines = reader.sources(batch, first)
            yield [line for line in lines if not isinstance(line, HeadwayError)], found
            remaining = iter(found)
            results = [line if isinstance(line, HeadwayError) else next(remaining) for line in lines]
            report.add(results)
            file.writelines(map(lines_of, count(first), lines, results))
            file.flush()
            count_lines(len(results), sum(map(len, batch)) + len(batch))
    report.finish()


def convert_all(
    texts: Sequence[str],
    convert: Callable[[Sequence[str]], Iterable[Result | HeadwayError]],
    *,
    what: str,
    source: Path,
    unit: str = "line",
    workers: int = 1,
) -> list[Result]:
    """Convert the texts of the file ``source`` in batches, and show progress as ``what``.

    Raises:
        HeadwayError: A text cannot be converted; the message names the file and the number of the ``unit``.
    """
    found: list[Result] = []
    with show_progress(what, source) as count_lines:
        for start in range(0, len(texts), workers * _BATCH_LINES):
            batch = texts[start : start + workers * _BATCH_LINES]
            for number, each in enumerate(convert(batch), start=start + 1):
                if isinstance(each, HeadwayError):
                    raise each.at(f"{input_name(source)}, {unit} {number}")
                found.append(each)
            count_lines(len(batch), sum(len(text.encode()) + 1 for text in batch))
    return found


class LineReader:
    """Parses lines into sources. ``prefix``, ``include`` and ``banned`` apply to all lines, besides a line's own.

    Args:
        name: Name of the input, for messages.
        form: "text": a line is a text; "jsonl": a line is a JSON object.
        prefix: Prefix of every translation whose line gives none.
        include: Phrases that every translation must contain; ``a|b`` means one of several.
        banned: Phrases that no translation may contain.
    """

    def __init__(
        self,
        name: str,
        form: Literal["text", "jsonl"],
        prefix: str = "",
        include: Sequence[str] = (),
        banned: Sequence[str] = (),
    ) -> None:
        self._name, self._form = name, form
        self._prefix, self._banned = prefix, tuple(banned)
        self._include = tuple(tuple(phrase.split("|")) for phrase in include)

    def sources(self, lines: Sequence[bytes | str], first: int) -> list[Source | HeadwayError]:
        """Return the source or the error of each line; ``first`` is the number of the first line."""
        return [self._source(line, number) for number, line in enumerate(lines, start=first)]

    def _source(self, line: bytes | str, number: int) -> Source | HeadwayError:
        from headway.data.readers import decode_lines
        from headway.predict import Source

        try:
            text = line if isinstance(line, str) else decode_lines(line, self._name, number - 1)
            if self._form == "jsonl":
                return self._record(text, f"{self._name}, line {number}")
            return Source(text, self._prefix, self._include, self._banned)
        except HeadwayError as error:  # Report.add names the line again
            return type(error)(str(error).removeprefix(f"{self._name}, line {number}: "))

    def _record(self, line: str, where: str) -> Source:
        from headway.predict import Source

        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error}); expected an object with a text") from None
        if not isinstance(data, dict):
            raise DataError(f"expected an object with a text, got {line[:40]!r}")
        record = _record_model().parse(data, where)
        return Source(
            record.text,
            record.prefix or self._prefix,
            (*self._include, *record.include),
            (*self._banned, *record.banned),
        )


@cache
def _record_model() -> Any:
    """Return the schema of a line of JSON, built once: building takes longer than reading hundreds of lines."""
    from headway.config import Config

    class Record(Config):
        text: str
        prefix: str = ""
        include: tuple[str | tuple[str, ...], ...] = ()
        banned: tuple[str, ...] = ()

    return Record


class Report:
    """Counts lines, and reports on standard error which failed and how many look suspicious.

    Args:
        name: Name of the input.
        on_error: "stop": the first line that fails raises its error; "mark": failed lines are reported and counted.
        flags: Returns the names of what is suspicious about a result.
        details: The option or command that shows which lines are suspicious.
    """

    def __init__(
        self,
        name: str,
        on_error: Literal["stop", "mark"],
        flags: Callable[[Any], Iterable[str]],
        details: str = "--format json",
    ) -> None:
        self.lines = 0
        self._name, self._on_error, self._flags_of, self._details = name, on_error, flags, details
        self._failed = 0
        self._flags: Counter[str] = Counter()

    def add(self, found: Sequence[object]) -> None:
        """Count the results of the next lines."""
        for number, each in enumerate(found, start=self.lines + 1):
            if isinstance(each, HeadwayError):
                error = each.at(f"{self._name}, line {number}")
                if self._on_error == "stop":
                    raise error
                self._say(str(error))
                self._failed += 1
            else:
                self._flags.update(self._flags_of(each))
        self.lines += len(found)

    def finish(self) -> None:
        """Report the totals, if anything failed or looks suspicious."""
        if self._failed:
            self._say(f"{self._failed:,} of {self.lines:,} lines failed and are empty in the output")
        if self._flags:
            counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self._flags.most_common())
            self._say(f"lines to look at ({self._details} shows which): {counts}")

    def _say(self, message: str) -> None:
        print(f"headway: {message}", file=sys.stderr)
