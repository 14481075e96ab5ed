"""``label_smoothing_prior``: the prior is counted from the targets of each task, and used in every loss."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from listening import Heard, prepare
from torch.nn import functional as F

from headway.data import store as store_module
from headway.data.store import TokenStore
from headway.errors import ConfigError, OutputError
from headway.tasks import parse_recipe, task_of, train
from headway.text.base import EOS
from headway.training.recipe import Recipe
from headway.training.stream import to_device

WIDTHS = {"d_model": 16, "num_heads": 2, "d_ff": 16, "dropout": 0.0}
TRANSLATION: dict[str, Any] = {
    "data": {"train": [{"files": ["a", "b"]}, {"files": ["c", "d"], "weight": 2.5}]},
    "model": {**WIDTHS, "encoder_layers": 1, "decoder_layers": 1},
}
LABELS: dict[str, Any] = {
    "task": {"kind": "classification"},
    "data": {"train": [{"files": ["labels.tsv"]}]},
    "model": WIDTHS,
}
TEXT = {"data": {"train": [{"files": ["text"]}], "dev_fraction": 0.4}}
LANGUAGE: dict[str, Any] = {
    "task": {"kind": "language_model"},
    **TEXT,
    "model": {**WIDTHS, "decoder_layers": 1, "max_length": 8},
}
MASKED: dict[str, Any] = {
    "task": {"kind": "masked_language_model"},
    **TEXT,
    "model": {**WIDTHS, "encoder_layers": 1, "max_length": 8},
}
FILES = {
    "a": "x\ny\n",
    "b": "k k l\nm\n",
    "c": "z\n",
    "d": "l l\n",
    "labels.tsv": "hot\tsun\nhot\tlight\nhot\tsun light\ncold\tice\n",
    "text": "abcd" * 3 + "aaab" * 2,
}


def recipe(folder: Path, sections: dict[str, Any], **training: Any) -> Recipe:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    settings = {"label_smoothing": 0.3, "label_smoothing_prior": "unigram", "device": "cpu", "precision": "float32"}
    kind = "characters" if sections.get("task", {}).get("kind", "").endswith("language_model") else "whitespace"
    return parse_recipe(
        {
            **sections,
            "data": {"folder": str(folder), **sections["data"]},
            "tokenizer": {"kind": kind},
            "training": {**settings, **training},
        },
        "test",
    )


def objective_of(recipe: Recipe, folder: Path) -> tuple[Any, Any]:
    """Return the objective of a recipe, and the data of its run."""
    torch.manual_seed(0)
    task, prepared = task_of(recipe), prepare(recipe, folder / "run", Heard())
    return task.build_objective(task.build_model(recipe, prepared), recipe, prepared), prepared


def shares(objective: Any, tokenizer: Any) -> dict[str, float]:
    """Return the prior of the tokens that have a share."""
    return {tokenizer.display([index])[0]: share for index, share in enumerate(objective.prior.tolist()) if share}


def test_the_tokens_of_each_corpus_count_by_its_weight(tmp_path: Path) -> None:
    objective, prepared = objective_of(recipe(tmp_path, TRANSLATION), tmp_path)
    # k k l EOS, m EOS, and 2.5 times l l EOS
    expected = Counter({"k": 2, "l": 1 + 5, "m": 1, "<eos>": 2 + 2.5})
    found = shares(objective, prepared.tokenizers.target)
    assert found == pytest.approx({token: count / 13.5 for token, count in expected.items()})


def test_the_labels_of_a_classifier_are_its_prior(tmp_path: Path) -> None:
    objective, prepared = objective_of(recipe(tmp_path, LABELS), tmp_path)
    assert list(prepared.label_counts) == ["cold", "hot"]
    assert objective.prior.tolist() == pytest.approx([1 / 4, 3 / 4])


@pytest.mark.parametrize("sections", [LANGUAGE, MASKED], ids=["language model", "masked"])
def test_tokens_of_the_development_part_do_not_count(tmp_path: Path, sections: dict[str, Any]) -> None:
    """Of 20 characters and EOS, the first 60 % are trained on: 13 tokens."""
    objective, prepared = objective_of(recipe(tmp_path, sections), tmp_path)
    counts = Counter("abcd" * 3 + "a")
    found = shares(objective, prepared.tokenizers.source)
    assert found == pytest.approx({token: count / 13 for token, count in counts.items()})


def test_a_masked_language_model_never_predicts_the_end(tmp_path: Path) -> None:
    for sections in (LANGUAGE, MASKED):
        whole = {**sections, "data": {"train": TEXT["data"]["train"]}}
        objective, _ = objective_of(recipe(tmp_path, whole), tmp_path / sections["task"]["kind"])
        assert float(objective.prior.sum()) == pytest.approx(1)
        assert (float(objective.prior[EOS]) > 0) == (sections is LANGUAGE)


@pytest.mark.parametrize("sections", [TRANSLATION, LABELS, LANGUAGE, MASKED])
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
@pytest.mark.slow_but_every(3)
def test_the_loss_is_the_formula(tmp_path: Path, sections: dict[str, Any], r_drop: float) -> None:
    """(1 - eps) of the target's and eps of the prior's cross-entropy. Two equal passes have no divergence."""
    chosen = recipe(tmp_path, sections, r_drop=r_drop)
    objective, prepared = objective_of(chosen, tmp_path)
    rows = next(iter(prepared.train.plan_epoch(1, 0, max_batch_tokens=64, pool_size=8)))
    batch = to_device(prepared.train.batch(rows), torch.device("cpu"))
    loss = objective(batch)
    if sections is LABELS:
        logits, targets = objective.model(batch.source), batch.targets - 1
    else:
        logits = objective.model.projection(objective.outputs(objective.states(*objective.inputs(batch)), batch))
        targets = batch.targets
    log_p = logits.double().log_softmax(-1)
    prior = objective.prior.double()
    expected = -(0.7 * log_p.gather(1, targets[:, None]).sum() + 0.3 * (log_p @ prior).sum())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(objective.cross_entropy(batch).double(), F.nll_loss(log_p, targets, reduction="sum"))


def test_the_uniform_prior_is_no_tensor(tmp_path: Path) -> None:
    for changes in ({"label_smoothing_prior": "uniform"}, {"label_smoothing": 0.0}):
        assert objective_of(recipe(tmp_path, TRANSLATION, **changes), tmp_path)[0].prior is None


@pytest.mark.slow
def test_a_run_trains_and_resumes_with_the_prior(tmp_path: Path) -> None:
    ends = []
    for name, limits in (("whole", (4,)), ("parts", (2, 4))):
        for steps in limits:
            sections = {**TRANSLATION, "checkpoints": {"average": 0}}
            result = train(recipe(tmp_path, sections, steps=steps), tmp_path / name)
        ends.append(result.model_folder.joinpath("model.safetensors").read_bytes())  # type: ignore[union-attr]
    assert ends[0] == ends[1]


class TestCounts:
    def store(self, folder: Path) -> TokenStore:
        prepare(recipe(folder, TRANSLATION), folder / "run", Heard())
        return TokenStore(folder / "run" / "tokens" / "train-0")

    def test_they_are_counted_once_and_stay_in_the_header(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = self.store(tmp_path)
        header = json.loads((store.folder / "store.json").read_text(encoding="utf-8"))
        assert "token_counts" not in header  # as in stores of older versions
        counts = store.token_counts("target", 12)
        assert counts.sum() == store.num_tokens("target") == 6
        assert (len(counts), counts[EOS]) == (12, 2)
        monkeypatch.setattr(TokenStore, "count_tokens", None)
        again = TokenStore(store.folder)
        assert again.token_counts("target", 20)[:12].tolist() == counts.tolist()
        kept = json.loads((store.folder / "store.json").read_text(encoding="utf-8"))
        assert kept.pop("token_counts")["target"] == counts.tolist()
        assert kept == header

    def test_wrong_counts_are_not_believed(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        counts = store.token_counts("target", 12)
        path = store.folder / "store.json"
        path.write_text(path.read_text(encoding="utf-8").replace('"target": [', '"target": [7, '), encoding="utf-8")
        assert TokenStore(store.folder).token_counts("target", 12).tolist() == counts.tolist()

    def test_a_folder_that_cannot_be_written_is_counted_each_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OutputError("read-only")

        store = self.store(tmp_path)
        monkeypatch.setattr(store_module, "atomic_write_text", refuse)
        assert store.token_counts("source", 12).sum() == store.num_tokens("source")


def test_a_prior_without_smoothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.label_smoothing_prior has no effect without label_smoothing > 0"):
        recipe(tmp_path, TRANSLATION, label_smoothing=0.0).refuse_options_without_effect("recipe.toml")
