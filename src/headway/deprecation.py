"""Old public names: they keep working for one minor version and warn with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def renamed(module: str, name: str, names: Mapping[str, str]) -> Any:
    """Return the attribute that an old name stands for, and emit a DeprecationWarning that gives the new name.

    For a package's ``__getattr__`` (PEP 562).

    Args:
        module: The package's ``__name__``.
        name: The name that the package does not have.
        names: Old name to new name.

    Raises:
        AttributeError: It is not an old name.
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(
        f"{module}.{name} is now {module}.{names[name]}; the old name will be removed in the next minor version",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(sys.modules[module], names[name])
