"""What the tests of training share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host reads a tensor's value"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_waiting() -> AbstractContextManager[object]:
    """Inside, reading a tensor's value fails: on a GPU the host would wait for it."""
    mode: AbstractContextManager[object] = _NoWaiting()  # type: ignore[no-untyped-call]
    with pytest.raises(AssertionError, match="reads a tensor's value"), mode:
        torch.ones(()).item()
    return mode
