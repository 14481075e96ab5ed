"""A package that adds a task and an architecture: its models are trained, resumed, loaded, inspected and served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from running_service import running

import headway
from headway.errors import BundleError

OUTSIDE = Path(__file__).parents[1] / "outside_package"
RECIPE = """
[task]
kind = "rating"

[data]
train = [{ files = ["train.tsv"] }]
dev = { files = ["train.tsv"] }

[tokenizer]
kind = "whitespace"

[model]
dropout = 0.2

[optimizer]
learning_rate = 0.1
warmup_steps = 2

[training]
steps = 24
device = "cpu"
precision = "float32"

[validation]
every = 12

[checkpoints]
every = 12
average = 0
"""
SCRIPT = """
import json, sys
from pathlib import Path
import headway
from headway.cli import app
from headway.inspection.inspect_text import inspect
from headway.weights import read_weights

def command(*arguments):
    app(arguments, standalone_mode=False)

command("train", "recipe.toml", "--run", "whole")
command("train", "recipe.toml", "--run", "parts", "--set", "training.steps=12")
command("train", "recipe.toml", "--run", "parts")
whole, parts = (read_weights(Path(run, "best", "model.safetensors")) for run in ("whole", "parts"))
rater = headway.load("whole/best")
try:
    command("export", "whole/best", "--to", "onnx", "-o", "exported")
except headway.HeadwayError as error:
    export = str(error)
command("classify", "whole/best", "good film")
print(json.dumps({
    "equal": all(bool((weight == parts[name]).all()) for name, weight in whole.items()),
    "class": type(rater).__name__,
    "good": rater.rate("good good"),
    "bad": rater.rate("bad bad"),
    "export": export,
    "explained": inspect(rater, "good film").attribution.label,
    "metrics": [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()],
}))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A folder with trained runs of the outside task and architecture, and what was found out about them."""
    folder = tmp_path_factory.mktemp("outside")
    rows = [f"{stars}\t{word} film {word}\n" for stars, word in ((1, "bad"), (3, "fair"), (5, "good"))] * 8
    (folder / "train.tsv").write_text("".join(rows), encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(OUTSIDE), *sys.path])}
    script = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    classified, facts = done.stdout.splitlines()[-2:]
    return folder, json.loads(facts) | {"classified": classified}


def test_an_outside_task_and_architecture_train_resume_and_predict(trained: tuple[Path, dict[str, object]]) -> None:
    folder, facts = trained
    config = json.loads((folder / "whole" / "best" / "config.json").read_text(encoding="utf-8"))
    assert (config["task"]["kind"], config["model"]["kind"]) == ("rating", "bag_of_words")
    assert facts["equal"], "a resumed run has other weights"
    assert facts["class"] == "Rater"
    assert isinstance(facts["bad"], float)
    assert isinstance(facts["good"], float)
    assert facts["bad"] < 2 < 4 < facts["good"]
    assert facts["explained"] == "5"
    assert str(facts["classified"]).startswith("5\t")
    assert isinstance(facts["metrics"], list)
    assert facts["metrics"][-1]["within one star"] == 100


def test_exports_refuse_an_outside_architecture(trained: tuple[Path, dict[str, object]]) -> None:
    assert "model.kind = 'bag_of_words' cannot be exported to ONNX" in str(trained[1]["export"])


def test_an_outside_model_is_served(trained: tuple[Path, dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(OUTSIDE), *sys.path]))
    with running([str(trained[0] / "whole" / "best"), "--workers", "1"]) as service:
        (model,) = httpx.get(f"{service.url}/api/v1/models").json()
        assert (model["kind"], model["capability"], model["labels"]) == ("rating", "labels", ["1", "3", "5"])
        reply = httpx.post(f"{service.url}/api/v1/classify", json={"text": "bad bad film"}).json()
        assert [found["label"] for found in reply["classifications"]] == ["1"]
        assert service.stop() == 0


def test_without_the_package_its_kind_is_unknown(trained: tuple[Path, dict[str, object]]) -> None:
    known = "classification, language_model, masked_language_model, translation"
    with pytest.raises(BundleError, match=f"task: kind = 'rating': known: {known}"):
        headway.load(trained[0] / "whole" / "best")
