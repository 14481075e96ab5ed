"""Record a search model's 8-bit integers to store them in a model folder (:mod:`headway.engine.int8_weights`)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.engine.int8 import Int8Backend
from headway.engine.int8_weights import StoredLayer, layer_plans
from headway.engine.search_model import SearchDecoderOnly, SearchTransformer
from headway.kernels.int8_linear import QuantizedLinear
from headway.models.decoder_only import DecoderOnly
from headway.models.transformer import Transformer
from headway.nn.norms import RMSNorm


def quantized_layers(model: Transformer | DecoderOnly) -> list[StoredLayer]:
    """Return the linear layers of the int8 search model that is built from ``model``.

    Raises:
        ConfigError: The model or the machine does not support int8.
    """
    backend = _RecordingInt8Backend()
    if isinstance(model, Transformer):
        SearchTransformer(model, "int8", backend=backend)
    else:
        SearchDecoderOnly(model, "int8", backend=backend)
    layers = []
    for plan, (layer, gain) in zip(layer_plans(model), backend.recorded, strict=True):
        assert (layer.out_features, layer.in_features) == plan.shape, plan.name
        assert (gain is None) == (plan.norm is None), plan.name
        parts = {name: torch.from_numpy(array) for name, array in layer.packed._asdict().items()}
        layers.append(StoredLayer(plan.name, plan.shape, **parts, gain=gain))
    return layers


class _RecordingInt8Backend(Int8Backend):
    """An int8 backend that records each quantized layer with the gains of the norm that was folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[QuantizedLinear, Tensor | None]] = []
        self._gain: Tensor | None = None

    def fold_norm(
        self, norm: nn.Module | None, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
    ) -> tuple[nn.Module | None, Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        folded, weight, bias = super().fold_norm(norm, weight, bias)
        if isinstance(folded, nn.LayerNorm | RMSNorm):
            self._gain = folded.weight.detach().float().clone()
        return folded, weight, bias

    def quantized_linear(self, *args: Any, **options: Any) -> QuantizedLinear:
        layer = super().quantized_linear(*args, **options)
        self.recorded.append((layer, self._gain))
        self._gain = None
        return layer
