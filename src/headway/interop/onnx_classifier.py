"""Classifiers as ONNX: one graph from token ids to the logits of the classes.

    config.json, tokenizer files, labels    as in every model folder
    model.safetensors                       the weights in float32; the graph points into it
    classifier.onnx                         ``source`` (B, S) -> ``logits`` (B, C)
    README.md                               how to use the folder

Headway itself reads the folder as an ordinary classifier and computes with PyTorch. The graph is for programs that have
onnxruntime only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headway.bundle import ClassifierBundle
from headway.interop.onnx import (
    SUPPORTED,
    WEIGHTS_FILE,
    open_session,
    refuse_different_logits,
    require,
    run_session,
    save_float32,
    save_graph,
)
from headway.interop.onnx_graph import (
    FLOAT,
    INT,
    OPSET,
    OnnxGraph,
    OnnxMask,
    StoredTensor,
    embedded,
    encoded,
    linear,
    padding_mask,
    position_table,
)
from headway.interop.supported import refuse_unsupported
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.storage import atomic_write_folder

if TYPE_CHECKING:
    import onnx

__all__ = ["classifier_graph", "export_classifier"]

_GRAPH_FILE = "classifier.onnx"


def export_classifier(bundle: ClassifierBundle, folder: Path) -> None:
    """Write ``bundle`` as an ONNX folder, whole or not at all.

    The graph is run and compared with the model before the folder appears.

    Raises:
        MissingPackageError: onnx or onnxruntime is not installed.
        ConfigError: The model has an option that the graph does not support.
        BundleError: The graph computes other logits than the model.
    """
    refuse_unsupported(bundle.model.config, "ONNX", SUPPORTED)
    require("onnx", "onnxruntime")
    with atomic_write_folder(folder) as aside:
        saved, stored, _ = save_float32(bundle, aside, _usage(bundle.model.max_length))
        save_graph(classifier_graph(saved.model, stored), aside / _GRAPH_FILE, {})
        _compare(aside / _GRAPH_FILE, saved.model)


def classifier_graph(model: EncoderClassifier, stored: Mapping[str, StoredTensor]) -> onnx.ModelProto:
    """Return the graph from ``source`` (B, S), token ids that end in EOS, to ``logits`` (B, C)."""
    graph, config = OnnxGraph(model, stored), model.config
    source = graph.input("source", INT, "texts", "source_length")
    texts = graph.op("Shape", source, start=0, end=1)
    source = _with_padding_and_begin(graph, model, source, texts)
    # A model without masks lets padding count: no id is -1, so nothing is hidden.
    hidden_id = model.pad if config.masked else -1
    attends = graph.op("Not", graph.op("Equal", source, graph.constant(hidden_id)))
    mask = padding_mask(graph, attends)
    length = graph.op("Shape", source, start=1, end=2)
    table = position_table(graph, "positions", model.max_length + 1)
    x = embedded(graph, "embedding", source, graph.op("Slice", table, graph.constant([0]), length))
    if config.convolution:
        x = _convolved(graph, config.convolution, x, attends)
    x = encoded(graph, graph.op("Reshape", x, graph.constant([-1, config.d_model])), texts, mask)
    shape = graph.op("Concat", texts, graph.constant([-1, config.d_model]), axis=0)
    pooled = _pooled(graph, config, graph.op("Reshape", x, shape), attends, mask)
    graph.output(linear(graph, "projection", pooled), "logits", FLOAT, "texts", model.num_classes)
    return graph.model("classifier")


def _with_padding_and_begin(graph: OnnxGraph, model: EncoderClassifier, source: str, texts: str) -> str:
    """Pad or truncate (B, S) ids to ``max_length`` and put the begin symbol in front, as the model does."""

    def columns(token: int, count: int) -> str:
        return graph.op("Expand", graph.constant(token), graph.op("Concat", texts, graph.constant([count]), axis=0))

    if model.config.pad_to_max_length:
        source = graph.op("Concat", source, columns(model.pad, model.max_length), axis=1)
        ends = graph.constant([0]), graph.constant([model.max_length]), graph.constant([1])
        source = graph.op("Slice", source, *ends)
    if model.config.pooling == "first":
        source = graph.op("Concat", columns(model.begin, 1), source, axis=1)
    return source


def _convolved(graph: OnnxGraph, width: int, x: str, attends: str) -> str:
    """Apply the residual convolution to (B, S, D)."""
    x = graph.op("Mul", x, graph.op("Unsqueeze", graph.op("Cast", attends, to=FLOAT), graph.constant([2])))
    path = "convolution.convolution"
    weights = graph.weight(f"{path}.weight"), graph.weight(f"{path}.bias")
    sides = [width // 2, width // 2]
    neighbors = graph.op("Conv", graph.op("Transpose", x, perm=[0, 2, 1]), *weights, pads=sides)
    return graph.op("Add", x, graph.op("Transpose", graph.op("Relu", neighbors), perm=[0, 2, 1]))


def _pooled(graph: OnnxGraph, config: ClassifierConfig, x: str, attends: str, mask: OnnxMask) -> str:
    """Pool (B, S, D) to (B, P); a text in which nothing counts becomes zeros."""
    axes = graph.constant([1, 2])
    assert mask.attends is not None
    bias, some = graph.op("Squeeze", mask.bias, axes), graph.op("Squeeze", mask.attends, axes)
    counts, one = graph.op("Cast", attends, to=FLOAT), graph.constant([1])

    def weighted(weights: str) -> str:
        return graph.op("Squeeze", graph.op("MatMul", graph.op("Unsqueeze", weights, one), x), one)

    def mean() -> str:
        total = graph.op("Max", graph.op("ReduceSum", counts, one, keepdims=1), graph.constant(1.0))
        return weighted(graph.op("Div", counts, total))

    def largest() -> str:
        shifted = graph.op("Add", x, graph.op("Unsqueeze", bias, graph.constant([2])))
        return graph.op("Mul", graph.op("ReduceMax", shifted, one, keepdims=0), some)

    def one_position() -> str:
        """The first or the last position that counts, as a one-hot weighting."""
        length = graph.op("Squeeze", graph.op("Shape", x, start=1, end=2))
        positions = graph.op("Range", graph.constant(0), length, graph.constant(1))
        last = config.pooling == "last"
        rank = graph.op("Add", positions, one) if last else graph.op("Sub", length, positions)
        ranks = graph.op("Mul", counts, graph.op("Cast", rank, to=FLOAT))
        chosen = graph.op("Equal", positions, graph.op("ArgMax", ranks, axis=1, keepdims=1))
        return weighted(graph.op("Mul", graph.op("Cast", chosen, to=FLOAT), some))

    match config.pooling:
        case "mean":
            return mean()
        case "max":
            return largest()
        case "mean_max":
            return graph.op("Concat", mean(), largest(), axis=1)
        case "first" | "last":
            return one_position()
        case "attention":
            rows = graph.op("Reshape", x, graph.constant([-1, config.d_model]))
            scores = linear(graph, "pooling.question", graph.op("Tanh", linear(graph, "pooling.inner", rows)))
            scores = graph.op("Reshape", scores, graph.op("Shape", attends))
            weights = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
            return weighted(graph.op("Mul", weights, some))


@torch.no_grad()
def _compare(path: Path, model: EncoderClassifier) -> None:
    draws, length = torch.Generator().manual_seed(1), min(model.max_length, 7)
    source = torch.randint(4, model.embedding.weight.size(0), (2, length), generator=draws)
    source[1, length // 2 :] = model.pad
    (found,) = run_session(open_session(path), ["logits"], ["source"], [source])
    refuse_different_logits(found, model(source))


def _usage(max_length: int) -> str:
    """Explain for the model card how to run the graph."""
    return f"""Keep the files together: the graph (opset {OPSET}, float32) points into `{WEIGHTS_FILE}`.

```python
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("THIS_FOLDER/{_GRAPH_FILE}")
logits = session.run(["logits"], {{"source": ids}})[0]
```

`ids` (B, S), 64-bit integers: at most {max_length - 1} tokens of each text and the end symbol (2), padded on the right
with 0. `logits` (B, C) are in the order of `labels` in `config.json`. Headway reads the folder, too:

    headway classify THIS_FOLDER -i input.txt -o output.txt"""
