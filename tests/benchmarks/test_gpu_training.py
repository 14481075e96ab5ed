from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import gpu_training
import numpy as np
import pytest
import torch
from flops import training_flop

from headway.models.transformer import TransformerConfig
from headway.text.base import PAD

CPU = torch.device("cpu")


def test_made_up_batches_have_the_shapes_that_were_asked_for() -> None:
    config = TransformerConfig.preset("tiny")
    batches = gpu_training.made_up_batches(config, 50, 600, 5, CPU)
    assert len(batches) == 5
    for batch in batches:
        source, padded = batch.tokens.source, batch.padded_target
        lengths = [(tokens != blank).sum(1).numpy() for tokens, blank in ((source, PAD), (padded, -100))]
        assert len(source) * max(source.size(1), padded.size(1)) <= 600
        assert (batch.num_source_tokens, batch.num_target_tokens) == tuple(int(side.sum()) for side in lengths)
        assert batch.flop == training_flop(config, 50, *lengths)
        assert torch.equal(batch.mask, source != PAD)
        assert torch.equal(padded.flatten()[batch.tokens.target_positions], batch.tokens.targets)
    everything = np.concatenate([(batch.tokens.source != PAD).sum(1).numpy() for batch in batches])
    assert everything.std() > 5  # short and long sentences, as in translation data


@pytest.mark.slow
def test_the_script_runs_on_a_cpu_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    output = tmp_path / "figures.json"
    gpu_training.main("tiny", "cpu", 0.01, 100, 50, "off", output)
    assert "transformers is not installed" in capsys.readouterr().out
    (model,) = json.loads(output.read_text())["models"]
    (result,) = model["results"]
    assert (result["preset"], result["name"], result["compiled"], result["steps"]) == ("tiny", "headway", False, 2)
    assert 0 < result["model_flop_per_s"] < model["peak"]["flop_per_s"]
