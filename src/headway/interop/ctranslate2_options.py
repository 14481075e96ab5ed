"""Read the options of a Transformer in a CTranslate2 folder from its variables.

Every option is either applied or rejected with an error that names it. The following differences between the toolkits
do not affect the weights:

- Position tables that contain sinusoids become sinusoids without a maximum length. Other tables are learned positions.
  A model without a table and without rotary positions uses CTranslate2's own sinusoids.
- Before revision 5 of the specification, attributes applied to the whole model.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from headway.errors import BundleError
from headway.interop.ctranslate2_variables import StoredVariables
from headway.interop.supported import GATE_ACTIVATIONS
from headway.models.transformer import TransformerConfig
from headway.nn.positions import sinusoids

DEFAULT_NUM_HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}  # before revision 3 of the specification
SIDES: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
_ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh", "sigmoid")
_ROTARY = ("rotary_dim", "rotary_interleave", "rotary_base", "rotary_scaling_type", "rotary_scaling_factor")
_REFUSED = {  # parts of variable names: the unsupported feature that uses these variables
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


def read_options(variables: StoredVariables, norm_epsilon: float | None) -> TransformerConfig:
    """Return the options of the model. The encoder and the decoder must have the same options, except the number of
    layers.

    ``norm_epsilon`` is the value in config.json, or None.
    """
    _refuse_known(variables)
    options: dict[str, Any] = {}
    for side in SIDES:
        for name, value in _side_options(variables, side, norm_epsilon).items():
            if options.setdefault(name, value) != value:
                raise BundleError(
                    f"{variables.path}: {name} = {options[name]!r} in the encoder and {value!r} in the decoder; "
                    "Headway needs the same value for both"
                )
    options |= {f"{side}_layers": _num_layers(variables, side) for side in SIDES}
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


def read_attribute(variables: StoredVariables, side: str, name: str, default: float) -> float:
    """Return an attribute of a side. Before revision 5, it was an attribute of the whole model."""
    value = variables.scalar(f"{side}/{name}")
    value = variables.scalar(name) if value is None else value
    return default if value is None else value


def _side_options(variables: StoredVariables, side: str, norm_epsilon: float | None) -> dict[str, Any]:
    path, first = variables.path, f"{side}/layer_0"
    table = variables.shape(embeddings_name(variables, side))
    hidden = variables.shape(f"{first}/ffn/linear_0/weight")
    if len(table) != 2 or len(hidden) < 2 or not all((*table, *hidden)):
        raise BundleError(f"{path}: damaged (the embeddings have the shape {list(table)}); copy it again")
    d_model, heads = (
        table[1],
        int(read_attribute(variables, side, "num_heads", DEFAULT_NUM_HEADS.get(variables.specification, 8))),
    )
    if heads < 1 or d_model < 2 or (d_model % heads and f"{first}/self_attention/head_dim" not in variables):
        raise BundleError(f"{path}: {side}/num_heads = {heads} does not divide the width of embeddings, {d_model}")
    is_multi_query = variables.scalar(f"{side}/multi_query_attention")
    d_key = _of_all_layers(variables, side, "head_dim", d_model // heads)
    kv_heads = _of_all_layers(variables, side, "num_heads_kv", 1 if is_multi_query else heads)
    pre_norm = bool(read_attribute(variables, side, "pre_norm", 1))
    if pre_norm != (f"{side}/layer_norm/gamma" in variables):
        what = "without a norm after the last layer" if pre_norm else "with a norm after the last layer"
        raise BundleError(f"{path}: pre_norm = {str(pre_norm).lower()} {what} of the {side} is not supported")
    is_rms = f"{first}/ffn/layer_norm/beta" not in variables
    epsilon = norm_epsilon or (1e-6 if is_rms else 1e-5)
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
    """Return an attribute that must be the same in all attention layers of a side."""
    scopes = [f"{side}/layer_{layer}" for layer in range(_num_layers(variables, side))]
    values = {variables.scalar(f"{scope}/self_attention/{name}") for scope in scopes}
    if side == "decoder":
        values |= {variables.scalar(f"{scope}/attention/{name}") for scope in scopes}
    if len(values) > 1:
        raise BundleError(f"{variables.path}: different values of {name} in the {side} are not supported")
    (value,) = values
    return int(value or default)


def _activation(variables: StoredVariables, side: str) -> str:
    """Return the activation. GELU's sigmoid approximation is silu with scaled weights (:func:`is_gelu_sigmoid`)."""
    number = int(read_attribute(variables, side, "activation", 0))
    name = _ACTIVATIONS[number] if 0 <= number < len(_ACTIVATIONS) else str(number)
    plain = "silu" if name == "gelu_sigmoid" else name
    if f"{side}/layer_0/ffn/linear_0_noact/weight" in variables:
        gates = {function: gate for gate, function in GATE_ACTIVATIONS.items()}
        if plain not in gates:
            raise BundleError(f"{variables.path}: the activation {name} of a gate is not supported")
        return gates[plain]
    if plain not in ("relu", "gelu_tanh", "silu", "gelu"):
        raise BundleError(f"{variables.path}: the activation {name} is not supported")
    return plain


def _is_scaled(variables: StoredVariables, side: str, d_model: int) -> bool:
    """Return whether embeddings are multiplied by sqrt(d_model). The only other factor that is supported is 1."""
    name = f"{side}/scale_embeddings"
    if name not in variables:
        name = f"{embeddings_name(variables, side).removesuffix('/weight')}/multiply_by_sqrt_depth"
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


def embeddings_name(variables: StoredVariables, side: str) -> str:
    """Return the name of a side's embeddings. Since revision 6, the encoder has a list of embeddings."""
    listed = f"{side}/embeddings_0/weight"
    return listed if listed in variables else f"{side}/embeddings/weight"


def _positions(variables: StoredVariables, d_model: int) -> dict[str, Any]:
    """Return the position options. Positions are learned unless both sides have the same sinusoids."""
    tables = [f"{side}/position_encodings/encodings" for side in SIDES]
    stored = [name in variables for name in tables]
    if any(f"{side}/layer_0/self_attention/rotary_dim" in variables for side in SIDES):
        return _rotary(variables)
    if stored == [False, False]:
        if d_model % 2 or d_model < 4:
            raise BundleError(f"{variables.path}: sinusoids need an even width of at least 4, but it is {d_model}")
        return {"sinusoid_layout": "halves", "sinusoid_spacing": "inclusive", "position_offset": 1}
    if stored != [True, True]:
        raise BundleError(f"{variables.path}: only one side has a position table, which is not supported")
    shapes = [variables.shape(name) for name in tables]
    if any(len(shape) != 2 or shape[0] < 2 or shape[1] != d_model for shape in shapes):
        raise BundleError(
            f"{variables.path}: position tables with the shapes {shapes} do not fit embeddings of width {d_model}"
        )
    kinds = [_sinusoids(variables, name) for name in tables]
    if kinds[0] is not None and kinds[0] == kinds[1]:
        return kinds[0]
    return {"positions": "learned", "max_length": min(shape[0] for shape in shapes)}


def _sinusoids(variables: StoredVariables, name: str) -> dict[str, Any] | None:
    """Return the options of the sinusoids in a float32 table, or None if the table contains something else.

    Toolkits compute sinusoids in single precision, in which the error grows with the position.
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
    """Return the rotary position options, which must be the same in all self-attention layers."""
    scopes = [f"{side}/layer_{layer}/self_attention" for side in SIDES for layer in range(_num_layers(variables, side))]
    values = {tuple(variables.scalar(f"{scope}/{name}") for name in _ROTARY) for scope in scopes}
    if len(values) > 1:
        raise BundleError(f"{variables.path}: rotary positions that differ between layers are not supported")
    ((rotated, _, base, scaling, factor),) = values
    if scaling not in (None, 0):
        raise BundleError(
            f"{variables.path}: rotary_scaling_type = {scaling:g} is not supported; supported: linear (0)"
        )
    columns = variables.shape(f"{scopes[0]}/linear_1/weight")[-1]
    heads = int(read_attribute(variables, "encoder", "num_heads", 8))
    options: dict[str, Any] = {
        "positions": "rotary",
        "rotary_fraction": (rotated * heads / columns) if rotated else 1.0,
    }
    if base is not None:
        options["rotary_base"] = base
    if scaling is not None:
        options["rotary_scaling"] = {"kind": "linear", "factor": factor}
    return options


def is_rotated_in_halves(variables: StoredVariables) -> bool:
    """Return whether rotary positions rotate pairs of units i and i + K/2. Headway rotates neighboring units."""
    return variables.scalar("encoder/layer_0/self_attention/rotary_interleave") == 0


def is_gelu_sigmoid(variables: StoredVariables, side: str) -> bool:
    """Return whether the activation is GELU's sigmoid approximation, which is silu with scaled weights."""
    return int(read_attribute(variables, side, "activation", 0)) == _ACTIVATIONS.index("gelu_sigmoid")
