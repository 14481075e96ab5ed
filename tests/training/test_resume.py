"""`headway train`, killed by SIGKILL and run again: the short form of tests/soak.py."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest
from soak import Killer, differences

pytestmark = pytest.mark.slow
STEPS = 60
RECIPE = """
[data]
train = [{ files = ["train.de", "train.en"] }]
dev = { files = ["train.de", "train.en"] }
max_tokens = 100
pool_size = 32

[tokenizer]
kind = "whitespace"

[model]
preset = "tiny"
d_model = 16
num_heads = 2
d_ff = 16
dropout = 0.2
attention_dropout = 0.1

[optimizer]
learning_rate = 0.05
warmup_steps = 20

[training]
steps = 60
accumulate = 2
device = "cpu"
log_every = 3

[validation]
every = 10
metric = "loss"

[checkpoints]
every = 2
keep = 3
keep_best = 2
average = 3
"""


def killer(folder: Path, name: str) -> Killer:
    run = folder / name
    command = [sys.executable, "-m", "headway", "train", str(folder / "recipe.toml"), "--run", str(run)]
    command.append(f"--set=data.folder={folder}")
    return Killer(command, run, STEPS, 0.05, random.Random(5), {"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Killer, Killer]:
    """An undisturbed run, and one that was killed five times, the second time during a save."""
    folder = tmp_path_factory.mktemp("resume")
    rng = random.Random(1)
    numbers = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
    pairs = [rng.choices(sorted(numbers), k=rng.randint(1, 9)) for _ in range(80)]
    (folder / "train.de").write_text("".join(" ".join(words) + "\n" for words in pairs))
    (folder / "train.en").write_text("".join(" ".join(numbers[word] for word in words[::-1]) + "\n" for words in pairs))
    (folder / "recipe.toml").write_text(RECIPE)
    straight, killed = killer(folder, "straight"), killer(folder, "killed")
    with straight.start() as undisturbed:
        for number in range(5):
            killed.kill(5 - number, inside=number > 0 and not killed.inside)
        killed.finish()
    assert undisturbed.returncode == 0
    return straight, killed


def test_five_kills_leave_no_trace(runs: tuple[Killer, Killer]) -> None:
    straight, killed = runs
    assert killed.kills == 5
    assert killed.inside >= 1
    assert len(list((killed.run / "checkpoints").glob("step-*"))) >= 3
    assert differences(straight.run, killed.run) == []
    assert sorted(path.name for path in killed.run.rglob(".*")) == []


def test_a_difference_is_detected(runs: tuple[Killer, Killer], tmp_path: Path) -> None:
    """A difference of one bit of a weight, one record or one checkpoint."""
    straight, _ = runs
    copy = tmp_path / "copy"
    shutil.copytree(straight.run, copy)
    assert differences(straight.run, copy) == []
    newest = copy / "checkpoints" / f"step-{STEPS}"
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    assert differences(straight.run, copy) == [f"checkpoints/step-{STEPS}/model.safetensors"]
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[1:]))
    shutil.rmtree(newest)
    found = "; ".join(differences(straight.run, copy))
    assert "metrics.jsonl" in found
    assert "checkpoints: [" in found
