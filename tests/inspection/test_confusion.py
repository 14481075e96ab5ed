"""The picture of a confusion matrix: its colors and numbers match the matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.errors import ConfigError
from headway.evaluation import ClassificationReport, evaluate_classes
from headway.inspection.confusion_matrix import plot_confusion_matrix
from headway.inspection.picture_files import save_picture


def report(classes: int = 3) -> ClassificationReport:
    labels = [f"class ${number}$" for number in range(classes)]  # a $ is a character, not a formula
    truth = [labels[number % classes] for number in range(10 * classes)]
    taken = [labels[(number + (number % 7 == 0)) % classes] for number in range(10 * classes)]
    return evaluate_classes(taken, truth, labels, bootstrap=0)


def test_colors_are_shares_and_numbers_counts() -> None:
    drawn = report()
    axes = plot_confusion_matrix(drawn).axes[0]
    counts = np.array(drawn.confusion)
    shares = 100 * counts / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), shares)
    expected = [f"{counts[place]:,}\n{share:.1f} %" for place, share in np.ndenumerate(shares)]
    assert [text.get_text() for text in axes.texts] == expected
    assert [text.get_text() for text in axes.get_xticklabels()] == list(drawn.labels)
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_a_class_without_texts_has_an_empty_row() -> None:
    drawn = evaluate_classes(["a", "b"], ["a", "a"], ["a", "b"], bootstrap=0)
    assert np.asarray(plot_confusion_matrix(drawn).axes[0].images[0].get_array()).tolist() == [[50, 50], [0, 0]]


@pytest.mark.parametrize("classes", [2, 70])
def test_pictures_of_few_and_many_classes(classes: int, tmp_path: Path) -> None:
    save_picture(plot_confusion_matrix(report(classes)), tmp_path / "matrix.png")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_report_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save_picture(plot_confusion_matrix(report()), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_another_kind_of_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"matrix\.txt: expected a picture whose name ends in \.png, \.svg, \.pdf"):
        save_picture(plot_confusion_matrix(report()), tmp_path / "matrix.txt")


def test_names_without_a_font_cause_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("headway.inspection.picture_files.font_manager.findSystemFonts", list)
    drawn = evaluate_classes(["\U00013000", "b"], ["\U00013000", "b"], ["\U00013000", "b"], bootstrap=0)
    with pytest.warns(UserWarning, match="no installed font contains '\U00013000'") as told:
        save_picture(plot_confusion_matrix(drawn), tmp_path / "matrix.png")
    assert len(told) == 1
