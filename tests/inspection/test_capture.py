"""Capturing attention: complete, correct, and without any effect on the model's results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from headway.engine.accelerate import accelerate
from headway.errors import ShapeError
from headway.inspection.capture import attention_modules, capture, count_attention_weights
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import BlockConfig, DecoderBlock, EncoderBlock, MultiHeadAttention, RecurrentAttention
from headway.nn.attention import attention_is_observed
from headway.nn.pooling import AttentionPooling

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, 0, 0]])
TARGET = torch.tensor([[1, 5, 9, 4], [1, 7, 0, 0]])
SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 3}
SMALL = {"d_model": 16, "d_embedding": 8}


def transformer(**changes: object) -> Transformer:
    return Transformer(TransformerConfig.parse({**SIZES, **changes}, "test"), 12, 12).eval()


def recurrent(**changes: object) -> RecurrentModel:
    return RecurrentModel(RecurrentConfig.parse({**SMALL, "tie": "none", **changes}, "test"), 12, 12).eval()


def classifier(**changes: object) -> EncoderClassifier:
    config = {"d_model": 16, "num_heads": 4, "d_ff": 24, "encoder_layers": 2, "pooling": "attention", "max_length": 9}
    return EncoderClassifier(ClassifierConfig.parse({**config, **changes}, "test"), 12, 3).eval()


def logits(model: nn.Module) -> Tensor:
    out: Tensor = model(SOURCE) if isinstance(model, EncoderClassifier) else model(SOURCE, TARGET)
    return out


MODELS = [
    transformer,
    lambda: transformer(norm="pre", score="additive"),
    recurrent,
    lambda: recurrent(attention="luong"),
    lambda: recurrent(attention="luong", input_feeding=True),
    lambda: recurrent(attention="none"),
    classifier,
]


@pytest.mark.parametrize("make", MODELS)
class TestEveryModel:
    @torch.inference_mode()
    def test_computes_the_same_bits_watched_and_unwatched(self, make: object) -> None:
        assert callable(make)
        model = make()
        before = logits(model)
        with capture(model) as seen:
            assert torch.equal(logits(model), before)
        found = seen.maps
        assert torch.equal(logits(model), before)
        assert len(seen.maps) == len(found)  # nothing is recorded after the end

    @torch.inference_mode()
    def test_rows_are_shares_of_what_may_be_attended_to(self, make: object) -> None:
        assert callable(make)
        model = make()
        with capture(model) as seen:
            logits(model)
        for each in seen.maps:
            assert (each.weights >= 0).all()
            torch.testing.assert_close(each.weights.sum(3), torch.ones(each.weights.shape[:3]))
            if each.kind != "decoder":
                assert (each.weights[1, :, :, 3:] == 0).all()  # padding of the second source
            else:
                assert torch.equal(each.weights, each.weights.tril())  # no peeking

    def test_gradients_flow_as_ever(self, make: object) -> None:
        assert callable(make)
        model = make()
        torch.autograd.backward(logits(model).sum())
        plain = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        with capture(model) as seen:
            torch.autograd.backward(logits(model).sum())
        assert not any(each.weights.requires_grad for each in seen.maps)
        for parameter, grad in zip(model.parameters(), plain, strict=True):
            torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=0)


def names(model: nn.Module) -> list[tuple[str | None, int, str, tuple[int, ...]]]:
    with capture(model) as seen:
        logits(model)
    return [(each.kind, each.layer, each.name, tuple(each.weights.shape)) for each in seen.maps]


def test_a_transformers_maps_are_named_by_kind_and_layer() -> None:
    assert names(transformer()) == [
        *[("encoder", n, f"encoder.blocks.{n - 1}.attention", (2, 4, 5, 5)) for n in (1, 2)],
        *[("decoder", n, f"decoder.blocks.{n - 1}.attention", (2, 4, 4, 4)) for n in (1, 2, 3)],
        *[("cross", n, f"decoder.blocks.{n - 1}.cross_attention", (2, 4, 4, 5)) for n in (1, 2, 3)],
    ]


def test_a_recurrent_decoders_attention_is_over_the_source() -> None:
    for form in ("bahdanau", "luong"):
        assert names(recurrent(attention=form)) == [("cross", 1, "decoder.attention", (2, 1, 4, 5))]
    assert names(recurrent(attention="none")) == []


def test_a_classifiers_pooling_is_one_question() -> None:
    assert names(classifier())[-1] == ("pooling", 1, "pooling", (2, 1, 1, 5))
    assert [kind for kind, *_ in names(classifier(pooling="mean"))] == ["encoder", "encoder"]


def test_a_part_alone_is_what_it_is_or_unknown() -> None:
    options = BlockConfig(d_model=8, num_heads=2, d_ff=8)

    def kinds(module: nn.Module) -> list[tuple[str, str | None]]:
        return [(name, kind) for name, kind, _ in attention_modules(module)]

    assert kinds(EncoderBlock(options)) == [("attention", "encoder")]
    assert kinds(DecoderBlock(options)) == [("attention", "decoder"), ("cross_attention", "cross")]
    assert kinds(DecoderBlock(options).attention) == [("", None)]
    assert kinds(nn.Sequential(MultiHeadAttention(8, 2))) == [("0", None)]
    assert kinds(RecurrentAttention(8, "dot")) == [("", "cross")]
    assert kinds(nn.ModuleDict({"decoder": AttentionPooling(8)})) == [("decoder", "pooling")]
    with capture(attention := MultiHeadAttention(8, 2)) as seen:
        attention(torch.randn(1, 5, 8))
    (only,) = seen.maps
    assert (only.kind, only.layer, only.weights.shape) == (None, 1, (1, 2, 5, 5))
    assert count_attention_weights(attention, 5) == 2 * 5 * 5


@pytest.mark.parametrize("make", MODELS)
def test_how_much_will_pass_is_known_before(make: object) -> None:
    assert callable(make)
    model = make()
    with capture(model) as seen:
        logits(model)
    expected = sum(each.weights[0].numel() for each in seen.maps)
    assert count_attention_weights(model, SOURCE.size(1), TARGET.size(1)) == expected


def test_other_models_are_not_recorded() -> None:
    model, other = transformer(), transformer()
    with capture(model) as seen:
        logits(other)
    assert seen.maps == ()


def test_each_thread_records_its_own_passes() -> None:
    """Threads that share a model record what each of them computes, also at the same time."""
    model = transformer()
    sources = [torch.tensor([[5 + at, 6, 7, 2]]) for at in range(4)]

    @torch.inference_mode()
    def recorded(source: Tensor) -> list[Tensor]:
        with capture(model) as seen:
            for _ in range(3):
                model(source, TARGET[:1])
        return [each.weights for each in seen.maps]

    alone = [recorded(source) for source in sources]
    with ThreadPoolExecutor(4) as threads:
        for one, other in zip(alone, threads.map(recorded, sources), strict=True):
            assert all(map(torch.equal, one, other))


@torch.inference_mode()
def test_a_head_by_hand() -> None:
    """softmax(q k^T / sqrt(d_k)) of the third head of the first encoder block, computed from its weights."""
    model = transformer()
    with capture(model) as seen:
        model(SOURCE[:1], TARGET[:1])
    x = model.embed_source(SOURCE[:1])[0]
    names = model.state_dict()
    query, key = (
        x @ names[f"encoder.blocks.0.attention.{part}.weight"].T + names[f"encoder.blocks.0.attention.{part}.bias"]
        for part in ("query", "key")
    )
    head = slice(8, 12)  # four units per head
    scores = query[:, head] @ key[:, head].T / 4**0.5
    expected = scores.exp() / scores.exp().sum(1, keepdim=True)
    torch.testing.assert_close(seen.maps[0].weights[0, 2], expected)


@torch.inference_mode()
@pytest.mark.parametrize("make", [transformer, recurrent])
def test_decoding_step_by_step_gives_the_map_of_the_whole_target(make: object) -> None:
    assert callable(make)
    model = make()
    source, target = SOURCE[:1], TARGET[:1]
    with capture(model) as whole:
        model(source, target)
    with capture(model) as stepped:
        state = model.start(source.tolist())
        for token in target[0]:
            model.step(state, token.view(1)).logits()
    assert [each.name for each in stepped.maps] == [each.name for each in whole.maps]
    for one, other in zip(stepped.maps, whole.maps, strict=True):
        torch.testing.assert_close(one.weights, other.weights)


@torch.inference_mode()
def test_nothing_is_observed_after_a_model_failed() -> None:
    model = transformer()
    with pytest.raises(ShapeError), capture(model):
        model(torch.tensor([[99]]), TARGET[:1])
    assert not attention_is_observed()


@torch.inference_mode()
def test_a_fused_kernel_stays_in_use_while_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerated model with PyTorch's fused attention, which rounds differently, keeps using it while observed."""
    monkeypatch.setattr("headway.engine.attention._fused_is_faster", lambda query, key: True)
    model = accelerate(transformer())
    before = logits(model)
    with capture(model) as seen:
        assert torch.equal(logits(model), before)
    assert len(seen.maps) == 8
