"""The Transformer made for translating: the same function as the model that was trained, laid out for speed.

What differs from :class:`~headway.models.transformer.Transformer`, and why it is faster:

- Weights are prepared once for a precision: float32, bfloat16, or 8-bit integers with compiled kernels
  (:mod:`headway.kernels`).
- The prefixes of a beam are a tree that is never reordered (:mod:`headway.nn.prefix_tree`). The memory's keys and
  values, kept once a sentence, come from one product for all decoder blocks.
- The queries' scale 1 / sqrt(d_k) is part of their projection.
- :meth:`InferenceTransformer.best` ranks tokens without a softmax over the vocabulary: parts of it are computed, ranked
  and summed while they are in the processor's cache.

A shortlist (:class:`Shortlist`) makes the ranking choose among few tokens, each sentence's own.

float32 is the reference: it agrees with the model to rounding. Dropout and taps are not here: this is no module, and
what observes attention uses the model itself. So does a model with options that :func:`unsupported` names.
"""

from headway.engine.precision import Precision, choose_precision
from headway.engine.shortlist import Shortlist
from headway.engine.transformer import InferenceState, InferenceTransformer, unsupported

__all__ = [
    "InferenceState",
    "InferenceTransformer",
    "Precision",
    "Shortlist",
    "choose_precision",
    "unsupported",
]
