"""Text in, text out: order, batches, blank lines, limits, phrases, flags, ensembles, scores."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway import kernels
from headway.bundle import TaskConfig
from headway.decode import DecodingOptions, Hypothesis, Request, Sampling, length_penalty
from headway.engine import Precision
from headway.errors import BundleError, ConfigError, DataError, HeadwayError, LengthError
from headway.models.transformer import Transformer
from headway.predict import (
    Candidate,
    Source,
    TranslateOptions,
    Translation,
    Translator,
    load_translator,
)
from headway.predict.translation import find_candidates, plan
from headway.predict.translation.plan import TranslationPlan, merge_parts
from headway.predict.translation.segment import TextPart
from headway.text.special_tokens import SpecialTokens
from headway.text.tokenizer import Tokenizer

SOURCES = ["ein Haus", "das", "das rote Haus und der grüne Baum", "Baum", "der Baum und das Haus", "rot", "ein Haus"]
GREEDY = DecodingOptions(beam_size=1)

Make = Callable[..., Translator]

SEARCH = importlib.import_module("headway.decode.search")  # the package's attribute is the function


@pytest.fixture(scope="module")
def model(make_translator: Make) -> Translator:
    return make_translator()


def texts(found: Sequence[Translation | HeadwayError]) -> list[str]:
    return [each.text for each in found if isinstance(each, Translation)]


@pytest.mark.parametrize(
    "options",
    [GREEDY, DecodingOptions(min_length=3, max_length=9), DecodingOptions(sampling=Sampling(seed=5), max_length=6)],
    ids=["greedy", "beam", "sample"],
)
class TestBatches:
    def test_many_at_once_equal_one_by_one(self, model: Translator, options: DecodingOptions) -> None:
        together = model.translate(SOURCES, options)
        alone = [model.translate(source, options) for source in SOURCES]
        assert len(set(texts(together))) > 3  # or order would not matter
        for one, other in zip(together, alone, strict=True):
            assert one.source == other.source
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-4)

    def test_order_is_kept(self, model: Translator, options: DecodingOptions) -> None:
        found = model.translate(SOURCES, options)
        assert [translation.source for translation in found] == SOURCES
        assert texts(model.translate(SOURCES[::-1], options)) == texts(found)[::-1]

    def test_the_budget_of_a_batch_changes_nothing(
        self, make_translator: Make, model: Translator, options: DecodingOptions
    ) -> None:
        """A budget of one token puts each sentence into its own batch."""
        expected = texts(model.translate(SOURCES, options))
        assert texts(make_translator(settings={"max_batch_tokens": 1}).translate(SOURCES, options)) == expected

    def test_a_stream_equals_a_list(
        self, model: Translator, options: DecodingOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = texts(model.translate(SOURCES, options))
        monkeypatch.setattr(Translator, "lines_ahead", 3)
        assert texts(list(model.translate_lines(iter(SOURCES), options))) == expected

    def test_blank_texts_stay_blank_and_in_place(self, model: Translator, options: DecodingOptions) -> None:
        found = texts(model.translate(["", "das", " \t ", "\u3000", "Baum"], options))
        assert found[0] == found[2] == found[3] == ""
        assert [found[1], found[4]] == texts(model.translate(["das", "Baum"], options))
        assert texts(model.translate(["", ""], options)) == ["", ""]


class TestShapes:
    def test_a_string_gives_one_and_a_list_gives_a_list(self, model: Translator) -> None:
        one, many = model.translate("ein Haus"), model.translate(["ein Haus"])
        assert isinstance(one, Translation)
        assert isinstance(many, list)
        assert one == many[0]
        assert model.translate([]) == []
        assert list(model.translate_lines([])) == []

    def test_candidates_are_different_and_best_first(self, model: Translator) -> None:
        found = model.translate("das rote Haus", DecodingOptions(n_best=4))
        scores = [candidate.score for candidate in found.candidates]
        assert len({candidate.tokens for candidate in found.candidates}) == len(scores) == 4
        assert scores == sorted(scores, reverse=True)
        assert (found.text, found.score, found.tokens) == (
            found.candidates[0].text,
            scores[0],
            found.candidates[0].tokens,
        )
        assert len(model.translate("das rote Haus").candidates) == 1

    @pytest.mark.parametrize("alpha", [0.0, 0.6])
    def test_the_score_is_the_log_probability_over_the_penalty(self, model: Translator, alpha: float) -> None:
        for candidate in model.translate("das rote Haus", DecodingOptions(n_best=4, length_penalty=alpha)).candidates:
            penalty = length_penalty(len(candidate.tokens) + 1, alpha)
            assert candidate.score == pytest.approx(candidate.log_probability / penalty)
            assert candidate.text == "".join(candidate.tokens) or "<0x" in "".join(candidate.tokens)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"beam_size": 0}, r"options: beam_size = 0: .*greater than or equal to 1"),
            ({"beam_size": 2, "n_best": 3}, r"n_best = 3: expected from 1 to beam_size, which is 2"),
            ({"length_penalty": math.nan}, r"length_penalty = nan"),
            ({"beem_size": 2}, r"unknown key 'beem_size'; did you mean 'beam_size'"),
        ],
    )
    def test_options_out_of_range(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            DecodingOptions.parse(options, "options")

    def test_a_beam_larger_than_the_vocabulary(self, model: Translator) -> None:
        with pytest.raises(ConfigError, match=r"1000000"):
            model.translate("das", DecodingOptions(beam_size=10**6))

    def test_damaged_weights_are_reported(self, make_translator: Make) -> None:
        broken = make_translator()
        with torch.no_grad():
            broken.bundle.model.projection.weight.fill_(math.nan)
        with pytest.raises(BundleError, match="weights are damaged"):
            broken.translate("das")

    def test_the_text_never_contains_special_tokens(self, model: Translator) -> None:
        for translation in model.translate(SOURCES, DecodingOptions(n_best=4)):
            for candidate in translation.candidates:
                assert not {"<pad>", "<bos>", "<eos>", "<unk>"} & set(candidate.tokens)


class TestLimits:
    def test_outputs_stay_within_the_learned_positions(self, make_translator: Make) -> None:
        limited = make_translator("whitespace", positions="learned", max_length=5)
        with torch.no_grad():
            limited.bundle.model.projection.weight[2] = 0  # the end symbol is now unlikely
        for options in (GREEDY, DecodingOptions()):
            assert max(len(found.tokens) for found in limited.translate(["das", "ein"], options)) <= 4

    def test_the_maximum_output_is_the_input_plus_fifty(self, make_translator: Make) -> None:
        endless = make_translator("whitespace")
        model = endless.bundle.model
        assert isinstance(model, Transformer)
        with torch.no_grad():
            for norm in model.decoder.blocks[-1].modules():
                if isinstance(norm, nn.LayerNorm):  # every hidden state becomes a row of ones
                    norm.weight.zero_()
                    norm.bias.fill_(1.0)
            model.projection.weight.zero_()
            model.projection.weight[4] = 1.0
        for options in (GREEDY, DecodingOptions(beam_size=2)):
            found = endless.translate("das rote Haus", options)
            assert len(found.tokens) == 3 + 50
            assert found.flags == ("truncated", "repeated")
        assert len(endless.translate("das rote Haus", DecodingOptions(max_length=7)).tokens) == 7

    def test_sinusoidal_positions_have_no_limit_but_that_which_is_asked_for(self, make_translator: Make) -> None:
        source = " ".join(["Haus"] * 270)
        whole = make_translator("whitespace", settings={"max_source_tokens": 300}).translate(source, GREEDY)
        assert whole.source == source
        assert "split" not in whole.flags
        assert "split" in make_translator("whitespace").translate(source, GREEDY).flags

    @pytest.mark.parametrize(
        ("asked", "changes", "expected"),
        [
            (None, {}, 256),
            (300, {}, 300),
            (None, {"positions": "learned", "max_length": 40}, 40),
            (300, {"positions": "learned", "max_length": 40}, 40),
            (30, {"positions": "learned", "max_length": 40}, 30),
        ],
    )
    def test_the_limit(self, make_translator: Make, asked: int | None, changes: dict[str, Any], expected: int) -> None:
        assert make_translator(settings={"max_source_tokens": asked}, **changes).max_source_tokens == expected

    @pytest.mark.parametrize(
        "source", ["a\0b", "\u202eשלום\u202c", "e\u0301\u0301\u0301", "👩‍👩‍👧", "<eos> <pad>", "\ufeff", "x\ny", "\x85"]
    )
    def test_odd_characters_are_text(self, model: Translator, source: str) -> None:
        found = model.translate([source, "das"])
        assert found[0].source == source
        assert found[1].tokens == model.translate("das").tokens


class TestLongTexts:
    """Whitespace tokens: a limit of 5 allows four words and the end symbol."""

    @pytest.fixture
    def limited(self, make_translator: Make) -> Translator:
        return make_translator("whitespace", positions="learned", max_length=5, settings={"avoid_flagged": False})

    def test_sentences_are_translated_one_by_one_and_joined_as_they_stood(self, limited: Translator) -> None:
        sentences = ["Haus das rote!", "Baum ein.", "Baum und Haus der?"]
        found = limited.translate("  " + "  ".join(sentences) + "\n", alignment=True)
        alone = limited.translate(sentences, alignment=True)
        assert found.text == "  " + "  ".join(each.text for each in alone) + "\n"
        best, parts = found.candidates[0], [each.candidates[0] for each in alone]
        assert best.log_probability == pytest.approx(sum(each.log_probability for each in parts), abs=1e-4)
        assert best.score == pytest.approx(sum(each.score for each in parts), abs=1e-4)
        assert [token.strip() for token in best.tokens] == [token for each in parts for token in each.tokens]
        assert len(best.token_log_probabilities) == len(best.tokens) + 3  # one end symbol each
        assert "split" not in best.flags
        assert best.alignment is not None
        assert len(best.alignment.source_tokens) == 3 + 2 + 4
        for (source, target), row in zip(best.alignment.pairs, best.alignment.attention, strict=True):
            assert row[source] == max(row)
            part = 0 if target < len(parts[0].tokens) else 1 if target < len(parts[0].tokens + parts[1].tokens) else 2
            assert source in (range(3), range(3, 5), range(5, 9))[part]

    def test_a_very_long_text_has_an_alignment_without_attention(
        self, limited: Translator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = "Haus das rote! Baum ein. Baum und Haus der?"
        expected = limited.translate(text, alignment=True).candidates[0].alignment
        monkeypatch.setattr("headway.predict.translation.plan._MAX_ATTENTION", 20)
        found = limited.translate(text, alignment=True).candidates[0].alignment
        assert expected is not None
        assert found is not None
        assert (found.pairs, found.source_tokens) == (expected.pairs, expected.source_tokens)
        assert expected.attention
        assert not found.attention

    def test_sentences_of_a_short_text_are_split_on_request(self, model: Translator) -> None:
        text = " Haus das rote!  Baum ein. "
        found = model.translate(Source(text, split_sentences=True), GREEDY)
        alone = texts(model.translate(["Haus das rote!", "Baum ein."], GREEDY))
        assert found.text == f" {alone[0]}  {alone[1]} "
        assert "split" not in found.flags
        assert model.translate(Source("  ", split_sentences=True)).text == ""

    def test_the_language_that_is_told_splits(self, limited: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str] = []

        def split_text(_text: str, language: str, *_: object) -> tuple[list[TextPart], str]:
            seen.append(language)
            return [], ""

        monkeypatch.setattr(plan, "split_text", split_text)
        for language in (None, "ja"):
            monkeypatch.setattr(
                type(limited.bundle.token_template), "fill", lambda *_, **__: SpecialTokens((), (2,), ())
            )
            limited.translate("das rote Haus und der Baum", source_language=language)
        assert seen == ["de", "ja"]

    def test_a_sentence_that_is_cut_inside_is_flagged(self, limited: Translator) -> None:
        found = limited.translate("das rote Haus und der Baum")
        assert "split" in found.flags
        assert found.text == " ".join(texts(limited.translate(["das rote Haus", "und der Baum"])))

    def test_several_candidates(self, limited: Translator) -> None:
        text, options = "Haus das rote! Baum ein rote!", DecodingOptions(n_best=3)
        parts = limited.translate(["Haus das rote!", "Baum ein rote!"], options)
        found = limited.translate(text, options)
        joined = [" ".join(each.text for each in pair) for pair in zip(*(p.candidates for p in parts), strict=True)]
        assert [each.text for each in found.candidates] == joined

    def test_the_prefix_is_that_of_the_first_part(self, limited: Translator) -> None:
        found = limited.translate(Source("Haus das rote! Baum ein und!", prefix="und"))
        assert found.tokens[0] == "und"
        assert found.text.endswith(" " + limited.translate("Baum ein und!").text)

    def test_phrases_to_include_need_a_text_in_one_part(self, limited: Translator) -> None:
        with pytest.raises(ConfigError, match=r"include: a text of 7 tokens is translated in 2 parts"):
            limited.translate(Source("Haus das rote! Baum ein und!", include=("Baum",)))

    def test_a_character_that_cannot_be_cut(self, make_translator: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        limited = make_translator("bpe", positions="learned", max_length=12)
        monkeypatch.setattr(Translator, "lines_ahead", 3)
        lines = ["das"] * 7 + ["x" + "\u0301" * 10, "das"]
        found = limited.translate_lines(lines)
        for _ in range(6):  # the chunks before the bad line are translated
            next(found)
        with pytest.raises(
            LengthError, match=r"line 8: '.+'\.\.\. is one character with 22 tokens, but a source may have at most 12"
        ):
            next(found)
        with pytest.raises(LengthError, match=r"^text 8: '.+ is one character"):
            limited.translate(lines)
        with pytest.raises(LengthError, match=r"^'.+ is one character"):
            limited.translate(lines[7])


class TestEach:
    def test_an_error_keeps_its_position_and_stops_no_other_text(self, model: Translator) -> None:
        found = model.translate_each(["das", "\ud800", "Haus", "x" + "\u0301" * 300, Source("ein", include=("",))])
        assert texts(found) == texts(model.translate(["das", "Haus"]))
        assert [type(each) for each in found] == [Translation, DataError, Translation, LengthError, ConfigError]
        assert str(found[1]).startswith("character 1: lone surrogate")

    @pytest.mark.parametrize(
        ("bad", "options", "message"),
        [
            ("ein", {"min_length": 52}, "min_length = 52: this text may have at most 51 target tokens"),
            (Source("ein", include=("Haus",), banned=("Haus",)), {}, "included phrase 1 cannot be met"),
            (Source("ein", include=("Haus",)), {"beam_size": 1}, "included phrases need beam_size >= 2"),
            (Source("ein", include=("Haus",)), {"sampling": {}}, "included phrases and sampling cannot be combined"),
            (
                Source("ein", include=("Haus und",), prefix="das rote"),
                {"max_length": 3},
                "included phrase 1 needs 2 tokens, but the target may have only 1 more",
            ),
            (
                Source("ein", banned=("ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der")),
                {"min_length": 1},
                "the options exclude every target; relax banned phrases, min_length, no_repeat_ngram",
            ),
        ],
    )
    def test_what_search_would_refuse_stops_no_other_text(
        self, make_translator: Make, bad: str | Source, options: dict[str, Any], message: str
    ) -> None:
        model, good = make_translator("whitespace"), "das rote Haus"
        found = model.translate_each(
            [good, bad, good], TranslateOptions(decoding=DecodingOptions.parse(options, "test"))
        )
        assert [type(each) for each in found] == [Translation, ConfigError, Translation]
        assert message in str(found[1])

    def test_reading_ahead_is_bounded(self, model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Translator, "lines_ahead", 4)
        read: list[str] = []

        def lines() -> Iterator[str]:
            for _ in range(30):
                read.append("das")
                yield "das"

        for done, _ in enumerate(model.translate_lines(lines(), GREEDY)):
            assert len(read) <= done + 4
        assert done == 29


def test_a_blank_text_does_not_hold_what_it_should() -> None:
    found = merge_parts(TranslationPlan(Source(" ", include=("Haus", ("Baum", "und"))), (), ()), [])
    assert isinstance(found, Translation)
    assert (found.text, found.candidates[0].unmet) == ("", ("Haus", "Baum"))


class TestPhrases:
    """Half of the words are banned or required; random models would choose others."""

    def test_a_prefix(self, make_translator: Make) -> None:
        for kind in ("bpe", "whitespace"):
            found = make_translator(kind).translate([Source(text, prefix="das grüne ") for text in SOURCES])
            assert all(each.text.startswith("das grüne") for each in found)

    def test_a_prefix_over_the_limit(self, make_translator: Make) -> None:
        model = make_translator("whitespace")
        with pytest.raises(
            LengthError, match=r"prefix: 3 tokens, but this target may have at most 2; raise max_length"
        ):
            model.translate(Source("das", prefix="das rote Haus"), DecodingOptions(max_length=2))

    @pytest.mark.parametrize("kind", ["bpe", "whitespace"])
    def test_phrases_to_include(self, make_translator: Make, kind: str) -> None:
        model = make_translator(kind)
        wanted = ("grüne", ("Baum und", "und Baum"))
        before = texts(model.translate(SOURCES))
        for n_best in (1, 2):
            options = DecodingOptions(n_best=n_best, max_length=8)
            for found in model.translate([Source(text, include=wanted) for text in SOURCES[1:4]], options):
                assert found.text not in before
                assert "grüne" in found.text
                assert "Baum und" in found.text or "und Baum" in found.text
                assert found.candidates[0].unmet == ()

    def test_a_phrase_that_does_not_fit(self, make_translator: Make) -> None:
        with pytest.raises(
            LengthError, match=r"include: 'das rote Haus' has 3 tokens, but this target may have at most 2"
        ):
            make_translator("whitespace").translate(
                Source("das", include=("das rote Haus",)), DecodingOptions(max_length=2)
            )

    def test_banned_words(self, make_translator: Make) -> None:
        model = make_translator("whitespace")
        words = {token for found in model.translate(SOURCES) for token in found.tokens}
        banned = tuple(sorted(words)[::2])
        assert banned
        for found in model.translate([Source(text, banned=banned) for text in SOURCES]):
            assert not set(found.tokens) & set(banned)
            assert found.candidates[0].banned == ()


def searching(found: Callable[[Request], list[Hypothesis]]) -> Callable[..., list[list[Hypothesis]]]:
    """A search that returns given hypotheses."""
    return lambda _model, requests, *_args, **_kwargs: [found(request) for request in requests]


class TestHandMadeHypotheses:
    @pytest.fixture
    def model(self, make_translator: Make) -> Translator:
        return make_translator("whitespace")

    def hypothesis(self, model: Translator, text: str, score: float, *, finished: bool = True) -> Hypothesis:
        ids = tuple(model.bundle.target_tokenizer.encode(text))
        each = (score / (len(ids) + 1),) * (len(ids) + 1)
        return Hypothesis(ids, score, score, each, finished=finished)

    def translated(
        self, model: Translator, monkeypatch: pytest.MonkeyPatch, hypotheses: list[Hypothesis], **options: Any
    ) -> tuple[Candidate, ...]:
        monkeypatch.setattr(SEARCH, "search", searching(lambda _: hypotheses))
        return model.translate("ein Haus und der Baum", DecodingOptions(**options)).candidates

    def test_the_best_that_is_not_flagged_comes_first(self, model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        looping = self.hypothesis(model, "das das das das", -1.0)
        cut = self.hypothesis(model, "rote rote", -2.0, finished=False)
        copied = self.hypothesis(model, "ein Haus und der Baum", -2.5)
        sound, other = self.hypothesis(model, "das Haus", -3.0), self.hypothesis(model, "das", -4.0)
        found = self.translated(model, monkeypatch, [looping, cut, copied, sound, other], n_best=4)
        assert [(each.text, each.flags) for each in found] == [
            ("das Haus", ("fell_back",)),
            ("das das das das", ("repeated",)),
            ("rote rote", ("truncated",)),
            ("ein Haus und der Baum", ("copied",)),
        ]
        assert self.translated(model, monkeypatch, [looping, cut, sound])[0].text == "das Haus"
        model.avoid_flagged = False
        assert self.translated(model, monkeypatch, [looping, cut, sound])[0].text == "das das das das"

    def test_if_all_are_flagged_the_best_is_kept(self, model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        looping = self.hypothesis(model, "das das das das", -1.0)
        cut = self.hypothesis(model, "rote", -2.0, finished=False)
        (found,) = self.translated(model, monkeypatch, [looping, cut])
        assert (found.text, found.flags) == ("das das das das", ("repeated",))

    def test_what_fails_a_phrase_is_no_better(self, model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        looping = self.hypothesis(model, "Haus Haus Haus Haus", -1.0)
        lacking = replace(self.hypothesis(model, "ein Baum", -2.0), unmet=(0,))
        banned, sound = self.hypothesis(model, "das Haus", -2.5), self.hypothesis(model, "Haus", -3.0)
        monkeypatch.setattr(
            importlib.import_module("headway.decode.search"),
            "search",
            searching(lambda _: [looping, lacking, banned, sound]),
        )
        found = model.translate(Source("ein Haus", include=("Haus",), banned=("das",)))
        assert (found.text, found.flags) == ("Haus", ("fell_back",))

    def test_a_search_that_stopped_early_is_asked_for_the_rest_of_its_beam(
        self, model: Translator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looping, sound = self.hypothesis(model, "das das das das", -1.0), self.hypothesis(model, "das Haus", -3.0)
        asked: list[tuple[int, int]] = []

        def search(_: object, requests: Sequence[Request], options: DecodingOptions, **__: object) -> object:
            asked.append((len(requests), options.n_best))
            return [[looping, sound][: options.n_best] if "rote" in names(each) else [sound] for each in requests]

        def names(request: Request) -> list[str]:
            return model.bundle.source_tokenizer.display(request.source)

        monkeypatch.setattr(SEARCH, "search", search)
        found = model.translate(["ein Haus", "rote Haus"])
        assert [(each.text, each.flags) for each in found] == [("das Haus", ()), ("das Haus", ("fell_back",))]
        assert [len(each.candidates) for each in found] == [1, 1]
        assert asked == [(2, 1), (1, 4)]

    def test_a_copy_is_none_where_languages_do_not_differ(
        self, model: Translator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copied, other = self.hypothesis(model, "ein Haus und der Baum", -1.0), self.hypothesis(model, "das", -4.0)
        task = model.bundle.task
        for languages in ({"source_language": "en"}, {"source_language": "source", "target_language": "target"}):
            model.bundle = replace(model.bundle, task=task.model_copy(update=languages))
            assert self.translated(model, monkeypatch, [copied, other])[0].flags == ()

    def test_a_phrase_to_include_that_holds_a_banned_one_stays_and_is_told(self, model: Translator) -> None:
        """The vocabulary has no token "!", so only the target shows which token contains it."""
        words = ["ein", "das", "rote", "grüne", "Haus!", "Baum", "und", "der"]
        tokenizer = Tokenizer("whitespace", words)
        model.bundle = replace(model.bundle, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
        found = model.translate_each([Source("das", include=("Haus!",), banned=("!",)), "das"])
        assert isinstance(found[0], Translation)
        assert "Haus!" in found[0].text
        assert found[0].candidates[0].banned == ("!",)
        assert isinstance(found[1], Translation)

    def test_missing_phrases_are_listed_as_unmet(self, model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = replace(self.hypothesis(model, "das Haus", -1.0), unmet=(0, 1))
        monkeypatch.setattr(SEARCH, "search", searching(lambda _: [plain]))
        found = model.translate(Source("ein Baum", include=(("Baum", "rote"), "Haus")))
        assert found.candidates[0].unmet == ("Baum",)  # the other phrase occurs, whatever the search has counted

    def test_a_banned_phrase_in_another_spelling_is_searched_for_again(
        self, make_translator: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = make_translator("bpe")
        tokenizer = model.bundle.target_tokenizer
        spellings = [[*map(tokenizer.encode, cut)] for cut in (("das H", "aus"), ("das Ha", "us"), ("das ", "Baum"))]
        ids = [tuple(index for part in cut for index in part) for cut in spellings]
        asked: list[Request] = []

        def found(request: Request) -> list[Hypothesis]:
            asked.append(request)
            allowed = [each for each in ids if not any(str(one)[1:-1] in str(each)[1:-1] for one in request.banned)]
            return [Hypothesis(each, -1.0, -1.0, (-1.0 / (len(each) + 1),) * (len(each) + 1)) for each in allowed]

        monkeypatch.setattr(SEARCH, "search", searching(found))
        candidate = model.translate(Source("das Haus", banned=("Haus",))).candidates[0]
        assert (candidate.text, candidate.banned) == ("das Baum", ())
        assert len(asked) == 3
        monkeypatch.setattr(find_candidates, "_RESPELLINGS", 0)
        candidate = model.translate(Source("das Haus", banned=("Haus",))).candidates[0]
        assert (candidate.text, candidate.banned) == ("das Haus", ("Haus",))


class TestProbabilities:
    @pytest.mark.parametrize("kind", ["bpe", "whitespace"])
    def test_forced_scores_are_those_of_the_search(self, make_translator: Make, kind: str) -> None:
        model = make_translator(kind)
        options = DecodingOptions(n_best=3)
        for found in model.translate(SOURCES, options):
            candidates = [each for each in found.candidates if model.bundle.target_tokenizer.encode(each.text)]
            forced = model.score([found.source] * len(candidates), [each.text for each in candidates])
            for ours, theirs in zip(candidates, forced, strict=True):
                assert sum(ours.token_log_probabilities) == pytest.approx(ours.log_probability, abs=1e-4)
                assert len(ours.token_log_probabilities) == len(ours.tokens) + 1
                assert all(0 <= each <= 1 for each in ours.token_probabilities)
                if ours.tokens == theirs.tokens:  # a search may tokenize a text differently
                    assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-4)

    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
    def test_scores_as_searched_have_the_precision_of_the_search(
        self, make_translator: Make, precision: Precision
    ) -> None:
        if precision == "int8" and not kernels.is_available():
            pytest.skip("no AVX2, or no Numba, for the compiled kernels")
        model = Translator(make_translator("whitespace").bundle, precision=precision)
        for found in model.translate(SOURCES, DecodingOptions(beam_size=1)):
            candidate = found.candidates[0]
            (forced,) = model.score([found.source], [found.text], as_searched=True)
            if forced.tokens == candidate.tokens:
                # The search ranks tokens without a softmax; in bfloat16 it computes other sums.
                values = pytest.approx(candidate.token_log_probabilities, abs=0.1 if precision == "bfloat16" else 1e-4)
                assert forced.token_log_probabilities == values

    def test_keys_of_the_source_that_exceed_16_bit_floats_are_named(self, make_translator: Make) -> None:
        if not kernels.is_available():
            pytest.skip("no AVX2, or no Numba, for the compiled kernels")
        bundle = make_translator("whitespace").bundle
        attention: Any = bundle.model.get_submodule("decoder.blocks.0.cross_attention")
        queries, keys, _ = attention.widths
        with torch.no_grad():
            attention.projection.weight[:queries] /= 1e8
            attention.projection.weight[queries : queries + keys] *= 1e8
        with pytest.raises(ConfigError, match=r"keys or values of the source exceed .* use precision 'float32'"):
            Translator(bundle, precision="int8").translate("das Haus")
        assert Translator(bundle).translate("das Haus").candidates

    def test_alternatives_are_the_forced_scores_of_each_next_token(self, make_translator: Make) -> None:
        model = make_translator("whitespace")
        found = model.alternatives("das rote Haus", "ein ", count=10**6)
        assert [each.log_probability for each in found] == sorted((e.log_probability for e in found), reverse=True)
        assert sum(math.exp(each.log_probability) for each in found) == pytest.approx(1, abs=1e-4)
        by_token = {each.token: each.log_probability for each in found}
        for word in ("Haus", "Baum", "und"):
            (forced,) = model.score(["das rote Haus"], [f"ein {word}"])
            assert by_token[word] == pytest.approx(forced.token_log_probabilities[1], abs=1e-4)
        (forced,) = model.score(["das rote Haus"], ["ein"])
        assert by_token["<eos>"] == pytest.approx(forced.token_log_probabilities[1], abs=1e-4)
        assert model.alternatives("das rote Haus", "ein", count=2) == found[:2]

    def test_pairs_that_cannot_be_scored(self, make_translator: Make) -> None:
        model = make_translator("whitespace", positions="learned", max_length=4)
        with pytest.raises(DataError, match="2 sources but 1 targets"):
            model.score(["das", "das"], ["das"])
        long = "das rote Haus und"
        for pair, what in (((long, "das"), "source"), (("das", long), "target")):
            with pytest.raises(
                LengthError, match=rf"^text 2: a {what} of 5 tokens is too long: this model supports at most"
            ):
                model.score(["das", pair[0]], ["das", pair[1]])
        with pytest.raises(LengthError, match="a target of 5 tokens"):
            model.alternatives("das", long)


class TestSharedBatches:
    """A translator whose calls share batches with those of others."""

    @pytest.fixture
    def shared(self, make_translator: Make) -> Translator:
        model = make_translator("whitespace")
        model.replace_search(SEARCH.search_all, SEARCH.search_steps)
        return model

    def test_limits_the_length_of_sequences(self, shared: Translator) -> None:
        """Attention takes time and memory that grow with the square of the length."""
        long = "das " * 1024
        for call in (
            lambda: shared.score([long], ["das"]),
            lambda: shared.score(["das"], [long]),
            lambda: shared.alternatives("das", long),
            lambda: shared.alternatives(long),
            lambda: shared.translate(Source("das", prefix=long)),
        ):
            with pytest.raises(LengthError, match=r"1,?02[45] tokens"):
                call()
        with pytest.raises(ConfigError, match="at most 1023 target tokens"):
            shared.translate("das", DecodingOptions(min_length=2000, max_length=2000))

    def test_limits_the_attention_of_all_results(self, shared: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        """The best candidates have it first."""
        texts, options = ["das rote Haus", "ein Baum"], DecodingOptions(n_best=3)
        whole = [each.candidates for each in shared.translate(texts, options, alignment=True)]
        alignments = [[each.alignment for each in candidates] for candidates in whole]
        size = sum(len(one.source_tokens) * len(one.pairs) for one, *_ in alignments if one is not None)
        monkeypatch.setattr(shared, "_max_attention", size)
        found = shared.translate(texts, options, alignment=True)
        for translation, expected in zip(found, alignments, strict=True):
            best, *others = [each.alignment for each in translation.candidates]
            assert best == expected[0]
            assert others == [one and one.without_attention() for one in expected[1:]]


class TestEnsembles:
    def test_of_equal_models_it_is_the_model(self, make_translator: Make) -> None:
        model = make_translator()
        both = Translator.ensemble([model, make_translator()])
        for one, other in zip(model.translate(SOURCES), both.translate(SOURCES), strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-4)

    def test_probabilities_are_averaged(self, make_translator: Make) -> None:
        models = [make_translator("whitespace", seed=seed) for seed in (1, 2, 3)]
        joined = Translator.ensemble(models)
        texts = [found.text for found in joined.translate(SOURCES)]
        each = [model.score(SOURCES, texts) for model in models]
        for number, found in enumerate(joined.score(SOURCES, texts)):
            several = [scores[number].token_log_probabilities for scores in each]
            for place, value in enumerate(found.token_log_probabilities):
                mean = sum(math.exp(scores[place]) for scores in several) / 3
                assert math.exp(value) == pytest.approx(mean, abs=1e-5)
        searched = joined.translate(SOURCES[2])
        assert searched.candidates[0].log_probability == pytest.approx(
            joined.score([SOURCES[2]], [searched.text])[0].log_probability, abs=1e-4
        )

    def test_the_narrowest_member_sets_the_limit(self, make_translator: Make) -> None:
        learned = {"positions": "learned"}
        models = [make_translator(max_length=length, **learned) for length in (30, 20)]
        assert Translator.ensemble([make_translator(), *models]).max_source_tokens == 20

    def test_models_that_do_not_fit(self, make_translator: Make) -> None:
        with pytest.raises(ConfigError, match="the ensemble and the first have different source tokenizers"):
            Translator.ensemble([make_translator("bpe"), make_translator("whitespace")])
        models = [make_translator(), make_translator()]
        for model, languages in zip(models, (("de", "en"), ("en", "de")), strict=True):
            task = TaskConfig(source_language=languages[0], target_language=languages[1])
            model.bundle = replace(model.bundle, task=task)
        with pytest.raises(ConfigError, match="model 2 of the ensemble translates en to de, the first de to en"):
            Translator.ensemble(models)
        with pytest.raises(ConfigError, match="an ensemble needs at least one model"):
            Translator.ensemble([])


class TestLoad:
    def test_a_saved_model_translates_as_before(self, model: Translator, tmp_path: Path) -> None:
        model.bundle.save(tmp_path / "model", "# Card")
        for name in (tmp_path / "model", str(tmp_path / "model")):
            assert load_translator(name, device="cpu", precision="float32").translate(SOURCES) == model.translate(
                SOURCES
            )

    def test_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match=r"nowhere"):
            load_translator(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("sources", "texts", "expected"),
    [
        (["今天天气很好。", "我们去公园"], ["It is nice.", "We go"], "It is nice. We go"),
        (["今天，", "我们"], ["Today", "we"], "Today we"),
        (["今天", "我们"], ["今日は", "私たち"], "今日は私たち"),
        (["xxxx", "xxxx"], ["yy", "yy"], "yyyy"),
    ],
)
def test_translations_of_parts_without_space_between_them_get_one_where_their_script_needs_it(
    sources: list[str], texts: list[str], expected: str
) -> None:
    parts = tuple(TextPart(source, "", is_partial_sentence=True) for source in sources)
    candidates = [[Candidate(text, 0.0, 0.0, (text,))] for text in texts]
    merged = merge_parts(TranslationPlan(Source("".join(sources)), parts), candidates)
    assert isinstance(merged, Translation)
    assert merged.text == "".join(merged.tokens) == expected
