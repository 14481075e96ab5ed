"""PyTorch's inference mode, for methods that call each other many times a second."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_inference_mode(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a function run in inference mode, like ``torch.inference_mode()``, which it enters only if necessary.

    Entering and leaving the mode takes 20 to 30 us while a model's weights pass through the processor's caches. A step
    of beam search calls five such methods within each other.
    """

    @functools.wraps(function)
    def run(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        if torch.is_inference_mode_enabled():
            return function(*arguments, **keywords)
        with torch.inference_mode():
            return function(*arguments, **keywords)

    return run
