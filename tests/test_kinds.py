"""Tables of kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.bundle import BUNDLE_TYPES
from headway.errors import ConfigError
from headway.kinds import Kinds
from headway.models.registry import ARCHITECTURES
from headway.tasks import TASKS


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headway.kinds]\nbroken = broken_kinds\n")
    script = "from headway.kinds import Kinds; print('x' in Kinds('model.kind', {}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "ConfigError: the package broken registers kinds of models, but broken_kinds cannot be" in done.stderr


def test_each_task_has_bundles_of_its_capability() -> None:
    assert {kind: task.bundle_type for kind, task in TASKS.items()} == dict(BUNDLE_TYPES)
    for task in TASKS.values():
        assert task.recipe_type.capability == task.bundle_type.capability
        default = ARCHITECTURES[task.recipe_type.default_model]
        assert default.capability == task.recipe_type.capability


def test_a_kind_is_registered_only_once() -> None:
    table = Kinds("model.kind", {"a": 1})
    table.register("b", 2)
    table.register("b", 2)
    with pytest.raises(ConfigError, match=r"model\.kind = 'b' is already registered"):
        table.register("b", 3)
    assert dict(table) == {"a": 1, "b": 2}
    assert (list(table), table.get("b"), table.get("c", 5), "c" in table) == (["a", "b"], 2, 5, False)
    with pytest.raises(KeyError):
        table["c"]
