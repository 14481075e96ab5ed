"""Jobs that run an operation on a corpus: create the request, and start the processes that work on it.

``python -m headway.corpus.work FOLDER WORKERS`` starts a process that loads the operation and forks the workers. The
job in the folder specifies everything else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, runtime_checkable

from headway.data.store import fingerprint
from headway.errors import BundleError
from headway.jobs.join import count_missing_chunks
from headway.jobs.line_map import LineMap
from headway.jobs.plan import JobRequest, Plan
from headway.jobs.processes import run_workers, supervise
from headway.jobs.protocol import Timing
from headway.storage import checksum

if TYPE_CHECKING:
    from headway.corpus.records import RecordFormat

_MODEL_CARD = "README.md"


@runtime_checkable
class OperationSettings(Protocol):
    """The configuration of an operation."""

    @property
    def paths(self) -> list[Path]:
        """The models and files that results depend on."""

    def check(self) -> None:
        """Check that the options are compatible.

        Raises:
            ConfigError: The options are not compatible.
        """

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Return the options as JSON values."""


def _load_clean(plan: Plan, num_workers: int) -> LineMap:
    from headway.corpus.cleaning.measuring import CleaningSettings, MeasureMap

    return MeasureMap(CleaningSettings.parse(plan.options["settings"], str(plan.folder)))


def _load_clean_score(plan: Plan, num_workers: int) -> LineMap:
    from headway.corpus.cleaning.scoring import ScoreMap, ScoringSettings

    return ScoreMap(ScoringSettings.parse(plan.options["settings"], str(plan.folder)))


def _load_translate(plan: Plan, num_workers: int) -> LineMap:
    from headway.corpus.translation import TranslateOperation, TranslationSettings

    return _text_map(TranslationSettings, TranslateOperation, plan, num_workers)


def _load_score(plan: Plan, num_workers: int) -> LineMap:
    from headway.corpus.model_maps import ModelSettings, ScoreOperation

    return _text_map(ModelSettings, ScoreOperation, plan, num_workers)


def _load_classify(plan: Plan, num_workers: int) -> LineMap:
    from headway.corpus.model_maps import ClassifyOperation, ModelSettings

    return _text_map(ModelSettings, ClassifyOperation, plan, num_workers)


def _load_generate(plan: Plan, num_workers: int) -> LineMap:
    from headway.corpus.model_maps import GenerateOperation, ModelSettings

    return _text_map(ModelSettings, GenerateOperation, plan, num_workers)


def _text_map(settings_type: Any, operation_type: Callable[[Any], Any], plan: Plan, num_workers: int) -> LineMap:
    """Load an operation on texts and warm it up. With several workers, it runs on the CPU."""
    from headway.corpus.records import RecordFormat
    from headway.corpus.text_map import TextLineMap
    from headway.hardware import keep_freed_memory

    records, options = None, plan.options
    if options["records"] is not None:
        form, fields, result = options["records"]
        records = RecordFormat(form, tuple(fields), result)
    keep_freed_memory()
    settings = settings_type.parse(options["settings"], str(plan.folder))
    if num_workers > 1:
        settings = settings.model_copy(update={"device": "cpu"})
    operation = operation_type(settings)
    operation.warm_up()
    return TextLineMap(operation, records, options["on_error"])


# Each function imports only what its operation needs: loading PyTorch takes longer than cleaning a small corpus.
OPERATIONS: dict[str, Callable[[Plan, int], LineMap]] = {
    "clean": _load_clean,
    "clean-score": _load_clean_score,
    "translate": _load_translate,
    "score": _load_score,
    "classify": _load_classify,
    "generate": _load_generate,
}


def make_job_request(
    operation: str,
    settings: OperationSettings,
    inputs: Sequence[Sequence[Path]],
    *,
    records: RecordFormat | None = None,
    on_error: Literal["stop", "mark"] = "mark",
    mixed_processors: bool = False,
    chunk_lines: int | None = None,
    timing: Timing | None = None,
) -> JobRequest:
    """Return the request for a job.

    Args:
        operation: A key of :data:`OPERATIONS`.
        settings: The options of the operation.
        inputs: The files of each input.
        records: The format of lines with fields. None means that each line is a text.
        on_error: Whether a line that fails stops the job ("stop") or is marked in the output ("mark").
        mixed_processors: Whether the job may run on machines whose results differ slightly.
        chunk_lines: Number of lines per chunk. None means that it depends on the size of the inputs.
        timing: Intervals and time limits of the job protocol.

    Raises:
        ConfigError: The options are not compatible.
        BundleError: A model or a file does not exist.
    """
    settings.check()
    paths = [path.resolve() for path in settings.paths]
    return JobRequest(
        operation=operation,
        options={
            "settings": settings.model_dump(mode="json"),
            "records": None if records is None else [records.kind, list(records.fields), records.result_field],
            "on_error": on_error,
            "mixed_processors": mixed_processors,
        },
        content_hashes={str(path): content_hash(path) for path in paths},
        inputs=inputs,
        chunk_lines=chunk_lines,
        timing=timing or Timing(),
    )


def content_hash(path: Path) -> str:
    """Return the hash of a file, or of all files in a model folder except its model card.

    Raises:
        BundleError: The file or folder does not exist.
    """
    if path.is_file():
        return checksum(path)
    if not path.is_dir():
        raise BundleError(f"{path}: no such model folder or file")
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != _MODEL_CARD)
    return fingerprint([(str(file.relative_to(path)), checksum(file)) for file in files])


def load_line_map(plan: Plan, num_workers: int = 1) -> LineMap:
    """Load a job's operation, so that ``num_workers`` processes can run it.

    Raises:
        BundleError: A model or file has changed since the job was created.
    """
    for name, planned in plan.content_hashes.items():
        if content_hash(Path(name)) != planned:
            raise BundleError(
                f"{name}: has changed since the job in {plan.folder} was created; restore it, or start another job"
            )
    return OPERATIONS[plan.operation](plan, num_workers)


def work(
    plan: Plan,
    num_workers: int,
    *,
    one_thread: bool = True,
    on_chunk: Callable[[int], None] = lambda lines: None,
) -> None:
    """Work on a job with processes on this machine until all of its chunks have a result.

    Args:
        plan: The plan of the job.
        num_workers: Number of processes.
        one_thread: Whether each process uses one thread, unless the environment sets another number.
        on_chunk: Called with the number of lines in each chunk that a process finishes.

    Raises:
        HeadwayError: The job cannot continue.
        WorkersStopped: The process received SIGTERM.
    """
    if count_missing_chunks(plan):
        command = ["-m", "headway.corpus.work", str(plan.folder), str(num_workers)]
        run_workers(command, one_thread=one_thread, on_chunk=on_chunk)


def main() -> NoReturn:
    """Load the operation of the job whose folder is the first argument, and supervise its workers."""
    plan, num_workers = Plan(Path(sys.argv[1])), int(sys.argv[2])
    supervise(plan, partial(load_line_map, plan, num_workers), num_workers)


if __name__ == "__main__":
    main()
