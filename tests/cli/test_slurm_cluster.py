"""Workers on a real SLURM with two nodes on this machine, which sends SIGTERM before the job is done."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run

from headway.jobs.join import count_missing_chunks, join_results
from headway.jobs.plan import Plan

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
CONFIG = """
ClusterName=headway
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={port}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MaxArraySize=101
KillWait=20
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""

pytest_plugins = ["model_folders"]  # the fixtures of that file
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemons of SLURM need root"),
]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Daemons with their files in a temporary folder."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("munge", "state", "spool-n1", "spool-n2"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(random.Random(1).randbytes(1024))
    key.chmod(0o600)
    port, n1, n2 = free_ports(3)
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, host=socket.gethostname(), port=port, n1=n1, n2=n2))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
        patch.setenv("SLURM_CONF", str(config))
        munge = folder / "munge"
        for name, words in (
            ("munged", ["--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
                        f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"]),
            ("slurmctld", ["-D"]),
            ("slurmd", ["-D", "-N", "n1"]),
            ("slurmd", ["-D", "-N", "n2"]),
        ):  # fmt: skip
            with (folder / f"{name}{words[-1]}.log".replace("/", "_")[-60:]).open("wb") as log:
                process = stack.enter_context(subprocess.Popen([name, *words], stdout=log, stderr=log))
            stack.callback(process.terminate)
            time.sleep(0.5)
        until = time.monotonic() + 30
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T %D"], capture_output=True, text=True).stdout:
            assert time.monotonic() < until, [path.read_text() for path in folder.glob("*.log")]
            time.sleep(0.5)
        yield


def test_later_rounds_finish_what_ended_ones_give_back(cluster: None, tmp_path: Path, folders: dict[str, Path]) -> None:
    """SLURM sends the signal of its time limit twice, to all workers that run."""
    draws, words = random.Random(1), ["das", "rote", "Haus", "der", "Baum", "und"]
    source = tmp_path / "in"
    source.write_text("".join(" ".join(draws.choices(words, k=draws.randrange(6))) + "\n" for _ in range(20_000)))
    float32 = ("--precision", "float32", "--beam-size", 8)
    ended = run(
        "corpus", "translate", folders["translator"], source, "-o", tmp_path / "job", *float32, "--chunk-lines", 200,
        "--slurm", 2, "--slurm-options", "--time 9", "--slurm-rounds", 6,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert len(re.findall(r"round \d: SLURM job \d+ with 2 tasks", ended.err)) == 6
    plan, until = Plan(tmp_path / "job"), time.monotonic() + 600

    def wait_until_only(num_chunks: int) -> None:
        while count_missing_chunks(plan) > num_chunks:
            assert time.monotonic() < until, [path.read_text() for path in (plan.folder / "logs").iterdir()]
            time.sleep(0.5)

    for _ in range(2):
        wait_until_only(count_missing_chunks(plan) - 10)  # the workers of this round have begun
        subprocess.run(["scancel", "--batch", "--signal=TERM", "--state=RUNNING", "--user=root"], check=True)
    wait_until_only(0)
    join_results(plan, tmp_path / "out", verify=True)
    assert list((plan.folder / "leases").rglob("*.released"))
    assert (tmp_path / "out").read_text() == run("translate", folders["translator"], "-i", source, *float32).out
