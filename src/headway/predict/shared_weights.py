"""Copy a model so that the copy shares the weights, and convert the copy when it is first needed.

Predictors replace the layers of a model with fast layers, turn off dropout, and may compute on another device. None of
this may change the caller's model, which may be in the middle of training. So each predictor copies every module
object. Parameters and buffers are the same objects in both models. Both have the same hook functions but separate lists
of hooks, so adding or removing a hook in one model does not change the other.

The copy may be converted, for example to a model for searches. Each conversion runs when its result is first needed
(:class:`Lazy`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from torch import nn

from headway.bundle import AnyBundle
from headway.hardware import choose_device
from headway.models.base import Model
from headway.torch_internals import load_hooks_are_visible, module_members_are_visible, rebind_load_hooks

BundleT = TypeVar("BundleT", bound=AnyBundle)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def with_model_copy(bundle: BundleT, device: str | torch.device | None, *, needs_cpu: bool = False) -> BundleT:
    """Return ``bundle`` with a copy of its model in evaluation mode. The copy shares the weights unless it is moved.

    Args:
        bundle: The model with its tokenizers. It is not changed.
        device: Device of the copy; see :func:`headway.hardware.choose_device`. None means the model's device.
        needs_cpu: Whether "auto" means the CPU, because only the CPU supports the computation.
    """
    model: nn.Module = bundle.model
    chosen = None if device is None else choose_device(device, needs_cpu=needs_cpu)
    return cast("BundleT", replace(cast("Any", bundle), model=copy_to_device(model, chosen).eval()))


def copy_to_device(model: ModuleT, device: torch.device | None) -> ModuleT:
    """Return a copy of ``model`` on ``device``. It shares the weights if they are there, or if ``device`` is None."""
    copied = copy_sharing_weights(model)
    if device is None or all(_is_on(parameter, device) for parameter in model.parameters()):
        return copied
    if isinstance(copied, Model) and copied.int8_weights is not None:
        from headway.engine.int8_weights import dequantize_weights

        dequantize_weights(copied)  # int8 weights can be used only on a CPU
    # Module.to would change the caller's parameters in place, so they are replaced first. Tied parameters stay tied.
    moved = {
        parameter: nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
        for parameter in copied.parameters()
    }
    for module in copied.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            module.register_parameter(name, moved[parameter])
    return copied.to(device)


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    if tensor.is_meta:  # a placeholder without data for an int8 weight, which stays on the CPU
        return device.type == "cpu"
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def copy_sharing_weights(model: ModuleT) -> ModuleT:
    """Return a copy of ``model`` with new modules, which share the model's parameters and buffers."""
    if not load_hooks_are_visible() or not module_members_are_visible():
        return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    return cast("ModuleT", _copied(model, {}))


def _copied(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """Return the copy of ``module`` in ``copies``, which is created if it does not exist."""
    if id(module) in copies:
        return copies[id(module)]
    twin = copies[id(module)] = copy.copy(module)
    for name, value in vars(twin).items():
        if isinstance(value, (dict, list, set)):
            vars(twin)[name] = copy.copy(value)
    for name, child in twin._modules.items():
        twin._modules[name] = None if child is None else _copied(child, copies)
    rebind_load_hooks(twin, original=module)
    return twin


class Lazy:
    """A callable that calls ``make`` when it is first called, and returns the same result in all later calls.

    It is thread-safe: ``lock`` is held while ``make`` runs.
    """

    def __init__(self, make: Callable[[], Any], lock: AbstractContextManager[Any] | None = None) -> None:
        self._make: Callable[[], Any] | None = make
        self._lock = lock or Lock()
        self._made: list[Any] = []

    @property
    def is_made(self) -> bool:
        """Whether a call returns without calling ``make`` or waiting for another thread."""
        return bool(self._made)

    def __call__(self) -> Any:
        """Return the result of ``make``."""
        if not self._made:
            with self._lock:
                if self._make is not None:
                    self._made.append(self._make())
                    self._make = None  # it may refer to the owner of this object, which would be a reference cycle
        return self._made[0]
