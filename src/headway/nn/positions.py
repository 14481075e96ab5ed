"""Positions (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))

or a learned vector for each position (Gehring et al. 2017); the paper reports nearly identical results for both. Both
are added to embeddings. Rotary positions (Su et al. 2021, "RoFormer") rotate queries and keys instead. Each pair of
dimensions is rotated by its own angle per position:

    (x_2i, x_2i+1) at pos, as a complex number, is multiplied by exp(j pos / 10000^(2i / K))

The dot product of a query at position m and a key at position n then depends on the positions only through m - n
(section 3.2).

A relative bias (Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", section 2.1) adds a learned number to each score. This number depends on the head and on the distance
n - m.

Sines and cosines are computed by NumPy. PyTorch divides the work among threads, and sometimes one thread computes with
lower precision, so that runs that should be equal differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from headway.config import Config
from headway.errors import ConfigError, LengthError
from headway.nn.arguments import Size, check_floats, check_integers

_growing = Lock()  # one thread must not replace a longer table with a shorter one


def sinusoids(
    length: int,
    d_model: int,
    *,
    interleaved: bool = True,
    offset: int = 0,
    base: float = 10000.0,
    last_exponent: bool = False,
) -> Float[Tensor, "T D"]:
    """Return the sinusoidal encodings of positions offset .. offset + length - 1, one per row, in float32.

    ``interleaved`` puts sines in even dimensions and cosines in odd dimensions, as in the paper. Otherwise, all sines
    come first (tensor2tensor, Marian). ``last_exponent`` spaces the exponents from 0 to 1 inclusive, i / (d/2 - 1), as
    in tensor2tensor; the paper's exponents end at 1 - 2/d. If d_model is odd, there is one more sine than cosines.
    """
    steps = np.arange((d_model + 1) // 2, dtype=np.float64)
    exponents = steps / max(d_model // 2 - 1, 1) if last_exponent else 2 * steps / d_model
    angles = np.arange(offset, offset + length, dtype=np.float64)[:, None] * base**-exponents
    sine, cosine = np.sin(angles), np.cos(angles[:, : d_model // 2])
    if not interleaved:
        return torch.from_numpy(np.concatenate([sine, cosine], axis=1).astype(np.float32))
    table = np.empty((length, d_model), dtype=np.float32)
    table[:, 0::2], table[:, 1::2] = sine, cosine
    return torch.from_numpy(table)


class _GrowingTable(nn.Module):
    """A table with one row per position, computed by ``rows``. It has no weights and grows for longer sequences."""

    table: Tensor

    def __init__(self, rows: Callable[[int], Tensor]) -> None:
        super().__init__()
        self._rows = rows
        # On the meta device, only the shapes of weights are needed, and the width may be too large for a real table.
        # (In PyTorch 2.6, torch.get_default_device ignores a device that is set by a context.)
        empty = torch.empty(0)
        self.register_buffer("table", empty if empty.is_meta else rows(256), persistent=False)

    @property
    def width(self) -> Size:
        """The width of a row, or a word for any width if the table is on the meta device and empty."""
        return self.table.size(-1) if self.table.dim() > 1 else "width"

    def reserve(self, length: int) -> None:
        """Extend the table to at least ``length`` positions."""
        if length > self.table.size(0):
            with _growing, torch.inference_mode(mode=False):  # autograd rejects tables made in inference mode
                self.table = self._rows(2 ** math.ceil(math.log2(max(length, self.table.size(0))))).to(self.table)


class SinusoidalPositions(_GrowingTable):
    """Add sinusoidal encodings to embeddings, without weights and without a maximum length.

    See :func:`sinusoids` for the options.
    """

    def __init__(
        self,
        d_model: int,
        *,
        interleaved: bool = True,
        offset: int = 0,
        base: float = 10000.0,
        last_exponent: bool = False,
    ) -> None:
        rows = partial(sinusoids, d_model=d_model, interleaved=interleaved, offset=offset, base=base)
        super().__init__(partial(rows, last_exponent=last_exponent))

    def forward(self, x: Float[Tensor, "B T D"], start: int = 0) -> Float[Tensor, "B T D"]:
        """Return x[:, t] + PE(start + t)."""
        check_floats("x", x, "batch", "length", self.width)
        end = start + x.size(1)
        self.reserve(end)
        return x + self.table[start:end]

    def add_at(self, x: Float[Tensor, "*b D"], positions: Int[Tensor, "*b"]) -> Float[Tensor, "*b D"]:
        """Return x + PE(positions), with a separate position for each vector. Call :meth:`reserve` first."""
        return x + self.table[positions]


class LearnedPositions(nn.Module):
    """Add a learned vector to each position. A sequence longer than ``max_length`` raises :class:`LengthError`."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        if max_length < 1:
            raise ConfigError(f"max_length = {max_length}: learned positions need at least 1")
        self.max_length = max_length
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, x: Float[Tensor, "B T D"], start: int = 0) -> Float[Tensor, "B T D"]:
        """Return x[:, t] + table[start + t]."""
        check_floats("x", x, "batch", "length", self.table.size(1))
        self.reserve(start + x.size(1))
        return x + self.table[start : start + x.size(1)]

    def add_at(self, x: Float[Tensor, "*b D"], positions: Int[Tensor, "*b"]) -> Float[Tensor, "*b D"]:
        """Return x + table[positions]. Call :meth:`reserve` first, which checks the maximum length."""
        return x + self.table[positions]

    def reserve(self, length: int) -> None:
        """Raise :class:`LengthError` if the table has fewer than ``length`` positions."""
        if length > self.max_length:
            raise LengthError(
                f"a sequence of {length} tokens is longer than the {self.max_length} positions that this model has "
                "learned; split the text, or train with a larger max_length or with sinusoidal positions, "
                "which have no limit"
            )


class NoPositions(nn.Module):
    """Return embeddings unchanged, for models with rotary positions, a relative bias, or no positions."""

    def forward(self, x: Float[Tensor, "B T D"], start: int = 0) -> Float[Tensor, "B T D"]:
        """Return x."""
        return x

    def add_at(self, x: Float[Tensor, "*b D"], positions: Int[Tensor, "*b"]) -> Float[Tensor, "*b D"]:
        """Return x."""
        return x

    def reserve(self, length: int) -> None:
        """Do nothing, because there is no limit."""


def make_positions(
    kind: Literal["sinusoidal", "learned", "rotary", "relative_bias", "none"],
    d_model: int,
    max_length: int,
    *,
    interleaved: bool = True,
    offset: int = 0,
    last_exponent: bool = False,
) -> SinusoidalPositions | LearnedPositions | NoPositions:
    """Return the module that adds positions to embeddings. It adds nothing for kinds that act inside attention.

    ``max_length`` is used only by learned positions. See :func:`sinusoids` for the other options.
    """
    if kind == "learned":
        return LearnedPositions(d_model, max_length)
    if kind == "sinusoidal":
        return SinusoidalPositions(d_model, interleaved=interleaved, offset=offset, last_exponent=last_exponent)
    return NoPositions()


class RotaryScaling(Config):
    """Scaling of the wavelengths of rotary positions, for contexts longer than those in training."""

    kind: Literal["linear", "llama3", "yarn"] = Field(
        description="linear: multiply all wavelengths by factor (Chen et al. 2023). llama3: multiply only long "
        "wavelengths (Llama 3.1). yarn: multiply long wavelengths, and scale queries and keys (Peng et al. 2023)."
    )
    factor: float = Field(ge=1, description="Factor by which wavelengths are multiplied.")
    original_length: int | None = Field(
        None, ge=1, description="llama3 and yarn: context length in training, in tokens."
    )
    low_frequency_factor: float = Field(
        1.0, gt=0, description="llama3: wavelengths above original_length / low_frequency_factor get the full factor."
    )
    high_frequency_factor: float = Field(
        4.0, gt=0, description="llama3: wavelengths below original_length / high_frequency_factor stay unchanged."
    )
    slow_rotations: float = Field(
        1.0,
        gt=0,
        description="yarn: wavelengths of units with fewer rotations in the original context get the full factor.",
    )
    fast_rotations: float = Field(
        32.0, gt=0, description="yarn: wavelengths of units with more rotations in the original context stay unchanged."
    )
    magnitude: float | None = Field(
        None, gt=0, description="yarn: factor by which queries and keys are scaled. Default: 0.1 ln(factor) + 1."
    )

    @model_validator(mode="after")
    def _has_original_length(self) -> RotaryScaling:
        if self.kind != "linear" and self.original_length is None:
            raise ValueError(f"kind = {self.kind!r} needs original_length, the context length in training")
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError("low_frequency_factor must be less than high_frequency_factor")
        return self

    def scale_frequencies(self, frequencies: Float[Tensor, " F"], base: float) -> tuple[Float[Tensor, " F"], float]:
        """Return the scaled frequencies, in radians per position, and the factor for queries and keys."""
        slow = frequencies / self.factor
        if self.kind == "linear" or self.original_length is None:
            return slow, 1.0
        if self.kind == "llama3":
            turns = self.original_length * frequencies / (2 * math.pi)
            low, high = self.low_frequency_factor, self.high_frequency_factor
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            return torch.lerp(slow, frequencies, kept), 1.0
        # YaRN, equations 17 to 22: a linear ramp from the units with fast rotations to those with slow rotations.
        count = len(frequencies)
        fast, last = (
            count * math.log(self.original_length / (turns * 2 * math.pi)) / math.log(base)
            for turns in (self.fast_rotations, self.slow_rotations)
        )
        fast, last = max(math.floor(fast), 0), min(math.ceil(last), 2 * count - 1)
        ramp = ((torch.arange(count, dtype=frequencies.dtype) - fast) / max(last - fast, 0.001)).clamp(0, 1)
        magnitude = 0.1 * math.log(self.factor) + 1 if self.magnitude is None else self.magnitude
        return torch.lerp(frequencies, slow, ramp), magnitude


class RotaryPositions(_GrowingTable):
    """Rotate queries or keys by their positions.

    This layer has no weights and no maximum length. The rotation is computed in float32 and rounded once.

    Args:
        width: Number of units in a head's queries and keys.
        base: Base of the wavelengths: pair i of K units is rotated by base^(-2i / K) per position.
        rotated: Number of units to rotate, starting from the first unit. Must be even. Default: all.
        scaling: Scaling of the wavelengths for long contexts.
    """

    def __init__(
        self, width: int, *, base: float = 10000.0, rotated: int | None = None, scaling: RotaryScaling | None = None
    ) -> None:
        rotated = width if rotated is None else rotated
        if rotated % 2:
            raise ConfigError(
                f"rotary positions rotate pairs of units, but the queries and keys of a head have {rotated} units; "
                "choose an even d_key (default: d_model / num_heads)"
            )
        super().__init__(partial(_rotations, width, rotated, base, scaling))

    def forward(self, x: Float[Tensor, "B H T K"], start: int = 0) -> Float[Tensor, "B H T K"]:
        """Return x[:, :, t] rotated to position start + t."""
        check_floats("x", x, "batch", "heads", "length", self.width)
        end = start + x.size(2)
        self.reserve(end)
        return _rotated(x, self.table[start:end])

    def rotate_at(self, x: Float[Tensor, "B H T K"], positions: Int[Tensor, " B"]) -> Float[Tensor, "B H T K"]:
        """Return x[b] rotated to positions[b]. Call :meth:`reserve` first."""
        return _rotated(x, self.table[positions][:, None, None])


def _rotations(
    width: int, rotated: int, base: float, scaling: RotaryScaling | None, length: int
) -> Float[Tensor, "T 2 K"]:
    """Return the factors of each position: cosines, and sines with their signs in the rotation."""
    frequencies = base ** -(2 * torch.arange(rotated // 2, dtype=torch.float64) / rotated)
    magnitude = 1.0
    if scaling is not None:
        frequencies, magnitude = scaling.scale_frequencies(frequencies, base)
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * frequencies
    cosine, sine = (torch.from_numpy(function(angles.numpy()) * magnitude) for function in (np.cos, np.sin))
    table = torch.stack([torch.stack([cosine, cosine], 2), torch.stack([-sine, sine], 2)], 1).flatten(2)
    table = F.pad(table, (0, width - rotated))
    table[:, 0, rotated:] = 1
    return table.float()


def _rotated(x: Float[Tensor, "*b K"], factors: Float[Tensor, "*c 2 K"]) -> Float[Tensor, "*b K"]:
    cosine, sine = factors.unbind(-2)
    other = torch.unflatten(x, -1, (-1, 2)).flip(-1).flatten(-2)  # swap the two units of each pair
    return (x * cosine + other * sine).to(x.dtype)


class RelativeBias(nn.Module):
    """Learned biases of attention scores, one for each head and each bucket of distances between query and key.

    Half of the buckets contain one distance each: 0, 1, 2 and so on. The others contain increasing numbers of distances
    up to ``max_distance``, on a logarithmic scale. The last bucket also contains all greater distances. In T5, all
    blocks of a stack share one table.

    The first distance of each bucket is computed in integers, and equals the result of T5's floating-point formula.

    Args:
        num_heads: Number of heads, H.
        num_buckets: Number of buckets. Must be even and at least 4.
        max_distance: This distance and all greater distances share a bucket. Must be more than half of ``num_buckets``.
        bidirectional: Whether half of the buckets are for keys after the query. If False, keys after the query share
            the bucket of distance 0, for attention that masks these keys.
    """

    bucket_starts: Int[Tensor, " N"]

    def __init__(
        self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        check_buckets(num_buckets, max_distance)
        self.num_heads, self.bidirectional = num_heads, bidirectional
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.table, std=0.1)
        starts = _bucket_starts(num_buckets // 2 if bidirectional else num_buckets, max_distance)
        self.register_buffer("bucket_starts", torch.tensor(starts), persistent=False)

    def forward(self, distances: Int[Tensor, "*b T S"]) -> Float[Tensor, "*b H T S"]:
        """Return the biases for ``distances``. A distance is the key's position minus the query's position."""
        check_integers("distances", distances, ..., "queries", "keys")
        biases: Tensor = F.embedding(self._buckets(distances), self.table)
        return biases.movedim(-1, -3)

    def biases_for_length(self, length: int) -> Float[Tensor, "H T T"]:
        """Return the biases of self-attention in a sequence of ``length`` positions."""
        distances = torch.arange(1 - length, length, device=self.table.device)
        by_distance: Tensor = self(distances.unsqueeze(0)).squeeze(1)  # (H, 2T - 1)
        return by_distance.unfold(1, length, 1).flip(1)  # row t begins with distance -t

    def _buckets(self, distances: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        apart = distances.abs() if self.bidirectional else (-distances).clamp(min=0)
        buckets = torch.bucketize(apart, self.bucket_starts, right=True)
        return buckets + (distances > 0) * (self.num_buckets // 2) if self.bidirectional else buckets


def check_buckets(num_buckets: int, max_distance: int) -> None:
    """Raise :class:`ConfigError` if distances up to ``max_distance`` cannot be divided into ``num_buckets`` buckets."""
    if num_buckets < 4 or num_buckets % 2:
        raise ConfigError(f"relative_buckets = {num_buckets}: expected an even number of at least 4")
    if max_distance <= num_buckets // 2:
        raise ConfigError(
            f"relative_max_distance = {max_distance} with relative_buckets = {num_buckets}: expected more than "
            f"{num_buckets // 2}, because half of the buckets contain one distance each"
        )


def _bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
    """Return the first distance of each bucket except the first bucket, which begins at 0.

    Distance d belongs to bucket m + floor(ln(d / m) / ln(max_distance / m) * (num_buckets - m)), where m is the number
    of buckets with one distance each. So bucket m + k begins with the first d for which (d / m)^(num_buckets - m) is at
    least (max_distance / m)^k.
    """
    exact, shared = num_buckets // 2, num_buckets - num_buckets // 2
    limits = [max_distance**k * exact ** (shared - k) for k in range(1, shared)]
    return [*range(1, exact + 1), *(bisect_left(range(max_distance), x, key=lambda d: d**shared) for x in limits)]
