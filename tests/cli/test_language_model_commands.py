"""The commands with a language model: score, evaluate and rerank, and those that work for every model."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from command_line import assert_refused, run, write_lines

import headway
from headway import kernels
from headway.engine.int8_check import INT8_CHECK_FILE, Int8Check, write_int8_check
from headway.predict import LanguageModel, Translator
from headway.predict.classification.classifier import Classifier
from headway.text.base import BOS
from headway.text.special_tokens import SpecialTokenTemplate

pytest_plugins = ["letter_model"]  # the fixtures of that file


class TestScore:
    def test_one_line_for_each_text(self, folder: Path, model: LanguageModel, tmp_path: Path) -> None:
        texts = ["a bad face", "", "bad cafe " * 5]
        ended = run("score", folder, "-i", write_lines(tmp_path / "texts", texts))
        lines = [line.split("\t") for line in ended.out.splitlines()]
        assert [int(count) for _, count in lines] == [10, 0, 45]
        expected = [each.log_probability for each in model.score(texts)]
        assert [float(value) for value, _ in lines] == pytest.approx(expected, abs=1e-3)
        assert "3 texts, perplexity" in ended.err
        assert run("score", folder, stdin=b"a bad face\n\n" + b"bad cafe " * 5 + b"\n").out == ended.out

    def test_tokens_and_their_log_probabilities(self, folder: Path) -> None:
        (line,) = run("score", folder, "a b", "--format", "json").out.splitlines()
        found = json.loads(line)
        assert found["tokens"] == ["a", " ", "b"]
        assert len(found["token_log_probabilities"]) == 4  # with EOS
        assert found["log_probability"] == pytest.approx(sum(found["token_log_probabilities"]))
        shown = run("score", folder, "a b", "--tokens").out.split("\t")[2]
        assert re.fullmatch(r"a:\S+ ␣:\S+ b:\S+ <eos>:\S+\n", shown)

    def test_what_does_not_apply_is_refused(self, folder: Path, tmp_path: Path) -> None:
        file = write_lines(tmp_path / "f", ["a"])
        assert_refused(
            run("score", folder, "--source", file), "--source does not apply to .*; score with TEXT or --inp"
        )
        assert_refused(run("score", folder, "a", "-i", file), "TEXT and --input cannot be combined")

    def test_a_classifier_has_no_score(self, make_classifier: Callable[..., Classifier], tmp_path: Path) -> None:
        make_classifier().bundle.save(tmp_path / "classifier", "# A model\n")
        assert_refused(run("score", tmp_path / "classifier", "a"), "is a classifier, which assigns no probability")


class TestEvaluate:
    def test_a_file_is_one_document_by_default(self, folder: Path, model: LanguageModel, tmp_path: Path) -> None:
        lines = ["a bad face", "bad cafe " * 5]
        file = write_lines(tmp_path / "text.txt", lines)
        expected = model.perplexity(["\n".join(lines).rstrip()], stride=5)
        found = json.loads(run("evaluate", folder, "--data", file, "--stride", 5, "--format", "json").out)
        assert found["bits_per_byte"] == pytest.approx(expected.bits_per_byte, rel=1e-5)
        assert found["signature"].startswith(
            "context:16|stride:5|carried:no|eos:yes|precision:float32|version:headway-"
        )
        assert (found["num_texts"], found["num_tokens"], found["num_words"]) == (1, 56, 13)
        assert found["word_perplexity"] == pytest.approx(math.exp(found["loss"] * 56 / 13), rel=1e-5)

    def test_lines_and_records_are_documents(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "parts").mkdir()
        plain = write_lines(tmp_path / "parts" / "text.txt", ["a bad face", "bad cafe"])
        records = write_lines(tmp_path / "text.jsonl", ['{"body": "a bad face"}', '{"body": "bad cafe"}'])
        outputs = [
            run("evaluate", folder, "--data", data, *words).out
            for data, *words in (
                (plain, "--documents", "line"),
                (tmp_path / "parts", "--documents", "line"),
                (f"{tmp_path}/par*/*.txt", "--documents", "line"),
                (records, "--fields", "body"),
            )
        ]
        assert len(set(outputs)) == 1
        assert outputs[0].startswith("loss ")
        assert "comparable between tokenizers" in outputs[0]

    def test_a_table_without_pairs(self, folder: Path, tmp_path: Path) -> None:
        table = write_lines(tmp_path / "pairs.csv", ["good,bad"])
        assert_refused(run("evaluate", folder, "--pairs", table, "--fields", "good,bad"), "no pairs")

    def test_minimal_pairs(self, folder: Path, model: LanguageModel, tmp_path: Path) -> None:
        pairs = [("a bad", "a dab", "x"), ("face", "ecaf", "y"), ("dig", "gid", "x"), ("head", "deah", "y")]
        good, bad = (
            [sum(each.token_log_probabilities) for each in model.score([pair[side] for pair in pairs])]
            for side in (0, 1)
        )
        right = [one > other for one, other in zip(good, bad, strict=True)]
        table = write_lines(tmp_path / "pairs.tsv", ["\t".join((name, one, other)) for one, other, name in pairs])
        found = json.loads(run("evaluate", folder, "--pairs", table, "--fields", "2,3,1", "--format", "json").out)
        assert found["overall"]["value"] == 100 * sum(right) / 4
        assert found["groups"]["y"]["value"] == 100 * (right[1] + right[3]) / 2
        assert found["counts"] == {"x": 2, "y": 2}
        records = [json.dumps({"good": one, "bad": other}) for one, other, _ in pairs]
        shown = run("evaluate", folder, "--pairs", write_lines(tmp_path / "pairs.jsonl", records)).out
        assert shown.startswith(f"all pairs  accuracy {100 * sum(right) / 4:.1f} [")

    def test_multiple_choice(self, folder: Path, model: LanguageModel, tmp_path: Path) -> None:
        """Both accuracies are those of the log-probabilities of the answers' letters, summed by hand."""
        questions = [("a", ["b", "cd"], 1), ("ab", ["c", "de", "fgh"], 0), ("fa", ["ce", "d"], 0)]
        records = [
            {"question": text, "choices": choices, "answer": right or choices[right]}
            for text, choices, right in questions
        ]
        file = write_lines(tmp_path / "questions.jsonl", list(map(json.dumps, records)))
        by_sum = by_mean = 0
        for text, choices, right in questions:
            values = [
                model.score([f"{text} {choice}"])[0].token_log_probabilities[-len(choice) - 1 :] for choice in choices
            ]
            by_sum += max(range(len(choices)), key=lambda index: sum(values[index])) == right
            by_mean += max(range(len(choices)), key=lambda index: statistics.fmean(values[index])) == right
        found = json.loads(run("evaluate", folder, "--choices", file, "--format", "json").out)
        assert found["by_sum"]["value"] == pytest.approx(100 * by_sum / 3)
        assert found["by_mean"]["value"] == pytest.approx(100 * by_mean / 3)
        assert (found["num_questions"], found["chance"]) == (3, pytest.approx(100 * (1 / 2 + 1 / 3 + 1 / 2) / 3))

    @pytest.mark.slow
    def test_the_lines_of_multiple_choice(self, folder: Path, tmp_path: Path) -> None:
        lines = [
            json.dumps({"question": "a", "choices": ["b", "c", "d"][:count], "answer": "b"}) for count in (2, 3, 2)
        ]
        file = write_lines(tmp_path / "questions.jsonl", lines)
        shown = run("evaluate", folder, "--choices", file, "--examples", 1, "--precision", "bfloat16").out.splitlines()
        assert [line.partition(" ")[0] for line in shown] == ["accuracy", "accuracy", "chance"]
        assert "|examples:1|precision:bfloat16|" in shown[0]
        assert shown[2] == "chance 44.4"

    @pytest.mark.slow
    def test_questions_that_do_not_fit(self, folder: Path, tmp_path: Path) -> None:
        lines = [
            '{"question": "a", "choices": ["b", "c"], "answer": 0}',
            '{"q": "abcdefghij", "o": ["bcdef", "c"], "a": 0}',
        ]
        short = write_lines(tmp_path / "short.jsonl", lines[:1])
        assert_refused(run("evaluate", folder, "--choices", short, "--examples", 1), "1 examples from 1 questions")
        long = write_lines(tmp_path / "long.jsonl", ["", lines[1]])
        ended = run("evaluate", folder, "--choices", long, "--fields", "q,o,a")
        assert_refused(ended, "long.jsonl, line 2: the question, its examples and an answer have 16 tokens, but .* 16")
        assert_refused(run("evaluate", folder, "--choices", long), "line 2: field 'question' is missing")
        assert_refused(
            run("evaluate", folder, "--choices", short, "--data", short), "--data does not apply to --choices"
        )
        assert_refused(run("evaluate", folder, "--pairs", short, "--examples", 1), "--examples has no effect without")

    def test_what_does_not_apply_is_refused(self, folder: Path, tmp_path: Path) -> None:
        file = write_lines(tmp_path / "text.txt", ["a"])
        assert_refused(
            run("evaluate", folder),
            "continues texts; evaluate it with --data F, --pairs F for minimal pairs, or --choices F",
        )
        assert_refused(run("evaluate", folder, "--source", file), "--source does not apply: .* continues texts")
        assert_refused(run("evaluate", folder, "--data", file, "--stride", 17), "stride = 17: expected from 1 to")
        assert_refused(run("evaluate", folder, "--pairs", file, "--stride", 2), "--stride does not apply to --pairs")
        assert_refused(run("evaluate", folder, "--data", file, "--beam-size", 2), "without a search")
        assert_refused(run("evaluate", folder, "--data", tmp_path / "none.txt"), "none.txt: no such file")
        wrong = write_lines(tmp_path / "pairs.tsv", ["one column"])
        assert_refused(run("evaluate", folder, "--pairs", wrong), "pairs.tsv, line 1: 1 column, but 2 columns needed")
        assert_refused(run("evaluate", folder, "--pairs", wrong, "--fields", "1"), "selects 1 text")


class TestCompare:
    def test_bits_per_byte_over_documents(
        self, folder: Path, make_language_model: Callable[..., LanguageModel], tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        make_language_model("characters", texts=["abcdefghij "], seed=9, max_length=8).bundle.save(other, "# A model\n")
        data = write_lines(tmp_path / "text.txt", ["a bad face", "bad cafe", "head"])
        words = ["compare", folder, other, "--data", data, "--documents", "line"]
        first, second = json.loads(run(*words, "--stride", 5, "--format", "json").out)["rows"]
        for system, row in ((folder, first), (other, second)):
            found = headway.load(system).perplexity(["a bad face", "bad cafe", "head"], stride=5)
            assert row["value"] == pytest.approx(found.bits_per_byte, rel=1e-5)
            assert row["signature"].endswith(found.signature)
        assert second["delta"] == pytest.approx(second["value"] - first["value"])
        printed = run(*words, "--stride", 5).out
        assert f"{second['delta']:+.4f}" in printed
        assert "3 documents, but at least 10 are needed" in printed
        assert_refused(run(*words[:-2]), "1 documents: expected at least two")
        assert_refused(run("compare", folder, data, "--data", data), "text.txt: not a language model")
        assert_refused(run("compare", folder, other, "--reference", data), "pass a text with --data F")
        assert_refused(run(*words, "--metric", "bleu"), "--metric is for translations")
        files = [data, other / "README.md", "--data", data]
        assert_refused(run("compare", *files, "--stride", 2), "--stride is for language models")


class TestPrecision:
    def test_measurements_name_it(self, folder: Path, model: LanguageModel, tmp_path: Path) -> None:
        data = write_lines(tmp_path / "text.txt", ["a bad face"])
        expected = model.perplexity(["a bad face"], precision="bfloat16")
        found = json.loads(run("evaluate", folder, "--data", data, "--precision", "bfloat16", "--format", "json").out)
        assert found["loss"] == pytest.approx(expected.loss)
        assert found["signature"] == expected.signature
        assert "|precision:bfloat16|" in found["signature"]
        ended = run("score", folder, "a bad face", "--precision", "bfloat16")
        assert float(ended.out.split("\t")[0]) == pytest.approx(-expected.loss * expected.num_tokens, abs=1e-3)
        assert ended.err.endswith("EOS included, in bfloat16\n")
        pairs = write_lines(tmp_path / "pairs.tsv", ["a bad face\tbad a face"])
        assert "|precision:bfloat16|" in run("evaluate", folder, "--pairs", pairs, "--precision", "bfloat16").out
        lines = write_lines(tmp_path / "lines.txt", ["a bad face", "cafe"])
        other = copytree(folder, tmp_path / "other")
        words = ["--data", lines, "--documents", "line", "--precision", "bfloat16"]
        assert "|precision:bfloat16|" in run("compare", folder, other, *words).out

    @pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
    def test_a_model_that_leaves_int8_says_so_once(self, folder: Path, tmp_path: Path) -> None:
        model = copytree(folder, tmp_path / "model")
        note = rf"{re.escape(str(model))} generates in (bfloat16|float32): .* for 50\.0 % of 512 tokens .* needs 96 %\n"
        write_int8_check(Int8Check(tokens=512, agreement=0.5), model)
        assert re.fullmatch(note, run("generate", model, "a", "--max-new-tokens", 1).err)
        assert re.match(note, run("score", model, "a", "--precision", "auto").err)
        assert run("generate", model, "a", "--max-new-tokens", 1, "--precision", "int8").err == ""
        described = r"(bfloat16|float32): the most probable token is the same in int8 and float32 for 50"
        assert re.match(described, shown_precision(model))
        (model / INT8_CHECK_FILE).unlink()
        assert shown_precision(model) == "int8: not compared with float32"
        write_int8_check(Int8Check(tokens=512, agreement=0.99), model)
        assert run("generate", model, "a", "--max-new-tokens", 1).err == ""

    @pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
    def test_info_does_not_check(self, model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "headway.predict.language_modeling.language_model.check_int8", lambda *_: pytest.fail("checked")
        )
        template = SpecialTokenTemplate(source_prefix=(BOS,))
        replace(model.bundle, imported_token_template=template).save(tmp_path / "imported", "a card")
        expected = "int8 if it agrees with float32, which has not been checked yet"
        assert shown_precision(tmp_path / "imported") == expected


def shown_precision(model: Path) -> str:
    found: str = json.loads(run("info", model, "--format", "json").out)["precision on a CPU"]
    return found


class TestOtherCommands:
    def test_info_and_tokenize(self, folder: Path) -> None:
        facts = json.loads(run("info", folder, "--format", "json").out)
        assert (facts["task.kind"], facts["model.kind"]) == ("language_model", "decoder_only")
        assert facts["tokenizer"].startswith("characters, ")
        assert "search" in facts
        assert not any("language" in fact for fact in facts)
        assert run("tokenize", folder, "a b").out == "a|␣|b\n"
        assert_refused(run("tokenize", folder, "a b", "--side", "target"), "continues texts, so it has no target text")

    @pytest.mark.parametrize("command", ["translate", "classify", "alternatives", "shortlist", "calibrate"])
    def test_what_needs_another_model_is_refused(self, folder: Path, command: str, tmp_path: Path) -> None:
        file = write_lines(tmp_path / "file", ["a"])
        words: dict[str, list[object]] = {
            "shortlist": ["--source", file, "--target", file],
            "calibrate": ["--source", file],
        }
        ended = run(command, folder, *words.get(command, ["a"]))
        assert_refused(ended, "a model that continues texts; expected one that")

    def test_distill_names_the_key_of_the_recipe(self, folder: Path, tmp_path: Path) -> None:
        student = write_lines(tmp_path / "recipe.toml", ["[data]", 'train = [{ files = ["a.tsv"] }]'])
        ended = run("distill", folder, student, "--run", tmp_path / "run")
        assert_refused(
            ended, r"a language model, which cannot translate; .* set training\.teacher in the student's recipe"
        )


class TestNoisyChannel:
    @pytest.fixture
    def words(self, make_translator: Callable[..., Translator], folder: Path, tmp_path: Path) -> list[object]:
        for name, seed in (("forward", 1), ("backward", 2)):
            make_translator("bpe", seed=seed).bundle.save(tmp_path / name, "# A model\n")
        source = write_lines(tmp_path / "in.txt", ["a bad face", "cafe", "dig", "head"])
        lists = [f"{line}\t-1\t{text}" for line in range(1, 5) for text in ("bad", "cafe", "a head")]
        candidates = write_lines(tmp_path / "candidates.txt", lists)
        models = [tmp_path / "forward", "--language-model", folder, "--channel", tmp_path / "backward"]
        return ["rerank", *models, "--source", source, "--candidates", candidates]

    def test_the_score_is_the_weighted_sum(self, words: list[object], model: LanguageModel, tmp_path: Path) -> None:
        weights = ["--language-model-weight", 0.5, "--channel-weight", 2, "--length-weight", 0.25]
        rows = [line.split("\t") for line in run(*words, *weights).out.splitlines()]
        assert len(rows) == 12
        forward, backward = (headway.load(tmp_path / name) for name in ("forward", "backward"))
        for number, score, text in rows:
            source = ["a bad face", "cafe", "dig", "head"][int(number) - 1]
            (direct,), (channel,) = forward.score([source], [text]), backward.score([text], [source])
            (language,) = model.score([text])
            expected = direct.log_probability + 0.5 * language.log_probability + 2 * channel.log_probability
            assert float(score) == pytest.approx(expected + 0.25 * len(direct.tokens), abs=1e-3)

    def test_a_weight_that_is_tuned_cannot_be_given(self, words: list[object], tmp_path: Path) -> None:
        references = write_lines(tmp_path / "references.txt", ["cafe"] * 4)
        assert_refused(
            run(*words, "--tune", references, "--length-weight", 2), "--length-weight: --tune determines this"
        )

    def test_tuned_weights_are_reported_and_used(self, words: list[object], tmp_path: Path) -> None:
        references = write_lines(tmp_path / "references.txt", ["cafe", "a head", "cafe", "bad"])
        ended = run(*words, "--tune", references)
        first, odd, even = ended.err.splitlines()
        assert first.startswith("weights: --language-model-weight ")
        assert odd.startswith("tuned on odd lines: BLEU ")
        assert even.startswith("held-out even lines: BLEU ")
        assert run(*words, *first.split()[1:]).out == ended.out
        alone = run(*words[:4], *words[6:], "--tune", references)
        assert "--channel-weight 0 " in alone.err.splitlines()[0]

    def test_options_that_do_not_fit_are_refused(self, words: list[object], folder: Path, tmp_path: Path) -> None:
        channel = ["--channel-weight", 1]
        model = tmp_path / "forward"
        refused = {
            "--channel-weight needs --language-model or --channel": ["rerank", model, *words[6:], *channel],
            "--language-model: pass either its weight": [*words, *channel],
            "--channel: pass either its weight": [*words, "--language-model-weight", 1],
            "needs exactly one MODEL": [*words, model, *channel],
            "--length-penalty does not apply with --language-model": [*words, "--length-penalty", 1],
            "--language-model: .* is not a language model": [
                *("rerank", model, "--language-model", model, *words[6:], "--language-model-weight", 1)
            ],
            "--channel-weight needs --channel": [*words[:4], *words[6:], "--language-model-weight", 1, *channel],
            "a candidate is for line 2, but .* has 1 lines": [*words, "--tune", write_lines(tmp_path / "one", ["a"])],
        }
        for message, command in refused.items():
            assert_refused(run(*command), message)
