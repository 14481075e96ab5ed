"""The backend that builds a search model from linear layers whose 8-bit integers are stored in the model folder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.engine.int8 import Int8Backend, Int8OutputProjection, Int8ShortlistProjection
from headway.engine.int8_weights import Int8Weights, StoredLayer
from headway.engine.norm_folding import norm_with_gain
from headway.engine.torch_backend import OutputProjection, ShortlistProjection
from headway.kernels.int8_gemm import BLOCK
from headway.kernels.int8_linear import LayerNormParams, PackedLinear, QuantizedLinear, pack_linear
from headway.nn.norms import RMSNorm


class StoredInt8Backend(Int8Backend):
    """Builds a search model from stored layers. The trained model provides only the shapes of the layers."""

    def __init__(self, weights: Int8Weights) -> None:
        super().__init__()
        self._layers, self._made = weights.layers, 0

    def parameters_of(self, layer: nn.Linear) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:  # noqa: D102
        return _shapes(layer.out_features, layer.in_features, has_bias=layer.bias is not None)

    def scale_outputs(  # noqa: D102
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, scale: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        return weight, bias  # the stored integers are already scaled

    def concatenate_layers(  # noqa: D102
        self, layers: Sequence[tuple[Float[Tensor, "_ K"], Float[Tensor, " _"] | None]]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        (weight, bias), *_ = layers
        return _shapes(sum(len(part) for part, _ in layers), weight.size(1), has_bias=bias is not None)

    def fold_norm(  # noqa: D102
        self, norm: nn.Module | None, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
    ) -> tuple[nn.Module | None, Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        if norm is None or isinstance(norm, nn.Identity):
            return norm, weight, bias
        gain = self._layers[self._made].gain
        assert gain is not None
        assert isinstance(norm, nn.LayerNorm | RMSNorm)
        return norm_with_gain(norm, gain), weight, bias

    def quantized_linear(  # noqa: D102
        self,
        weight: Float[Tensor, "N K"],
        bias: Float[Tensor, " N"] | None,
        *,
        relu: bool = False,
        norm: LayerNormParams | None = None,
    ) -> QuantizedLinear:
        layer = self._layers[self._made]
        self._made += 1
        assert layer.shape == tuple(weight.shape), layer.name
        return QuantizedLinear.from_packed(_packed(layer), layer.shape, relu=relu, norm=norm)

    def output_projection(self, projection: nn.Linear) -> OutputProjection:  # noqa: D102
        return Int8OutputProjection(self.quantized_linear(*self.parameters_of(projection)))

    def shortlist_projection(self, projection: nn.Linear) -> ShortlistProjection:  # noqa: D102
        layer, outputs = self._layers[-1], self._layers[-1].shape[0]
        levels = layer.integer_rows(torch.arange(outputs)).contiguous().numpy()
        return Int8ShortlistProjection(levels, layer.scale[:outputs].numpy(), layer.bias[:outputs].numpy())


def _shapes(outputs: int, inputs: int, *, has_bias: bool) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
    """Return tensors that have a shape but no values.

    The first operation on such tensors imports one of PyTorch's compilers, which takes longer than loading a model.
    """
    return torch.empty(outputs, inputs, device="meta"), torch.empty(outputs, device="meta") if has_bias else None


def _packed(layer: StoredLayer) -> PackedLinear:
    """Return the arrays of a layer, repacked if it was exported on a machine with a different block size."""
    outputs = layer.shape[0]
    if layer.weight.size(2) != BLOCK:
        levels = layer.integer_rows(torch.arange(outputs)).contiguous().numpy()
        return pack_linear(levels, layer.scale[:outputs].numpy(), layer.bias[:outputs].numpy())
    return PackedLinear(*(part.numpy() for part in (layer.weight, layer.accumulator_init, layer.scale, layer.bias)))
