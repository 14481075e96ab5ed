"""``headway compare``: systems from files and folders, the table, user errors."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, run, write_lines

from headway.evaluation import compare_labels, compare_translations
from headway.predict import load_translator
from headway.predict.classification.classifier import load_classifier

REFERENCES = [f"the small house number {number} is red and old" for number in range(30)]
WORSE = [line.replace("small", "big") if number % 3 else line for number, line in enumerate(REFERENCES)]
TEXTS = ["das rote Haus", "ein Baum", "der Baum und das Haus"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    lines = {"reference": REFERENCES, "good": REFERENCES, "bad": WORSE, "short": REFERENCES[:5]}
    return {name: write_lines(tmp_path / f"{name}.txt", each) for name, each in lines.items()}


def test_files_are_compared_as_the_functions_compare_their_lines(files: dict[str, Path]) -> None:
    ended = run("compare", files["bad"], files["good"], "--reference", files["reference"], "--format", "json",
                "--samples", 200, "--trials", 300)  # fmt: skip
    assert ended.code == 0, ended
    table = compare_translations(
        {str(files["bad"]): WORSE, str(files["good"]): REFERENCES},
        REFERENCES,
        samples=200,
        trials=300,
        max_differences=5,
    )
    assert json.loads(ended.out) == json.loads(json.dumps(asdict(table)))


def test_the_seed_of_the_tests_is_not_the_seed_of_sampling(files: dict[str, Path]) -> None:
    words = (
        "compare",
        files["bad"],
        files["good"],
        "--reference",
        files["reference"],
        "--samples",
        200,
        "--trials",
        200,
    )
    signatures = [re.findall("seed:\\d+", run(*words, "--test-seed", seed).out) for seed in (1, 2)]
    assert [set(each) for each in signatures] == [{"seed:1"}, {"seed:2"}]


def test_the_table_names_systems_signatures_and_differences(files: dict[str, Path]) -> None:
    ended = run("compare", files["bad"], files["good"], "--reference", files["reference"], "--samples", 200,
                "--trials", 200, "--differences", 2)  # fmt: skip
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    assert " ".join(lines[0].split()) == "system metric score difference [95 %] p (bootstrap) p (randomization)"
    assert sum(line.startswith(str(files["good"])) for line in lines) == 3, "BLEU, chrF and TER"
    assert sum("baseline" in line for line in lines) == 3
    assert sum(line.startswith(("BLEU: ", "chrF2: ", "TER: ")) for line in lines) == 3
    assert sum("reference" in line and line.startswith("line ") for line in lines) == 2


def test_models_translate_the_source(
    files: dict[str, Path], tmp_path: Path, make_translator: Callable[..., Any]
) -> None:
    make_translator().bundle.save(tmp_path / "one", "# Card")
    source, reference = write_lines(tmp_path / "source", TEXTS), write_lines(tmp_path / "reference", TEXTS)
    ended = run("compare", tmp_path / "one", source, "--source", source, "--reference", reference, "--format", "json",
                "--beam-size", 2)  # fmt: skip
    assert ended.code == 0, ended
    translator = load_translator(tmp_path / "one", precision="float32")
    from headway.decode import DecodingOptions

    texts = [each.text for each in translator.translate(TEXTS, DecodingOptions(beam_size=2))]
    expected = compare_translations({str(tmp_path / "one"): texts, str(source): TEXTS}, TEXTS, max_differences=5)
    assert json.loads(ended.out) == json.loads(json.dumps(asdict(expected)))


def test_classifiers_and_files_of_labels(tmp_path: Path, make_classifier: Callable[..., Any]) -> None:
    make_classifier().bundle.save(tmp_path / "one", "# Card")
    data = write_lines(tmp_path / "data.tsv", [f"Haus\t{text}" for text in TEXTS])
    labels = write_lines(tmp_path / "labels", ["Haus\t0.9", "Baum\t0.8", "Haus\t0.7"])
    ended = run("compare", labels, tmp_path / "one", "--data", data, "--format", "json")
    assert ended.code == 0, ended
    found = [each.label for each in load_classifier(tmp_path / "one", device="cpu").classify(TEXTS)]
    expected = compare_labels(
        {str(labels): ["Haus", "Baum", "Haus"], str(tmp_path / "one"): found}, ["Haus"] * 3, max_differences=5
    )
    assert json.loads(ended.out) == json.loads(json.dumps(asdict(expected)))
    assert (
        "no tests: 3 texts, but at least 10 are needed" in run("compare", labels, tmp_path / "one", "--data", data).out
    )
    more, labels = write_lines(tmp_path / "more.tsv", [f"Haus\t{TEXTS[0]}"] * 10), write_lines(labels, ["Haus"] * 10)
    assert "p (mcnemar)" in run("compare", labels, tmp_path / "one", "--data", more).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("good", "bad"), "pass references with --reference F or, for classifiers"),
        (("good", "--reference", "reference"), "expected two or more different systems"),
        (("good", "good", "--reference", "reference"), "expected two or more different systems"),
        (("good", "short", "--reference", "reference"), r"short\.txt has 5 lines and .* has 30; expected a reference"),
        (("good", "bad", "--reference", "reference", "--fields", "1,2"), "--fields is for --data"),
        (("good", "bad", "--data", "reference", "--metric", "bleu"), "--metric is for translations"),
        (("good", "bad", "--data", "reference", "--beam-size", "2"), "a search option is for translations"),
        (("good", "bad", "--reference", "reference", "--source", "good"), "--source is for model folders, but every"),
        (("good", "bad", "--reference", "reference", "--precision", "int8"), "--precision is for model folders, but"),
        (("good", "bad", "--reference", "reference", "--seed", "1"), "--seed is a sampling option; add --sample"),
        (("good", "bad", "--reference", "reference", "--metric", "blue"), "did you mean 'bleu'"),
    ],
)  # fmt: skip
def test_mistakes(files: dict[str, Path], words: tuple[str, ...], message: str) -> None:
    assert_refused(run("compare", *(files.get(word, word) for word in words)), message)


def test_a_model_needs_its_source(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    ended = run("compare", tmp_path / "model", files["good"], "--reference", files["reference"])
    assert_refused(ended, "model is a model folder, which needs the source text; pass it with --source F")


@pytest.mark.parametrize(
    ("name", "options", "tokenization"),
    [("ref.zh", (), "zh"), ("ref.txt", ("--to", "zho_Hans"), "zh"), ("ref.th.gz", (), "char"), ("ref.txt", (), "13a")],
)
def test_files_are_tokenized_for_the_target_language(
    tmp_path: Path, name: str, options: tuple[str, ...], tokenization: str
) -> None:
    lines = ["我们今天去公园散步。", "他昨天买了一本新书。"] * 6
    reference = write_lines(tmp_path / name.removesuffix(".gz"), lines)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(reference.read_bytes()))
    systems = [write_lines(tmp_path / f"{number}", [line[number:] for line in lines]) for number in (1, 2)]
    given = ("--reference", tmp_path / name, *options, "--metric", "bleu", "--trials", "100", "--format", "json")
    ended = run("compare", *systems, *given)
    assert ended.code == 0, ended
    rows = json.loads(ended.out)["rows"]
    assert all(f"tok:{tokenization}|" in row["signature"] for row in rows)
    assert (rows[0]["value"] > 50) is (tokenization != "13a")
    assert ("specify it with --to" in ended.err) is (tokenization == "13a")
