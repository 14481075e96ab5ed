"""Bits per byte of general-purpose compressors, for comparison with language models.

Like a trained model, the compressor first processes another text. The bits of a text are the increase in compressed
size when the text is appended.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable

from headway.errors import MissingPackageError

_ORDER = 16  # maximum context length of PPMd, in bytes
_MEMORY = 1 << 28  # memory limit of PPMd, in bytes


def xz_bits_per_byte(read_before: str, text: str) -> float:
    """Return the bits per byte of ``text`` after ``read_before``, with LZMA at its highest level."""
    return _added_bits_per_byte(lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME), read_before, text)


def ppmd_bits_per_byte(read_before: str, text: str) -> float:
    """Return the bits per byte of ``text`` after ``read_before``, with PPMd of order 16 (Shkarin 2002).

    Raises:
        MissingPackageError: pyppmd is not installed.
    """
    try:
        import pyppmd
    except ImportError:
        raise MissingPackageError("compression with PPMd", "pyppmd") from None
    return _added_bits_per_byte(
        lambda data: pyppmd.compress(data, max_order=_ORDER, mem_size=_MEMORY), read_before, text
    )


def _added_bits_per_byte(compress: Callable[[bytes], bytes], read_before: str, text: str) -> float:
    before, data = read_before.encode(), text.encode()
    return 8 * (len(compress(before + data)) - len(compress(before))) / len(data)
