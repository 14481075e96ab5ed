"""The plan of a job: the operation, the inputs, and a table of chunks.

A job folder contains::

    job.json     the operation with all options, the content hashes of models and inputs, the number of lines and chunks
    chunks.bin   a table with a row of fixed size for each chunk: its input, lines, byte ranges and a hash
    input/       compressed inputs, rewritten with one Zstandard frame per chunk

and the files of the protocol (:mod:`headway.jobs.protocol`). The plan depends only on the request. It is made once:
``job.json`` is written last, and a plan without it is made again.

An *input* is a file, or several parallel files: line n of one file belongs to line n of the others. A chunk consists of
whole lines of one input. Unless the request sets the number of lines, a chunk has at most 16,384 lines and ends at a
size between 32 KiB and 1 MiB that depends on the total size of the inputs, so that small jobs have enough chunks for
several workers.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from headway.config import flatten_items
from headway.errors import CheckpointError, ConfigError, DataError
from headway.jobs.inputs import LineStream, chunk_digest, count_lines, read_range, split_lines
from headway.jobs.protocol import Timing
from headway.storage import atomic_write_text, lock_file

FORMAT_VERSION = 1
JOB_FILE = "job.json"
_TABLE_FILE = "chunks.bin"
_ROW = struct.Struct("<4q")  # input, first line, number of lines, digest
_RANGE = struct.Struct("<2q")  # byte offset and size in a file
_UNFINISHED_PLAN = {_TABLE_FILE, "input", "plan.lock"}
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 1 << 15, 1 << 20
# Target number of chunks in a small job, unless the chunks would be smaller than _MIN_CHUNK_BYTES.
_SMALL_JOB_CHUNKS = 64
_MAX_CHUNK_LINES = 16_384
_COMPRESSION_RATIO = 4  # a typical ratio for text
_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class InputFile:
    """A file of an input.

    Attributes:
        path: Path of the file. It is relative to the job folder if the file is inside or next to that folder, so that
            both can be moved together.
        num_bytes: Size of the file.
        modified_ns: Modification time. The content is not hashed again while the size and this time are unchanged.
        blake2b: Hash of the decompressed content.
        stored: Name of the rewritten file in the job folder, or None if the original file is read.
    """

    path: str
    num_bytes: int
    modified_ns: int
    blake2b: str
    stored: str | None = None

    def is_unchanged(self, path: Path) -> bool:
        """Return whether the file, now at ``path``, has the same content as when the job was planned.

        Raises:
            DataError: The file cannot be read.
        """
        if path.is_file():
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) == (self.num_bytes, self.modified_ns):
                return True
        return content_digest(path) == self.blake2b


@dataclass(frozen=True)
class Input:
    """One file, or several parallel files with the same number of lines."""

    files: tuple[InputFile, ...]
    num_lines: int
    num_chunks: int


@dataclass(frozen=True)
class JobChunk:
    """Consecutive lines of an input.

    Attributes:
        index: Index of the chunk in the job, counted from 0.
        input: Index of the chunk's input, counted from 0.
        first_line: Number of the first line in the input, counted from 1.
        num_lines: Number of lines.
        digest: Hash of the chunk's content in all files of the input.
        ranges: Byte offset and size of the chunk in each file of the input.
    """

    index: int
    input: int
    first_line: int
    num_lines: int
    digest: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class JobRequest:
    """A request to apply an operation to inputs.

    Attributes:
        operation: Name of the operation.
        options: Options of the operation, as JSON values.
        content_hashes: Maps the path of each model and file that the operation uses to the hash of its content.
        inputs: The files of each input.
        chunk_lines: Number of lines per chunk. None means that it depends on the size of the inputs.
        timing: Intervals of the protocol.
    """

    operation: str
    options: Mapping[str, Any]
    content_hashes: Mapping[str, str]
    inputs: Sequence[Sequence[Path]]
    chunk_lines: int | None = None
    timing: Timing = field(default_factory=Timing)


class Plan:
    """The plan of the job in ``folder``.

    Attributes:
        folder: The job folder.
        operation: Name of the operation.
        options: Options of the operation, as JSON values.
        content_hashes: Content hashes of the models and files that the operation uses, by path.
        inputs: The inputs, in the order of the request.
        num_chunks: Number of chunks in all inputs.
        num_lines: Number of lines in all inputs.
        timing: Intervals of the protocol.

    Raises:
        CheckpointError: The folder has no plan, or the plan is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / JOB_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder}: not a job folder, because it has no {JOB_FILE}; make a job, for example with "
                f"headway corpus translate MODEL FILE -o {folder}"
            ) from None
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged ({error})") from None
        if data["format"] != FORMAT_VERSION:
            raise CheckpointError(f"{path}: format {data['format']}; this version of Headway reads {FORMAT_VERSION}")
        self._data = data
        self.operation: str = data["operation"]
        self.options: dict[str, Any] = data["options"]
        self.content_hashes: dict[str, str] = data["contents"]
        self.inputs = [
            Input(tuple(InputFile(**file) for file in item["files"]), item["num_lines"], item["num_chunks"])
            for item in data["inputs"]
        ]
        self.num_chunks: int = data["chunks"]
        self.num_lines: int = data["lines"]
        self.timing = Timing(**data["timing"])
        self._num_files = max((len(item.files) for item in self.inputs), default=0)
        self._row_bytes = _ROW.size + self._num_files * _RANGE.size

    def chunk(self, index: int) -> JobChunk:
        """Read one chunk from its row of the table."""
        with (self.folder / _TABLE_FILE).open("rb") as table:
            table.seek(index * self._row_bytes)
            return self._parse_row(index, table.read(self._row_bytes))

    def chunks(self) -> Iterator[JobChunk]:
        """Yield all chunks in order."""
        with (self.folder / _TABLE_FILE).open("rb") as table:
            for index in range(self.num_chunks):
                yield self._parse_row(index, table.read(self._row_bytes))

    def _parse_row(self, index: int, row: bytes) -> JobChunk:
        if len(row) != self._row_bytes:
            raise CheckpointError(
                f"{self.folder / _TABLE_FILE}: incomplete; remove the folder, and create the job again"
            )
        number, first_line, num_lines, digest = _ROW.unpack_from(row)
        count = len(self.inputs[number].files)
        ranges = tuple(_RANGE.unpack_from(row, _ROW.size + part * _RANGE.size) for part in range(count))
        return JobChunk(index, number, first_line, num_lines, digest, ranges)

    def read_lines(self, chunk: JobChunk) -> list[tuple[bytes, ...]]:
        """Return the lines of a chunk: for each line, its text in each file of the input.

        Raises:
            DataError: An input is missing or has changed.
        """
        files, parts = self.inputs[chunk.input].files, list[bytes]()
        for file, (offset, size) in zip(files, chunk.ranges, strict=True):
            path = self._path(file) if file.stored is None else self.folder / file.stored
            parts.append(read_range(path, offset, size, is_frame=file.stored is not None))
        if chunk_digest(b"\0".join(parts)) != chunk.digest:
            raise DataError(
                f"{self.input_name(chunk)}: has changed since the job was planned; restore the file, or start "
                "another job"
            )
        return list(zip(*map(split_lines, parts), strict=True))

    def input_name(self, chunk: JobChunk) -> str:
        """Return the name of a chunk's input, for messages."""
        return " and ".join(str(self._path(file)) for file in self.inputs[chunk.input].files)

    def _path(self, file: InputFile) -> Path:
        return Path(os.path.normpath(self.folder / file.path))

    def check_request(self, request: JobRequest, advice: str) -> None:
        """Check that this plan was made for ``request``.

        Raises:
            CheckpointError: The plan was made for another request. The message lists the differences and ends with
                ``advice``.
        """
        ours, theirs = (
            dict(flatten_items(self._request_data())),
            dict(flatten_items(_request_data(self.folder, request))),
        )
        differences = [
            f"{name} was {_shown(ours.get(name))} and is {_shown(theirs.get(name))}"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]
        if not differences:
            for item in self.inputs:
                paths = {self._path(file): file for file in item.files}
                differences += [f"{path} has changed" for path, file in paths.items() if not file.is_unchanged(path)]
        if differences:
            raise CheckpointError(f"{self.folder}: contains a different job: {'; '.join(differences)}; {advice}")

    def _request_data(self) -> dict[str, Any]:
        return {key: self._data[key] for key in ("operation", "options", "contents", "files", "chunk_lines", "timing")}


def content_digest(path: Path) -> str:
    """Return the hash of a file's decompressed content, which :attr:`InputFile.blake2b` stores.

    Raises:
        DataError: The file cannot be read.
    """
    stream = LineStream(path)
    while stream.take(_MAX_CHUNK_LINES):
        pass
    return stream.hash.hexdigest()


def _shown(value: object) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False)


def _portable_path(folder: Path, path: Path) -> str:
    """Return the path of an input. It is relative to the job folder if the input is inside or next to that folder."""
    folder, path = folder.resolve(), path.resolve()
    return os.path.relpath(path, folder) if path.is_relative_to(folder.parent) else str(path)


def _request_data(folder: Path, request: JobRequest) -> dict[str, Any]:
    """Return the JSON values that identify a request."""
    data = {
        "operation": request.operation,
        "options": request.options,
        "contents": request.content_hashes,
        "files": [[_portable_path(folder, path) for path in paths] for paths in request.inputs],
        "chunk_lines": request.chunk_lines,
        "timing": asdict(request.timing),
    }
    normalized: dict[str, Any] = json.loads(json.dumps(data))  # tuples become lists
    return normalized


def make_plan(
    folder: Path,
    request: JobRequest,
    *,
    advice: str = "repeat its command to resume it, or choose another folder",
    on_progress: Callable[[int], None] = lambda lines: None,
) -> Plan:
    """Return the plan in ``folder``. If there is none, make it first.

    Args:
        folder: The job folder.
        request: The operation and its inputs.
        advice: Advice for the error message if the folder contains the plan of another request.
        on_progress: Called repeatedly with the number of lines read since the last call.

    Raises:
        CheckpointError: The folder contains the plan of another request, or other files.
        ConfigError: There are no input files, or ``chunk_lines`` is less than 1.
        DataError: An input cannot be read, or parallel files have different numbers of lines.
    """
    if not request.inputs:
        raise ConfigError("no input files")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
    if JOB_FILE not in names and names - _UNFINISHED_PLAN:
        raise CheckpointError(f"{folder}: neither empty nor a job; choose another folder")
    with lock_file(folder / "plan.lock"):  # the same command may be running several times: only one makes the plan
        if (folder / JOB_FILE).exists():
            plan = Plan(folder)
            plan.check_request(request, advice)
            return plan
        _write_plan(folder, request, on_progress)
    return Plan(folder)


def _write_plan(folder: Path, request: JobRequest, on_progress: Callable[[int], None]) -> None:
    shutil.rmtree(folder / "input", ignore_errors=True)
    max_lines, max_bytes = _chunk_size(request)
    width = max(map(len, request.inputs)) * _RANGE.size + _ROW.size
    with (folder / _TABLE_FILE).open("wb") as table:

        def write_row(row: bytes, num_lines: int) -> None:
            table.write(row.ljust(width, b"\0"))
            on_progress(num_lines)

        items = [
            _plan_input(folder, number, [path.resolve() for path in paths], max_lines, max_bytes, write_row)
            for number, paths in enumerate(request.inputs)
        ]
    _write_job(folder, request, items)


def _write_job(folder: Path, request: JobRequest, items: Sequence[Input]) -> None:
    data = {
        "format": FORMAT_VERSION,
        **_request_data(folder, request),
        "lines": sum(item.num_lines for item in items),
        "chunks": sum(item.num_chunks for item in items),
        "inputs": [asdict(item) for item in items],
    }
    atomic_write_text(folder / JOB_FILE, json.dumps(data, indent=1) + "\n")


def make_plan_without_files(folder: Path, num_lines: int, chunk_lines: int) -> Plan:
    """Make the plan of a job without files, whose chunks have only line numbers, to benchmark large jobs."""
    folder.mkdir(parents=True)
    num_chunks = 0
    with (folder / _TABLE_FILE).open("wb") as table:
        for first in range(1, num_lines + 1, chunk_lines):
            table.write(_ROW.pack(0, first, min(chunk_lines, num_lines + 1 - first), 0))
            num_chunks += 1
    _write_job(folder, JobRequest("numbers", {}, {}, [], chunk_lines), [Input((), num_lines, num_chunks)])
    return Plan(folder)


def _chunk_size(request: JobRequest) -> tuple[int, int | None]:
    """Return the maximum number of lines of a chunk, and the size in bytes at which a chunk ends (None: no limit)."""
    if request.chunk_lines is not None:
        if request.chunk_lines < 1:
            raise ConfigError(f"--chunk-lines {request.chunk_lines}: expected 1 or more")
        return request.chunk_lines, None
    total = 0
    for paths in request.inputs:
        for path in paths[:1]:
            size = path.stat().st_size if path.is_file() else 0
            total += size * (_COMPRESSION_RATIO if path.suffix in _COMPRESSED else 1)
    return _MAX_CHUNK_LINES, min(max(total // _SMALL_JOB_CHUNKS, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)


def _plan_input(
    folder: Path,
    number: int,
    paths: Sequence[Path],
    max_lines: int,
    max_bytes: int | None,
    write_row: Callable[[bytes, int], None],
) -> Input:
    """Divide an input into chunks, write their rows to the table, and rewrite compressed files."""
    before = [path.stat() if path.is_file() else None for path in paths]
    streams = [LineStream(path) for path in paths]
    stored = [
        f"input/{number}.{part}.zst" if path.suffix in _COMPRESSED or not path.is_file() else None
        for part, path in enumerate(paths)
    ]
    offsets = [stream.bom_bytes for stream in streams]
    first_line, num_chunks = 1, 0
    with ExitStack() as stack:
        outputs: list[BinaryIO | None] = []
        for part, name in enumerate(stored):
            if name is not None:
                (folder / name).parent.mkdir(exist_ok=True)
                offsets[part] = 0
            outputs.append(None if name is None else stack.enter_context((folder / name).open("wb")))
        while True:
            contents = [streams[0].take(max_lines, max_bytes)]
            count = count_lines(contents[0])
            contents += [stream.take(max(count, 1)) for stream in streams[1:]]
            counts = [count_lines(content) for content in contents]
            if max(counts) != min(counts):
                shown = " but ".join(
                    f"{path} has {first_line - 1 + have:,}" + (" or more" if have == max(counts) else "")
                    for path, have in zip(paths, counts, strict=True)
                )
                raise DataError(f"parallel files must have the same number of lines; {shown}")
            if not count:
                break
            ranges = b""
            for part, (content, output) in enumerate(zip(contents, outputs, strict=True)):
                size = len(content)
                if output is not None:
                    frame = zstandard.ZstdCompressor(level=3).compress(content)
                    output.write(frame)
                    size = len(frame)
                ranges += _RANGE.pack(offsets[part], size)
                offsets[part] += size
            write_row(_ROW.pack(number, first_line, count, chunk_digest(b"\0".join(contents))) + ranges, count)
            first_line, num_chunks = first_line + count, num_chunks + 1
    files = [
        InputFile(
            _portable_path(folder, path),
            status.st_size if status else 0,
            status.st_mtime_ns if status else 0,
            stream.hash.hexdigest(),
            name,
        )
        for path, status, stream, name in zip(paths, before, streams, stored, strict=True)
    ]
    return Input(tuple(files), first_line - 1, num_chunks)
