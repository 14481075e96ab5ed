"""The Transformer (Vaswani et al. 2017): an encoder, a decoder, and one output projection.

Symbols in the paper's table 3: N is ``encoder_layers`` and ``decoder_layers``, d_model ``d_model``, d_ff ``d_ff``, h
``num_heads``, d_k ``d_key``, d_v ``d_value`` (per head), P_drop ``dropout``. Embeddings are multiplied by
sqrt(d_model), positions are added, and dropout is applied to the sum (sections 3.4, 3.5, 5.4). By default, source
embedding, target embedding and output projection share one weight (section 3.4).

Options cover the paper's own variants and variants from later work: positions (learned, rotary, relative bias, none),
``norm``, ``residual``, the score function of queries and keys (``score``) and their projections (``qk_projection``).

The encoder can be initialized from a masked language model (:func:`config_with_encoder`; Rothe et al. 2020, "Leveraging
Pre-trained Checkpoints for Sequence Generation Tasks", the model BERT2RND), and the decoder from a decoder-only
language model (:func:`config_with_decoder`; the paper's BERT2GPT).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from headway.decode.protocol import Step
from headway.errors import ConfigError
from headway.models.base import ArchitectureConfig, TranslationModel
from headway.nn.arguments import check_floats, check_integers
from headway.nn.attention import KeysValues, record_attention
from headway.nn.block_config import BlockConfig, InnerWidth, ModelWidth, NumHeads, SublayerDropout
from headway.nn.blocks import DecoderStack, EncoderStack, make_norm
from headway.nn.cache import KVCache
from headway.nn.dropout import Dropout
from headway.nn.embedding import Tie, output_projection, pad_sequences, token_embeddings
from headway.nn.masks import Causal, check_mask, padding_mask
from headway.nn.norms import RMSNorm
from headway.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions, make_positions

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "num_heads": 4, "d_ff": 512, "encoder_layers": 2, "decoder_layers": 2},
    "small": {"d_model": 256, "num_heads": 4, "d_ff": 1024, "encoder_layers": 3, "decoder_layers": 3},
    "base": {"d_model": 512, "num_heads": 8, "d_ff": 2048, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.3},
}


class TransformerConfig(BlockConfig, ArchitectureConfig):
    """The sizes and options of a Transformer. The defaults are the paper's base model."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    kind: Literal["transformer"] = Field("transformer", description="The architecture.")
    d_model: ModelWidth = 512
    num_heads: NumHeads = 8
    d_ff: InnerWidth = 2048
    dropout: SublayerDropout = 0.1
    encoder_layers: int = Field(6, ge=1, description="Number of encoder blocks.")
    decoder_layers: int = Field(6, ge=1, description="Number of decoder blocks.")
    max_length: int = Field(512, ge=2, description="Maximum sequence length in tokens, for learned positions only.")
    sinusoid_layout: Literal["interleaved", "halves"] = Field(
        "interleaved", description="Sines in even and cosines in odd dimensions (paper), or all sines first."
    )
    sinusoid_spacing: Literal["paper", "inclusive"] = Field(
        "paper",
        description="Whether wavelengths from 2 pi to 10000 * 2 pi exclude (paper) or include the end (tensor2tensor).",
    )
    position_offset: int = Field(0, ge=0, description="Position of a sequence's first token, for sinusoids only.")
    scale_embedding: bool = Field(True, description="Whether embeddings are multiplied by sqrt(d_model) (paper).")
    embedding_norm: bool = Field(False, description="Whether embeddings + positions are layer-normalized (BART).")
    output_bias: bool = Field(False, description="Whether each token's logit has a bias.")
    tie: Tie = "all"

    @model_validator(mode="after")
    def _refuse_options_without_effect(self) -> TransformerConfig:
        unused = {
            **dict.fromkeys(
                ("rotary", "relative_bias", "none"),
                ("sinusoid_layout", "sinusoid_spacing", "position_offset", "max_length"),
            ),
            "learned": ("sinusoid_layout", "sinusoid_spacing"),
        }
        for name in unused.get(self.positions, ()):
            if getattr(self, name) != type(self).model_fields[name].default:
                needed = "learned" if name == "max_length" else "sinusoidal"
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} has no effect with positions = {self.positions!r}; remove it, "
                    f"or set positions to {needed!r}"
                )
        return self


@dataclass
class TransformerState:
    """The state between decoding steps: keys and values of the target prefixes and of the memory."""

    prefix_kv: KVCache
    memory_kv: KVCache


class Transformer(TranslationModel):
    """The Transformer, which predicts each next target token from the source and the target so far.

    Sources end with EOS; targets start with BOS. Token 0 is padding on both sides. Weights are initialized
    Xavier-uniformly, and embeddings from a normal distribution with standard deviation d_model^-0.5.
    """

    pad = 0

    config: TransformerConfig
    projection: nn.Linear

    def __init__(self, config: TransformerConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.source_embedding, self.target_embedding = token_embeddings(
            config.tie, source_vocab_size, target_vocab_size, config.d_model, scaled=config.scale_embedding
        )
        self.projection = output_projection(config.tie, self.target_embedding, config.d_model, bias=config.output_bias)
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.source_norm, self.target_norm = _embedding_norm(config), _embedding_norm(config)
        self.embedding_dropout = Dropout(config.dropout)
        self.encoder = EncoderStack(config.encoder_layers, config)
        self.decoder = DecoderStack(config.decoder_layers, config)

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length that the positions support, in tokens including EOS. None means no limit."""
        return self.config.max_length if self.config.positions == "learned" else None

    def embed_source(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Return the input of the encoder's first block, before dropout: scaled embeddings with positions."""
        embedded: Tensor = self.source_norm(self.source_positions(self.source_embedding(tokens)))
        return embedded

    def embed_target(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the input of the decoder's first block for whole prefixes, before dropout."""
        embedded: Tensor = self.target_norm(self.target_positions(self.target_embedding(tokens)))
        return embedded

    def embed_target_at(self, tokens: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R D"]:
        """Return the same as :meth:`embed_target` for one token per row, at the given positions, counted from 0.

        Call ``target_positions.reserve(largest position + 1)`` first.
        """
        embedded = self.target_embedding(tokens.unsqueeze(1)).squeeze(1)
        normed: Tensor = self.target_norm(self.target_positions.add_at(embedded, positions))
        return normed

    def encode(self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B 1 S"]) -> Float[Tensor, "B S D"]:
        """Return the memory, which contains one vector for each source token."""
        check_integers("source", source, "batch", "length")
        check_mask("source_mask", source_mask, source.size(0), source.size(1), source.size(1))
        x = self.embedding_dropout(self.embed_source(source))
        memory: Tensor = self.encoder(x, source_mask)
        return memory

    def decode(
        self, target: Int[Tensor, "B T"], memory: Float[Tensor, "B S D"], source_mask: Bool[Tensor, "B 1 S"]
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden state at each target position.

        Each position attends to the memory and to the target positions up to and including itself.
        """
        check_floats("memory", memory, "batch", "length", self.config.d_model)
        check_integers("target", target, memory.size(0), "length")
        check_mask("source_mask", source_mask, target.size(0), target.size(1), memory.size(1))
        x = self.embedding_dropout(self.embed_target(target))
        hidden: Tensor = self.decoder(x, memory, Causal(), source_mask)
        return hidden

    def hidden(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Encode and decode, and return the hidden states from which :attr:`projection` computes logits."""
        check_integers("source", source, "batch", "length")
        source_mask = padding_mask(source, self.pad)
        return self.decode(target, self.encode(source, source_mask), source_mask)

    def forward(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token after each target position."""
        logits: Tensor = self.projection(self.hidden(source, target))
        return logits

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> TransformerState:
        """Encode the sources and begin decoding, with ``beams`` rows per source."""
        memory = self._memory(sources)
        state = TransformerState(*self.decoder.make_caches(memory))
        self._admit(state, sources, memory, beams)
        return state

    def admit(self, state: TransformerState, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows per source."""
        self._admit(state, sources, self._memory(sources), state.prefix_kv.beams)

    def _memory(self, sources: Sequence[Sequence[int]]) -> list[KeysValues]:
        source = pad_sequences(sources, self.pad, self.device)
        return self.decoder.project_memory(self.encode(source, padding_mask(source, self.pad)))

    def _admit(
        self, state: TransformerState, sources: Sequence[Sequence[int]], memory: Sequence[KeysValues], beams: int
    ) -> None:
        state.memory_kv.admit([len(source) for source in sources], beams=1)
        for layer, keys_values in enumerate(memory):
            state.memory_kv.write(layer, keys_values.keys, keys_values.values)
        state.prefix_kv.admit([0] * len(sources), beams=beams)

    def step(self, state: TransformerState, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next one.

        With ``attention``, the result also contains the last decoder block's attention weights over the source,
        averaged over the heads.
        """
        prefix = state.prefix_kv
        self.target_positions.reserve(prefix.current_max_length + 1)
        x = self.embed_target_at(tokens, prefix.lengths.repeat_interleave(prefix.beams))
        x = x.view(prefix.num_sequences, prefix.beams, -1)
        if not attention:
            return Step(self.projection(self.decoder.step(x, prefix, state.memory_kv)).flatten(0, 1), None)
        with record_attention(self.decoder.blocks[-1].get_submodule("cross_attention")) as seen:
            hidden = self.decoder.step(x, prefix, state.memory_kv)
        return Step(self.projection(hidden).flatten(0, 1), seen[0].mean(1).flatten(0, 1))

    def reorder_rows(
        self, state: TransformerState, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.prefix_kv.select(rows, sequences)
        if sequences is not None:
            state.memory_kv.select(sequences, sequences)


def _positions(config: TransformerConfig) -> SinusoidalPositions | LearnedPositions | NoPositions:
    return make_positions(
        config.positions,
        config.d_model,
        config.max_length,
        interleaved=config.sinusoid_layout == "interleaved",
        offset=config.position_offset,
        last_exponent=config.sinusoid_spacing == "inclusive",
    )


def _embedding_norm(config: TransformerConfig) -> nn.LayerNorm | RMSNorm | nn.Identity:
    return make_norm(config) if config.embedding_norm else nn.Identity()


# Maps prefixes of weight names in a language model to prefixes on the encoder or decoder side of a Transformer.
_ENCODER_NAMES = {
    "embedding.": "source_embedding.",
    "positions.": "source_positions.",
    "embedding_norm.": "source_norm.",
    "encoder.": "encoder.",
}
_DECODER_NAMES = {
    "embedding.": "target_embedding.",
    "positions.": "target_positions.",
    "decoder.": "decoder.",
    "projection.": "projection.",
}


def config_with_encoder(masked: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a Transformer whose encoder is initialized from a masked language model.

    ``masked`` contains the language model's options. The result contains the block options, which encoder and decoder
    share, and the options of the source embedding.

    Raises:
        ConfigError: The language model has an option that a Transformer's encoder does not support.
    """
    normed_once = masked["embedding_norm"] and masked["norm"] == "pre"
    missing = {
        f"global_every = {masked.get('global_every')}": masked.get("global_every") is not None,
        "embedding_norm = true with norm = 'pre'": normed_once,  # the first block has no norm before its attention
        f"num_segments = {masked['num_segments']} without positions = 'learned'": (
            masked["num_segments"] and masked["positions"] != "learned"
        ),
    }
    if unsupported := [option for option, present in missing.items() if present]:
        raise ConfigError(
            f"training.start_from: the masked language model has {unsupported[0]}, which a transformer's encoder does "
            "not support; start from another model, or remove start_from"
        )
    return _required(masked, {"encoder_layers", "embedding_norm"}, without="decoder_window")


def encoder_weights(masked: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a masked language model's weights, renamed for the source embedding and the encoder.

    The vector of segment 0, which the model adds to all embeddings of a single text, is added to the learned positions.
    """
    weights = _renamed(masked, _ENCODER_NAMES)
    if (segments := masked.get("segment_embedding.weight")) is not None:
        weights["source_positions.table"] = weights["source_positions.table"] + segments[0]
    return weights


def config_with_decoder(causal: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a Transformer whose decoder is initialized from a decoder-only model.

    ``causal`` contains the decoder-only model's options.

    Raises:
        ConfigError: The decoder-only model has an option that a Transformer's decoder does not support.
    """
    if causal["parallel"]:
        raise ConfigError(
            "training.start_decoder_from: the language model has parallel = true, which a transformer's decoder does "
            "not support; start from another model, or remove start_decoder_from"
        )
    options = _required(causal, {"decoder_layers", "output_bias", "tie"}, without="encoder_window")
    return {**options, "embedding_norm": False}


def decoder_weights(causal: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a decoder-only model's weights, renamed for the target embedding, decoder and output projection.

    The weights of the decoder's attention to the source are not included.
    """
    return _renamed(causal, _DECODER_NAMES)


def _required(model: dict[str, Any], own: set[str], *, without: str) -> dict[str, Any]:
    """Return the options that a Transformer must have if one of its stacks is initialized from a language model."""
    names = {*BlockConfig.model_fields, "scale_embedding", *own} - {without}
    required = {name: model.get(name) for name in sorted(names)}
    if model["positions"] == "learned":
        required["max_length"] = model["max_length"]
    elif model["positions"] == "sinusoidal":
        names = {"sinusoid_layout", "sinusoid_spacing", "position_offset"}
        required |= {name: TransformerConfig.model_fields[name].default for name in sorted(names)}
    return {"kind": "transformer", **required}


def _renamed(weights: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Return the weights whose names begin with a key of ``names``, with this prefix replaced by the key's value."""
    return {
        new + name.removeprefix(old): weight
        for old, new in names.items()
        for name, weight in weights.items()
        if name.startswith(old)
    }
