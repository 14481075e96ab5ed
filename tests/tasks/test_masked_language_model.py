"""Masked language models: training from a text file, resuming, filling and scoring, through the public objects."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import headway
from headway.errors import ConfigError, DataError, LengthError
from headway.predict import MaskedLanguageModel, ScoredText, load_translator
from headway.tasks import parse_recipe, task_of, train
from headway.text.base import BOS, EOS, MASK
from headway.training.recipe import Recipe
from headway.training.report import Listener

SENTENCES = [f"{one} sees {other} {place}." for one, other, place in product(
    ("Ann", "Bob", "Cid"), ("dogs", "cats", "öxen"), ("here", "there")
)]  # fmt: skip
TEXT = "".join(sentence + "\n" for sentence in SENTENCES) * 12


def recipe(folder: Path, **changes: Any) -> Recipe:
    sections: dict[str, dict[str, Any]] = {
        "task": {"kind": "masked_language_model"},
        "data": {
            "folder": str(folder),
            "train": [{"files": ["text.txt"], "documents": "line"}],
            "dev_fraction": 0.2,
            "max_tokens": 480,
            "masking": {"unit": "words", "fraction": 0.3},
        },
        "tokenizer": {"vocab_size": 320},
        "model": {
            "d_model": 32,
            "num_heads": 2,
            "d_ff": 64,
            "encoder_layers": 2,
            "max_length": 24,
            "dropout": 0.0,
            "positions": "rotary",
            "norm": "pre",
        },
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 20, "schedule": "inverse_sqrt"},
        "training": {"steps": 240, "precision": "float32", "device": "cpu"},
        "validation": {"every": 80},
        "checkpoints": {"every": 80, "average": 0},
    }
    return parse_recipe({name: {**keys, **changes.get(name, {})} for name, keys in sections.items()}, "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked_language_model")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train(recipe(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> MaskedLanguageModel:
    found = headway.load(run / "best")
    assert isinstance(found, MaskedLanguageModel)
    return found


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def log_probs(model: MaskedLanguageModel, ids: list[int], at: int) -> torch.Tensor:
    """The log-probabilities at one position of a text, by the plain forward pass of the whole model."""
    with torch.inference_mode():
        logits: torch.Tensor = model.bundle.model(torch.tensor([[BOS, *ids, EOS]]))
        return logits[0, at + 1].log_softmax(-1)


class TestTraining:
    def test_the_model_learns_the_text(self, run: Path, model: MaskedLanguageModel) -> None:
        dev = records(run, "dev")
        assert dev[-1]["loss"] < 1.3 < dev[0]["loss"]
        assert dev[-1]["masked_accuracy"] > 0.5
        assert not {"perplexity", "bits_per_byte"} & dev[-1].keys()
        assert [one.words[0] for one in model.fill(f"Ann {MASK} cats here.", top=1)] == ["sees"]
        animals = {one.words[0] for one in model.fill(f"Bob sees {MASK} there.", top=2)}
        assert animals <= {"dogs", "cats", "öxen"}
        card = (run / "best" / "README.md").read_text(encoding="utf-8")
        assert "masked_accuracy" in card
        assert "headway fill THIS_FOLDER" in card

    @pytest.mark.slow
    def test_a_run_in_two_parts_equals_one_without_a_pause(self, folder: Path, run: Path) -> None:
        other = folder / "resumed"
        train(recipe(folder, training={"steps": 150}), other)
        train(recipe(folder), other)
        whole, again = (records(each, "dev")[-1] for each in (run, other))
        assert whole == again

    def test_validation_is_over_the_hidden_tokens(self, folder: Path, run: Path, model: MaskedLanguageModel) -> None:
        """Recompute loss and accuracy from the model's logits and the data set."""
        chosen: Any = recipe(folder)
        prepared: Any = task_of(chosen).prepare(chosen, run, Listener())
        losses, correct = [], []
        with torch.inference_mode():
            for rows in prepared.dev.plan_sequential(480):
                batch = prepared.dev.batch(rows)
                source, target = torch.from_numpy(batch.source), torch.from_numpy(batch.target)
                logits = model.bundle.model(source)[target != 0]
                losses += F.cross_entropy(logits, target[target != 0], reduction="none").tolist()
                correct += (logits.argmax(-1) == target[target != 0]).tolist()
        best = min(records(run, "dev"), key=lambda record: record["loss"])
        assert sum(losses) / len(losses) == pytest.approx(best["loss"], rel=1e-4)
        assert sum(correct) / len(correct) == pytest.approx(best["masked_accuracy"], abs=1e-6)


class TestFilling:
    def test_one_mask_has_the_models_probabilities(self, model: MaskedLanguageModel) -> None:
        tokenizer = model.bundle.tokenizer
        before, after = tokenizer.encode("Ann sees"), tokenizer.encode(" here.")
        assert tokenizer.mask_id is not None
        expected = log_probs(model, [*before, tokenizer.mask_id, *after], len(before)).exp()
        found = model.fill(f"Ann sees {MASK} here.", top=4)
        order = [int(index) for index in expected.argsort(descending=True) if index > 4][:4]
        assert [one.text for one in found] == [tokenizer.decode([*before, index, *after]) for index in order]
        for one, index in zip(found, order, strict=True):
            assert one.probability == pytest.approx(float(expected[index]), rel=1e-4)
            assert math.log(one.probability) == pytest.approx(one.token_log_probabilities[0], rel=1e-4)

    def test_several_masks_are_filled_from_left_to_right(self, model: MaskedLanguageModel) -> None:
        """By hand: the probability of the first word, and of the second given the first."""
        tokenizer, mask = model.bundle.tokenizer, model.bundle.tokenizer.mask_id
        assert mask is not None
        best = model.fill(f"{MASK} sees {MASK} here.", top=3)
        assert [one.probability for one in best] == sorted((one.probability for one in best), reverse=True)
        middle, end = tokenizer.encode(" sees"), tokenizer.encode(" here.")
        first, second = (int(tokenizer.encode(text)[0]) for text in ("Ann", " cats"))
        assert len(tokenizer.encode("Ann")) == len(tokenizer.encode(" cats")) == 1
        expected = log_probs(model, [mask, *middle, mask, *end], 0)[first]
        expected = expected + log_probs(model, [first, *middle, mask, *end], 1 + len(middle))[second]
        (found,) = (one for one in model.fill(f"{MASK} sees {MASK} here.", 30) if one.words == ("Ann", "cats"))
        assert found.text == "Ann sees cats here."
        assert math.log(found.probability) == pytest.approx(float(expected), rel=1e-4)

    def test_candidates_of_several_tokens(self, model: MaskedLanguageModel) -> None:
        tokenizer, mask = model.bundle.tokenizer, model.bundle.tokenizer.mask_id
        assert mask is not None
        before, after = tokenizer.encode("Ann sees"), tokenizer.encode(" here.")
        candidates = ["dogs", "dogs there", "xyz"]
        found = model.fill(f"Ann sees {MASK} here.", candidates=candidates)
        assert sorted(one.words[0] for one in found) == sorted(candidates)
        assert [one.probability for one in found] == sorted((one.probability for one in found), reverse=True)
        for one in found:
            word = tokenizer.encode(" " + one.words[0])
            steps = [
                log_probs(model, [*before, *word[:done], *[mask] * (len(word) - done), *after], len(before) + done)[
                    token
                ]
                for done, token in enumerate(word)
            ]
            assert one.text == f"Ann sees {one.words[0]} here."
            assert one.token_log_probabilities == pytest.approx([float(step) for step in steps], rel=1e-3, abs=1e-5)
        (one,) = model.fill(f"{MASK} sees {MASK} here.", 1, ["Ann", "dogs", "dogs there"])
        assert one.words[0] == "Ann"
        assert one.words[1].startswith("dogs")

    def test_a_mask_without_a_space_joins_the_word(self, model: MaskedLanguageModel) -> None:
        found = model.fill(f"Ann sees dogs here{MASK}", candidates=[".", "s"])
        assert {one.text for one in found} == {"Ann sees dogs here.", "Ann sees dogs heres"}

    def test_texts_that_cannot_be_filled_are_refused(self, model: MaskedLanguageModel) -> None:
        with pytest.raises(DataError, match=r"the text has no \[MASK\]; expected from 1 to 20"):
            model.fill("Ann sees dogs.")
        with pytest.raises(DataError, match=r"the text has 21 \[MASK\]"):
            model.fill(MASK * 21)
        with pytest.raises(LengthError, match=r"the text has \d+ tokens, but the model's context has 22"):
            model.fill(MASK + " sees dogs" * 20)
        with pytest.raises(LengthError, match="shorten the text"):
            model.fill(f"{MASK} sees", candidates=["dogs " * 30])
        with pytest.raises(ConfigError, match="candidate ' ': expected a word"):
            model.fill(MASK, candidates=[" "])
        with pytest.raises(ConfigError, match="expected at least one word"):
            model.fill(MASK, candidates=[])
        with pytest.raises(ConfigError, match="top = 0"):
            model.fill(MASK, top=0)
        with pytest.raises(ConfigError, match="expected a list of texts"):
            model.fill(MASK, candidates="dogs")
        with pytest.raises(ConfigError, match="expected a list of texts"):
            model.score("Ann sees dogs.")


class TestScoring:
    def test_a_score_is_the_pseudo_log_likelihood(self, model: MaskedLanguageModel) -> None:
        tokenizer, mask = model.bundle.tokenizer, model.bundle.tokenizer.mask_id
        assert mask is not None
        ids = tokenizer.encode("Bob sees öxen here.")
        expected = [log_probs(model, [*ids[:at], mask, *ids[at + 1 :]], at)[token] for at, token in enumerate(ids)]
        (found,) = model.score(["Bob sees öxen here."])
        assert found.token_log_probabilities == pytest.approx([float(each) for each in expected], abs=1e-4, rel=1e-3)
        assert found.eos_log_probability is None
        assert "".join(found.tokens) == "Bob sees öxen here."
        good, bad = model.score(["Bob sees öxen here.", "Bob öxen sees here."])
        assert good.log_probability > bad.log_probability

    def test_a_score_does_not_depend_on_the_other_texts(self, model: MaskedLanguageModel) -> None:
        texts = [*SENTENCES[:6], "", TEXT[:250]]
        together = model.score(texts)
        assert together[6] == ScoredText((), (), None)
        for text, found in zip(texts, together, strict=True):
            (alone,) = model.score([text])
            assert found.tokens == alone.tokens
            assert found.token_log_probabilities == pytest.approx(alone.token_log_probabilities, abs=1e-4, rel=1e-3)

    def test_each_token_of_a_long_text_has_a_window_around_it(self, model: MaskedLanguageModel) -> None:
        tokenizer, mask = model.bundle.tokenizer, model.bundle.tokenizer.mask_id
        assert mask is not None
        ids, width = tokenizer.encode(TEXT[:250]), 24 - 2
        assert len(ids) > 2 * width
        found = model.score([TEXT[:250]])[0].token_log_probabilities
        for at, begin in ((0, 0), (40, 40 - width // 2), (len(ids) - 1, len(ids) - width)):
            window = ids[begin : begin + width]
            window[at - begin] = mask
            expected = float(log_probs(model, window, at - begin)[ids[at]])
            assert found[at] == pytest.approx(expected, rel=1e-3, abs=1e-4)

    def test_threads_get_the_results_of_one_thread(self, model: MaskedLanguageModel) -> None:
        expected = [model.score([text])[0] for text in SENTENCES[:8]]
        found: dict[int, ScoredText] = {}

        def work(at: int) -> None:
            found[at] = model.score([SENTENCES[at]])[0]

        threads = [Thread(target=work, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[at] for at in range(8)] == expected


class TestRecipes:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"dev": {"files": ["foreign.txt"]}, "dev_fraction": 0.0}, r"data\.dev: foreign\.txt has no token to pred"),
            ({"dev_fraction": 1e-5}, "part of the corpora contains no text; raise the value"),
            ({"dev_fraction": 0.0003}, "part of the corpora contains no text; raise the value"),  # only the end symbol
        ],
    )
    def test_a_development_set_in_which_nothing_can_be_hidden_is_refused(
        self, folder: Path, tmp_path: Path, data: dict[str, Any], message: str
    ) -> None:
        (folder / "foreign.txt").write_text("ж" * 40, encoding="utf-8")
        chosen = recipe(folder, data=data, tokenizer={"kind": "characters"})
        with pytest.raises((ConfigError, DataError), match=message):
            task_of(chosen).prepare(chosen, tmp_path / "run", Listener())

    def test_mistakes_are_refused(self, folder: Path, run: Path) -> None:
        with pytest.raises(ConfigError, match="expected masked"):
            recipe(folder, model={"kind": "classifier"})
        with pytest.raises(ConfigError, match=r"mask \+ random = 1.5"):
            recipe(folder, data={"masking": {"mask": 0.9, "random": 0.6}})
        with pytest.raises(headway.HeadwayError, match="fills in hidden words; expected one that translates"):
            load_translator(run / "best")

    def test_a_tokenizer_without_a_mask_is_refused(self, run: Path, tmp_path: Path) -> None:
        import shutil

        shutil.copytree(run / "best", tmp_path / "model")
        path = tmp_path / "model" / "tokenizer.json"
        saved = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**saved, "tags": ["<2en>"]}), encoding="utf-8")
        with pytest.raises(headway.HeadwayError, match="the tokenizer has no mask token"):
            headway.load(tmp_path / "model")
