"""Alignments: the attention of one teacher-forced pass, the hard alignment, and words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headway.errors import ConfigError
from headway.models.transformer import Transformer
from headway.nn.attention import attention_is_observed, record_attention
from headway.predict import Candidate, Translator
from headway.predict.translation.alignment import (
    attention_maps,
    default_alignment_layer,
    hard_alignment,
    to_word_alignment,
    tokens_to_words,
)
from headway.text.base import BOS, EOS

Make = Callable[..., Translator]
SOURCES = [[10, 11, 12, EOS], [13, EOS], [14, 15, EOS]]
TARGETS = [[20, 21], [22, 23, 24], []]


@pytest.mark.parametrize("layer", [None, 0, 1, 2, -1])
def test_the_weights_are_those_of_decoding_step_by_step(make_translator: Make, layer: int | None) -> None:
    """Compute the alignment in a second way: token by token, on its own in a batch, recorded at the block."""
    model = make_translator(decoder_layers=3).bundle.model
    assert isinstance(model, Transformer)
    together = attention_maps(model, SOURCES, TARGETS, layer=layer)
    for source, target, found in zip(SOURCES, TARGETS, together, strict=True):
        block = model.decoder.blocks[2 if layer is None else layer]
        with record_attention(block.get_submodule("cross_attention")) as seen:
            state = model.start([source])
            for token in [BOS, *target][: len(target)]:
                model.step(state, torch.tensor([token])).logits()
        assert found.shape == (len(target), len(source))
        for row, weights in zip(found, seen, strict=True):
            assert torch.allclose(row, weights[0].mean(0).squeeze(0), atol=1e-6)
            assert float(row.sum()) == pytest.approx(1, abs=1e-5)
    assert not attention_is_observed()  # no hooks remain


def test_which_block_aligns_depends_on_depth() -> None:
    assert [default_alignment_layer(blocks) for blocks in (1, 2, 3, 4, 6, 12)] == [0, 1, 2, 2, 4, 10]


@pytest.mark.parametrize("layer", [3, -4])
def test_a_block_that_is_not_there(make_translator: Make, layer: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"alignment layer {layer}: this model's decoder has 3 blocks; expected 0 to 2"
    ):
        attention_maps(make_translator(decoder_layers=3).bundle.model, SOURCES, TARGETS, layer=layer)


def test_the_hard_alignment_is_the_greatest_weight() -> None:
    found = hard_alignment(torch.tensor([[0.1, 0.5], [0.3, 0.2], [0.25, 0.25]]), ["a", "b"])
    assert found.pairs == ((1, 0), (0, 1), (0, 2))
    assert found.attention[1] == pytest.approx((0.3, 0.2))
    assert hard_alignment(torch.zeros(2, 0), []).pairs == ()


class TestWords:
    def test_tokens_that_join_to_the_text(self) -> None:
        assert tokens_to_words(["das", " ", " Ha", "us", ".", "\n", "<0xF0>", "<0x9F>"], subwords=True) == (
            ["das", "Haus.", "<0xF0><0x9F>"],
            [0, None, 1, 1, 1, None, 2, 2],
        )
        assert tokens_to_words([], subwords=True) == ([], [])

    def test_tokens_that_are_words(self) -> None:
        assert tokens_to_words(["das", "Haus"], subwords=False) == (["das", "Haus"], [0, 1])

    def test_pairs_of_words(self) -> None:
        assert to_word_alignment([(0, 0), (2, 1), (1, 2), (2, 3)], [0, None, 1], [0, 0, 1, 1]) == [
            (0, 0),
            (1, 0),
            (1, 1),
        ]


class TestTranslations:
    @pytest.mark.parametrize("kind", ["bpe", "whitespace", "words"])
    def test_every_candidate_has_an_alignment_alone_and_among_others(self, make_translator: Make, kind: str) -> None:
        model = make_translator(kind)
        texts = ["das rote Haus", "", "ein Baum"]
        together = model.translate(texts, alignment=True)
        for text, found in zip(texts, together, strict=True):
            if not text:
                assert found.alignment is None
                continue
            assert found.alignment is not None
            assert list(found.alignment.source_tokens) == model.bundle.source_tokenizer.tokens(text)
            assert [target for _, target in found.alignment.pairs] == list(range(len(found.tokens)))
            alone = model.translate(text, alignment=True).alignment
            assert alone is not None
            assert alone.pairs == found.alignment.pairs
            assert all(sum(row) < 1 for row in found.alignment.attention)  # the rest belongs to the end symbol
        assert model.translate("das").alignment is None

    def test_a_missing_block_is_reported_before_the_search(
        self, make_translator: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = make_translator()
        model.alignment_layer = 9
        monkeypatch.setattr("headway.predict.translation.translator.search_all", None)
        with pytest.raises(ConfigError, match="alignment layer 9"):
            model.translate("das rote Haus", alignment=True)

    def test_words(self, make_translator: Make) -> None:
        model = make_translator("bpe")
        candidate = model.translate("das rote Haus", alignment=True).candidates[0]
        words = model.word_alignment(candidate)
        assert words.source_words == ("das", "rote", "Haus")
        assert words.target_words == tuple("".join(candidate.tokens).split())
        with pytest.raises(ConfigError, match="has no alignment; translate with alignment=True"):
            model.word_alignment(Candidate("x", 0.0, 0.0, ("x",)))
