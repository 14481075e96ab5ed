"""Load models of the Hugging Face Hub by name. A model is downloaded and converted once, and then loaded like any
folder.

Only :func:`model_folder` converts a name to a folder. It is called for the arguments of commands and for the arguments
of the Python functions that load models.
"""

from __future__ import annotations

from headway.interop.hub.names import model_folder

__all__ = ["model_folder"]
