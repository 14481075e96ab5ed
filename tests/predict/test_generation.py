"""Generated text of language models: streaming and stop strings."""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

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


@pytest.mark.parametrize("kind", ["bpe", "characters", "whitespace"])
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
