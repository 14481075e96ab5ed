"""The parts of a model in 8-bit integers, by the compiled kernels (:mod:`headway.kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import Best, best_of
from headway.engine.preparer import Activation, Layer, Preparer, Residual, Rows
from headway.engine.vocabulary import SentenceVocabulary, Vocabulary
from headway.hardware import keep_freed_memory
from headway.kernels.decode_attention import attend, padded_width, write_kv
from headway.kernels.int8_gemm import BLOCK, accumulator_init, pack_weight_rows, quantize_weight
from headway.kernels.int8_linear import LayerNormParams, QuantizedLinear, layer_norm
from headway.kernels.vocab_topk import topk_logits, topk_projection, topk_projection_per_sentence
from headway.nn.blocks import PostNorm
from headway.nn.prefix_tree import PrefixTree
from headway.nn.sentence_buffers import SentenceBuffers

__all__ = ["CompiledPreparer"]

Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int16]
Homes = npt.NDArray[np.int64]

# Source positions with padding, up to which the kernel computes self-attention. PyTorch's products are faster but for a
# short sentence alone (1.6 against 2.6 ms for 32 of 16 tokens, 18 against 40 for 4 of 256); but how they round
# depends on how long the padding is, which what else is in the batch decides.
_SHORT = 64
_RANKED = 64  # tokens, up to which the kernel ranks them
_ALL_OPEN = np.zeros((0, 0, 0), dtype=np.int16)
_TOGETHER = 16  # rows, whose logits threads compute together before they are ranked


class CompiledPreparer(Preparer):
    """Weights in integers, everything between the products in float32, on a CPU; rows are NumPy's arrays.

    Keys and values are kept in 16-bit floats. The process keeps memory that it has freed, for the next batch needs as
    much again, and to get it from the system page by page takes 5 % of the time.

    What each method computes is said in :class:`~headway.engine.preparer.Preparer`.
    """

    def __init__(self) -> None:
        super().__init__(torch.float16)  # of what is kept between steps, keys and values
        keep_freed_memory()

    def rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """See :meth:`Preparer.rows`."""
        return x.float().contiguous().numpy()

    def linear(
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, activation: Activation | None = None
    ) -> Layer:
        """See :meth:`Preparer.linear`."""
        relu = activation is F.relu
        layer = _quantized(weight, bias, relu=relu)
        if activation is None or relu:
            return layer
        return lambda x: activation(torch.from_numpy(layer(x))).numpy()

    def ending(self, layer: nn.Linear, around: Residual) -> Callable[[Rows, Rows], Rows]:
        """See :meth:`Preparer.ending`."""
        norm = _norm(around.norm) if isinstance(around, PostNorm) else None
        product = _quantized(layer.weight, layer.bias, norm=norm)
        return product if around.residual else (lambda x, entered: product(x))

    def norm(self, module: nn.Module) -> Layer:
        """See :meth:`Preparer.norm`."""
        norm = _norm(module)
        return (lambda x: x) if norm is None else (lambda x: layer_norm(x, norm))

    def vocabulary(self, projection: nn.Linear) -> Vocabulary:
        """See :meth:`Preparer.vocabulary`."""
        return _QuantizedVocabulary(projection)

    def sentence_vocabulary(self, projection: nn.Linear) -> SentenceVocabulary:
        """See :meth:`Preparer.sentence_vocabulary`."""
        return _QuantizedSentenceVocabulary(projection)

    def gate(self, rows: Rows, activation: Activation) -> Rows:
        """See :meth:`Preparer.gate`."""
        return super().gate(torch.from_numpy(rows), activation).numpy()

    def turn(self, rows: Rows, widths: Sequence[int], heads: int, beside: int, turn: Activation) -> None:
        """See :meth:`Preparer.turn`."""
        super().turn(torch.from_numpy(rows), widths, heads, beside, turn)

    def self_attention(self, rows: Rows, widths: Sequence[int], heads: int, mask: Bool[Tensor, "B 1 1 S"]) -> Rows:
        """See :meth:`Preparer.self_attention`."""
        sentences, length = mask.size(0), mask.size(3)
        if length > _SHORT:
            with np.errstate(over="ignore"):
                rows[:, widths[0] :] = rows[:, widths[0] :].astype(np.float16)  # the numbers that places hold
            return super().self_attention(torch.from_numpy(rows), widths, heads, mask).numpy()
        rows[:, : widths[0]] *= np.float32((widths[1] // heads) ** -0.5)
        keys, values = (_bits(part) for part in _places(rows, widths[0], widths[1:], heads, sentences))
        shut = (~mask[:, 0]).to(torch.int16).numpy()
        return _attended(rows, widths, heads, keys, values, np.arange(sentences), length, shut)

    def prefix_attention(self, rows: Rows, widths: Sequence[int], prefix: PrefixTree, layer: int) -> Rows:
        """See :meth:`Preparer.prefix_attention`."""
        homes, keys, values = _kept(prefix.slots, layer)
        heads = prefix.slots.heads
        write_kv(rows, widths[0], widths[1] // heads, heads, keys, homes, prefix.filled)
        write_kv(rows, widths[0] + widths[1], widths[2] // heads, heads, values, homes, prefix.filled)
        return _attended(rows, widths, heads, keys, values, homes, prefix.filled + prefix.beams, _bits(prefix.bias))

    def memory(self, rows: Rows, widths: Sequence[int], heads: int, sentences: int) -> list[Float[Tensor, "BH S _"]]:
        """See :meth:`Preparer.memory`: float16, zero-padded to
        :func:`~headway.kernels.decode_attention.padded_width`."""
        return _places(rows, 0, widths, heads, sentences)

    def cross_attention(
        self,
        query: Rows,
        widths: Sequence[int],
        memory: SentenceBuffers,
        layer: int,
        bias: Float[Tensor, "B 1 1 S"] | None,
    ) -> Rows:
        """See :meth:`Preparer.cross_attention`."""
        mask = _ALL_OPEN if bias is None else _bits(bias[:, 0])
        homes, keys, values = _kept(memory, layer)
        return _attended(query, widths, memory.heads, keys, values, homes, keys.shape[1], mask)


def _kept(buffers: SentenceBuffers, layer: int) -> tuple[Homes, Bits, Bits]:
    """Where the sentences are, and a layer's keys and values."""
    keys, values = buffers.tensors[2 * layer : 2 * layer + 2]
    return buffers.homes.numpy(), _bits(keys), _bits(values)


def _places(
    rows: Array, column: int, widths: Sequence[int], heads: int, sentences: int
) -> list[Float[Tensor, "BH S _"]]:
    """Parts of the rows, from ``column`` on, by sentence and head."""
    parts, homes = [], np.arange(sentences)
    for width in widths:
        each = width // heads
        part = torch.empty(sentences * heads, len(rows) // max(1, sentences), padded_width(each), dtype=torch.float16)
        write_kv(rows, column, each, heads, _bits(part), homes, 0)
        column += width
        parts.append(part)
    return parts


def _attended(
    rows: Array,
    widths: Sequence[int],
    heads: int,
    keys: Bits,
    values: Bits,
    homes: Homes,
    count: int,
    mask: Bits,
) -> Array:
    out = np.empty((len(rows), widths[2]), dtype=np.float32)
    attend(rows, heads, widths[0] // heads, keys, values, homes, count, mask, out)
    return out


def _bits(x: Tensor) -> Bits:
    """Of 16-bit floats, as which Numba does not take them."""
    assert x.dtype is torch.float16
    return x.view(torch.int16).numpy()


class _QuantizedVocabulary:
    def __init__(self, projection: nn.Linear) -> None:
        self._layer = _quantized(projection.weight, projection.bias)

    def logits(self, hidden: Rows) -> Float[Tensor, "R V"]:
        return torch.from_numpy(self._layer(hidden))

    def best(self, hidden: Rows, count: int, forbidden: Sequence[int], end: int) -> Best:
        layer, rows = self._layer, len(hidden)
        count = min(count, layer.out_features)
        if not 0 < count <= _RANKED:
            return best_of(self.logits(hidden), count, forbidden, end)
        log_probs = np.empty((rows, count), dtype=np.float32)
        tokens = np.empty((rows, count), dtype=np.int64)
        ending = np.empty(rows, dtype=np.float32)
        excluded = np.array(forbidden, dtype=np.int64)
        if rows <= _TOGETHER:
            topk_logits(layer(hidden), excluded, end, log_probs, tokens, ending)
        else:
            topk_projection(
                *(hidden, layer.weights, layer.accumulator_init, layer.scale, layer.bias, layer.out_features),
                *(excluded, end, log_probs, tokens, ending),
            )
        return Best(torch.from_numpy(log_probs), torch.from_numpy(tokens), torch.from_numpy(ending))


class _QuantizedSentenceVocabulary:
    """The numbers are those of :class:`_QuantizedVocabulary`, token by token."""

    def __init__(self, projection: nn.Linear) -> None:
        self._levels, self._scale = quantize_weight(_array(projection.weight))
        bias: Tensor | None = projection.bias
        self._bias = np.zeros_like(self._scale) if bias is None else _array(bias)
        self._starts = accumulator_init(self._levels)

    def gather(self, tokens: Int[Tensor, "B U"]) -> SentenceBuffers:
        """Tokens, weights, where sums begin, scales and biases, by blocks of tokens."""
        blocks = torch.unflatten(F.pad(tokens, (0, -tokens.size(1) % BLOCK)), 1, (-1, BLOCK))
        at = blocks.numpy()
        parts = pack_weight_rows(self._levels, at), self._starts[at], self._scale[at], self._bias[at]
        return SentenceBuffers([blocks, *(torch.from_numpy(part) for part in parts)], heads=1)

    def best(self, hidden: Rows, gathered: SentenceBuffers, count: int, forbidden: Sequence[int], end: int) -> Best:
        """See :meth:`SentenceVocabulary.best`."""
        tokens, weights, starts, scale, bias = (part.numpy() for part in gathered.tensors)
        count = min(count, tokens.shape[1] * BLOCK)
        log_probs, found = np.empty((len(hidden), count), np.float32), np.empty((len(hidden), count), np.int64)
        ending = np.empty(len(hidden), dtype=np.float32)
        topk_projection_per_sentence(
            *(hidden, weights, starts, scale, bias, tokens, gathered.homes.numpy()),
            *(np.array(forbidden, dtype=np.int64), end, log_probs, found, ending),
        )
        return Best(torch.from_numpy(log_probs), torch.from_numpy(found), torch.from_numpy(ending))


def _quantized(
    weight: Tensor, bias: Tensor | None, *, relu: bool = False, norm: LayerNormParams | None = None
) -> QuantizedLinear:
    return QuantizedLinear(_array(weight), None if bias is None else _array(bias), relu=relu, norm=norm)


def _array(x: Tensor) -> Array:
    return x.detach().float().contiguous().numpy()


def _norm(module: nn.Module) -> LayerNormParams | None:
    if not isinstance(module, nn.LayerNorm):
        return None
    return LayerNormParams(_array(module.weight), _array(module.bias), module.eps)
