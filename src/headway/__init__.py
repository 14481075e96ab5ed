"""Headway: a practical implementation of the Transformer of "Attention Is All You Need" (Vaswani et al., 2017).

Importing the package is fast and does not import PyTorch. Each name imports its dependencies when it is first used:

    import headway
    model = headway.load("runs/quickstart-en-de/best")
    model.translate("Guten Morgen!").text
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.version import __version__

if TYPE_CHECKING:
    from headway.calls.evaluation import compare, evaluate
    from headway.calls.looking import inspect, tokenize
    from headway.calls.run import Run, average, open_run
    from headway.calls.training import distill, train
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
    "Run",
    "Translation",
    "Translator",
    "TranslatorPool",
    "__version__",
    "average",
    "compare",
    "diagram",
    "distill",
    "evaluate",
    "inspect",
    "load",
    "open_run",
    "tokenize",
    "train",
]

_MODULES = {
    "Run": "calls.run",
    "average": "calls.run",
    "compare": "calls.evaluation",
    "diagram": "inspection.diagram",
    "distill": "calls.training",
    "evaluate": "calls.evaluation",
    "inspect": "calls.looking",
    "load": "tasks",
    "open_run": "calls.run",
    "tokenize": "calls.looking",
    "train": "calls.training",
}


def __getattr__(name: str) -> Any:
    """Import names that need PyTorch only when they are first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headway.{_MODULES.get(name, 'predict')}"), name)
