"""The decoder-only Transformer: a language model that predicts each token from the tokens before it.

The model is a stack of causal blocks (self-attention and feed-forward) between a token embedding and an output
projection (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"). The defaults are those
of GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3): pre-norm with a
final norm, learned positions, GELU, and tied embedding and output projection. Options select the architecture of Llama
(Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, grouped-query attention and no biases.

A text begins with BOS, so that its first token is also predicted, and ends with EOS. In a search, the model's source is
the prompt. :meth:`DecoderOnly.start` processes all of its tokens at once, and the first step takes the next token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from headway.config import apply_preset
from headway.decode.protocol import Step
from headway.models.base import ContinuationModel
from headway.models.language_model_config import LanguageModelConfig, initialize_weights
from headway.nn.attention import KeysValues
from headway.nn.block_config import NormPlacement
from headway.nn.blocks import CausalStack
from headway.nn.cache import KVCache
from headway.nn.dropout import Dropout
from headway.nn.embedding import TokenEmbedding, output_projection, pad_sequences
from headway.nn.masks import Causal, DocumentMask
from headway.nn.positions import make_positions

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "num_heads": 4, "d_ff": 512, "decoder_layers": 4},
    "small": {"d_model": 384, "num_heads": 6, "d_ff": 1536, "decoder_layers": 6},
    "gpt2": {"d_model": 768, "num_heads": 12, "d_ff": 3072, "decoder_layers": 12, "max_length": 1024},
    "gpt2-medium": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "decoder_layers": 24, "max_length": 1024},
    "gpt2-large": {"d_model": 1280, "num_heads": 20, "d_ff": 5120, "decoder_layers": 36, "max_length": 1024},
    "gpt2-xl": {"d_model": 1600, "num_heads": 25, "d_ff": 6400, "decoder_layers": 48, "max_length": 1024},
    # Grattafiori et al. 2024, "The Llama 3 Herd of Models". The sizes match the published weights.
    "llama3.2-1b": {
        "norm_kind": "rms",
        "bias": "none",
        "activation": "swiglu",
        "positions": "rotary",
        "tie": "target",
        "dropout": 0.0,
        "max_length": 131_072,
        "d_model": 2048,
        "num_heads": 32,
        "num_kv_heads": 8,
        "d_ff": 8192,
        "decoder_layers": 16,
        "rotary_base": 500_000.0,
        "rotary_scaling": {"kind": "llama3", "factor": 32.0, "original_length": 8192},
    },
}
# Presets that version 0.1.0 removed, because their weights, gradients and moments in float32 need more than 80 GB.
_TOO_LARGE_PRESETS = ("llama2-7b", "llama2-13b", "llama3-8b")


class DecoderOnlyConfig(LanguageModelConfig):
    """The sizes and options of a decoder-only language model. The defaults are a small version of GPT-2."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    kind: Literal["decoder_only"] = Field("decoder_only", description="The architecture.")
    norm: NormPlacement = "pre"
    decoder_layers: int = Field(6, ge=1, description="Number of blocks.")
    max_length: int = Field(
        256,
        ge=2,
        description="Context length in tokens: the length of training blocks and number of learned positions.",
    )
    parallel: bool = Field(
        False, description="Whether both sub-layers of a block take the block's input (GPT-J); needs norm = 'pre'."
    )
    output_bias: bool = Field(False, description="Whether each token's logit has a bias.")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("preset") in _TOO_LARGE_PRESETS:
            raise ValueError(
                f"preset = {data['preset']!r}: version 0.1.0 removed this preset, because its weights, gradients and "
                "moments need more than 80 GB of memory on one device; the largest presets are 'llama3.2-1b' and "
                "'gpt2-xl'. Published weights of this size can be imported (headway import)"
            )
        return apply_preset(data, PRESETS)

    @model_validator(mode="after")
    def _fits_together(self) -> DecoderOnlyConfig:
        if self.encoder_window is not None:
            raise ValueError(
                f"encoder_window = {self.encoder_window} has no effect: a decoder-only model has no encoder; remove "
                "it, or set decoder_window"
            )
        if self.parallel and (self.norm != "pre" or not self.residual):
            raise ValueError("parallel = true needs norm = 'pre' and residual = true")
        return self


@dataclass
class PrefixState:
    """The state between decoding steps: the keys and values of each sequence so far."""

    prefix_kv: KVCache


class DecoderOnly(ContinuationModel):
    """A model that maps tokens to the logits of each next token.

    Weights are initialized as in GPT-2: from a normal distribution with standard deviation 0.02. In the last layer of
    each sub-layer, the deviation is divided by sqrt(2 N), because the residual path adds the outputs of 2 N sub-layers
    (Radford et al. 2019, section 2.3).
    """

    pad = 0
    carries_state = False

    config: DecoderOnlyConfig
    projection: nn.Linear

    def __init__(self, config: DecoderOnlyConfig, vocab_size: int, output_size: int | None = None) -> None:
        super().__init__()
        assert output_size in (None, vocab_size), "a language model has one vocabulary for inputs and outputs"
        self.config = config
        self.embedding = TokenEmbedding(vocab_size, config.d_model, scaled=config.scale_embedding)
        self.positions = make_positions(config.positions, config.d_model, config.max_length)
        self.embedding_dropout = Dropout(config.dropout)
        self.decoder = CausalStack(config.decoder_layers, config, parallel=config.parallel)
        self.projection = output_projection(config.tie, self.embedding, config.d_model, bias=config.output_bias)
        initialize_weights(self, self.decoder.blocks)

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length that the positions support, in tokens including BOS. None means no limit."""
        return self.config.max_length if self.config.positions == "learned" else None

    def embed(self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T D"]:
        """Return the input of the first block, before dropout: embeddings with positions.

        Pass the tokens' ``positions`` if they do not count from 0 in each row.
        """
        embedded: Tensor = self.embedding(tokens)
        if positions is None:
            positioned: Tensor = self.positions(embedded)
        else:
            self.positions.reserve(tokens.size(1))
            positioned = self.positions.add_at(embedded, positions)
        return positioned

    def embed_next(self, tokens: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R D"]:
        """Return the same as :meth:`embed` for one token per row. Call ``positions.reserve`` first."""
        embedded = self.embedding(tokens.unsqueeze(1)).squeeze(1)
        positioned: Tensor = self.positions.add_at(embedded, positions)
        return positioned

    def hidden(
        self, tokens: Int[Tensor, "B T"], documents: DocumentMask | None = None, *, reset_positions: bool = False
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states from which :attr:`projection` computes logits.

        Padding must be on the right, where no other position attends to it. With ``documents``, rows contain several
        documents, and each token attends only to its own document. With ``reset_positions``, the positions of each
        document count from 0. Rotary positions are not reset, because with dot-product and cosine scores, attention
        weights depend only on the distances within a document.
        """
        if documents is None:
            return self.encode(self.embed(tokens), tokens)
        positions = documents.positions_in_documents() if reset_positions else None
        return self.encode(self.embed(tokens, positions), tokens, documents)

    def encode(
        self, embedded: Float[Tensor, "B T D"], tokens: Int[Tensor, "B T"], documents: DocumentMask | None = None
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states, given the output of :meth:`embed`."""
        states: Tensor = self.decoder(self.embedding_dropout(embedded), documents or Causal())
        return states

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token after each position."""
        logits: Tensor = self.projection(self.hidden(tokens))
        return logits

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> PrefixState:
        """Process the prompts (``sources``) and begin decoding, with ``beams`` rows for each prompt."""
        stored = self._prefill(sources)
        state = PrefixState(self.decoder.make_cache(stored))
        self._admit(state, sources, stored, beams)
        return state

    def admit(self, state: PrefixState, sources: Sequence[Sequence[int]]) -> None:
        """Process more prompts and append them to ``state``, with the same number of rows per prompt."""
        self._admit(state, sources, self._prefill(sources), state.prefix_kv.beams)

    def _prefill(self, sources: Sequence[Sequence[int]]) -> list[KeysValues]:
        tokens = pad_sequences(sources, self.pad, self.device)
        return self.decoder.prefill(self.embedding_dropout(self.embed(tokens)), Causal())

    def _admit(
        self, state: PrefixState, sources: Sequence[Sequence[int]], stored: Sequence[KeysValues], beams: int
    ) -> None:
        state.prefix_kv.admit([len(source) for source in sources], beams=beams)
        for layer, keys_values in enumerate(stored):
            state.prefix_kv.write(layer, keys_values.keys, keys_values.values)

    def step(self, state: PrefixState, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. ``Step.attention`` is None, because there is no source."""
        prefix_kv = state.prefix_kv
        self.positions.reserve(prefix_kv.current_max_length + 1)
        x = self.embed_next(tokens, prefix_kv.lengths.repeat_interleave(prefix_kv.beams))
        x = self.decoder.step(x.view(prefix_kv.num_sequences, prefix_kv.beams, -1), prefix_kv)
        return Step(self.projection(x).flatten(0, 1))

    def reorder_rows(
        self, state: PrefixState, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.prefix_kv.select(rows, sequences)
