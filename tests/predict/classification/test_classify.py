"""Text to label: one by one or together, in order, truncated if too long, and with clear errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import WORDS

from headway.errors import BundleError, DataError, HeadwayError
from headway.predict.classification.classifier import Classification, Classifier, load_classifier
from headway.text.base import EOS

Make = Callable[..., Classifier]


def texts(count: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(count)]


def by_hand(classifier: Classifier, text: str) -> Classification:
    """Classify in a second way, with only the tokenizer and the model."""
    bundle = classifier.bundle
    ids = bundle.tokenizer.encode(text)
    limit = bundle.model.max_length
    with torch.inference_mode():
        (row,) = bundle.model(torch.tensor([[*ids[: limit - 1], EOS]])).softmax(1).tolist()
    best = row.index(max(row))
    probabilities = dict(zip(bundle.labels, row, strict=True))
    return Classification(bundle.labels[best], row[best], probabilities, len(ids) + 1 > limit)


def assert_same(found: Classification | HeadwayError, expected: Classification) -> None:
    assert isinstance(found, Classification)
    assert (found.label, found.truncated) == (expected.label, expected.truncated)
    assert found.probability == pytest.approx(expected.probability, abs=1e-5)
    assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)


@pytest.mark.parametrize("kind", ["bpe", "characters", "whitespace", "words"])
@pytest.mark.parametrize("max_tokens", [1, 50, 4096])
def test_together_in_order_as_one_by_one(make_classifier: Make, kind: str, max_tokens: int) -> None:
    classifier = Classifier(make_classifier(kind).bundle, max_batch_tokens=max_tokens)
    sources = [*texts(40), "das  rote\tHaus ", "ünbekannt 😀"]
    found = classifier.classify(sources)
    for text, each in zip(sources, found, strict=True):
        assert_same(each, by_hand(classifier, text))
    assert sum(found[0].probabilities.values()) == pytest.approx(1)
    assert any(each.truncated for each in found) == (kind == "characters")
    assert_same(classifier.classify(sources[3]), found[3])
    assert classifier.classify([]) == []


def test_a_model_that_pads_all_alike(make_classifier: Make) -> None:
    classifier = make_classifier(masked=False, pad_to_max_length=True, pooling="last", norm="none", residual=False)
    for text, each in zip(texts(10), classifier.classify(texts(10)), strict=True):
        assert_same(each, by_hand(classifier, text))


def test_exactly_the_limit_is_not_cut(make_classifier: Make) -> None:
    classifier = make_classifier("whitespace", max_length=5)
    four, five = "das rote Haus und", "das rote Haus und der"
    assert [each.truncated for each in classifier.classify([four, five])] == [False, True]
    assert classifier.classify(five).probabilities == pytest.approx(classifier.classify(four).probabilities)


def test_batches_stay_within_the_budget(make_classifier: Make) -> None:
    classifier, seen = make_classifier("whitespace"), list[torch.Size]()
    classifier.max_batch_tokens = 40
    classifier.bundle.model.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape))
    classifier.classify(texts(50))
    assert sum(shape[0] for shape in seen) == 50
    assert all(shape[0] * shape[1] <= 40 for shape in seen)
    assert len(seen) < 25
    assert [shape[1] for shape in seen] == sorted(shape[1] for shape in seen)


class TestStream:
    def test_reads_ahead_only_so_far(self, make_classifier: Make) -> None:
        classifier, read = make_classifier("whitespace"), [0]

        def endless() -> Iterator[str]:
            while True:
                read[0] += 1
                yield WORDS[read[0] % len(WORDS)]

        stream = classifier.classify_lines(endless())
        found = [next(stream) for _ in range(3)]
        assert read[0] <= 2048
        for number, each in enumerate(found, start=1):
            assert_same(each, by_hand(classifier, WORDS[number]))

    def test_an_error_has_its_line(self, make_classifier: Make) -> None:
        with pytest.raises(DataError, match="line 2: the text is empty"):
            list(make_classifier().classify_lines(["das", " "]))


class TestErrors:
    @pytest.mark.parametrize("text", ["", " ", "\t\u2003"])
    def test_empty(self, make_classifier: Make, text: str) -> None:
        with pytest.raises(DataError, match=r"^the text is empty; expected at least one character"):
            make_classifier().classify(text)
        with pytest.raises(DataError, match="text 2: the text is empty"):
            make_classifier().classify(["das", text])

    def test_half_a_character(self, make_classifier: Make) -> None:
        with pytest.raises(DataError, match=r"^character 2: lone surrogate U\+D800"):
            make_classifier().classify("a\ud800")

    def test_one_that_fails_stops_no_other(self, make_classifier: Make) -> None:
        classifier = make_classifier()
        found = classifier.classify_each(["das", "", "der", "\udfff"])
        assert_same(found[0], by_hand(classifier, "das"))
        assert_same(found[2], by_hand(classifier, "der"))
        assert [isinstance(each, DataError) for each in found] == [False, True, False, True]
        assert all(isinstance(each, DataError) for each in classifier.classify_each(["", " "]))


class TestFolder:
    def test_saved_and_loaded_it_is_the_same(self, make_classifier: Make, tmp_path: Path) -> None:
        classifier = make_classifier(pooling="attention")
        classifier.bundle.save(tmp_path / "model", "# Card")
        again = load_classifier(tmp_path / "model", device="cpu")
        assert again.labels == ("Haus", "Baum", "mit Leerzeichen")
        assert again.classify(texts(5)) == classifier.classify(texts(5))

    def test_a_translation_model(self, make_translator: Callable[..., object], tmp_path: Path) -> None:
        make_translator().bundle.save(tmp_path / "model", "# Card")  # type: ignore[attr-defined]
        with pytest.raises(BundleError, match="a model that translates; expected one that classifies"):
            load_classifier(tmp_path / "model")
