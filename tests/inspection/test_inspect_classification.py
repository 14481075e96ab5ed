"""The inspection of a classification, compared with the classifier's own results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headway.errors import BundleError, ConfigError, DataError, LengthError
from headway.inspection.inspect_text import inspect, inspect_classification
from headway.predict import Translator
from headway.predict.classification.classifier import Classifier

Make = Callable[..., Classifier]
TEXT = "das rote Haus"


def test_labels_and_attributions_are_the_classifiers(make_classifier: Make) -> None:
    classifier = make_classifier(pooling="attention", encoder_layers=2)
    seen = inspect_classification(classifier, TEXT, name="mine")
    found, told = classifier.classify(TEXT), classifier.explain(TEXT)
    assert (seen.model, seen.architecture, seen.target, seen.truncated) == ("mine", "classifier", None, False)
    assert seen.labels == found.probabilities
    assert list(seen.labels.values()) == sorted(seen.labels.values(), reverse=True)
    assert next(iter(seen.labels)) == found.label
    assert seen.attribution is not None
    assert (seen.attribution.label, *seen.attribution.values) == (found.label, *(each.value for each in told.tokens))
    assert seen.source_tokens == (*classifier.bundle.tokenizer.tokens(TEXT), "<eos>")


def test_every_map_has_a_row_and_a_column_for_what_is_read(make_classifier: Make) -> None:
    seen = inspect_classification(make_classifier(pooling="attention", encoder_layers=2), TEXT)
    count = len(seen.source_tokens)
    assert [(each.kind, each.layer, tuple(each.weights.shape)) for each in seen.maps] == [
        ("encoder", 1, (2, count, count)),
        ("encoder", 2, (2, count, count)),
        ("pooling", 1, (1, 1, count)),
    ]
    for each in seen.maps:
        torch.testing.assert_close(each.weights.sum(2), torch.ones(each.weights.shape[:2]))
    told = make_classifier(pooling="attention", encoder_layers=2).explain(TEXT)
    assert seen.maps[2].weights[0, 0].tolist() == pytest.approx([each.attention for each in told.tokens])


def test_the_attention_of_the_one_position_that_is_read_out_is_a_pooling(make_classifier: Make) -> None:
    for pooling in ("first", "last"):
        seen = inspect_classification(make_classifier(pooling=pooling, encoder_layers=2), TEXT)
        count = len(seen.source_tokens)
        assert (seen.source_tokens[0] == "<bos>") == (pooling == "first")
        assert [(each.kind, each.layer, each.name, tuple(each.weights.shape)) for each in seen.maps] == [
            ("encoder", 1, "encoder.blocks.0.attention", (2, count, count)),
            ("pooling", 1, "encoder.blocks.1.attention", (2, 1, count)),
        ]


def test_padding_is_shown_where_it_counts(make_classifier: Make) -> None:
    hidden = inspect_classification(make_classifier(pad_to_max_length=True), TEXT)
    assert "<pad>" not in hidden.source_tokens
    assert hidden.maps[0].weights.shape[1:] == (len(hidden.source_tokens),) * 2
    torch.testing.assert_close(hidden.maps[0].weights.sum(2), torch.ones(hidden.maps[0].weights.shape[:2]))
    counted = inspect_classification(make_classifier(pad_to_max_length=True, masked=False), TEXT)
    assert len(counted.source_tokens) == 30
    assert counted.source_tokens[-1] == "<pad>"


def test_a_label_that_is_asked_for_is_explained(make_classifier: Make) -> None:
    classifier = make_classifier()
    for label in classifier.labels:
        seen = inspect(classifier, TEXT, label)
        assert seen.attribution is not None
        assert seen.attribution.label == label
        assert list(seen.attribution.values) == [each.value for each in classifier.explain(TEXT, label).tokens]
    with pytest.raises(ConfigError, match=r"unknown label 'Hau'; .*Haus"):
        inspect(classifier, TEXT, "Hau")


def test_a_text_that_is_cut_says_so(make_classifier: Make) -> None:
    seen = inspect_classification(make_classifier(max_length=3), TEXT)
    assert seen.truncated
    assert len(seen.source_tokens) == 3


@pytest.mark.parametrize(
    "options", [{}, {"pooling": "first"}, {"pooling": "attention"}, {"pad_to_max_length": True, "masked": False}]
)
def test_more_attention_than_can_be_kept(
    make_classifier: Make, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = make_classifier(encoder_layers=2, **options)
    length = len(inspect(classifier, TEXT).source_tokens)
    # Two layers with two heads, and pooling with one query.
    numbers = 4 * length**2 + length * (options.get("pooling") == "attention")
    monkeypatch.setattr("headway.inspection.results.MAX_WEIGHTS", numbers)
    inspect(classifier, TEXT)
    monkeypatch.setattr("headway.inspection.results.MAX_WEIGHTS", numbers - 1)
    monkeypatch.setattr(classifier.bundle.model, "forward", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(LengthError, match=rf"the attention over {length} tokens has {numbers:,} weights"):
        inspect(classifier, TEXT)


def test_a_head_is_of_each_kind_that_has_so_many(make_classifier: Make) -> None:
    seen = inspect(make_classifier(pooling="attention"), TEXT)
    assert [(each.kind, each.heads) for each in seen.filter_maps(head=2).maps] == [("encoder", (2,))]
    assert [(each.kind, each.heads) for each in seen.filter_maps(head=-1).maps] == [
        ("encoder", (2,)),
        ("pooling", (1,)),
    ]
    with pytest.raises(ConfigError, match="head 3: expected 1 to 2"):
        seen.filter_maps(head=3)


def test_refusals(make_classifier: Make, make_translator: Callable[..., Translator]) -> None:
    with pytest.raises(DataError, match="the text is empty"):
        inspect(make_classifier(), "  ")
    with pytest.raises(ConfigError, match="a classifier has no languages to choose; leave out --to"):
        inspect(make_classifier(), TEXT, target_language="en")
    with pytest.raises(ConfigError, match="alternatives = 3: a classifier predicts no tokens, and the probabilities"):
        inspect(make_classifier(), TEXT, alternatives=3)
    broken = make_classifier()
    with torch.no_grad():
        broken.bundle.model.projection.weight.fill_(float("nan"))
    with pytest.raises(BundleError, match="probabilities are NaN"):
        inspect(broken, TEXT)
    assert inspect(make_translator(), TEXT, "Baum").target == "Baum"
