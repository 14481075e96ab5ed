"""Headway: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017) as real software.

Importing the package is fast and does not import PyTorch. Each name imports what it needs when it is first used:

    import headway
    model = headway.load("runs/quickstart-en-de/best")
    model.translate("Guten Morgen!").text
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.version import __version__

if TYPE_CHECKING:
    from headway.inspection.diagram import diagram
    from headway.predict import (
        Classification,
        Classifier,
        Glossary,
        LanguageModel,
        MaskedLanguageModel,
        Translation,
        Translator,
        TranslatorPool,
    )
    from headway.tasks import load

__all__ = [
    "Classification",
    "Classifier",
    "Glossary",
    "HeadwayError",
    "LanguageModel",
    "MaskedLanguageModel",
    "Translation",
    "Translator",
    "TranslatorPool",
    "__version__",
    "diagram",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs PyTorch when it is first used (PEP 562)."""
    if name == "load":
        from headway.tasks import load

        return load
    if name == "diagram":
        from headway.inspection.diagram import diagram

        return diagram
    if name in __all__:
        from headway import predict

        return getattr(predict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
