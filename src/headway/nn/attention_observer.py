"""Observe attention weights, or replace them, while a model computes.

Each attention layer passes its weights through :func:`observed`. Nothing happens there unless the calling thread is
inside :func:`observe_attention` or :func:`record_attention`: threads that share a model do not see each other's passes,
as they would through module hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["AttentionObserver", "attention_is_observed", "observe_attention", "observed", "record_attention"]

AttentionObserver = Callable[[nn.Module, Tensor], Tensor | None]

# The observers of each thread, by its identifier. Not a context variable: torch.compile can trace a check of whether a
# dictionary is empty.
_observers: dict[int, tuple[AttentionObserver, ...]] = {}


@contextmanager
def observe_attention(observer: AttentionObserver) -> Iterator[None]:
    """Call ``observer`` with each attention layer that computes in this thread inside the context, and its weights.

    The weights are (B, H, T, S). If the observer returns a tensor, the layer uses it instead. Observers nest: an inner
    one receives what the outer ones return.
    """
    thread = get_ident()
    outer = _observers.get(thread, ())
    _observers[thread] = (*outer, observer)
    try:
        yield
    finally:
        _observers[thread] = outer
        if not outer:
            del _observers[thread]


@contextmanager
def record_attention(layer: nn.Module) -> Iterator[list[Float[Tensor, "B H T S"]]]:
    """Append the weights of ``layer`` to the yielded list each time that it computes in this thread."""
    seen: list[Tensor] = []

    def record(module: nn.Module, weights: Tensor) -> None:
        if module is layer:
            seen.append(weights)

    with observe_attention(record):
        yield seen


def attention_is_observed() -> bool:
    """Return whether this thread observes attention."""
    return bool(_observers) and get_ident() in _observers


def observed(layer: nn.Module, weights: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Show ``weights`` to the observers of this thread, and return the weights that ``layer`` must use."""
    if not _observers:
        return weights
    for observer in _observers.get(get_ident(), ()):
        replaced = observer(layer, weights)
        weights = weights if replaced is None else replaced
    return weights
