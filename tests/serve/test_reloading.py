"""A running service takes over new models, keys and limits, and loses no request; its cache repeats translations."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from running_service import RunningService, running, unpack_model, wait_until
from settling import settle

from headway.bundle import Bundle
from headway.predict import load_translator
from headway.serve.cache import ResultCache
from headway.serve.config import ModelConfig, ServeConfig
from headway.serve.run import _Reloader
from headway.serve.workers.model_pool import ModelPool

if TYPE_CHECKING:
    from headway.serve.service import Service

BODY = {"q": "Ein Hund läuft.", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that translate differently."""
    folder = tmp_path_factory.mktemp("models")
    model = unpack_model(folder)
    bundle = Bundle.load(model)
    for weight in bundle.model.parameters():
        weight.data.neg_()
    bundle.save(folder / "other", "A test.")
    return model, folder / "other"


class Configured:
    """A configuration file in a folder with the model that it names."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.path = folder, folder / "serve.toml"
        shutil.copytree(model, folder / "current")
        self.write("")

    def write(self, rest: str) -> None:
        """Replace the file: ``rest`` follows the model."""
        self.path.write_text(f'workers = 1\n{rest}\n[[models]]\npath = "current"\nprecision = "float32"\n')

    def replace_model(self, model: Path) -> None:
        """Put another model into the place of the present one."""
        shutil.rmtree(self.folder / "current")
        shutil.copytree(model, self.folder / "current")


@pytest.fixture
def configured(tmp_path: Path, models: tuple[Path, Path]) -> Configured:
    return Configured(tmp_path, models[0])


@pytest.fixture
def service(configured: Configured) -> Iterator[RunningService]:
    with running(["--config", str(configured.path)]) as found:
        yield found


@pytest.mark.slow
def test_models_are_replaced_without_losing_a_request(
    service: RunningService, configured: Configured, models: tuple[Path, Path]
) -> None:
    old, new = (load_translator(folder, precision="float32").translate(BODY["q"]).text for folder in models)
    assert old != new
    replies: list[Any] = []
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as http:
            while not over.is_set():
                reply = http.post(f"{service.url}/translate", json=BODY)
                replies.append((reply.status_code, reply.json()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(replies) > 5)
        configured.replace_model(models[1])
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(replies) and replies[-1] == (200, {"translatedText": new}))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    first = next(at for at, reply in enumerate(replies) if reply[1] == {"translatedText": new})
    assert set(map(str, replies[:first])) == {str((200, {"translatedText": old}))}
    assert all(reply in ((200, {"translatedText": old}), (200, {"translatedText": new})) for reply in replies)
    assert replies[-3:] == [(200, {"translatedText": new})] * 3
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 1)  # the loader of the old models has ended


class _FakePool:
    """The models of a configuration. They are ready when the test says so."""

    def __init__(self, config: ServeConfig, log: list[str]) -> None:
        self.models = {model.path: None for model in config.models}
        self._log, self.may_start = log, asyncio.Event()

    async def start(self) -> None:
        self._log.append(f"loading {', '.join(self.models)}")
        await self.may_start.wait()

    async def drain(self) -> None:
        pass


class _FakeService:
    def __init__(self, config: ServeConfig, log: list[str]) -> None:
        self.config, self.pool, self._log = config, _FakePool(config, log), log

    def replace_models(self, config: ServeConfig, pool: _FakePool) -> None:
        self.config, self.pool = config, pool
        self._log.append(f"serving {', '.join(pool.models)}")


def test_signals_during_a_reload_or_the_start_make_one_more_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    pools: list[_FakePool] = []
    current = "start"

    def config() -> ServeConfig:
        return ServeConfig(models=(ModelConfig(path=current),))

    def make_pool(config: ServeConfig, _: int) -> _FakePool:
        if current == "broken":
            raise RuntimeError
        pools.append(_FakePool(config, log))
        return pools[-1]

    async def steps() -> None:
        nonlocal current
        reloader = _Reloader(1, None, config)
        current = "one"
        reloader.request()  # while the service starts
        serving = asyncio.ensure_future(reloader.serve_requests(cast("Service", _FakeService(config(), log))))
        await settle()
        for name in ("two", "three"):
            current = name
            reloader.request()
            await settle()
        assert log == ["loading one"]
        pools[0].may_start.set()
        await settle()
        assert log == ["loading one", "serving one", "loading three"]
        pools[1].may_start.set()
        await settle()
        assert log[3:] == ["serving three"]
        current = "broken"
        reloader.request()
        await settle()
        current = "mended"  # a defect does not end the reloading
        reloader.request()
        await settle()
        assert log[4:] == ["loading mended"]
        serving.cancel()

    monkeypatch.setattr(ModelPool, "from_config", make_pool)
    asyncio.run(steps())


@pytest.mark.slow
def test_a_signal_during_a_reload_is_not_lost(service: RunningService, configured: Configured) -> None:
    for name in ("two", "three"):
        configured.path.write_text(
            f'workers = 1\n[[models]]\npath = "current"\nname = "{name}"\nprecision = "float32"\n'
        )
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("reloading the models" in line for line in service.log))
    wait_until(lambda: httpx.get(f"{service.url}/v1/models").json()["data"][0]["id"] == "three")
    assert service.stop() == 0


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_replaces_nothing(service: RunningService, configured: Configured) -> None:
    before = httpx.post(f"{service.url}/translate", json=BODY).json()
    (configured.folder / "current" / "config.json").write_text("{")
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any("the models were not reloaded" in line for line in service.log))
    assert httpx.post(f"{service.url}/translate", json=BODY).json() == before
    assert httpx.get(f"{service.url}/ready").json() == {"status": "ready"}


@pytest.mark.slow
def test_keys_and_limits_follow_the_file(service: RunningService, configured: Configured) -> None:
    assert httpx.post(f"{service.url}/translate", json=BODY).status_code == 200
    key = f'{{ name = "one", sha256 = "{sha256(b"k1").hexdigest()}" }}'
    configured.write(f"keys = [{key}]\nlimits = {{ characters = 20 }}")
    wait_until(lambda: httpx.post(f"{service.url}/translate", json=BODY).status_code == 403)
    assert httpx.post(f"{service.url}/translate", json=BODY | {"api_key": "k1"}).status_code == 200
    too_long = BODY | {"api_key": "k1", "q": "x" * 21}
    assert httpx.post(f"{service.url}/translate", json=too_long).status_code == 413
    configured.write("keys = 5")
    wait_until(lambda: any("the keys and limits were not reloaded" in line for line in service.log))
    assert httpx.post(f"{service.url}/translate", json=BODY).status_code == 403


@pytest.mark.slow
def test_the_cache_answers_what_it_knows(configured: Configured) -> None:
    configured.write("limits = { cache_mb = 1 }")
    with running(["--config", str(configured.path)]) as service:
        first, second = (httpx.post(f"{service.url}/translate", json=BODY).json() for _ in range(2))
        assert first == second
        other = httpx.post(f"{service.url}/translate", json=BODY | {"alternatives": 2}).json()
        assert len(other["alternatives"]) == 2
        mixed = httpx.post(f"{service.url}/translate", json=BODY | {"q": ["Hallo", BODY["q"]]}).json()
        assert mixed["translatedText"][1] == first["translatedText"]
        metrics = httpx.get(f"{service.url}/metrics").text
        assert "headway_cache_hits_total 2.0" in metrics


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    cache = ResultCache(200)
    keys = dict(zip("abcd", cache.keys("abcd", "model", {"beam_size": 4}), strict=True))
    assert len(set(keys.values())) == 4
    assert cache.keys("a", "model", {"beam_size": 5})[0] != keys["a"]
    for name in "abc":
        cache.put(keys[name], name * 50)
    assert cache.get(keys["a"]) == "a" * 50
    cache.put(keys["d"], "d" * 50)
    assert {name: cache.get(key) is not None for name, key in keys.items()} == {
        "a": True,
        "b": False,
        "c": True,
        "d": True,
    }
    cache.put(b"big", "x" * 500)
    assert cache.get(b"big") is None
    assert 0 < cache.num_bytes <= 200
    none = ResultCache(0)
    (key,) = none.keys("a")
    none.put(key, "a")
    assert none.get(key) is None
