"""Score functions, positions, norms and residual connections of the Transformer, in all combinations."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions, Request, SearchVocabulary, search
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.block_config import Norm, Projection
from headway.nn.scores import ScoreKind
from headway.text.base import BOS, EOS
from headway.text.tokenizer import Tokenizer

V = 11
SIZES: dict[str, Any] = {
    "d_model": 8, "num_heads": 2, "d_ff": 12, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0,
}  # fmt: skip
SCORES: tuple[ScoreKind, ...] = get_args(ScoreKind)
POSITIONS: tuple[str, ...] = get_args(TransformerConfig.model_fields["positions"].annotation)
NORMS: tuple[Norm, ...] = get_args(Norm)
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)


def transformer(vocab_size: int = V, **changes: Any) -> Transformer:
    """Return a small model with random weights, so that every part affects the results."""
    model = Transformer(TransformerConfig.parse({**SIZES, **changes}, "test"), vocab_size, vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, V, shape)


# Results with and without cache agree, and padding has no effect, for all combinations.


def check_a_life(model: Transformer) -> None:
    """Two sentences of which one is padded, two beams each that change places, and a third that joins later: then each
    row is held against its whole prefix, scored without a cache."""
    sources = [tokens(4), tokens(2), tokens(3)]
    state = model.start([source.tolist() for source in sources[:2]], beams=2)
    model.step(state, torch.tensor([1, 2, 3, 4])).logits()
    model.reorder_rows(state, torch.tensor([1, 0, 2, 2]))
    model.admit(state, [sources[2].tolist()])
    model.step(state, torch.tensor([5, 6, 7, 8, 5, 6])).logits()
    found = model.step(state, torch.tensor([7, 8, 9, 5, 6, 7])).logits()
    old = model(
        pad_sequence([sources[0]] * 2 + [sources[1]] * 2, batch_first=True),
        torch.tensor([[2, 5, 7], [1, 6, 8], [3, 7, 9], [3, 8, 5]]),
    )
    new = model(torch.stack([sources[2]] * 2), torch.tensor([[5, 6], [6, 7]]))
    torch.testing.assert_close(found, torch.cat([old[:, -1], new[:, -1]]), atol=1e-4, rtol=1e-4)


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("score", SCORES)
@torch.inference_mode()
def test_step_by_step_equals_all_at_once(score: ScoreKind) -> None:
    # Every second combination for one score function, and the others for the next.
    combinations = list(itertools.product(POSITIONS, NORMS, (True, False)))
    for place, (positions, norm, residual) in enumerate(combinations):
        if (place + SCORES.index(score)) % 2:
            projection = PROJECTIONS[place // 2 % 2]
            options: dict[str, Any] = {"positions": positions, "norm": norm, "residual": residual}
            check_a_life(transformer(score=score, qk_projection=projection, **options))


@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_padding_changes_nothing(score: ScoreKind) -> None:
    sources, targets = [tokens(6), tokens(2)], [tokens(3), tokens(5)]
    for positions, norm in itertools.product(POSITIONS, NORMS):
        model = transformer(positions=positions, norm=norm, residual=norm != "none", score=score)
        together = model(pad_sequence(sources, batch_first=True), pad_sequence(targets, batch_first=True))
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            alone = model(source.unsqueeze(0), target.unsqueeze(0))[0]
            torch.testing.assert_close(together[row, : len(target)], alone, atol=1e-4, rtol=1e-4)


# Effects of positions.


@torch.no_grad()
def test_without_positions_the_encoder_reads_a_bag_of_tokens() -> None:
    source, order = tokens(1, 5), torch.tensor([3, 0, 4, 1, 2])
    target = tokens(1, 3)
    for positions in POSITIONS:
        model = transformer(positions=positions)
        same = torch.allclose(model(source, target), model(source[:, order], target), atol=1e-5)
        assert same == (positions == "none")


@torch.no_grad()
def test_rotary_positions_are_not_added_to_embeddings() -> None:
    model, source = transformer(positions="rotary"), tokens(2, 5)
    assert torch.equal(model.embed_source(source), model.source_embedding(source))
    assert torch.equal(model.embed_target(source), model.target_embedding(source))


@torch.no_grad()
def test_without_residual_connections_a_block_returns_only_its_sublayers_output() -> None:
    # The block ends with a feed-forward layer that computes zeros; without a norm, nothing else is left.
    for residual in (True, False):
        model = transformer(residual=residual, norm="none")
        outer = model.encoder.get_submodule("blocks.0.feed_forward.outer")
        for parameter in outer.parameters():
            parameter.zero_()
        memory = model.encode(tokens(1, 4), torch.ones(1, 1, 4, dtype=torch.bool))
        assert (memory == 0).all() == (not residual)


# Weights have names, and can be saved and loaded.


def test_the_defaults_weights_have_the_names_that_they_had() -> None:
    attention = [f"{part}.{kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    feed_forward = [f"{part}.{kind}" for part in ("inner", "outer") for kind in ("weight", "bias")]

    def block(*attentions: str) -> set[str]:
        names = {f"{each}.{name}" for each in attentions for name in attention}
        names |= {f"feed_forward.{name}" for name in feed_forward}
        norms = {
            f"{each}_residual.norm.{kind}" for each in (*attentions, "feed_forward") for kind in ("weight", "bias")
        }
        return names | norms

    expected = {f"encoder.blocks.0.{name}" for name in block("attention")}
    expected |= {f"decoder.blocks.0.{name}" for name in block("attention", "cross_attention")}
    expected |= {"source_embedding.weight", "target_embedding.weight", "projection.weight"}
    assert set(transformer().state_dict()) == expected
    for free in ({"positions": "rotary"}, {"positions": "none"}, {"residual": False}, {"score": "dot"}):
        assert set(transformer(**free).state_dict()) == expected
    removed = expected - set(transformer(norm="none").state_dict())
    assert removed == {name for name in expected if ".norm." in name}


@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_a_saved_model_comes_back_and_translates_the_same(score: ScoreKind, tmp_path: Path) -> None:
    tokenizer = Tokenizer("characters", list("abcdefg"))
    model = transformer(
        tokenizer.vocab_size, score=score, positions="rotary", norm="none", residual=False, qk_projection="hidden"
    )
    Bundle(TaskConfig(), model, tokenizer, tokenizer).save(tmp_path / "model", "# Card")
    loaded = Bundle.load(tmp_path / "model").model
    assert loaded.config == model.config
    source, target = tokens(2, 4), tokens(2, 3)
    assert torch.equal(loaded(source, target), model(source, target))
    requests = [Request(source=(4, 5, 6, EOS), limit=6), Request(source=(7, EOS), limit=6)]
    found, expected = (
        search(each, requests, DecodingOptions(beam_size=3), SearchVocabulary(BOS, EOS, banned=(0, 1, 3)))
        for each in (loaded, model)
    )
    assert found == expected


# Training.


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_autocast_trains_and_decodes(score: ScoreKind, positions: str) -> None:
    config = TransformerConfig.parse({**SIZES, "score": score, "positions": positions, "qk_projection": "hidden"}, "x")
    model = Transformer(config, V, V)
    source, target = pad_sequence([tokens(5), tokens(3)], batch_first=True), tokens(2, 4)
    whole = model(source, target)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(source, target)
        assert logits.dtype == torch.bfloat16
        F.cross_entropy(logits.flatten(0, 1).float(), tokens(8)).backward()  # type: ignore[no-untyped-call]
        with torch.inference_mode():
            state = model.start([row[row != 0].tolist() for row in source])
            steps = torch.stack([model.step(state, column).logits() for column in target.unbind(1)], 1)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    # Norms keep values between them at a size of about 1; bfloat16 has 8 bits.
    torch.testing.assert_close(logits.float(), whole, atol=0.1, rtol=0.1)
    torch.testing.assert_close(steps.float(), whole, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("score", SCORES)
def test_each_weight_takes_part(score: ScoreKind) -> None:
    model = transformer(score=score, positions="rotary", qk_projection="hidden", tie="none").train()
    F.cross_entropy(model(tokens(3, 5), tokens(3, 4)).flatten(0, 1), tokens(12)).backward()  # type: ignore[no-untyped-call]
    silent = {name for name, each in model.named_parameters() if each.grad is None or not each.grad.abs().sum() > 0}
    assert not silent


@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_dropout_on_the_weights_acts_only_in_training(score: ScoreKind) -> None:
    model, plain = transformer(score=score, attention_dropout=0.5), transformer(score=score)
    plain.load_state_dict(model.state_dict())
    source, target = tokens(2, 6), tokens(2, 6)
    assert torch.equal(model(source, target), plain(source, target))
    assert not torch.allclose(model.train()(source, target), plain.train()(source, target))


@pytest.mark.parametrize("changes", [{"positions": "rotary"}, {"qk_projection": "hidden", "norm": "none"}], ids=str)
def test_three_sentences_are_learnt_backwards(changes: dict[str, Any]) -> None:
    """Each target token is the source token at one position, so the model must learn positions and match them."""
    config = TransformerConfig.parse({**SIZES, "d_model": 32, "d_ff": 32, **changes}, "test")
    model = Transformer(config, V, V)
    source = torch.randint(4, V, (3, 5))
    target = torch.cat([torch.full((3, 1), BOS), source.flip(1)], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        assert torch.equal(model(source, target[:, :-1]).argmax(-1), target[:, 1:])
