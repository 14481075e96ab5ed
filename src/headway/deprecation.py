"""Old public names, methods and arguments, which keep working for one minor version.

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
    _warn(f"{module}.{name}", f"{module}.{new_names[name]}")
    return getattr(sys.modules[module], new_names[name])


def renamed_arguments(function: str, given: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments that were given by old names under their new names, and emit a DeprecationWarning for each.

    Args:
        function: Name of the function that was called.
        given: The keyword arguments that the function does not define.
        new_names: The new name for each old name.

    Raises:
        TypeError: An argument of ``given`` is not an old name.
    """
    for name in given:
        if name not in new_names:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        _warn(f"argument {name!r} of {function}", repr(new_names[name]))
    return {new_names[name]: value for name, value in given.items()}


def renamed_method(instance: Any, old: str, new: str) -> Any:
    """Return the method ``new`` of ``instance``, and emit a DeprecationWarning that its name is no longer ``old``.

    A class keeps an old name by ``old = property(partial(renamed_method, old="old", new="new"))``.
    """
    name = type(instance).__name__
    _warn(f"{name}.{old}", f"{name}.{new}")
    return getattr(instance, new)


def _warn(old: str, new: str) -> None:
    message = f"{old} is now {new}; the old name will be removed in the next minor version"
    warnings.warn(message, DeprecationWarning, stacklevel=4)
