"""Explanations of labels: exact if the model is linear, and equal to finite differences always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headway.errors import ConfigError, DataError
from headway.nn.attention import attention_is_observed
from headway.predict.classification.attribution import Attribution
from headway.predict.classification.classifier import Classifier
from headway.text.base import EOS

Make = Callable[..., Classifier]
TEXT = "das rote Haus und der Baum"
LINEAR: dict[str, Any] = {"encoder_layers": 0, "norm": "none", "pooling": "mean"}


def values(parts: tuple[Attribution, ...]) -> list[float]:
    return [part.value for part in parts]


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
@pytest.mark.parametrize("label", ["Haus", "Baum"])
def test_a_linear_model_is_explained_completely(make_classifier: Make, positions: str, label: str) -> None:
    classifier = make_classifier(**LINEAR, positions=positions)
    found = classifier.explain(TEXT, label)
    bias = classifier.bundle.model.projection.bias[classifier.labels.index(label)].item()
    assert sum(values(found.tokens)) == pytest.approx(found.logit - bias, abs=1e-5)
    assert sum(values(found.words)) == pytest.approx(found.logit - bias - found.tokens[-1].value, abs=1e-5)  # <eos>


def test_a_token_of_a_linear_model_by_hand(make_classifier: Make) -> None:
    classifier = make_classifier("whitespace", **LINEAR, positions="none", scale_embedding=False)
    model: Any = classifier.bundle.model
    found = classifier.explain("das Haus", "Baum")
    ids = classifier.bundle.tokenizer.encode("das Haus")
    rows = model.embedding.weight[[*ids, EOS]] @ model.projection.weight[1] / 3
    assert values(found.tokens) == pytest.approx(rows.tolist(), abs=1e-6)
    assert [token.text for token in found.tokens] == ["das", "Haus", "<eos>"]


@pytest.mark.parametrize(
    "options",
    [
        *({"pooling": pooling, "encoder_layers": 2} for pooling in ("mean", "max", "first", "last", "attention")),
        *({"pooling": "mean", "body": {"norm": norm}} for norm in ("pre", "post")),
    ],
    ids=str,
)
def test_it_is_the_slope_along_each_token(make_classifier: Make, options: dict[str, Any]) -> None:
    """Scaling the vector of token s by 1 + h changes the logit by h times its attribution."""
    classifier = make_classifier(**options)
    found = classifier.explain(TEXT)
    model = classifier.bundle.model.double()
    source = torch.tensor([[*classifier.bundle.tokenizer.encode(TEXT), EOS]])
    embedded, step = model.embed_source(source), 1e-5
    number = classifier.labels.index(found.label)
    assert len(found.tokens) == embedded.size(1)
    with torch.inference_mode():
        for place, token in enumerate(found.tokens):
            logits = []
            for sign in (-1, 1):
                moved = embedded.clone()
                moved[:, place] *= 1 + sign * step
                logits.append(model.logits_from(moved, source)[0, number].item())
            assert token.value == pytest.approx((logits[1] - logits[0]) / (2 * step), abs=1e-4)
    assert max(map(abs, values(found.tokens))) > 1e-4


class TestParts:
    def test_words_are_the_sums_of_their_tokens(self, make_classifier: Make) -> None:
        found = make_classifier(pooling="attention").explain("grünesHaus  und\tBaumhaus")
        assert [word.text for word in found.words] == ["grünesHaus", "und", "Baumhaus"]
        assert len(found.tokens) > 4  # words consist of several tokens
        spaces = [token for token in found.tokens[:-1] if not token.text.strip()]
        inside = sum(values(found.tokens[:-1])) - sum(values(tuple(spaces)))
        assert sum(values(found.words)) == pytest.approx(inside, abs=1e-5)

    def test_attention_weights_sum_to_one(self, make_classifier: Make) -> None:
        found = make_classifier(pooling="attention").explain(TEXT)
        weights = [token.attention for token in found.tokens]
        assert sum(weight for weight in weights if weight is not None) == pytest.approx(1)
        assert all(word.attention is not None for word in found.words)

    def test_other_models_have_none(self, make_classifier: Make) -> None:
        found = make_classifier(pooling="mean").explain(TEXT)
        assert {part.attention for part in (*found.tokens, *found.words)} == {None}

    def test_what_stands_around_the_text(self, make_classifier: Make) -> None:
        first = make_classifier("whitespace", pooling="first").explain("das Haus")
        assert [token.text for token in first.tokens] == ["<bos>", "das", "Haus", "<eos>"]
        padded = {"pad_to_max_length": True, "max_length": 6}
        hidden = make_classifier("whitespace", **padded).explain("das Haus")
        assert [token.text for token in hidden.tokens] == ["das", "Haus", "<eos>"]
        seen = make_classifier("whitespace", masked=False, **padded).explain("das Haus")
        assert [token.text for token in seen.tokens] == ["das", "Haus", "<eos>", "<pad>", "<pad>", "<pad>"]
        assert [word.text for word in seen.words] == ["das", "Haus"]

    def test_the_label_is_the_most_probable_unless_asked(self, make_classifier: Make) -> None:
        classifier = make_classifier()
        best = classifier.classify(TEXT)
        assert (classifier.explain(TEXT).label, classifier.explain(TEXT).probability) == (best.label, best.probability)
        for label, probability in best.probabilities.items():
            assert classifier.explain(TEXT, label).probability == probability

    def test_looking_leaves_no_trace(self, make_classifier: Make) -> None:
        classifier = make_classifier(pooling="attention")
        before = classifier.classify(TEXT)
        classifier.explain(TEXT)
        assert classifier.classify(TEXT) == before
        model = classifier.bundle.model
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not attention_is_observed()


class TestErrors:
    def test_unknown_label(self, make_classifier: Make) -> None:
        with pytest.raises(ConfigError, match=r"unknown label 'Bau'; did you mean 'Baum'\?"):
            make_classifier().explain(TEXT, "Bau")

    def test_empty(self, make_classifier: Make) -> None:
        with pytest.raises(DataError, match="the text is empty"):
            make_classifier().explain(" ")
