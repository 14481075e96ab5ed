"""The layers of the paper in plain PyTorch, each usable on its own. :mod:`headway.engine` accelerates them.

Masks are boolean and True means "may attend". Dimensions in all signatures: B batch, S source or key positions, T
target or query positions, D model, H heads, K per head, F feed-forward, V vocabulary, R rows being decoded.

A tensor with the wrong shape or type raises :class:`~headway.errors.ShapeError`, which names the argument.
"""

from headway.nn.attention import (
    KeysValues,
    MultiHeadAttention,
    attention_weights,
    observe_attention,
    record_attention,
    scaled_dot_product_attention,
)
from headway.nn.block_config import BlockConfig
from headway.nn.blocks import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    GatedFeedForward,
    NoNorm,
    PostNorm,
    PreNorm,
)
from headway.nn.cache import KVCache, LayerSpec
from headway.nn.convolution import ResidualConvolution
from headway.nn.dropout import Dropout
from headway.nn.embedding import TokenEmbedding
from headway.nn.loss import label_smoothed_cross_entropy, projected_cross_entropy
from headway.nn.masks import Causal, DocumentMask, causal_mask, padding_mask
from headway.nn.pooling import AttentionPooling, Pooling
from headway.nn.positions import (
    LearnedPositions,
    NoPositions,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
    sinusoids,
)
from headway.nn.recurrent import RecurrentEncoder, RecurrentLayer
from headway.nn.recurrent_decoders import BahdanauDecoder, FixedVectorDecoder, LuongDecoder, RecurrentAttention
from headway.nn.scores import ScoreFunction, ScoreKind, make_score, register_score

__all__ = [
    "AttentionPooling",
    "BahdanauDecoder",
    "BlockConfig",
    "Causal",
    "DecoderBlock",
    "DecoderStack",
    "DocumentMask",
    "Dropout",
    "EncoderBlock",
    "EncoderStack",
    "FeedForward",
    "FixedVectorDecoder",
    "GatedFeedForward",
    "KVCache",
    "KeysValues",
    "LayerSpec",
    "LearnedPositions",
    "LuongDecoder",
    "MultiHeadAttention",
    "NoNorm",
    "NoPositions",
    "Pooling",
    "PostNorm",
    "PreNorm",
    "RecurrentAttention",
    "RecurrentEncoder",
    "RecurrentLayer",
    "RelativeBias",
    "ResidualConvolution",
    "RotaryPositions",
    "ScoreFunction",
    "ScoreKind",
    "SinusoidalPositions",
    "TokenEmbedding",
    "attention_weights",
    "causal_mask",
    "label_smoothed_cross_entropy",
    "make_score",
    "observe_attention",
    "padding_mask",
    "projected_cross_entropy",
    "record_attention",
    "register_score",
    "scaled_dot_product_attention",
    "sinusoids",
]
