"""The configuration of encoder and decoder blocks, inherited by the configs of all models with such blocks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headway.config import Config, KindName
from headway.nn.positions import RotaryScaling
from headway.nn.scores import SCORES

Norm = Literal["post", "pre", "none"]
Projection = Literal["linear", "hidden"]
Positions = Literal["sinusoidal", "learned", "rotary", "relative_bias", "none"]
PlainActivation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Gate = Literal["glu", "reglu", "geglu", "geglu_tanh", "swiglu"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "glu", "reglu", "geglu", "geglu_tanh", "swiglu"]

# Fields whose defaults differ between models.
ModelWidth = Annotated[int, Field(ge=1, description="Width of the residual stream, in units.")]
NumHeads = Annotated[int, Field(ge=1, description="Number of attention heads.")]
InnerWidth = Annotated[int, Field(ge=1, description="Inner width of the feed-forward layers, in units.")]
SublayerDropout = Annotated[
    float,
    Field(ge=0, lt=1, description="Dropout probability on sub-layer outputs, and on embeddings with their positions."),
]
NormPlacement = Annotated[
    Norm,
    Field(description="Norm placement: after each residual connection (post; paper), before each sub-layer, or none."),
]
NormKind = Annotated[
    Literal["layer", "rms"],
    Field(description="Kind of norm: layer norm (paper), or RMSNorm, which subtracts no mean and has no bias."),
]
BiasKind = Annotated[
    Literal["all", "qkv", "none"],
    Field(
        description="Which layers of a block have a bias: all linear layers and layer norms, only the projections to "
        "queries, keys and values, or none."
    ),
]
ActivationKind = Annotated[
    Activation,
    Field(description="Activation of the feed-forward layers. glu, reglu, geglu, geglu_tanh and swiglu are gated."),
]
PositionKind = Annotated[
    Positions,
    Field(
        description="Position encoding: vectors added to embeddings (sinusoidal, learned), rotation of the queries and "
        "keys of self-attention (rotary; dot-product and cosine scores then depend only on distances), learned biases "
        "added to the scores of self-attention, one per bucket of distances (relative_bias; T5), or none."
    ),
]

_OPTIONS_OF_POSITIONS = {
    **dict.fromkeys(("rotary_base", "rotary_fraction", "rotary_scaling"), "rotary"),
    **dict.fromkeys(("relative_buckets", "relative_max_distance"), "relative_bias"),
}


class BlockConfig(Config):
    """The sizes and options of encoder and decoder blocks. Configs of models with such blocks inherit from it."""

    d_model: ModelWidth
    num_heads: NumHeads
    num_kv_heads: int | None = Field(
        None,
        ge=1,
        description="Number of key and value heads, each shared by num_heads / num_kv_heads query heads (grouped-query "
        "attention; 1 means multi-query attention). Default: num_heads.",
    )
    d_key: int | None = Field(
        None, ge=1, description="Width of a head's queries and keys. Default: d_model / num_heads."
    )
    d_value: int | None = Field(None, ge=1, description="Width of a head's values. Default: d_model / num_heads.")
    d_ff: InnerWidth
    dropout: SublayerDropout = 0.0
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability on attention weights.")
    feed_forward_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability inside feed-forward layers.")
    layer_dropout: float = Field(
        0.0, ge=0, lt=1, description="Probability of skipping a whole block in training (LayerDrop)."
    )
    activation: ActivationKind = "relu"
    norm: NormPlacement = "post"
    norm_kind: NormKind = "layer"
    norm_epsilon: float = Field(1e-5, gt=0, description="Epsilon that norms add to the variance or mean square.")
    bias: BiasKind = "all"
    residual: bool = Field(
        True, description="Whether each sub-layer's output is added to its input (paper) or replaces the input."
    )
    score: Annotated[str, KindName(lambda: SCORES, "headway.nn.register_score")] = Field(
        "scaled_dot",
        description="Score of a query and a key: their dot product divided by sqrt(d_key) (paper), the dot product "
        "itself, a bilinear form (general), a hidden layer with tanh (additive) or ReLU (feed_forward), or the cosine.",
    )
    qk_projection: Projection = Field(
        "linear", description="Projections of queries and keys: linear (paper), or with one hidden ReLU layer."
    )
    qk_norm: bool = Field(
        False, description="Whether each head's queries and keys pass through an RMSNorm before they are compared."
    )
    positions: PositionKind = "sinusoidal"
    rotary_base: float = Field(
        10000.0, gt=1, description="Base of rotary wavelengths: each position rotates unit pair i by base^(-2i/K)."
    )
    rotary_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a head's units that rotary positions rotate; the others stay unchanged.",
    )
    rotary_scaling: RotaryScaling | None = Field(
        None, description="Scaling of rotary wavelengths for contexts longer than those in training."
    )
    relative_buckets: int = Field(
        32,
        ge=4,
        le=1024,
        multiple_of=2,
        description="For relative_bias: number of distance buckets, each with its own bias. Half of the buckets "
        "contain one distance each. An encoder uses half of the buckets for each direction.",
    )
    relative_max_distance: int = Field(
        128,
        ge=3,
        le=1_000_000,
        description="For relative_bias: this distance and all greater distances share one bucket.",
    )
    encoder_window: int | None = Field(
        None,
        ge=1,
        description="Number of positions r that each encoder position attends to (restricted self-attention; paper, "
        "section 4): itself, r // 2 positions before it and (r - 1) // 2 after it. Default: all positions.",
    )
    decoder_window: int | None = Field(
        None,
        ge=1,
        description="Number of latest target positions, including itself, that each decoder position attends to. "
        "Decoding stores only these positions. Default: all target positions up to itself.",
    )

    @model_validator(mode="after")
    def _heads_fit(self) -> BlockConfig:
        if (self.d_key is None or self.d_value is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads = {self.num_heads} does not divide d_model = {self.d_model}; "
                "choose a divisor, or set d_key and d_value"
            )
        width = self.d_key or self.d_model // self.num_heads
        if self.positions == "rotary" and width % 2:
            raise ValueError(
                f"positions = 'rotary' rotates pairs of units, but the queries and keys of a head have {width} units; "
                "set d_key to an even number (default: d_model / num_heads)"
            )
        if self.positions == "rotary" and width * self.rotary_fraction % 2:
            raise ValueError(
                f"rotary_fraction = {self.rotary_fraction} of the {width} units of a head's queries and keys is "
                f"{width * self.rotary_fraction:g}; expected an even number, because pairs of units are rotated"
            )
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads = {self.num_kv_heads} does not divide num_heads = {self.num_heads}; choose a divisor"
            )
        if self.num_kv_heads not in (None, self.num_heads) and self.score != "scaled_dot":
            raise ValueError(
                f"num_kv_heads = {self.num_kv_heads} needs score = 'scaled_dot': other scores have weights for each "
                "head; remove one of them"
            )
        if self.positions == "relative_bias" and self.relative_max_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_max_distance = {self.relative_max_distance} must be more than half of relative_buckets = "
                f"{self.relative_buckets}, because half of the buckets contain one distance each"
            )
        for name, positions in _OPTIONS_OF_POSITIONS.items():
            if self.positions != positions and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} has no effect with positions = {self.positions!r}; remove it, or set positions to "
                    f"{positions!r}"
                )
        return self
