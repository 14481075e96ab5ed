"""Training from Python: data from memory, progress, interruption, and the result as an object."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.calls.events import Finished, Saved, Started, StepDone, TrainingEvent, Validated
from headway.cli.commands.train import train as train_command
from headway.errors import CheckpointError, ConfigError, DataError
from headway.weights import read_weights

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"max_tokens": 50, "pool_size": 32},
    "tokenizer": {"kind": "whitespace"},
    "model": {"preset": "tiny", "d_model": 8, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1},
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 5},
    "training": {"steps": 6, "precision": "float32", "device": "cpu", "log_every": 2},
    "validation": {"every": 3, "metric": "loss"},
    "checkpoints": {"every": 3, "keep": 2, "average": 0},
}


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    sources = [rng.choices(sorted(WORDS), k=rng.randint(1, 4)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in reversed(words))) for words in sources]


TRAIN, DEV = pairs(40, seed=1), pairs(5, seed=2)


def weights(run: headway.Run) -> dict[str, torch.Tensor]:
    assert run.model_folder is not None
    return read_weights(run.model_folder / "model.safetensors")


def are_equal(one: headway.Run, other: headway.Run) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> headway.Run:
    return headway.train(SECTIONS, train=TRAIN, dev=DEV, run=tmp_path_factory.mktemp("runs") / "straight")


def test_the_weights_are_those_of_the_command_with_files(straight: headway.Run, tmp_path: Path) -> None:
    for name, part in {"train": TRAIN, "dev": DEV}.items():
        for side, language in enumerate(("de", "en")):
            (tmp_path / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in part), encoding="utf-8")
    corpora = (
        f'folder = "{tmp_path}"\ntrain = [{{ files = ["train.de", "train.en"] }}]\ndev.files = ["dev.de", "dev.en"]\n'
    )
    lines = {
        section: "".join(f"{key} = {value!r}\n" for key, value in keys.items()) for section, keys in SECTIONS.items()
    }
    lines["data"] += corpora
    (tmp_path / "recipe.toml").write_text("".join(f"[{section}]\n{keys}" for section, keys in lines.items()))
    train_command(tmp_path / "recipe.toml", run=tmp_path / "run")
    assert are_equal(headway.open_run(tmp_path / "run"), straight)
    again = headway.train(tmp_path / "recipe.toml", run=tmp_path / "run")  # at its end already
    assert not again.interrupted


def test_a_run_knows_its_model_and_its_scores(straight: headway.Run) -> None:
    assert not straight.interrupted
    assert straight.step == straight.recipe.training.steps == 6
    assert [record["step"] for record in straight.metrics if record["kind"] == "train"] == [2, 4, 6]
    best = min((record for record in straight.metrics if record["kind"] == "dev"), key=lambda record: record["loss"])
    assert straight.scores["loss"] == best["loss"]
    assert isinstance(straight.model.translate("eins zwei").text, str)
    reopened = headway.open_run(straight.folder)
    assert (reopened.interrupted, reopened.step, reopened.scores) == (False, 6, straight.scores)
    with pytest.raises(CheckpointError, match="no run folder"):
        headway.open_run(straight.folder / "best")


def test_other_data_are_refused_as_a_changed_file_is(straight: headway.Run) -> None:
    before = (straight.folder / "data" / "train.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="train differs from the data with which the run started"):
        headway.train(SECTIONS, train=TRAIN[:-1], dev=DEV, run=straight.folder)
    assert (straight.folder / "data" / "train.jsonl").read_bytes() == before


def test_the_task_decides_what_an_example_is(tmp_path: Path) -> None:
    for kind, data, written in (
        ("translation", {"de": ["a"], "en": ["b"]}, '{"source": "a", "target": "b"}\n'),
        ("classification", [("a", 1)], '{"text": "a", "label": "1"}\n'),
        ("language_model", ["a"], '{"text": "a"}\n'),
        ("masked_language_model", ["a"], '{"text": "a"}\n'),
    ):
        task = {"kind": kind} | ({"source_language": "de", "target_language": "en"} if kind == "translation" else {})
        with pytest.raises(DataError, match="dev: no examples"):  # the training data were accepted
            headway.train(task=task, train=data, dev=[], run=tmp_path / kind)
        assert (tmp_path / kind / "data" / "train.jsonl").read_text() == written


def in_another_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def stop_at(step: int, how: Callable[[TrainingEvent], object]) -> Callable[[TrainingEvent], None]:
    def on_progress(event: TrainingEvent) -> None:
        if isinstance(event, StepDone) and event.step == step:
            how(event)

    return on_progress


def interrupt_before(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first call of a function of Headway begin with the signal of a stop button."""
    module, _, name = function.rpartition(".")
    called, original = list[str](), getattr(import_module(module), name)

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        if not called:
            called.append(name)
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **keywords)

    monkeypatch.setattr(function, interrupted)


@pytest.mark.parametrize(
    ("how", "function", "step"),
    [
        pytest.param(lambda _: signal.raise_signal(signal.SIGINT), None, 4, id="after a step"),
        pytest.param(lambda event: in_another_thread(event.stop), None, 4, id="stop"),
        pytest.param(None, "headway.training.prepare.open_or_build_store", 0, id="while tokenizing"),
        pytest.param(None, "headway.training.loop.dev_scores", 3, id="during validation"),
        pytest.param(None, "headway.training.checkpoints._copies_done", 3, id="while saving"),
    ],
)
def test_an_interrupted_run_resumes_with_the_same_weights(
    straight: headway.Run,
    how: Callable[[TrainingEvent], object] | None,
    function: str | None,
    step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if function is not None:
        interrupt_before(function, monkeypatch)
    on_progress = None if how is None else stop_at(step, how)
    first = headway.train(SECTIONS, train=iter(TRAIN), dev=DEV, run=tmp_path / "run", on_progress=on_progress)
    assert (first.interrupted, headway.open_run(first.folder).interrupted) == (True, True)
    assert first.step in (step, step + 1)  # the stop of another thread may come in the next step
    assert signal.getsignal(signal.SIGINT) is handler
    second = headway.train(SECTIONS, train=iter(TRAIN), dev=DEV, run=tmp_path / "run")
    assert not second.interrupted
    assert are_equal(second, straight)


class Frame:
    """What the data frames of pandas and polars have in common: names of columns, and columns by their names."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]


class DataSet:
    """What a data set of Hugging Face has: names of columns, and rows as mappings."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs, self.column_names = pairs, ["translation"]

    def __iter__(self) -> Iterator[dict[str, dict[str, str]]]:
        return ({"translation": {"en": target, "de": source}} for source, target in self._pairs)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda pairs: Frame({"target": [t for _, t in pairs], "source": [s for s, _ in pairs]}), id="frame"
        ),
        pytest.param(DataSet, id="data set"),
    ],
)
def test_the_form_of_the_data_changes_no_weight(
    straight: headway.Run, make: Callable[[Any], Any], tmp_path: Path
) -> None:
    sections = {**SECTIONS, "task": {"source_language": "de", "target_language": "en"}}
    run = headway.train(sections, train=make(TRAIN), dev=make(DEV), run=tmp_path / "run")
    assert are_equal(run, straight)


def test_an_interruption_before_the_first_step_returns_too(tmp_path: Path) -> None:
    def data() -> Iterator[tuple[str, str]]:
        yield from TRAIN
        raise KeyboardInterrupt

    run = headway.train(SECTIONS, train=data(), dev=DEV, run=tmp_path / "run")
    assert (run.interrupted, run.step, run.metrics, run.scores) == (True, 0, [], {})
    with pytest.raises(headway.HeadwayError, match="no model yet"):
        run.model  # noqa: B018


def test_events_have_types_and_what_their_receiver_raises_comes_out_after_saving(tmp_path: Path) -> None:
    events: list[TrainingEvent] = []

    def on_progress(event: TrainingEvent) -> None:
        events.append(event)
        if isinstance(event, Validated):
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        headway.train(SECTIONS, train=TRAIN, dev=DEV, run=tmp_path / "run", on_progress=on_progress)
    assert headway.open_run(tmp_path / "run").step == 3
    assert [type(event) for event in events] == [Started, StepDone, Validated]
    headway.train(SECTIONS, train=TRAIN, dev=DEV, run=tmp_path / "run", on_progress=events.append)
    resumed = events[3:]
    assert [(type(event), event.step) for event in resumed] == [
        (Started, 3), (StepDone, 4), (StepDone, 6), (Validated, 6), (Saved, 6), (Finished, 6),
    ]  # fmt: skip
    step, end = resumed[2], resumed[-1]
    assert isinstance(step, StepDone)
    assert (step.loss > 0, step.total_steps) == (True, 6)
    assert isinstance(end, Finished)
    assert (end.folder, end.interrupted) == (tmp_path / "run", False)


def test_keywords_overrides_and_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stop: dict[str, Any] = {"on_progress": lambda event: event.stop()}
    sections = {name: keys for name, keys in SECTIONS.items() if name != "model"}
    run = headway.train(sections, model=SECTIONS["model"], train=TRAIN, overrides=["training.seed=3"], **stop)
    assert run.folder.parent == Path("runs")
    assert run.folder.name.startswith("translation-")
    assert (run.recipe.training.seed, run.recipe.model.as_dict()["d_model"]) == (3, 8)
    with pytest.raises(CheckpointError, match=r"training\.seed was 3, is 4"):
        headway.train(SECTIONS, train=TRAIN, run=run.folder, overrides=["training.seed=4"])
    other = headway.train(SECTIONS, train=TRAIN, run=run.folder, overrides=["training.seed=4"], fresh=True, **stop)
    assert other.recipe.training.seed == 4
    assert headway.open_run(f"{run.folder}.1").recipe.training.seed == 3
    with pytest.raises(ConfigError, match=r"key 'data\.train' is missing"):
        headway.train(SECTIONS)


@pytest.mark.slow
def test_ten_trainings_in_one_process_do_not_grow(tmp_path: Path) -> None:
    """In a process of its own, whose memory no other test has used before."""
    script = (
        "import resource, sys, headway\nfrom test_training_calls import DEV, SECTIONS, TRAIN\nsizes = []\n"
        "for number in range(10):\n"
        "    headway.train(SECTIONS, train=TRAIN, dev=DEV, run=f'{sys.argv[1]}/{number}')\n"
        "    sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # the peak, in KiB\n"
        "print((sizes[-1] - sizes[1]) / 1024)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 50
    assert done.stderr == ""
