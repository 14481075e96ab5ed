"""``headway translate``, ``score`` and ``rerank``: options, inputs, pipes, bad lines."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, run, write_lines

from headway.cli import line_io
from headway.corpus.lines import one_line
from headway.corpus.translation import TranslationSettings, TranslationWriter
from headway.decode import DecodingOptions, Sampling
from headway.predict import (
    Candidate,
    Glossary,
    PivotTranslator,
    Source,
    TranslateOptions,
    Translation,
    Translator,
    load_translator,
    trace_translation,
)
from headway.text.visible_tokens import make_visible

Make = Callable[..., Translator]
LINES = ["das rote Haus", "ein Baum", "der Baum und das Haus"]
MARKED = ["das <b>rote</b> Haus &amp; {x}", "<p>ein Baum", "das Haus"]


@pytest.fixture(scope="module")
def folder(make_translator: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    for name, seed in (("one", 1), ("two", 2)):
        make_translator("whitespace", seed=seed).bundle.save(home / name, "# Card")
    make_translator("bpe").bundle.save(home / "bytes", "# Card")
    return home


@pytest.fixture(scope="module")
def model(folder: Path) -> Translator:
    return load_translator(folder / "one")


def echo(source: Source) -> Translation:
    return Translation(source.text, (Candidate(source.text, 0.0, 0.0, (source.text,)),))


def stdin(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def objects(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


class TestMarkup:
    @pytest.mark.parametrize(
        ("words", "keywords"),
        [
            (["--markup", "html"], {"markup": "html"}),
            *(
                pytest.param(*case, marks=pytest.mark.slow)
                for case in (
                    ([], {}),
                    (["--markup", "xml", "--no-protect"], {"markup": "xml", "protect": False}),
                    (["--no-protect"], {"protect": False}),
                    (["--markup", "html", "--workers", 2], {"markup": "html"}),
                )
            ),
        ],
    )
    def test_lines_are_those_of_python(self, folder: Path, words: list[object], keywords: dict[str, Any]) -> None:
        found = run("translate", folder / "bytes", *words, stdin=stdin(*MARKED)).out.splitlines()
        expected = load_translator(folder / "bytes").translate(MARKED, **keywords)
        assert found == [one_line(each.text) for each in expected]


class TestOptions:
    def test_every_field_of_the_options_is_one(self) -> None:
        shown = " ".join(run("translate", "--help").out.split())
        for field in (*DecodingOptions.model_fields, *Sampling.model_fields):
            option = "--sample" if field == "sampling" else "--" + field.replace("_", "-")
            assert f"{option} " in shown, field

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ([], {}),
            (["--beam-size", 3, "--n-best", 2], {"beam_size": 3, "n_best": 2}),
            (
                ["--normalization", "average", "--length-penalty", 0],
                {"normalization": "average", "length_penalty": 0.0},
            ),
            (["--min-length", 2, "--max-length", 9], {"min_length": 2, "max_length": 9}),
            (["--sample"], {"sampling": {}}),
            (["--sample", "--top-k", 3, "--seed", 0], {"sampling": {"top_k": 3, "seed": 0}}),
        ],
    )
    def test_what_is_given_arrives(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[object], expected: dict[str, object]
    ) -> None:
        asked: list[DecodingOptions] = []

        def observed(_self: object, texts: list[Source], options: TranslateOptions, *_: object) -> list[Translation]:
            asked.append(options.decoding)
            return [echo(text) for text in texts]

        monkeypatch.setattr(Translator, "translate_each", observed)
        run("translate", folder / "one", *words, stdin=b"das\n")
        assert asked == [DecodingOptions.parse(expected, "test")]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--top-k", 3], r"--top-k is a sampling option; add --sample"),
            (["--beam-size", 4, "--groups", 3], r"options: groups = 3 does not divide beam_size = 4"),
            (["--diversity", 1], r"options: diversity has no effect without groups; set groups"),
            (["--sample", "--beam-size", 2], r"options: beam_size and sampling cannot be combined"),
            (["--sample", "--temperature", 0], r"sampling\.temperature = 0\.0: .*greater than 0"),
            (["--mbr"], r"--mbr chooses among several candidates; add --n-best"),
            (["--with", "gone"], r"gone: no such folder"),
            (["--alignment-layer", 0], r"--alignment-layer has no effect without --alignment; add --al"),
            (["--alignment", "--alignment-layer", 1], r"alignment layer 1: this model's decoder has 1 blocks"),
        ],
    )
    def test_mistakes(self, folder: Path, words: list[object], message: str) -> None:
        assert_refused(run("translate", folder / "one", *words, stdin=b"das\n"), message)

    def test_models_of_other_tokenizers(self, folder: Path) -> None:
        ended = run("translate", folder / "one", "--with", folder / "bytes", stdin=b"das\n")
        assert_refused(ended, "model 2 of the ensemble and the first have different source tokenizers")

    @pytest.mark.parametrize("words", [[], ["--pivot-candidates", 4], ["--workers", 2]])
    @pytest.mark.slow_but_every(4)
    def test_two_models_through_a_third_language(self, folder: Path, words: list[object]) -> None:
        models = [load_translator(folder / name) for name in ("one", "two")]
        candidates = 4 if "--pivot-candidates" in words else 1
        expected = PivotTranslator(models[0], models[1], pivot_language="en", candidates=candidates).translate(LINES)
        pivot = ["--pivot", folder / "two", "--pivot-language", "en"]
        ended = run("translate", folder / "one", *pivot, *words, "--format", "json", stdin=stdin(*LINES))
        assert [(each["text"], each["pivot"]) for each in objects(ended.out)] == [
            (each.text, each.candidates[0].pivot) for each in expected
        ]
        ended = run("translate", folder / "one", "--pivot", folder / "two", stdin=b"das\n")
        assert_refused(ended, "the first model translates into en, but the second one from de")
        ended = run("translate", folder / "one", "--pivot-candidates", 2, stdin=b"das\n")
        assert_refused(ended, "need --pivot")

    def test_an_ensemble(self, folder: Path) -> None:
        both = Translator.ensemble([load_translator(folder / name) for name in ("one", "two")])
        ended = run("translate", folder / "one", "--with", folder / "two", stdin=stdin(*LINES))
        assert ended.out.splitlines() == [found.text for found in both.translate(LINES)]

    def test_a_model_that_searches_in_its_own_form_is_reported_once(
        self, make_translator: Make, folder: Path, tmp_path: Path
    ) -> None:
        make_translator("whitespace", score="dot").bundle.save(tmp_path / "dot", "# Card")
        ended = run("translate", tmp_path / "dot", stdin=stdin("das Haus", "der Baum"))
        assert ended.code == 0
        assert ended.err.startswith("headway: score = 'dot' has no form that is optimized for search ")
        assert ended.err.count("its own form") == 1
        assert "its own form" not in run("translate", folder / "one", stdin=stdin("das Haus")).err

    def test_the_guard_can_be_left_out(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[bool] = []

        def observed(self: Translator, texts: list[Source], *_: object, **__: object) -> list[Translation]:
            seen.append(self.avoid_flagged)
            return [echo(text) for text in texts]

        monkeypatch.setattr(Translator, "translate_each", observed)
        for words in ([], ["--no-guard"]):
            run("translate", folder / "one", *words, stdin=b"das\n")
        assert seen == [True, False]


class TestPhrases:
    def test_for_all_lines(self, folder: Path, model: Translator) -> None:
        words = ["--prefix", "ein", "--include", "Baum und|und der", "--ban", "rote", "--max-length", 7]
        ended = run("translate", folder / "one", *words, stdin=stdin(*LINES))
        sources = [Source(line, "ein", (("Baum und", "und der"),), ("rote",)) for line in LINES]
        expected = model.translate(sources, DecodingOptions(max_length=7))
        assert ended.out.splitlines() == [found.text for found in expected]
        assert all(
            re.match(r"ein\b.*(Baum und|und der)", line) and "rote" not in line for line in ended.out.splitlines()
        )

    def test_for_each_line(self, folder: Path, model: Translator) -> None:
        records: list[dict[str, object]] = [
            {"text": "das Haus", "prefix": "ein", "banned": ["rote"]},
            {"text": "das Haus", "include": ["grüne", ["Baum", "und"]]},
            {"text": ""},
        ]
        words = ["--input-format", "jsonl", "--max-length", 6]
        ended = run("translate", folder / "one", *words, stdin=stdin(*map(json.dumps, records)))
        sources = [
            Source("das Haus", prefix="ein", banned=("rote",)),
            Source("das Haus", include=("grüne", ("Baum", "und"))),
            Source(""),
        ]
        expected = model.translate(sources, DecodingOptions(max_length=6))
        assert ended.out.splitlines() == [found.text for found in expected]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("das", r"line 1: not valid JSON"),
            ('{"text": "a", "ban": []}', r"line 1: unknown key 'ban'; did you mean 'banned'"),
            ("{}", r"line 1: key 'text' is missing"),
            ("[1]", r"line 1: expected an object with the key 'text', got '\[1\]'"),
            ("null", r"line 1: expected an object with the key 'text', got 'null'"),
        ],
    )
    def test_bad_records(self, folder: Path, line: str, message: str) -> None:
        assert_refused(run("translate", folder / "one", "--input-format", "jsonl", stdin=stdin(line)), message)


class TestGlossaries:
    @pytest.mark.slow
    def test_apply_to_lines_and_are_reported(self, folder: Path, model: Translator, tmp_path: Path) -> None:
        write_lines(tmp_path / "terms.csv", ["rote,grüne|und", "Baum,Haus", '"rote Haus",Baum', "nie,das"])
        words = ["--glossary", tmp_path / "terms.csv", "--max-length", 7]
        ended = run("translate", folder / "one", *words, stdin=stdin(*LINES))
        glossary = Glossary.load(tmp_path / "terms.csv")
        expected = model.translate(LINES, DecodingOptions(max_length=7), glossary=glossary)
        assert ended.out.splitlines() == [found.text for found in expected]
        assert ended.err.splitlines()[-1] == "headway: glossary terms met: 3 of 3"
        shown = objects(run("translate", folder / "one", *words, "--format", "json", stdin=stdin(*LINES)).out)
        assert shown[0]["glossary"] == [{"source": "rote Haus", "targets": ["Baum"], "met": True}]
        assert [len(line["glossary"]) for line in shown] == [1, 1, 1]  # type: ignore[arg-type]
        shared = run("translate", folder / "one", *words, "--workers", 2, stdin=stdin(*LINES))
        assert (shared.out, shared.err) == (ended.out, ended.err)

    def test_unmet_phrases_are_listed(self, folder: Path, tmp_path: Path) -> None:
        write_lines(tmp_path / "terms.tsv", ["das\tund und"])
        words = ["--glossary", tmp_path / "terms.tsv", "--max-length", 4, "--no-repeat-ngram", 1]
        ended = run("translate", folder / "one", *words, stdin=stdin(*LINES))
        assert "headway: glossary terms met: 0 of 2; not met: das -> und und (2x)" in ended.err
        assert "glossary not met 2" in ended.err

    def test_that_are_wrong_are_refused_with_their_line(self, folder: Path, tmp_path: Path) -> None:
        write_lines(tmp_path / "terms.tsv", ["das\tder", "das"])
        ended = run("translate", folder / "one", "das", "--glossary", tmp_path / "terms.tsv")
        assert_refused(ended, "terms.tsv, line 2: 1 column; expected a source phrase")
        write_lines(tmp_path / "terms.tsv", ["das\tder", "rote\tQuark"])
        ended = run("translate", folder / "one", "das", "--glossary", tmp_path / "terms.tsv")
        assert_refused(ended, "terms.tsv, line 2: 'Quark' contains characters or words that this model's vocabulary")


class TestOutput:
    def test_json_has_everything(self, folder: Path, model: Translator) -> None:
        words = ["--format", "json", "--alignment", "--n-best", 2, "--include", "grüne", "--max-length", 6]
        ended = run("translate", folder / "one", *words, stdin=stdin(LINES[0]))
        options = DecodingOptions(n_best=2, max_length=6)
        (found,) = model.translate([Source(LINES[0], include=("grüne",))], options, alignment=True)
        (row,) = objects(ended.out)
        assert row["source"] == LINES[0]
        for each, candidate in zip(row["candidates"], found.candidates, strict=True):  # type: ignore[call-overload]
            assert each["text"] == candidate.text
            assert each["tokens"] == list(candidate.tokens)
            assert each["token_log_probabilities"] == pytest.approx(candidate.token_log_probabilities, abs=1e-4)
            assert (each["flags"], each["unmet"], each["banned"]) == (list(candidate.flags), [], [])
            assert candidate.alignment is not None
            assert [tuple(pair) for pair in each["alignment"]["pairs"]] == list(candidate.alignment.pairs)
            assert each["words"]["source_words"] == LINES[0].split()
        assert row["text"] == row["candidates"][0]["text"]  # type: ignore[index]

    def test_alignment_in_text(self, folder: Path, model: Translator) -> None:
        ended = run("translate", folder / "one", "--alignment", stdin=stdin(*LINES))
        for line, found in zip(ended.out.splitlines(), model.translate(LINES, alignment=True), strict=True):
            text, pairs = line.split("\t")
            assert text == found.text
            assert found.alignment is not None
            assert {tuple(map(int, pair.split("-"))) for pair in pairs.split()} == set(found.alignment.pairs)

    def test_a_tab_in_a_translation_is_no_column(self, model: Translator) -> None:
        found = Translation("x", (Candidate("a\tb\nc", -1.0, -1.0, ("a",)),))
        settings = [TranslationSettings(model="", search=DecodingOptions(n_best=n_best)) for n_best in (2, 1)]
        assert [TranslationWriter(model, one).format_lines(7, Source("x"), found) for one in settings] == [
            "7\t-1.0000\ta b c\n",
            "a\tb c\n",
        ]

    def test_minimum_bayes_risk(self, folder: Path) -> None:
        words = ["--sample", "--n-best", 5, "--max-length", 5, "--mbr"]
        ended = run("translate", folder / "one", *words, "--format", "json", stdin=stdin(*LINES))
        for row in objects(ended.out):
            utilities = [each["utility"] for each in row["candidates"]]  # type: ignore[attr-defined]
            assert utilities == sorted(utilities, reverse=True)
        plain = run("translate", folder / "one", *words, stdin=stdin(*LINES))
        assert plain.out.splitlines() == [row["text"] for row in objects(ended.out)]

    def test_flags_are_counted_on_standard_error(self, folder: Path) -> None:
        ended = run("translate", folder / "one", "--no-guard", "--max-length", 1, stdin=stdin(*LINES))
        flagged = objects(
            run(
                "translate", folder / "one", "--no-guard", "--max-length", 1, "--format", "json", stdin=stdin(*LINES)
            ).out
        )
        count = sum("truncated" in row["flags"] for row in flagged)  # type: ignore[operator]
        assert count
        assert ended.err == f"headway: suspicious lines (--format json shows which): truncated {count}\n"


class TestTrace:
    def test_the_lines_are_those_of_python(self, folder: Path, model: Translator) -> None:
        how = TranslateOptions(decoding=DecodingOptions(beam_size=2, max_length=4))
        traced = [trace_translation(model, line, how) for line in LINES[:2]]
        expected = [f"{each.searches[0]}\nTranslation: {each.translation.text}\n" for each in traced]
        words = ["--trace", "--beam-size", 2, "--max-length", 4]
        assert run("translate", folder / "one", *words, stdin=stdin(*LINES[:2])).out == "\n".join(expected)
        assert expected[0].startswith("Encoder input: das rote Haus <eos>\nStep 1, beam 1 (log P 0.000): <bos> → ")
        rows = objects(run("translate", folder / "one", *words, "--format", "json", stdin=stdin(*LINES[:2])).out)
        assert [row["text"] for row in rows] == [each.translation.text for each in traced]
        recorded = json.loads(json.dumps([[asdict(search) for search in each.searches] for each in traced]))
        assert [row["trace"] for row in rows] == recorded

    @pytest.mark.slow
    def test_a_line_that_fails_keeps_its_place(self, folder: Path) -> None:
        ended = run("translate", folder / "one", "--trace", "--on-error", "mark", stdin=b"das\n\xff\nein\n")
        assert ended.code == 0
        blocks = ended.out.split("Encoder input: ")
        assert [block.partition(" ")[0] for block in blocks] == ["", "das", "ein"]

    @pytest.mark.parametrize(
        "words",
        [
            ["--alignment"],
            *(
                pytest.param(words, marks=pytest.mark.slow)
                for words in (["--mbr", "--n-best", 2], ["--workers", 2], ["--pivot", "two"], ["-i", "a.docx"])
            ),
        ],
    )
    def test_what_it_does_not_show_is_refused(self, folder: Path, words: list[object]) -> None:
        output = ["-o", "b.docx"] if "-i" in words else []
        ended = run("translate", folder / "one", "--trace", *words, *output, stdin=b"das\n")
        name = "a document" if "-i" in words else words[0]
        assert_refused(ended, f"--trace and {name} cannot be combined; leave one of them out")


class TestBadLines:
    LINES = b"das Haus\n\xff\n" + b"das " * 300 + b"\nein\0Haus\nein Baum\n"

    def test_stop_is_the_default(self, folder: Path) -> None:
        assert_refused(
            run("translate", folder / "one", stdin=self.LINES), r"standard input, line 2: byte 1 .* not UTF-8"
        )

    @pytest.mark.parametrize("from_file", [True, False])
    def test_mark(self, make_translator: Make, folder: Path, tmp_path: Path, from_file: bool) -> None:
        """A letter with 150 accents is too long for a byte-level model, and it cannot be split."""
        content = self.LINES.replace(b"das " * 300, b"x" + "\u0301".encode() * 150)
        (tmp_path / "in.txt").write_bytes(content)
        words = ["-i", tmp_path / "in.txt"] if from_file else []
        ended = run("translate", folder / "bytes", "--on-error", "mark", *words, stdin=b"" if from_file else content)
        assert ended.code == 0
        good = load_translator(folder / "bytes").translate(["das Haus", "ein Baum"])
        assert ended.out == f"{good[0].text}\n\n\n\n{good[1].text}\n"
        place = tmp_path / "in.txt" if from_file else "standard input"
        told = [line for line in ended.err.splitlines() if "suspicious lines" not in line]
        assert [line.split(": ")[1] for line in told[:-1]] == [f"{place}, line {number}" for number in (2, 3, 4)]
        assert [re.search(r"not UTF-8|with 302 tokens|NUL", line) is not None for line in told[:-1]] == [True] * 3
        assert told[-1] == "headway: 3 of 5 lines failed and are empty in the output"

    def test_what_search_would_refuse_is_marked(self, folder: Path) -> None:
        lines = ['{"text": "das", "include": ["Haus"], "banned": ["Haus"]}', '{"text": "das"}']
        words = ["--input-format", "jsonl", "--on-error", "mark"]
        ended = run("translate", folder / "one", *words, stdin=stdin(*lines))
        assert (ended.code, ended.out.splitlines()[0], len(ended.out.splitlines())) == (0, "", 2)
        assert "standard input, line 1: included phrase 1 cannot be met" in ended.err

    def test_mark_in_json_and_in_lists(self, folder: Path) -> None:
        words = ["--on-error", "mark", "--n-best", 2]
        rows = objects(run("translate", folder / "one", *words, "--format", "json", stdin=b"das\n\xff\ndas\n").out)
        assert [set(row) == {"error"} for row in rows] == [False, True, False]
        listed = run("translate", folder / "one", *words, stdin=b"das\n\xff\ndas\n").out.splitlines()
        assert [line.split("\t")[0] for line in listed] == ["1", "1", "2", "3", "3"]
        assert listed[2] == "2\t\t"


class TestStreams:
    def test_windows_follow_what_arrives(self) -> None:
        class Pipe(BufferedIOBase):
            """Return the data of one write."""

            def __init__(self, *chunks: bytes) -> None:
                self.chunks = iter(chunks)

            def read1(self, size: int = -1) -> bytes:
                return next(self.chunks, b"")

        pipe = Pipe(b"a\n", b"b\nc", b"", b"never")
        assert list(line_io._arriving(pipe, 1)) == [b"a", b"b", b"c"]
        assert list(line_io._arriving(Pipe(b"a\nb\n", b"c", b"d", b"e\n\n"), 1)) == [b"a\nb", b"cde\n"]
        assert list(line_io._arriving(Pipe(), 1)) == []

    def test_windows_are_bounded_in_lines_and_bytes(self) -> None:
        sizes = [len(window) for window in line_io._batches((b"x" for _ in range(5000)), 1)]
        assert sizes == [2048, 2048, 904]
        assert [len(window) for window in line_io._batches([b"x" * (1 << 19)] * 5, 1)] == [2, 2, 1]
        assert [len(window) for window in line_io._batches([b"x" * (1 << 19)] * 5, 2)] == [4, 1]

    @pytest.mark.slow
    def test_an_answer_before_the_writer_has_closed(self, folder: Path) -> None:
        command = [sys.executable, "-m", "headway", "translate", str(folder / "one"), "--beam-size", "1"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        expected = run("translate", folder / "one", "--beam-size", 1, stdin=stdin(*LINES)).out.splitlines(keepends=True)
        for line, answer in zip(LINES, expected, strict=True):
            process.stdin.write(stdin(line))
            process.stdin.flush()
            assert process.stdout.readline().decode() == answer  # this would block if the command read ahead
        process.stdin.close()
        assert process.stdout.read() == b""
        process.stdout.close()
        assert process.wait(60) == 0

    @pytest.mark.slow
    def test_memory_is_flat_over_20_000_lines(self, folder: Path, tmp_path: Path) -> None:
        """Peak memory does not depend on the number of lines: it is reached after two blocks of lines."""
        draw = random.Random(0)
        lines = [
            " ".join(draw.choices(["das", "rote", "Haus", "ein", "Baum", "der", "und"], k=draw.randint(1, 6)))
            for _ in range(20_000)
        ]
        peaks = []
        for count in (4_096, len(lines)):
            source, output = write_lines(tmp_path / "in.txt", lines[:count]), tmp_path / "out.txt"
            words = ["translate", folder / "one", "-i", source, "-o", output, "--beam-size", 1, "--max-length", 3]
            with subprocess.Popen([sys.executable, "-m", "headway", *map(str, words)]) as child:
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
            assert child.returncode == 0
            assert output.read_bytes().count(b"\n") == count
            peaks.append(usage.ru_maxrss / 1024)
        assert peaks[1] < peaks[0] + 20, f"{peaks} MiB"


@pytest.fixture
def pairs(tmp_path: Path) -> list[object]:
    source = write_lines(tmp_path / "a.de", LINES)
    target = write_lines(tmp_path / "a.en", ["ein Haus", "", "das"])
    return ["--source", source, "--target", target]


class TestScore:
    def test_each_pair(self, folder: Path, model: Translator, pairs: list[object]) -> None:
        expected = model.score(LINES, ["ein Haus", "", "das"])
        ended = run("score", folder / "one", *pairs)
        assert [line.split("\t") for line in ended.out.splitlines()] == [
            [f"{each.log_probability:.4f}", str(len(each.tokens))] for each in expected
        ]
        assert re.fullmatch(r"3 pairs, perplexity [\d.e+]+ over 6 tokens, EOS included, in float32\n", ended.err)
        rows = objects(run("score", folder / "one", *pairs, "--format", "json").out)
        for row, each in zip(rows, expected, strict=True):
            assert row["log_probability"] == pytest.approx(each.log_probability, abs=1e-4)
            assert row["token_log_probabilities"] == pytest.approx(each.token_log_probabilities, abs=1e-4)
        shown = run("score", folder / "one", *pairs, "--tokens").out.splitlines()
        assert re.fullmatch(r"-[\d.]+\t2\tein:-[\d.]+ Haus:-[\d.]+ <eos>:-[\d.]+", shown[0])

    def test_files_of_different_lengths(self, folder: Path, pairs: list[object], tmp_path: Path) -> None:
        write_lines(tmp_path / "a.en", ["ein"])
        assert_refused(
            run("score", folder / "one", *pairs, "-o", tmp_path / "out"), r"a\.de has a line 2, but .*a\.en does not"
        )
        assert not (tmp_path / "out").exists()


class TestAlternatives:
    def test_are_those_of_the_model(self, folder: Path, model: Translator) -> None:
        expected = model.alternatives("das rote Haus", "ein", count=3)
        listed = run("alternatives", folder / "one", "das rote Haus", "ein", "--count", 3).out.splitlines()
        for line, each in zip(listed, expected, strict=True):
            token, probability = line.split("\t")
            assert token == make_visible(each.token)
            assert float(probability) == pytest.approx(math.exp(each.log_probability), abs=1e-4)
        assert objects(
            run("alternatives", folder / "one", "das rote Haus", "ein", "-n", 3, "--format", "json").out
        ) == [{"token": each.token, "log_probability": pytest.approx(each.log_probability)} for each in expected]

    def test_at_the_start(self, folder: Path, model: Translator) -> None:
        found = objects(run("alternatives", folder / "one", "das rote Haus", "--format", "json").out)
        assert [each["token"] for each in found] == [each.token for each in model.alternatives("das rote Haus")]

    def test_all_where_there_are_fewer(self, folder: Path, model: Translator) -> None:
        ended = run("alternatives", folder / "one", "das", "--count", 1_000_000)
        assert len(ended.out.splitlines()) == model.bundle.target_tokenizer.vocab_size
        assert sum(float(line.split("\t")[1]) for line in ended.out.splitlines()) == pytest.approx(1, abs=0.01)


class TestRerank:
    @pytest.fixture
    def lists(self, folder: Path, tmp_path: Path) -> list[object]:
        source = write_lines(tmp_path / "in.txt", LINES)
        words = ["-i", source, "--n-best", 4, "--max-length", 5, "--precision", "float32"]
        assert run("translate", folder / "one", *words, "-o", tmp_path / "nbest.txt").code == 0
        return ["--source", source, "--candidates", tmp_path / "nbest.txt"]

    def test_by_the_model_that_made_them_they_stay(self, folder: Path, lists: list[object], tmp_path: Path) -> None:
        """The scores equal the scores of the search."""
        before, after = (
            {(number, text): float(score) for number, score, text in (line.split("\t") for line in out.splitlines())}
            for out in ((tmp_path / "nbest.txt").read_text(encoding="utf-8"), run("rerank", folder / "one", *lists).out)
        )
        assert len(before) == 4 * len(LINES)
        assert after == pytest.approx(before, abs=2e-4)

    def test_by_several_models(self, folder: Path, lists: list[object]) -> None:
        one, two, both, none = (
            {
                tuple(line.split("\t")[::2]): float(line.split("\t")[1])
                for line in run("rerank", *words, *lists).out.splitlines()
            }
            for words in (
                [folder / "one"],
                [folder / "two"],
                [folder / "one", folder / "two", "--weight", 0.5, "--weight", 2],
                [folder / "one", folder / "two", "--weight", 1, "--weight", 0],
            )
        )
        for key, value in both.items():
            assert value == pytest.approx(0.5 * one[key] + 2 * two[key], abs=2e-4)
        assert none == one

    def test_by_agreement(self, lists: list[object]) -> None:
        words = ["rerank", "--mbr", *lists[2:]]
        rows = [line.split("\t") for line in run(*words).out.splitlines()]
        for number in ("1", "2", "3"):
            scores = [float(score) for line, score, _ in rows if line == number]
            assert scores == sorted(scores, reverse=True)
        best = run(*words, "--best").out.splitlines()
        assert best == [next(text for line, _, text in rows if line == number) for number in ("1", "2", "3")]
        assert [row["text"] for row in objects(run(*words, "--format", "json").out)] == best

    def test_mistakes(self, folder: Path, lists: list[object], tmp_path: Path) -> None:
        assert_refused(run("rerank", *lists), "pass either one or more model folders, or --mbr")
        assert_refused(
            run("rerank", folder / "one", "--mbr", *lists), "pass either one or more model folders, or --mbr"
        )
        assert_refused(run("rerank", folder / "one", *lists[2:]), "pass its file with --source")
        assert_refused(run("rerank", folder / "one", "--weight", 1, "--weight", 1, *lists), "2 weights for 1 models")
        (tmp_path / "nbest.txt").write_text("1\t-0.5\tdas\n4\t-0.5\tdas\n", encoding="utf-8")
        assert_refused(run("rerank", folder / "one", *lists), r"a candidate is for line 4, but .*in\.txt has 3 lines")
        (tmp_path / "nbest.txt").write_text("2\t-0.5\tdas\n1\t-0.5\tdas\n", encoding="utf-8")
        assert_refused(run("rerank", "--mbr", *lists[2:]), "candidates for line 1 follow candidates for line 2; sort")
        (tmp_path / "nbest.txt").write_text("1\t-0.5\tdas\n3\t-0.5\tdas\n", encoding="utf-8")
        assert_refused(run("rerank", "--mbr", "--best", *lists[2:]), "for line 2, got candidates for line 3")
        assert run("rerank", "--mbr", *lists[2:]).out == "1\t100.0000\tdas\n3\t100.0000\tdas\n"
        for words in (["--weight", 2], ["--length-penalty", 0], ["--to", "en"], ["--from", "de"], lists[:2]):
            assert_refused(run("rerank", "--mbr", *words, *lists[2:]), rf"{words[0]} applies to models, but --mbr")
        assert_refused(run("rerank", "--mbr", "--best", "--format", "json", *lists[2:]), "--best writes lines of text")
        for wrong in ("1\tnan\tdas\n", "1\tinf\tdas\n"):
            (tmp_path / "nbest.txt").write_text(wrong, encoding="utf-8")
            assert_refused(run("rerank", "--mbr", *lists[2:]), "line 1: expected line number, score and text")
        (tmp_path / "nbest.txt").write_text("das\n", encoding="utf-8")
        assert_refused(
            run("rerank", folder / "one", *lists), r"nbest\.txt, line 1: expected line number, score and text"
        )


class TestWorkers:
    @pytest.mark.slow
    def test_they_write_what_one_would(self, folder: Path, tmp_path: Path) -> None:
        write_lines(tmp_path / "in", LINES * 40)
        asked = ("translate", folder / "one", "-i", tmp_path / "in", "--alignment", "--precision", "float32")
        alone, shared = run(*asked), run(*asked, "--workers", 2)
        assert (shared.code, shared.out) == (0, alone.out)
        assert len(alone.out.splitlines()) == 40 * len(LINES)

    @pytest.mark.slow
    def test_what_they_cannot_load(self, tmp_path: Path) -> None:
        assert_refused(run("translate", tmp_path / "nothing", "das", "--workers", 2), "nothing: ")
