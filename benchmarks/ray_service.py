"""Serve models with two Ray replicas on this machine until SIGTERM. Arguments: serve.toml, a port and a folder."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from ray import serve

from headway.serve.ray import app


def stop(*_: Any) -> None:
    """End the program."""
    raise SystemExit


if __name__ == "__main__":
    config, port, folder = sys.argv[1:]
    # Ray lowers the priority of its workers, so they can hardly start on a busy machine.
    settings: dict[str, Any] = {
        "_temp_dir": folder,
        "_node_ip_address": "127.0.0.1",
        "_system_config": {"worker_niceness": 0},
    }
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False, **settings)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        serve.run(app({"config": config, "replicas": "2"}), name="headway")
        print("ready", flush=True)
        signal.signal(signal.SIGTERM, stop)
        signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()
