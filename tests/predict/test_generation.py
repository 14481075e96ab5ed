"""Generated text of language models: streaming and stop strings."""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from headway.predict import LanguageModel
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
