"""Text in, text out: order, batches, blank lines, limits."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headway
from headway import predict
from headway.bundle import Bundle, TaskConfig
from headway.decode import length_penalty
from headway.errors import BundleError, ConfigError, LengthError
from headway.models.build import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import Translation, Translator
from headway.text import Tokenizer, TokenizerConfig

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1}
SOURCES = ["ein Haus", "das", "das rote Haus und der grüne Baum", "Baum", "der Baum und das Haus", "rot", "ein Haus"]


def translator(kind: str = "bpe", max_tokens: int = 2048, **changes: Any) -> Translator:
    """Random weights with the end symbol made likely, so that outputs differ in length and end soon."""
    words = ["ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der"]
    more = [" ".join(random.Random(seed).sample(words, 6)) for seed in range(9)]
    config = TokenizerConfig.parse({"kind": kind, "vocab_size": 300}, "test")
    tokenizer = Tokenizer.train([*SOURCES, *more], config)
    torch.manual_seed(3)
    size = tokenizer.vocab_size
    model = build_model(TransformerConfig.parse({**SIZES, "tie": "none", **changes}, "test"), size, size)
    with torch.no_grad():
        model.projection.weight.mul_(4.0)
        model.projection.weight[2] += model.projection.weight[4:].mean(0) + 0.4 * torch.randn(16)
    return Translator(Bundle(TaskConfig(), model, tokenizer, tokenizer), device="cpu", max_tokens=max_tokens)


@pytest.fixture(scope="module")
def model() -> Translator:
    return translator()


def texts(found: list[Translation]) -> list[str]:
    return [translation.text for translation in found]


@pytest.mark.parametrize("beam_size", [1, 4])
class TestBatches:
    def test_many_at_once_equal_one_by_one(self, model: Translator, beam_size: int) -> None:
        together = model.translate(SOURCES, beam_size=beam_size)
        alone = [model.translate(source, beam_size=beam_size) for source in SOURCES]
        assert len(set(texts(together))) > 3  # or order would not matter
        for one, other in zip(together, alone, strict=True):
            assert one.source == other.source
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-4)

    def test_order_is_kept(self, model: Translator, beam_size: int) -> None:
        found = model.translate(SOURCES, beam_size=beam_size)
        assert [translation.source for translation in found] == SOURCES
        assert texts(model.translate(SOURCES[::-1], beam_size=beam_size)) == texts(found)[::-1]

    def test_the_budget_of_a_batch_changes_nothing(self, model: Translator, beam_size: int) -> None:
        """A budget of one token puts each sentence in a batch of its own."""
        expected = texts(model.translate(SOURCES, beam_size=beam_size))
        assert texts(translator(max_tokens=1).translate(SOURCES, beam_size=beam_size)) == expected

    def test_a_stream_equals_a_list(self, model: Translator, beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = texts(model.translate(SOURCES, beam_size=beam_size))
        monkeypatch.setattr(predict, "_CHUNK_LINES", 3)
        assert texts(list(model.translate_lines(iter(SOURCES), beam_size=beam_size))) == expected

    def test_blank_texts_stay_blank_and_in_place(self, model: Translator, beam_size: int) -> None:
        found = texts(model.translate(["", "das", " \t ", "\u3000", "Baum"], beam_size=beam_size))
        assert found[0] == found[2] == found[3] == ""
        assert [found[1], found[4]] == texts(model.translate(["das", "Baum"], beam_size=beam_size))
        assert texts(model.translate(["", ""], beam_size=beam_size)) == ["", ""]


def test_batches_stay_within_the_budget() -> None:
    sources = [[0] * length for length in (1, 2, 2, 5, 9)]
    found = list(predict._batches([0, 1, 2, 3, 4], sources, max_tokens=9, most=5))
    assert found == [[0, 1, 2], [3], [4]]  # 3 x 3; 6 alone, for 2 x 10 is too much; 10 alone, over the budget
    assert list(predict._batches([0, 1, 2], sources, max_tokens=9, most=2)) == [[0, 1], [2]]


class TestShapes:
    def test_a_string_gives_one_and_a_list_gives_a_list(self, model: Translator) -> None:
        one, many = model.translate("ein Haus"), model.translate(["ein Haus"])
        assert isinstance(one, Translation)
        assert isinstance(many, list)
        assert one == many[0]
        assert model.translate([]) == []
        assert list(model.translate_lines([])) == []

    def test_candidates_are_different_and_best_first(self, model: Translator) -> None:
        found = model.translate("das rote Haus", beam_size=4, n_best=4)
        scores = [candidate.score for candidate in found.candidates]
        assert len({candidate.tokens for candidate in found.candidates}) == len(scores) == 4
        assert scores == sorted(scores, reverse=True)
        assert (found.text, found.score, found.tokens) == (
            found.candidates[0].text,
            scores[0],
            found.candidates[0].tokens,
        )
        assert len(model.translate("das rote Haus", beam_size=4).candidates) == 1

    @pytest.mark.parametrize("alpha", [0.0, 0.6])
    def test_the_score_is_the_log_probability_over_the_penalty(self, model: Translator, alpha: float) -> None:
        for candidate in model.translate("das rote Haus", n_best=4, length_penalty=alpha).candidates:
            penalty = length_penalty(len(candidate.tokens) + 1, alpha)
            assert candidate.score == pytest.approx(candidate.log_probability / penalty)
            assert candidate.text == "".join(candidate.tokens) or "<0x" in "".join(candidate.tokens)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"beam_size": 0}, r"beam size 0: expected from 1 \(greedy search\) to \d+"),
            ({"beam_size": 10**6}, r"beam size 1000000: expected .* the size of the vocabulary"),
            ({"beam_size": 2, "n_best": 3}, r"3 best translations: expected from 1 to the beam size, which is 2"),
            ({"n_best": 0}, r"0 best translations: expected from 1"),
            ({"length_penalty": -1.0}, r"length penalty -1.0: expected 0"),
            ({"length_penalty": math.nan}, r"length penalty nan: expected 0"),
        ],
    )
    def test_options_out_of_range(self, model: Translator, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            model.translate("das", **options)

    def test_damaged_weights_are_told(self) -> None:
        broken = translator("bpe")
        with torch.no_grad():
            broken.bundle.model.projection.weight.fill_(math.nan)
        with pytest.raises(BundleError, match="weights are damaged"):
            broken.translate("das")

    def test_the_text_never_holds_special_tokens(self, model: Translator) -> None:
        for translation in model.translate(SOURCES, n_best=4):
            for candidate in translation.candidates:
                assert not {"<pad>", "<bos>", "<eos>", "<unk>"} & set(candidate.tokens)


class TestLimits:
    def test_a_source_over_the_learned_positions_is_refused_with_its_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whitespace tokens: a limit of 5 allows four words and the end symbol."""
        limited = translator("whitespace", positions="learned", max_length=5)
        assert limited.translate("das rote Haus und").text is not None
        monkeypatch.setattr(predict, "_CHUNK_LINES", 3)
        lines = ["das"] * 7 + ["das rote Haus und der"] + ["das"]
        found = limited.translate_lines(lines)
        for _ in range(6):  # the chunks before the bad line come through
            next(found)
        with pytest.raises(LengthError, match=r"line 8: a source of 6 tokens is longer than the 5 positions"):
            next(found)
        with pytest.raises(LengthError, match="split it into sentences, or train with positions = 'sinusoidal'"):
            limited.translate(lines)

    def test_outputs_stay_within_the_learned_positions(self) -> None:
        limited = translator("whitespace", positions="learned", max_length=5)
        with torch.no_grad():
            limited.bundle.model.projection.weight[2] = 0  # the end symbol is now unlikely
        lengths = [len(found.tokens) for beam in (1, 4) for found in limited.translate(["das", "ein"], beam_size=beam)]
        assert max(lengths) <= 4

    def test_the_maximum_output_is_the_input_plus_fifty(self) -> None:
        endless = translator("whitespace")
        model = endless.bundle.model
        with torch.no_grad():
            for norm in model.decoder.blocks[-1].modules():
                if isinstance(norm, nn.LayerNorm):  # every hidden state becomes a row of ones
                    norm.weight.zero_()
                    norm.bias.fill_(1.0)
            model.projection.weight.zero_()
            model.projection.weight[4] = 1.0
        for beam_size in (1, 2):
            assert len(endless.translate("das rote Haus", beam_size=beam_size).tokens) == 3 + 50

    def test_sinusoidal_positions_have_no_limit(self, model: Translator) -> None:
        long = translator("whitespace")
        source = " ".join(["Haus"] * 1500)
        assert len(long.bundle.source_tokenizer.encode(source)) == 1500
        assert long.translate(source, beam_size=1).source == source

    @pytest.mark.parametrize(
        "source", ["a\0b", "\u202eשלום\u202c", "e\u0301\u0301\u0301", "👩‍👩‍👧", "<eos> <pad>", "\ufeff", "x\ny", "\x85"]
    )
    def test_odd_characters_are_text(self, model: Translator, source: str) -> None:
        found = model.translate([source, "das"])
        assert found[0].source == source
        assert found[1].tokens == model.translate("das").tokens


class TestLoad:
    def test_a_saved_model_translates_as_before(self, model: Translator, tmp_path: Path) -> None:
        model.bundle.save(tmp_path / "model", "# Card")
        for name in (tmp_path / "model", str(tmp_path / "model")):
            assert headway.load(name, device="cpu").translate(SOURCES) == model.translate(SOURCES)

    def test_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match=r"nowhere"):
            headway.load(tmp_path / "nowhere")
