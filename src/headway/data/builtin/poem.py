"""A long poem to train a first language model on: John Milton, *Paradise Lost*, first edition (1667).

The text is in the public domain. It is Project Gutenberg's, without its introduction, from the package ``shakespeare``
0.6 by the Open Knowledge Foundation.
"""

from __future__ import annotations

from importlib.resources import files


def read_poem() -> str:
    """Return the poem, in lines of verse."""
    return files("headway.data.builtin").joinpath("paradise_lost.txt").read_text(encoding="utf-8")
