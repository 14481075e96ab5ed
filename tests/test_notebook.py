"""The notebook in examples/, executed by a kernel, and a kernel that is interrupted while it trains."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "first_model.ipynb"
CELLS: list[dict[str, Any]] = json.loads(EXAMPLE.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs() -> None:
    """So that a change of the notebook is a change of its text, and no path of a machine is in it."""
    assert len(CODE) == 15
    assert [cell["outputs"] for cell in CODE] == [[]] * 15
    assert {cell["execution_count"] for cell in CODE} == {None}
    assert {json.dumps(cell["metadata"]) for cell in CELLS} == {"{}"}


def outputs_of(cell: Any, kind: str) -> str:
    return "".join("".join(output.get("data", {}).get(kind, "")) for output in cell.outputs)


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat, nbconvert = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    before = processor_time_of_children()
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    seconds = processor_time_of_children() - before
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    streams = [output for cell in cells for output in cell.outputs if output.output_type in ("stream", "error")]
    assert streams == []  # nothing on standard error, nor on standard output
    html, text = ([outputs_of(cell, kind) for cell in cells] for kind in ("text/html", "text/plain"))
    for index, words in enumerate(
        (
            "", "(", "400/400", "Translator en → de", "Mittwoch", "BLEU", "loss", "with positions",
            "id ", "finished hypothesis", "<iframe", "rows attend to columns", "", "", "",
        )
    ):  # fmt: skip
        assert words in html[index] + text[index], f"cell {index + 1}"
    assert "<svg" in outputs_of(cells[12], "image/svg+xml")
    assert "translatedText" in text[14]
    assert float(re.findall(r"<Evaluation: BLEU ([\d.]+)", text[5])[0]) > 50
    assert "the difference" in html[7] or "p (" in html[7]
    exported, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert "What the model sees" in exported  # the page of the inspection, in its frame
    assert seconds < 240


def processor_time_of_children() -> float:
    """Return the processor time of ended processes in seconds. Unlike the wall time, others do not change it much."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


CELL = """
import time
import headway
from headway.training import loop

words = {"eins": "one", "zwei": "two", "drei": "three"}
pairs = [(f"{a} {b}", f"{words[b]} {words[a]}") for a in words for b in words] * 4
score = loop.dev_scores

def pause(place):
    global where
    if where == place:
        where = "nowhere"  # a second interruption would have its usual effect
        print("at", place, flush=True)
        time.sleep(1)

def data():
    yield from pairs[:5]
    pause("data")
    yield from pairs[5:]

def validate(*arguments):
    pause("validation")
    return score(*arguments)

def on_progress(event):
    if event.step == 2:
        pause("step")

loop.dev_scores = validate
run = headway.train(
    train=data(), dev=pairs[:9], run=folder, on_progress=on_progress, progress=False,
    tokenizer={"kind": "whitespace"},
    model={"preset": "tiny", "d_model": 8, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1},
    training={"steps": 8, "device": "cpu", "precision": "float32", "log_every": 1},
    optimizer={"learning_rate": 0.01, "warmup_steps": 4},
    validation={"every": 2, "metric": "loss"}, checkpoints={"every": 2, "average": 0},
)
loop.dev_scores = score
print(run.interrupted, run.step, flush=True)
import hashlib
if not run.interrupted:
    print(hashlib.sha256((run.model_folder / "model.safetensors").read_bytes()).hexdigest(), flush=True)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    manager = pytest.importorskip("jupyter_client.manager")
    started, client = manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    yield started, client
    client.stop_channels()
    started.shutdown_kernel(now=True)


def run_recurrent_layer(kernel: tuple[Any, Any], where: str, folder: str) -> list[str]:
    """Return the lines that the cell prints. The kernel is interrupted at the place ``where``."""
    manager, client = kernel
    printed = list[str]()

    def receive(message: dict[str, Any]) -> None:
        content = message["content"]
        assert message["msg_type"] != "error", content["traceback"]
        if message["msg_type"] == "stream":
            assert content["name"] == "stdout", content["text"]
            printed.extend(content["text"].splitlines())
            if content["text"].startswith("at "):
                manager.interrupt_kernel()

    code = f"where, folder = {where!r}, {folder!r}\n{CELL}"
    client.execute_interactive(code, output_hook=receive, timeout=300)
    return printed


@pytest.mark.slow
def test_a_kernel_that_is_interrupted_resumes_with_the_same_weights(kernel: tuple[Any, Any]) -> None:
    *_, whole, weights = run_recurrent_layer(kernel, "nowhere", "straight")
    assert whole == "False 8"
    for place, steps in (("data", ("0",)), ("step", ("2", "3")), ("validation", ("2", "3"))):
        at, interrupted = run_recurrent_layer(kernel, place, place)
        assert at == f"at {place}"
        assert interrupted.startswith("True ")
        assert interrupted.split()[1] in steps
        assert run_recurrent_layer(kernel, "nowhere", place)[-2:] == ["False 8", weights]
