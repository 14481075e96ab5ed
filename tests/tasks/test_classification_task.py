"""Training classifiers: the same loop with labels as targets."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from listening import Heard, prepare
from torch.nn import functional as F

from headway.bundle import ClassifierBundle
from headway.data.batching import PaddedBatch
from headway.errors import ConfigError, DataError
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.registry import build_model
from headway.tasks import parse_recipe, train
from headway.tasks.classification import ClassificationObjective, ClassificationRecipe, balanced_weights
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.stream import BatchStream, to_device
from headway.weights import read_weights

SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 16, "dropout": 0.0}
Sections = dict[str, dict[str, Any]]


def write(folder: Path, name: str, count: int, seed: int) -> None:
    """Write texts whose label, "hot" or "cold", depends on one word; the other words are noise."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        label = ("hot", "cold")[number % 3 == 0]
        words = [*rng.choices(["a", "b", "c", "d"], k=rng.randint(1, 5)), {"hot": "sun", "cold": "ice"}[label]]
        rng.shuffle(words)
        lines.append(f"{label}\t{' '.join(words)}\n")
    (folder / name).write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "train.tsv", 90, 1)
    write(tmp_path, "dev.tsv", 20, 2)
    return tmp_path


def recipe(folder: Path, changes: Sections | None = None) -> Recipe:
    sections: Sections = {
        "task": {"kind": "classification"},
        "data": {
            "folder": str(folder),
            "train": [{"files": ["train.tsv"]}],
            "dev": {"files": ["dev.tsv"]},
            "max_tokens": 200,
            "max_examples": 16,
        },
        "tokenizer": {"kind": "whitespace"},
        "model": SIZES,
        "optimizer": {"learning_rate": 0.02, "warmup_steps": 5},
        "training": {"steps": 40, "precision": "float32", "device": "cpu", "log_every": 10},
        "validation": {"every": 20},
        "checkpoints": {"every": 20, "keep": 2, "average": 2},
    }
    for section, keys in (changes or {}).items():
        sections[section] = {**sections[section], **keys}
    return parse_recipe(sections, "test")


def dev_losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == "dev"]


def model(**changes: Any) -> EncoderClassifier:
    torch.manual_seed(1)
    return build_model(ClassifierConfig.parse({**SIZES, **changes}, "test"), 20, 3)


def batch() -> PaddedBatch:
    return PaddedBatch(
        np.array([[5, 6, 7, 2], [8, 2, 0, 0], [4, 9, 2, 0]], np.int64), np.array([[1], [3], [2]], np.int64)
    )


class TestObjective:
    def test_the_loss_is_the_smoothed_cross_entropy_of_the_labels(self) -> None:
        network, tokens = model(), to_device(batch(), torch.device("cpu"))
        expected = F.cross_entropy(
            network(tokens.source), torch.tensor([0, 2, 1]), label_smoothing=0.1, reduction="sum"
        )
        torch.testing.assert_close(ClassificationObjective(network, 0.1)(tokens), expected)

    def test_class_weights_scale_the_loss_of_each_text(self) -> None:
        network, tokens = model(), to_device(batch(), torch.device("cpu"))
        each = F.cross_entropy(network(tokens.source), torch.tensor([0, 2, 1]), reduction="none")
        found = ClassificationObjective(network, 0.0, class_weights=[1.0, 2.0, 3.0])(tokens)
        torch.testing.assert_close(found, each[0] + 3 * each[1] + 2 * each[2])

    def test_r_drop_adds_the_divergence_of_two_passes(self) -> None:
        network, tokens = model(dropout=0.5).train(), to_device(batch(), torch.device("cpu"))
        torch.manual_seed(3)
        found = ClassificationObjective(network, 0.0, 0.8)(tokens)
        torch.manual_seed(3)
        first, second = network(tokens.source.repeat(2, 1)).log_softmax(-1).chunk(2)
        labels = torch.tensor([0, 2, 1])
        loss = (F.nll_loss(first, labels, reduction="sum") + F.nll_loss(second, labels, reduction="sum")) / 2
        apart = F.kl_div(first, second, reduction="sum", log_target=True)
        apart = apart + F.kl_div(second, first, reduction="sum", log_target=True)
        assert apart > 0
        torch.testing.assert_close(found, loss + 0.8 / 4 * apart)


def test_the_model_folder_of_a_run_has_its_labels(folder: Path) -> None:
    """One word decides, so the development set is classified without errors."""
    chosen = recipe(folder)
    result = train(chosen, folder / "run")
    assert result.model_folder is not None
    bundle = ClassifierBundle.load(result.model_folder)
    assert bundle.labels == ("cold", "hot")
    card = (result.model_folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Classification of texts as cold, hot")
    assert "cold 30, hot 60" in card
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    dev = [record for record in records if record["kind"] == "dev"]
    assert [record["step"] for record in dev] == [20, 40]
    assert dev[-1]["accuracy"] == 100.0
    assert all("perplexity" not in record and "macro F1" in record for record in dev)


def test_an_interrupted_run_equals_an_undisturbed_one(folder: Path) -> None:
    changes: Sections = {"validation": {"metric": "loss"}, "model": {"dropout": 0.3, "word_dropout": 0.1}}
    train(recipe(folder, changes), folder / "whole")
    first = recipe(folder, {**changes, "training": {"steps": 20}})
    train(first, folder / "parts")
    train(recipe(folder, changes), folder / "parts")
    whole, parts = (
        read_weights(folder / name / "checkpoints" / "step-40" / "model.safetensors") for name in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_balanced_class_weights_give_classes_equal_totals(folder: Path) -> None:
    """For 60 hot and 30 cold texts, n / (2 n_c) is 0.75 and 1.5: a total of 45 for each class."""
    assert balanced_weights({"cold": 30, "hot": 60}) == [1.5, 0.75]
    metric = {"metric": "loss"}
    for weights in ("none", "balanced"):
        changes: Sections = {"training": {"class_weights": weights, "steps": 2}, "validation": metric}
        train(recipe(folder, changes), folder / weights)
    assert dev_losses(folder / "none") != dev_losses(folder / "balanced")


def test_batches_have_at_most_max_examples(folder: Path) -> None:
    chosen = recipe(folder, {"data": {"max_examples": 7}})
    stream = BatchStream(prepare(chosen, folder / "run", Listener()).train, chosen, torch.device("cpu"))
    sizes = [work.num_target_tokens for work in (stream.next_step() for _ in stream.epoch_plan)]
    assert max(sizes) == 7
    assert sum(sizes) == 90


def test_texts_over_the_limit_are_truncated(folder: Path) -> None:
    heard = Heard()
    chosen = recipe(folder, {"model": {"max_length": 4}})
    prepared = prepare(chosen, folder / "run", heard)
    assert int(prepared.train.lengths("source", 0).max()) == 4
    assert any("of them truncated to the model's maximum length" in message for message in heard.messages)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"model": {"kind": "transformer"}},
                "model.kind = 'transformer' does not fit task.kind = 'classification'",
            ),
            (
                {"validation": {"metric": "bleu"}},
                "validation.metric = 'bleu': input should be 'accuracy', 'macro_f1' or 'loss'",
            ),
            ({"data": {"filter": {"max_length": 9}}}, "data.filter: classification has no target text"),
            ({"tokenizer": {"joint": False}}, "tokenizer.joint = false: classification has no target text"),
            ({"model": {"d_modle": 3}}, "unknown key 'model.d_modle'; did you mean 'd_model'?"),
            ({"model": {"kind": "clasifier"}}, "model.kind = 'clasifier': did you mean 'classifier'?"),
        ],
    )
    def test_options_that_do_not_fit(self, changes: Sections, message: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            recipe(tmp_path, changes)
        assert message in str(caught.value)

    def test_class_weights_of_a_translation(self) -> None:
        with pytest.raises(ConfigError, match=r"training\.class_weights: translation has no classes"):
            parse_recipe({"data": {"train": [{"files": ["a.tsv"]}]}, "training": {"class_weights": "balanced"}}, "test")

    def test_unknown_labels_of_the_development_set(self, folder: Path) -> None:
        (folder / "dev.tsv").write_text("hot\tsun\ncolt\tice\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"dev\.tsv, example 2: the label 'colt' is not one of the model's"):
            train(recipe(folder, {"validation": {"metric": "loss"}}), folder / "run")

    def test_a_single_class(self, folder: Path) -> None:
        (folder / "train.tsv").write_text("hot\tsun\nhot\tsun sun\n", encoding="utf-8")
        with pytest.raises(DataError, match="every example has the label 'hot'"):
            train(recipe(folder), folder / "run")

    def test_a_start_with_other_labels(self, folder: Path) -> None:
        first = train(recipe(folder, {"validation": {"metric": "loss"}, "training": {"steps": 2}}), folder / "first")
        text = (folder / "train.tsv").read_text(encoding="utf-8")
        (folder / "train.tsv").write_text(text.replace("cold\t", "cool\t"), encoding="utf-8")
        chosen = recipe(folder, {"training": {"start_from": str(first.model_folder)}, "data": {"dev": None}})
        with pytest.raises(ConfigError, match="labels are cold, hot, but the labels in the training data are cool"):
            train(chosen, folder / "second")


@pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
def test_training_starts_from_a_classifier(folder: Path) -> None:
    first = train(recipe(folder, {"validation": {"metric": "loss"}, "training": {"steps": 20}}), folder / "first")
    chosen = recipe(
        folder,
        {
            "training": {"start_from": str(first.model_folder), "steps": 1},
            "optimizer": {"learning_rate": 1e-9},
            "validation": {"metric": "loss", "every": 1},
        },
    )
    train(chosen, folder / "second")
    assert dev_losses(folder / "second") == pytest.approx(dev_losses(folder / "first"), rel=1e-4)


def test_a_label_with_one_text_is_reported(folder: Path) -> None:
    heard = Heard()
    with (folder / "train.tsv").open("a", encoding="utf-8") as file:
        file.write("warm\tsun b\n")
    prepare(recipe(folder), folder / "run", heard)
    assert any(message.startswith("1 of 3 labels have only one training text ('warm')") for message in heard.messages)


def test_a_begun_run_does_not_need_the_model_that_it_started_from(folder: Path) -> None:
    first = train(recipe(folder, {"validation": {"metric": "loss"}, "training": {"steps": 2}}), folder / "first")
    assert first.model_folder is not None
    changes: Sections = {
        "training": {"start_from": str(first.model_folder), "steps": 2},
        "validation": {"metric": "loss"},
    }
    train(recipe(folder, changes), folder / "second")
    (folder / "first").rename(folder / "elsewhere")
    longer: Sections = {**changes, "training": {**changes["training"], "steps": 3}}
    assert train(recipe(folder, longer), folder / "second").step == 3


def test_a_tokenizer_of_a_translation_run_is_not_reused(folder: Path) -> None:
    """It was trained on the labels as well."""
    translating = parse_recipe(
        {
            "data": {"folder": str(folder), "train": [{"files": ["train.tsv"]}]},
            "tokenizer": {"kind": "whitespace"},
        },
        "test",
    )
    both = prepare(translating, folder / "run", Listener()).tokenizers.source
    texts = prepare(recipe(folder), folder / "run", Listener()).tokenizers.source
    assert both.vocab_size == texts.vocab_size + 2


def test_texts_that_a_model_pads_count_at_the_padded_length(folder: Path) -> None:
    """A batch of 200 tokens has room for 6 texts of 32 tokens."""
    chosen = recipe(folder, {"model": {"max_length": 32, "pad_to_max_length": True}})
    stream = BatchStream(prepare(chosen, folder / "run", Listener()).train, chosen, torch.device("cpu"))
    assert max(stream.next_step().num_target_tokens for _ in stream.epoch_plan) == 6


def test_a_recipe_made_in_python_has_the_defaults_of_its_task(folder: Path) -> None:
    parsed = recipe(folder)
    made = ClassificationRecipe(task=parsed.task, data=parsed.data)
    assert (made.model.kind, made.validation.metric) == ("classifier", "accuracy")


def test_an_empty_text_of_the_development_set_is_refused_before_training(folder: Path) -> None:
    (folder / "dev.tsv").write_text("hot\tsun\ncold\t \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"dev\.tsv, example 2: the text is empty"):
        prepare(recipe(folder), folder / "run", Listener())
