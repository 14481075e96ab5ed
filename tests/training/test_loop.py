"""Training: models learn, and an interrupted and resumed run equals an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from listening import Heard, prepare

from headway.bundle import Bundle
from headway.config import read_toml
from headway.data.batching import PaddedBatch
from headway.decode.request import DecodingOptions
from headway.errors import CheckpointError, DataError, HeadwayError, LengthError, OutputError, TrainingError
from headway.evaluation import Score
from headway.inspection.diagram import diagram
from headway.predict import load_translator
from headway.storage import lock_run_folder
from headway.tasks import parse_recipe, train
from headway.tasks.translation import TranslationRecipe, TranslationTask
from headway.training import loop
from headway.training import snapshot as state
from headway.training import state as training_state
from headway.training.averaging import average_checkpoints
from headway.training.loop import Result
from headway.training.optim import learning_rate
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.stream import BatchStream, StepBatches, to_device
from headway.training.task import Task
from headway.weights import read_weights

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
TIMES = ("target_tokens_per_s", "source_tokens_per_s", "elapsed_s")
Sections = dict[str, dict[str, Any]]


def write_corpus(folder: Path, name: str, count: int, seed: int) -> list[tuple[str, str]]:
    """Write distinct pairs of one to four German numbers and the same numbers in English in the opposite order."""
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        words = rng.choices(sorted(WORDS), k=rng.randint(1, 4))
        pairs[" ".join(words)] = " ".join(WORDS[word] for word in reversed(words))
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.de").write_text("".join(line + "\n" for line in pairs), encoding="utf-8")
    (folder / f"{name}.en").write_text("".join(line + "\n" for line in pairs.values()), encoding="utf-8")
    return list(pairs.items())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, "train", 60, seed=1)
    write_corpus(folder, "dev", 10, seed=2)
    return folder


def recipe(corpus: Path, changes: Sections | None = None) -> Recipe:
    """Twelve steps of a tiny model with dropout, two micro-batches each; metrics at 4, 8, 12, checkpoints at 5, 10."""
    sections: Sections = {
        "data": {
            "folder": str(corpus),
            "train": [{"files": ["train.de", "train.en"]}],
            "dev": {"files": ["dev.de", "dev.en"]},
            "max_tokens": 50,
            "pool_size": 32,
        },
        "tokenizer": {"kind": "whitespace"},
        "model": {"preset": "tiny", "d_model": 16, "num_heads": 2, "d_ff": 16, "dropout": 0.2},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 5},
        "training": {"steps": 12, "accumulate": 2, "precision": "float32", "device": "cpu", "log_every": 4},
        "validation": {"every": 3, "metric": "loss"},
        "checkpoints": {"every": 5, "keep": 3, "average": 2},
    }
    for section, keys in (changes or {}).items():
        sections[section] = {**sections[section], **keys}
    return parse_recipe(sections, "test")


def records(run: Path) -> list[dict[str, Any]]:
    """Return metrics.jsonl without values that depend on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the newest checkpoint and of both model folders."""
    newest = state.checkpoint_folders(run / "checkpoints")[0]
    files = [newest / "model.safetensors", newest / "optimizer.safetensors"]
    files += [run / name / "model.safetensors" for name in ("best", "average")]
    found: dict[str, torch.Tensor] = {}
    for file in files:
        found |= {f"{file.relative_to(run)}/{name}": each for name, each in read_weights(file).items()}
    return found


def assert_same_run(one: Path, other: Path) -> None:
    mine, yours = tensors(one), tensors(other)
    assert mine.keys() == yours.keys()
    assert [name for name in mine if not torch.equal(mine[name], yours[name])] == []
    assert records(one) == records(other)
    names = [[path.name for path in state.checkpoint_folders(run / "checkpoints")] for run in (one, other)]
    assert names[0] == names[1]


@contextmanager
def at_step(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` in the middle of the given step."""

    def wrapped(step: int, *rest: Any) -> float:
        if step == number and len(acted) == 0:
            acted.append(act())
        return learning_rate(step, *rest)

    acted: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", wrapped)
        yield


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    signal.raise_signal(number)


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    run = tmp_path_factory.mktemp("straight")
    train(recipe(corpus), run)
    return run


class TestExactResume:
    def test_files_of_an_undisturbed_run(self, straight: Path) -> None:
        kinds = [(record["kind"], record["step"]) for record in records(straight)]
        assert kinds == [
            ("dev", 3),
            ("train", 4),
            ("dev", 6),
            ("train", 8),
            ("dev", 9),
            ("train", 12),
            ("dev", 12),
            ("average", 12),
        ]
        names = [path.name for path in state.checkpoint_folders(straight / "checkpoints")]
        assert names == ["step-12", "step-10", "step-5"]
        epochs = [record["epoch"] for record in records(straight) if record["kind"] == "train"]
        assert epochs[-1] > 0  # the test would see less within one epoch

    def test_the_same_recipe_gives_the_same_run(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        train(recipe(corpus), tmp_path)
        assert_same_run(straight, tmp_path)

    def test_another_seed_gives_another_run(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        train(recipe(corpus, {"training": {"seed": 2}}), tmp_path)
        assert records(tmp_path) != records(straight)

    @pytest.mark.parametrize(
        ("step", "number"), [(1, signal.SIGTERM), (5, signal.SIGINT), (7, signal.SIGTERM), (12, signal.SIGINT)]
    )
    def test_an_interrupted_run_resumes(
        self, corpus: Path, straight: Path, tmp_path: Path, step: int, number: signal.Signals
    ) -> None:
        before = signal.getsignal(number)
        with at_step(step, partial(interrupt, number)):
            result = train(recipe(corpus), tmp_path)
        assert result == Result(step, True, None, {})
        assert signal.getsignal(number) is before
        assert (tmp_path / "checkpoints" / f"step-{step}").is_dir()
        torch.rand(3)  # the random state of the process is not part of a run
        assert not train(recipe(corpus), tmp_path).interrupted
        assert_same_run(straight, tmp_path)

    def test_a_run_interrupted_twice_resumes(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        for step in (2, 6):
            with at_step(step, interrupt):
                assert train(recipe(corpus), tmp_path).step == step
        train(recipe(corpus), tmp_path)
        assert_same_run(straight, tmp_path)

    def test_a_run_killed_in_the_middle_of_a_step_resumes(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        """Nothing is saved at step 9, so the next start resumes from 5 and removes later metrics."""

        def die() -> None:
            raise RuntimeError("power cut")

        with at_step(9, die), pytest.raises(RuntimeError, match="power cut"):
            train(recipe(corpus), tmp_path)
        assert [record["step"] for record in records(tmp_path)][-1] == 8
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "tr')  # a torn line
        train(recipe(corpus), tmp_path)
        assert_same_run(straight, tmp_path)

    def test_a_second_ctrl_c_stops_at_once(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        def twice() -> None:
            interrupt()
            interrupt()

        with at_step(7, twice), pytest.raises(KeyboardInterrupt):
            train(recipe(corpus), tmp_path)
        assert not (tmp_path / "checkpoints" / "step-7").exists()
        train(recipe(corpus), tmp_path)
        assert_same_run(straight, tmp_path)

    def test_a_run_of_five_steps_is_extended_to_twelve(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        """The short run validates after its last step, where the undisturbed run does not."""
        train(recipe(corpus, {"training": {"steps": 5, "log_every": 1}}), tmp_path)
        train(recipe(corpus, {"training": {"log_every": 1}}), tmp_path)
        longer = tmp_path / "straight"
        train(recipe(corpus, {"training": {"log_every": 1}}), longer)
        resumed = [record for record in records(tmp_path) if (record["kind"], record["step"]) != ("dev", 5)]
        assert resumed == records(longer)
        mine, yours = tensors(tmp_path), tensors(straight)
        assert [name for name in mine if not torch.equal(mine[name], yours[name])] == []

    def test_a_finished_run_only_writes_its_averages_again(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        train(recipe(corpus), tmp_path)
        result = train(recipe(corpus), tmp_path)
        assert result.step == 12
        assert_same_run(straight, tmp_path)

    def test_a_damaged_newest_checkpoint_is_skipped(self, corpus: Path, straight: Path, tmp_path: Path) -> None:
        with at_step(11, interrupt):
            train(recipe(corpus), tmp_path)
        (tmp_path / "checkpoints" / "step-11" / "optimizer.safetensors").write_bytes(b"")
        with pytest.warns(UserWarning, match="step-11 is damaged"):
            train(recipe(corpus), tmp_path)
        assert_same_run(straight, tmp_path)


class TestResumeIsRefused:
    @pytest.fixture
    def run(self, corpus: Path, tmp_path: Path) -> Path:
        with at_step(2, interrupt):
            train(recipe(corpus), tmp_path / "run")
        return tmp_path / "run"

    def test_with_another_recipe(self, corpus: Path, run: Path) -> None:
        other = recipe(corpus, {"training": {"seed": 9}, "model": {"dropout": 0.3}})
        expected = r"model\.dropout was 0\.2, is 0\.3; training\.seed was 1, is 9\. .*--fresh"
        with pytest.raises(CheckpointError, match=expected):
            train(other, run)
        assert not train(recipe(corpus), run).interrupted  # the run's own recipe was not overwritten

    def test_while_another_process_trains_there(self, corpus: Path, run: Path) -> None:
        with (
            lock_run_folder(run),
            pytest.raises(CheckpointError, match=rf"process {os.getpid()} is training in this folder; wait"),
        ):
            train(recipe(corpus), run)
        assert not train(recipe(corpus), run).interrupted

    def test_another_length_or_other_intervals_are_accepted(self, corpus: Path, run: Path) -> None:
        changes: Sections = {"training": {"steps": 3}, "validation": {"every": 1}, "checkpoints": {"keep": 2}}
        assert train(recipe(corpus, changes), run).step == 3

    def test_with_other_text(self, corpus: Path, run: Path, tmp_path: Path) -> None:
        write_corpus(tmp_path / "other", "train", 60, seed=5)
        write_corpus(tmp_path / "other", "dev", 10, seed=2)
        with pytest.raises(
            CheckpointError,
            match=r"tokenizer was trained on files that differ from .*the content of train.de has changed.*--fresh",
        ):
            train(recipe(tmp_path / "other"), run)


class TestValidation:
    @pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
    def test_best_by_loss_is_the_checkpoint_with_the_lowest_loss(self, corpus: Path, tmp_path: Path) -> None:
        changes: Sections = {
            "optimizer": {"learning_rate": 50.0, "warmup_steps": 1000},  # from 0.05 to 0.6: ever worse
            "validation": {"every": 1},
            "checkpoints": {"every": 1, "keep": 12},
        }
        train(recipe(corpus, changes), tmp_path)
        losses = {record["step"]: record["loss"] for record in records(tmp_path) if record["kind"] == "dev"}
        best = min(losses, key=losses.__getitem__)
        assert best != 12
        self.assert_best_is(tmp_path, best)

    def assert_best_is(self, run: Path, step: int) -> None:
        best = read_weights(run / "best" / "model.safetensors")
        expected = read_weights(run / "checkpoints" / f"step-{step}" / "model.safetensors")
        assert all(torch.equal(best[name], expected[name]) for name in expected)

    def scripted(self, values: Sequence[float]) -> Task[Any, Any, Any]:
        remaining = iter(values)

        class Scripted(TranslationTask):
            def dev_scores(self, bundle: Bundle, recipe: TranslationRecipe) -> list[Score]:
                assert not bundle.model.training
                return [Score("BLEU", next(remaining), "scripted")]

            def selection_metric(self, recipe: TranslationRecipe) -> str:
                return recipe.validation.metric  # although hardly any reference has four tokens

        return Scripted()

    def test_best_by_score_and_early_stopping(self, corpus: Path, tmp_path: Path) -> None:
        """The second validation is the best, so patience 2 ends the run after the fourth, at step 8."""
        changes: Sections = {
            "validation": {"every": 2, "metric": "bleu", "patience": 2},
            "checkpoints": {"every": 2, "keep": 9},
        }
        heard = Heard()
        task = self.scripted([10.0, 20.0, 19.0, 15.0, 30.0])
        found = loop.train(task, recipe(corpus, changes), tmp_path, listener=heard)
        assert found.step == 8
        said = "stopped after step 8: the last 2 validations gave no improvement over step 4"
        assert any(line.startswith(said) for line in heard.messages)
        assert "the average of the last checkpoints:" in heard.messages
        assert found.scores["BLEU"] == 30.0  # of the average
        self.assert_best_is(tmp_path, 4)
        card = (tmp_path / "best" / "README.md").read_text()
        assert "BLEU: 20.00 (scripted)" in card
        again = loop.train(self.scripted([30.0]), recipe(corpus, changes), tmp_path)
        assert again.step == 8  # still out of patience
        for name in ("best", "average"):
            assert (tmp_path / name / "model.svg").read_text(encoding="utf-8") == diagram(tmp_path / name).svg
            assert (tmp_path / name / "README.md").read_text().count("](model.svg)") == 1

    def test_a_better_score_restores_patience(self, corpus: Path, tmp_path: Path) -> None:
        changes: Sections = {"validation": {"every": 2, "metric": "bleu", "patience": 2}}
        values = [10.0, 9.0, 11.0, 9.0, 12.0, 9.0, 0.0]
        assert loop.train(self.scripted(values), recipe(corpus, changes), tmp_path).step == 12

    def test_dev_loss_is_the_mean_over_target_tokens(self, corpus: Path, tmp_path: Path) -> None:
        """The loss of each pair alone, without smoothing, summed and divided by all target tokens including EOS."""
        train(recipe(corpus, {"checkpoints": {"every": 12}, "validation": {"every": 12}}), tmp_path)
        (record,) = [record for record in records(tmp_path) if record["kind"] == "dev"]
        bundle = Bundle.load(tmp_path / "best")
        total, count = 0.0, 0
        lines = [(corpus / f"dev.{side}").read_text(encoding="utf-8").splitlines() for side in ("de", "en")]
        for source, target in zip(*lines, strict=True):
            ids = bundle.target_tokenizer.encode(target)
            tokens = torch.tensor([[*bundle.source_tokenizer.encode(source), 2]])
            with torch.no_grad():
                log_probs = bundle.model.eval()(tokens, torch.tensor([[1, *ids]]))[0].log_softmax(-1)
            total -= sum(float(log_probs[place, token]) for place, token in enumerate([*ids, 2]))
            count += len(ids) + 1
        assert record["loss"] == pytest.approx(total / count, rel=1e-5)
        assert record["perplexity"] == pytest.approx(np.exp(total / count), rel=1e-4)

    def test_without_a_dev_set_best_has_the_newest_weights(self, corpus: Path, tmp_path: Path) -> None:
        data = recipe(corpus).data.as_dict()
        del data["dev"]
        for steps in (3, 5):
            sections = recipe(corpus, {"checkpoints": {"average": 0}, "training": {"steps": steps}}).as_dict()
            result = train(parse_recipe({**sections, "data": data}, "test"), tmp_path)
            assert result.model_folder == tmp_path / "best"
            self.assert_best_is(tmp_path, steps)


class TestAverage:
    def test_the_average_is_the_mean_of_the_newest_checkpoints(self, straight: Path) -> None:
        self.assert_mean(straight / "average", straight, ["step-12", "step-10"])

    def test_averaging_after_training(self, straight: Path, tmp_path: Path) -> None:
        assert average_checkpoints(straight, 3, tmp_path / "mean") == 3
        self.assert_mean(tmp_path / "mean", straight, ["step-12", "step-10", "step-5"])
        assert "the mean of step-12, step-10, step-5" in (tmp_path / "mean" / "README.md").read_text()
        assert (tmp_path / "mean" / "model.svg").read_bytes() == (straight / "best" / "model.svg").read_bytes()

    def assert_mean(self, model: Path, run: Path, names: list[str]) -> None:
        found = read_weights(model / "model.safetensors")
        parts = [read_weights(run / "checkpoints" / name / "model.safetensors") for name in names]
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, sum((part[name] for part in parts), torch.zeros(())) / len(parts))
            assert not torch.equal(tensor, parts[0][name]) or not tensor.any()

    def test_needs_checkpoints(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no checkpoints; expected a run folder created by `headway train`"):
            average_checkpoints(tmp_path, 5, tmp_path / "mean")

    def test_needs_a_model_folder(self, corpus: Path, tmp_path: Path) -> None:
        with at_step(1, interrupt):
            train(recipe(corpus), tmp_path)
        with pytest.raises(CheckpointError, match="no model folder next to the checkpoints yet"):
            average_checkpoints(tmp_path, 5, tmp_path / "mean")


def test_accumulated_micro_batches_equal_one_batch(corpus: Path, tmp_path: Path) -> None:
    """One step of gradient descent with two batches equals one with a batch that contains the rows of both."""
    no_dropout: Sections = {"model": {"dropout": 0.0}}
    no_dev = {"dev": None}
    prepared = prepare(recipe(corpus), tmp_path, Listener())
    rows = np.arange(7), np.arange(7, 20)
    parts = [prepared.train.batch(some) for some in rows]
    assert parts[0].target.size != parts[1].target.size
    whole = prepared.train.batch(np.concatenate(rows))

    def changes_after(accumulate: int, batches: list[PaddedBatch]) -> list[torch.Tensor]:
        """Train one step, and return the change of each weight."""
        chosen = recipe(corpus, {**no_dropout, "training": {"accumulate": accumulate, "steps": 1}, "data": no_dev})
        tokens = [to_device(batch, torch.device("cpu")) for batch in batches]
        targets = sum(batch.targets.numel() for batch in tokens)
        step = StepBatches(dict(enumerate(tokens)), 0, targets, 0, 0)
        models: list[torch.nn.Module] = []
        start: list[torch.Tensor] = []

        def plain_descent(model: torch.nn.Module, *_: object) -> torch.optim.Optimizer:
            models.append(model)
            start.extend(parameter.detach().clone() for parameter in model.parameters())
            return torch.optim.SGD([{"params": list(model.parameters()), "rate_factor": 1.0}], lr=0.0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training_state, "make_optimizer", plain_descent)
            patch.setattr(BatchStream, "next_step", lambda _: step)
            train(chosen, tmp_path / str(accumulate))
        return [new.detach() - old for new, old in zip(models[0].parameters(), start, strict=True)]

    one, two = changes_after(1, [whole]), changes_after(2, parts)
    assert max(float(change.abs().max()) for change in one) > 1e-4
    for mine, yours in zip(one, two, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-4, atol=1e-7)


def test_the_recorded_loss_is_the_mean_over_the_window(corpus: Path, tmp_path: Path) -> None:
    """The loss of each step is weighted by its number of target tokens."""
    train(recipe(corpus, {"training": {"log_every": 1}}), tmp_path / "fine")
    train(recipe(corpus, {"training": {"log_every": 12}}), tmp_path / "coarse")
    steps = [record for record in records(tmp_path / "fine") if record["kind"] == "train"]
    (whole,) = [record for record in records(tmp_path / "coarse") if record["kind"] == "train"]
    losses = [record["loss"] for record in steps]
    prepared = prepare(recipe(corpus), tmp_path / "fine", Listener())
    stream = BatchStream(prepared.train, recipe(corpus), torch.device("cpu"))
    tokens = [stream.next_step().num_target_tokens for _ in range(12)]
    assert whole["loss"] == pytest.approx(np.average(losses, weights=tokens), rel=1e-6)
    assert whole["learning_rate"] == steps[-1]["learning_rate"] == pytest.approx(0.01 * (5 / 12) ** 0.5)


def test_a_run_with_a_useless_learning_rate_warns_once_and_keeps_it(corpus: Path, tmp_path: Path) -> None:
    """At d_model 16, equation 3 peaks at (16 x 4000)^-0.5 = 0.004; a factor of 1e-4 makes that 4e-7."""
    paper = {"schedule": "paper", "warmup_steps": 4000, "learning_rate": 1e-4}
    sections = recipe(corpus, {"optimizer": paper, "training": {"steps": 1}, "data": {"dev": None}}).as_dict()
    with pytest.warns(UserWarning, match=r"peak learning rate of 4\.0e-07, with which the model will learn"):
        train(parse_recipe(sections, "test"), tmp_path)
    del sections["optimizer"]["learning_rate"]  # as if the default had been 1e-4 when the run began
    sections["training"]["steps"] = 2
    assert train(parse_recipe(sections, "test"), tmp_path).step == 2
    assert read_toml(tmp_path / "recipe.toml")["optimizer"]["learning_rate"] == 1e-4


class TestFailures:
    @pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
    def test_losses_that_stay_infinite_end_training_and_save_the_last_good_weights(
        self, corpus: Path, tmp_path: Path
    ) -> None:
        changes: Sections = {
            "optimizer": {"learning_rate": 1e30, "warmup_steps": 1},
            "training": {"log_every": 1, "steps": 100},
            "data": {"dev": None},
        }
        expected = (
            r"the last 20 steps, up to step (\d+), .* since step \d+ and are saved in .*Lower optimizer\.learning_rate"
        )
        with pytest.raises(TrainingError, match=expected) as caught:
            train(recipe(corpus, changes), tmp_path)
        (step,) = re.findall(r"up to step (\d+)", str(caught.value))
        weights = read_weights(tmp_path / "checkpoints" / f"step-{step}" / "model.safetensors")
        assert all(tensor.isfinite().all() for tensor in weights.values())
        skipped = [record["skipped_steps"] for record in records(tmp_path) if record["kind"] == "train"]
        assert skipped[-19:] == [1] * 19

    def test_a_full_disk_while_saving_keeps_the_previous_checkpoint(
        self, corpus: Path, straight: Path, tmp_path: Path
    ) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            with (
                at_step(9, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))),
                pytest.raises(OutputError, match=r"(step-10|best): cannot be written .*unchanged"),
            ):
                train(recipe(corpus), tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-5"]
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
        train(recipe(corpus), tmp_path)
        assert_same_run(straight, tmp_path)

    def test_too_few_learned_positions_are_refused(self, corpus: Path, tmp_path: Path) -> None:
        """Four words and the end symbol are five tokens."""
        changes: Sections = {"model": {"positions": "learned", "max_length": 4}}
        with pytest.raises(LengthError, match=r"model\.max_length = 4: the .* contain a sequence of 5 tokens"):
            train(recipe(corpus, changes), tmp_path)
        changes["model"]["max_length"] = 5
        assert train(recipe(corpus, changes), tmp_path / "enough").step == 12

    def test_nothing_left_after_filtering(self, corpus: Path, tmp_path: Path) -> None:
        (tmp_path / "train.de").write_text("eins zwei\n" * 3)
        (tmp_path / "train.en").write_text("one two\n" * 3)
        for side in ("de", "en"):
            (tmp_path / f"dev.{side}").write_bytes((corpus / f"dev.{side}").read_bytes())
        with pytest.raises(TrainingError, match=r"no training example is left after filtering; raise data\.filter"):
            train(recipe(tmp_path, {"data": {"filter": {"max_length": 1}}}), tmp_path / "run")

    def test_corpus_weights_may_leave_an_epoch_empty(self, corpus: Path, tmp_path: Path) -> None:
        (tmp_path / "train.de").write_text("eins\nzwei\n")
        (tmp_path / "train.en").write_text("one\ntwo\n")
        data = {"train": [{"files": ["train.de", "train.en"], "weight": 0.2}], "dev": None}
        chosen = recipe(tmp_path, {"data": data, "training": {"steps": 6}})
        result = train(chosen, tmp_path / "run")
        assert result.step == 6

    def test_a_missing_corpus_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"train\.de"):
            train(recipe(tmp_path / "nowhere"), tmp_path / "run")

    def test_every_error_is_a_headway_error(self) -> None:
        assert all(issubclass(error, HeadwayError) for error in (TrainingError, OutputError, CheckpointError))


def test_it_learns_to_translate_exactly(corpus: Path, tmp_path: Path) -> None:
    """It memorizes all 60 pairs, whose word orders are opposite, so that it needs attention."""
    changes: Sections = {
        "data": {"max_tokens": 200, "pool_size": 1000},
        "model": {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": 0.0, "encoder_layers": 1, "decoder_layers": 1},
        "optimizer": {"learning_rate": 0.005, "warmup_steps": 40},
        "training": {"steps": 300, "accumulate": 1, "label_smoothing": 0.1, "log_every": 50},
        "validation": {"every": 300},
        "checkpoints": {"every": 20, "keep": 2, "average": 2},
    }
    result = train(recipe(corpus, changes), tmp_path)
    by_kind = {record["kind"]: record["loss"] for record in records(tmp_path)}  # the last of each
    better = "average" if by_kind["average"] <= by_kind["dev"] else "best"
    assert result.model_folder == tmp_path / better
    losses = [record["loss"] for record in records(tmp_path) if record["kind"] == "train"]
    assert losses[-1] < losses[0] / 2
    sources = (corpus / "train.de").read_text(encoding="utf-8").splitlines()
    targets = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
    for beam_size in (1, 4):
        found = load_translator(result.model_folder, device="cpu").translate(
            sources, DecodingOptions(beam_size=beam_size)
        )
        assert [translation.text for translation in found] == targets
