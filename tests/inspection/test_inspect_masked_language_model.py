"""The inspection of a masked language model, compared with the model's own results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from headway.errors import ConfigError, DataError, LengthError
from headway.inspection.html_page import render_html
from headway.inspection.inspect_text import inspect, write_inspection
from headway.inspection.results import Inspection
from headway.models.masked import MaskedTransformer
from headway.nn import MultiHeadAttention
from headway.predict import MaskedLanguageModel
from headway.text.base import BOS, EOS

Make = Callable[..., MaskedLanguageModel]


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_each_mask_has_its_most_probable_tokens(make_masked_language_model: Make, kind: str) -> None:
    model = make_masked_language_model(kind)
    tokenizer = model.bundle.tokenizer
    text = "das [MASK] [MASK]"
    seen = inspect(model, text, alternatives=300)
    ids = model.encode(text)
    places = [at for at, index in enumerate(ids) if index == tokenizer.mask_id]
    assert seen.hidden_positions == tuple(places)
    assert len(places) == 2
    assert seen.source_tokens == tuple(tokenizer.display(ids))
    with torch.inference_mode():
        log_probs = model.bundle.model(torch.tensor([ids]))[0, places].log_softmax(-1)
    for step, row in zip(seen.steps, log_probs, strict=True):
        values = {each.token: each.log_probability for each in step.alternatives}
        names = tokenizer.display(range(tokenizer.vocab_size))
        assert values == pytest.approx(dict(zip(names, row.tolist(), strict=True)), abs=1e-4)
        assert step.entropy == pytest.approx(-float((row.exp() * row).sum()), abs=1e-4)
    one = "das [MASK]"
    (best,) = model.fill(one, top=1)
    seen = inspect(model, one)
    assert (seen.target, seen.target_given) == (best.text, False)
    assert [step.log_probability for step in seen.steps] == pytest.approx(best.token_log_probabilities, abs=1e-4)


def test_without_a_mask_each_token_is_predicted_from_all_others(make_masked_language_model: Make) -> None:
    model = make_masked_language_model("characters")
    seen, (scored,) = inspect(model, "das Haus"), model.score(["das Haus"])
    assert tuple(step.token for step in seen.steps) == scored.tokens == tuple("das Haus")
    assert [step.log_probability for step in seen.steps] == pytest.approx(scored.token_log_probabilities, abs=1e-4)
    assert seen.log_probability == pytest.approx(scored.log_probability, abs=1e-4)
    assert (seen.target, seen.hidden_positions) == (None, tuple(range(1, 9)))
    assert json.loads(seen.as_json())["log_probability"] == pytest.approx(scored.log_probability, abs=1e-4)


@pytest.mark.parametrize("text", ["das Haus", "das [MASK]"])
def test_the_attention_is_that_of_the_text_as_given(make_masked_language_model: Make, text: str) -> None:
    model = make_masked_language_model()
    seen = inspect(model, text)
    size = len(seen.source_tokens)
    assert (seen.source_tokens[0], seen.source_tokens[-1]) == ("<bos>", "<eos>")
    assert [(each.kind, each.layer, tuple(each.weights.shape)) for each in seen.maps] == [
        ("encoder", layer, (2, size, size)) for layer in (1, 2)
    ]
    # The first layer's weights by hand: softmax(q k / sqrt(d_key)) of the embeddings.
    body = cast("MaskedTransformer", model.bundle.model)
    attention = cast("MultiHeadAttention", body.encoder.blocks[0].get_submodule("attention"))
    with torch.inference_mode():
        x = body.embed(torch.tensor([model.encode(text)]))
        query, stored = attention.project(x)
        expected = (query @ stored.keys.mT / 8**0.5).softmax(-1)[0]
    torch.testing.assert_close(seen.maps[0].weights, expected, atol=1e-5, rtol=1e-4)


def test_the_page_shows_the_hidden_tokens(make_masked_language_model: Make, tmp_path: Path) -> None:
    seen = inspect(make_masked_language_model(), "das [MASK]")
    page = render_html(seen)
    assert f'"hidden_positions":[{len(seen.source_tokens) - 2}]' in page
    assert '"prompt_length":null' in page
    write_inspection(seen, tmp_path / "heads.png")
    again = Inspection.from_json(seen.as_json())
    assert again.hidden_positions == seen.hidden_positions
    old = {key: value for key, value in json.loads(seen.as_json()).items() if key != "hidden_positions"}
    assert Inspection.from_json(json.dumps(old)).hidden_positions is None


def test_impossible_requests_are_refused(make_masked_language_model: Make) -> None:
    model = make_masked_language_model("characters")
    assert model.encode("das")[:: len("das") + 1] == (BOS, EOS)
    with pytest.raises(DataError, match="the text is empty"):
        inspect(model, "")
    with pytest.raises(LengthError, match="the text has 40 tokens, but the model's context has 30"):
        inspect(model, "das Haus" * 5)
    with pytest.raises(ConfigError, match=r"target 'Haus': a masked language model has none; put \[MASK\]"):
        inspect(model, "das ", "Haus")
    with pytest.raises(ConfigError, match="a masked language model has no languages to choose"):
        inspect(model, "das", target_language="en")
    with pytest.raises(ConfigError, match="max_new_tokens is for language models"):
        inspect(model, "das", max_new_tokens=3)
    with pytest.raises(ConfigError, match="alternatives = -1: expected 0 or more"):
        inspect(model, "das", alternatives=-1)
