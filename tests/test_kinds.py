"""Tables of kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from headway import kinds
from headway.bundle import BUNDLE_TYPES
from headway.errors import ConfigError
from headway.kinds import KindRegistry
from headway.models.registry import ARCHITECTURES
from headway.tasks import TASKS


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headway.kinds]\nbroken = broken_kinds\n")
    script = (
        "from headway.kinds import KindRegistry\nfrom headway.errors import ConfigError\n"
        "from headway.tasks import parse_recipe\n"
        "recipe = {'data': {'train': [{'files': ['a', 'b']}]}, 'model': {'kind': 'transformer'}}\n"
        "print(parse_recipe(recipe, 'a recipe of a known kind').model.kind)\n"
        "for _ in range(2):\n    try: 'x' in KindRegistry('model.kind', {})\n"
        "    except ConfigError as error: print(error)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "transformer",
        *["the package broken registers model kinds, but broken_kinds cannot be imported "
          "(ModuleNotFoundError: No module named 'broken_kinds'); repair or uninstall it"] * 2,
    ]  # fmt: skip


def test_a_thread_waits_for_kinds_that_another_one_is_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    table: KindRegistry[int] = KindRegistry("model.kind", {})
    begun, may_go_on = Event(), Event()

    def load() -> None:
        begun.set()
        assert may_go_on.wait(60)
        table.register("x", 1)

    monkeypatch.setattr(kinds, "_modules", lambda: (SimpleNamespace(value="slow", name="slow", dist=None, load=load),))
    monkeypatch.setattr(kinds, "_begun", set())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: table["x"])
        assert begun.wait(60)
        second = threads.submit(lambda: table["x"])
        assert not wait([second], timeout=0.05).done
        may_go_on.set()
        assert (first.result(60), second.result(60)) == (1, 1)


def test_each_task_has_bundles_of_its_capability() -> None:
    assert {kind: task.bundle_type for kind, task in TASKS.items()} == dict(BUNDLE_TYPES)
    for task in TASKS.values():
        assert task.recipe_type.capability == task.bundle_type.capability
        default = ARCHITECTURES[task.recipe_type.default_model]
        assert default.capability == task.recipe_type.capability


def test_a_kind_is_registered_only_once() -> None:
    table = KindRegistry("model.kind", {"a": 1}, type)
    table.register("b", 2)
    table.register("b", 2)
    with pytest.raises(ConfigError, match=r"model\.kind = 'b' is already registered"):
        table.register("b", 3)
    assert dict(table) == {"a": 1, "b": 2}
    assert (list(table), table.get("b"), table.get("c", 5), "c" in table) == (["a", "b"], 2, 5, False)
    with pytest.raises(KeyError):
        table["c"]


def test_a_cell_of_a_notebook_may_run_again() -> None:
    """The class of the second run replaces that of the first one. Another module's class of the same name does not."""
    table: KindRegistry[type] = KindRegistry("model.kind", {})
    classes = []
    for module in ("__main__", "__main__", "elsewhere"):
        names: dict[str, Any] = {"__name__": module}
        exec("class Own: pass", names)
        classes.append(names["Own"])
    for own in classes[:2]:
        table.register("own", own)
        assert table["own"] is own
    with pytest.raises(ConfigError, match="already registered"):
        table.register("own", classes[2])
    assert table["own"] is classes[1]
