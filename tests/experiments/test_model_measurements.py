from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.experiments.model_measurements import (
    BLOCKS,
    in_blocks,
    read_targets,
    removed_head,
)
from headway.experiments.statistics_of_runs import STATISTICS, Record, rows_by_statistic
from headway.experiments.verdicts import resampled_error
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention
from headway.text.base import BOS, EOS

TEST = ["a b"] * BLOCKS, np.full(BLOCKS, 2.0)  # references, and their numbers of tokens


def small_model() -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(TransformerConfig(**sizes), 12, 12).eval()


@torch.inference_mode()
def test_the_log_probability_of_a_target_is_the_sum_over_its_tokens() -> None:
    model, (short, long) = small_model(), (([5, EOS], [6, EOS]), ([7, 8, EOS], [9, 10, 11, EOS]))
    log_probs, right = read_targets(model, [short, long])
    for number, (source, target) in enumerate((short, long)):
        scores = model(torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]]))[0].log_softmax(-1)
        places = torch.arange(len(target)), torch.tensor(target)
        assert log_probs[number] == pytest.approx(float(scores[places].sum()), rel=1e-4)
        assert right[number] == int((scores.argmax(1) == places[1]).sum())


def test_a_removed_head_contributes_nothing() -> None:
    model, pairs = small_model(), [([5, 6, EOS], [7, 8, EOS])]
    layer = model.decoder.blocks[0].get_submodule("cross_attention")
    assert isinstance(layer, MultiHeadAttention)
    whole = read_targets(model, pairs)[0]
    with removed_head(layer, 1):
        without = read_targets(model, pairs)[0]
    assert without[0] != whole[0]
    with torch.no_grad():
        layer.output.weight[:, 4:] = 0  # the columns that read the second of two heads
    assert read_targets(model, pairs)[0] == pytest.approx(without, rel=1e-5)


def test_blocks_add_up() -> None:
    values = np.arange(240.0).reshape(120, 2)
    assert len(in_blocks(values)) == BLOCKS
    assert np.sum(in_blocks(values), axis=0).tolist() == values.sum(0).tolist()


def record(**parts: object) -> Record:
    """Return the record of a model whose tokenizer makes twice as many tokens as the baseline's."""
    scores = {"log_probs": [-2.0] * BLOCKS, "log_probs_of_average": [-1.0] * BLOCKS, "num_tokens": [4] * BLOCKS}
    scores |= {"translations": {beam: ["a b"] * BLOCKS for beam in ("1", "4")}}
    return {"diverged": False, **scores, **parts}


@pytest.mark.parametrize(
    ("statistic", "measured", "value"),
    [
        ("loss", {}, 1.0),  # 2 nats a sentence of 2 tokens
        ("average", {}, 0.5),
        ("overfitting", {"fit": {"training_loss": 0.375, "correct": [1] * BLOCKS}}, 0.125),  # per token of its own
        ("accuracy", {"fit": {"training_loss": 0.375, "correct": [1] * BLOCKS}}, 25.0),
        # Ten texts, 9 of them right, with a confidence of 0.95: in the bin of 0.9 to 1, 0.9 - 0.95.
        ("calibration", {"labels": {"right": [1] * 9 + [0], "confidence": [0.95] * 10}}, 5.0),
        ("error", {"labels": {"right": [1, 1, 1, 0], "confidence": [0.5] * 4}}, 25.0),
        # Of 4 heads, the one over the source costs 0.2 nats per token, the others 0, 0.01 and 0.1: half are cheap.
        (
            "cheap-heads",
            {
                "heads": {
                    "kinds": ["encoder", "encoder", "decoder", "cross"],
                    "whole": [-1.0] * BLOCKS,
                    "without": [[-1.0 - 2 * cost] * BLOCKS for cost in (0.0, 0.01, 0.1, 0.2)],
                }
            },
            0.0,
        ),
        (
            "cross-heads",
            {
                "heads": {
                    "kinds": ["encoder", "cross"],
                    "whole": [-1.0] * BLOCKS,
                    "without": [[-1.0 - 2 * cost] * BLOCKS for cost in (0.05, 0.2)],
                }
            },
            0.15,
        ),
        ("alignment", {"alignment": [[4, 1, 0, 3]] * BLOCKS}, 50.0),
        ("source-tokens", {"tokens": [[4, 4, 3]] * BLOCKS}, 75.0),
        ("long", {"length": [[2, -1.0, -1.2, -1.4, -2.0]] * BLOCKS}, 0.5),
    ],
)
def test_statistics_by_hand(statistic: str, measured: dict[str, object], value: float) -> None:
    rows = rows_by_statistic(record(measured=measured), *TEST)[statistic]
    assert STATISTICS[statistic].value(rows.sum(0)) == pytest.approx(value, abs=1e-9)
    assert resampled_error(rows, STATISTICS[statistic].value) < 1e-9 or statistic in ("error", "calibration")


def test_a_run_that_diverged_or_lacks_a_measurement_has_no_value() -> None:
    assert rows_by_statistic({**record(), "diverged": True}, *TEST) == {}
    assert "alignment" not in rows_by_statistic(record(measured={}), *TEST)
