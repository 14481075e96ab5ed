"""Build an ONNX graph node by node. Its weights stay in a safetensors file beside it.

(PyTorch's exporter takes half a minute to trace a toy model with two encoder and two decoder blocks, and the time grows
with the number of blocks.) A graph contains no weights. Each weight is an external tensor in the ``model.safetensors``
beside the graph, so the graphs of a model share a file and tied weights are stored once.
:mod:`headway.interop.onnx_layers` adds the layers of a model, and :mod:`headway.interop.onnx_models` whole models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headway.nn.attention import MultiHeadAttention
from headway.nn.block_config import BlockConfig

if TYPE_CHECKING:
    import onnx


OPSET = 20  # the first opset that supports Gelu
_IR_VERSION = 9  # file format version of the release with this opset (ONNX 1.15)
FLOAT, INT, BOOL = 1, 7, 9  # values of onnx.TensorProto


@dataclass(frozen=True)
class StoredTensor:
    """Location of a float32 weight: ``num_bytes`` bytes at byte ``offset`` of a file beside the graph."""

    shape: tuple[int, ...]
    location: str
    offset: int
    num_bytes: int


class OnnxGraph:
    """Builds one graph: its nodes in computation order, its constants and its weights. A value is identified by its
    name.

    Args:
        module: The model whose graph is built.
        config: The options of the model's blocks.
        locations: The location of each of the model's weights, keyed by name.
    """

    def __init__(self, module: nn.Module, config: BlockConfig, locations: Mapping[str, StoredTensor]) -> None:
        import onnx

        self.module, self.config = module, config
        self._stored = locations
        self._onnx = onnx
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._constants: dict[bytes, str] = {}  # names of constants, keyed by content
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: dict[str, onnx.ValueInfoProto] = {}  # keys: internal names of values
        state = module.state_dict(keep_vars=True)
        first_names = {id(tensor): name for name, tensor in reversed(state.items())}
        # Tied weights are stored under their first name.
        self._names = {name: first_names[id(tensor)] for name, tensor in state.items()}

    def add_input(self, name: str, kind: int, *shape: int | str) -> str:
        """Declare an input of the graph, and return its name."""
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def add_output(self, value: str, name: str, kind: int, *shape: int | str) -> None:
        """Declare ``value`` as the output ``name`` of the graph."""
        self._outputs[value] = self._onnx.helper.make_tensor_value_info(name, kind, shape)

    def add_op(self, kind: str, *inputs: str, **attributes: int | float | str | list[int]) -> str:
        """Add a node for the ONNX operator ``kind`` with ``attributes``, and return the name of its output."""
        (value,) = self._node(kind, inputs, 1, attributes)
        return value

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """Split the last dimension of ``x`` into parts of ``sizes``."""
        return self._node("Split", (x, self.constant(sizes)), len(sizes), {"axis": -1})

    def _node(
        self, kind: str, inputs: tuple[str, ...], count: int, attributes: Mapping[str, int | float | str | list[int]]
    ) -> list[str]:
        values = [f"{kind}.{len(self._nodes)}.{place}" for place in range(count)]
        node = self._onnx.helper.make_node(kind, inputs, values)
        node.attribute.extend(self._onnx.helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return values

    def constant(self, content: int | float | list[int] | Tensor) -> str:
        """Add a constant (int64 or float32) unless the graph already contains it, and return its name."""
        tensor = self._onnx.numpy_helper.from_array(torch.as_tensor(content).numpy())
        name = self._constants.setdefault(tensor.SerializeToString(), f"constant.{len(self._constants)}")
        if name not in self._tensors:
            tensor.name = name
            self._tensors[name] = tensor
        return name

    def has_weight(self, name: str) -> bool:
        """Return whether the model has a weight with this name."""
        return name in self._names

    def weight(self, name: str) -> str:
        """Add the model's weight ``name`` unless the graph already contains it, and return its name in the graph."""
        name = self._names[name]
        if name not in self._tensors:
            stored = self._stored[name]
            tensor = self._onnx.TensorProto(name=name, data_type=FLOAT, dims=stored.shape)
            tensor.data_location = self._onnx.TensorProto.EXTERNAL
            place = {"location": stored.location, "offset": stored.offset, "length": stored.num_bytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            self._tensors[name] = tensor
        return name

    def attention_layer(self, path: str) -> MultiHeadAttention:
        """Return the model's attention layer at ``path``."""
        attention = self.module.get_submodule(path)
        assert isinstance(attention, MultiHeadAttention)
        return attention

    def to_model_proto(self, name: str) -> onnx.ModelProto:
        """Return the finished graph as an ONNX model."""
        for node in self._nodes:
            for values in (node.input, node.output):
                values[:] = [self._outputs[value].name if value in self._outputs else value for value in values]
        helper = self._onnx.helper
        tensors, outputs = list(self._tensors.values()), list(self._outputs.values())
        graph = helper.make_graph(self._nodes, name, self._inputs, outputs, tensors)
        opset = helper.make_opsetid("", OPSET)
        model: onnx.ModelProto = helper.make_model(
            graph, producer_name="headway", opset_imports=[opset], ir_version=_IR_VERSION
        )
        return model
