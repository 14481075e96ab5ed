"""The Transformers of the pool that no model of Headway offers."""

from __future__ import annotations

from functools import partial
from typing import get_args

import pytest
import torch

from headway.experiments.changed_transformer import Change, ChangedTransformer, ChangedTransformerConfig
from headway.inspection.capture import capture
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.blocks import DecoderBlock

SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 2, "decoder_layers": 2}
SOURCE, TARGET = torch.randint(3, 20, (2, 7)), torch.randint(3, 20, (2, 5))


def model(change: Change, **options: str) -> ChangedTransformer:
    torch.manual_seed(1)
    return ChangedTransformer(ChangedTransformerConfig(**SIZES, change=change, **options), 20, 20).eval()


@pytest.mark.parametrize("change", get_args(Change))
@torch.inference_mode()
def test_padding_changes_nothing_and_steps_equal_all_at_once(change: Change) -> None:
    changed, source = model(change), SOURCE.clone()
    source[1, 5:] = 0
    together = changed(source, TARGET)
    torch.testing.assert_close(together[1:], changed(source[1:, :5], TARGET[1:]), rtol=1e-4, atol=1e-5)
    state = changed.start([source[0].tolist(), source[1, :5].tolist()])
    steps = [changed.step(state, TARGET[:, at]).logits() for at in range(TARGET.size(1))]
    torch.testing.assert_close(torch.stack(steps, 1), together, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_unscaled_scores_begin_as_scaled_ones() -> None:
    torch.manual_seed(1)
    scaled = Transformer(TransformerConfig(**SIZES), 20, 20).eval()
    torch.testing.assert_close(
        model("smaller_queries_and_keys", score="dot")(SOURCE, TARGET), scaled(SOURCE, TARGET), rtol=1e-4, atol=1e-5
    )


@torch.inference_mode()
def test_the_order_of_sublayers_is_changed() -> None:
    """Each block of the decoder is the sub-layers of a usual one, one after the other in the other order."""
    torch.manual_seed(1)
    usual, changed = Transformer(TransformerConfig(**SIZES), 20, 20).eval(), model("feed_forward_first")
    memory, given, mask = torch.randn(2, 7, 16), torch.randn(2, 5, 16), torch.ones(1, 5, 5, dtype=torch.bool).tril()
    x = given
    for block in usual.decoder.blocks:
        assert isinstance(block, DecoderBlock)
        x = block.attention_residual(x, partial(block.attention, mask=mask))
        x = block.feed_forward_residual(x, block.feed_forward)
        x = block.cross_attention_residual(x, partial(block.cross_attention, memory=memory))
    torch.testing.assert_close(changed.decoder(given, memory, mask), x)


@torch.inference_mode()
def test_a_feed_forward_layer_over_positions_attends_to_nothing() -> None:
    changed = model("feed_forward_over_positions")
    with capture(changed) as seen:
        changed(SOURCE, TARGET)
    assert {attention.kind for attention in seen.maps} == {"decoder", "cross"}
