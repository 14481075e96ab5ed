"""Clean a corpus in two passes, in a folder, so that an interrupted run can be resumed.

The first pass measures all lines, as a job (:mod:`headway.corpus.cleaning.measuring`). Properties of the whole corpus
are then learned from the rows: the limits of the length ratio, and which lines repeat others. The second pass decides
which lines to keep, and writes the results. The folder contains::

    kept.de, kept.en    the kept lines, in the format of the input
    dropped.jsonl.zst   the dropped lines: file, line, rule, value, threshold and texts
    report.json         counts, thresholds, histograms and examples; written last
    report.html         the same report as a page
    .job/               files needed to resume; removed when the run is complete

The files do not depend on the number of workers or on interruptions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headway.corpus.cleaning.corpus_files import (
    CorpusInput,
    KeptFiles,
    convert_translation_memories,
    json_line,
    open_outputs,
)
from headway.corpus.cleaning.corpus_lines import CorpusKind, LineParser
from headway.corpus.cleaning.decisions import Decisions, Judge, usable_lines
from headway.corpus.cleaning.findings import CorpusCounts, LineExample, RuleFindings, empty_repair_examples
from headway.corpus.cleaning.length_ratio import RatioHistogram, RatioLimits
from headway.corpus.cleaning.measures import get_value
from headway.corpus.cleaning.measuring import CleaningSettings, MeasuredChunk, decode_texts
from headway.corpus.cleaning.repeats import KeyPartitions, create_line_flags
from headway.corpus.cleaning.report import CleaningReport, write_report
from headway.corpus.cleaning.rules import Rule, rules_for
from headway.corpus.cleaning.tmx_output import TMX_END, tmx_start, tmx_unit
from headway.corpus.work import OperationSettings, make_job_request
from headway.errors import CheckpointError
from headway.jobs.join import read_chunk_output
from headway.jobs.plan import JobChunk, JobRequest, Plan, content_digest, make_plan
from headway.jobs.protocol import Timing
from headway.storage import lock_file

if TYPE_CHECKING:
    from headway.corpus.cleaning.scoring import ScoringSettings

MEASURE_OPERATION, SCORE_OPERATION = "clean", "clean-score"  # names of job operations, and of their folders
_JOB = ".job"
_DROPPED, _REPORT = "dropped.jsonl.zst", "report.json"
HTML_REPORT_FILE = "report.html"
_COMPARING = ("duplicate", "contradiction")  # rules that compare lines with each other
_ADVICE = "repeat that command to resume it, or choose another folder"


@dataclass(frozen=True)
class CleaningResult:
    """The result of a finished run.

    Attributes:
        kind: The content of a line: a pair, a text, or a labeled text.
        lines: Number of lines in the corpus.
        kept: Number of lines that were kept.
        dropped: Number of lines that each rule dropped. Rules that dropped no line are omitted.
        repaired: Number of lines that each repair changed. Repairs that changed no line are omitted.
        warnings: Warnings about the corpus.
    """

    kind: CorpusKind
    lines: int
    kept: int
    dropped: dict[str, int]
    repaired: dict[str, int]
    warnings: tuple[str, ...]

    def summary(self) -> list[str]:
        """Return a summary: the numbers of lines that were kept, repaired and dropped, and the warnings."""
        texts = "pairs" if self.kind == "pairs" else "texts"
        share = f" ({self.kept / self.lines:.1%})" if self.lines else ""
        return [
            f"{self.kept:,} of {self.lines:,} {texts} kept{share}",
            *(
                f"{label}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
                for label, counts in (("repaired", self.repaired), ("dropped", self.dropped))
                if counts
            ),
            *(f"warning: {warning}" for warning in self.warnings),
        ]


def clean(
    inputs: Sequence[CorpusInput],
    settings: CleaningSettings,
    folder: Path,
    work: Callable[[Plan], None],
    *,
    chunk_lines: int | None = None,
    timing: Timing | None = None,
    on_progress: Callable[[str, int, int], None] = lambda activity, done, total: None,
) -> CleaningResult:
    """Clean a corpus, or resume an interrupted run.

    Args:
        inputs: The files of the corpus.
        settings: The cleaning settings.
        folder: The folder for the results.
        work: Works on a job until all of its chunks have a result.
        chunk_lines: Number of lines that a worker takes at a time. None means that it depends on the corpus size.
        timing: Intervals and time limits of the job protocol.
        on_progress: Called with an activity, the number of finished lines and the total number of lines.

    Raises:
        CheckpointError: The folder contains the results of another run, or other files.
        DataError: A file cannot be read.
    """
    memories = tuple(str(item.paths[0]) for item in inputs if item.format == "tmx")
    settings = settings.model_copy(update={"memories": memories})
    request = make_job_request(
        MEASURE_OPERATION, settings, [item.paths for item in inputs], chunk_lines=chunk_lines, timing=timing
    )
    if (folder / _REPORT).exists():
        report = _finished(folder, request)
        shutil.rmtree(folder / _JOB, ignore_errors=True)
        return _result(report)
    if folder.exists() and any(folder.iterdir()) and not (folder / _JOB).exists():
        raise CheckpointError(f"{folder}: not empty, and not the folder of an interrupted run; choose another folder")
    job = folder / _JOB
    with lock_file(job / "lock"):  # if the same command runs in several processes, only one converts the files
        readable = convert_translation_memories(inputs, settings.languages, job / "input")
    paths = [item.paths for item in readable]

    def plan_job(operation: str, options: OperationSettings) -> Plan:
        planned = make_job_request(operation, options, paths, chunk_lines=chunk_lines, timing=timing)
        done = 0

        def on_lines(lines: int) -> None:
            nonlocal done
            done += lines
            on_progress("reading", done, 0)

        return make_plan(job / operation, planned, advice=_ADVICE, on_progress=on_lines)

    plan = plan_job(MEASURE_OPERATION, settings)
    work(plan)

    def score(scoring: ScoringSettings) -> Plan:
        scored = plan_job(SCORE_OPERATION, scoring)
        work(scored)
        return scored

    with lock_file(job / "lock"):
        if (folder / _REPORT).exists():  # another process has just finished
            return _result(_finished(folder, request))
        identity = {
            "settings": request.options["settings"],
            "contents": request.content_hashes,
            "files": [{"path": str(path), "blake2b": content_digest(path)} for item in inputs for path in item.paths],
        }
        files = KeptFiles.of(inputs, settings.kind, settings.languages)
        return _SecondPass(plan, readable, files, settings, folder, score, on_progress).run(identity)


def _finished(folder: Path, request: JobRequest) -> dict[str, Any]:
    """Return the report of a finished run.

    Raises:
        CheckpointError: The finished run is not the requested one.
    """
    path = folder / _REPORT
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        run = report["run"]
        files = {entry["path"]: entry["blake2b"] for entry in run["files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a report of this version ({error}); choose another folder") from None
    paths = [path for group in request.inputs for path in group]
    is_same = run["settings"] == request.options["settings"] and run["contents"] == request.content_hashes
    if not is_same or set(files) != set(map(str, paths)) or any(content_digest(p) != files[str(p)] for p in paths):
        raise CheckpointError(
            f"{folder}: contains the results of another run (other files or settings); choose another folder"
        )
    return report


def _result(report: dict[str, Any]) -> CleaningResult:
    counts = {rule["name"]: rule["dropped"] for rule in report["rules"] if rule["dropped"]}
    repaired = {name: entry["lines"] for name, entry in report["repairs"].items() if entry["lines"]}
    return CleaningResult(report["kind"], report["lines"], report["kept"], counts, repaired, tuple(report["warnings"]))


class _SecondPass:
    """Learns from the rows of all lines, decides which lines to keep, and writes the results.

    Args:
        plan: The plan of the first pass, which is complete.
        inputs: The files of the corpus.
        files: The output files for the kept lines.
        settings: The cleaning settings.
        folder: The folder for the results.
        score: Scores all lines in a job, and returns the job's plan.
        on_progress: Called with an activity, the number of finished lines and the total number of lines.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[CorpusInput],
        files: KeptFiles,
        settings: CleaningSettings,
        folder: Path,
        score: Callable[[ScoringSettings], Plan],
        on_progress: Callable[[str, int, int], None],
    ) -> None:
        self._plan, self._inputs, self._files, self._settings, self._folder = plan, inputs, files, settings, folder
        self._score, self._on_progress = score, on_progress
        self._scored: Plan | None = None
        self._scratch = folder / _JOB / "scratch"
        names = [name for name in settings.config.rules if name != "cross_entropy" or settings.model is not None]
        self._rules = rules_for(names, settings.kind, has_held_out=bool(settings.held_out))

    def run(self, identity: dict[str, Any]) -> CleaningResult:
        """Run the pass, and return the result after all files have been written."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        limits = self._learn_ratio_limits()
        judge = self._with_scores(Judge(self._rules, self._settings.config.thresholds, limits))
        judge = self._with_line_flags(judge)
        report = self._write(judge)
        data = {"run": identity, **report.as_dict()}
        write_report(data, self._folder / _REPORT, self._folder / HTML_REPORT_FILE)
        shutil.rmtree(self._folder / _JOB, ignore_errors=True)
        return _result(data)

    def _chunks(self, activity: str) -> Iterator[tuple[JobChunk, int, MeasuredChunk]]:
        """Yield each chunk, the number of lines before it, and its measurements."""
        done = 0
        for chunk in self._plan.chunks():
            scores = self._read_scores(chunk)
            yield chunk, done, MeasuredChunk.parse(read_chunk_output(self._plan, chunk), scores)
            done += chunk.num_lines
            self._on_progress(activity, done, self._plan.num_lines)

    def _read_scores(self, chunk: JobChunk) -> dict[str, NDArray[np.float32]]:
        if self._scored is None:
            return {}
        from headway.corpus.cleaning.scoring import decode_scores

        return decode_scores(read_chunk_output(self._scored, chunk))

    def _learn_ratio_limits(self) -> RatioLimits | None:
        if not any(rule.name == "ratio" for rule in self._rules):
            return None
        histogram = RatioHistogram()
        for _, _, chunk in self._chunks("learning"):
            rows = chunk.rows[usable_lines(chunk.rows)]
            histogram.add(get_value(rows, "source_characters"), get_value(rows, "target_characters"))
        return histogram.limits()

    def _with_scores(self, judge: Judge) -> Judge:
        """Return the judge with thresholds for model scores. If a rule needs them, all lines are scored."""
        needed = [rule for rule in self._rules if rule.is_learned]
        if not needed:
            return judge
        from headway.corpus.cleaning import learned_scores
        from headway.corpus.cleaning.scoring import ScoringSettings

        cheap = replace(judge, rules=[rule for rule in self._rules if rule.name not in (*_COMPARING, *needed)])
        pairs = self._sample(cheap, learned_scores.MAX_PAIRS)
        names = {rule.name for rule in needed}
        settings = ScoringSettings(cleaning=self._settings)
        if names & {"misaligned", "truncated"} and len(pairs) >= learned_scores.MIN_PAIRS:
            lexical = (self._folder / _JOB / "lexical.npz").resolve()
            if not lexical.exists():
                share = self._sampled_share(learned_scores.MAX_PAIRS)
                learned_scores.learn_lexical_model(pairs, share, lexical)
            settings = settings.model_copy(update={"lexical_model": str(lexical)})
        if "truncated" in names and self._settings.model is not None:
            coverage = (self._folder / _JOB / "coverage.npz").resolve()
            if not coverage.exists():
                learned_scores.learn_coverage(settings, pairs, coverage)
            settings = settings.model_copy(update={"coverage": str(coverage)})
        if not settings.paths:
            return judge
        self._scored = self._score(settings)
        scores = self._sampled_scores(cheap, learned_scores.MAX_PAIRS)
        posterior = self._settings.config.thresholds.min_pair_posterior
        return replace(judge, learned=learned_scores.learn_thresholds(settings, scores, pairs, posterior))

    def _sampled_share(self, count: int) -> float:
        """Return the share of the lines that are in a sample of about ``count`` lines."""
        return min(count / max(self._plan.num_lines, 1), 1.0)

    def _sampled(self, judge: Judge, count: int, activity: str) -> Iterator[tuple[MeasuredChunk, NDArray[np.bool_]]]:
        """Yield each chunk, and which of its lines are in a sample of about ``count`` lines that the judge keeps.

        The sample depends only on the texts. It contains each pair only once, ignoring case and punctuation, because a
        repeated truncated pair would explain itself.
        """
        share = self._sampled_share(count)
        limit = np.uint64(min(int(share * 2**64), 2**64 - 1))
        seen = set[int]()
        for _, first, chunk in self._chunks(activity):
            chosen = judge.decide(chunk.rows, first).kept & (chunk.rows["pair"] <= limit)
            numbers = np.flatnonzero(chosen)
            for number, pair in zip(numbers.tolist(), chunk.rows["pair"][numbers].tolist(), strict=True):
                chosen[number] = pair not in seen
                seen.add(pair)
            yield chunk, chosen

    def _sample(self, judge: Judge, count: int) -> list[tuple[str, str]]:
        """Return a sample of about ``count`` different pairs that the judge keeps."""
        pairs: list[tuple[str, str]] = []
        for chunk, chosen in self._sampled(judge, count, "reading a sample"):
            lines = chunk.lines()
            for number in np.flatnonzero(chosen).tolist():
                source, target = decode_texts(lines[number])
                pairs.append((source, target))
        return pairs

    def _sampled_scores(self, judge: Judge, count: int) -> NDArray[np.float32]:
        """Return the scores of a sample of about ``count`` pairs that the judge keeps."""
        parts = [
            np.stack([*chunk.scores.values()], axis=1)[chosen]
            for chunk, chosen in self._sampled(judge, count, "learning")
        ]
        return np.concatenate(parts)

    def _with_line_flags(self, judge: Judge) -> Judge:
        """Return the judge with the results of the rules that compare lines with each other."""
        alone: dict[str, NDArray[np.bool_]] = {}
        in_order: dict[str, NDArray[np.bool_]] = {}
        for rule in self._rules:
            if rule.name not in _COMPARING:
                continue
            before = replace(
                judge, rules=self._rules[: self._rules.index(rule)], flags_alone=alone, flags_in_order=in_order
            )
            alone[rule.name], in_order[rule.name] = self._line_flags(rule, before)
        return replace(judge, flags_alone=alone, flags_in_order=in_order)

    def _line_flags(self, rule: Rule, before: Judge) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which lines a rule drops as the only rule, and which it drops among those that ``before`` keeps."""
        alone, in_order = (
            create_line_flags(self._scratch / f"{rule.name}.{part}", self._plan.num_lines)
            for part in ("alone", "in_order")
        )
        for flags, judge in ((alone, None), (in_order, before)):
            partitions = KeyPartitions(self._scratch / "keys", self._plan.num_lines, self._keys(rule, judge))
            if rule.name == "duplicate":
                partitions.mark_repeats(flags)
            else:
                partitions.mark_contradictions(flags)
            partitions.remove()
        return alone, in_order

    def _keys(self, rule: Rule, judge: Judge | None) -> Iterator[tuple[Any, Any, Any]]:
        for _, first, chunk in self._chunks(f"looking for {rule.name}s"):
            chosen = usable_lines(chunk.rows) if judge is None else judge.decide(chunk.rows, first, chunk.scores).kept
            rows = chunk.rows[chosen]
            names = ("pair", "target") if rule.name == "duplicate" else ("source", "target")
            yield first + np.flatnonzero(chosen), rows[names[0]], rows[names[1]]

    def _count_repeats(self, side: str) -> int:
        """Return the number of usable lines whose source, or target, occurs in an earlier usable line."""

        def keys() -> Iterator[tuple[Any, Any, Any]]:
            for _, first, chunk in self._chunks(f"comparing {side}s"):
                chosen = usable_lines(chunk.rows)
                yield first + np.flatnonzero(chosen), chunk.rows[side][chosen], chunk.rows[side][chosen]

        partitions = KeyPartitions(self._scratch / "keys", self._plan.num_lines, keys())
        count = partitions.count_repeats()
        partitions.remove()
        return count

    def _write(self, judge: Judge) -> CleaningReport:
        """Decide which lines to keep, and write the kept and the dropped lines."""
        files = self._files
        names = [*files.names, _DROPPED]
        counts = CorpusCounts()
        findings = [RuleFindings(rule, judge.threshold_of(rule)) for rule in self._rules]
        repairs = empty_repair_examples()
        staging = self._scratch / "new"
        staging.mkdir(parents=True)
        with open_outputs([staging / name for name in names]) as (*kept, dropped):
            if files.format == "tmx":
                kept[0].write(tmx_start(self.languages))
            for chunk, first, measured in self._chunks("writing"):
                decisions = judge.decide(measured.rows, first, measured.scores)
                counts.add(measured.rows, decisions)
                writer = _ChunkWriter(self, chunk, measured, decisions, findings)
                for index, rule in enumerate(findings):
                    rule.add(index, decisions, measured.rows["pair"], writer.example)
                for bit, examples in enumerate(repairs.values()):
                    changed = (measured.rows["repairs"] >> bit & 1).astype(bool)
                    if changed.any():
                        zeros = np.zeros(len(changed))
                        examples.add(zeros, changed & decisions.kept, measured.rows["pair"], writer.repaired_example)
                if self.kind == "labels":
                    counts.add_labels(measured.rows, writer.label)
                writer.write_kept(files, kept)
                writer.write_dropped(dropped)
            if files.format == "tmx":
                kept[0].write(TMX_END)
        for name in names:
            (staging / name).replace(self._folder / name)
        repeats = {side: self._count_repeats(side) for side in self._repeat_sides()}
        return CleaningReport(self._settings, counts, findings, repairs, repeats, judge.ratio_limits)

    def _repeat_sides(self) -> tuple[str, ...]:
        return {"pairs": ("source", "target"), "texts": ("source",), "labels": ("source",)}[self._settings.kind]

    @property
    def kind(self) -> CorpusKind:
        """The content of a line: a pair, a text, or a labeled text."""
        return self._settings.kind

    @property
    def languages(self) -> list[str]:
        """The source and target language of a pair."""
        return [str(code) for code in self._settings.languages]

    def parser(self, chunk: JobChunk) -> LineParser:
        """Return the parser for the lines in a chunk."""
        return self._settings.parser(self._inputs[chunk.input].paths[-1])

    def file_name(self, chunk: JobChunk) -> str:
        """Return the display name of the file that contains a chunk."""
        return self._inputs[chunk.input].name

    def raw_lines(self, chunk: JobChunk) -> list[tuple[bytes, ...]]:
        """Return the lines in a chunk as they are in the input files."""
        return self._plan.read_lines(chunk)


class _ChunkWriter:
    """Writes the lines in a chunk, and returns single lines as examples."""

    def __init__(
        self,
        second_pass: _SecondPass,
        chunk: JobChunk,
        measured: MeasuredChunk,
        decisions: Decisions,
        findings: Sequence[RuleFindings],
    ) -> None:
        self._pass, self._chunk, self._decisions, self._findings = second_pass, chunk, decisions, findings
        self._lines = measured.lines()
        self._raw: list[tuple[bytes, ...]] | None = None

    def example(self, index: int, measured: float) -> LineExample:
        """Return a line as an example."""
        number = self._chunk.first_line + index
        return LineExample(self._pass.file_name(self._chunk), number, measured, tuple(decode_texts(self._lines[index])))

    def label(self, index: int) -> str:
        """Return the label of a line."""
        return decode_texts(self._lines[index])[1]

    def repaired_example(self, index: int) -> LineExample:
        """Return a line as an example, with its texts before repairs."""
        after = self.example(index, 0.0)
        before = self._pass.parser(self._chunk).parse(self._raw_lines()[index]).texts
        return LineExample(after.file, after.line, 0.0, after.texts, before)

    def _raw_lines(self) -> list[tuple[bytes, ...]]:
        if self._raw is None:
            self._raw = self._pass.raw_lines(self._chunk)
        return self._raw

    def write_kept(self, files: KeptFiles, outputs: Sequence[Any]) -> None:
        """Write the kept lines."""
        numbers = np.flatnonzero(self._decisions.kept).tolist()
        if not numbers:
            return
        if files.format == "tmx":
            outputs[0].writelines(
                tmx_unit(decode_texts(self._lines[number]), self._pass.languages) for number in numbers
            )
        elif files.format == "text":
            pairs = [_cells(self._lines[number]) for number in numbers]
            for output, column in zip(outputs, zip(*pairs, strict=True), strict=True):
                output.write(b"\n".join(column) + b"\n")
        else:
            parser, raw = self._pass.parser(self._chunk), self._raw_lines()
            lines = [parser.replace_texts(raw[number][0], decode_texts(self._lines[number])) for number in numbers]
            outputs[0].write(b"\n".join(lines) + b"\n")

    def write_dropped(self, output: Any) -> None:
        """Write the dropped lines as JSON records."""
        by_rule = self._decisions.dropped_by
        names = _FIELD_NAMES[self._pass.kind]
        for number in np.flatnonzero(~self._decisions.kept).tolist():
            finding = self._findings[by_rule[number]]
            measured = float(self._decisions.values[finding.rule.name][number])
            record: dict[str, Any] = {
                "file": self._pass.file_name(self._chunk),
                "line": self._chunk.first_line + number,
                "rule": finding.rule.name,
                "value": float(f"{measured:.6g}"),
                "threshold": finding.threshold,
            }
            record.update(zip(names, decode_texts(self._lines[number]), strict=False))
            output.write(json_line(record))


_FIELD_NAMES = {"pairs": ("source", "target"), "texts": ("text",), "labels": ("text", "label")}


def _cells(line: bytes) -> list[bytes]:
    """Return the texts in a measured line, each without line breaks."""
    if b"\\" not in line:
        return line.split(b"\t")
    return [text.replace("\n", " ").replace("\r", " ").encode() for text in decode_texts(line)]
