"""Leases of named work items, for work whose results are not stored in a job folder."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.data.store import fingerprint
from headway.jobs.files import LocalFiles
from headway.jobs.owner import Owner
from headway.jobs.protocol import CHUNKS_PER_FOLDER, ChunkProtocol, Lease, Timing, lease_name, newest_generations
from headway.jobs.renewal import keep_renewed

_FOLDER = "0000"


class NamedLeases:
    """The leases of work items that processes on any number of machines share.

    Args:
        folder: A folder shared by all processes. Leases are stored in a subfolder that depends on ``names``.
        names: Names of the work items, at most 1,000. All processes must pass the same list.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        assert len(names) <= CHUNKS_PER_FOLDER
        self._numbers = {name: number for number, name in enumerate(names)}
        self._files = LocalFiles(folder / f"leases-{fingerprint(list(names))[:8]}")  # numbers are valid for one list
        clocks: Any = {"monotonic": time.monotonic, "sleep": time.sleep}
        owner = Owner.this_process()
        self._protocol = ChunkProtocol(self._files, owner, len(names), Timing(), in_order=True, **clocks)

    def owners(self) -> dict[str, Owner]:
        """Return the owner of each work item that is taken.

        Items whose last lease was released, or whose owner has died on this machine, are not included.
        """
        owners, newest = dict[str, Owner](), newest_generations(self._files, _FOLDER)
        for name, number in self._numbers.items():
            generation, is_released = newest.get(number, (0, True))
            content = b"" if is_released else self._files.read(lease_name(number, generation)) or b""
            if content.endswith(b"\n"):
                owners[name] = Owner.from_dict(json.loads(content.partition(b" ")[2]))
        return {name: owner for name, owner in owners.items() if not owner.has_died()}

    def take(self, name: str) -> Lease | None:
        """Take a work item, or return None if another process has it."""
        number = self._numbers[name]
        generation, is_released = newest_generations(self._files, _FOLDER).get(number, (-1, True))
        lease = lease_name(number, generation)
        content = None if is_released else self._files.read(lease)
        if content is not None and not self._protocol.has_expired(lease, content):
            return None
        return self._protocol.take(number, generation + 1)

    @contextmanager
    def hold(self, lease: Lease) -> Iterator[None]:
        """Renew a lease until the end of the block, then release it. If it is lost, interrupt the main thread."""
        try:
            with keep_renewed(self._protocol, lease, on_loss=lambda: signal.raise_signal(signal.SIGINT)):
                yield
        finally:
            self._protocol.release(lease)
