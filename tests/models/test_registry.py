"""Properties that all architectures have."""

from __future__ import annotations

import pytest
import torch

from headway.models.registry import ARCHITECTURES, build_model

_VOCAB_SIZE = 50_257  # GPT-2's
_BYTES_PER_WEIGHT = 16  # the weight, its gradient and Adam's two moments in float32
_DEVICE_BYTES = 80e9


@pytest.mark.parametrize("kind", [kind for kind, entry in ARCHITECTURES.items() if entry.config_class.presets])
def test_every_preset_can_be_trained_on_one_device(kind: str) -> None:
    architecture = ARCHITECTURES[kind]
    for preset in architecture.config_class.presets:
        config = architecture.config_class.parse({"kind": kind, "preset": preset}, "test")
        with torch.device("meta"):
            model = build_model(config, _VOCAB_SIZE, _VOCAB_SIZE)
        weights = sum(weight.numel() for weight in model.parameters())
        assert weights * _BYTES_PER_WEIGHT <= _DEVICE_BYTES, preset
