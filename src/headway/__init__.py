"""Headway: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017) as real software.

Importing the package does no work and loads no PyTorch; a name loads what it needs when it is first used:

    import headway
    model = headway.load("runs/quickstart/best")
    model.translate("Guten Morgen!").text
"""

from __future__ import annotations

from headway.errors import HeadwayError

__all__ = ["HeadwayError", "__version__"]

__version__ = "0.1.0"
