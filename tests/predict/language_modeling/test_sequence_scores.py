"""Log-probabilities of sequences: windows and batches against one forward pass after another, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headway.errors import BundleError
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.predict.language_modeling import sequence_scores
from headway.predict.language_modeling.sequence_scores import score_sequences
from headway.text.base import BOS, EOS

CONTEXT, VOCABULARY = 8, 30


@pytest.fixture(scope="module")
def model() -> DecoderOnly:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "decoder_layers": 2, "max_length": CONTEXT}
    return DecoderOnly(DecoderOnlyConfig.parse(sizes, "test"), VOCABULARY).eval()


def one_by_one(model: DecoderOnly, ids: list[int], stride: int) -> list[float]:
    """Return the log-probability of each token from a pass of its own over the window in which it counts."""
    targets = [*ids, EOS]
    found = []
    for at in range(len(targets)):
        begin = max(0, -(-(at + 1 - CONTEXT) // stride)) * stride  # the first window that contains the token
        with torch.inference_mode():
            logits = model(torch.tensor([[BOS, *targets[begin:at]]]))[0, -1]
        found.append(float(logits.log_softmax(-1)[targets[at]]))
    return found


@pytest.mark.parametrize("stride", [1, 3, 4, CONTEXT])
def test_each_token_is_predicted_in_the_first_window_that_contains_it(
    model: DecoderOnly, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_scores, "_MAX_BATCH_TOKENS", 3 * CONTEXT)
    generator = torch.Generator().manual_seed(1)
    lengths = [0, 1, 6, 7, 8, 9, 15, 16, 17, 30]
    sequences = [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    found = score_sequences(model, sequences, context=CONTEXT, stride=stride)
    for ids, values in zip(sequences, found, strict=True):
        torch.testing.assert_close(values.tolist(), one_by_one(model, ids, stride), atol=1e-5, rtol=1e-5)


def test_a_sequence_does_not_depend_on_the_others(model: DecoderOnly) -> None:
    sequences = [[5, 6, 7], [8], list(range(4, 30)), [9] * 12]
    together = score_sequences(model, sequences, context=CONTEXT, stride=4)
    for ids, values in zip(sequences, together, strict=True):
        (alone,) = score_sequences(model, [ids], context=CONTEXT, stride=4)
        torch.testing.assert_close(values, alone, atol=1e-6, rtol=1e-5)


def test_logits_are_computed_for_counted_tokens_only_and_for_some_rows_at_a_time(model: DecoderOnly) -> None:
    rows: list[int] = []
    hook = model.projection.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    try:
        score_sequences(model, [[5] * 999], context=CONTEXT, stride=2)
    finally:
        hook.remove()
    assert sum(rows) == 1000
    assert max(rows) <= 256


def test_a_damaged_model_is_refused(model: DecoderOnly) -> None:
    broken = DecoderOnly(model.config, VOCABULARY).eval()
    nn.init.constant_(broken.embedding.weight, math.nan)
    with pytest.raises(BundleError, match="probabilities are NaN"):
        score_sequences(broken, [[5, 6]], context=CONTEXT, stride=4)
