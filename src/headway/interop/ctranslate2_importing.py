"""Import a Transformer from a CTranslate2 folder: weights, options, vocabularies and special tokens.

    model.bin                    the variables (:mod:`headway.interop.ctranslate2_variables`)
    config.json                  names of special tokens, and which of them are added to a source (since version 6)
    shared_vocabulary, or source_vocabulary and target_vocabulary, each .json (a list) or .txt (a token per line)
    vmap.txt                     optional: target tokens that the tokens of a source may need

Every variable must be known and every option is either applied or refused by name. Alignment heads are not needed:
Headway chooses its own. Differences between the two toolkits that the import bridges without changing the function:

- Special tokens have other ids. If the vocabulary has no padding, unknown or separate first token, its row duplicates
  another one, and a bias keeps its probability at 0.
- ``start_from_zero_embedding`` becomes a row of zeros for the begin symbol.
- Missing biases are zeros.
- The sigmoid form of GELU, x * sigmoid(1.702 x), equals silu(1.702 x) / 1.702, so the weights before and after it are
  scaled. So are the weights of queries with a scale of their own.
- Tables of positions that contain sinusoids become sinusoids without a maximum length. Other tables are learned
  positions. A model without a table and without rotary positions has CTranslate2's own sinusoids.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from headway.bundle import build_without_initialization
from headway.engine import Shortlist
from headway.errors import BundleError
from headway.interop.ctranslate2 import GATED_PARTS, PARTS
from headway.interop.ctranslate2_variables import StoredVariables
from headway.interop.huggingface.checkpoint import read_json
from headway.interop.huggingface.importing import NEVER
from headway.interop.huggingface.tensor_maps import copy_table, permute_heads, rotated_order
from headway.interop.stored_vocabulary import StoredVocabulary
from headway.interop.supported import GATES
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.positions import sinusoids
from headway.text.base import BOS, EOS
from headway.text.special_tokens import SpecialTokenTemplate
from headway.weights import named_weights, shapes_of

NAME = "CTranslate2"
_HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}  # before revision 3 of the specification
_SPECIFICATION, _LAST_REVISION = "TransformerSpec", 7
_ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh", "sigmoid")
_GELU_SIGMOID = 1.702
_SIDES: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
_CONFIG_KEYS = {
    *("unk_token", "bos_token", "eos_token", "decoder_start_token", "add_source_bos", "add_source_eos"),
    *("layer_norm_epsilon", "multi_query_attention"),
}
_ROTARY = ("rotary_dim", "rotary_interleave", "rotary_base", "rotary_scaling_type", "rotary_scaling_factor")
_PAD_NAMES = ("<blank>", "<pad>")
_REFUSED = {  # parts of names of variables: what they belong to
    "relative_position_": "relative positions of Shaw et al. (2018)",
    "relative_asymmetric_position_": "relative positions of Shaw et al. (2018)",
    "relative_left_max_position": "relative positions of Shaw et al. (2018)",
    "relative_right_max_position": "relative positions of Shaw et al. (2018)",
    "relative_attention_": "relative attention biases (T5)",
    "weight_zero": "AWQ quantization",
    "embeddings_1": "source features",
    "project_in": "projections of embeddings (project_in)",
    "project_out": "projections of outputs (project_out)",
    "_feedforward_layer_norm": "norms before and after each sub-layer",
    "external_": "norms before and after each sub-layer",
    "memory_kv": "attention to memory and target at once",
    "merged_encoder_attention": "attention to memory and target at once",
    "sliding_window": "sliding windows",
    "final_logit_softcapping": "soft-capped logits",
    "layer_scalar": "scaled layers",
    "scale_outputs": "scaled outputs",
    "v_norm": "norms of values",
    "shared_layer_norm": "parallel sub-layers",
    "input_layer_norm": "parallel sub-layers",
}
_WITHOUT_EFFECT = {  # variables that are not needed, in all versions
    *("alignment_layer", "alignment_heads", "embeddings_merge", "alibi_use_positive_positions", "scale_alibi"),
    *("multi_query_attention", "multiply_by_sqrt_depth"),
    *("with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens", "with_relative_position"),
}


@dataclass(frozen=True)
class CTranslate2Model:
    """An imported model in evaluation mode, its vocabularies, and its special tokens.

    Attributes:
        model: The model.
        source_vocabulary: The source's vocabulary.
        target_vocabulary: The target's vocabulary, the same object if both are shared.
        token_template: The special tokens that CTranslate2 adds by itself, without languages.
        version: The version of the binary format.
        dtype: The type in which matrices were stored.
        starts_from_zero: Whether the first decoder embedding is zero, as in Marian.
    """

    model: Transformer
    source_vocabulary: StoredVocabulary
    target_vocabulary: StoredVocabulary
    token_template: SpecialTokenTemplate
    version: int
    dtype: str
    starts_from_zero: bool


def import_ctranslate2_model(folder: Path, *, start_token: str | None = None) -> CTranslate2Model:
    """Import the model of a CTranslate2 folder.

    Args:
        folder: The folder.
        start_token: The first decoder token of a model that leaves it to its user, such as a language code.

    Raises:
        BundleError: A file is missing or damaged, or Headway does not support an option. The message names it.
    """
    variables = StoredVariables(folder / "model.bin")
    _check_specification(variables)
    if variables.revision == 1:
        variables.rename({name: _name_of_revision_1(name) for name in variables})
    settings = _TokenSettings.read(folder, variables)
    config = _config(variables, settings)
    vocabularies = _vocabularies(folder, variables, settings, start_token)
    source, target = vocabularies
    template = _template(folder, settings, source)
    model = _build(variables, config, source, target, settings)
    _check_all_known(variables)
    dtype = str(variables.dtype("encoder/layer_0/self_attention/linear_0/weight")).removeprefix("torch.")
    return CTranslate2Model(model, source, target, template, variables.version, dtype, settings.zero_start)


def is_ctranslate2(folder: Path) -> bool:
    """Return whether a folder contains a CTranslate2 model, as its files show."""
    names = ("shared_vocabulary", "source_vocabulary", "target_vocabulary", "vocabulary")
    files = (folder / f"{name}.{ending}" for name in names for ending in ("json", "txt"))
    return (folder / "model.bin").is_file() and any(file.is_file() for file in files)


def _check_specification(variables: StoredVariables) -> None:
    name = variables.specification
    if "Decoder" in name:
        raise BundleError(f"{variables.path}: decoder-only models ({name}) of CTranslate2 are not supported")
    if name not in (*_HEADS, _SPECIFICATION):
        raise BundleError(
            f"{variables.path}: the specification {name!r} of CTranslate2 is not supported; supported: encoder-decoder "
            f"Transformers ({_SPECIFICATION}, TransformerBase, TransformerBig)"
        )
    if not 1 <= variables.revision <= _LAST_REVISION:
        raise BundleError(
            f"{variables.path}: revision {variables.revision} of {name} is not supported; supported: 1 to "
            f"{_LAST_REVISION}"
        )


def _name_of_revision_1(name: str) -> str:
    """Return the present name of a variable of revision 1, whose names are those of OpenNMT-tf."""
    changes = {
        "transformer/": "",
        ":0": "",
        "w_embs": "embeddings/weight",
        "kernel": "weight",
        "LayerNorm": "layer_norm",
        "dense": "projection",
        "conv1d_": "linear_",
        "conv1d": "linear_0",
    }
    for old, new in changes.items():
        name = name.replace(old, new, 1)
    if "encoder" in name:
        return name.replace("multi_head", "self_attention", 1)
    return name.replace("masked_multi_head", "self_attention", 1).replace("multi_head", "attention", 1)


@dataclass(frozen=True)
class _TokenSettings:
    """Names of special tokens and where they are added, from config.json or, before version 6, from variables."""

    path: Path
    unk_token: str
    bos_token: str
    eos_token: str
    decoder_start_token: str | None
    add_source_bos: bool
    add_source_eos: bool
    norm_epsilon: float | None
    zero_start: bool

    @classmethod
    def read(cls, folder: Path, variables: StoredVariables) -> _TokenSettings:
        path = folder / "config.json"
        stored = read_json(path)
        config: dict[str, Any] = {
            "unk_token": "<unk>",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "add_source_bos": False,
            "add_source_eos": False,
            **(stored or {}),
        }
        if config.get("quantization_type"):
            raise BundleError(
                f"{path}: quantization_type = {config['quantization_type']!r} (AWQ quantization) is not supported"
            )
        for key, value in config.items():
            if key not in _CONFIG_KEYS and value:
                raise BundleError(f"{path}: {key} = {value!r} is not supported for a model of {NAME}")
        if variables.version < 6:
            config |= _old_settings(variables)
        config.setdefault("decoder_start_token", config["bos_token"])
        names = ("unk_token", "bos_token", "eos_token")
        if any(not isinstance(config[name], str) for name in names):
            raise BundleError(f"{path}: damaged ({' and '.join(names)} must be strings); copy it again")
        if not isinstance(config["decoder_start_token"], str | None):
            raise BundleError(f"{path}: damaged (decoder_start_token must be a string or null); copy it again")
        epsilon = config.get("layer_norm_epsilon")
        if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < 1):
            raise BundleError(f"{path}: layer_norm_epsilon = {epsilon!r}: expected a number between 0 and 1")
        return cls(
            path,
            config["unk_token"],
            config["bos_token"],
            config["eos_token"],
            config["decoder_start_token"],
            bool(config["add_source_bos"]),
            bool(config["add_source_eos"]),
            epsilon,
            bool(variables.scalar("decoder/start_from_zero_embedding")),
        )


def _old_settings(variables: StoredVariables) -> dict[str, Any]:
    """Return the settings that variables contained before version 6."""
    defaults = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    settings: dict[str, Any] = {name: variables.text(name) or default for name, default in defaults.items()}
    for side in ("bos", "eos"):
        settings[f"add_source_{side}"] = bool(variables.scalar(f"with_source_{side}"))
    with_bos = variables.scalar("with_target_bos")
    start: str | None = settings["eos_token" if with_bos == 0 else "bos_token"]
    settings["decoder_start_token"] = None if variables.scalar("user_decoder_start_tokens") else start
    return settings


def _config(variables: StoredVariables, settings: _TokenSettings) -> TransformerConfig:
    """Return the options of the model. Encoder and decoder must have the same, except the number of layers."""
    _refuse_known(variables)
    options: dict[str, Any] = {}
    for side in _SIDES:
        for name, value in _side_options(variables, side, settings).items():
            if options.setdefault(name, value) != value:
                raise BundleError(
                    f"{variables.path}: {name} = {options[name]!r} in the encoder and {value!r} in the decoder; "
                    "Headway needs the same value for both"
                )
    options |= {f"{side}_layers": _num_layers(variables, side) for side in _SIDES}
    options |= _positions(variables, options["d_model"])
    options |= {"tie": "none", "output_bias": True}
    return TransformerConfig.parse(options, str(variables.path))


def _refuse_known(variables: StoredVariables) -> None:
    for name in variables.names:
        for part, what in _REFUSED.items():
            if part in name:
                raise BundleError(f"{variables.path}: {what} are not supported (variable {name!r})")
    if variables.scalar("decoder/alibi"):
        raise BundleError(f"{variables.path}: ALiBi positions are not supported (variable 'decoder/alibi')")


def _attribute(variables: StoredVariables, side: str, name: str, default: float) -> float:
    """Return an attribute of a side, which was one of the whole model before revision 5."""
    value = variables.scalar(f"{side}/{name}")
    value = variables.scalar(name) if value is None else value
    return default if value is None else value


def _side_options(variables: StoredVariables, side: str, settings: _TokenSettings) -> dict[str, Any]:
    path, first = variables.path, f"{side}/layer_0"
    table = variables.shape(_embeddings(variables, side))
    hidden = variables.shape(f"{first}/ffn/linear_0/weight")
    if len(table) != 2 or len(hidden) < 2 or not all((*table, *hidden)):
        raise BundleError(f"{path}: damaged (the embeddings have the shape {list(table)}); copy it again")
    d_model, heads = table[1], int(_attribute(variables, side, "num_heads", _HEADS.get(variables.specification, 8)))
    if heads < 1 or d_model < 2 or (d_model % heads and f"{first}/self_attention/head_dim" not in variables):
        raise BundleError(f"{path}: {side}/num_heads = {heads} does not divide the width of embeddings, {d_model}")
    is_multi_query = variables.scalar(f"{side}/multi_query_attention")
    d_key = _of_all_layers(variables, side, "head_dim", d_model // heads)
    kv_heads = _of_all_layers(variables, side, "num_heads_kv", 1 if is_multi_query else heads)
    pre_norm = bool(_attribute(variables, side, "pre_norm", 1))
    if pre_norm != (f"{side}/layer_norm/gamma" in variables):
        what = "without a norm after the last layer" if pre_norm else "with a norm after the last layer"
        raise BundleError(f"{path}: pre_norm = {str(pre_norm).lower()} {what} of the {side} is not supported")
    is_rms = f"{first}/ffn/layer_norm/beta" not in variables
    epsilon = settings.norm_epsilon or (1e-6 if is_rms else 1e-5)
    options = {
        "d_model": d_model,
        "num_heads": heads,
        "num_kv_heads": None if kv_heads == heads else kv_heads,
        "d_ff": hidden[0],
        "norm": "pre" if pre_norm else "post",
        "norm_kind": "rms" if is_rms else "layer",
        "norm_epsilon": epsilon,
        "activation": _activation(variables, side),
        "scale_embedding": _is_scaled(variables, side, d_model),
        "embedding_norm": f"{side}/layernorm_embedding/gamma" in variables,
        "qk_norm": _has_qk_norm(variables, first),
    }
    return options if d_key == d_model / heads else options | {"d_key": d_key, "d_value": d_key}


def _of_all_layers(variables: StoredVariables, side: str, name: str, default: int) -> int:
    """Return an attribute that all attention layers of a side must have in common."""
    scopes = [f"{side}/layer_{layer}" for layer in range(_num_layers(variables, side))]
    values = {variables.scalar(f"{scope}/self_attention/{name}") for scope in scopes}
    if side == "decoder":
        values |= {variables.scalar(f"{scope}/attention/{name}") for scope in scopes}
    if len(values) > 1:
        raise BundleError(f"{variables.path}: different values of {name} in the {side} are not supported")
    (value,) = values
    return int(value or default)


def _activation(variables: StoredVariables, side: str) -> str:
    """Return the activation. GELU's sigmoid form is silu with scaled weights (:func:`_factors`)."""
    number = int(_attribute(variables, side, "activation", 0))
    name = _ACTIVATIONS[number] if 0 <= number < len(_ACTIVATIONS) else str(number)
    plain = "silu" if name == "gelu_sigmoid" else name
    if f"{side}/layer_0/ffn/linear_0_noact/weight" in variables:
        gates = {function: gate for gate, function in GATES.items()}
        if plain not in gates:
            raise BundleError(f"{variables.path}: the activation {name} of a gate is not supported")
        return gates[plain]
    if plain not in ("relu", "gelu_tanh", "silu", "gelu"):
        raise BundleError(f"{variables.path}: the activation {name} is not supported")
    return plain


def _is_scaled(variables: StoredVariables, side: str, d_model: int) -> bool:
    """Return whether embeddings are multiplied by sqrt(d_model). No other factor than 1 is supported."""
    name = f"{side}/scale_embeddings"
    if name not in variables:
        name = f"{_embeddings(variables, side).removesuffix('/weight')}/multiply_by_sqrt_depth"
    value = variables.scalar(name)
    if value is None or (variables.dtype(name) == torch.int8 and value):
        return True
    if value in (0, 1) and (variables.dtype(name) == torch.int8 or value == 1):
        return False
    if math.isclose(value, math.sqrt(d_model), rel_tol=1e-3 if variables.dtype(name) != torch.float32 else 1e-6):
        return True
    raise BundleError(
        f"{variables.path}: embeddings of the {side} are multiplied by {value:g}, which is not supported; supported: "
        f"1 and the square root of their width, {math.sqrt(d_model):g}"
    )


def _has_qk_norm(variables: StoredVariables, layer: str) -> bool:
    if f"{layer}/self_attention/q_norm/beta" in variables:
        raise BundleError(f"{variables.path}: layer norms of queries and keys are not supported; supported: RMSNorm")
    return f"{layer}/self_attention/q_norm/gamma" in variables


def _num_layers(variables: StoredVariables, side: str) -> int:
    count = 0
    while f"{side}/layer_{count}/ffn/linear_0/weight" in variables:
        count += 1
    return count


def _embeddings(variables: StoredVariables, side: str) -> str:
    """Return the name of a side's embeddings. Since revision 6, the encoder has a list of them."""
    listed = f"{side}/embeddings_0/weight"
    return listed if listed in variables else f"{side}/embeddings/weight"


def _positions(variables: StoredVariables, d_model: int) -> dict[str, Any]:
    """Return the options of positions. They are learned unless both sides have the same sinusoids."""
    tables = [f"{side}/position_encodings/encodings" for side in _SIDES]
    stored = [name in variables for name in tables]
    if any(f"{side}/layer_0/self_attention/rotary_dim" in variables for side in _SIDES):
        return _rotary(variables)
    if stored == [False, False]:
        if d_model % 2 or d_model < 4:
            raise BundleError(f"{variables.path}: sinusoids need an even width of at least 4, but it is {d_model}")
        return {"sinusoid_layout": "halves", "sinusoid_spacing": "inclusive", "position_offset": 1}
    if stored != [True, True]:
        raise BundleError(f"{variables.path}: only one side has a table of positions, which is not supported")
    shapes = [variables.shape(name) for name in tables]
    if any(len(shape) != 2 or shape[0] < 2 or shape[1] != d_model for shape in shapes):
        raise BundleError(
            f"{variables.path}: tables of positions with the shapes {shapes} do not fit embeddings of width {d_model}"
        )
    kinds = [_sinusoids(variables, name) for name in tables]
    if kinds[0] is not None and kinds[0] == kinds[1]:
        return kinds[0]
    return {"positions": "learned", "max_length": min(shape[0] for shape in shapes)}


def _sinusoids(variables: StoredVariables, name: str) -> dict[str, Any] | None:
    """Return the options of the sinusoids in a table of float32, or None if the table contains something else.

    Toolkits compute sinusoids in single precision, whose error grows with the position.
    """
    if variables.dtype(name) != torch.float32:
        return None
    length, width = variables.shape(name)
    for layout in ("interleaved", "halves"):
        for spacing in ("paper", "inclusive"):
            for offset in range(4):
                form = {"interleaved": layout == "interleaved", "last_exponent": spacing == "inclusive"}

                def is_equal(start: int, stop: int, form: dict[str, bool] = form, offset: int = offset) -> bool:
                    expected = sinusoids(stop - start, width, offset=offset + start, **form)
                    tolerance = 1e-5 + 5e-7 * torch.arange(start, stop).unsqueeze(1)
                    return bool(((variables.rows(name, start, stop) - expected).abs() <= tolerance).all())

                steps = range(0, length, 1024)
                if is_equal(0, min(length, 8)) and all(is_equal(step, min(step + 1024, length)) for step in steps):
                    return {"sinusoid_layout": layout, "sinusoid_spacing": spacing, "position_offset": offset}
    return None


def _rotary(variables: StoredVariables) -> dict[str, Any]:
    """Return the options of rotary positions, which must be the same in all self-attention layers."""
    scopes = [
        f"{side}/layer_{layer}/self_attention" for side in _SIDES for layer in range(_num_layers(variables, side))
    ]
    values = {tuple(variables.scalar(f"{scope}/{name}") for name in _ROTARY) for scope in scopes}
    if len(values) > 1:
        raise BundleError(f"{variables.path}: rotary positions that differ between layers are not supported")
    ((rotated, _, base, scaling, factor),) = values
    if scaling not in (None, 0):
        raise BundleError(
            f"{variables.path}: rotary_scaling_type = {scaling:g} is not supported; supported: linear (0)"
        )
    columns = variables.shape(f"{scopes[0]}/linear_1/weight")[-1]
    heads = int(_attribute(variables, "encoder", "num_heads", 8))
    options: dict[str, Any] = {
        "positions": "rotary",
        "rotary_fraction": (rotated * heads / columns) if rotated else 1.0,
    }
    if base is not None:
        options["rotary_base"] = base
    if scaling is not None:
        options["rotary_scaling"] = {"kind": "linear", "factor": factor}
    return options


def _is_rotated_in_halves(variables: StoredVariables) -> bool:
    """Return whether rotary positions rotate units i and i + K/2 together. Headway rotates neighbors."""
    return variables.scalar("encoder/layer_0/self_attention/rotary_interleave") == 0


# Vocabularies.


def _vocabularies(
    folder: Path, variables: StoredVariables, settings: _TokenSettings, start_token: str | None
) -> tuple[StoredVocabulary, StoredVocabulary]:
    shared = _tokens(folder, "shared_vocabulary")
    sizes = [variables.shape(_embeddings(variables, side))[0] for side in _SIDES]
    lists = [shared or _tokens(folder, f"{side}_vocabulary") for side in ("source", "target")]
    for side, tokens in zip(("source", "target"), lists, strict=True):
        if tokens is None:
            raise BundleError(
                f"{folder}: no vocabulary of the {side}; expected shared_vocabulary.json or .txt, or "
                f"{side}_vocabulary.json or .txt"
            )
    start = start_token if settings.decoder_start_token is None else settings.decoder_start_token
    if start is None:
        raise BundleError(
            f"{folder}: the first decoder token is left to the user (decoder_start_token = null), for example a "
            "language code; give it (target_language=, on the command line --target-language)"
        )
    source, target = (
        _vocabulary(folder, cast("list[str]", tokens), size, settings, None if settings.zero_start else start, side)
        for side, tokens, size in zip(("source", "target"), lists, sizes, strict=True)
    )
    is_joint = source.tokens == target.tokens and source.order == target.order
    return (target if is_joint else source), target


def _vocabulary(
    folder: Path, tokens: list[str], size: int, settings: _TokenSettings, start: str | None, side: str
) -> StoredVocabulary:
    names = [*tokens, *([] if settings.unk_token in tokens else [settings.unk_token])][:size]
    if len(tokens) > size:
        raise BundleError(f"{folder}: the {side} vocabulary has {len(tokens):,} tokens, but the weights {size:,} rows")
    ids = {name: index for index, name in reversed([*enumerate(names)])}
    if side == "target":
        needed = {"eos_token": settings.eos_token} | ({} if start is None else {"decoder_start_token": start})
        for key, name in needed.items():
            if name not in ids:
                raise BundleError(f"{folder}: {key} = {name!r} is not in the {side} vocabulary")
    pad = next((ids[name] for name in _PAD_NAMES if name in ids), None)
    end, unknown = ids.get(settings.eos_token), ids.get(settings.unk_token)
    first = None if start is None else ids.get(start)
    order = VocabularyOrder.with_duplicates(size, pad=pad, start=first, end=end, unknown=unknown)
    words = {settings.unk_token, settings.bos_token, settings.eos_token, *_PAD_NAMES, "<s>", "</s>", "<unk>", "<mask>"}
    special = frozenset(ids[name] for name in words if name in ids)
    return StoredVocabulary(names, order, special)


def _tokens(folder: Path, name: str) -> list[str] | None:
    """Return the tokens of a vocabulary file, or None if the folder does not have it."""
    path = folder / f"{name}.json"
    try:
        tokens = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise BundleError(f"{path}: damaged (expected a list of tokens); copy it again")
    except FileNotFoundError:
        path = folder / f"{name}.txt"
        try:
            tokens = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path}: cannot be read ({error}); expected a token per line in UTF-8") from None
        if all(token.endswith("\r") for token in tokens):
            tokens = [token[:-1] for token in tokens]
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: damaged ({error}); copy it again") from None
    for token in tokens:
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise BundleError(f"{path}: damaged (a token contains a lone surrogate); copy it again")
    return list(tokens)


def _template(folder: Path, settings: _TokenSettings, source: StoredVocabulary) -> SpecialTokenTemplate:
    prefix, suffix = list[int](), list[int]()
    for wanted, name, ids in (
        (settings.add_source_bos, settings.bos_token, prefix),
        (settings.add_source_eos, settings.eos_token, suffix),
    ):
        if wanted and name not in source.ids:
            raise BundleError(f"{folder}: {name!r}, which is added to sources, is not in the source vocabulary")
        if wanted:
            ids += source.order.to_headway_ids([source.ids[name]])
    return SpecialTokenTemplate(source_prefix=tuple(prefix), source_suffix=tuple(suffix))


# Weights.


@dataclass(frozen=True)
class _Stored:
    """A part of a variable that one weight of Headway's is copied from.

    Attributes:
        name: The variable.
        start: Its first row.
        factor: A factor of the values.
        optional: Whether the weight is zero if the variable is missing.
    """

    name: str
    start: int = 0
    factor: float = 1.0
    optional: bool = False


def _build(
    variables: StoredVariables,
    config: TransformerConfig,
    source: StoredVocabulary,
    target: StoredVocabulary,
    settings: _TokenSettings,
) -> Transformer:
    """Build the model and copy the weights, a part of one at a time."""
    tables = _embeddings(variables, "encoder"), _embeddings(variables, "decoder"), "decoder/projection/weight"
    tie = "none"
    if _are_equal(variables, tables[1], tables[2]):
        tie = "all" if source is target and _are_equal(variables, tables[0], tables[1]) else "target"
    has_bias = "decoder/projection/bias" in variables or bool(target.order.duplicates)
    config = config.model_copy(update={"tie": tie, "output_bias": has_bias})
    sizes = len(source.order), len(target.order)
    stored = _stored_weights(variables, config)
    with torch.device("meta"):
        expected = shapes_of(named_weights(Transformer(config, *sizes)))
    _check_shapes(variables, expected, stored, tables)
    model = cast("Transformer", build_without_initialization(config, *sizes))
    weights = named_weights(model)
    with torch.no_grad():
        for name, part in stored.items():
            if part.name not in variables:
                weights[name].zero_()
                continue
            variables.copy_rows(part.name, weights[name], part.start)
            if part.factor != 1:
                weights[name].mul_(part.factor)
        if config.positions == "rotary" and _is_rotated_in_halves(variables):
            width = rotated_order(config.d_key or config.d_model // config.num_heads, config.rotary_fraction)
            for name, weight in weights.items():
                if re.search(r"\.attention\.(query|key)\.", name):
                    weight.copy_(permute_heads(width, weight))
        orders = (source.order, target.order, target.order)
        names = ("source_embedding.weight", "target_embedding.weight", "projection.weight")
        for name, table, order in zip(names, tables, orders, strict=True):
            if name in weights:
                copy_table(_rows_of(variables, table), order.order, weights[name])
        _set_special_rows(variables, weights, target.order, settings)
    return model.eval()


def _rows_of(variables: StoredVariables, table: str) -> Callable[[slice], Tensor]:
    return lambda rows: variables.rows(table, rows.start, rows.stop)


def _set_special_rows(
    variables: StoredVariables, weights: Mapping[str, Tensor], order: VocabularyOrder, settings: _TokenSettings
) -> None:
    """Set the output bias, and the embedding of the begin symbol if it is zero."""
    if (bias := weights.get("projection.bias")) is not None:
        bias.zero_()
        if "decoder/projection/bias" in variables:
            bias.copy_(variables.rows("decoder/projection/bias")[list(order.order)])
        bias[list(order.duplicates)] = NEVER  # a duplicated row must not count twice in the softmax
    if settings.zero_start:
        table = weights.get("target_embedding.weight", weights.get("source_embedding.weight"))
        assert table is not None
        table[BOS] = 0


def _are_equal(variables: StoredVariables, first: str, second: str) -> bool:
    """Return whether two tables have the same values and scales."""
    names = [variables.resolve(name) for name in (first, second)]
    if names[0] == names[1]:
        return True
    if variables.shape(first) != variables.shape(second) or variables.dtype(first) != variables.dtype(second):
        return False
    length, width = variables.shape(first)
    step = max(1, 2**22 // max(width, 1))
    return all(
        torch.equal(variables.rows(first, start, stop), variables.rows(second, start, stop))
        for start, stop in ((start, min(start + step, length)) for start in range(0, length, step))
    )


def _stored_weights(variables: StoredVariables, config: TransformerConfig) -> dict[str, _Stored]:
    """Return where each weight is stored, except embeddings, projection and its bias."""
    stored: dict[str, _Stored] = {}
    parts = dict(GATED_PARTS if config.activation in GATES else PARTS)
    if config.qk_norm:
        for attention, module in (("self_attention", "attention"), ("attention", "cross_attention")):
            parts |= {f"{attention}.{name[0]}_norm": (f"{module}.{name}_norm",) for name in ("query", "key")}
    for side in _SIDES:
        for layer in range(getattr(config, f"{side}_layers")):
            scope, block = f"{side}/layer_{layer}", f"{side}.blocks.{layer}"
            for path, modules in parts.items():
                if side == "encoder" and path.startswith("attention."):
                    continue
                name = f"{scope}/{path.replace('linear.', 'linear_').replace('.', '/')}"
                start = 0
                for module in modules:
                    factor = _factor(variables, config, side, scope, module)
                    stored |= _module(f"{block}.{module}", name, start, factor, config)
                    start += _rows(config, module)
        if config.norm == "pre":
            stored |= _module(f"{side}.norm", f"{side}/layer_norm", 0, (1.0, 1.0), config)
    for side, ours in zip(_SIDES, ("source", "target"), strict=True):
        if config.embedding_norm:
            stored |= _module(f"{ours}_norm", f"{side}/layernorm_embedding", 0, (1.0, 1.0), config)
        if config.positions == "learned":
            stored[f"{ours}_positions.table"] = _Stored(f"{side}/position_encodings/encodings")
    return stored


def _module(
    ours: str, theirs: str, start: int, factors: tuple[float, float], config: TransformerConfig
) -> dict[str, _Stored]:
    """Return where weight and bias of one module are stored, a norm or a linear layer with ``factors`` of both."""
    if ours.endswith("norm"):
        named = {f"{ours}.weight": _Stored(f"{theirs}/gamma")}
        if config.norm_kind == "layer" and not ours.endswith(("query_norm", "key_norm")):
            named[f"{ours}.bias"] = _Stored(f"{theirs}/beta")
        return named
    weight, bias = factors
    return {
        f"{ours}.weight": _Stored(f"{theirs}/weight", start, weight),
        f"{ours}.bias": _Stored(f"{theirs}/bias", start, bias, optional=True),
    }


def _rows(config: TransformerConfig, module: str) -> int:
    """Return the number of rows of a module that is stored together with others."""
    width = config.d_key or config.d_model // config.num_heads
    heads = config.num_heads if module.endswith("query") else config.num_kv_heads or config.num_heads
    return width * heads


def _factor(
    variables: StoredVariables, config: TransformerConfig, side: str, scope: str, module: str
) -> tuple[float, float]:
    """Return the factors of a linear layer's weight and bias, for options that Headway expresses by weights."""
    if module.endswith(".query"):
        attention = "attention" if module.startswith("cross_") else "self_attention"
        scale = variables.scalar(f"{scope}/{attention}/queries_scale")
        if scale is not None:
            factor = scale * math.sqrt(config.d_key or config.d_model // config.num_heads)
            return factor, factor
    if int(_attribute(variables, side, "activation", 0)) == _ACTIVATIONS.index("gelu_sigmoid"):
        if module == ("feed_forward.gate" if config.activation in GATES else "feed_forward.inner"):
            return _GELU_SIGMOID, _GELU_SIGMOID
        if module == "feed_forward.outer":
            return 1 / _GELU_SIGMOID, 1.0
    return 1.0, 1.0


def _check_shapes(
    variables: StoredVariables,
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, _Stored],
    tables: tuple[str, str, str],
) -> None:
    """Raise :class:`BundleError` if a variable is missing or its shape does not fit the options of the model."""
    required: dict[str, tuple[int, ...]] = {}
    for ours, part in stored.items():
        if not part.optional or part.name in variables:  # several weights may be stored one after the other
            end = part.start + expected[ours][0]
            required[part.name] = max(required.get(part.name, ()), (end, *expected[ours][1:]))
    for name, shape in required.items():
        stored_shape = variables.shape(name)
        is_longer = stored_shape[1:] == shape[1:] and stored_shape > shape
        if stored_shape != shape and not (is_longer and name.endswith("/encodings")):
            raise _shape_error(variables, name, shape)
    _, target, projection = tables
    if variables.shape(projection) != variables.shape(target):
        raise _shape_error(variables, projection, variables.shape(target))
    if "decoder/projection/bias" in variables:
        name, size = "decoder/projection/bias", variables.shape(target)[0]
        if variables.shape(name) != (size,):
            raise _shape_error(variables, name, (size,))


def _shape_error(variables: StoredVariables, name: str, expected: tuple[int, ...]) -> BundleError:
    return BundleError(
        f"{variables.path}: the variable {name!r} has the shape {list(variables.shape(name))}; the other variables "
        f"require {list(expected)}"
    )


def _check_all_known(variables: StoredVariables) -> None:
    """Raise :class:`BundleError` for a variable that was not used, unless it is known to have no effect."""
    for name in variables.names:
        if name in variables.accessed or name.removesuffix("_scale") in variables.accessed:
            continue
        if name.rpartition("/")[2] in _WITHOUT_EFFECT:
            continue
        raise BundleError(f"{variables.path}: unknown variable {name!r}, which this form of model does not have")


# The vocabulary map.


def read_vocabulary_map(
    path: Path, source: StoredVocabulary, target: StoredVocabulary, vocabulary_fingerprints: str
) -> Shortlist | None:
    """Return the shortlist that a vmap.txt defines, or None if there is no such file.

    A line has the tokens of a source and, after a tab, target tokens that they may need. A line without source tokens
    has target tokens that are always allowed. CTranslate2 looks for all tokens of a line, one after the other, in a
    source; a shortlist of Headway's has one list for each token, so the targets go to the first token, and the list of
    a source contains CTranslate2's.

    Raises:
        BundleError: The file is damaged.
    """
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); expected UTF-8") from None
    source_ids, target_ids = source.ids, target.ids
    always, rows = {EOS}, [set[int]() for _ in range(len(source.order))]
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        key, tab, values = line.partition("\t")
        if not tab:
            raise BundleError(f"{path}, line {number}: expected source tokens, a tab, and target tokens")
        known = [target_ids[token] for token in values.split(" ") if token in target_ids]
        ids = set(target.order.to_headway_ids(known))
        if not key:
            always |= ids
        elif (first := key.split(" ")[0]) in source_ids:
            rows[source.order.to_headway_ids([source_ids[first]])[0]] |= ids
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = sorted(ids)
    return Shortlist(np.array(sorted(always), dtype=np.int32), table, vocabulary_fingerprints)
