"""Workers as a SLURM array: the script, and what is asked of SLURM, which the tests replace by scripts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from headway.corpus.slurm import SCRIPT_FILE, submit_to_slurm
from headway.errors import ConfigError, HeadwayError
from headway.jobs.plan import JobRequest, Plan, make_plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A job, and commands of SLURM that record their arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in (
        ("scontrol", "echo 'MaxArraySize            = 101'"),
        ("sbatch", f'echo "$@" >> {tmp_path}/submitted; wc -l < {tmp_path}/submitted'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "in").write_text("a\n")
    return make_plan(tmp_path / "a job", JobRequest("echo", {}, {}, [[tmp_path / "in"]]))


def test_rounds_follow_each_other(plan: Plan, tmp_path: Path) -> None:
    said = submit_to_slurm(plan, 100, "--partition cpu --time 4:00:00", 3)
    script = plan.folder / SCRIPT_FILE
    calls = (tmp_path / "submitted").read_text().splitlines()
    options = f"--partition cpu --time 4:00:00 {script}"
    assert calls == [
        f"--parsable {options}",
        f"--parsable --dependency=afterany:1 {options}",
        f"--parsable --dependency=afterany:2 {options}",
    ]
    assert said[1:4] == [f"round {number}: SLURM job {number} with 100 tasks" for number in (1, 2, 3)]
    text = script.read_text()
    assert "#SBATCH --array=1-100\n#SBATCH --signal=B:TERM@90\n" in text
    assert f"-m headway corpus work '{plan.folder}' --workers" in text
    assert subprocess.run(["bash", "-n", script], check=True).returncode == 0


def test_arrays_that_are_too_large_are_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match=r"--slurm 101: this SLURM allows arrays of up to 100 tasks \(MaxArraySize\)"):
        submit_to_slurm(plan, 101, "", 1)


def test_what_sbatch_says_is_reported(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2\nexit 1\n")
    with pytest.raises(HeadwayError, match="sbatch: invalid partition"):
        submit_to_slurm(plan, 1, "", 1)


def test_without_slurm(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="scontrol is not installed on this machine"):
        submit_to_slurm(plan, 1, "", 1)
