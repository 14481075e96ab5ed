"""ONNX export: a model folder that also runs in onnxruntime, without PyTorch.

    config.json, tokenizer files      as in every model folder
    model.safetensors                 the float32 weights, to which the graphs refer
    encoder.onnx, decoder_step.onnx   a Transformer (:mod:`headway.interop.onnx_models` documents inputs and outputs)
    classifier.onnx                   a classifier: ``source`` (B, S) -> ``logits`` (B, C)
    language_model.onnx               a decoder-only language model, with cached keys and values
    masked_language_model.onnx        a masked language model: ``tokens`` (B, S) -> ``logits`` (B, S, V)
    README.md                         how to use the folder

Headway can still load the folder. For Transformers, :class:`OnnxModel` implements the search protocol, so every
decoding method works with the two sessions. Headway runs the other models with PyTorch; their graphs are for programs
that use only onnxruntime. Tensors are converted to and from NumPy arrays only at the inputs and outputs of the
sessions.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.bundle import (
    AnyBundle,
    ClassifierBundle,
    LanguageModelBundle,
    MaskedLanguageModelBundle,
    load_bundle,
)
from headway.decode import Step
from headway.errors import BundleError, ConfigError, LengthError, MissingPackageError
from headway.interop.model_card import exported_card
from headway.interop.onnx_graph import OPSET, StoredTensor
from headway.interop.onnx_models import (
    classifier_graph,
    decoder_step_graph,
    encoder_graph,
    language_model_graph,
    masked_graph,
    sequence_classifier_graph,
)
from headway.interop.supported import (
    ANY,
    COMMON_OPTIONS,
    GATE_ACTIVATIONS,
    ExportedModel,
    Supported,
    refuse_unsupported,
    require_exportable_model,
)
from headway.models.classifier import EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier
from headway.models.transformer import Transformer
from headway.nn.embedding import TokenEmbedding, pad_sequences
from headway.storage import atomic_write_folder
from headway.text.base import EOS, PAD

if TYPE_CHECKING:
    import onnx
    import onnxruntime


_FORMAT = 1  # version of the graphs' inputs and outputs, stored in their metadata
_WEIGHTS, _ENCODER, _CLASSIFIER = "model.safetensors", "encoder.onnx", "classifier.onnx"
_LANGUAGE_MODEL, _MASKED = "language_model.onnx", "masked_language_model.onnx"
DECODER_STEP_FILE = "decoder_step.onnx"  # exists only in folders with an exported Transformer
SUPPORTED: Supported = {  # options of all models with blocks
    **COMMON_OPTIONS,
    **dict.fromkeys(("d_key", "d_value", "num_kv_heads", "qk_norm", "bias", "norm_kind", "norm_epsilon"), ANY),
    **dict.fromkeys(("rotary_base", "rotary_fraction", "rotary_scaling", "local_rotary_base"), ANY),
    **dict.fromkeys(("encoder_window", "decoder_window", "global_every", "num_segments", "parallel"), ANY),
    **dict.fromkeys(("max_length", "position_offset", "convolution"), ANY),
    **dict.fromkeys(("residual", "scale_embedding", "embedding_norm", "output_bias"), ANY),
    **dict.fromkeys(("masked", "pad_to_max_length"), ANY),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", *GATE_ACTIVATIONS),
    "norm": ("post", "pre", "none"),
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    "sinusoid_layout": ("interleaved", "halves"),
    "sinusoid_spacing": ("paper", "inclusive"),
    "tie": ("all", "target", "none"),
    "pooling": ("mean", "max", "mean_max", "first", "last", "attention"),
}
SUPPORTED_HEAD: Supported = {  # options of classifiers on language models, in addition to the language model's options
    **dict.fromkeys(("body", "word_dropout", "pooled_dropout", "dense_norm"), ANY),
    "pooling": SUPPORTED["pooling"],
    "dense": ("none", "tanh", "relu", "gelu"),
}
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors library
# maximum difference of a logit, relative to its size plus the median size; float32 rounding errors are far smaller
_TOLERANCE = 1e-3


def export(bundle: AnyBundle, folder: str | Path, *, max_length: int = 1024) -> None:
    """Export ``bundle`` to ONNX. The folder is written completely or not at all.

    Before the folder is created, the graphs are run and their logits are compared with the model's logits.

    Args:
        bundle: The model, on any device and in any precision. Its weights are written in float32.
        folder: The folder to write; an existing folder is replaced.
        max_length: Maximum sequence length, in tokens, of a Transformer with sinusoidal or rotary positions, whose
            graphs contain a table of this length. Other models have their own limits.

    Raises:
        MissingPackageError: onnx or onnxruntime is not installed.
        ConfigError: The graphs do not support an option of the model.
        BundleError: The logits of the graphs differ from the model's logits.
    """
    folder = Path(folder)
    model = require_exportable_model(bundle, "ONNX")
    if isinstance(model, SequenceClassifier):
        refuse_unsupported(model.config.body, "ONNX", SUPPORTED, __name__)
        refuse_unsupported(model.config, "ONNX", SUPPORTED_HEAD, __name__)
    else:
        refuse_unsupported(model.config, "ONNX", SUPPORTED, __name__)
    _require("onnx", "onnxruntime")
    if max_length < 2:
        raise ConfigError(f"max_length = {max_length}: expected at least 2, for one token and the end symbol")
    limit = _limit(model, max_length)
    import onnx

    with atomic_write_folder(folder) as aside:
        floats: AnyBundle = replace(cast("Any", bundle), model=copy.deepcopy(bundle.model).float())
        floats.save(aside, exported_card(bundle, "onnxruntime", _usage(bundle, limit)))
        saved, (stored, signature) = cast("ExportedModel", load_bundle(aside).model), _stored_tensors(aside / _WEIGHTS)
        facts = {"headway.format": str(_FORMAT), "headway.max_length": str(limit), "headway.weights": signature}
        for name, graph in _graphs(saved, stored, limit).items():
            onnx.helper.set_model_props(graph, facts)
            onnx.save_model(graph, aside / name)
        _compare(aside, saved, min(limit, 5))


def _limit(model: ExportedModel, max_length: int) -> int:
    """Return the maximum sequence length in tokens. ``max_length`` applies to Transformers without their own limit."""
    if isinstance(model, Transformer):
        return model.max_length or max_length
    return model.config.max_length


def _graphs(model: ExportedModel, stored: Mapping[str, StoredTensor], limit: int) -> dict[str, onnx.ModelProto]:
    """Return the graphs of a model, keyed by file name."""
    match model:
        case EncoderClassifier():
            return {_CLASSIFIER: classifier_graph(model, stored)}
        case SequenceClassifier():
            return {_CLASSIFIER: sequence_classifier_graph(model, stored)}
        case MaskedTransformer():
            return {_MASKED: masked_graph(model, stored)}
        case DecoderOnly():
            return {_LANGUAGE_MODEL: language_model_graph(model, stored)}
        case Transformer():
            return {
                _ENCODER: encoder_graph(model, stored, limit),
                DECODER_STEP_FILE: decoder_step_graph(model, stored, limit),
            }


@dataclass
class OnnxState:
    """The decoding state between steps, for R rows of B sentences. Prefixes are right-aligned in the tensors.

    ``memory_kv`` and ``prefix_kv`` contain the keys of the first decoder block, its values, the keys of the second
    block, and so on. Their shapes are (B, H, S, .) and (R, H, T, .).
    """

    memory_mask: Bool[Tensor, "B S"]
    memory_kv: list[Tensor]
    positions: Int[Tensor, " R"]
    prefix_kv: list[Tensor]

    @property
    def length(self) -> int:
        """The length T of the prefixes, including the masked columns of shorter prefixes."""
        return self.prefix_kv[0].size(2)


class OnnxModel:
    """An exported model that runs in onnxruntime and supports searching like any other model.

    It implements :class:`headway.decode.protocol.SearchModel`. ``max_length`` is the maximum sequence length in tokens,
    including the end symbol.
    """

    device = torch.device("cpu")

    def __init__(
        self, encoder: onnxruntime.InferenceSession, decoder_step: onnxruntime.InferenceSession, max_length: int
    ) -> None:
        self.max_length = max_length
        self._encoder, self._decoder_step = encoder, decoder_step
        shapes = {given.name: given.shape for given in decoder_step.get_inputs()}
        layers = sum(name.startswith("prefix_keys.") for name in shapes)
        parts = [f"{part}.{layer}" for layer in range(layers) for part in ("keys", "values")]
        self._memory, self._prefix = [f"memory_{part}" for part in parts], [f"prefix_{part}" for part in parts]
        self._outputs = ["logits", *parts]
        self._heads = [(shapes[name][1], shapes[name][3]) for name in self._prefix]

    @classmethod
    def load(cls, folder: Path) -> OnnxModel:
        """Load the two graphs of ``folder``, on the CPU, with as many threads as PyTorch uses.

        Raises:
            MissingPackageError: onnxruntime is not installed.
            BundleError: The folder is not an ONNX export, or one of its files is missing, damaged, from a newer version
                of Headway or from a different export.
        """
        _require("onnxruntime")
        paths = folder / _ENCODER, folder / DECODER_STEP_FILE
        for path in paths:
            if not path.is_file():
                raise BundleError(
                    f"{path}: missing; expected a folder that `headway export MODEL --to onnx` wrote, with {_ENCODER}, "
                    f"{DECODER_STEP_FILE} and {_WEIGHTS}"
                )
        _, signature = _stored_tensors(folder / _WEIGHTS)  # first, because onnxruntime's message is less clear
        encoder, step = map(open_session, paths)
        limits = (
            _checked_limit(path, session, signature) for path, session in zip(paths, (encoder, step), strict=True)
        )
        return cls(encoder, step, min(limits))

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> OnnxState:
        """Encode the sources and start decoding, with ``beams`` rows per source."""
        return self._start(pad_sequences(sources, PAD, self.device), beams)

    def _start(self, source: Int[Tensor, "B S"], beams: int) -> OnnxState:
        self._check_length(source.size(1))
        mask, *memory = run_session(self._encoder, ["memory_mask", *self._memory], ["source"], [source])
        positions = torch.zeros(len(source) * beams, dtype=torch.long)
        prefix = [torch.empty(len(positions), heads, 0, width) for heads, width in self._heads]
        return OnnxState(mask, memory, positions, prefix)

    def admit(self, state: OnnxState, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, which keeps its number of rows per source."""
        new = self.start(sources, beams=len(state.positions) // max(1, len(state.memory_mask)))
        width = max(state.memory_mask.size(1), new.memory_mask.size(1))
        masks = [
            F.pad(source_state.memory_mask, (0, width - source_state.memory_mask.size(1)))
            for source_state in (state, new)
        ]
        state.memory_mask = torch.cat(masks)
        state.memory_kv = [_joined(pair, after=width) for pair in zip(state.memory_kv, new.memory_kv, strict=True)]
        state.positions = torch.cat([state.positions, new.positions])
        length = state.length
        state.prefix_kv = [_joined(pair, before=length) for pair in zip(state.prefix_kv, new.prefix_kv, strict=True)]

    def step(self, state: OnnxState, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next one. The result never contains attention weights."""
        self._check_length(state.length + 1)
        names = ["tokens", "positions", "memory_mask", *self._memory, *self._prefix]
        given = [tokens, state.positions, state.memory_mask, *state.memory_kv, *state.prefix_kv]
        logits, *state.prefix_kv = run_session(self._decoder_step, self._outputs, names, given)
        state.positions = state.positions + 1
        return Step(logits)

    def reorder_rows(
        self, state: OnnxState, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None means all."""
        state.positions = state.positions[rows]
        unused = 0
        if sequences is not None:  # the longest rows may have been removed
            unused = state.length - (int(state.positions.max()) if len(rows) else 0)
            state.memory_mask = state.memory_mask[sequences]
            state.memory_kv = [tensor[sequences] for tensor in state.memory_kv]
        state.prefix_kv = [tensor[:, :, unused:][rows] for tensor in state.prefix_kv]

    def __call__(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the token that follows each target position, computed step by step."""
        state = self._start(source, beams=1)
        return torch.stack([self.step(state, tokens).logits() for tokens in target.unbind(1)], 1)

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise LengthError(
                f"a sequence of {length} tokens is longer than the {self.max_length} positions of this ONNX export; "
                "split the text, or, if the model's positions are sinusoidal, export it again with a larger max_length"
            )


def run_session(
    session: onnxruntime.InferenceSession, outputs: Sequence[str], input_names: Sequence[str], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Run a graph with ``inputs``, and return the outputs named in ``outputs``."""
    feed = {name: tensor.numpy() for name, tensor in zip(input_names, inputs, strict=True)}
    return [torch.from_numpy(array) for array in session.run(list(outputs), feed)]


def _joined(pair: tuple[Tensor, Tensor], *, before: int = 0, after: int = 0) -> Tensor:
    """Concatenate along the batch dimension.

    Dimension 2 is padded first: in front to length ``before``, or at the end to length ``after``.
    """
    return torch.cat([F.pad(x, (0, 0, max(before - x.size(2), 0), max(after - x.size(2), 0))) for x in pair])


def _require(*packages: str) -> None:
    """Raise :class:`MissingPackageError` for the first of ``packages`` that cannot be imported."""
    for package in packages:
        try:
            __import__(package)
        except ImportError:
            raise MissingPackageError("ONNX", package) from None


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Load a graph on the CPU, with as many threads as PyTorch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # do not log errors, because they are raised
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common error class
        detail = str(error).splitlines()[0][:200]
        raise BundleError(f"{path}: onnxruntime cannot load it ({detail}); export the model again") from None


def _checked_limit(path: Path, session: onnxruntime.InferenceSession, signature: str) -> int:
    """Return the maximum sequence length of a graph.

    Also check that this version of Headway can read the graph, and that the graph belongs to the folder's weights.
    """
    facts = session.get_modelmeta().custom_metadata_map
    try:
        version, limit = int(facts["headway.format"]), int(facts["headway.max_length"])
    except (KeyError, ValueError):
        raise BundleError(f"{path}: not a graph from Headway; expected a file that `headway export` wrote") from None
    if version > _FORMAT:
        raise BundleError(
            f"{path}: format {version} is newer than format {_FORMAT} of this version of Headway; update Headway"
        )
    if facts.get("headway.weights") != signature:
        raise BundleError(f"{path}: does not belong to the weights in {_WEIGHTS}; export the model again")
    return limit


def _stored_tensors(path: Path) -> tuple[dict[str, StoredTensor], str]:
    """Return the location of each tensor in a safetensors file, and a hash of the file's header.

    The file contains the length of the header (8 bytes, little-endian), the JSON header, and the data.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(min(size, _LONGEST_HEADER))
        stored, content = {}, path.stat().st_size - 8 - len(header)
        for name, tensor in json.loads(header).items():
            if name != "__metadata__":
                first, end = tensor["data_offsets"]
                if end > content:
                    raise ValueError(f"tensor {name} ends after the end of the file")
                stored[name] = StoredTensor(tuple(tensor["shape"]), path.name, 8 + len(header) + first, end - first)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path}: missing or damaged ({error}); export the model again") from None
    return stored, hashlib.blake2b(header, digest_size=16).hexdigest()


@torch.no_grad()
def _compare(folder: Path, model: ExportedModel, length: int) -> None:
    """Raise :class:`BundleError` if the graphs' logits differ from the logits of ``model``.

    Possible causes are an option that the export does not support, or weights that are not finite.
    """
    draws = torch.Generator().manual_seed(1)
    vocab_size = _source_embedding(model).weight.size(0)
    source = torch.randint(1, vocab_size, (2, length), generator=draws)
    source[1, length // 2 :] = model.pad
    if isinstance(model, EncoderClassifier | SequenceClassifier):
        (actual,) = run_session(open_session(folder / _CLASSIFIER), ["logits"], ["source"], [source])
        expected = model(source)
    elif isinstance(model, MaskedTransformer):
        (actual,) = run_session(open_session(folder / _MASKED), ["logits"], ["tokens"], [source])
        expected = model(source)
    elif isinstance(model, DecoderOnly):
        actual, expected = _logits_in_two_calls(folder / _LANGUAGE_MODEL, source), model(source)
    else:
        target = torch.randint(1, model.target_embedding.weight.size(0), (2, length), generator=draws)
        actual, expected = OnnxModel.load(folder)(source, target), model(source, target)
    difference, size = (expected - actual).abs(), expected.abs()
    if not (difference <= _TOLERANCE * (size + size.median())).all():
        raise BundleError(
            f"the logits of the ONNX graphs differ from the model's (by up to {float(difference.max()):.2g}): "
            "its weights are not finite, or it has an option that the export does not support; nothing was written"
        )


def _logits_in_two_calls(path: Path, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
    """Return the logits of a language model's graph, which processes the second half of each row with a prefix."""
    session = open_session(path)
    shapes = {given.name: given.shape for given in session.get_inputs() if given.name.startswith("prefix_")}
    caches = [torch.empty(len(tokens), heads, 0, width) for _, heads, _, width in shapes.values()]
    outputs = ["logits", *(name.removeprefix("prefix_") for name in shapes)]
    logits, position = list[Tensor](), 0
    for part in torch.tensor_split(tokens, 2, dim=1):
        positions = torch.full((len(tokens),), position)
        part_logits, *caches = run_session(
            session, outputs, ["tokens", "positions", *shapes], [part, positions, *caches]
        )
        logits.append(part_logits)
        position += part.size(1)
    return torch.cat(logits, 1)


def _source_embedding(model: ExportedModel) -> TokenEmbedding:
    if isinstance(model, Transformer):
        return model.source_embedding
    return model.body.embedding if isinstance(model, SequenceClassifier) else model.embedding


def _usage(bundle: AnyBundle, limit: int) -> str:
    """Return the model card's section on how to use the folder."""
    if isinstance(bundle, MaskedLanguageModelBundle):
        return _masked_usage(limit, bundle.tokenizer.mask_id)
    if isinstance(bundle, LanguageModelBundle):
        return _language_model_usage(limit, bundle)
    return _classifier_usage(limit) if isinstance(bundle, ClassifierBundle) else _translation_usage(limit)


def _translation_usage(limit: int) -> str:
    """Return the model card's section on how to translate with the folder."""
    return f"""Keep the files together: both graphs (opset {OPSET}, float32) read their weights from `{_WEIGHTS}`.
Sequences have at most {limit} tokens.

    pip install 'headway[onnx]'
    headway translate THIS_FOLDER -i input.txt -o output.txt

Without Headway:

- `{_ENCODER}` runs once per batch. Input: `source` (B, S), token ids that end with the end symbol (2), padded with 0.
  Outputs: `memory_mask` and, for each decoder block N, `memory_keys.N` and `memory_values.N`.
- `{DECODER_STEP_FILE}` runs once per token. Inputs: `tokens` (R), the newest token of each row (1 at first);
  `positions` (R), the number of tokens before it; `prefix_keys.N` and `prefix_values.N` (R, H, T, K), empty (T = 0) at
  first; and the encoder's outputs. Outputs: `logits` (R, V) of the next token; `keys.N` and `values.N`, the prefixes of
  the next step.
  Each sentence has the same number of rows (its beams), which are adjacent. Prefixes are aligned at the end."""


def _classifier_usage(max_length: int) -> str:
    """Return the model card's section on how to run the graph of a classifier."""
    return f"""Keep the files together: the graph (opset {OPSET}, float32) reads its weights from `{_WEIGHTS}`.

```python
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("THIS_FOLDER/{_CLASSIFIER}")
logits = session.run(["logits"], {{"source": ids}})[0]
```

`ids` (B, S) are 64-bit integers: at most {max_length - 1} tokens of each text, then the end symbol (2), padded on the
right with 0. `logits` (B, C) are in the order of `labels` in `config.json`. Headway can also load the folder:

    headway classify THIS_FOLDER -i input.txt -o output.txt"""


def _language_model_usage(max_length: int, bundle: LanguageModelBundle) -> str:
    """Return the model card's section on how to run the graph of a language model."""
    prefix = ", ".join(map(str, bundle.prompt_prefix)) or "nothing"
    ends = " or ".join(map(str, (EOS, *bundle.extra_eos_ids)))
    return f"""Keep the files together: the graph (opset {OPSET}, float32) reads its weights from `{_WEIGHTS}`.
A text has at most {max_length} tokens. Before a prompt comes: {prefix}. A text ends with the id {ends}.

`{_LANGUAGE_MODEL}` runs once for a prompt and once for each token after it.

- Inputs: `tokens` (R, T), the new tokens of each row; `positions` (R), the number of tokens before them;
  `prefix_keys.N` and `prefix_values.N` (R, H, P, K) of each block N, empty (P = 0) at first.
- Outputs: `logits` (R, T, V) of the token after each new token; `keys.N` and `values.N`, the prefixes of the next call.

Left-pad prompts of different lengths, and set `positions` in the first call to minus the number of padding tokens.
Headway can also load the folder:

    headway generate THIS_FOLDER "PROMPT"
"""


def _masked_usage(max_length: int, mask_id: int | None) -> str:
    """Return the model card's section on how to run the graph of a masked language model."""
    return f"""Keep the files together: the graph (opset {OPSET}, float32) reads its weights from `{_WEIGHTS}`.

```python
import onnxruntime

session = onnxruntime.InferenceSession("THIS_FOLDER/{_MASKED}")
logits = session.run(["logits"], {{"tokens": ids}})[0]
```

`ids` (B, S) are 64-bit integers: of each text the begin symbol (1), at most {max_length - 2} tokens, of which those to
fill in are the mask token ({mask_id}), then the end symbol (2), padded on the right with 0. `logits` (B, S, V) are the
scores of the original token at each position. Headway can also load the folder:

    headway fill THIS_FOLDER "A text with a [MASK]."
"""
