"""Language models: training from a text file, resuming, generating, and measuring, through the public objects."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from listening import Heard
from small_recipes import CONTEXT, DECODER_ONLY, small_recipe

import headway
from headway import kernels
from headway.engine import Precision
from headway.errors import ConfigError, DataError, LengthError
from headway.predict import LanguageModel, load_language_model, load_translator
from headway.predict.language_modeling import perplexity
from headway.tasks import task_of, train
from headway.text.base import BOS, EOS
from headway.text.tokenizer import Tokenizer
from headway.training.averaging import average_checkpoints
from headway.training.recipe import Recipe

TEXT = "".join(f"{one} sees {other}.\n" for one in ("Ann", "Bob", "Cid") for other in ("dogs", "cats", "öxen")) * 12


def recipe(folder: Path, **changes: Any) -> Recipe:
    data = {"folder": str(folder), "train": [{"files": ["text.txt"]}], "dev_fraction": 0.2, "max_tokens": 240}
    sections: dict[str, dict[str, Any]] = {
        "data": data,
        "model": {**DECODER_ONLY, "dropout": 0.0},
        "training": {"steps": 120},
        "validation": {"every": 60},
        "checkpoints": {"every": 60},
    }
    return small_recipe(sections, changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language_model")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train(recipe(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> LanguageModel:
    found = headway.load(run / "best")
    assert isinstance(found, LanguageModel)
    return found


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_a_vocabulary_is_learned_from_a_sample_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = Tokenizer.train

    def spy(texts: Iterable[str], *rest: Any, **options: Any) -> Tokenizer:
        seen.extend(texts)
        return real(seen, *rest, **options)

    monkeypatch.setattr(Tokenizer, "train", spy)
    for number in range(4):
        lines = (f"file {number} line {line}\n" for line in range(50))
        (tmp_path / f"{number}.txt").write_text("".join(lines), encoding="utf-8")
    data = {"folder": str(tmp_path), "train": [{"files": ["*.txt"], "documents": "line"}]}
    train(recipe(tmp_path, data=data, tokenizer={"sample_lines": 20}, training={"steps": 1}), tmp_path / "run")
    assert len(seen) == 20
    assert {text.split()[1] for text in seen} == {"0", "1", "2", "3"}


def test_the_model_learns_the_text(run: Path, model: LanguageModel) -> None:
    dev = records(run, "dev")
    assert dev[-1]["loss"] < min(0.75, dev[0]["loss"])
    text = model.generate("Ann sees ", temperature=0, max_new_tokens=6)[0].text
    assert text.split(".")[0] in ("dogs", "cats", "öxen")
    card = (run / "best" / "README.md").read_text(encoding="utf-8")
    assert "bits_per_byte" in card
    assert "headway generate THIS_FOLDER" in card


def test_the_validation_scores_are_those_of_cold_blocks(run: Path, model: LanguageModel) -> None:
    """The last record is that of the final weights or of the best ones, which are the same here."""
    length = round(0.8 * (len(TEXT.rstrip()) + 1))  # a token for each character and one EOS
    dev_text = TEXT.rstrip()[length:]
    found = model.perplexity([dev_text], stride=CONTEXT)
    best = min(records(run, "dev"), key=lambda record: record["loss"])
    assert found.loss == pytest.approx(best["loss"], rel=1e-3)
    assert found.perplexity == pytest.approx(best["perplexity"], rel=1e-3)
    assert found.bits_per_byte == pytest.approx(best["bits_per_byte"], rel=1e-3)
    assert found.signature.startswith(f"context:{CONTEXT}|stride:{CONTEXT}|carried:no|eos:yes|")


@pytest.mark.parametrize("documents", ["file", "line"])
@pytest.mark.parametrize("kind", ["characters", "whitespace", pytest.param("words", marks=pytest.mark.slow), "bpe"])
def test_lines_of_the_end_that_are_also_before_it_are_counted(tmp_path: Path, documents: str, kind: str) -> None:
    """About the last fifth of each file is the development set. Lines of it are in the other file's first part, too."""
    new = [f"line {number} of the first file" for number in range(80)]
    end = [f"other {number} of the second" for number in range(20)]
    (tmp_path / "one.txt").write_text("\n".join([*new, *["seen before"] * 15]) + "\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("\n".join(["seen before", *end]) + "\n", encoding="utf-8")
    files = [{"files": [name], "documents": documents} for name in ("one.txt", "two.txt")]
    chosen = recipe(tmp_path, data={"folder": str(tmp_path), "train": files}, tokenizer={"kind": kind})
    for _ in range(2):  # the second time, the count is read from the run
        task_of(chosen).prepare(chosen, tmp_path / "run", heard := Heard())
        (line,) = (message for message in heard.messages if message.startswith("data.dev_fraction: "))
        seen, examples = map(int, re.findall(r"\d+", line)[:2])
        assert "are also in the training text" in line
        assert seen == 15
        assert 15 + 2 <= examples <= 15 + 16


def test_unknown_tokens_of_the_development_text_are_reported(folder: Path, tmp_path: Path) -> None:
    (folder / "dev.txt").write_text("Ann sees Zoë.\nBob sees žžž.\n", encoding="utf-8")
    dev = {"dev": {"files": ["dev.txt"]}, "dev_fraction": 0.0}
    heard = Heard()
    train(recipe(folder, data=dev, training={"steps": 2}), tmp_path / "unknown", listener=heard)
    assert [record["unknown_tokens"] for record in records(tmp_path / "unknown", "dev")] == [5]  # Z, ë and three ž
    (message,) = (each for each in heard.messages if "unknown" in each)
    assert "5 of 28 tokens of the development text are unknown" in message  # 26 characters, and EOS twice

    heard = Heard()
    train(recipe(folder, training={"steps": 2}), tmp_path / "known", listener=heard)
    assert "unknown" not in "".join(heard.messages)
    assert not any("unknown_tokens" in record for record in records(tmp_path / "known", "dev"))


def test_a_run_in_two_parts_equals_one_without_a_pause(folder: Path, run: Path) -> None:
    other = folder / "resumed"
    train(recipe(folder, training={"steps": 70}), other)
    train(recipe(folder), other)
    whole, again = (records(each, "dev")[-1]["loss"] for each in (run, other))
    assert whole == again


def test_averages_of_weights_are_language_models(folder: Path) -> None:
    other = folder / "averaged"
    train(recipe(folder, training={"steps": 40, "ema": 0.5}, checkpoints={"every": 20, "average": 2}), other)
    average_checkpoints(other, 2, folder / "again")
    for name in (other / "best", other / "average", folder / "again"):
        found = headway.load(name)
        assert isinstance(found, LanguageModel)
        assert found.perplexity([TEXT]).loss < math.log(len(set(TEXT)))


class TestDistillation:
    def test_a_student_learns_the_teachers_distribution(self, folder: Path, run: Path, model: LanguageModel) -> None:
        """Soft targets alone suffice, and the student's predictions are closer to the teacher's than without them."""

        def divergence(student: LanguageModel) -> float:
            ids = torch.tensor([[BOS, *model.bundle.tokenizer.encode(TEXT[: CONTEXT - 1])]])
            with torch.inference_mode():
                log_p, log_q = (each.bundle.model(ids).log_softmax(-1) for each in (student, model))
            return float((log_q.exp() * (log_q - log_p)).sum(-1).mean())

        sizes = {"decoder_layers": 1}
        found = {}
        for name, keys in {
            "soft": {"teacher": str(run / "best"), "teacher_weight": 1.0, "teacher_temperature": 2.0},
            "hard": {},
        }.items():
            train(recipe(folder, model=sizes, training={"steps": 80, **keys}), folder / name)
            found[name] = headway.load(folder / name / "best")
        assert found["soft"].bundle.tokenizer.fingerprint == model.bundle.tokenizer.fingerprint
        assert divergence(found["soft"]) < 0.7 * divergence(found["hard"])
        assert not [name for name, _ in found["soft"].bundle.model.named_parameters() if "teacher" in name]

    def test_interrupted_distillation_resumes_exactly(self, folder: Path, run: Path) -> None:
        teacher = {"teacher": str(run / "best")}
        for name, parts in {"whole": (20,), "parts": (10, 20)}.items():
            for steps in parts:
                changes = {"training": {"steps": steps, **teacher}, "validation": {"every": 10}}
                train(recipe(folder, checkpoints={"every": 10}, **changes), folder / f"distilled-{name}")
        whole, parts = (records(folder / f"distilled-{name}", "dev")[-1]["loss"] for name in ("whole", "parts"))
        assert whole == parts

    def test_what_does_not_fit_is_refused(self, folder: Path, run: Path) -> None:
        teacher = str(run / "best")
        with pytest.raises(ConfigError, match=r"training\.teacher_weight has no effect without training\.teacher"):
            recipe(folder, training={"teacher_weight": 0.7})
        with pytest.raises(ConfigError, match=r"r_drop and training\.teacher exclude each other"):
            recipe(folder, training={"teacher": teacher, "r_drop": 1.0}, model={"dropout": 0.1})
        with pytest.raises(ConfigError, match=r"tokenizer\.kind = 'bpe', but .* has 'characters'"):
            train(recipe(folder, training={"teacher": teacher}, tokenizer={"kind": "bpe"}), folder / "bpe")
        with pytest.raises(ConfigError, match="the teacher has only 24 positions"):
            train(recipe(folder, training={"teacher": teacher}, model={"max_length": 48}), folder / "long")


class TestMeasuring:
    def test_scores_are_the_models_own(self, model: LanguageModel) -> None:
        text = "Bob sees cats."
        ids = model.bundle.tokenizer.encode(text)
        with torch.inference_mode():
            log_probs = model.bundle.model(torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor([*ids, EOS]).unsqueeze(1)).squeeze(1)
        (found,) = model.score([text])
        torch.testing.assert_close(
            [*found.token_log_probabilities, found.eos_log_probability], expected.tolist(), atol=1e-5, rtol=1e-4
        )
        assert found.tokens == tuple(text)
        assert found.log_probability == pytest.approx(float(expected.sum()), rel=1e-5)

    @pytest.mark.parametrize("stride", [1, 5, CONTEXT // 2, CONTEXT])
    def test_each_token_counts_once_whatever_the_stride(self, model: LanguageModel, stride: int) -> None:
        text = TEXT[:100]
        found = model.perplexity([text], stride=stride)
        assert found.num_tokens == len(text) + 1
        assert found.bits_per_byte == pytest.approx(
            found.loss * found.num_tokens / math.log(2) / len(text.encode()), rel=1e-6
        )

    def test_texts_of_different_lengths_weigh_by_their_tokens(self, model: LanguageModel) -> None:
        short, long = "Ann", TEXT[:70]
        both, one, other = (model.perplexity(texts) for texts in ([short, long], [short], [long]))
        total = one.loss * one.num_tokens + other.loss * other.num_tokens
        assert both.loss == pytest.approx(total / both.num_tokens, rel=1e-6)

    def test_a_very_long_text_is_tokenized_in_parts(
        self, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = model.perplexity([TEXT])
        monkeypatch.setattr(perplexity, "_MAX_CHARACTERS", 30)
        encode, lengths = Tokenizer.encode, list[int]()

        def recorded(tokenizer: Tokenizer, text: str) -> list[int]:
            lengths.append(len(text))
            return encode(tokenizer, text)

        monkeypatch.setattr(Tokenizer, "encode", recorded)
        parts = model.perplexity([TEXT])
        assert len(lengths) > 1
        assert max(lengths) < 100
        assert (parts.num_tokens, parts.num_words) == (whole.num_tokens, whole.num_words)
        assert parts.loss == pytest.approx(whole.loss, rel=1e-6)

    def test_impossible_requests_are_refused(self, model: LanguageModel) -> None:
        with pytest.raises(ConfigError, match="stride = 25: expected from 1 to the model's context of 24"):
            model.perplexity(["Ann"], stride=25)
        with pytest.raises(DataError, match="no text to measure"):
            model.perplexity([""])


class TestGenerating:
    @pytest.mark.parametrize("precision", ["float32", "auto"])
    def test_a_prompt_does_not_depend_on_its_batch(self, run: Path, precision: Precision) -> None:
        model = load_language_model(run / "best", precision=precision)
        prompts = ["Ann", "Bob sees ", "", "C"]
        together = model.generate(prompts, max_new_tokens=12, seed=5)
        for prompt, (found,) in zip(prompts, together, strict=True):
            (alone,) = model.generate(prompt, max_new_tokens=12, seed=5)
            assert alone.text == found.text
            if kernels.is_available() and precision == "auto":
                assert alone == found  # bit for bit
            assert alone.token_log_probabilities == pytest.approx(found.token_log_probabilities, abs=1e-4)

    def test_precisions_agree_on_probabilities(self, run: Path, model: LanguageModel) -> None:
        (exact,) = load_language_model(run / "best", precision="float32").generate("Ann ", temperature=0)
        (fast,) = model.generate("Ann ", temperature=0)
        assert fast.token_log_probabilities == pytest.approx(exact.token_log_probabilities, abs=0.1)

    def test_draws_depend_on_the_seed_and_differ_from_each_other(self, model: LanguageModel) -> None:
        options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.5}
        one, same, other = (model.generate("A", seed=seed, n=4, **options) for seed in (1, 1, 2))
        assert [each.text for each in one] == [each.text for each in same]
        assert [each.text for each in one] != [each.text for each in other]
        assert len({each.text for each in one}) > 1

    def test_a_stream_joins_to_the_whole_text(self, model: LanguageModel) -> None:
        for seed in range(4):
            options: dict[str, Any] = {"max_new_tokens": 20, "seed": seed, "stop": ("ts.", "sees ox")}
            (whole,) = model.generate("Cid", **options)
            parts = list(model.stream("Cid", **options))
            assert "".join(parts) == whole.text
            assert all(parts)

    def test_a_stop_string_ends_the_text_before_it(self, model: LanguageModel) -> None:
        (found,) = model.generate("Ann sees ", temperature=0, max_new_tokens=14, stop=(".",))
        assert "." not in found.text
        assert found.finish_reason == "stop"

    def test_the_context_limits_the_length(self, model: LanguageModel) -> None:
        prompt = "Ann sees dogs.\nBob "
        (found,) = model.generate(prompt, temperature=0, max_new_tokens=100)
        assert len(prompt) + len(found.tokens) <= CONTEXT
        assert found.finish_reason in ("length", "end")
        with pytest.raises(LengthError, match="prompt 2 has 30 tokens, but the model's context has 24"):
            model.generate(["Ann", "x" * 30])

    def test_sliding_goes_on_beyond_the_context(self, model: LanguageModel) -> None:
        options: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 3 * CONTEXT, "beyond_context": "slide"}
        stopped = model.generate("Ann ", temperature=0.8, max_new_tokens=3 * CONTEXT)[0]
        prompts = ["Ann ", "x" * 2 * CONTEXT, ""]
        for prompt, several in zip(prompts, model.generate(prompts, n=2, **options), strict=True):
            for found in several:
                assert found.finish_reason == "end" or len(found.ids) == 3 * CONTEXT
                assert len(found.ids) == len(found.token_log_probabilities) == len(found.tokens)
            (alone,) = model.generate(prompt, **options)
            assert alone.text in [found.text for found in several]
            assert alone.text == "".join(model.stream(prompt, **options))
        assert several[0].text != several[1].text
        assert model.generate("Ann ", **options)[0].text.startswith(stopped.text)

    def test_sliding_refuses_options_that_it_would_forget(self, model: LanguageModel) -> None:
        options: list[dict[str, Any]] = [{"ban": ("dogs",)}, {"repetition_penalty": 1.5}]
        for option in options:
            with pytest.raises(ConfigError, match="'slide' cannot be combined with include, ban or repetition_penalty"):
                model.generate("A", beyond_context="slide", **option)

    def test_one_text_is_not_a_list_of_texts(self, model: LanguageModel) -> None:
        for measure in (model.perplexity, model.score):
            with pytest.raises(ConfigError, match="expected a list of texts, not a single text"):
                measure("Ann")

    def test_unknown_characters_are_counted(self, model: LanguageModel) -> None:
        assert model.perplexity(["Ann sees dogs."]).num_unknown == 0
        assert model.perplexity(["日本 sees dogs."]).num_unknown == 2

    def test_phrases_are_included_and_banned(self, model: LanguageModel) -> None:
        beam: dict[str, Any] = {"temperature": 0, "beam_size": 4, "max_new_tokens": 16}
        plain = model.generate("Ann ", **beam)[0].text
        assert plain.startswith("sees ")
        assert "sees" not in model.generate("Ann ", ban=("sees",), **beam)[0].text
        either = model.generate("Ann sees", include=("Cid|Bob",), **beam)[0].text
        assert "Cid" in either or "Bob" in either
        included = model.generate("Ann sees", include=("öxen",), **beam)[0].text
        assert "öxen" in included
        with pytest.raises(ConfigError, match="include needs temperature = 0 and beam_size >= 2"):
            model.generate("A", include=("Bob",))

    def test_a_beam_finds_at_least_the_greedy_text(self, model: LanguageModel) -> None:
        greedy, beam = (model.generate("B", temperature=0, beam_size=size, max_new_tokens=8)[0] for size in (1, 4))
        assert sum(beam.token_log_probabilities) >= sum(greedy.token_log_probabilities) - 1e-3

    def test_options_that_do_not_fit_together_are_refused(self, model: LanguageModel) -> None:
        with pytest.raises(ConfigError, match="beam_size needs temperature = 0"):
            model.generate("A", beam_size=2)
        with pytest.raises(ConfigError, match="expected at most beam_size, which is 1"):
            model.generate("A", temperature=0, n=2)
        with pytest.raises(ConfigError, match="an empty string would end every continuation"):
            model.generate("A", stop=("",))
        with pytest.raises(ConfigError, match="streaming needs n = 1"):
            next(model.stream("A", n=2))
        with pytest.raises(ConfigError, match="top_p"):
            model.generate("A", top_p=0)

    def test_threads_get_the_results_of_one_thread(self, model: LanguageModel) -> None:
        prompts = [f"{name} se" for name in ("Ann", "Bob", "Cid")] * 4
        expected = [model.generate(prompt, max_new_tokens=10)[0].text for prompt in prompts]
        found: dict[int, str] = {}

        def work(at: int) -> None:
            found[at] = model.generate(prompts[at], max_new_tokens=10)[0].text

        threads = [Thread(target=work, args=(at,)) for at in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[at] for at in range(len(prompts))] == expected


class TestRecipes:
    def test_idle_keys_are_refused(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"data\.bpe_dropout: has no effect on a language model"):
            recipe(folder, data={"bpe_dropout": 0.1})
        with pytest.raises(ConfigError, match=r"data\.dev and data\.dev_fraction exclude each other"):
            recipe(folder, data={"dev": {"files": ["text.txt"]}})
        with pytest.raises(ConfigError, match="expected decoder_only or recurrent_lm"):
            recipe(folder, model={"kind": "transformer"})

    def test_other_tasks_refuse_the_model(self, run: Path) -> None:
        with pytest.raises(headway.HeadwayError, match="a model that continues texts; expected one that translates"):
            load_translator(run / "best")

    def test_a_corpus_of_white_space_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text.txt").write_text(" \n \n", encoding="utf-8")
        with pytest.raises(DataError, match="contains only white space"):
            train(recipe(tmp_path), tmp_path / "run")
