"""Models of the Hugging Face Hub by name: downloaded once, converted once, and then loaded like any model folder.

:func:`model_folder` is the only place in which a name becomes a folder. Commands call it for their arguments, and
Python for the arguments of the functions that load models.
"""

from __future__ import annotations

from headway.interop.hub.names import model_folder

__all__ = ["model_folder"]
