"""Submit a job's workers to SLURM as job arrays that run one after another (rounds).

The script is kept in the job's folder, where a user can read it, change it and submit it again. SLURM sends SIGTERM
90 seconds before the time limit, and the worker then releases its chunk. Each round begins when all workers of the
previous round have ended, for whatever reason. A round ends immediately if there is no work left.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from headway.errors import ConfigError, HeadwayError
from headway.jobs.plan import Plan
from headway.storage import atomic_write_text

SCRIPT_FILE = "workers.sbatch"
_SCRIPT = """#!/bin/bash
# Workers of the job in {folder}. Each array task runs one process for each of its processors.
# Submit more of them with: sbatch {options}{script}
#SBATCH --job-name=headway
#SBATCH --array=1-{count}
#SBATCH --signal=B:TERM@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={logs}/%A_%a.log
exec {python} -m headway corpus work {folder} --workers "${{SLURM_CPUS_PER_TASK:-1}}"
"""


def submit_to_slurm(plan: Plan, count: int, options: str, rounds: int) -> list[str]:
    """Write the batch script, and submit it ``rounds`` times. Return the lines to print.

    Args:
        plan: The plan of the job.
        count: Number of tasks in each array.
        options: Command line options for sbatch.
        rounds: Number of arrays to submit.

    Raises:
        ConfigError: SLURM does not allow arrays of this size, or is not installed.
        HeadwayError: sbatch rejected the script.
    """
    _check_array_size(count)
    folder = plan.folder.resolve()
    (folder / "logs").mkdir(exist_ok=True)
    script = folder / SCRIPT_FILE
    text = _SCRIPT.format(
        folder=shlex.quote(str(folder)),
        script=shlex.quote(str(script)),
        options=f"{options} " if options else "",
        count=count,
        logs=str(folder / "logs").replace("%", "%%"),
        python=shlex.quote(sys.executable),
    )
    atomic_write_text(script, text)
    said, previous = [f"wrote {script}"], ""
    for number in range(1, rounds + 1):
        dependency = [f"--dependency=afterany:{previous}"] if previous else []
        previous = (
            _run(["sbatch", "--parsable", *dependency, *shlex.split(options), str(script)]).partition(";")[0].strip()
        )
        said.append(f"round {number}: SLURM job {previous} with {count:,} tasks")
    return [*said, f"follow it with: headway corpus status {plan.folder} --watch"]


def _check_array_size(count: int) -> None:
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]), re.MULTILINE)
    if match and count > int(match[1]) - 1:
        raise ConfigError(
            f"--slurm {count}: this SLURM allows arrays of up to {int(match[1]) - 1:,} tasks (MaxArraySize); use "
            "fewer tasks, with more --cpus-per-task in --slurm-options"
        )


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
    except FileNotFoundError:
        raise ConfigError(
            f"{command[0]} is not installed on this machine; run the command on a machine that can submit jobs to SLURM"
        ) from None
    except subprocess.CalledProcessError as error:
        raise HeadwayError(
            f"{command[0]}: {' '.join(error.stderr.split()) or f'exit code {error.returncode}'}"
        ) from None
    return done.stdout
