"""A long poem for training a first language model: John Milton, *Paradise Lost*, first edition (1667).

The text is in the public domain. It is the Project Gutenberg text without the introduction, from the package
``shakespeare`` 0.6 of the Open Knowledge Foundation.
"""

from __future__ import annotations

from importlib.resources import files


def read_poem() -> str:
    """Return the text of the poem, one verse per line."""
    return files("headway.data.builtin").joinpath("paradise_lost.txt").read_text(encoding="utf-8")
