"""The masked language model: both directions, BERT's and ModernBERT's forms, windows and initialization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.errors import ConfigError, LengthError
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.nn.blocks import NoNorm, PreNorm

VOCABULARY = 20


def build(**options: Any) -> MaskedTransformer:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "encoder_layers": 2, "max_length": 30}
    torch.manual_seed(0)
    return MaskedTransformer(MaskedConfig.parse({**sizes, **options}, "test"), VOCABULARY).eval()


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(4, VOCABULARY, shape)


def test_each_position_sees_both_sides() -> None:
    model, tokens = build(), random_tokens(1, 9)
    for changed_place in (0, 8):
        changed = tokens.clone()
        changed[:, changed_place] = 4 + (tokens[:, changed_place] - 3) % 16
        assert not torch.allclose(model(tokens)[:, 4], model(changed)[:, 4])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "pre", "positions": "rotary", "encoder_window": 3, "num_segments": 2},
        {"positions": "relative_bias", "relative_buckets": 8, "relative_max_distance": 6},
    ],
)
def test_padding_changes_nothing(options: dict[str, Any]) -> None:
    model, tokens = build(**options), random_tokens(2, 7)
    padded = F.pad(tokens, (0, 5))
    torch.testing.assert_close(model(padded)[:, :7], model(tokens), atol=1e-5, rtol=1e-4)


def test_the_form_of_bert_by_hand() -> None:
    """Devlin et al. 2019: the norm of token + position + segment embeddings; a head of dense, GELU, norm, and bias."""
    model, tokens = build(num_segments=2), random_tokens(1, 6)
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert model.segment_embedding is not None
    table = model.positions.get_parameter("table")
    embedded = model.embedding.weight[tokens] + table[:6] + model.segment_embedding.weight[segments]
    x = model.encoder(model.embedding_norm(embedded))
    x = model.head.norm(F.gelu(model.head.dense(x)))
    expected = x @ model.embedding.weight.T + model.projection.bias
    torch.testing.assert_close(model(tokens, segments), expected)
    assert not torch.allclose(model(tokens), expected)  # all in segment 0


def test_blocks_alternate_between_all_positions_and_a_window() -> None:
    options = {"encoder_window": 4, "global_every": 3, "positions": "rotary"}
    model = build(encoder_layers=5, **options, rotary_base=500.0, local_rotary_base=20.0)
    tables = [block.get_buffer("attention.rotary.table") for block in model.encoder.blocks]
    assert [bool(torch.equal(table, tables[0])) for table in tables] == [True, False, False, True, False]
    local = build(**options, rotary_base=20.0).encoder.blocks[0].get_buffer("attention.rotary.table")
    assert torch.equal(tables[1], local)
    windows = [block.get_submodule("attention").window for block in model.encoder.blocks]
    assert windows == [None, (2, 1), (2, 1), None, (2, 1)]
    assert [block.get_submodule("attention").window for block in build(encoder_window=3).encoder.blocks] == [(1, 1)] * 2


@pytest.mark.parametrize(("embedding_norm", "first"), [(True, NoNorm), (False, PreNorm)])
def test_the_first_attention_is_normed_only_if_embeddings_are_not(embedding_norm: bool, first: type) -> None:
    model = build(norm="pre", embedding_norm=embedding_norm)
    kinds = [type(block.get_submodule("attention_residual")) for block in model.encoder.blocks]
    assert kinds == [first, PreNorm]
    assert all(type(block.get_submodule("feed_forward_residual")) is PreNorm for block in model.encoder.blocks)


def test_the_bert_preset_has_the_published_number_of_weights() -> None:
    config = MaskedConfig.parse({"preset": "bert-base"}, "test")
    with torch.device("meta"):
        model = MaskedTransformer(config, 30_522)
    # Devlin et al. 2019 say 110M. The released checkpoint has 109,482,240 with its pooler (768 x 768 + 768), which we
    # do not have, and without the head (768 x 768 + 768, a norm, and a bias for each token).
    assert sum(weight.numel() for weight in model.parameters()) == 109_482_240 + 2 * 768 + 30_522


def test_the_modernbert_preset_has_the_published_number_of_weights() -> None:
    config = MaskedConfig.parse({"preset": "modernbert-base"}, "test")
    with torch.device("meta"):
        model = MaskedTransformer(config, 50_368)
    # Warner et al. 2024 say 149M; the released checkpoint has 149,655,232 weights.
    assert sum(weight.numel() for weight in model.parameters()) == 149_655_232


@torch.no_grad()
@pytest.mark.parametrize(("norm", "outer"), [("post", 0.02), ("pre", 0.02 / 4)])  # sqrt(2 * 8) = 4
def test_weights_start_as_published(norm: str, outer: float) -> None:
    model = build(d_model=256, num_heads=4, d_ff=1024, encoder_layers=8, norm=norm, num_segments=40)
    block = model.encoder.blocks[1]
    stds = {
        model.embedding.weight: 0.02,
        model.positions.get_parameter("table"): 0.02,
        model.get_parameter("segment_embedding.weight"): 0.02,
        model.head.dense.weight: 0.02,
        block.get_parameter("attention.projection.weight"): 0.02,
        block.get_parameter("feed_forward.inner.weight"): 0.02,
        block.get_parameter("attention.output.weight"): outer,
        block.get_parameter("feed_forward.outer.weight"): outer,
    }
    for weight, std in stds.items():
        assert float(weight.std()) == pytest.approx(std, rel=0.05)
    assert not model.head.dense.bias.any()


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no decoder"):
        build(decoder_window=3)
    with pytest.raises(ConfigError, match="has no effect without encoder_window"):
        build(global_every=3)
    with pytest.raises(ConfigError, match="local_rotary_base = 9 has no effect without global_every"):
        build(local_rotary_base=9.0, encoder_window=3, positions="rotary")
    with pytest.raises(ConfigError, match="no token fits between BOS and EOS"):
        build(max_length=2)


def test_a_sequence_beyond_the_learned_positions_is_refused() -> None:
    with pytest.raises(LengthError, match="longer than the 30 positions"):
        build()(random_tokens(1, 31))
