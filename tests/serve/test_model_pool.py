"""Models that are loaded on demand: once for all that wait, within the budget, and without harm to the others."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import RunningService, running, unpack_model, wait_until
from settling import settle

from headway.errors import BundleError, ConfigError
from headway.predict import load_translator
from headway.serve.errors import ModelNotReadyError, UnavailableError
from headway.serve.model_info import ModelInfo, ModelSpec
from headway.serve.workers.model_pool import ModelPool
from headway.serve.workers.process_fleet import ProcessFleet

MB = 1_000_000
SIZES = {"stays": 10, "a": 20, "b": 30, "c": 40, "huge": 500, "broken": 1}


class ImaginedFleet(ProcessFleet):
    """Processes that a test imagines: a load takes until ``finish`` is set."""

    started: list[str]
    finish: asyncio.Event

    def __init__(self, models: Sequence[ModelSpec], *, workers: int, on_loss: Callable[[], None], **_: Any) -> None:
        super().__init__([], workers=workers, on_loss=on_loss)
        self.specs = list(models)
        self.lose = on_loss

    async def start(self) -> None:
        loaded = [spec for spec in self.specs if not spec.on_demand]
        self.models = {spec.name: ModelInfo(spec.name, "translation", "translates") for spec in self.specs}
        if [spec.name for spec in loaded] != ["stays"]:
            self.started.append("+".join(spec.name for spec in loaded))
            await self.finish.wait()
        if any(spec.name == "broken" for spec in loaded):
            raise BundleError("/srv/secret/broken: damaged")
        self.num_bytes = {spec.name: SIZES[spec.name] * MB for spec in loaded}

    async def close(self) -> None:
        await asyncio.sleep(0)


class ImaginedPool(ModelPool):
    """A pool of imagined processes."""

    _fleet_type = ImaginedFleet


@pytest.fixture
def check() -> Callable[..., None]:
    """Return a function that runs a test with a started pool."""

    def run(test: Callable[[ModelPool], Awaitable[None]], memory_mb: float = 80.0, wait_s: float = 60.0) -> None:
        async def inside() -> None:
            ImaginedFleet.started, ImaginedFleet.finish = [], asyncio.Event()
            ImaginedFleet.finish.set()
            specs = [ModelSpec(name, "", on_demand=name != "stays") for name in SIZES]
            pool = ImaginedPool(specs, workers=1, memory_mb=memory_mb, wait_s=wait_s)
            await pool.start()
            await test(pool)
            await pool.close()

        asyncio.run(inside())

    return run


async def use(pool: ModelPool, *names: str) -> None:
    async with pool.using(*names) as fleet:
        assert set(names) <= fleet.num_bytes.keys() | {"stays"}
    await settle()  # what follows the use of a model


def warm(pool: ModelPool) -> set[str]:
    return {name for name in SIZES if pool.state(name) == "warm"}


def test_the_least_recently_used_model_makes_room(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        await use(pool, "a")
        await use(pool, "b")
        await use(pool, "a")
        assert warm(pool) == {"stays", "a", "b"}  # 60 of 80 MB
        await use(pool, "c")  # 40 more: b goes
        assert warm(pool) == {"stays", "a", "c"}
        assert pool.num_bytes == 70 * MB
        await use(pool, "b")  # 30 more: a goes, and 80 are exactly the budget
        assert warm(pool) == {"stays", "b", "c"}
        assert (pool.num_loads, pool.num_unloads, pool.num_failed_loads, pool.num_loaded) == (4, 2, 0, 3)

    check(test)


def test_sizes_are_known_after_the_first_load(check: Callable[..., None]) -> None:
    """Before it, a model of the test seems to need nothing. The budget is exceeded until a model is idle."""

    async def test(pool: ModelPool) -> None:
        async with pool.using("a"):
            async with pool.using("b"), pool.using("c"):
                assert pool.num_bytes == 100 * MB
            await settle()
            assert warm(pool) == {"stays", "a", "b"} or warm(pool) == {"stays", "a", "c"}

    check(test)


def test_requests_wait_for_one_load(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        ImaginedFleet.finish.clear()
        tasks = [asyncio.ensure_future(use(pool, "a")) for _ in range(5)]
        await settle()
        assert pool.state("a") == "loading"
        await use(pool, "stays")  # does not wait
        for task in tasks[:4]:
            task.cancel()
        await settle()
        ImaginedFleet.finish.set()
        await tasks[4]
        assert [task.cancelled() for task in tasks] == [True] * 4 + [False]
        assert ImaginedFleet.started == ["a"]

    check(test)


def test_a_load_goes_on_when_nobody_waits(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        ImaginedFleet.finish.clear()
        task = asyncio.ensure_future(use(pool, "a"))
        await settle()
        task.cancel()
        await settle()
        ImaginedFleet.finish.set()
        await settle()
        assert pool.state("a") == "warm"

    check(test)


def test_models_with_running_requests_stay(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        for name in "abc":  # so that their sizes are known
            await use(pool, name)
        async with pool.using("b"), pool.using("c"):  # 80 of 80 MB
            waiting = asyncio.ensure_future(use(pool, "a"))
            await settle()
            assert (warm(pool), pool.state("a")) == ({"stays", "b", "c"}, "loading")
        await waiting
        assert "a" in warm(pool)
        assert pool.num_bytes <= 80 * MB

    check(test)


def test_a_load_that_fails_is_told_to_all_and_not_repeated_at_once(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        found = await asyncio.gather(*(use(pool, "broken") for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in found] == ["The model broken cannot be loaded"] * 3
        with pytest.raises(ModelNotReadyError) as refused:
            await use(pool, "broken")
        assert 1 <= refused.value.retry_after <= 10
        assert (ImaginedFleet.started, pool.num_failed_loads, pool.state("broken")) == (["broken"], 1, "cold")
        await use(pool, "a")

    check(test)


def test_a_model_that_is_larger_than_the_budget_is_refused(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        with pytest.raises(ModelNotReadyError, match=r"huge cannot be loaded: it needs 500 MB, but .* leaves 70 MB"):
            await use(pool, "huge")
        assert warm(pool) == {"stays"}

    check(test)


def test_a_wait_is_bounded(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        ImaginedFleet.finish.clear()
        with pytest.raises(ModelNotReadyError):
            await use(pool, "a")

    check(test, wait_s=0.02)


def test_a_model_whose_loader_has_ended_is_loaded_again(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        async with pool.using("a") as fleet:
            assert isinstance(fleet, ImaginedFleet)
            fleet.lose()
            await settle()
        assert pool.state("a") == "cold"
        await use(pool, "a")
        assert ImaginedFleet.started == ["a", "a"]

    check(test)


def test_two_models_at_once_are_loaded_into_the_same_processes(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        await use(pool, "a", "stays")
        await use(pool, "a")
        await use(pool, "b", "a")
        await use(pool, "b")  # by the processes that have both
        assert ImaginedFleet.started == ["a", "a+b"]

    check(test)


def test_names_of_earlier_models_are_refused(check: Callable[..., None]) -> None:
    async def test(pool: ModelPool) -> None:
        with pytest.raises(UnavailableError):
            await use(pool, "earlier")

    check(test)


def test_models_that_stay_must_fit(check: Callable[..., None]) -> None:
    async def test(_: ModelPool) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="at the start need 10 MB"):
        check(test, memory_mb=9.0)


# With real processes.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configured")


@pytest.fixture(scope="module")
def service(model: Path, folder: Path) -> Iterator[RunningService]:
    shutil.copytree(model, folder / "lost")
    models = [(model, "stays", "start"), (model, "a", "demand"), ("lost", "lost", "demand")]
    path = folder / "serve.toml"
    path.write_text(
        "workers = 1\n"
        + "".join(f"[[models]]\npath = '{each}'\nname = '{name}'\nload = '{load}'\n" for each, name, load in models)
    )
    with running(["--config", str(path)]) as found:
        (folder / "lost" / "model.safetensors").rename(folder / "weights")
        yield found


def ask(service: RunningService, model: str) -> httpx.Response:
    body = {"text": "Ein Hund läuft.", "source": "en", "target": "de", "model": model}
    return httpx.post(f"{service.url}/api/v1/translate", json=body, timeout=60)


def states(service: RunningService) -> dict[str, Any]:
    return {each["name"]: each["state"] for each in httpx.get(f"{service.url}/api/v1/models").json()}


@pytest.mark.slow
def test_a_running_service_loads_models_on_demand(service: RunningService, model: Path) -> None:
    assert states(service) == {"stays": "warm", "a": "cold", "lost": "cold"}
    expected = load_translator(model, precision="int8").translate("Ein Hund läuft.").text
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda name: ask(service, name), ["a", "a", "stays", "a"]))
    assert [reply.json()["translations"][0]["text"] for reply in replies] == [expected] * 4
    models = {each["name"]: each for each in httpx.get(f"{service.url}/api/v1/models").json()}
    assert [models[name]["load"] for name in ("stays", "a")] == ["start", "demand"]
    assert (models["a"]["state"], models["lost"]["memory_bytes"]) == ("warm", None)
    assert models["a"]["memory_bytes"] >= (model / "model.safetensors").stat().st_size
    metrics = httpx.get(f"{service.url}/metrics").text
    assert "headway_model_loads_total 1.0" in metrics
    assert "headway_models_loaded 2.0" in metrics


def workers_of(service: RunningService) -> dict[int, list[int]]:
    """Return the workers of each loader."""

    def children(pid: int) -> list[int]:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    (first,) = children(service.process.pid)
    others = [pid for pid in children(first) if children(pid)]
    return {pid: children(pid) for pid in others}


@pytest.mark.slow
def test_a_worker_of_a_model_on_demand_is_replaced(service: RunningService) -> None:
    assert ask(service, "a").status_code == 200
    ((loader, (worker,)),) = workers_of(service).items()
    os.kill(worker, signal.SIGKILL)
    assert ask(service, "a").status_code == 200
    assert ask(service, "stays").status_code == 200
    wait_until(lambda: httpx.get(f"{service.url}/ready").json() == {"status": "ready"})
    assert workers_of(service)[loader] != [worker]


@pytest.mark.slow
def test_a_loader_of_a_model_on_demand_may_end(service: RunningService) -> None:
    assert ask(service, "a").status_code == 200
    ((loader, (worker,)),) = workers_of(service).items()
    os.kill(loader, signal.SIGKILL)
    wait_until(lambda: states(service)["a"] == "cold")
    wait_until(lambda: not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/cmdline").read_text())
    assert httpx.get(f"{service.url}/ready").json() == {"status": "ready"}
    assert ask(service, "a").status_code == 200


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_harms_no_other(service: RunningService) -> None:
    reply = ask(service, "lost")
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, "The model lost cannot be loaded")
    assert 1 <= int(reply.headers["retry-after"]) <= 10
    wait_until(lambda: any("cannot load the model lost" in line for line in service.log))
    assert ask(service, "stays").status_code == 200


@pytest.mark.slow
def test_new_models_are_cold(service: RunningService, folder: Path) -> None:
    (folder / "weights").rename(folder / "lost" / "model.safetensors")
    assert ask(service, "a").status_code == 200
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any(line.startswith("serving") for line in service.log))
    assert states(service) == {"stays": "warm", "a": "cold", "lost": "cold"}
    assert ask(service, "lost").status_code == 200
    assert service.stop() == 0
