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


class RenamedMethod:
    """A class attribute under a method's old name, which returns the method called ``new_name`` and emits a warning."""

    def __init__(self, new_name: str) -> None:
        self._new_name = new_name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn(f"{owner.__name__}.{self._name}", f"{owner.__name__}.{self._new_name}")
        return getattr(owner if instance is None else instance, self._new_name)


def _warn(old: str, new: str) -> None:
    message = f"{old} is now {new}; the old name will be removed in the next minor version"
    warnings.warn(message, DeprecationWarning, stacklevel=4)
