import random
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode

# A busy machine is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and one thread makes every sum repeatable."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same numbers, alone or among others."""
    random.seed(0)
    torch.manual_seed(0)


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
