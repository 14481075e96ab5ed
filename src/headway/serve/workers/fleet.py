"""The interface of worker processes that have some models and call their methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

from headway.serve.glossaries import GlossaryDigest
from headway.serve.model_info import ModelInfo
from headway.serve.workers.messages import Job, Pong

MAX_JOBS = 128  # maximum number of jobs that a worker has at a time


class Fleet(ABC):
    """Worker processes that have some models and call their methods.

    Attributes:
        num_workers: The intended number of workers.
        models: Information about the models.
        num_bytes: The memory of each loaded model.
        has_gpu: Whether the machine has a GPU, which no model uses.
        restarts: The number of workers that were replaced.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.models: dict[str, ModelInfo] = {}
        self.num_bytes: dict[str, int] = {}
        self.has_gpu = False
        self.restarts = 0

    # Defaults for fleets whose processes are started elsewhere.

    async def launch(self) -> None:
        """Begin to load the models."""
        return

    async def start(self) -> None:
        """Wait until the models are loaded and the workers are started.

        Raises:
            HeadwayError: A model cannot be loaded.
        """
        return

    async def close(self) -> None:
        """End all processes immediately."""
        return

    @property
    def num_ready(self) -> int:
        """The number of workers that can take jobs."""
        return self.num_workers

    @property
    def states(self) -> list[Pong]:
        """The last answer of each worker, as far as there are answers."""
        return []

    @property
    def pids(self) -> list[int]:
        """The processes of the workers on this machine."""
        return []

    def private_bytes(self) -> int:
        """Return the memory of the workers that they do not share with others."""
        return 0

    def num_lacking(self, _: GlossaryDigest) -> int:
        """Return the number of workers without a glossary, or 0 if the worker that gets the next job has it."""
        return 0

    @abstractmethod
    async def call(self, job: Job) -> Any:
        """Return the result of a job. Canceling this task ends the job before its next step.

        Raises:
            HeadwayError: The job's function has raised it.
            WorkerError: The job failed because of a defect.
            UnavailableError: No worker could do it.
        """

    @abstractmethod
    def stream(self, job: Job) -> AsyncGenerator[Any]:
        """Yield the parts of the result of a job, whose function returns a stream, and then the result.

        Raises the errors of :meth:`call`.
        """
