"""Generated text of language models: streaming and stop strings."""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway.decode.beam import BeamSearch
from headway.errors import ConfigError
from headway.predict import LanguageModel
from headway.text.base import ContinuationDecoder
from headway.text.tokenizer import Tokenizer, TokenizerConfig


def test_the_bytes_of_any_tokens_can_be_shown_one_after_the_other() -> None:
    tokenizer = Tokenizer.train(["ein rotes Haus, übergroß 漢"] * 9, TokenizerConfig(vocab_size=300))
    draw = random.Random(0)
    for _ in range(50):
        text = "".join(draw.choices("añ漢😀\N{REPLACEMENT CHARACTER} ", k=3))
        ids = [*tokenizer.encode(text), *draw.choices(range(4, tokenizer.vocab_size), k=5), *tokenizer.encode(text)]
        decoder, shown = codecs.getincrementaldecoder("utf-8")("replace"), ""
        for end, index in enumerate(ids, start=1):
            (name,) = tokenizer.display([index])  # a part of a character is shown as <0xE2>
            parts = re.split("<0x([0-9A-F]{2})>", name)
            data = b"".join(bytes.fromhex(part) if at % 2 else part.encode() for at, part in enumerate(parts))
            shown += decoder.decode(data)
            assert tokenizer.decode_continuation(ids[:end]) == shown


@pytest.mark.parametrize("kind", ["bpe", "characters", "whitespace", "words"])
def test_text_is_decoded_in_parts_in_linear_time(kind: Any) -> None:
    tokenizer = Tokenizer.train(
        ["ein rotes Haus, übergroß 漢"] * 9, TokenizerConfig(kind=kind, vocab_size=300), tags=["t"]
    )
    draw, decoded = random.Random(0), list[int]()
    original = tokenizer.decode_continuation

    def counted(ids: Sequence[int], *, final: bool = False) -> str:
        decoded.append(len(ids))
        return original(ids, final=final)

    for length in (3, 40, 400):
        ids = [*draw.choices(range(tokenizer.vocab_size), k=length), *tokenizer.encode("漢 ein")]
        made, shown = ContinuationDecoder(tokenizer), ""
        tokenizer.decode_continuation = counted  # type: ignore[method-assign]
        for at in range(0, len(ids), 2):
            shown += made.decode(ids[at : at + 2])
            assert shown == original(ids[: at + 2])
        tokenizer.decode_continuation = original  # type: ignore[method-assign]
        assert sum(decoded) < 12 * len(ids)
        decoded.clear()


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_streams_join_to_the_text_of_generate(make_language_model: Callable[..., LanguageModel], kind: str) -> None:
    model = make_language_model(kind)
    incomplete = 0
    for seed in range(10):
        options = {"temperature": 30.0, "seed": seed, "max_new_tokens": 2 + seed, "stop": ("a", "au", "r H", "é")}
        (whole,) = model.generate("ein", **options)
        assert "".join(model.stream("ein", **options)) == whole.text
        incomplete += model.bundle.tokenizer.decode(whole.ids) != whole.text and whole.finish_reason == "length"
    assert (incomplete > 0) == (kind == "bpe")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 3.0, "seed": 2, "max_new_tokens": 9, "top_p": 0.9},
        {"temperature": 0, "max_new_tokens": 9, "repetition_penalty": 2.0},
        {"temperature": 3.0, "seed": 2, "max_new_tokens": 40, "beyond_context": "slide"},
    ],
)
def test_streamed_tokens_have_the_probabilities_that_the_model_predicts(
    make_language_model: Callable[..., LanguageModel], options: dict[str, Any]
) -> None:
    model = make_language_model("bpe")
    (whole,) = model.generate("ein", **options)
    stream = model.stream_tokens("ein", alternatives=4, **options)
    parts = list(stream)
    tokens = [token for part in parts for token in part.tokens]
    assert stream.continuation == whole
    assert "".join(part.text for part in parts) == whole.text
    assert [(token.token, token.id) for token in tokens] == list(zip(whole.tokens, whole.ids, strict=True))
    assert [token.log_probability for token in tokens] == pytest.approx(whole.token_log_probabilities, abs=1e-5)
    prompt = model.bundle.tokenizer.encode("ein")
    read = model.predict_tokens("ein", whole.ids[: (model.context_length or 0) - len(prompt)], count=4)[len(prompt) :]
    if "beyond_context" in options:
        assert len(tokens) > len(read)  # it has slid
        read = read[: (model.context_length or 0) - len(prompt) - 1]
    for token, expected in zip(tokens, read, strict=False):  # by another path: one pass over the whole text
        assert [each.token for each in token.alternatives] == [each.token for each in expected.alternatives]
        assert [each.log_probability for each in token.alternatives] == pytest.approx(
            [each.log_probability for each in expected.alternatives], abs=1e-4
        )


def test_a_stream_without_alternatives_has_none(make_language_model: Callable[..., LanguageModel]) -> None:
    model = make_language_model("bpe")
    parts = list(model.stream_tokens("ein", alternatives=0, max_new_tokens=3))
    assert {token.alternatives for part in parts for token in part.tokens} == {()}
    with pytest.raises(ConfigError, match="alternatives = -1"):
        model.stream_tokens("ein", alternatives=-1)


def test_the_stop_string_that_is_complete_first_ends_the_text(
    make_language_model: Callable[..., LanguageModel],
) -> None:
    model = make_language_model("characters")
    options: dict[str, Any] = {"temperature": 30, "max_new_tokens": 12}
    for seed in range(50):
        text = model.generate("ein", seed=seed, **options)[0].text
        if len(text) > 6 and text[3] not in text[:3]:
            break
    assert len(text) > 6
    stops = (text[1:6], text[3])
    (found,) = model.generate("ein", seed=seed, stop=stops, **options)
    assert found.text == text[:3] == "".join(model.stream("ein", seed=seed, stop=stops, **options))


class TestStopStrings:
    """Generation ends with the token that completes a stop string."""

    @pytest.mark.parametrize("kind", ["bpe", "characters", "whitespace"])
    @pytest.mark.parametrize("beyond_context", ["stop", "slide"])
    def test_tokens_end_where_a_string_is_complete(
        self, make_language_model: Callable[..., LanguageModel], kind: str, beyond_context: str
    ) -> None:
        """Draws depend only on a text's own tokens, so up to there they are those without the stop string."""
        model = make_language_model(kind, max_length=16)
        decode = model.bundle.tokenizer.decode_continuation
        options: dict[str, Any] = {"temperature": 30.0, "max_new_tokens": 40, "beyond_context": beyond_context, "n": 12}
        prompts = ["ein", "Haus"]
        stops = ("a", "au", "r H", "é", "�", "s e", "ei")
        for prompt, stopped, whole in zip(
            prompts, model.generate(prompts, stop=stops, **options), model.generate(prompts, **options), strict=True
        ):
            reasons = {found.finish_reason for found in stopped}
            assert "stop" in reasons
            for ids in (found.ids for found in whole):
                ends = (at for at in range(len(ids)) if any(stop in decode(ids[:at]) for stop in stops))
                expected = ids[: next(ends, len(ids))]
                assert [found.ids for found in stopped].count(expected) >= 1
            alone = model.generate(prompt, stop=stops, **options)
            assert [found.ids for found in alone] == [found.ids for found in stopped]
            for found in stopped:
                assert len(found.token_log_probabilities) == len(found.tokens) == len(found.ids)
                text = decode(found.ids)
                first = min((text.find(stop) for stop in stops if stop in text), default=len(text))
                assert (found.text, found.finish_reason == "stop") == (text[: len(found.text)], first < len(text))
                assert len(found.text) <= first or found.finish_reason == "stop"

    def test_no_token_is_computed_after_a_string_is_complete(
        self, make_language_model: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = make_language_model("characters")
        options: dict[str, Any] = {"temperature": 30, "max_new_tokens": 25}
        seeds = (seed for seed in range(50) if len(model.generate("ein", seed=seed, **options)[0].tokens) == 25)
        options["seed"] = next(seeds)
        (whole,) = model.generate("ein", **options)
        steps, step = list[BeamSearch[Any]](), BeamSearch.step

        def counted(search: BeamSearch[Any]) -> Any:
            steps.append(search)
            return step(search)

        monkeypatch.setattr(BeamSearch, "step", counted)
        (found,) = model.generate("ein", stop=(whole.text[3:6],), **options)
        assert found.text == whole.text[: whole.text.index(whole.text[3:6])]
        assert len(steps) == len(found.tokens) <= 6

    def test_a_beam_ranks_what_ends_with_a_string_by_its_probability(
        self, make_language_model: Callable[..., LanguageModel]
    ) -> None:
        model = make_language_model("characters", seed=5)
        found = model.generate("ein", temperature=0, beam_size=4, n=4, max_new_tokens=12, stop=("a", "e"))
        assert len({each.ids for each in found}) == len(found) > 1
        totals = [sum(each.token_log_probabilities) for each in found if each.finish_reason == "stop"]
        assert totals == sorted(totals, reverse=True)
        assert totals
        for each in found:
            assert not {"a", "e"} & set(each.text)

    @pytest.mark.parametrize("form", [1, 2, 3])
    def test_the_rule_decodes_few_tokens(
        self, make_language_model: Callable[..., LanguageModel], form: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stop string over several tokens is found, and the time for a token does not grow with the text."""
        model = make_language_model()
        tokenizer = model.bundle.tokenizer
        ids = tokenizer.encode("é漢 " * 40 * form + "Haus Haus, 漢")
        sizes, decode = list[int](), type(tokenizer).decode_continuation

        def counted(self: Tokenizer, ids: Sequence[int], *, final: bool = False) -> str:
            sizes.append(len(ids))
            return decode(self, ids, final=final)

        monkeypatch.setattr(Tokenizer, "decode_continuation", counted)
        rule = model._stop_rule(tokenizer.encode("ein rotes"), (" Haus, 漢",))
        assert [rule(ids[:at]) for at in range(1, len(ids))] == [False] * (len(ids) - 1)
        assert max(sizes) < 60
        assert rule(ids)
