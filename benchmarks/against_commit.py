"""Compare the speed of this checkout with an earlier commit, in pairs within one run.

    git worktree add ../old COMMIT
    python benchmarks/against_commit.py --old ../old --data ../shared/data/multi30k
    python benchmarks/against_commit.py --old ../old --data FOLDER --rows 'train *' 'decode int8 *' --output F.json

Each row is one workload. Its two processes, one for each commit, stay alive during the row and take turns (old, new,
new, old, ...), so that other load on the machine affects both. Each pair yields the old commit's time divided by the
new commit's time: if it is above 1, the new commit is faster. The table shows the median over the pairs with a 95 %
confidence interval (bootstrap of the median). A row passes if the interval contains 0.98 or is above it, and the median
is at least 0.95.

Workloads, all on sentences of Multi30k:

    train     `headway train` runs in both processes; the waiting one is stopped (SIGSTOP). The time of a step is taken
              from metrics.jsonl, per token. The steps of the first two seconds after a pause are not counted.
    decode    lists of 1, 16 or 64 sentences, greedy or with beam 4. The models are untrained, so every translation is
              forced to the same length. With --model, the rows "decode trained" use this model and natural lengths.
    file      a file of sentences, divided between two processes
    classify  a list of texts
    service   `headway serve` with one worker; 64 clients that each send one sentence after the other
    document  processor time of reading and writing documents of a format, with texts as they are ("read and write"),
              or with the translations of the model of --model ("translate")
    start     processor time of `headway translate MODEL "one sentence"` from start to end, with warm caches

Rows named "... beside N" run while N other processes keep one processor each busy.

Only the command line, recipes and public names are used, so every commit that supports them can be compared. Documents
are made by ``tests/documents/document_samples.py`` from Multi30k's words.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from http_load import closed_loop

ROOT = Path(__file__).resolve().parents[1]
LEAST_MEDIAN, LEAST_UPPER = 0.95, 0.98
VOCABULARY, SENTENCES = 4_000, 5_000
STEPS = 3  # steps that are timed in each turn of training
SETTLE_S = 2.0  # training adapts to the load of other processes during its pause, and adapts back within this time
PATIENCE_S = 1_200
LENGTH = 20  # tokens of each translation of an untrained model
FIXED = {"min_length": LENGTH, "max_length": LENGTH}
LONG_WORDS = 120  # about 180 tokens; a text is split from 256 tokens on

# The [model] section of the recipe for each model name in a row.
MODELS: dict[str, dict[str, Any]] = {
    "small": {"preset": "small"},
    "base": {"preset": "base"},
    "gated": {"preset": "small", "activation": "swiglu"},
    "rotary": {"preset": "small", "positions": "rotary"},
    "pre-norm": {"preset": "small", "norm": "pre"},
    "learned": {"preset": "small", "positions": "learned"},
    "recurrent": {"kind": "recurrent", "d_model": 256},
    "classifier": {"kind": "classifier", "d_model": 128, "num_heads": 4, "d_ff": 256, "encoder_layers": 2},
    # Small products, so that threads wait for each other often.
    "language model": {"d_model": 192, "num_heads": 3, "d_ff": 512, "decoder_layers": 4, "max_length": 256},
}
VARIANTS = ("gated", "rotary", "pre-norm", "learned", "recurrent", "classifier")
TASKS = {"classifier": "classification", "language model": "language_model"}  # other models translate
TRAINED = "trained"  # the folder of --model
FORMATS = ("txt", "html", "md", "srt", "vtt", "po", "xliff", "json", "docx", "odt", "pptx")
READ, TRANSLATED = 24, 4  # documents of a format in each turn


@dataclass(frozen=True)
class Row:
    """One workload of the given ``kind``, and its settings."""

    name: str
    kind: str
    model: str
    precision: str = "float32"
    batch: int = 64
    sentences: int = 64
    beam_size: int = 1
    shortlist: bool = False
    long: bool = False
    workers: int = 1
    neighbors: int = 0
    format: str = ""


@dataclass(frozen=True)
class Result:
    """Ratios of old to new time, one per pair, and the seconds that each turn took (training: per 1,000 tokens)."""

    name: str
    ratios: list[float]
    old: list[float]
    new: list[float]
    interval: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", median_interval(self.ratios))

    @property
    def median(self) -> float:
        """The median ratio."""
        return float(np.median(self.ratios))

    @property
    def passes(self) -> bool:
        """Whether the new commit is as fast as required."""
        return self.median >= LEAST_MEDIAN and self.interval[1] >= LEAST_UPPER

    def __str__(self) -> str:
        low, high = self.interval
        seconds = f"{np.median(self.old):9.4f} {np.median(self.new):9.4f}"
        verdict = "" if self.passes else "  SLOWER"
        return f"{self.name:<40} {self.median:6.3f} [{low:.3f}, {high:.3f}] {seconds} {len(self.ratios):5}{verdict}"


HEADER = f"{'row':<40} {'old / new':>6} {'[95 %]':>14} {'old s':>8} {'new s':>9} {'pairs':>5}"


def median_interval(values: Sequence[float], draws: int = 10_000) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median by the percentile bootstrap."""
    numbers = np.random.default_rng(1).choice(np.asarray(values), (draws, len(values)))
    low, high = np.percentile(np.median(numbers, axis=1), (2.5, 97.5))
    return float(low), float(high)


def all_rows(*, trained: bool) -> list[Row]:
    """Return every row, in the order of the table."""
    rows = [Row(f"train {model}", "train", model) for model in ("small", "base", *VARIANTS)]
    models = [("", "small"), *([(f"{TRAINED} ", TRAINED)] if trained else [])]
    for name, model in models:
        for precision in ("int8", "float32"):
            for batch, sentences in ((1, 6), (16, 32), (64, 128)):
                for search, beam in (("greedy", 1), ("beam 4", 4)):
                    title = f"decode {name}{precision} {search} batch {batch}"
                    count = max(batch, sentences // beam)
                    rows.append(Row(title, "decode", model, precision, batch, count, beam))
    for model in VARIANTS[:-2]:
        rows += [Row(f"decode {model} {precision}", "decode", model, precision) for precision in ("int8", "float32")]
    rows.append(Row("decode recurrent float32", "decode", "recurrent"))
    rows.append(Row("decode int8 shortlist", "decode", "small", "int8", shortlist=True))
    for precision in ("int8", "float32"):
        rows.append(Row(f"decode long sources {precision}", "decode", "small", precision, 16, 16, long=True))
    rows.append(Row("file with two processes", "decode", "small", "int8", 1_000, 1_000, workers=2))
    rows.append(Row("classify", "classify", "classifier", sentences=512))
    rows += [Row(f"document read and write {name}", "document", "", format=name) for name in FORMATS]
    if trained:
        rows += [Row(f"document translate {TRAINED} {name}", "document", TRAINED, format=name) for name in FORMATS]
    rows.append(Row("start", "start", "small", "auto"))
    rows.append(Row("service", "service", "small", "int8", sentences=512))
    rows.append(Row("train language model", "train", "language model"))
    rows += [Row(f"train {model} beside 1", "train", model, neighbors=1) for model in ("small", "language model")]
    for precision in ("int8", "bfloat16", "float32"):
        for batch, sentences in ((1, 6), (16, 32), (64, 64)):
            title = f"decode {precision} greedy batch {batch} beside 1"
            rows.append(Row(title, "decode", "small", precision, batch, sentences, neighbors=1))
    return rows


def environment(tree: Path, threads: int) -> dict[str, str]:
    """Return the environment of a process that runs the code in ``tree``."""
    paths = os.pathsep.join((str(tree / "src"), str(ROOT / "benchmarks")))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}


class Workspace:
    """The corpus and the models that the rows share. Models are created when they are first used."""

    def __init__(
        self, folder: Path, data: Path, old: Path, trained: Path | None, *, threads: int, max_tokens: int
    ) -> None:
        self.folder, self._old, self._trained = folder, old, trained
        self._threads, self._max_tokens = threads, max_tokens
        corpus = folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        self.sources, targets = (
            (data / f"train.{side}").read_text(encoding="utf-8").split("\n")[:SENTENCES] for side in ("de", "en")
        )
        for name, lines in (("train.de", self.sources), ("train.en", targets)):
            (corpus / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        labels = ("ein" if line.startswith("Ein ") else "other" for line in self.sources)
        rows = zip(labels, self.sources, strict=True)
        (corpus / "train.tsv").write_text("".join(f"{label}\t{line}\n" for label, line in rows), encoding="utf-8")

    def recipe(self, model: str, steps: int) -> Path:
        """Write a recipe that trains ``model`` without validation."""
        task = TASKS.get(model, "translation")
        files = {"classification": ["train.tsv"], "language_model": ["train.en"]}.get(task, ["train.de", "train.en"])
        tokenizer = 'kind = "characters"' if task == "language_model" else f"vocab_size = {VOCABULARY}"
        options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in MODELS[model].items())
        path = self.folder / f"{model}-{steps}.toml"
        path.write_text(
            f'[task]\nkind = "{task}"\n'
            f'[data]\nfolder = "{self.folder / "corpus"}"\ntrain = [{{ files = {json.dumps(files)} }}]\n'
            f"max_tokens = {self._max_tokens}\n"
            f"[tokenizer]\n{tokenizer}\n[model]\n{options}\n"
            f"[training]\nsteps = {steps}\nlog_every = 1\n[checkpoints]\nevery = {steps}\nkeep = 1\naverage = 0\n",
            encoding="utf-8",
        )
        return path

    def model(self, name: str) -> Path:
        """Return a model folder, which the old commit creates with one training step."""
        if name == TRAINED:
            assert self._trained is not None
            return self._trained
        run = self.folder / f"model-{name}"
        if not (run / "best").exists():
            self.command("train", self.recipe(name, 1), "--run", run)
        return run / "best"

    def learn_shortlist(self, model: Path) -> None:
        """Add a shortlist to a model folder."""
        if not list(model.glob("shortlist*")):
            corpus = self.folder / "corpus"
            self.command("shortlist", model, "--source", corpus / "train.de", "--target", corpus / "train.en")

    def documents(self, format_name: str, count: int) -> list[Path]:
        """Return documents of a format that consist of words from the corpus."""
        folder = self.folder / "documents"
        folder.mkdir(exist_ok=True)
        sys.path.insert(0, str(ROOT / "tests" / "documents"))
        samples: Any = importlib.import_module("document_samples")
        corpus = itertools.cycle(word for line in self.sources for word in line.split() if word.isalpha())
        paths = [folder / f"{number}.{format_name}" for number in range(count)]
        for number, path in enumerate(paths):
            words = samples.Words(number)
            words.word = corpus.__next__
            samples.MAKERS[format_name](words, path)
        return paths

    def command(self, *words: object) -> None:
        """Run ``headway WORDS`` with the old commit."""
        command = [sys.executable, "-m", "headway", *map(str, words)]
        subprocess.run(command, env=environment(self._old, self._threads), check=True, capture_output=True)

    def texts(self, row: Row) -> list[str]:
        """Return the sentences that a row translates or classifies."""
        if not row.long:
            return self.sources[: row.sentences]
        words = " ".join(self.sources).split()
        return [
            " ".join(words[start : start + LONG_WORDS]) for start in range(0, row.sentences * LONG_WORDS, LONG_WORDS)
        ]


# A turn of one commit: it runs the workload once and returns the seconds.
Turn = Callable[[], float]


@contextmanager
def turns(row: Row, tree: Path, space: Workspace, name: str, threads: int) -> Iterator[Turn]:
    """Yield the turn of the commit in ``tree``. Its processes stay alive inside the context."""
    if row.kind == "train":
        with training(
            space.recipe(row.model, 100_000), space.folder / f"run-{row.model}-{name}", tree, threads
        ) as turn:
            yield turn
    elif row.kind == "start":
        folder = space.model(row.model)
        command = [sys.executable, "-m", "headway", "translate", str(folder), "Ein Mann schläft.", "--max-length", "8"]
        yield lambda: processor_seconds_of_command(command, environment(tree, threads))
    elif row.kind == "service":
        with serving(row, tree, space, threads) as turn:
            yield turn
    else:
        with calling(row, tree, space, threads) as turn:
            yield turn


@contextmanager
def calling(row: Row, tree: Path, space: Workspace, threads: int) -> Iterator[Turn]:
    """Yield the turn of a process that has loaded a model, if the row has one."""
    call: dict[str, Any] = {"call": row.kind, "texts": space.texts(row)}
    if row.kind == "document":
        sources = space.documents(row.format, TRANSLATED if row.model else READ)
        folder = str(space.model(row.model)) if row.model else None
        call = {"call": "documents", "sources": list(map(str, sources)), "folder": folder}
    else:
        call["folder"] = str(space.model(row.model))
    if row.kind == "decode":
        if row.shortlist:
            space.learn_shortlist(space.model(row.model))
        options = {"beam_size": row.beam_size, **({} if row.model == TRAINED else FIXED)}
        call |= {"call": "translate", "batch": row.batch, "options": options, "precision": row.precision}
        call |= {"shortlist": row.shortlist, "workers": row.workers}
    program = Path(__file__).with_name("either_commit.py")
    with subprocess.Popen(
        [sys.executable, str(program), *(["--beside"] if row.neighbors else [])],
        env=environment(tree, 1 if row.workers > 1 else threads),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        calls, answers = process.stdin, process.stdout
        assert calls is not None
        assert answers is not None

        def turn() -> float:
            calls.write(json.dumps(call) + "\n")
            calls.flush()
            answer = answers.readline()
            assert answer, f"the process of {tree} ended; see above"
            return float(answer)

        yield turn
        calls.close()


@contextmanager
def serving(row: Row, tree: Path, space: Workspace, threads: int) -> Iterator[Turn]:
    """Yield the turn of a service, which translates one sentence in each request."""
    folder = space.model(row.model)
    command = [sys.executable, "-m", "headway", "serve", str(folder), "--port", "0", "--workers", str(row.workers)]
    options = {"beam_size": row.beam_size, **FIXED}
    languages = {"source": "source", "target": "target"}  # language names for a model without languages
    bodies = [{"text": text, **languages, "options": options} for text in space.texts(row)]
    messages = space.folder / f"serve-{tree.name}.log"
    no_refusals = {"HEADWAY_LIMITS__QUEUE_SECONDS": "60"}
    with messages.open("w") as written:
        process = subprocess.Popen(
            command, env=environment(tree, threads) | no_refusals, stdout=written, stderr=written
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (address := re.search(r"serving .*http://\S+:(\d+)", messages.read_text(encoding="utf-8"))) is None:
            assert process.poll() is None, f"the service did not start; see {messages}"
            assert time.monotonic() < deadline, f"the service did not start; see {messages}"
            time.sleep(0.1)
        port = int(address[1])

        def turn() -> float:
            replies, seconds = asyncio.run(closed_loop(port, "/api/v1/translate", bodies, row.batch))
            failed = next((reply for reply in replies if reply.status != 200), None)
            assert failed is None, f"the service of {tree} answered {failed}"
            return seconds

        yield turn
    finally:
        process.kill()
        process.wait()


@contextmanager
def training(recipe: Path, run: Path, tree: Path, threads: int) -> Iterator[Turn]:
    """Yield the turn of a training command, which is stopped between turns: seconds per 1,000 tokens."""
    metrics, log = run / "metrics.jsonl", run.with_suffix(".log")
    command = [sys.executable, "-m", "headway", "train", str(recipe), "--run", str(run), "--fresh"]
    with log.open("w") as said:
        process = subprocess.Popen(
            command, env=environment(tree, threads), stdout=said, stderr=said, start_new_session=True
        )

    def records() -> list[dict[str, Any]]:
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def turn() -> float:
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        begin = len(records())
        deadline = time.monotonic() + PATIENCE_S
        while len(found := records()) < begin + 1 + STEPS:  # the first record may include the pause, if steps are slow
            assert process.poll() is None, f"training ended: {log.read_text(encoding='utf-8')[-2_000:]}"
            assert time.monotonic() < deadline, f"no step for {PATIENCE_S} s; see {log}"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGSTOP)
        return seconds_per_1000_tokens(found[begin : begin + 1 + STEPS])

    try:
        yield turn
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run ``count`` processes that each keep one processor busy."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds_per_1000_tokens(records: Sequence[dict[str, Any]]) -> float:
    """Return the seconds per 1,000 source and target tokens, over all records after the first."""
    seconds = tokens = 0.0
    for before, record in pairwise(records):
        step_s = record["elapsed_s"] - before["elapsed_s"]
        seconds += step_s
        tokens += step_s * (record["source_tokens_per_s"] + record["target_tokens_per_s"])
    return 1_000 * seconds / tokens


def processor_seconds_of_command(command: list[str], env: dict[str, str]) -> float:
    """Run a command to its end and return its processor time, including that of child processes it waited for."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{shlex.join(command)} ended with {process.returncode}"
    return usage.ru_utime + usage.ru_stime


def compare(row: Row, trees: tuple[Path, Path], space: Workspace, pairs: int, threads: int) -> Result:
    """Measure a row: run one untimed turn of each commit, then ``pairs`` timed pairs in alternating order."""
    with ExitStack() as stack:
        both = [
            stack.enter_context(turns(row, tree, space, name, threads))
            for tree, name in zip(trees, ("old", "new"), strict=True)
        ]
        for turn in both:
            turn()
        stack.enter_context(busy_processes(row.neighbors))
        seconds: tuple[list[float], list[float]] = ([], [])
        for pair in range(pairs):
            for which in (0, 1) if pair % 2 == 0 else (1, 0):
                seconds[which].append(both[which]())
    ratios = [old / new for old, new in zip(*seconds, strict=True)]
    return Result(row.name, ratios, *seconds)


def commit(tree: Path) -> str:
    """Return the commit of a checkout, followed by "+" if its source files have been modified."""
    name, changed = (
        subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False).stdout.strip()
        for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "src"))
    )
    return (name or "unknown") + ("+" if changed else "")


def processor() -> str:
    """Return the processor's name as Linux reports it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.processor() or platform.machine()


def main() -> None:
    """Compare, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--old", type=Path, required=True, help="A checkout of the earlier commit.")
    parser.add_argument("--new", type=Path, default=ROOT, help="A checkout of the later commit. Default: this one.")
    parser.add_argument("--data", type=Path, required=True, help="The folder of Multi30k: train.de, train.en.")
    parser.add_argument("--model", type=Path, help='A trained model folder for the rows "decode trained".')
    parser.add_argument("--rows", nargs="+", default=["*"], help="Rows to run, as patterns such as 'decode int8 *'.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--max-tokens", type=int, default=1_024, help="Size of a batch in the training rows.")
    parser.add_argument("--work", type=Path, help="Folder for corpus and models, which is kept. Default: temporary.")
    parser.add_argument("--output", type=Path, help="JSON file to write; it is rewritten after each row.")
    parser.add_argument("--list", action="store_true", help="Print the names of the rows and stop.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the child processes are ended
    rows = [
        row
        for row in all_rows(trained=arguments.model is not None)
        if any(fnmatchcase(row.name, pattern) for pattern in arguments.rows)
    ]
    if arguments.list:
        print(*(row.name for row in rows), sep="\n")
        return
    trees = arguments.old.resolve(), arguments.new.resolve()
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "processor": processor(),
        "threads": arguments.threads,
        "python": platform.python_version(),
        "old": commit(trees[0]),
        "new": commit(trees[1]),
    }
    results: list[Result] = []
    print(HEADER, flush=True)
    with ExitStack() as stack:
        folder = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sizes = {"threads": arguments.threads, "max_tokens": arguments.max_tokens}
        space = Workspace(folder.resolve(), arguments.data, trees[0], arguments.model, **sizes)
        for row in rows:
            results.append(compare(row, trees, space, arguments.pairs, arguments.threads))
            print(results[-1], flush=True)
            if arguments.output:
                table = [{"median": each.median, "passes": each.passes, **asdict(each)} for each in results]
                arguments.output.write_text(json.dumps({**facts, "rows": table}, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(each.passes for each in results) else 1)


if __name__ == "__main__":
    main()
