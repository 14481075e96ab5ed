"""On a machine with a GPU, the service starts, computes on the CPU, says so once, and never initializes CUDA."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from running_service import running, unpack_model, wait_until
from torch import nn

from headway.bundle import read_config
from headway.serve.model_info import ModelSpec
from headway.serve.workers.loader import _load

# Python imports this module at its start if the module is on the path.
WITH_GPU = """
import sys
if any("headway" in word for word in sys.orig_argv):
    import torch
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    def initialize():
        raise SystemExit("Traceback: CUDA is initialized")
    torch.cuda._lazy_init = initialize
"""


@pytest.mark.parametrize("kind", ["make_translator", "make_classifier", "make_language_model"])
def test_the_loader_puts_every_model_on_the_cpu(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Callable[..., Any] = request.getfixturevalue(kind)
    make().bundle.save(tmp_path / "model", "# A model\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asks for a GPU"))
    monkeypatch.setattr(nn.Module, "to", lambda *_: pytest.fail("moves the model"))
    monkeypatch.setattr("headway.hardware.keep_freed_memory", lambda: None)
    model = _load(ModelSpec("name", str(tmp_path / "model"), {"precision": "float32"}))
    assert model.device == torch.device("cpu")


@pytest.mark.slow
def test_the_service_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITH_GPU)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    model = unpack_model(tmp_path)
    said = "headway: the service computes on the CPU; the GPU of this machine is not used\n"
    task = read_config(model).task
    languages = task.source_language, task.target_language
    with running([str(model), "--workers", "1"]) as service:
        wait_until(lambda: said in service.log)
        body = json.dumps({"q": "a b", "source": languages[0], "target": languages[1]}).encode()
        request = urllib.request.Request(f"{service.url}/translate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("serving" in line and "now" in line for line in service.log))
        service.stop()
        assert service.log.count(said) == 1, "also when the models are loaded again"
