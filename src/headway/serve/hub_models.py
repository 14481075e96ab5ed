"""Models on the Hugging Face Hub, which are downloaded before the service starts or reloads its models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headway.errors import HubError
from headway.interop.hub.converted import find_converted
from headway.interop.hub.names import parse_model_source


def prepare_model_folder(source: str) -> Path:
    """Return the folder of a model. If it is on the Hub, another process downloads and converts it if necessary.

    The service process itself imports neither PyTorch nor the Hub client for this, and no request waits for it.

    Raises:
        HubError: The model cannot be downloaded or converted.
    """
    model = parse_model_source(source)
    if isinstance(model, Path):
        return model
    if (known := find_converted(model)) is None:
        command = [sys.executable, "-m", "headway", "import", str(model)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        known = find_converted(model)
        if known is None:
            message = (
                done.stderr.strip() or f"{model}: the import failed with exit code {done.returncode}"
            ).splitlines()[-1]
            raise HubError(message.removeprefix("headway: "))
    return known.folder


def needs_conversion(source: str) -> bool:
    """Return whether a model is on the Hub and has not been converted yet."""
    model = parse_model_source(source)
    return not isinstance(model, Path) and find_converted(model) is None
