"""Operations that a GPU is told once and repeats at a word: CUDA graphs.

To launch a kernel takes the host some microseconds, to run one of a decoding step takes a GPU no longer. A step of a
base model has some three hundred, so whoever launches them one by one measures the host. A graph of them all is one
launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

__all__ = ["Recorder", "Watch"]

_AHEAD = 8  # steps that may be on their way to a GPU before one is waited for


class Recorder:
    """Runs functions that read and write tensors of one device, always the same, without the host looking at any.

    On a GPU the first call of a function runs it as it is, and then records what it does; from then on the recording is
    what runs. So a function must not depend on anything but the contents of its tensors and its ``key``. On a CPU,
    functions just run.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Do what ``function`` does, whose recording is known by ``key``; inside :meth:`scope`."""
        if (graph := self._graphs.get(key)) is not None:
            graph.replay()
            return
        function()
        if self._stream is not None:
            self._graphs[key] = self._recorded(function)

    def forget(self, keys: Callable[[Hashable], bool]) -> None:
        """Drop the recordings of these keys."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if not keys(key)}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Everything in it is in the recorder's own stream, for the default one cannot be recorded."""
        if self._stream is None:
            yield
            return
        outside = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def _recorded(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None  # they never run at the same time
        # Other threads may allocate and launch meanwhile.
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
        self._seen: deque[tuple[Tensor, Any]] = deque()

    def step(self) -> bool:
        """Whether the flag was true after a step; this one has just been launched."""
        if self._flag.device.type != "cuda":
            return bool(self._flag)
        copy = torch.empty(1, dtype=torch.bool, pin_memory=True)
        copy.copy_(self._flag, non_blocking=True)
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._seen.append((copy, event))
        while self._seen and (len(self._seen) > _AHEAD or self._seen[0][1].query()):
            seen, event = self._seen.popleft()
            event.synchronize()
            if seen:
                return True
        return False
