"""The inspection of a language model, compared with the model's own results."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.errors import ConfigError, DataError, LengthError
from headway.inspection.html_page import render_html
from headway.inspection.inspect_text import inspect, write_inspection
from headway.inspection.results import Inspection
from headway.predict import LanguageModel, Translator
from headway.text.base import BOS

Make = Callable[..., LanguageModel]


def test_probabilities_are_the_models(make_language_model: Make) -> None:
    model = make_language_model("characters")
    seen = inspect(model, "das ", "Haus", alternatives=3)
    (scored,) = model.score(["das Haus"])
    assert [step.token for step in seen.steps] == [*"das Haus", "<eos>"]
    assert scored.eos_log_probability is not None
    expected = [*scored.token_log_probabilities, scored.eos_log_probability]
    assert [step.log_probability for step in seen.steps] == pytest.approx(expected, abs=1e-4)
    assert (seen.source, seen.target, seen.target_given, seen.prompt_length) == ("das ", "Haus", True, 4)
    assert seen.log_probability == pytest.approx(sum(expected[4:]), abs=1e-4)  # given the prompt
    ids = model.bundle.tokenizer.encode("das Haus")
    with torch.inference_mode():
        log_probs = model.bundle.model(torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
    for step, row in zip(seen.steps, log_probs, strict=True):
        assert step.entropy == pytest.approx(-float((row.exp() * row).sum()), abs=1e-4)
        values, best = row.topk(3)
        assert [each.token for each in step.alternatives] == model.bundle.tokenizer.display(best.tolist())
        assert [each.log_probability for each in step.alternatives] == pytest.approx(values.tolist(), abs=1e-4)


def test_attention_sees_only_earlier_tokens(make_language_model: Make) -> None:
    seen = inspect(make_language_model("characters"), "das Haus", max_new_tokens=0)
    assert [(each.kind, each.layer, tuple(each.weights.shape)) for each in seen.maps] == [
        ("decoder", 1, (2, 9, 9)),
        ("decoder", 2, (2, 9, 9)),
    ]
    for each in seen.maps:
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(2, 9))
        assert not each.weights.triu(1).any()
    assert seen.tokens("input")[:3] == ("<bos>", "d", "a")


def test_the_models_own_continuation_takes_the_most_probable_tokens(make_language_model: Make) -> None:
    model = make_language_model()
    seen = inspect(model, "das", max_new_tokens=5)
    (expected,) = model.generate("das", temperature=0, max_new_tokens=5)
    assert (seen.target, seen.target_given) == (expected.text, False)
    prompt = seen.prompt_length
    assert prompt is not None
    assert tuple(step.token for step in seen.steps[prompt:-1]) == expected.tokens
    assert [step.log_probability for step in seen.steps[prompt:-1]] == pytest.approx(
        expected.token_log_probabilities, abs=1e-4
    )
    assert inspect(model, "das", max_new_tokens=0).target == ""


@pytest.mark.slow
def test_the_page_shows_where_the_model_was_unsure(make_language_model: Make, tmp_path: Path) -> None:
    seen = inspect(make_language_model(), "das")
    page = render_html(seen)
    assert f'"prompt_length":{seen.prompt_length}' in page
    assert seen.steps[0].entropy is not None
    assert f'"choices":{math.exp(seen.steps[0].entropy)}' in page
    write_inspection(seen, tmp_path / "heads.png")
    again = Inspection.from_json(seen.as_json())
    assert again.prompt_length == seen.prompt_length
    assert again.steps[0].entropy == pytest.approx(seen.steps[0].entropy, abs=1e-6)


def test_impossible_requests_are_refused(make_language_model: Make, make_translator: Callable[..., Translator]) -> None:
    model = make_language_model("characters")
    with pytest.raises(DataError, match="the text is empty"):
        inspect(model, "", max_new_tokens=0)
    with pytest.raises(LengthError, match="a text of 40 tokens and the begin symbol do not fit into the 32 positions"):
        inspect(model, "das Haus" * 5, max_new_tokens=0)
    with pytest.raises(ConfigError, match="a language model has no languages to choose"):
        inspect(model, "das", target_language="en")
    with pytest.raises(ConfigError, match="max_new_tokens has no effect on a given continuation"):
        inspect(model, "das", "Haus", max_new_tokens=3)
    with pytest.raises(ConfigError, match="expected 0 or more"):
        inspect(model, "das", max_new_tokens=-1)
    with pytest.raises(ConfigError, match="max_new_tokens is for language models"):
        inspect(make_translator(), "das", max_new_tokens=3)
