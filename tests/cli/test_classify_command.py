"""``headway classify``, and ``headway evaluate`` with a classifier: inputs, outputs, user errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import assert_refused, run, write_lines

from headway.evaluation import class_table, confusion_table, evaluate_classes
from headway.predict.classification.classifier import Classifier, load_classifier
from headway.predict.classification.occlusion import occlude

LINES = ["das rote Haus", "ein Baum", "der Baum und das Haus"]


@pytest.fixture(scope="module")
def folder(make_classifier: Callable[..., Classifier], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "labels"
    make_classifier(pooling="attention", max_length=12).bundle.save(folder, "# Card")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Classifier:
    return load_classifier(folder, device="cpu")


@pytest.fixture(scope="module")
def translates(make_translator: Callable[..., object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "translates"
    make_translator().bundle.save(folder, "# Card")  # type: ignore[attr-defined]
    return folder


def stdin(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


class TestClassify:
    def test_lines(self, folder: Path, model: Classifier) -> None:
        ended = run("classify", folder, stdin=stdin(*LINES))
        expected = [f"{each.label}\t{each.probability:.4f}" for each in model.classify(LINES)]
        assert (ended.code, ended.out.splitlines()) == (0, expected)

    def test_one_text(self, folder: Path, model: Classifier) -> None:
        found = model.classify(LINES[0])
        assert run("classify", folder, LINES[0]).out == f"{found.label}\t{found.probability:.4f}\n"

    def test_files(self, folder: Path, tmp_path: Path) -> None:
        source = write_lines(tmp_path / "in.txt", LINES)
        assert run("classify", folder, "-i", source, "-o", tmp_path / "out.txt").out == ""
        assert (tmp_path / "out.txt").read_text(encoding="utf-8") == run("classify", folder, "-i", source).out

    def test_json(self, folder: Path, model: Classifier) -> None:
        (found,) = map(json.loads, run("classify", folder, "--format", "json", LINES[1]).out.splitlines())
        expected = model.classify(LINES[1])
        assert found == {
            "text": LINES[1],
            "label": expected.label,
            "probability": expected.probability,
            "probabilities": expected.probabilities,
            "truncated": False,
        }

    def test_a_text_over_the_limit_is_counted(self, folder: Path) -> None:
        ended = run("classify", folder, "--format", "json", stdin=stdin(*LINES, "sehr langes Wortungetüm " * 5))
        assert [json.loads(line)["truncated"] for line in ended.out.splitlines()][-1] is True
        assert "suspicious lines (--format json shows which): truncated " in ended.err

    def test_explained(self, folder: Path, model: Classifier) -> None:
        text = "das rote Haus und der Baum"
        label, probability, *words = run("classify", folder, "--explain", text).out.rstrip("\n").split("\t")
        why = occlude(model, text)
        assert (label, probability) == (why.label, f"{why.probability:.4f}")
        effects = {part.text: why.probability - part.probability for part in why.parts}
        strongest = sorted(effects, key=lambda word: -abs(effects[word]))[:5]
        assert words == [f"{word}:{effects[word]:+.2f}" for word in strongest]

    def test_explained_in_json(self, folder: Path, model: Classifier) -> None:
        found = json.loads(run("classify", folder, "--explain", "--format", "json", LINES[0]).out)["explanation"]
        why = occlude(model, LINES[0])
        assert (found["label"], [part["text"] for part in found["parts"]]) == (why.label, LINES[0].split())
        assert [part["probability"] for part in found["parts"]] == pytest.approx(
            [part.probability for part in why.parts], abs=1e-5
        )


class TestBadLines:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"", "standard input, line 2: the text is empty"),
            (b"\xff", r"standard input, line 2: byte 1 of the line \(0xFF\) is not UTF-8"),
            (b"a\0b", "standard input, line 2: looks binary"),
        ],
    )
    def test_the_first_ends_it_unless_marked(self, folder: Path, tmp_path: Path, line: bytes, message: str) -> None:
        data = b"das\n" + line + b"\nder\n"
        assert_refused(run("classify", folder, stdin=data, ), message)  # fmt: skip
        assert_refused(run("classify", folder, "-o", tmp_path / "out", stdin=data), message)
        assert not (tmp_path / "out").exists()
        marked = run("classify", folder, "--on-error", "mark", stdin=data)
        assert marked.code == 0
        assert [bool(line) for line in marked.out.splitlines()] == [True, False, True]
        assert "1 of 3 lines failed and are empty in the output" in marked.err
        found = run("classify", folder, "--on-error", "mark", "--format", "json", stdin=data).out.splitlines()
        assert list(json.loads(found[1])) == ["error"]

    def test_mistakes(self, folder: Path, translates: Path, tmp_path: Path) -> None:
        assert_refused(
            run("classify", folder, "das", "-i", tmp_path), "TEXT and --input cannot be combined; use one of them"
        )
        assert_refused(run("classify", translates, "das"), "a model that translates; expected one that classifies")
        assert_refused(run("classify", tmp_path / "gone", "das"), "gone: no such folder")


class TestEvaluate:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        return write_lines(tmp_path / "dev.tsv", ["Haus\tdas rote Haus", "Baum\tein Baum", "Baum\tder Baum und das"])

    def test_the_numbers_are_those_of_the_report(self, folder: Path, model: Classifier, data: Path) -> None:
        found = model.classify(["das rote Haus", "ein Baum", "der Baum und das"])
        report = evaluate_classes(
            [each.label for each in found],
            ["Haus", "Baum", "Baum"],
            model.labels,
            confidences=[each.probability for each in found],
        )
        ended = run("evaluate", folder, "--data", data)
        expected = [*map(str, report.scores), "", *class_table(report).splitlines(), ""]
        assert ended.out.splitlines() == [*expected, *confusion_table(report).splitlines()]
        assert "3 texts classified in" in ended.err
        found_json = json.loads(run("evaluate", folder, "--data", data, "--format", "json").out)
        assert found_json["texts"] == 3
        assert [score["value"] for score in found_json["scores"]] == [score.value for score in report.scores]
        assert found_json["confusion"] == [list(row) for row in report.confusion]

    def test_files_that_it_writes(self, folder: Path, data: Path, tmp_path: Path) -> None:
        run("evaluate", folder, "--data", data, "-o", tmp_path / "labels", "--confusion", tmp_path / "matrix.png")
        texts = stdin("das rote Haus", "ein Baum", "der Baum und das")
        assert (tmp_path / "labels").read_text(encoding="utf-8") == run("classify", folder, stdin=texts).out
        assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")

    def test_other_formats_and_columns(self, folder: Path, data: Path, tmp_path: Path) -> None:
        swapped = write_lines(
            tmp_path / "dev.csv", ["t,l", "das rote Haus,Haus", "ein Baum,Baum", "der Baum und das,Baum"]
        )
        ended = run("evaluate", folder, "--data", swapped, "--fields", "l,t")
        assert ended.out == run("evaluate", folder, "--data", data).out

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "Bam\tdas",
                r"dev.tsv, example 2: the label 'Bam' is not one of the model's labels; did you mean 'Baum'\?",
            ),
            ("Baum\t ", "dev.tsv, example 2: the text is empty"),
            ("\tdas", "dev.tsv, example 2: the label is empty"),
            ("Baum", "dev.tsv, line 2: 1 column, but 2 columns needed"),
        ],
    )
    def test_bad_data(self, folder: Path, tmp_path: Path, line: str, message: str) -> None:
        data = write_lines(tmp_path / "dev.tsv", ["Haus\tdas", line])
        assert_refused(run("evaluate", folder, "--data", data), message)

    def test_a_missing_label_column(self, folder: Path, tmp_path: Path) -> None:
        data = write_lines(tmp_path / "dev.jsonl", ['{"lable": "Haus", "text": "das"}'])
        assert_refused(run("evaluate", folder, "--data", data), r"field 'label' is missing; did you mean 'lable'\?")

    def test_each_form_is_refused_for_the_other_kind(self, folder: Path, translates: Path, data: Path) -> None:
        translation = ("--source", data, "--reference", data)
        assert_refused(
            run("evaluate", folder, *translation),
            "--source does not apply: .* classifies texts; evaluate it with --data F.tsv",
        )
        assert_refused(run("evaluate", folder), "classifies texts; evaluate it with --data F.tsv")
        assert_refused(run("evaluate", folder, "--data", data, "--beam-size", 2), "without a search; leave out search")
        assert_refused(
            run("evaluate", translates, "--data", data),
            "--data does not apply: .* translates; .* --source F --reference F",
        )
        assert_refused(run("evaluate", translates), "translates; pass a test set with --source F --reference F")

    def test_another_kind_of_picture(self, folder: Path, data: Path, tmp_path: Path) -> None:
        ended = run("evaluate", folder, "--data", data, "--confusion", tmp_path / "matrix.bmp")
        assert_refused(ended, "matrix.bmp: expected a picture whose name ends in .png, .svg, .pdf")

    def test_scores_are_printed_even_if_a_picture_cannot_be_written(
        self, folder: Path, data: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        ended = run("evaluate", folder, "--data", data, "--confusion", tmp_path / "file" / "matrix.png")
        assert ended.code == 2
        assert "accuracy" in ended.out
