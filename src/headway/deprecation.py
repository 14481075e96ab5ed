"""Old public names and arguments, which keep working for one minor version.

Their use emits a warning that contains the new name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def renamed(module: str, name: str, new_names: Mapping[str, str]) -> Any:
    """Return the attribute whose old name is ``name``, and emit a DeprecationWarning that contains the new name.

    A package's ``__getattr__`` (PEP 562) calls this function.

    Args:
        module: The package's ``__name__``.
        name: The requested name, which the package does not define.
        new_names: The new name for each old name.

    Raises:
        AttributeError: ``name`` is not an old name.
    """
    if name not in new_names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(
        f"{module}.{name} is now {module}.{new_names[name]}; the old name will be removed in the next minor version",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(sys.modules[module], new_names[name])


def renamed_arguments(function: str, given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments that were given by old names under their new names, and emit a DeprecationWarning for each.

    Args:
        function: Name of the function that was called.
        given: The keyword arguments that the function does not define.
        names: The new name for each old name.

    Raises:
        TypeError: An argument of ``given`` is not an old name.
    """
    for old in given:
        if old not in names:
            raise TypeError(f"{function}() got an unexpected keyword argument {old!r}")
        warnings.warn(
            f"argument {old!r} of {function} is now {names[old]!r}; the old name will be removed in the next minor "
            "version",
            DeprecationWarning,
            stacklevel=3,
        )
    return {names[old]: value for old, value in given.items()}
