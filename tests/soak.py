"""Kill training repeatedly, resume it each time, and compare the result with an uninterrupted run.

    make soak                                           50 kills
    python tests/soak.py --kills 5 --data FOLDER        fewer kills, or another copy of the corpus
    python tests/soak.py --recipe shakespeare-quick     a language model instead of a translation model

The script trains a recipe (with dropout, the machine's default precision and two threads), with two batches per step
and a checkpoint every second step, so that 50 kills take only minutes. A third of the kills are during a save, which
leaves an unfinished folder. At the end, weights, moments, both model folders, metrics and the remaining
checkpoints must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headway.training.snapshot import checkpoint_folders, checkpoint_step
from headway.weights import read_weights

__all__ = ["Killer", "differences"]

ROOT = Path(__file__).parents[1]
CLOCK = ("target_tokens_per_s", "source_tokens_per_s", "elapsed_s")
PATIENCE_S = 600
_LAST_STEPS = 4  # no kill waits for these steps, because the run must not end before the kill


@dataclass
class Killer:
    """Runs a training command to its end, with kills in between.

    ``command`` trains in the folder ``run`` for ``steps`` steps of up to about ``pause_s``; running it again resumes.
    """

    command: list[str]
    run: Path
    steps: int
    pause_s: float
    random: random.Random
    environment: dict[str, str] = field(default_factory=dict)
    kills: int = 0
    inside: int = 0

    def start(self) -> subprocess.Popen[bytes]:
        """Start a training process, whose output is appended to a file ending in ``.said`` beside the run folder."""
        with self.run.with_name(f"{self.run.name}.said").open("ab") as said:
            return subprocess.Popen(
                self.command, stdout=said, stderr=said, cwd=ROOT, env={**os.environ, **self.environment}
            )

    def finish(self) -> None:
        """Run the command to its end."""
        if code := self.start().wait(PATIENCE_S):
            said = self.run.with_name(f"{self.run.name}.said").read_text(errors="replace")
            raise RuntimeError(f"training ended with code {code}:\n{said[-2000:]}")

    def kill(self, kills_left: int, *, inside: bool) -> str:
        """Start training, kill it at a random moment, and describe the moment. With ``inside``, kill it during a save.

        The number of steps until the kill is limited, so that the run does not end before the last kill.
        """
        begin = self.saved()
        advance = self.random.randint(0, max(2 * (self.steps - begin) // (kills_left + 1), 0))
        target = min(begin + advance, max(self.steps - _LAST_STEPS, 0))
        before = set(self.unfinished())
        process, holder = self.start(), self.run / "lock.pid"
        started = self.wait_for(
            lambda: holder.exists() and holder.read_text().strip() == str(process.pid), process, 0.02
        )
        alive = started and self.wait_for(lambda: self.saved() >= target, process, 0.002)
        if inside:  # a save takes some milliseconds
            alive = alive and self.wait_for(lambda: not before.issuperset(self.unfinished()), process, 0.0002)
        if not inside:
            time.sleep(self.random.uniform(0, self.pause_s))
        process.kill()
        process.wait()
        if not alive and process.returncode > 0:
            self.finish()  # raises the error
        self.kills += process.returncode == -signal.SIGKILL
        caught = inside and not before.issuperset(self.unfinished())
        self.inside += caught
        return f"from step {begin}, at step {self.saved()}{', inside a save' if caught else ''}"

    def saved(self) -> int:
        """Return the newest saved step."""
        return next((checkpoint_step(path) for path in checkpoint_folders(self.run / "checkpoints")), 0)

    def unfinished(self) -> Iterator[tuple[str, int]]:
        """Yield the checkpoints that are being written, or were being written when their process died."""
        for path in (self.run / "checkpoints").glob(".step-*.part"):
            try:
                yield path.name, path.stat().st_mtime_ns
            except FileNotFoundError:
                continue

    def wait_for(self, reached: Callable[[], object], process: subprocess.Popen[bytes], pause_s: float) -> bool:
        """Call ``reached`` every ``pause_s`` seconds until it is true. Return False if the process ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            if process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing happens in {self.run}")
            time.sleep(pause_s)
        return True


def differences(one: Path, other: Path) -> list[str]:
    """Return the differences between two run folders, except for values that depend on the clock."""
    found: list[str] = []
    kept = [[path.name for path in checkpoint_folders(run / "checkpoints")] for run in (one, other)]
    if kept[0] != kept[1]:
        found.append(f"checkpoints: {kept[0]} and {kept[1]}")
    records = [list(_records(run / "metrics.jsonl")) for run in (one, other)]
    if records[0] != records[1]:
        found.append(f"metrics.jsonl: {[each for each in records[0] if each not in records[1]] or 'more records'}")
    files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    if files != sorted(path.relative_to(other) for path in other.rglob("*.safetensors")):
        found.append("the files of weights")
    for file in files:
        mine, yours = (read_weights(run / file) if (run / file).is_file() else {} for run in (one, other))
        if mine.keys() != yours.keys() or any(not torch.equal(mine[name], yours[name]) for name in mine):
            found.append(str(file))
    return found


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield {key: value for key, value in json.loads(line).items() if key not in CLOCK}


RECIPES = {  # the folder of its data, and the files of the development set
    "multi30k-de-en": ("multi30k", ("val.de", "val.en")),
    "shakespeare-quick": ("tinyshakespeare", ("val.txt",)),
}


def _command(name: str, run: Path, data: Path, folder: Path, steps: int) -> list[str]:
    """Return the training command: fewer steps, and a small development set because it is scored often."""
    short = []
    for file in RECIPES[name][1]:
        lines = (data / file).read_text(encoding="utf-8").splitlines(keepends=True)[:20]
        (folder / file).write_text("".join(lines), encoding="utf-8")
        short.append(str(folder / file))
    settings = {
        "data.folder": data,
        "data.dev.files": json.dumps(short),
        "training.steps": steps,
        "training.accumulate": 2,
        "training.log_every": 3,
        "validation.every": 10,
        "validation.metric": "loss",  # translating with a hardly trained model takes long
        "checkpoints.every": 2,
        "checkpoints.keep_best": 2,
    }
    assignments = [f"--set={key}={value}" for key, value in settings.items()]
    recipe = ROOT / "recipes" / f"{name}.toml"
    return [sys.executable, "-m", "headway", "train", str(recipe), "--run", str(run), *assignments]


def main() -> int:
    """Run the test and print the result. Return 1 if something differs or if there were too few kills."""
    parser = argparse.ArgumentParser(description="Kill training at random moments and resume it.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recipe", choices=RECIPES, default="multi30k-de-en")
    parser.add_argument("--data", type=Path, help="the folder of the recipe's data")
    options = parser.parse_args()
    corpus, files = RECIPES[options.recipe]
    data = options.data or ROOT.parent / "shared" / "data" / corpus
    if not (data / files[0]).is_file():
        print(f"{data}: no {files[0]} there; give the folder of the corpus with --data", file=sys.stderr)
        return 2
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), random.Random(options.seed)
        runs = [folder / "straight", folder / "killed"]
        straight, killer = (
            Killer(
                _command(options.recipe, run, data.resolve(), folder, options.steps),
                run,
                options.steps,
                2.0,
                rng,
                {"OMP_NUM_THREADS": "2"},
            )
            for run in runs
        )
        straight.finish()
        print(f"undisturbed: {time.monotonic() - begin:.0f} s", flush=True)
        for number in range(options.kills):
            moment = killer.kill(options.kills - number, inside=number % 3 == 1)
            print(f"kill {number + 1}: {moment}", flush=True)
        killer.finish()
        found = differences(*runs)
    print(f"{killer.kills} kills, {killer.inside} of them inside a save, {time.monotonic() - begin:.0f} s")
    if killer.kills < options.kills or not killer.inside:
        found.append("too few kills during training or during a save; increase --steps")
    print(
        "different: " + "; ".join(found) if found else "weights, moments, metrics and checkpoints are equal bit for bit"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
