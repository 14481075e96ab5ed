"""Occlusion: the probability of a label without each word is that of a text without the word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.errors import ConfigError
from headway.predict import Classifier
from headway.predict.classification.occlusion import MAX_CHARACTERS, MAX_PARTS, occlude

Make = Callable[..., Classifier]


def test_each_word_is_left_out(make_classifier: Make) -> None:
    classifier = make_classifier()
    found = occlude(classifier, " das rote  Haus", "Baum")
    whole, *rest = classifier.classify([" das rote  Haus", "  rote  Haus", " das   Haus", " das rote  "])
    assert found.label == "Baum"
    assert found.probability == pytest.approx(whole.probabilities["Baum"])
    assert [part.text for part in found.parts] == ["das", "rote", "Haus"]
    expected = [each.probabilities["Baum"] for each in rest]
    assert [part.probability for part in found.parts] == pytest.approx(expected, abs=1e-6)


def test_the_label_is_the_most_probable_one_by_default(make_classifier: Make) -> None:
    classifier = make_classifier()
    assert occlude(classifier, "das rote Haus").label == classifier.classify("das rote Haus").label


def test_a_single_word_cannot_be_left_out(make_classifier: Make) -> None:
    assert occlude(make_classifier(), "Haus").parts == ()


@pytest.mark.parametrize("count", [MAX_PARTS, MAX_PARTS + 1, 3 * MAX_PARTS])
def test_words_of_long_texts_are_left_out_in_groups(make_classifier: Make, count: int) -> None:
    words = [f"w{number}" for number in range(count)]
    parts = [part.text for part in occlude(make_classifier(max_length=1000), " ".join(words)).parts]
    assert len(parts) <= MAX_PARTS
    assert " ".join(parts).split() == words


def test_very_long_texts_are_considered_up_to_a_limit(make_classifier: Make) -> None:
    text = "das rote Haus " * MAX_CHARACTERS
    considered = text[:MAX_CHARACTERS].split()
    found = occlude(make_classifier(max_length=MAX_CHARACTERS), text)
    assert " ".join(part.text for part in found.parts).split() == considered


def test_only_what_the_model_reads_is_left_out(make_classifier: Make) -> None:
    classifier = make_classifier("whitespace", max_length=6)  # five words and EOS
    found = occlude(classifier, "das rote Haus und der Baum und das Haus")
    assert [part.text for part in found.parts] == ["das", "rote", "Haus", "und", "der"]


def test_much_space_before_the_first_word(make_classifier: Make) -> None:
    found = occlude(make_classifier("whitespace"), " " * MAX_CHARACTERS + "das Haus")
    assert [part.text for part in found.parts] == ["das", "Haus"]


def test_an_unknown_label_is_refused(make_classifier: Make) -> None:
    with pytest.raises(ConfigError, match=r"unknown label 'Bau'; did you mean 'Baum'\?"):
        occlude(make_classifier(), "das Haus", "Bau")
