"""Readable records of searches, against the translations and continuations that they lead to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from headway.decode import DecodingOptions, Sampling
from headway.errors import ConfigError, LengthError
from headway.predict import (
    DecodedText,
    DecodingTrace,
    Glossary,
    LanguageModel,
    Source,
    TokenAlternative,
    TracedStep,
    TranslateOptions,
    Translator,
    trace_generation,
    trace_translation,
)
from headway.text.base import BOS, EOS

MakeTranslator = Callable[..., Translator]
MakeLanguageModel = Callable[..., LanguageModel]
SHORT = TranslateOptions(decoding=DecodingOptions(max_length=5))
GREEDY = TranslateOptions(decoding=DecodingOptions(beam_size=1, max_length=5))


@pytest.fixture(scope="module")
def translator(make_translator: MakeTranslator) -> Translator:
    return make_translator("whitespace")


def test_the_lines_by_hand() -> None:
    """The example of a well-known introduction to the Transformer: "Elle est jolie", one word at a time."""
    words, steps = ["She", "is", "pretty", "<eos>"], []
    for index, word in enumerate(words):
        best = (TokenAlternative(word, math.log(0.9)), TokenAlternative(" It", math.log(0.04321)))
        chosen = (best[0],) if index else (TokenAlternative("He", math.log(0.00056)),)
        steps.append(TracedStep(index + 1, 1, 1, -0.5 * index, ("<bos>", *words[:index]), chosen, best))
    trace = DecodingTrace(
        "single", ("Elle", "est", "jolie", "<eos>"), tuple(steps), (DecodedText("She is pretty", -1.5, -1.25, True),)
    )
    assert str(trace).splitlines() == [
        "Encoder input: Elle est jolie <eos>",
        "Step 1: <bos> → He 0.06 % | She 90.0 %, ␣It 4.3 %",
        "Step 2: <bos> She → is | is 90.0 %, ␣It 4.3 %",
        "Step 3: <bos> She is → pretty | pretty 90.0 %, ␣It 4.3 %",
        "Step 4: <bos> She is pretty → <eos> | <eos> 90.0 %, ␣It 4.3 %",
        "Finished: She is pretty | log P -1.500, score -1.250",
    ]


def test_lines_of_a_beam_have_ranks_and_say_what_was_dropped_or_given() -> None:
    sure = (TokenAlternative("a", 0.0), TokenAlternative("b", math.log(1e-9)))
    steps = (
        TracedStep(1, 1, 1, 0.0, ("<bos>",), sure[1:], sure, given=True),
        TracedStep(2, 1, 1, -1.0, ("<bos>", "b"), sure, sure),
        TracedStep(2, 1, 2, -2.0, ("<bos>", "a"), (), sure),
    )
    results = (DecodedText("a\nb", -1.0, -1.0, False), DecodedText("a", -2.0, -2.0, True))
    assert str(DecodingTrace("beam", None, steps, results)).splitlines() == [
        "Step 1, beam 1 (log P 0.000): <bos> → b (given to the model) | a 100 %, b <0.001 %",
        "Step 2, beam 1 (log P -1.000): <bos> b → a, b | a 100 %, b <0.001 %",
        "Step 2, beam 2 (log P -2.000): <bos> a → (dropped) | a 100 %, b <0.001 %",
        "Cut off at the maximum length 1: a↵b | log P -1.000, score -1.000",
        "Finished 2: a | log P -2.000, score -2.000",
    ]


@pytest.mark.parametrize(
    ("decoding", "kind"),
    [
        (DecodingOptions(beam_size=1, max_length=5), "single"),
        (DecodingOptions(max_length=5, n_best=2), "beam"),
        (DecodingOptions(max_length=5, groups=2), "groups"),
        (DecodingOptions(max_length=5, sampling=Sampling(seed=2), n_best=2), "samples"),
    ],
)
def test_a_traced_translation_is_the_translation(translator: Translator, decoding: DecodingOptions, kind: str) -> None:
    text = "das rote Haus"
    traced = trace_translation(translator, text, TranslateOptions(decoding=decoding))
    assert traced.translation == translator.translate(text, decoding)
    search = traced.searches[0]
    assert search.kind == kind
    assert search.encoder_input == ("das", "rote", "Haus", "<eos>")
    assert {step.decoder_input[0] for step in search.steps} == {"<bos>"}
    assert [step.decoder_input for step in search.steps if step.step == 1] == [("<bos>",)] * len(
        [step for step in search.steps if step.step == 1]
    )
    assert all(len(step.decoder_input) == step.step for step in search.steps)
    best = search.results[0].text.split()
    inputs = {step.decoder_input[1:] for step in search.steps}
    assert {tuple(best[:length]) for length in range(len(best) + 1)} <= inputs


def test_the_most_probable_tokens_are_the_models(translator: Translator) -> None:
    """They are those that one pass over the finished translation predicts at each position."""
    (search,) = trace_translation(translator, "das rote Haus", GREEDY).searches
    bundle = translator.bundle
    source = [*bundle.source_tokenizer.encode("das rote Haus"), EOS]
    target = [BOS, *bundle.target_tokenizer.encode(search.results[0].text)]
    with torch.inference_mode():
        hidden = bundle.model.hidden(torch.tensor([source]), torch.tensor([target]))[0]
        best = bundle.model.projection(hidden).log_softmax(-1).topk(5)
    for step, ids, values in zip(search.steps, best.indices.tolist(), best.values.tolist(), strict=True):
        assert [token.token for token in step.most_probable] == bundle.target_tokenizer.display(ids)
        assert [token.log_probability for token in step.most_probable] == pytest.approx(values, abs=1e-5)


def test_prefixes_phrases_and_glossaries_apply(translator: Translator) -> None:
    source = Source("das rote Haus", prefix="der Baum", banned=("grüne",))
    traced = trace_translation(translator, source, SHORT)
    assert [step.given for step in traced.searches[0].steps[:3]] == [True, True, False]
    assert [step.chosen[0].token for step in traced.searches[0].steps[:2]] == ["der", "Baum"]
    glossary = Glossary([("rote", "grüne")])
    traced = trace_translation(translator, "das rote Haus", SHORT, glossary)
    assert traced.translation == translator.translate("das rote Haus", SHORT.decoding, glossary=glossary)
    assert "grüne" in traced.translation.text


def test_each_part_and_each_repeated_search_is_recorded(make_translator: MakeTranslator) -> None:
    limited = make_translator("whitespace", settings={"max_source_tokens": 4, "avoid_flagged": False})
    traced = trace_translation(limited, "das rote Haus, der Baum und das", SHORT)
    assert len(traced.searches) > 1
    assert " ".join(search.results[0].text for search in traced.searches) == traced.translation.text
    assert trace_translation(limited, " ", SHORT).searches == ()


def test_errors_are_those_of_the_translation(translator: Translator) -> None:
    with pytest.raises(ConfigError, match="include: 'Maus' contains characters or words that the vocabulary lacks"):
        trace_translation(translator, Source("das", include=("Maus",)))
    with pytest.raises(ConfigError, match="num_tokens = 0: expected 1 or more"):
        trace_translation(translator, "das", num_tokens=0)


def test_a_traced_continuation_is_the_continuation(make_language_model: MakeLanguageModel) -> None:
    model = make_language_model("whitespace", max_length=8)
    options: dict[str, Any] = {"temperature": 0, "beam_size": 2, "n": 2, "max_new_tokens": 3}
    traced = trace_generation(model, "das rote", **options)
    assert list(traced.continuations) == model.generate("das rote", **options)
    (search,) = traced.searches
    assert search.encoder_input is None
    assert search.steps[0].decoder_input == ("<bos>", "das", "rote")
    after = model.predict_tokens("das rote", tuple(model.bundle.tokenizer.encode("Haus")), count=5)[-1]
    assert [token.token for token in search.steps[0].most_probable] == [one.token for one in after.alternatives]


def test_a_sliding_context_is_several_searches(make_language_model: MakeLanguageModel) -> None:
    model = make_language_model("whitespace", max_length=8)
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12, "beyond_context": "slide"}
    traced = trace_generation(model, "das rote Haus", **options)
    assert list(traced.continuations) == model.generate("das rote Haus", **options)
    assert len(traced.searches) > 1
    with pytest.raises(LengthError, match="prompt 1 has 9 tokens"):
        trace_generation(model, "das " * 9)
