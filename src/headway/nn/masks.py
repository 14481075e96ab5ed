"""Masks: boolean tensors in which True means "may attend" (Vaswani et al. 2017, sections 3.1 and 3.2.3).

The paper masks illegal connections by "setting to minus infinity" their scores. The attention layers do this wherever
the mask is False. Masks broadcast to (B, T, S): batch, query position, key position. They can be combined with ``&``.

Two classes represent self-attention masks without a tensor of all pairs, which fast attention does not need.
:class:`Causal` is equivalent to :func:`causal_mask`. :class:`DocumentMask` is a causal mask within documents, stored as
one number per query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.errors import ShapeError
from headway.nn.arguments import check_integers, describe_value, format_sizes, is_traced

_MASK_HINT = (
    'True means "may attend": use mask.bool() for a mask of 1 and 0, and mask == 0 for a mask of 0 and minus infinity'
)


def padding_mask(tokens: Int[Tensor, "B S"], pad: int) -> Bool[Tensor, "B 1 S"]:
    """Return a mask that allows every query to attend to every key that is not padding."""
    check_integers("tokens", tokens, "batch", "length")
    return (tokens != pad).unsqueeze(1)


def causal_mask(length: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 T T"]:
    """Return a mask that allows position t to attend to positions up to and including t, but not to later positions."""
    return torch.ones(1, length, length, dtype=torch.bool, device=device).tril()


@dataclass(frozen=True)
class Causal:
    """A self-attention mask that allows each position to attend to itself and to all earlier positions."""

    def to_tensor(self, length: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 T T"]:
        """Return the mask for a sequence of ``length`` positions as a tensor."""
        return causal_mask(length, device)


@dataclass(frozen=True)
class DocumentMask:
    """A causal mask for sequences of several documents: positions attend only within their own document.

    Attributes:
        first_keys: For each query, the position of the first key that it may attend to. The last key is at the query's
            own position.
        tensor: The same mask as a tensor, if it has already been computed; see :meth:`with_tensor`.
    """

    first_keys: Int[Tensor, "B T"]
    tensor: Bool[Tensor, "B T T"] | None = None

    @classmethod
    def from_starts(cls, starts: Bool[Tensor, "B T"]) -> DocumentMask:
        """Return the mask for documents that begin where ``starts`` is True. Position 0 always begins a document."""
        return cls((starts * torch.arange(starts.size(1), device=starts.device)).cummax(1).values)

    @property
    def query_positions(self) -> Int[Tensor, " T"]:
        """Position of each query in the sequence."""
        return torch.arange(self.first_keys.size(1), device=self.first_keys.device)

    def positions_in_documents(self) -> Int[Tensor, "B T"]:
        """Return the position of each query in its document, counted from 0. No window must restrict the mask."""
        return self.query_positions - self.first_keys

    def restrict_to_window(self, before: int) -> DocumentMask:
        """Return the mask restricted to the ``before`` positions before each query, and the query's own position."""
        return DocumentMask(torch.maximum(self.first_keys, self.query_positions - before))

    def to_tensor(self) -> Bool[Tensor, "B T T"]:
        """Return the same mask as a tensor."""
        if self.tensor is not None:
            return self.tensor
        keys = self.query_positions
        return (keys >= self.first_keys.unsqueeze(2)) & (keys <= keys.unsqueeze(1))

    def with_tensor(self) -> DocumentMask:
        """Return the same mask with its tensor, so that layers that need the tensor do not compute it repeatedly."""
        return DocumentMask(self.first_keys, self.to_tensor())


Mask = Bool[Tensor, "..."] | Causal | DocumentMask


def check_mask(name: str, mask: Any, *sizes: int) -> None:
    """Raise :class:`ShapeError` unless ``mask`` is None, or boolean and broadcasts to these sizes.

    The last two sizes are the numbers of queries and keys. They must be equal if ``mask`` is a
    :class:`~headway.nn.masks.Causal` or a :class:`~headway.nn.masks.DocumentMask`.
    """
    if mask is None or is_traced():
        return
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        shape = mask.shape
        if not _broadcasts(shape, sizes):
            hint = None
            if len(sizes) == 3 and tuple(shape) == (sizes[0], sizes[2]):
                hint = "use mask.unsqueeze(1) if all queries of a sequence may attend to the same keys"
            elif len(shape) == len(sizes) + 1:
                hint = "all heads share one mask, which has no head dimension"
            accepted = f"a shape that broadcasts to {format_sizes(sizes)}"
            raise ShapeError(describe_value(mask), where=name, accepted=accepted, hint=hint)
    elif isinstance(mask, Causal | DocumentMask):
        batch, positions = mask.first_keys.shape if isinstance(mask, DocumentMask) else (sizes[0], sizes[-2])
        if not (batch == sizes[0] and positions == sizes[-2] == sizes[-1]):
            what = (
                f"a mask of {batch} x {positions} positions for {sizes[0]} x {sizes[-2]} queries and {sizes[-1]} keys"
            )
            raise ShapeError(what, where=name, accepted="the same number of positions, queries and keys")
    else:
        raise ShapeError(describe_value(mask), where=name, accepted="booleans", hint=_MASK_HINT)


def _broadcasts(shape: torch.Size, sizes: tuple[int, ...]) -> bool:
    if len(shape) > len(sizes):
        return False
    for size, most in zip(reversed(shape), reversed(sizes), strict=False):  # noqa: SIM110
        if size != most and size != 1:
            return False
    return True
