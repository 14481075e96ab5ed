"""Operations that a GPU is told once and repeats at a word: CUDA graphs.

To launch a kernel takes the host some microseconds, to run one of a decoding step takes a GPU no longer. A step of a
base model has some three hundred, so whoever launches them one by one measures the host. A graph of them all is one
launch.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

__all__ = ["Recorder", "Recordings", "Watch"]

_AHEAD = 8  # steps that may be on their way to a GPU before one is waited for
_recording = Lock()  # PyTorch records one graph at a time in a process

Recordings = dict[Hashable, "torch.cuda.CUDAGraph | None"]  # None: run once, and not recorded yet


class Recorder:
    """Runs functions that read and write tensors of one device, always the same, without the host looking at any.

    On a GPU a function's second run is recorded, and from then on the recording is what runs. So a function must not
    depend on anything but the contents of its tensors and its key. Where recording fails (another thread waits for the
    whole device just then), functions run as they are, with a warning. On a CPU they always do.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._records = device.type == "cuda"
        if self._records:
            self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._keeper: torch.cuda.CUDAGraph | None = None

    def run(self, recordings: Recordings, key: Hashable, function: Callable[[], object]) -> None:
        """Do what ``function`` does, inside :meth:`scope`; ``recordings`` are its owner's, who may drop them."""
        if self._records and key in recordings:
            if recordings[key] is None:
                recordings[key] = self._record(function)
            if graph := recordings[key]:
                graph.replay()
                return
        recordings.setdefault(key)
        function()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Everything in it is in the recorder's own stream, for the default one cannot be recorded."""
        if self._device.type != "cuda":
            yield
            return
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:  # what is freed from now on may be given to others, who come after what is still running
            outside.wait_stream(self._stream)

    def _record(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
        """What the function does, without doing it; None where that fails."""
        try:
            with _recording:
                if self._keeper is None:
                    # All share the memory of their intermediate results, which lives as long as one of them: this.
                    self._keeper = self._graph(torch.zeros(1, device=self._device).zero_, None)
                return self._graph(function, self._keeper.pool())
        except RuntimeError as error:
            self._records = False
            warnings.warn(
                f"decoding is slower than it could be, for its steps cannot be recorded: {error}", stacklevel=2
            )
            return None

    def _graph(self, function: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may launch and allocate meanwhile, but not wait for the whole device.
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        return graph


class Watch:
    """Learns when a flag on the device has become true, without waiting for the newest step.

    The flag of each step is on its way to the host while the next steps are launched; the host waits for the step
    before the last eight, so that it does not run away from the device, and the device never for the host.
    """

    def __init__(self, flag: Bool[Tensor, " 1"]) -> None:
        self._flag = flag
        self._sent: deque[_Sent] = deque()

    def step(self) -> bool:
        """Whether the flag was true after a step; this one has just been launched."""
        self._sent.append(_Sent(self._flag))
        while self._sent and (len(self._sent) > _AHEAD or self._sent[0].is_there()):
            if self._sent.popleft().value():
                return True
        return False


class _Sent:
    """A flag on its way to the host."""

    def __init__(self, flag: Bool[Tensor, " 1"]) -> None:
        self._arrives: Any = None
        if not flag.is_cuda:
            self._copy = flag.clone()
        else:
            self._copy = torch.empty(1, dtype=torch.bool, pin_memory=True)
            self._copy.copy_(flag, non_blocking=True)
            self._arrives = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrives.record()

    def is_there(self) -> bool:
        """Whether the host has it."""
        return self._arrives is None or bool(self._arrives.query())

    def value(self) -> bool:
        """The flag, waited for."""
        if self._arrives is not None:
            self._arrives.synchronize()
        return bool(self._copy)
