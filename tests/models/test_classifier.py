"""The classifier: padding has no effect (or the same for all), and the reference form follows its equations."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.nn.attention import attention_weights, record_attention
from headway.nn.blocks import EncoderBlock
from headway.nn.pooling import PoolingKind
from headway.nn.positions import sinusoids
from headway.text.base import BOS, EOS, PAD

VOCAB, CLASSES = 11, 3
SMALL: dict[str, Any] = {"d_model": 8, "num_heads": 2, "d_ff": 12, "max_length": 9}
POOLINGS = get_args(PoolingKind)
AS_WRITTEN = {"norm": "none", "residual": False, "masked": False, "pad_to_max_length": True, "pooling": "last"}
AS_CODED = {**AS_WRITTEN, "norm": "pre", "residual": True}


def make(**changes: Any) -> EncoderClassifier:
    model = EncoderClassifier(ClassifierConfig.parse({**SMALL, **changes}, "test"), VOCAB, CLASSES)
    with torch.no_grad():
        model.projection.bias.normal_()  # with zeros, a bias that is added twice or never would not be noticed
    return model.eval()


def rows(*texts: list[int]) -> Tensor:
    width = max(map(len, texts))
    return torch.tensor([text + [PAD] * (width - len(text)) for text in texts])


TEXTS = [[5, 6, 7, 8, 9, EOS], [6, EOS], [10, 10, 4, EOS]]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("norm", ["pre", "post"])
class TestMasked:
    @pytest.mark.parametrize("convolution", [0, 3])
    def test_padding_changes_nothing(self, pooling: PoolingKind, norm: str, convolution: int) -> None:
        model = make(pooling=pooling, norm=norm, encoder_layers=2, convolution=convolution)
        together = model(rows(*TEXTS))
        assert together.shape == (3, CLASSES)
        for text, logits in zip(TEXTS, together, strict=True):
            torch.testing.assert_close(model(rows(text))[0], logits)

    def test_padding_to_the_limit_changes_nothing(self, pooling: PoolingKind, norm: str) -> None:
        plain, padded = make(pooling=pooling, norm=norm), make(pooling=pooling, norm=norm, pad_to_max_length=True)
        padded.load_state_dict(plain.state_dict())
        torch.testing.assert_close(padded(rows(*TEXTS)), plain(rows(*TEXTS)))


class TestReferenceForm:
    def test_as_written_is_its_equations(self) -> None:
        """Without residual, norm or mask: x = FFN(MultiHead(x)), and the last position is projected."""
        model = make(**AS_WRITTEN)
        block = model.encoder.blocks[0]
        state = block.state_dict()
        source = rows(*TEXTS)
        padded = torch.zeros(3, 9, dtype=torch.long)
        padded[:, :6] = source
        x = model.embedding.weight[padded] * math.sqrt(8) + sinusoids(9, 8)
        query, key, value = (
            F.linear(x, state[f"attention.{name}.weight"], state[f"attention.{name}.bias"])
            for name in ("query", "key", "value")
        )
        heads = [
            attention_weights(query[..., part], key[..., part]) @ value[..., part]
            for part in (slice(0, 4), slice(4, 8))
        ]
        x = F.linear(torch.cat(heads, -1), state["attention.output.weight"], state["attention.output.bias"])
        inner = F.linear(x, state["feed_forward.inner.weight"], state["feed_forward.inner.bias"]).relu()
        x = F.linear(inner, state["feed_forward.outer.weight"], state["feed_forward.outer.bias"])
        expected = x[:, 8] @ model.projection.weight.T + model.projection.bias
        torch.testing.assert_close(model(source), expected)

    @pytest.mark.parametrize("form", [AS_WRITTEN, AS_CODED])
    def test_padded_and_cut_to_exactly_the_limit(self, form: dict[str, Any]) -> None:
        model = make(**form)
        assert model.encoder_tokens(rows(*TEXTS)).shape == (3, 9)
        torch.testing.assert_close(model(rows(*TEXTS))[:1], model(rows(TEXTS[0] + [PAD] * 3)))
        long = torch.randint(4, VOCAB, (2, 14))
        assert torch.equal(model.encoder_tokens(long), long[:, :9])
        assert torch.equal(model(long), model(long[:, :9]))

    def test_the_readings_differ_in_norms(self) -> None:
        names = [{name for name in make(**form).state_dict() if "norm" in name} for form in (AS_WRITTEN, AS_CODED)]
        assert names[0] == set()
        ends = {f"{norm}.{kind}" for norm in ("attention_residual.norm", "feed_forward_residual.norm")
                for kind in ("weight", "bias")}  # fmt: skip
        assert names[1] == {f"encoder.blocks.0.{end}" for end in ends} | {"encoder.norm.weight", "encoder.norm.bias"}

    def test_padding_is_attended_to(self) -> None:
        model = make(**AS_CODED)
        before = model(rows(*TEXTS))
        with torch.no_grad():
            model.embedding.weight[PAD].normal_()
        assert (model(rows(*TEXTS)) - before).abs().min() > 1e-4


RELATIVE = {"pooling": "first", "positions": "relative_bias"}  # the bias depends on the position that is computed


class TestOnePosition:
    """If only one position is used, the last block computes only this position, with the same result."""

    @pytest.mark.parametrize("layers", [1, 2])
    @pytest.mark.parametrize("norm", ["pre", "post", "none"])
    @pytest.mark.parametrize(
        "changes", [{"pooling": "first"}, {"pooling": "last"}, RELATIVE, AS_WRITTEN, AS_CODED], ids=str
    )
    def test_it_is_that_of_the_whole_stack(self, changes: dict[str, Any], norm: str, layers: int) -> None:
        model = make(**{**changes, "norm": norm, "encoder_layers": layers, "score": "general"})
        source = rows(*TEXTS)
        embedded, framed = model.embed_source(source), model.encoder_tokens(source)
        mask = framed != PAD if model.config.masked else None
        memory = model.encoder(embedded, None if mask is None else mask.unsqueeze(1))
        last = [5, 1, 3] if model.config.masked else [8, 8, 8]
        places = [0, 0, 0] if model.config.pooling == "first" else last
        expected = model.projection(memory[torch.arange(3), torch.tensor(places)])
        torch.testing.assert_close(model(source), expected)

    @pytest.mark.parametrize("pooling", ["first", "last", "mean"])
    def test_blocks_are_dropped_in_training(self, pooling: str) -> None:
        model = make(pooling=pooling, encoder_layers=4, layer_dropout=0.9).train()
        runs: list[int] = []
        for number, block in enumerate(model.encoder.blocks):
            block.register_forward_hook(lambda *_, number=number: runs.append(number))
        for _ in range(50):
            model(rows(*TEXTS))
        assert 1 <= len(runs) < 50

    def test_an_observer_sees_its_weights(self) -> None:
        model = make(pooling="last")
        block = model.encoder.blocks[0]
        assert isinstance(block, EncoderBlock)
        with record_attention(block.attention) as seen:
            model(rows(*TEXTS))
        assert seen[0].shape == (3, 2, 1, 6)


class TestNoBlocks:
    def test_a_linear_model_on_mean_embeddings(self) -> None:
        model = make(encoder_layers=0, norm="none", positions="none", scale_embedding=False)
        expected = model.embedding.weight[TEXTS[2]].mean(0) @ model.projection.weight.T + model.projection.bias
        torch.testing.assert_close(model(rows(*TEXTS))[2], expected)

    def test_order_is_nothing_to_it(self) -> None:
        model = make(encoder_layers=0, norm="none", positions="none")
        torch.testing.assert_close(model(rows([5, 6, 7, EOS])), model(rows([7, 5, 6, EOS])))


class TestParts:
    def test_embedding_then_the_rest_is_forward(self) -> None:
        model = make(pooling="first")
        source = rows(*TEXTS)
        assert torch.equal(model.logits_from(model.embed_source(source), source), model(source))

    def test_first_reads_a_begin_symbol(self) -> None:
        model = make(pooling="first", encoder_layers=0, norm="none", positions="none")
        assert model.encoder_tokens(rows(*TEXTS))[:, 0].tolist() == [BOS] * 3
        expected = model.projection(model.embedding(torch.tensor([[BOS]])))[0]
        torch.testing.assert_close(model(rows(*TEXTS)), expected.expand(3, -1))

    def test_padding_and_begin_are_the_tokenizers(self) -> None:
        assert (EncoderClassifier.pad, EncoderClassifier.bos) == (PAD, BOS)

    def test_options_of_the_blocks_arrive(self) -> None:
        """Each option changes the function: with the same weights for the same names, the logits differ."""
        plain = make(encoder_layers=2)
        for changes in (
            {"score": "dot"},
            {"positions": "rotary"},
            {"positions": "none"},
            {"activation": "gelu"},
            {"residual": False},
            {"scale_embedding": False},
        ):
            other = make(encoder_layers=2, **changes)
            other.load_state_dict(plain.state_dict())
            assert (other(rows(*TEXTS)) - plain(rows(*TEXTS))).abs().max() > 1e-3, changes
        assert len(make(qk_projection="hidden").state_dict()) > len(make().state_dict())

    @pytest.mark.parametrize("pooling", ["mean", "first"])
    def test_learned_positions_reach_to_the_limit(self, pooling: str) -> None:
        model = make(positions="learned", pooling=pooling)
        assert model.max_length == 9
        assert model(torch.full((1, 9), 5)).isfinite().all()

    def test_a_text_of_nothing_but_padding_has_finite_logits(self) -> None:
        for pooling in POOLINGS:
            assert make(pooling=pooling)(torch.zeros(2, 3, dtype=torch.long)).isfinite().all()


class TestTraining:
    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_every_weight_learns(self, pooling: PoolingKind) -> None:
        model = make(pooling=pooling, encoder_layers=2, convolution=3).train()
        F.cross_entropy(model(rows(*TEXTS)), torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
        for name, weight in model.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name

    def test_it_can_learn(self) -> None:
        model = make(dropout=0.0).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(rows(*TEXTS)), torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert model(rows(*TEXTS)).argmax(1).tolist() == [0, 1, 2]

    @pytest.mark.parametrize("body", [None, "masked", "decoder_only"])
    def test_word_dropout_drops_whole_tokens_only_in_training(self, body: str | None) -> None:
        model: Any = make(word_dropout=0.5, positions="none")
        if body is not None:
            sizes = {"kind": body, "d_model": 8, "num_heads": 2, "d_ff": 12, "dropout": 0.0}
            config = SequenceClassifierConfig.parse({"body": sizes, "word_dropout": 0.5}, "test")
            model = SequenceClassifier(config, VOCAB, CLASSES).eval()
        source = torch.full((50, 8), 5)
        whole = model.embed_source(source)
        thinned = model.train().embed_source(source)
        kept = (thinned != 0).all(-1)
        assert torch.equal(kept, (thinned != 0).any(-1))
        assert 0.3 < kept.float().mean() < 0.7  # 400 draws or more: within 8 standard deviations of a half
        torch.testing.assert_close(thinned[kept], 2 * whole[kept])

    def test_dropout_is_also_of_embeddings_unless_they_have_their_own(self) -> None:
        assert make(dropout=0.3).embedding_dropout.p == 0.3
        assert make(dropout=0.3, embedding_dropout=0.0).embedding_dropout.p == 0.0

    def test_dropouts_act_only_in_training(self) -> None:
        for name in (
            "dropout",
            "attention_dropout",
            "feed_forward_dropout",
            "pooled_dropout",
            "word_dropout",
            "embedding_dropout",
        ):
            model = make(**{"dropout": 0.0, name: 0.5})
            assert torch.equal(model(rows(*TEXTS)), model(rows(*TEXTS))), name
            model.train()
            assert not torch.equal(model(rows(*TEXTS)), model(rows(*TEXTS))), name


class TestRefusals:
    def test_unmasked_without_equal_lengths(self) -> None:
        with pytest.raises(ConfigError, match=r"masked = false: padding is not ignored.*pad_to_max_length = true"):
            ClassifierConfig.parse({"masked": False}, "model")

    def test_heads(self) -> None:
        with pytest.raises(ConfigError, match="num_heads = 3 does not divide d_model = 256"):
            ClassifierConfig.parse({"num_heads": 3}, "model")

    def test_a_convolution_of_even_width(self) -> None:
        with pytest.raises(ConfigError, match="convolution = 2 has no center; choose an odd width"):
            ClassifierConfig.parse({"convolution": 2}, "model")

    def test_rotary_positions_of_odd_heads(self) -> None:
        with pytest.raises(ConfigError, match=r"rotates pairs of units, but .* keys of a head have 3 units; set d_key"):
            ClassifierConfig.parse({"d_model": 9, "num_heads": 3, "positions": "rotary"}, "model")

    def test_unknown_pooling(self) -> None:
        with pytest.raises(ConfigError, match="pooling = 'avg'"):
            ClassifierConfig.parse({"pooling": "avg"}, "model")
