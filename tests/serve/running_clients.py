"""Programs of other authors that call a service: they are installed from their registries, and run on their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KEY, WRONG_KEY = "0123456789abcdef", "wrong"


def limited_key(name: str) -> str:
    """Return the key of a client that may send one request a minute."""
    return f"limited-{name}"


def write_config(path: Path, model_folder: Path, clients: Sequence[str] = ()) -> None:
    """Write a configuration with the key ``KEY``, and a limited one for each client."""
    keys = ", ".join(
        f'{{ name = "{key}", sha256 = "{sha256(key.encode()).hexdigest()}"{limit} }}'
        for key, limit in ((KEY, ""), *((limited_key(name), ", requests_per_minute = 1") for name in clients))
    )
    path.write_text(f"models = [{{ path = '{model_folder}' }}]\nworkers = 1\nkeys = [{keys}]\n")


def install(*command: str) -> None:
    """Run an installation, without which the test is skipped."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} cannot install the clients: {done.stderr[-200:]}")


def install_python(folder: Path, *packages: str) -> None:
    """Install packages of Python in a folder of their own."""
    install(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *packages)


def install_node(folder: Path, *packages: str) -> None:
    """Install packages of Node.js in a folder of their own."""
    install("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages)


def call(*command: str, **environment: str) -> Any:
    """Return what a program prints as JSON."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def call_python(script: str, folder: Path, *arguments: str) -> Any:
    """Return what a script in this folder prints as JSON, with the packages that are installed in ``folder``."""
    return call(sys.executable, str(HERE / script), *arguments, PYTHONPATH=str(folder))
