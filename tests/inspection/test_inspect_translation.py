"""The inspection of a translation, compared with the model's own numbers, computed in other ways."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from headway.bundle import Bundle, TaskConfig
from headway.errors import BundleError, ConfigError, DataError, LengthError
from headway.inspection.inspect_translator import inspect_translation
from headway.inspection.results import AttentionMap, Inspection, LabelAttribution
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.predict import Translator
from headway.text.special_tokens import SpecialTokenTemplate

MakeTranslator = Callable[..., Translator]
TEXT = "das rote Haus"


@pytest.fixture
def translator(make_translator: MakeTranslator) -> Translator:
    return make_translator(encoder_layers=2, decoder_layers=3, num_heads=4)


def recurrent(make_translator: MakeTranslator, **changes: object) -> Translator:
    tokenizer = make_translator().bundle.source_tokenizer
    config = RecurrentConfig.parse({"d_model": 16, "d_embedding": 16, **changes}, "test")
    model = RecurrentModel(config, tokenizer.vocab_size, tokenizer.vocab_size)
    return Translator(Bundle(TaskConfig(), model, tokenizer, tokenizer), device="cpu")


class TestOwnTranslation:
    def test_is_what_the_translator_says(self, translator: Translator) -> None:
        told = translator.translate(TEXT, alignment=True)
        seen = inspect_translation(translator, TEXT)
        assert (seen.target, seen.target_given) == (told.text, False)
        assert seen.tokens("target") == (*told.tokens, "<eos>")
        assert [step.log_probability for step in seen.steps] == pytest.approx(
            told.candidates[0].token_log_probabilities, abs=1e-4
        )
        assert seen.log_probability == pytest.approx(told.candidates[0].log_probability, abs=1e-3)
        assert told.alignment is not None
        assert seen.alignment == told.alignment.pairs
        assert seen.alignment_layer == 3  # the last of three

    def test_another_layer_may_align(self, make_translator: MakeTranslator) -> None:
        for layer in (0, -1):
            translator = make_translator(decoder_layers=3, settings={"alignment_layer": layer})
            told = translator.translate(TEXT, alignment=True)
            seen = inspect_translation(translator, TEXT)
            assert told.alignment is not None
            assert (seen.alignment, seen.alignment_layer) == (told.alignment.pairs, layer % 3 + 1)
        with pytest.raises(ConfigError, match="alignment layer 3: expected 0 to 2"):
            inspect_translation(make_translator(decoder_layers=3, settings={"alignment_layer": 3}), TEXT)


class TestGivenTarget:
    def test_is_scored_as_the_translator_scores_it(self, translator: Translator) -> None:
        seen = inspect_translation(translator, TEXT, "ein Baum")
        (scored,) = translator.score([TEXT], ["ein Baum"])
        assert seen.target_given
        assert seen.tokens("target") == (*scored.tokens, "<eos>")
        assert seen.tokens("input") == ("<bos>", *scored.tokens)
        assert seen.tokens("source") == (*translator.bundle.source_tokenizer.tokens(TEXT), "<eos>")
        assert [step.log_probability for step in seen.steps] == pytest.approx(scored.token_log_probabilities, abs=1e-5)

    def test_an_empty_target_is_one_step(self, translator: Translator) -> None:
        seen = inspect_translation(translator, TEXT, "")
        assert seen.tokens("target") == ("<eos>",)
        assert seen.alignment == ()

    def test_alternatives_are_those_that_the_translator_names(self, translator: Translator) -> None:
        seen = inspect_translation(translator, TEXT, "ein", alternatives=4)
        for at, prefix in ((0, ""), (len(seen.steps) - 1, "ein")):
            named = translator.alternatives(TEXT, prefix, count=4)
            assert [each.token for each in seen.steps[at].alternatives] == [each.token for each in named]
            assert [each.log_probability for each in seen.steps[at].alternatives] == pytest.approx(
                [each.log_probability for each in named], abs=1e-4
            )

    def test_ranks_agree_with_the_alternatives(self, translator: Translator) -> None:
        every = translator.bundle.target_tokenizer.vocab_size
        seen = inspect_translation(translator, TEXT, "ein Baum", alternatives=10 * every)
        for step in seen.steps:
            assert len(step.alternatives) == every
            assert math.fsum(math.exp(each.log_probability) for each in step.alternatives) == pytest.approx(1)
            assert step.alternatives[step.rank - 1].log_probability == step.log_probability
        assert inspect_translation(translator, TEXT, "", alternatives=0).steps[0].alternatives == ()

    def test_logits_are_made_for_some_positions_at_a_time(
        self, translator: Translator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = inspect_translation(translator, TEXT, "ein Baum und ein Haus").steps
        monkeypatch.setattr(
            "headway.predict.language_modeling.predicted_tokens._LOGITS_IN_MEMORY",
            2 * translator.bundle.target_tokenizer.vocab_size,
        )
        parts = inspect_translation(translator, TEXT, "ein Baum und ein Haus").steps
        assert len(whole) > 4
        assert [(step.token, step.rank) for step in parts] == [(step.token, step.rank) for step in whole]
        assert [step.log_probability for step in parts] == pytest.approx(
            [step.log_probability for step in whole], abs=1e-5
        )


class TestMaps:
    def test_every_layer_and_head(self, translator: Translator) -> None:
        seen = inspect_translation(translator, TEXT, "ein Baum")
        t, s = len(seen.steps), len(seen.source_tokens)
        shapes = [(each.kind, each.layer, each.heads, tuple(each.weights.shape)) for each in seen.maps]
        heads = (1, 2, 3, 4)
        assert shapes == [
            *[("encoder", n, heads, (4, s, s)) for n in (1, 2)],
            *[("decoder", n, heads, (4, t, t)) for n in (1, 2, 3)],
            *[("cross", n, heads, (4, t, s)) for n in (1, 2, 3)],
        ]
        for each in seen.maps:
            assert each.weights.shape[1:] == (len(seen.tokens(each.row_side)), len(seen.tokens(each.column_side)))

    def test_of_recurrent_models(self, make_translator: MakeTranslator) -> None:
        seen = inspect_translation(recurrent(make_translator), TEXT, "ein")
        assert [(each.kind, each.heads) for each in seen.maps] == [("cross", (1,))]
        assert seen.alignment_layer == 1
        best = seen.maps[0].weights[0, :-1, :-1].argmax(1).tolist()
        assert seen.alignment == tuple((source, target) for target, source in enumerate(best))

    def test_of_a_model_without_attention_there_are_none(self, make_translator: MakeTranslator) -> None:
        seen = inspect_translation(recurrent(make_translator, attention="none"), TEXT)
        assert (seen.maps, seen.kinds, seen.alignment, seen.alignment_layer) == ((), (), (), None)
        assert seen.steps
        with pytest.raises(ConfigError, match="this recurrent model has no attention to show"):
            seen.select_map()
        for layer, head in ((1, None), (None, 99), (1, 1)):
            with pytest.raises(ConfigError, match=r"(layer|head) \d+: this model has no attention"):
                seen.filter_maps(layer=layer, head=head)

    def test_choosing(self, translator: Translator) -> None:
        seen = inspect_translation(translator, TEXT, "ein")
        assert (seen.select_map().kind, seen.select_map().layer, seen.select_map().heads) == ("cross", 3, (1, 2, 3, 4))
        one = seen.select_map("encoder", -2, 3)
        assert (one.kind, one.layer, one.heads) == ("encoder", 1, (3,))
        assert torch.equal(one.weights[0], seen.maps[0].weights[2])
        assert [(each.kind, each.layer, each.heads) for each in seen.filter_maps(None, -1, -1).maps] == [
            ("encoder", 2, (4,)),
            ("decoder", 3, (4,)),
            ("cross", 3, (4,)),
        ]
        assert [(each.kind, each.layer) for each in seen.filter_maps(layer=3).maps] == [("decoder", 3), ("cross", 3)]
        with pytest.raises(ConfigError, match="layer -4: expected 1 to 3"):
            seen.filter_maps(layer=-4)
        assert [each.layer for each in seen.filter_maps("cross").maps] == [1, 2, 3]
        with pytest.raises(ConfigError, match="layer 4: expected 1 to 3, or from the end -1 to -3"):
            seen.select_map("cross", 4)
        with pytest.raises(ConfigError, match="head 0: expected 1 to 4"):
            seen.filter_maps(head=0)
        with pytest.raises(ConfigError, match="no such attention; it has cross, encoder, decoder"):
            seen.maps_of_kind("pooling")


def test_language_codes_are_shown_and_not_aligned(make_translator: MakeTranslator) -> None:
    """A template like M2M-100's: a language code before the source, and one forced at the start of the target."""
    plain = make_translator().bundle
    template = SpecialTokenTemplate(
        source_prefix=("source_language",),
        target_prefix=("target_language",),
        languages={"de": 40, "en": 41},
        source_language="de",
    )
    translator = Translator(replace(plain, imported_token_template=template), device="cpu")
    seen = inspect_translation(translator, TEXT, "ein Baum", target_language="en")
    (scored,) = translator.score([TEXT], ["ein Baum"], target_language="en")
    codes = plain.source_tokenizer.display([40, 41])
    assert (seen.source_tokens[0], seen.steps[0].token) == tuple(codes)
    assert [step.forced for step in seen.steps] == [True] + [False] * (len(seen.steps) - 1)
    assert seen.log_probability == pytest.approx(scored.log_probability, abs=1e-4)
    assert {source for source, _ in seen.alignment} <= set(range(1, len(seen.source_tokens) - 1))
    assert [target for _, target in seen.alignment] == list(range(1, len(seen.steps) - 1))
    with pytest.raises(ConfigError, match="one must be selected"):
        inspect_translation(translator, TEXT)


class TestJson:
    def test_round_trip(self, translator: Translator) -> None:
        seen = inspect_translation(translator, TEXT, "ein </script> Bäum")
        text = seen.as_json()
        back = Inspection.from_json(text)
        written, again = json.loads(text), json.loads(back.as_json())
        # The sum of the rounded log-probabilities of the steps is within half a unit of the last digit for each.
        total = written.pop("log_probability")
        assert again.pop("log_probability") == pytest.approx(total, abs=1e-6 * len(seen.steps))
        assert again == written
        assert replace(back, maps=(), steps=()) == replace(seen, maps=(), steps=())
        assert [step.token for step in back.steps] == [step.token for step in seen.steps]
        for one, other in zip(back.maps, seen.maps, strict=True):
            assert (one.kind, one.layer, one.heads, one.name) == (other.kind, other.layer, other.heads, other.name)
            torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-6)
            torch.testing.assert_close(one.weights.sum(2), torch.ones(one.weights.shape[:2]), rtol=0, atol=1e-4)

    def test_of_a_classifier(self) -> None:
        weights = torch.tensor([[[0.25, 0.75]]])
        seen = Inspection(
            model="m",
            architecture="classifier",
            source="ab",
            source_tokens=("a", "b"),
            maps=(AttentionMap("pooling", 1, (1,), weights, "pooling"),),
            labels={"x": 0.75, "y": 0.25},
            attribution=LabelAttribution("x", (0.5, -0.5)),
            truncated=True,
        )
        values = json.loads(seen.as_json())
        assert values["labels"] == {"x": 0.75, "y": 0.25}
        assert values["maps"][0]["weights"] == [[[0.25, 0.75]]]
        back = Inspection.from_json(seen.as_json())
        assert replace(back, maps=()) == replace(seen, maps=())

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '{"format": "x", "version": 1}', '{"format": "headway-inspection"}']
    )
    def test_of_something_else(self, text: str) -> None:
        with pytest.raises(DataError, match="not an inspection"):
            Inspection.from_json(text)


class TestRefusals:
    @pytest.mark.parametrize("text", ["", " \n\t"])
    def test_blank(self, translator: Translator, text: str) -> None:
        with pytest.raises(DataError, match="the source is blank: there is nothing to inspect"):
            inspect_translation(translator, text)

    def test_too_long_to_read_at_once(self, make_translator: MakeTranslator) -> None:
        short = make_translator(settings={"max_source_tokens": 6})
        with pytest.raises(LengthError, match=r"a source of 4\d tokens is longer than the 6 .* one by one"):
            inspect_translation(short, "Haus " * 40)

    def test_a_target_beyond_learned_positions(self, make_translator: MakeTranslator) -> None:
        learned = make_translator(positions="learned", max_length=8)
        with pytest.raises(LengthError, match=r"a target of \d+ tokens is longer than the 8 positions"):
            inspect_translation(learned, "Haus", "Haus " * 9)

    def test_more_attention_than_can_be_kept(self, translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = inspect_translation(translator, TEXT, "ein Baum")
        numbers = sum(each.weights.numel() for each in seen.maps)
        monkeypatch.setattr("headway.inspection.results.MAX_WEIGHTS", numbers)
        inspect_translation(translator, TEXT, "ein Baum")
        monkeypatch.setattr("headway.inspection.results.MAX_WEIGHTS", numbers - 1)
        with monkeypatch.context() as patch:
            patch.setattr(translator.bundle.model, "hidden", lambda *_: pytest.fail("it was computed"))
            message = (
                rf"{len(seen.source_tokens)} source and {len(seen.steps)} target tokens has {numbers:,} weights, more"
            )
            with pytest.raises(LengthError, match=message):
                inspect_translation(translator, TEXT, "ein Baum")

    def test_a_target_of_thousands_of_words_is_refused_at_once(self, translator: Translator) -> None:
        # 3 layers x 4 heads x 2,000^2 and more are over 48 million weights.
        with pytest.raises(LengthError, match="more than the 20,000,000 that can be inspected at once"):
            inspect_translation(translator, TEXT, "Haus " * 2000)

    def test_negative_alternatives(self, translator: Translator) -> None:
        with pytest.raises(ConfigError, match="alternatives = -1: expected 0 or more"):
            inspect_translation(translator, TEXT, alternatives=-1)

    def test_damaged_weights(self, make_translator: MakeTranslator) -> None:
        broken = make_translator(seed=9)
        with torch.no_grad():
            broken.bundle.model.projection.weight.fill_(math.nan)
        with pytest.raises(BundleError, match="probabilities are NaN"):
            inspect_translation(broken, TEXT, "ein")
