"""Read a `transformers` folder: its config.json, completed with the defaults of the model family, and its tensors."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from headway.config import Config, flatten_items
from headway.errors import BundleError
from headway.interop.json_objects import read_json
from headway.weights import read_shapes, read_weight, read_weights

# In versions of PyTorch before this one, a malicious tensor file can corrupt memory (CVE-2026-24747).
_SAFE_UNPICKLING = "2.10"


@dataclass(frozen=True, kw_only=True)
class ModelFamily(ABC):
    """Base class for descriptions of model families.

    Attributes:
        title: The family's name in messages.
        architecture: Name of the `transformers` class with an output projection.
        defaults: Default values for keys that are missing in config.json.
        further_keys: Accepted keys without a default, in addition to the keys without effect in every family.
    """

    title: str
    architecture: str
    defaults: Mapping[str, Any]
    further_keys: frozenset[str] = frozenset()

    @property
    @abstractmethod
    def alternative_architecture(self) -> str:
        """Name of another `transformers` class that is accepted: the one without the task's output layer."""

    @property
    @abstractmethod
    def fixed_options(self) -> Mapping[str, Any]:
        """Keys of config.json for which the family supports only one value, and this value."""


# Keys that do not affect the logits: how a model was created, trained and saved, and settings of generate().
_WITHOUT_EFFECT = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "_num_labels",
        "architectures",
        "assistant_confidence_threshold",
        "attn_implementation",
        "bos_token",
        "cache_implementation",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "classifier_dropout_prob",
        "directionality",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "eos_token",
        "eos_token_ids",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "is_decoder",  # BERT and RoBERTa support only false, because true makes their attention causal
        "is_encoder_decoder",
        "label2id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "max_time",
        "min_length",
        "min_new_tokens",
        "min_p",
        "model_type",
        "n_ctx",
        "no_repeat_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_past",
        "output_scores",
        "penalty_alpha",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "renormalize_logits",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "stop_strings",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
        "xla_device",
    }
)

# Sizes up to these limits always fit into memory, so more specific checks can report what is wrong with them.
_SMALL, _FEW_LAYERS = 4096, 100
_LAYERS = (
    *("encoder_layers", "decoder_layers", "num_hidden_layers", "n_layers", "n_layer"),
    *("num_layers", "num_decoder_layers"),
)
# The fields of Headway's configs that are dimensions of weights.
_SIZES = frozenset({"d_model", "d_ff", "d_key", "d_value", "num_heads", "num_kv_heads"})

ConfigT = TypeVar("ConfigT", bound=Config)
FamilyT_co = TypeVar("FamilyT_co", bound=ModelFamily, covariant=True)


@dataclass(frozen=True)
class Checkpoint(Generic[FamilyT_co]):
    """The configuration of a folder: the values in config.json, or the family's defaults for missing keys."""

    path: Path
    config: Mapping[str, Any]
    family: FamilyT_co

    def __getitem__(self, key: str) -> Any:
        value = self.config.get(key)
        return self.family.defaults.get(key) if value is None else value

    def bundle_error(self, problem: str) -> BundleError:
        """Return an error whose message starts with the path of config.json."""
        return BundleError(f"{self.path}: {problem}")

    def positive_int(self, key: str) -> int:
        """Return the value of ``key``, which must be a positive integer."""
        if isinstance(self[key], int) and self[key] >= 1:
            return int(self[key])
        raise self.bundle_error(f"{key} = {self[key]!r}: expected a whole number of at least 1")

    def token_id(self, key: str) -> int:
        """Return the value of ``key``, which must be the id of a special token."""
        value = self[key]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self.bundle_error(f"{key} = {value!r}: expected the id of one token")

    def generation_setting(self, key: str) -> Any:
        """Return the value of ``key`` in generation_config.json if the file has one, otherwise in config.json."""
        value = (read_json(self.path.with_name("generation_config.json")) or {}).get(key)
        return self[key] if value is None else value

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Sizes of the source and target vocabularies."""
        if "src_vocab_size" in self.family.defaults:
            return self.positive_int("src_vocab_size"), self.positive_int("tgt_vocab_size")
        source = self.positive_int("vocab_size")
        shared = self["share_encoder_decoder_embeddings"] or self["decoder_vocab_size"] is None
        return source, source if shared else self.positive_int("decoder_vocab_size")


def read_checkpoint_config(folder: Path, families: Mapping[str, FamilyT_co]) -> Checkpoint[FamilyT_co]:
    """Read the configuration of a folder whose ``model_type`` is one of these families.

    Keys that the family does not have are accepted if they do not affect the model's result, or if their value is null,
    false, zero or empty.

    Raises:
        BundleError: The model is not supported. The message contains the reason.
    """
    path = folder / "config.json"
    config = read_json(path)
    if config is None:
        raise BundleError(f"{path}: missing; expected a folder with a `transformers` model: config.json and weights")
    model_type = config.get("model_type")
    supported = ", ".join(f"{name} ({family.title})" for name, family in families.items())
    if not isinstance(model_type, str) or model_type not in families:
        raise BundleError(f"{path}: model_type = {model_type!r} is not supported; supported: {supported}")
    family = families[model_type]
    checkpoint = Checkpoint(path, config, family)
    architectures = config.get("architectures") or [family.architecture]
    if family.architecture not in architectures and family.alternative_architecture not in architectures:
        raise checkpoint.bundle_error(
            f"architectures = {architectures} is not supported; expected {family.architecture} for {family.title}"
        )
    for key, expected in family.fixed_options.items():
        if config.get(key, expected) != expected:
            raise checkpoint.bundle_error(
                f"{key} = {json.dumps(config[key])} is not supported; expected {json.dumps(expected)} for "
                f"{family.title}"
            )
    known = _WITHOUT_EFFECT.union(family.further_keys, family.defaults, family.fixed_options)
    for key, value in config.items():
        if key not in known and value and not (isinstance(value, str) and value.isspace()):
            raise checkpoint.bundle_error(f"{key} = {value!r} is not supported for {family.title}")
    return checkpoint


def parse_checked_config(
    checkpoint: Checkpoint[ModelFamily], parse: Callable[[], ConfigT], shapes: Mapping[str, Sequence[int]]
) -> ConfigT:
    """Return Headway's config for a model, after checking that the weights can have its sizes.

    Without this check, a wrong size could exhaust the memory before the weights are compared with the config.

    Args:
        checkpoint: The content of config.json.
        parse: Function that converts it to Headway's config.
        shapes: The shapes of the stored tensors.

    Raises:
        BundleError: The vocabulary, a width, the number of layers, segments or positions is too large.
    """
    most_layers = max(len(shapes), _FEW_LAYERS)
    for key in _LAYERS:
        if isinstance(checkpoint[key], int) and checkpoint[key] > most_layers:
            raise checkpoint.bundle_error(f"{key} = {checkpoint[key]:,}, but the weights are {len(shapes):,} tensors")
    config = parse()
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    fields = dict(flatten_items(config.as_dict()))
    sizes: dict[str, Any] = {
        "vocab_size": max(checkpoint.vocab_sizes),
        "type_vocab_size": checkpoint["type_vocab_size"],
    }
    for name, value in fields.items():
        prefix, dot, field = name.rpartition(".")
        if field in _SIZES or (field == "max_length" and fields.get(f"{prefix}{dot}positions") == "learned"):
            sizes[name] = value
    for name, value in sizes.items():
        if isinstance(value, int) and value > max(largest, _SMALL):
            raise checkpoint.bundle_error(
                f"{name} = {value:,}, but no tensor of the weights has a dimension of more than {largest:,}"
            )
    return config


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_tensors(folder: Path, prefix: str = "model.") -> tuple[Path, dict[str, Tensor]]:
    """Read the folder's weights from one or several files. Return the path of the weights and the tensors.

    The tensors have the current names of a model with an output projection, which begin with ``prefix``.
    """
    path, files = _weight_files(folder)
    read = read_weights if path.suffix == ".safetensors" else _read_pickled
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= {_modern(stored): tensor for stored, tensor in read(file).items()}
    return path, _with_prefix(tensors, prefix)


def _weight_files(folder: Path) -> tuple[Path, list[Path]]:
    """Return the path of the weights for messages, and the files that contain them.

    As in `transformers`, a single file with all weights is preferred over files listed by an index, and safetensors is
    preferred over PyTorch's format.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        path, index_path = folder / name, folder / f"{name}.index.json"
        if path.is_file():
            if index_path.exists():
                warnings.warn(f"{index_path}: not used, because {name} contains all weights", stacklevel=5)
            return path, [path]
        if (index := read_json(index_path)) is not None:
            return path, [folder / file for file in _indexed(index_path, index)]
    raise BundleError(f"{folder}: no weights; expected model.safetensors or pytorch_model.bin")


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a folder with one or several weight files. Each tensor is read when it is accessed.

    Args:
        folder: The `transformers` folder.
        prefix: Prefix of tensor names. It is missing in files of models without an output projection.

    Attributes:
        path: The path of the weights, for messages.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._pickled: dict[str, Tensor] = {}
        self._stored: dict[str, tuple[Path, str, tuple[int, ...]]] = {}
        self.path, files = _weight_files(folder)
        if self.path.suffix != ".safetensors":
            _, self._pickled = read_tensors(folder, prefix)
            return
        for file in files:
            for name, shape in read_shapes(file).items():
                self._stored[_modern(name)] = (file, name, shape)
        if not any(name.startswith(prefix) for name in self._stored):
            self._stored = {f"{prefix}{name}": stored for name, stored in self._stored.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._pickled:
            return self._pickled[name]
        path, stored_name, _ = self._stored[name]
        return read_weight(path, stored_name)

    def rows(self, name: str, rows: slice) -> Tensor:
        """Return some rows of a tensor without reading the other rows."""
        if name in self._pickled:
            return self._pickled[name][rows]
        path, stored_name, _ = self._stored[name]
        return read_weight(path, stored_name, rows)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""
        return tuple(self._pickled[name].shape) if name in self._pickled else self._stored[name][2]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: self.shape(name) for name in self}

    def __iter__(self) -> Iterator[str]:
        return iter(self._pickled or self._stored)

    def __len__(self) -> int:
        return len(self._pickled or self._stored)


def _modern(name: str) -> str:
    """Return the current name of a tensor. In the first BERT files, the weights of norms were called gamma and beta."""
    return re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], name)


def _indexed(path: Path, index: Mapping[str, Any]) -> list[str]:
    """Return the files listed by an index. All of them must be in the folder of the index."""
    weight_map = index.get("weight_map")
    files = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not files or not all(isinstance(file, str) and Path(file).name == file for file in files):
        raise BundleError(f"{path}: damaged (expected weight_map with a file for each tensor); copy it again")
    return sorted(files)


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a PyTorch file. Only tensors are unpickled."""
    if torch.__version__ < _SAFE_UNPICKLING:
        raise BundleError(
            f"{path}: not read, because files of this format are a security risk in PyTorch {torch.__version__}; "
            f"install PyTorch {_SAFE_UNPICKLING} or newer, or use model.safetensors"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).split("\n")[0]
        raise BundleError(f"{path}: not a file of tensors ({reason}); copy it again from its source") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BundleError(f"{path}: not a file of tensors; expected a state dict")
    return content


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Add ``prefix`` to the tensor names of a file without an output projection, in which it is missing."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
