"""Old public names: they keep working for one minor version and warn with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["renamed"]


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module ``__getattr__`` (PEP 562) under which old names still resolve.

    Each use of an old name emits a DeprecationWarning that gives the new one.

    Args:
        module: The package's ``__name__``.
        names: Old name to new name. Both are attributes of the package.
    """

    def resolve(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now {module}.{names[name]}; the old name will be removed in the next minor version",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(sys.modules[module], names[name])

    return resolve
