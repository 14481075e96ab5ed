"""Jobs for bulk texts: what they cost, who sees them, and that requests do not wait for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import RunningService, running, unpack_model, wait_until
from settling import settle

from headway.errors import ConfigError
from headway.predict import Translator, load_translator
from headway.serve.admission import Admission
from headway.serve.bulk_jobs import BulkJob, BulkJobs
from headway.serve.config import LimitsConfig
from headway.serve.errors import JobNotDoneError, JobsFullError, UnknownJobError

LIMITS = LimitsConfig()


class Worker:
    """Work that takes place when the test says so. It records the texts in the order in which they are started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.may_go_on = asyncio.Event()
        self.num_canceled = 0

    async def __call__(self, texts: Sequence[str]) -> list[bytes]:
        self.started += texts
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.num_canceled += 1
            raise
        if any("poison" in text for text in texts):
            raise RuntimeError("poison")
        return [json.dumps(text.upper()).encode() for text in texts]


def check(test: Callable[[BulkJobs, Worker], Awaitable[None]], groups: int = 1) -> None:
    async def run() -> None:
        admission = Admission(slots=4, max_tokens=1000, max_seconds=4.0)
        await asyncio.wait_for(test(BulkJobs(admission, groups), Worker()), 60)

    asyncio.run(run())


async def until_ended(*jobs: BulkJob) -> None:
    while any(job.ended is None for job in jobs):
        await asyncio.sleep(0)


def long(name: str, number: int) -> str:
    """A text that is a group of its own."""
    return f"{name}{number} ".ljust(2000, "x")


def test_results_are_in_the_order_of_the_texts() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        texts = [f"text {number}" for number in range(300)]
        job = jobs.add("one", texts, worker, LIMITS)
        assert (job.status, job.num_done) == ("waiting", 0)
        with pytest.raises(JobNotDoneError, match="waiting"):
            job.results()
        while not worker.started:
            await asyncio.sleep(0)
        assert (job.status, jobs.num_unfinished) == ("running", 1)
        worker.may_go_on.set()
        await until_ended(job)
        assert job.status == "done"
        assert [json.loads(each) for each in job.results()] == [text.upper() for text in texts]
        assert jobs.num_unfinished == 0
        empty = jobs.add("one", [], worker, LIMITS)
        assert (empty.status, empty.results()) == ("done", [])

    check(test, groups=3)


def test_keys_share_the_workers_and_the_jobs_of_a_key_are_done_in_order() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        worker.may_go_on.set()
        added = [
            jobs.add(owner, [long(name, number) for number in range(3)], worker, LIMITS)
            for owner, name in (("one", "a"), ("one", "b"), ("two", "c"))
        ]
        await until_ended(*added)
        order = [text.split()[0] for text in worker.started]
        assert order == ["a0", "c0", "a1", "c1", "a2", "c2", "b0", "b1", "b2"]

    check(test)


def test_a_key_that_comes_later_has_no_claim_on_the_time_before() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        first = jobs.add("one", [long("a", number) for number in range(6)], worker, LIMITS)
        worker.may_go_on.set()
        while first.num_started < 3:
            await asyncio.sleep(0)
        second = jobs.add("two", [long("b", number) for number in range(3)], worker, LIMITS)
        await until_ended(first, second)
        names = "".join(text[0] for text in worker.started)
        assert names[:3] == "aaa"
        assert "bb" not in names[: names.rindex("a")]

    check(test)


def test_nothing_starts_while_requests_wait() -> None:
    async def run() -> None:
        admission, worker = Admission(slots=4, max_tokens=10_000, max_seconds=60.0), Worker()
        jobs = BulkJobs(admission, 1)
        async with admission.enter(5000, "someone", 0):
            job = jobs.add("one", ["text"], worker, LIMITS)
            await asyncio.sleep(0.15)
            assert worker.started == []
        worker.may_go_on.set()
        await asyncio.wait_for(until_ended(job), 60)

    asyncio.run(run())


def test_a_text_that_fails_fails_alone() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        worker.may_go_on.set()
        job = jobs.add("one", ["a", "poison", "b"], worker, LIMITS)
        await until_ended(job)
        assert [json.loads(each) for each in job.results()] == ["A", {"error": "This text could not be processed"}, "B"]

    check(test)


def test_texts_that_take_too_long_do_not_hold_up_other_jobs() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        slow = jobs.add("one", ["a", "b"], worker, LimitsConfig(request_seconds=0.005))
        await until_ended(slow)
        assert [json.loads(each) for each in slow.results()] == [{"error": "This text took too long"}] * 2
        worker.may_go_on.set()
        other = jobs.add("two", ["c"], worker, LIMITS)
        await until_ended(other)
        assert worker.num_canceled == 1

    check(test)


def test_an_error_that_concerns_all_texts_ends_the_job() -> None:
    async def test(jobs: BulkJobs, _: Worker) -> None:
        async def refuse(_: Sequence[str]) -> list[bytes]:
            raise ConfigError("beam_size: too large")

        job = jobs.add("one", ["a", "b"], refuse, LIMITS)
        await until_ended(job)
        assert (job.status, job.error) == ("failed", "beam_size: too large")
        with pytest.raises(JobNotDoneError, match="failed: beam_size"):
            job.results()

    check(test)


def test_a_job_belongs_to_its_key_and_removing_it_ends_its_work() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        job = jobs.add("one", [long("a", number) for number in range(5)], worker, LIMITS)
        while not worker.started:
            await asyncio.sleep(0)
        assert jobs.get("one", job.id) is job
        with pytest.raises(UnknownJobError):
            jobs.get("two", job.id)
        jobs.remove(job)
        with pytest.raises(UnknownJobError):
            jobs.get("one", job.id)
        other = jobs.add("one", ["b"], worker, LIMITS)
        worker.may_go_on.set()
        await until_ended(other)
        assert worker.num_canceled == 1
        assert len(worker.started) == 2
        assert other.status == "done"

    check(test)


def test_the_number_and_the_memory_of_a_keys_jobs_are_bounded() -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        limits = LimitsConfig(jobs=2, job_mb=0.01, job_seconds=5000)
        first = jobs.add("one", ["a"], worker, limits)
        with pytest.raises(JobsFullError):  # more than 10 kB
            jobs.add("one", ["x" * 10_000], worker, limits)
        worker.may_go_on.set()
        await until_ended(first)
        jobs.add("one", ["b"], worker, limits)
        with pytest.raises(JobsFullError) as full:
            jobs.add("one", ["c"], worker, limits)
        assert 4900 < full.value.retry_after <= 5000
        jobs.add("two", ["d"], worker, limits)  # another key has its own places
        jobs.remove(first)
        jobs.add("one", ["c"], worker, limits)

    check(test)


def test_a_job_whose_results_are_too_large_fails_and_others_stay() -> None:
    async def test(jobs: BulkJobs, _: Worker) -> None:
        async def work(texts: Sequence[str]) -> list[bytes]:
            return [b"x" * 3000 for _ in texts]

        limits = LimitsConfig(job_mb=0.01)
        first = jobs.add("one", ["a"], work, limits)
        other = jobs.add("two", ["a"], work, limits)
        await until_ended(first, other)
        second = jobs.add("one", [long("b", number) for number in range(3)], work, limits)
        await until_ended(second)
        assert (first.status, second.status, other.status) == ("done", "failed", "done")
        assert "0.01 MB" in str(second.error)
        assert jobs.num_bytes < 10_000

    check(test)


def test_a_job_expires_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(jobs: BulkJobs, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        time, skipped_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: time() + skipped_s)
        job = jobs.add("one", ["a"], worker, LimitsConfig(job_seconds=20))
        skipped_s = 25.0  # a job without an end does not expire
        await settle()
        assert jobs.get("one", job.id) is job
        worker.may_go_on.set()
        await until_ended(job)
        assert job.ended is not None
        assert jobs.get("one", job.id).expires == job.ended + 20
        await settle()
        assert jobs.get("one", job.id) is job
        skipped_s += 25.0
        await settle()
        with pytest.raises(UnknownJobError):
            jobs.get("one", job.id)

    check(test)


# A running service.

TEXTS = ["Ein Hund läuft.", "Zwei Männer. Und eine Frau!", "", "\N{WAVING HAND SIGN} Hallo", "a b c d e"]
BODY = {"source": "en", "target": "de"}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def translator(model_folder: Path) -> Translator:
    return load_translator(model_folder, precision="int8")


@pytest.fixture(scope="module")
def service(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    keys = [f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"' for name in ("one", "two")]
    keys[1] += "\ncharacters_per_month = 10"
    limits = "[limits]\ncharacters = 1000\ntexts = 10\njob_characters = 200_000\njobs = 3\nbody_bytes = 20_000"
    config.write_text("\n".join([f"workers = 1\n{limits}\n[[models]]\npath = '{model_folder}'", *keys]))
    with running(["--config", str(config)]) as found:
        yield found


@pytest.fixture
def http(service: RunningService) -> Iterator[httpx.Client]:
    headers = {"authorization": "Bearer one"}
    with httpx.Client(base_url=f"{service.url}/api/v1", headers=headers, timeout=60) as client:
        yield client


def finished(http: httpx.Client, job: Any) -> Any:
    """Wait until a job has ended and return it."""
    wait_until(lambda: http.get(f"/jobs/{job['id']}").json()["ended"] is not None)
    return http.get(f"/jobs/{job['id']}").json()


@pytest.mark.slow
def test_a_job_gives_what_requests_give(http: httpx.Client, translator: Translator) -> None:
    texts = [f"{text} {number}" if text else "" for number in range(40) for text in TEXTS]  # more than a request has
    body = BODY | {"text": texts, "options": {"n_best": 2}}
    assert http.post("/translate", json=body).status_code == 413
    created = http.post("/jobs", json=body)
    assert created.status_code == 201, created.text
    job = finished(http, created.json())
    assert (job["status"], job["num_texts"], job["num_done"], job["error"]) == ("done", 200, 200, None)
    assert job["created"] < job["ended"] < job["expires"]
    found = http.get(f"/jobs/{job['id']}/result").json()["translations"]
    requested = http.post("/translate", json=body | {"text": texts[:5]}).json()["translations"]
    for ours, theirs in zip(found[:5], requested, strict=True):
        assert ours.keys() == theirs.keys()
        assert (ours["source"], ours["tokens"]) == (theirs["source"], theirs["tokens"])
        assert ours["score"] == pytest.approx(theirs["score"])
        assert [each["text"] for each in ours["alternatives"]] == [each["text"] for each in theirs["alternatives"]]
    assert [each["text"] for each in found] == [each.text for each in translator.translate(texts)]
    other = {"authorization": "Bearer two"}
    for path in (f"/jobs/{job['id']}", f"/jobs/{job['id']}/result"):
        assert http.get(path, headers=other).status_code == 404
    assert http.delete(f"/jobs/{job['id']}", headers=other).status_code == 404
    assert http.delete(f"/jobs/{job['id']}").status_code == 204
    assert http.get(f"/jobs/{job['id']}").status_code == 404


def test_each_text_has_a_language_or_an_error_of_its_own(http: httpx.Client) -> None:
    body = {"text": ["The dog runs in the green garden.", "x" * 300 + "\ud800"], "target": "de"}
    job = finished(http, http.post("/jobs", content=json.dumps(body), headers=JSON).json())
    found = http.get(f"/jobs/{job['id']}/result").json()["translations"]
    assert found[0]["detected"]["code"] == "en"
    assert "error" in found[1]
    http.delete(f"/jobs/{job['id']}")


def test_a_job_that_no_one_could_do_is_refused(http: httpx.Client) -> None:
    for change, status in (
        ({"target": "zz"}, 400),
        ({"options": {"beam_size": 0}}, 400),
        ({"glossary": "none"}, 404),
        ({"text": ["x" * 1001]}, 413),
        ({"text": ["x" * 1000] * 201}, 413),
        ({"text": "not a list"}, 422),
        ({"stream": True}, 422),
    ):
        reply = http.post("/jobs", json=BODY | {"text": ["a"]} | change)
        assert reply.status_code == status, reply.text
        assert reply.json()["error"]["status"] == status


def test_the_quota_counts_a_job_when_it_is_created(http: httpx.Client) -> None:
    headers = {"authorization": "Bearer two"}
    created = http.post("/jobs", json=BODY | {"text": ["123456"]}, headers=headers)
    assert created.status_code == 201
    assert http.post("/jobs", json=BODY | {"text": ["12345"]}, headers=headers).status_code == 429
    assert http.post("/translate", json=BODY | {"text": "12345"}, headers=headers).status_code == 429
    assert http.post("/translate", json=BODY | {"text": "1234"}, headers=headers).status_code == 200


def test_requests_overtake_a_job_which_can_be_canceled(http: httpx.Client) -> None:
    text = "word " * 150
    created = [http.post("/jobs", json=BODY | {"text": [text] * 200}).json() for _ in range(3)]
    full = http.post("/jobs", json=BODY | {"text": ["a"]})
    assert (full.status_code, int(full.headers["retry-after"]) > 0) == (429, True)
    assert http.get(f"/jobs/{created[0]['id']}/result").status_code == 409
    for _ in range(5):
        reply = http.post("/translate", json=BODY | {"text": "Hallo"})
        assert reply.status_code == 200
    jobs = [http.get(f"/jobs/{job['id']}").json() for job in created]
    assert [job["status"] for job in jobs] != ["done"] * 3
    metrics = httpx.get(str(http.base_url).replace("/api/v1/", "/metrics")).text
    assert "headway_queue_tokens 0.0" in metrics
    assert "headway_jobs 0.0" not in metrics
    for job in created:
        assert http.delete(f"/jobs/{job['id']}").status_code == 204
    wait_until(lambda: "headway_batch_sequences 0.0" in httpx.get(str(http.base_url.join("/metrics"))).text)
