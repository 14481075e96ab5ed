"""Compare Headway and JoeyNMT in BLEU as a function of the wall-clock time of training.

Both toolkits train at the same time on the same machine, with one thread each, on the same corpus, with the same sizes
of model, vocabulary and batch. Each uses its own command and tokenizer. Scores are cased sacreBLEU (13a) of greedy
translations of the development set. The time starts with the process, so it includes preparing data, saving and, for
Headway, validation. JoeyNMT decodes without a key/value cache and needs ten minutes for one validation, so it only
saves checkpoints (``SAVING``), which are scored after the run. Some settings differ because the toolkits differ.
Headway uses rotary positions, batches of similar lengths and a linear schedule. JoeyNMT supports none of these, so it
uses a schedule with warm-up and inverse square root, and pre-norm layers, which are stable at a high learning rate.

    python benchmarks/learning.py --data FOLDER        # FOLDER contains train.de, train.en, dev.de and dev.en
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from contest import ContestantError, Settings, cpu_environment
from matplotlib.figure import Figure
from peers import PEERS, ROOT, install, joeynmt_config
from rich.console import Console
from rich.table import Table
from trainees import SOURCE, TARGET

from headway.evaluation import bleu
from headway.hardware import processor_name
from headway.inspection.picture_files import COLORS, figure_style, save_picture
from headway.models.transformer import TransformerConfig

VOCABULARY = 4_000
MAX_TOKENS = 2_048
DROPOUT = 0.1
PRESET = "tiny"
WARM_UP = 500
POLL_S = 1.0
LONGEST = 50  # maximum number of tokens in JoeyNMT's translations; all references of the development set are shorter
SAVING = """
import sys
from joeynmt import __main__, training
training.TrainManager._validate = lambda self, data: self._save_checkpoint(False, float("nan"))
sys.argv[1:] = ["train", sys.argv[1], "--skip-test"]
__main__.main()
"""


@dataclass
class Racer:
    """A toolkit that is training. ``marks`` returns the steps with a saved or scored model, and ``score`` returns the
    BLEU at a step."""

    name: str
    command: list[str]
    marks: Callable[[], list[int]]
    score: Callable[[int], float]
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds and steps


def headway(data: Path, workdir: Path, steps: int, every: int) -> Racer:
    """Return Headway with the recipe multi30k-de-en-fast, but with less dropout, because this corpus is five times as
    large."""
    recipe = workdir / "headway.toml"
    recipe.write_text(
        f"""
[task]
source_language = "{SOURCE}"
target_language = "{TARGET}"
[data]
folder = {json.dumps(str(data))}
train = [{{ files = ["train.{SOURCE}", "train.{TARGET}"] }}]
dev = {{ files = ["dev.{SOURCE}", "dev.{TARGET}"] }}
max_tokens = {MAX_TOKENS}
[tokenizer]
vocab_size = {VOCABULARY}
[model]
preset = "{PRESET}"
positions = "rotary"
dropout = {DROPOUT}
[optimizer]
schedule = "linear"
learning_rate = 5e-3
warmup_steps = {WARM_UP}
[training]
steps = {steps}
[validation]
every = {every}
[checkpoints]
every = {every}
"""
    )
    run = workdir / "headway"

    def scores() -> dict[int, float]:
        metrics = run / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        records = [json.loads(line) for line in lines if '"dev"' in line]
        return {record["step"]: record["BLEU"] for record in records if record["kind"] == "dev"}

    command = [sys.executable, "-m", "headway", "train", str(recipe), "--run", str(run)]
    return Racer("headway", command, lambda: list(scores()), lambda step: scores()[step])


def joeynmt(data: Path, workdir: Path, every: int) -> Racer:
    """Return JoeyNMT with its own SentencePiece model."""
    python = install(PEERS["joeynmt"], workdir)
    pieces = workdir / "pieces"
    code = (
        "import sys, sentencepiece as s; d, m, n = sys.argv[1:];"
        f"s.SentencePieceTrainer.train(input=[d + '/train.{SOURCE}', d + '/train.{TARGET}'], model_prefix=m,"
        " vocab_size=int(n), model_type='bpe', character_coverage=1.0, minloglevel=2)"
    )
    subprocess.run([python, "-c", code, data, pieces, str(VOCABULARY)], check=True)
    words = [line.split("\t")[0] for line in (workdir / "pieces.vocab").read_text().splitlines()]
    (workdir / "vocabulary").write_text("".join(f"{word}\n" for word in words[3:]))  # without SentencePiece's own three
    side = {
        "level": "bpe",
        "lowercase": False,
        "voc_file": str(workdir / "vocabulary"),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": f"{pieces}.model"},
    }
    run = workdir / "joeynmt-run"
    model = TransformerConfig.preset(PRESET)
    config = joeynmt_config(data, run, model, Settings(max_tokens=MAX_TOKENS))
    sides = {"src": {"lang": SOURCE, **side}, "trg": {"lang": TARGET, **side}}
    config["data"] |= {"dev": str(data / "dev"), **sides}
    config["testing"] = {"batch_size": 4_096, "batch_type": "token", "max_output_length": LONGEST}
    config["training"] |= {
        "optimizer": "adamw",
        "scheduling": "warmupinversesquareroot",
        "learning_rate": 3e-3,
        "learning_rate_warmup": WARM_UP,
        "logging_freq": 50,
        "validation_freq": every,
        "keep_best_ckpts": -1,
    }
    for stack in ("encoder", "decoder"):
        config["model"][stack]["embeddings"] = {"embedding_dim": model.d_model, "scale": True, "dropout": 0.0}
    path = workdir / "joeynmt.yaml"
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML

    def marks() -> list[int]:
        saved = [int(each.stem) for each in run.glob("*.ckpt") if each.stem.isdigit()]
        return sorted(saved)

    def score(step: int) -> float:
        chosen = workdir / f"joeynmt-{step}.yaml"
        testing = {**config["testing"], "load_model": str(run / f"{step}.ckpt")}
        chosen.write_text(json.dumps({**config, "testing": testing}))
        output = workdir / f"joeynmt-{step}"
        command = [str(python), "-m", "joeynmt", "test", str(chosen), "--output-path", str(output)]
        subprocess.run(command, check=True, capture_output=True, cwd=workdir)
        found, references = (lines(path) for path in (Path(f"{output}.dev"), data / f"dev.{TARGET}"))
        return bleu(found, references).value

    return Racer("joeynmt", [str(python), "-c", SAVING, str(path)], marks, score)


def lines(path: Path) -> list[str]:
    """Return the lines of a file, separated only by newlines."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def race(racers: list[Racer], workdir: Path, seconds: float) -> None:
    """Train all toolkits at the same time until the time is up or all are done; raise an error if one fails."""
    start = time.monotonic()
    running = {}
    for racer in racers:
        with (workdir / f"{racer.name}.log").open("w") as log:
            running[racer.name] = subprocess.Popen(
                racer.command, stdout=log, stderr=log, env=cpu_environment(1), cwd=workdir, start_new_session=True
            )
    try:
        is_over = False
        while not is_over:
            time.sleep(POLL_S)
            now = time.monotonic() - start
            # Check this before reading the marks, so that the marks made at the end of a process are also read.
            is_over = now >= seconds or all(process.poll() is not None for process in running.values())
            for racer in racers:
                for step in racer.marks()[len(racer.seen) :]:
                    racer.seen.append((now, step))
                    print(f"{now / 60:5.1f} min  {racer.name}  step {step:,}", flush=True)
                if status := running[racer.name].poll():
                    log_path = workdir / f"{racer.name}.log"
                    raise ContestantError(f"{racer.name} ended with status {status}; see {log_path}")
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the curves of all toolkits to a picture."""
    with figure_style():
        drawing = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = drawing.subplots()
        for (name, seen), color in zip(results["scores"].items(), COLORS, strict=False):
            axes.plot([s / 60 for s, _, _ in seen], [score for *_, score in seen], marker="o", color=color, label=name)
        axes.set(xlabel="minutes of wall-clock time, one thread each", ylabel="BLEU of the development set, greedy")
        axes.set_title(f"{results['corpus']} on {results['processor']}")
        axes.legend()
        save_picture(drawing, path)


def main(
    data: Annotated[Path, typer.Option(help="Folder with train.de, train.en, dev.de and dev.en.")],
    workdir: Annotated[Path, typer.Option(help="Folder for environments and runs.")] = ROOT / ".peers",
    minutes: Annotated[float, typer.Option(help="Wall-clock time of training.")] = 22.0,
    steps: Annotated[int, typer.Option(help="Number of steps of Headway's schedule.")] = 3_000,
    every: Annotated[int, typer.Option(help="Headway's steps between validations.")] = 400,
    joeynmt_every: Annotated[int, typer.Option(help="JoeyNMT's steps between checkpoints.")] = 400,
    out: Annotated[Path | None, typer.Option(help="Also write the results as OUT.json and OUT.png.")] = None,
) -> None:
    """Train both toolkits at the same time and print their scores."""
    data, workdir = data.resolve(), workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    for name in ("headway", "joeynmt-run"):
        shutil.rmtree(workdir / name, ignore_errors=True)
    racers = [headway(data, workdir, steps, every), joeynmt(data, workdir, joeynmt_every)]
    race(racers, workdir, 60 * minutes)
    results: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": processor_name(),
        "threads": 1,
        "corpus": data.name,
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "joeynmt": PEERS["joeynmt"].version,
        },
        "scores": {
            racer.name: [(seconds, step, racer.score(step)) for seconds, step in racer.seen] for racer in racers
        },
    }
    table = Table("toolkit", "minutes", "steps", "BLEU", title=f"{data.name}, {results['processor']}, one thread each")
    for name, scores in results["scores"].items():
        for seconds, step, score in scores:
            table.add_row(name, f"{seconds / 60:.1f}", f"{step:,}", f"{score:.1f}")
    Console().print(table)
    if out is not None:
        out.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
        draw(results, out.with_suffix(".png"))


if __name__ == "__main__":
    typer.run(main)
