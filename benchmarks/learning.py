"""How much does a model know after so many minutes? Headway beside JoeyNMT: BLEU against wall-clock time.

Both train at the same time on the same machine, one thread each: the same corpus, the same sizes of model, vocabulary
and batch, through their own commands, with their own tokenizers. Scores are cased sacreBLEU (13a) of the development
set's plain text by greedy search. The clock starts with the process, so preparing and saving count. Headway validates
as it trains, and that counts, too. JoeyNMT decodes without keeping what it computed for earlier positions, and took ten
minutes to validate once; so it only saves then (``SAVING``), and what it saved is scored when the time is up. What
differs is what each offers: Headway has rotary positions, batches of like lengths and a linear schedule; JoeyNMT has
none of these, so it follows the inverse square root of the step after a warm-up, and normalises before its sub-layers,
where a high rate is stable.

    python benchmarks/learning.py --data FOLDER        # FOLDER holds train.de, train.en, dev.de and dev.en
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
from contest import ContestantError, Settings, place
from matplotlib.figure import Figure
from peers import PEERS, ROOT, install, joeynmt_config
from rich.console import Console
from rich.table import Table
from trainees import SOURCE, TARGET

from headway.evaluate import bleu
from headway.hardware import processor_name
from headway.inspection.picture_files import COLORS, figure_style, save
from headway.models.transformer import TransformerConfig

VOCABULARY = 4_000
MAX_TOKENS = 2_048
DROPOUT = 0.1
PRESET = "tiny"
WARM_UP = 500
POLL_S = 1.0
LONGEST = 50  # tokens of JoeyNMT's translations; the development set's references have fewer
SAVING = """
import sys
from joeynmt import __main__, training
training.TrainManager._validate = lambda self, data: self._save_checkpoint(False, float("nan"))
sys.argv[1:] = ["train", sys.argv[1], "--skip-test"]
__main__.main()
"""


@dataclass
class Racer:
    """A toolkit in training: what it has reached is told by ``marks``, the steps; their scores may come later."""

    name: str
    command: list[str]
    marks: Callable[[], list[int]]
    score: Callable[[int], float]
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds and steps


def headway(data: Path, workdir: Path, steps: int, every: int) -> Racer:
    """The recipe for processors without bfloat16, with less dropout: here are five times as many sentences."""
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
    """JoeyNMT with a SentencePiece model of its own."""
    python = install(PEERS["joeynmt"], workdir)
    pieces = workdir / "pieces"
    code = (
        "import sys, sentencepiece as s; d, m, n = sys.argv[1:];"
        f"s.SentencePieceTrainer.train(input=[d + '/train.{SOURCE}', d + '/train.{TARGET}'], model_prefix=m,"
        " vocab_size=int(n), model_type='bpe', character_coverage=1.0, minloglevel=2)"
    )
    subprocess.run([python, "-c", code, data, pieces, str(VOCABULARY)], check=True)
    words = [line.split("\t")[0] for line in (workdir / "pieces.vocab").read_text().splitlines()]
    (workdir / "vocabulary").write_text("".join(f"{word}\n" for word in words[3:]))  # but for its own three
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
    """The lines of a file, whatever else its characters may separate."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def race(racers: list[Racer], workdir: Path, seconds: float) -> None:
    """Let them train beside each other until the time is up or both are done; one that fails ends it."""
    start = time.monotonic()
    running = {}
    for racer in racers:
        with (workdir / f"{racer.name}.log").open("w") as log:
            running[racer.name] = subprocess.Popen(
                racer.command, stdout=log, stderr=log, env=place(1), cwd=workdir, start_new_session=True
            )
    try:
        while time.monotonic() - start < seconds and any(process.poll() is None for process in running.values()):
            time.sleep(POLL_S)
            now = time.monotonic() - start
            for racer in racers:
                for step in racer.marks()[len(racer.seen) :]:
                    racer.seen.append((now, step))
                    print(f"{now / 60:5.1f} min  {racer.name}  step {step:,}", flush=True)
                if status := running[racer.name].poll():
                    told = workdir / f"{racer.name}.log"
                    raise ContestantError(f"{racer.name} ended with status {status}; see {told}")
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def draw(results: dict[str, Any], path: Path) -> None:
    """The curves, as a picture."""
    with figure_style():
        drawing = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = drawing.subplots()
        for (name, seen), colour in zip(results["scores"].items(), COLORS, strict=False):
            axes.plot([s / 60 for s, _, _ in seen], [score for *_, score in seen], marker="o", color=colour, label=name)
        axes.set(xlabel="minutes of wall-clock time, one thread each", ylabel="BLEU of the development set, greedy")
        axes.set_title(f"{results['corpus']} on {results['processor']}")
        axes.legend()
        save(drawing, path)


def main(
    data: Annotated[Path, typer.Option(help="Folder with train.de, train.en, dev.de and dev.en.")],
    workdir: Annotated[Path, typer.Option(help="Where environments and runs are kept.")] = ROOT / ".peers",
    minutes: Annotated[float, typer.Option(help="Wall-clock time.")] = 22.0,
    steps: Annotated[int, typer.Option(help="Headway's steps; its schedule ends with them.")] = 3_000,
    every: Annotated[int, typer.Option(help="Headway's steps between validations.")] = 400,
    joeynmt_every: Annotated[int, typer.Option(help="JoeyNMT's steps between checkpoints.")] = 400,
    out: Annotated[Path | None, typer.Option(help="Write NAME.json and NAME.png here, too.")] = None,
) -> None:
    """Train both beside each other and show their scores."""
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
