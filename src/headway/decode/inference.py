"""PyTorch's inference mode for functions that often call each other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_inference_mode(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Run a function in inference mode. Unlike ``torch.inference_mode()``, this does nothing if the mode is already on.

    Each step of beam search calls five such methods, and entering the mode each time takes a measurable part of it.
    """

    @functools.wraps(function)
    def run(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        if torch.is_inference_mode_enabled():
            return function(*arguments, **keywords)
        with torch.inference_mode():
            return function(*arguments, **keywords)

    return run
