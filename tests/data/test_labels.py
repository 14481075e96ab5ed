"""Labels as tokens, and reading labeled texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from headway.data.encoding import EncodingSpec, SideSpec
from headway.data.labels import LabelEncoder, count_labels, read_labeled_texts
from headway.data.readers import Corpus
from headway.data.store import FilterConfig
from headway.errors import DataError
from headway.text.corpus_encoder import PackedIds, pack_id_bytes


class Letters:
    """A tokenizer in which each letter is a token with the letter's code as id."""

    vocab_size = 1000

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return pack_id_bytes([np.array([ord(letter) for letter in text], np.uint32).tobytes() for text in texts])


class Twice:
    """Encodes each text once as it is and once reversed."""

    num_segmentations = 2

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return Letters().encode([each for text in texts for each in (text, text[::-1])])


def written(folder: Path, name: str, content: str, **keys: object) -> Corpus:
    (folder / name).write_text(content, encoding="utf-8")
    return Corpus.parse({"files": [name], **keys}, "test")


def test_a_label_is_one_token_and_no_padding() -> None:
    packed = LabelEncoder(("no", "yes")).encode(["yes", "no", "yes"])
    assert packed.ids.tolist() == [2, 1, 2]
    assert packed.lengths.tolist() == [1, 1, 1]


def test_a_label_stands_beside_every_segmentation_of_its_text() -> None:
    labels = LabelEncoder(("no", "yes"))
    sides = SideSpec(Letters(), Twice(), suffix_ids=(9,)), SideSpec(labels, LabelEncoder(labels.labels, 2))
    piece = EncodingSpec(sides, None).encode_chunk([("ab", "yes"), ("c", "no")])
    assert piece.tokens["source"].tolist() == [97, 98, 9, 98, 97, 9, 99, 9, 99, 9]
    assert piece.tokens["target"].tolist() == [2, 2, 1, 1]
    assert piece.lengths["target"].tolist() == [1, 1, 1, 1]


def test_long_texts_are_cut_before_their_end_symbol_and_counted() -> None:
    sides = SideSpec(Letters(), prefix_ids=(5,), suffix_ids=(9,), max_length=4), SideSpec(LabelEncoder(("no", "yes")))
    piece = EncodingSpec(sides, FilterConfig(max_length=1 << 40, max_length_ratio=1e12)).encode_chunk(
        [("abcd", "no"), ("ab", "yes"), (" ", "no"), ("a", "no")]
    )
    assert piece.tokens["source"].tolist() == [5, 97, 98, 9, 5, 97, 98, 9, 5, 97, 9]
    assert piece.lengths["source"].tolist() == [4, 4, 3]
    assert (piece.filter_counts.kept, piece.filter_counts.empty, piece.filter_counts.truncated) == (3, 1, 1)
    assert str(piece.filter_counts).endswith("; 1 of them truncated to the model's maximum length")


FORMS = {
    "a.tsv": "yes\tis it?\nno\tit is\n",
    "a.csv": 'id,text,label\n1,is it?,yes\n2,"it is",no\n',
    "a.jsonl": json.dumps({"text": "is it?", "label": "yes"})
    + "\n"
    + json.dumps({"label": "no", "text": "it is"})
    + "\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_every_format_gives_texts_with_labels(name: str, tmp_path: Path) -> None:
    assert list(read_labeled_texts(written(tmp_path, name, FORMS[name]), tmp_path)) == [
        ("is it?", "yes"),
        ("it is", "no"),
    ]


def test_fields_name_label_and_text(tmp_path: Path) -> None:
    corpus = written(tmp_path, "a.csv", "1,is it?,yes\n2,it is,no\n", fields=["3", "2"])
    assert list(read_labeled_texts(corpus, tmp_path)) == [("is it?", "yes"), ("it is", "no")]


def test_labels_are_counted_in_order(tmp_path: Path) -> None:
    corpora = [written(tmp_path, "a.tsv", "b\tx\na\tx\n"), written(tmp_path, "b.tsv", "b\ty\nc\tz\n")]
    assert list(count_labels(corpora, tmp_path).items()) == [("a", 1), ("b", 2), ("c", 1)]
    numbers = written(tmp_path, "n.tsv", "".join(f"{number}\tx\n" for number in (10, 9, 1)))
    assert list(count_labels([numbers], tmp_path)) == ["1", "9", "10"]


def test_labels_may_be_whole_numbers(tmp_path: Path) -> None:
    corpus = written(tmp_path, "a.jsonl", '{"label": 0, "text": "x"}\n{"label": 1, "text": "y"}\n')
    assert list(read_labeled_texts(corpus, tmp_path)) == [("x", "0"), ("y", "1")]


def test_empty_texts_are_no_examples_of_a_label(tmp_path: Path) -> None:
    corpus = written(tmp_path, "a.tsv", "b\tx\nb\t \na\ty\n")
    assert count_labels([corpus], tmp_path) == {"a": 1, "b": 1}
    for rows, message in (
        ("b\tx\nghost\t\nghost\t \n", "a.tsv: all texts of the label ghost are empty"),
        ("b\t\na\t\n", "a.tsv: all texts of the labels b, a are empty"),
    ):
        with pytest.raises(DataError, match=message):
            count_labels([written(tmp_path, "a.tsv", rows)], tmp_path)


def test_white_space_around_a_label_does_not_count(tmp_path: Path) -> None:
    assert count_labels([written(tmp_path, "a.tsv", "b \tx\nb\tx\n a\ty\n")], tmp_path) == {"a": 1, "b": 2}


def test_a_file_with_only_a_header_has_no_examples(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv: no examples"):
        count_labels([written(tmp_path, "a.csv", "label,text\n")], tmp_path)


def test_cells_of_a_csv_may_hold_anything(tmp_path: Path) -> None:
    cells = "\n" + 'label,text\n"a","1, ""2""\n3"\n\nb,' + "x" * 200_000 + "\n"
    examples = list(read_labeled_texts(written(tmp_path, "a.csv", cells), tmp_path))
    assert examples == [('1, "2"\n3', "a"), ("x" * 200_000, "b")]


def test_one_label_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.tsv: every example has the label 'a'; expected at least two labels"):
        count_labels([written(tmp_path, "a.tsv", "a\tx\na\ty\n")], tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "yes\tis it?\n \tit is\n", r"a\.tsv, example 2: the label is empty"),
        (
            "a.tsv",
            "yes\tis it?\nnope\tit is\n",
            r"example 2: the label 'nope' is not one of the model's labels; did you mean 'no'",
        ),
        ("a.tsv", "yes\n", r"a\.tsv, line 1: 1 column, but 2 columns needed"),
        ("a.tsv", "yes\tx\n\n", r"a\.tsv, line 2: blank, but 2 columns needed"),
        ("a.csv", "txt,label\nis it?,yes\n", r"line 1: no column is named 'text'; did you mean 'txt'"),
        ("a.csv", "label,text\nyes\n", r"line 2: 1 column, but 2 needed"),
        ("a.csv", "label,text,text\nyes,a,b\n", r"line 1: several columns are named 'text'"),
        ("a.csv", 'label,text\nyes,"is it?\n', r"line 2: not valid CSV \(unexpected end of data\)"),
        ("a.jsonl", '{"label": "yes"}\n', r"line 1: field 'text' is missing"),
        ("a.jsonl", '{"label": 1.5, "text": "x"}\n', r"line 1: field 'label' is 1\.5; expected a string"),
        ("a.jsonl", '{"label": true, "text": "x"}\n', r"line 1: field 'label' is true; expected a string"),
        ("a.jsonl", '["yes", "x"]\n', r'expected for example \{"label": "\.\.\.", "text": "\.\.\."\}'),
    ],
)
def test_bad_input_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_labeled_texts(written(tmp_path, name, content), tmp_path, ("no", "yes")))
