"""The interface to a group of worker processes that call methods of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

from headway.serve.glossaries import GlossaryDigest
from headway.serve.model_info import ModelInfo
from headway.serve.workers.messages import Job, WorkerStatus

MAX_JOBS_PER_WORKER = 128  # maximum number of jobs that a worker has at a time


class Fleet(ABC):
    """A group of worker processes that share loaded models and call their methods.

    Attributes:
        num_workers: Configured number of workers.
        models: Description of each model, by name.
        num_bytes: Memory of each loaded model, in bytes, by name.
        has_gpu: Whether the machine has a GPU, which no model uses.
        restarts: Number of workers that have been replaced.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.models: dict[str, ModelInfo] = {}
        self.num_bytes: dict[str, int] = {}
        self.has_gpu = False
        self.restarts = 0

    # Default implementations for fleets whose processes are started elsewhere.

    async def start_loading(self) -> None:
        """Start loading the models."""
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
    def states(self) -> list[WorkerStatus]:
        """The last status message of each worker that has sent one."""
        return []

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers on this machine."""
        return []

    def private_bytes(self) -> int:
        """Return the memory that is not shared between workers, in bytes."""
        return 0

    def num_workers_without_glossary(self, _: GlossaryDigest) -> int:
        """Return the number of workers without a glossary, or 0 if the worker for the next job has it."""
        return 0

    @abstractmethod
    async def call(self, job: Job) -> Any:
        """Run a job in a worker, and return its result. Canceling this task ends the job before its next step.

        Raises:
            HeadwayError: The job's function has raised this exception.
            WorkerError: The job failed with an unexpected exception.
            UnavailableError: No worker could run the job.
        """

    @abstractmethod
    def stream(self, job: Job) -> AsyncGenerator[Any]:
        """Run a job whose function returns a stream. Yield the parts of the result, and then the result.

        Raises the same exceptions as :meth:`call`.
        """
