"""A decorator that enters PyTorch's inference mode only if it is not already active."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_inference_mode(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Run a function in inference mode, like ``torch.inference_mode()``, but do not re-enter the mode if it is active.

    A beam search step calls five such methods, and entering the mode in each of them is measurably slower.
    """

    @functools.wraps(function)
    def run(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        if torch.is_inference_mode_enabled():
            return function(*arguments, **keywords)
        with torch.inference_mode():
            return function(*arguments, **keywords)

    return run
