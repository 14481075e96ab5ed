"""Run a job's workers as Ray tasks. Ray assigns the tasks to machines, and the job's files assign chunks to workers.

Ray restarts a task if its machine or its process is lost. Ray's checkpoints are not needed.
"""

from __future__ import annotations

from headway.corpus.work import load_line_map
from headway.errors import ConfigError, MissingPackageError
from headway.jobs.plan import Plan
from headway.jobs.worker import Worker


def work_on_ray(plan: Plan, address: str) -> None:
    """Work on a job with one worker for each processor in the Ray cluster at ``address``.

    Raises:
        MissingPackageError: Ray is not installed.
        ConfigError: There is no Ray cluster at this address.
        HeadwayError: The job cannot continue.
    """
    try:
        import ray
    except ImportError:
        raise MissingPackageError("--ray", "ray") from None
    try:
        ray.init(address=address, log_to_driver=False)
    except ConnectionError as error:
        raise ConfigError(
            f"--ray {address}: no Ray cluster runs at this address ({error}); start one with ray start"
        ) from None
    folder = str(plan.folder.resolve())

    def pull() -> None:
        from pathlib import Path

        of_worker = Plan(Path(folder))
        Worker(of_worker, load_line_map(of_worker)).run()

    try:
        count = min(int(ray.cluster_resources().get("CPU", 1)), max(plan.num_chunks, 1))
        remote = ray.remote(num_cpus=1, max_retries=-1, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})(pull)
        ray.get([remote.remote() for _ in range(count)])
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        ray.shutdown()
