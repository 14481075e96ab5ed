"""Disturb a corpus job by killing, stopping, pausing, adding and removing workers, and compare its output with an
undisturbed process.

    python benchmarks/corpus_soak.py MODEL FILE --lines 300000 --chunk-lines 4096

Several ``headway corpus work`` commands share a job on the first ``--lines`` lines of the file, repeated as needed. At
random moments, a random worker process is killed (``--kills``), gets SIGTERM (``--terms``), or is stopped for longer
than its lease, which is shortened (``--stops``). Commands that have ended are started again. In the end, the joined
output must be equal to the output of ``headway translate``, and at most one chunk may have been repeated for each
disturbance.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from headway.jobs.join import count_missing_chunks
from headway.jobs.plan import Plan

_LEASE_S = 9.0


@dataclass
class Soak:
    """A job, the commands that work on it, and the remaining disturbances."""

    folder: Path
    left: dict[str, int]
    draws: random.Random
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)
    disturbances: int = 0

    def run(self, seconds: float) -> None:
        """Disturb the workers until the job is done, about evenly over ``seconds``."""
        plan = Plan(self.folder)
        pause = seconds / max(sum(self.left.values()), 1)
        while count_missing_chunks(plan):
            self.commands = [command for command in self.commands if command.poll() is None]
            wanted = self.draws.choice((1, 2, 2, 3))  # workers are added and removed
            while len(self.commands) < wanted:
                self.commands.append(self._start())
            time.sleep(self.draws.uniform(0.5, 1.5) * pause)
            self._disturb()
        for command in self.commands:
            command.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "headway", "corpus", "work", str(self.folder)]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def _disturb(self) -> None:
        kinds = [kind for kind, count in self.left.items() for _ in range(count)]
        workers = [pid for command in self.commands for pid in _workers_of(command.pid)]
        if not kinds or not workers:
            return
        kind, pid = self.draws.choice(kinds), self.draws.choice(workers)
        self.left[kind] -= 1
        self.disturbances += 1
        with contextlib.suppress(ProcessLookupError):
            if kind == "kill":
                os.kill(pid, signal.SIGKILL)
            elif kind == "term":
                os.kill(pid, signal.SIGTERM)
            else:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(2 * _LEASE_S)
                os.kill(pid, signal.SIGCONT)


def _workers_of(command: int) -> list[int]:
    """Return the processes that the supervisor of a command has forked."""
    return [worker for supervisor in _children(command) for worker in _children(supervisor)]


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def soak(
    model: Path, source: Path, *, lines: int, chunk_lines: int, seconds: float, left: dict[str, int], seed: int = 1
) -> str:
    """Disturb a job on ``lines`` lines, and return a report.

    Raises:
        SystemExit: The output differs, or too many chunks were done again.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        texts = source.read_text(encoding="utf-8").split("\n")[:-1]
        (home / "in").write_text("".join(text + "\n" for text in islice(cycle(texts), lines)), encoding="utf-8")
        words = [sys.executable, "-m", "headway"]
        begin = time.monotonic()
        with (home / "in").open("rb") as stdin, (home / "expected").open("wb") as stdout:
            subprocess.run([*words, "translate", model], check=True, stdin=stdin, stdout=stdout, env=environment)
        alone = time.monotonic() - begin
        options = ["--chunk-lines", str(chunk_lines), "--lease-seconds", str(_LEASE_S), "--workers", "1"]
        make = [*words, "corpus", "translate", str(model), str(home / "in"), "-o", str(home / "job"), *options]
        first = subprocess.Popen(make, stderr=subprocess.DEVNULL, env=environment)
        while not (home / "job" / "job.json").exists():
            time.sleep(0.05)
        disturbed = Soak(home / "job", left, random.Random(seed), [first])
        begin, total = time.monotonic(), sum(left.values())
        disturbed.run(seconds)
        subprocess.run(
            [*words, "corpus", "join", home / "job", "-o", home / "out", "--verify"],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        if (home / "out").read_bytes() != (home / "expected").read_bytes():
            raise SystemExit("the output differs")
        plan = Plan(home / "job")
        leases = [
            path for path in (home / "job" / "leases").rglob("*") if path.is_file() and path.suffix != ".released"
        ]
        again = len(leases) - plan.num_chunks
        if again > disturbed.disturbances:
            raise SystemExit(f"{again} chunks were done again after {disturbed.disturbances} disturbances")
        return (
            f"{lines:,} lines, {plan.num_chunks} chunks: {disturbed.disturbances} of {total} disturbances, {again} "
            f"chunks done again, output identical; {time.monotonic() - begin:.0f} s, undisturbed {alone:.0f} s alone"
        )


def main() -> None:
    """Run the soak test described by the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--lines", type=int, default=300_000)
    parser.add_argument("--chunk-lines", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--terms", type=int, default=10)
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    left = {"kill": given.kills, "term": given.terms, "stop": given.stops}
    print(
        soak(
            given.model,
            given.source,
            lines=given.lines,
            chunk_lines=given.chunk_lines,
            seconds=given.seconds,
            left=left,
            seed=given.seed,
        )
    )


if __name__ == "__main__":
    main()
