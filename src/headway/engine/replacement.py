"""How a kernel-backed class recognizes the modules that it may replace: exactly, by type and by every attribute.

A module is recognized if its type is the plain class itself and the class declares each attribute and each submodule
that the module has. A new option of a layer is an attribute that no declaration knows, so the layer stays plain until
its kernel-backed class is taught the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

Accepts = Callable[[Any], bool]


@dataclass(frozen=True)
class Replacement:
    """A plain class, the kernel-backed class that replaces it, and the attributes that the latter supports.

    ``attributes`` maps the name of each attribute and submodule to a function that says whether a value is supported.
    """

    plain: type[nn.Module]
    fast: type[nn.Module]
    attributes: Mapping[str, Accepts]

    def refusal(self, module: nn.Module) -> str | None:
        """Return why ``module``, of the plain type, cannot be replaced, or None if it can."""
        own = {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}
        own |= module._modules | module._parameters
        for name, value in own.items():
            if name not in self.attributes:
                return f"unknown option {name!r}"
            if not self.attributes[name](value):
                shown = (
                    type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", repr(value))
                )
                return f"{name} = {shown} has no fast form"
        return None


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


def any_value(_value: Any) -> bool:
    """Accept any value."""
    return True


def of_type(*types: type) -> Accepts:
    """Accept values of exactly these types."""
    return lambda value: type(value) in types


def instance_of(*types: type) -> Accepts:
    """Accept values of these types and types derived from them: what is only called, whatever it computes."""
    return lambda value: isinstance(value, types)


def one_of(*values: Any) -> Accepts:
    """Accept exactly these values."""
    return lambda value: any(value is each or (type(value) is type(each) and value == each) for each in values)


def has_hooks(*modules: nn.Module) -> bool:
    """Return whether a hook waits for a call of one of the modules, which a fused operation would leave out."""
    return any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in modules
    )
