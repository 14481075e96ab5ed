"""The model that translates, and what it keeps between steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import Best
from headway.engine.layers import DecoderLayer, EncoderLayer, MemoryProjection
from headway.engine.precision import Precision, choose_precision
from headway.engine.preparer import Activation, Preparer, Rows
from headway.engine.shortlist import Shortlist
from headway.errors import ConfigError
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.blocks import DecoderBlock, EncoderBlock
from headway.nn.masks import padding_mask
from headway.nn.positions import LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions
from headway.nn.prefix_tree import PrefixTree
from headway.nn.sentence_buffers import SentenceBuffers
from headway.text.tokenizer import EOS

__all__ = ["InferenceState", "InferenceTransformer", "unsupported"]


def unsupported(config: TransformerConfig) -> str | None:
    """Why there is no :class:`InferenceTransformer` of such a model, which then decodes itself; None: there is one."""
    plain: dict[str, str] = {"score": "scaled_dot", "qk_projection": "linear"}
    for name, supported in plain.items():
        if getattr(config, name) != supported:
            return (
                f"{name} = {getattr(config, name)!r} has no form that is laid out for speed (only {supported!r} has); "
                "the model itself can decode, in float32"
            )
    return None


class InferenceState:
    """What is kept between steps, for R rows over B sentences: all prefixes, and each layer's view of the memory."""

    def __init__(
        self,
        memory: SentenceBuffers,
        memory_bias: Float[Tensor, "B 1 1 S"] | None,
        vocabulary: SentenceBuffers | None = None,
    ) -> None:
        self.memory = memory  # of each layer, keys (B * H, S, K) and values (B * H, S, U)
        self.memory_bias = memory_bias  # 0 where a source has a token, -inf on its padding; None: no padding
        self.vocabulary = vocabulary  # of each sentence, where a shortlist says which tokens it may become
        keys, values = memory.tensors[:2]
        sentences = len(memory.homes)
        by_sentence = torch.unflatten(keys, 0, (-1, memory.heads))
        self.prefix = PrefixTree(sentences, len(memory.tensors) // 2, by_sentence, values.size(2))
        self.positions: Int[Tensor, " R"] = torch.zeros(sentences, dtype=torch.long, device=keys.device)
        self.longest = 0

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None = None) -> None:
        """Row i continues what row ``rows[i]`` was, of the same sentence; only ``sentences`` stay (None: all)."""
        self.positions = self.positions[rows]
        self.prefix.select(rows, sentences)
        if sentences is not None:
            self.longest = int(self.positions.max()) if len(rows) else 0
            for kept in self._kept:
                kept.keep(sentences)
            if self.memory_bias is not None:
                self.memory_bias = self.memory_bias[sentences]

    @torch.inference_mode()
    def join(self, other: InferenceState) -> None:
        """Append the sentences of ``other``, which must have as many rows each."""
        width = max(self._width, other._width)
        self.memory_bias = torch.cat([self._bias(width), other._bias(width)])
        for mine, theirs in zip(self._kept, other._kept, strict=True):
            mine.join(theirs)
        self.prefix.join(other.prefix)
        self.positions = torch.cat([self.positions, other.positions])
        self.longest = max(self.longest, other.longest)

    def close_step(self) -> None:
        """Count the new position."""
        self.prefix.close_step()
        self.positions = self.positions + 1
        self.longest += 1

    @property
    def _kept(self) -> list[SentenceBuffers]:
        return [self.memory] if self.vocabulary is None else [self.memory, self.vocabulary]

    @property
    def _width(self) -> int:
        return self.memory.tensors[0].size(1)

    def _bias(self, width: int) -> Float[Tensor, "B 1 1 S"]:
        bias = self.memory_bias
        if bias is None:
            bias = self.memory.tensors[0].new_zeros(len(self.memory.homes), 1, 1, self._width)
        return F.pad(bias, (0, width - bias.size(3)), value=-math.inf)


_growing = Lock()


def _reserve(tables: Sequence[nn.Module], length: int) -> None:
    """Make tables of positions cover so many, one thread at a time: none may put back a shorter one."""
    with _growing:
        for table in tables:
            assert isinstance(table, (LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions))
            table.reserve(length)


def _preparer(precision: Precision) -> Preparer:
    if precision == "int8":
        from headway.engine.compiled import CompiledPreparer  # imports Numba

        return CompiledPreparer()
    return Preparer(torch.bfloat16 if precision == "bfloat16" else torch.float32)


class InferenceTransformer:
    """A :class:`~headway.decode.protocol.RankingModel` with the weights of ``model`` as they are now.

    Args:
        model: Where the weights come from. Some are used in place and some are copied: when they change, make another.
        precision: Of the matrix products; see :func:`choose_precision`.
        end: The end symbol, whose probability :meth:`best` reports.
        shortlist: What :meth:`best` chooses from; None: the whole vocabulary. :meth:`advance` always has all logits,
            and :meth:`restrict` applies the shortlist to them.

    Raises:
        ConfigError: The model has an option that :func:`unsupported` names, or the shortlist is for another model.
    """

    def __init__(
        self,
        model: Transformer,
        precision: Precision = "float32",
        *,
        end: int = EOS,
        shortlist: Shortlist | None = None,
    ) -> None:
        if reason := unsupported(model.config):
            raise ConfigError(reason)
        self._model = model
        self._end = end
        device = model.projection.weight.device
        self.precision = choose_precision(precision, device)
        self._prepare = prepare = _preparer(self.precision)
        if shortlist is not None:
            shortlist.check(model.source_embedding.weight.size(0), model.projection.weight.size(0))
        with torch.no_grad():
            encoder = [block for block in model.encoder.blocks if isinstance(block, EncoderBlock)]
            decoder = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
            self._encoder = [EncoderLayer(block, prepare) for block in encoder]
            self._decoder = [DecoderLayer(block, prepare) for block in decoder]
            self._rotary = decoder[0].attention.rotary
            turning = [block.attention.rotary for block in encoder]
            self._source_tables = [model.source_positions, *(rotary for rotary in turning if rotary is not None)]
            self._encoder_norm = prepare.norm(model.encoder.norm)
            self._decoder_norm = prepare.norm(model.decoder.norm)
            self._memory = MemoryProjection([block.cross_attention for block in decoder], prepare)
            self._vocabulary = prepare.vocabulary(model.projection)
            self._shortlist = shortlist
            self._sentence_vocabulary = prepare.sentence_vocabulary(model.projection) if shortlist else None

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._model.projection.weight.device

    @property
    def one_thread(self) -> bool:
        """Whether it gains from several threads that ask it at once (:func:`~headway.decode.search_all`)."""
        return self.precision == "int8"

    @property
    def max_length(self) -> int | None:
        """As in the model."""
        return self._model.max_length

    def _encode(self, source: Int[Tensor, "B S"]) -> Rows:
        """The memory, (B * S, D)."""
        _reserve(self._source_tables, source.size(1))
        mask = padding_mask(source, self._model.pad).unsqueeze(1)
        x = self._prepare.rows(self._model.embed_source(source).flatten(0, 1))
        for layer in self._encoder:
            x = layer(x, mask)
        return self._encoder_norm(x)

    @torch.inference_mode()
    def start(self, source: Int[Tensor, "B S"]) -> InferenceState:
        """Encode the sources; one row for each."""
        memory = self._memory(self._encode(source), len(source))
        bias = self._padding_bias(source) if (source == self._model.pad).any() else None
        vocabulary = None
        if self._shortlist is not None and self._sentence_vocabulary is not None:
            vocabulary = self._sentence_vocabulary.gather(self._shortlist.tokens(source).to(source.device))
        return InferenceState(memory, bias, vocabulary)

    def _padding_bias(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B 1 1 S"]:
        """0 at tokens, -inf at padding."""
        bias = torch.zeros(source.shape, dtype=self._prepare.dtype, device=source.device)
        return bias.masked_fill_(source == self._model.pad, -math.inf)[:, None, None]

    @torch.inference_mode()
    def advance(self, state: InferenceState, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Append one token to each row and return the logits of the next."""
        return self._vocabulary.logits(self._step(state, tokens))

    @torch.inference_mode()
    def best(self, state: InferenceState, tokens: Int[Tensor, " R"], count: int, forbidden: Sequence[int]) -> Best:
        """Append one token to each row and return the ``count`` best next ones."""
        hidden = self._step(state, tokens)
        if self._sentence_vocabulary is not None and state.vocabulary is not None:
            return self._sentence_vocabulary.best(hidden, state.vocabulary, count, forbidden, self._end)
        return self._vocabulary.best(hidden, count, forbidden, self._end)

    @torch.inference_mode()
    def restrict(
        self, state: InferenceState, logits: Float[Tensor, "R V"], whole: Sequence[bool]
    ) -> Float[Tensor, "R V"]:
        """``logits`` with -inf for what a shortlist leaves out, but for the sentences that have the ``whole``."""
        if state.vocabulary is None:
            return logits
        tokens = state.vocabulary.tensors[0][state.vocabulary.homes].flatten(1)
        allowed = torch.zeros(len(tokens), logits.size(1), dtype=torch.bool, device=logits.device)
        allowed.scatter_(1, tokens, True)[:, self._model.pad] = False
        allowed[torch.tensor(whole, device=logits.device)] = True
        rows = torch.unflatten(logits, 0, (len(tokens), -1))
        return rows.masked_fill(~allowed.unsqueeze(1), -math.inf).flatten(0, 1)

    def _step(self, state: InferenceState, tokens: Int[Tensor, " R"]) -> Rows:
        """The decoder's output (R, D) at each row's next position."""
        _reserve([self._model.target_positions], state.longest + 1)
        x = self._prepare.rows(self._model.embed_target_at(tokens, state.positions))
        turn = self._turn(state)
        prefix = state.prefix
        prefix.open_step()
        for index, layer in enumerate(self._decoder):
            x = layer(x, prefix, index, turn, state.memory, state.memory_bias)
        state.close_step()
        return self._decoder_norm(x)

    def _turn(self, state: InferenceState) -> Activation | None:
        """What turns queries and keys (B, W, H, .) to their rows' positions, if those are rotary."""
        rotary, positions = self._rotary, state.positions
        if rotary is None:
            return None
        _reserve([rotary], state.longest + 1)
        return lambda x: rotary.at(x.flatten(0, 1).unsqueeze(2), positions).view(x.shape)
