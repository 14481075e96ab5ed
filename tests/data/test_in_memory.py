"""Examples from memory: every form is the same corpus, and what is no example is refused with its index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data.in_memory import write_examples
from headway.errors import CheckpointError, DataError

PAIRS = ("source", "target")
LABELED = ("text", "label")
SOURCES, TARGETS = ["eins", "zwei\ndrei", ""], ["one", "two \u2028\t three", "\r"]
TRAIN = list(zip(SOURCES, TARGETS, strict=True))


class Frame:
    """What is used of a data frame, as in pandas and polars."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self._columns = list(columns), columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


class HuggingFaceDataset:
    """What is used of a data set, as in the package datasets."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any] | None = None) -> None:
        self.column_names, self.features, self._rows = list(rows[0]), features or {}, rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)


def written(data: Any, folder: Path, columns: tuple[str, ...] = PAIRS, **options: Any) -> list[tuple[str, ...]]:
    write_examples(data, folder / "train.jsonl", columns, "train", **options)
    records = [json.loads(line) for line in (folder / "train.jsonl").read_bytes().splitlines()]
    return [tuple(record[name] for name in columns) for record in records]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: (pair for pair in TRAIN), id="generator"),
        pytest.param(lambda: map(list, TRAIN), id="lists"),
        pytest.param(lambda: (SOURCES, TARGETS), id="two lists"),
        pytest.param(lambda: {"target": TARGETS, "source": SOURCES, "id": SOURCES}, id="columns"),
        pytest.param(lambda: Frame(id=SOURCES, source=SOURCES, target=np.array(TARGETS)), id="frame"),
        pytest.param(lambda: Frame(en=TARGETS, de=SOURCES), id="frame with languages"),
        pytest.param(lambda: [{"source": source, "target": target} for source, target in TRAIN], id="mappings"),
        pytest.param(
            lambda: HuggingFaceDataset([{"source": source, "target": target} for source, target in TRAIN]),
            id="data set",
        ),
        pytest.param(
            lambda: HuggingFaceDataset([{"translation": {"de": source, "en": target}} for source, target in TRAIN]),
            id="data set of translations",
        ),
    ],
)
def test_every_form_of_data_is_the_same_corpus(data: Callable[[], Any], tmp_path: Path) -> None:
    assert written(data(), tmp_path, languages=("de", "en")) == TRAIN


@pytest.mark.parametrize(
    ("columns", "data", "message"),
    [
        (PAIRS, "eins", r"train: got 'eins'; expected an iterable of pairs \(source, target\); set file names"),
        (PAIRS, 3, "train: got 3; expected an iterable"),
        (PAIRS, [], "train: no examples; expected at least one"),
        (PAIRS, [("a", "b"), ("a", None)], r"train\[1\]: the target is None; expected a pair"),
        (PAIRS, [("a", "b"), ("a", 1.5)], r"train\[1\]: the target is 1.5"),
        (PAIRS, [("a", "b"), "ab"], r"train\[1\]: got 'ab'; expected a pair \(source, target\) of strings"),
        (PAIRS, [("a", "b", "c")], r"train\[0\]: got 3 values"),
        (PAIRS, [("a", "b\0")], r"train\[0\]: the target contains \\x00, an invalid character"),
        (PAIRS, [("a\ud800", "b")], r"train\[0\]: the source contains \\ud800"),
        (PAIRS, (["a", "b"], ["c"]), r"train\[1\]: target ends, but source does not; expected equal lengths"),
        (PAIRS, {"de": ["a"], "en": ["b"]}, "train: the columns are de, en; expected source and target; rename"),
        (PAIRS, [{"de": "a", "en": "b"}], r"train\[0\]: the keys are de, en"),
        (PAIRS, {"train": HuggingFaceDataset([{"source": "a"}])}, r"splits \(train\); choose one, such as train=data"),
        (LABELED, [("a", "b"), ("a", None)], r"train\[1\]: the label is None"),
        (LABELED, [(1, "b")], r"train\[0\]: the text is 1"),
        (("text",), ["a", float("nan")], r"train\[1\]: got nan; expected a string"),
        (("text",), "a text", "train: got 'a text'; expected an iterable of strings"),
    ],
)  # fmt: skip
def test_bad_values_are_one_error_with_the_index(
    columns: tuple[str, ...], data: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        written(data, tmp_path, columns)
    assert not list(tmp_path.iterdir())


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    class ClassLabel:
        names = ("bad", "good")

    rows = [{"text": "x", "label": 1}, {"text": "y", "label": np.int64(0)}]
    named = HuggingFaceDataset(rows, {"label": ClassLabel()})
    assert written(named, tmp_path, LABELED) == [("x", "good"), ("y", "bad")]
    assert written(rows, tmp_path, LABELED) == [("x", "1"), ("y", "0")]
    assert written([("x", True), ("y", np.bool_(False))], tmp_path, LABELED) == [("x", "True"), ("y", "False")]


def test_texts_come_in_any_iterable(tmp_path: Path) -> None:
    for data in (["a", "b"], iter("ab"), {"id": [1, 2], "text": ["a", "b"]}, Frame(text=np.array(["a", "b"]))):
        assert written(data, tmp_path, ("text",)) == [("a",), ("b",)]


def test_a_file_that_must_be_kept_is_never_replaced(tmp_path: Path) -> None:
    written(TRAIN, tmp_path)
    before = (tmp_path / "train.jsonl").stat()
    assert written(TRAIN, tmp_path, keep=True) == TRAIN
    with pytest.raises(CheckpointError, match="train differs from the data with which the run started"):
        written(TRAIN[:1], tmp_path, keep=True)
    after = (tmp_path / "train.jsonl").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert written(TRAIN[:1], tmp_path) == TRAIN[:1]
