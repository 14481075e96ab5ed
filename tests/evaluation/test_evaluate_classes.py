"""Scores of labels: worked out by hand, equal to scikit-learn's, with intervals that behave as statistics predicts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError, DataError
from headway.evaluation import ClassificationReport, Score, class_table, confusion_table, evaluate_classes

LABELS = ("cat", "dog", "owl")
TRUTH = ["cat", "cat", "cat", "cat", "dog", "dog", "owl", "owl"]
TAKEN = ["cat", "cat", "cat", "dog", "dog", "owl", "dog", "dog"]


def scores(report: ClassificationReport) -> dict[str, float]:
    return {score.name: score.value for score in report.scores}


class TestByHand:
    def test_everything(self) -> None:
        # cat: 3 of 3 predictions and 3 of 4 texts are right; dog: 1 of 4 and 1 of 2; owl: 0 of 1 and 0 of 2.
        report = evaluate_classes(TAKEN, TRUTH, LABELS, bootstrap=0)
        assert report.confusion == ((3, 1, 0), (0, 1, 1), (0, 2, 0))
        rows = [(each.precision, each.recall, each.f1, each.support) for each in report.classes]
        assert rows[0] == pytest.approx((100, 75, 100 * 2 * 0.75 / 1.75, 4))
        assert rows[1] == pytest.approx((25, 50, 100 * 2 * 0.25 * 0.5 / 0.75, 2))
        assert rows[2] == (0, 0, 0, 2)
        assert scores(report) == pytest.approx({"accuracy": 100 * 4 / 8, "macro F1": 100 * (6 / 7 + 1 / 3 + 0) / 3})
        assert report.labels == LABELS

    def test_a_class_that_nothing_is_of_is_no_part_of_the_mean(self) -> None:
        report = evaluate_classes(["cat", "dog"], ["cat", "cat"], LABELS, bootstrap=0)
        assert scores(report)["macro F1"] == pytest.approx(100 * (2 / 3 + 0) / 2)  # cat and dog; no text is an owl
        owl = report.classes[2]
        assert (owl.precision, owl.recall, owl.f1, owl.support) == (0, 0, 0, 0)

    def test_calibration(self) -> None:
        # Bins of 1/15. Both 0.5s are in one bin: one is right, no gap. 0.9 and 0.92 are in (0.867, 0.933]: one of two
        # is right, a gap of |0.5 - 0.91| for 2/5 of the texts. 1 is in its own bin and right: no gap.
        taken = ["cat", "dog", "cat", "dog", "cat"]
        report = evaluate_classes(taken, ["cat"] * 5, LABELS, confidences=[0.5, 0.5, 0.9, 0.92, 1.0], bootstrap=0)
        assert scores(report)["ECE"] == pytest.approx(100 * 2 / 5 * 0.41)

    def test_the_edge_of_a_bin_is_below(self) -> None:
        # 0.6 = 9/15 ends the ninth bin, 0.601 starts the tenth; in one bin the gaps would cancel to 0.1005.
        report = evaluate_classes(["cat", "dog"], ["cat", "cat"], LABELS, confidences=[0.6, 0.601], bootstrap=0)
        assert scores(report)["ECE"] == pytest.approx(100 * (0.4 + 0.601) / 2)

    def test_sure_and_right_is_calibrated(self) -> None:
        assert scores(evaluate_classes(TRUTH, TRUTH, LABELS, confidences=[1.0] * 8)) == {
            "accuracy": 100,
            "macro F1": 100,
            "ECE": 0,
        }


def drawn(count: int, classes: int, seed: int) -> tuple[list[str], list[str], list[str]]:
    draw = random.Random(seed)
    labels = [f"label {number}" for number in range(classes)]
    truth = draw.choices(labels, k=count)
    return [label if draw.random() < 0.6 else draw.choice(labels) for label in truth], truth, labels


@pytest.mark.parametrize("classes", [2, 5])
def test_agreement_with_scikit_learn(classes: int) -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    taken, truth, labels = drawn(200, classes, classes)
    report = evaluate_classes(taken, truth, labels, bootstrap=0)
    found = scores(report)
    assert found["accuracy"] == pytest.approx(100 * theirs.accuracy_score(truth, taken))
    assert found["macro F1"] == pytest.approx(100 * theirs.f1_score(truth, taken, average="macro"))
    assert [list(row) for row in report.confusion] == theirs.confusion_matrix(truth, taken, labels=labels).tolist()
    columns = theirs.precision_recall_fscore_support(truth, taken, labels=labels)
    ours = zip(*((each.precision / 100, each.recall / 100, each.f1 / 100, each.support) for each in report.classes),
               strict=True)  # fmt: skip
    for our_column, column in zip(ours, columns, strict=True):
        assert list(our_column) == pytest.approx(column.tolist())


class TestIntervals:
    def test_of_a_proportion(self) -> None:
        # 200 of 400 are right: the standard error is 100 * sqrt(0.5 * 0.5 / 400) = 2.5; 95 % are within 1.96 of them.
        taken = ["cat", "dog"] * 200
        accuracy, f1 = evaluate_classes(taken, ["cat"] * 400, LABELS, bootstrap=4000).scores
        assert [accuracy.low, accuracy.high] == pytest.approx([50 - 1.96 * 2.5, 50 + 1.96 * 2.5], abs=0.5)
        # All texts are cats, so macro F1 is half of the F1 of cat, 2 p / (1 + p) for accuracy p, because dog's F1 is 0.
        low, high = (100 * p / (1 + p) for p in (0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025))
        assert [f1.low, f1.high] == pytest.approx([low, high], abs=0.5)

    def test_of_a_perfect_classifier(self) -> None:
        """Wilson's interval of 80 of 80 is from n / (n + z^2) to 1, z = 1.96."""
        truth = ["cat", "dog"] * 40
        accuracy, f1 = evaluate_classes(truth, truth, LABELS, bootstrap=50).scores
        assert [accuracy.low, accuracy.high] == pytest.approx([100 * 80 / (80 + 1.96**2), 100], abs=0.01)
        assert (f1.low, f1.high) == (None, None)
        assert "all bootstrap samples have the same score" in str(f1)

    def test_of_few_texts(self) -> None:
        accuracy, f1 = evaluate_classes(["cat"], ["cat"], LABELS, bootstrap=50).scores
        assert accuracy.low == pytest.approx(100 / (1 + 1.96**2), abs=0.01)
        assert (f1.low, f1.no_interval_reason) == (None, "1 text, but at least 10 are needed")

    @given(st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS), st.floats(0, 1)), min_size=1))
    def test_all_scores_are_in_range(self, texts: list[tuple[str, str, float]]) -> None:
        taken, truth, sure = ([text[place] for text in texts] for place in range(3))
        report = evaluate_classes(taken, truth, LABELS, confidences=sure, bootstrap=40)  # type: ignore[arg-type]
        for score in report.scores:
            assert (score.low is None) is (score.no_interval_reason is not None)
            assert score.low is None or score.high is None or 0 <= score.low <= score.high <= 100 + 1e-9
            assert 0 <= score.value <= 100 + 1e-9
        assert sum(map(sum, report.confusion)) == len(texts)

    def test_signature(self) -> None:
        report = evaluate_classes(TAKEN * 2, TRUTH * 2, LABELS, confidences=[0.5] * 16, bootstrap=50, seed=3)
        drawn = "bs:50|seed:3|"
        starts = [
            "n:16|classes:3|" + rest for rest in ("ci:wilson|version:", f"{drawn}average:macro|", f"{drawn}bins:15|")
        ]
        for score, start in zip(report.scores, starts, strict=True):
            assert score.signature.startswith(start)
        assert str(Score("accuracy", 91.54, "n:8", 90.26, 92.0)) == "accuracy 91.5 [90.3, 92.0] n:8"


class TestTables:
    def test_classes(self) -> None:
        assert class_table(evaluate_classes(TAKEN, TRUTH, LABELS, bootstrap=0)).splitlines() == [
            "class  precision  recall    F1  support",
            "cat        100.0    75.0  85.7        4",
            "dog         25.0    50.0  33.3        2",
            "owl          0.0     0.0   0.0        2",
        ]

    def test_confusion(self) -> None:
        assert confusion_table(evaluate_classes(TAKEN, TRUTH, LABELS, bootstrap=0)).splitlines() == [
            "true \\ predicted  cat  dog  owl",
            "cat                 3    1    0",
            "dog                 0    1    1",
            "owl                 0    2    0",
        ]

    def test_with_many_classes_the_most_confused_ones_are_listed(self) -> None:
        labels = [f"c{number}" for number in range(13)]
        report = evaluate_classes(["c1", "c1", "c2", "c3"], ["c0", "c0", "c12", "c3"], labels, bootstrap=0)
        assert confusion_table(report).splitlines() == ["true  predicted  texts", "c0           c1      2",
                                                        "c12          c2      1"]  # fmt: skip

    def test_a_label_with_a_line_end_stays_in_its_row(self) -> None:
        report = evaluate_classes(["a\nb"], ["a\nb"], ["a\nb", "c"], bootstrap=0)
        assert class_table(report).splitlines()[1].startswith("a b ")


class TestErrors:
    def test_unknown_label(self) -> None:
        with pytest.raises(DataError, match=r"text 2: the true label 'ow' is unknown; did you mean 'owl'\?"):
            evaluate_classes(["cat", "cat"], ["cat", "ow"], LABELS)
        with pytest.raises(DataError, match="text 1: the predicted label 'x' is unknown; known: cat, dog, owl"):
            evaluate_classes(["x"], ["cat"], LABELS)

    def test_lengths(self) -> None:
        with pytest.raises(DataError, match="2 predicted labels but 1 references"):
            evaluate_classes(["cat", "cat"], ["cat"], LABELS)
        with pytest.raises(DataError, match="2 confidences for 1 texts"):
            evaluate_classes(["cat"], ["cat"], LABELS, confidences=[0.1, 0.2])

    def test_nothing(self) -> None:
        with pytest.raises(DataError, match="no predicted labels to score"):
            evaluate_classes([], [], LABELS)

    def test_too_few_samples(self) -> None:
        with pytest.raises(ConfigError, match="bootstrap = 39: expected 0"):
            evaluate_classes(["cat"], ["cat"], LABELS, bootstrap=39)
