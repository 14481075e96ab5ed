"""Measure ``headway serve``: throughput, added latency, overload, and memory over many requests.

    python benchmarks/serving.py --output benchmarks/results/serving-DATE.json       # everything
    python benchmarks/serving.py --parts throughput --rounds 5
    python benchmarks/serving.py --parts latency,soak --model runs/quickstart-en-de/best --texts FILE

Without ``--model``, a model of the paper's base size with 32,000 tokens and random weights translates sentences of
random words, whose lengths are distributed as in a normal corpus. Each translation has 20 tokens, because a random
model never generates EOS. The load generator runs on the same machine, over the loopback interface, so its time reduces
the measured speed of the service.

Parts:

- throughput: 64 clients that each send one sentence after the other. The service is compared with ``headway translate``
  with the same sentences as a file (excluding its start and end), and with two replicas of FastAPI and CTranslate2
  int8, which translate each request separately or the requests of 10 ms together. The contestants take turns, round
  after round; a ratio is the median over the rounds. Processor time is also measured, because it depends less on other
  load on the machine.
- latency: one client with one sentence at a time, compared with ``Translator.translate`` in a separate process with one
  thread, in turn. The figures are computed over all starts.
- overload: requests at random times, at 0.8 times the capacity and then at 4 times. The capacity is the throughput for
  64 clients. The peaks of the memory are compared.
- start: time from the command to the first 200 of ``/ready``, with warm caches.
- memory: proportional set size (PSS) of all processes with one worker and with two, after 500 sentences.
- ray: throughput and latency of two Ray replicas with one worker each, compared with the service with two workers, in
  turn. This is not measured by default and needs the extra ``ray``.
- soak: the growth of the processes' memory during the second half of many requests, and the same with an artificial
  leak of 1 kB per request.
"""

import asyncio
import gc
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import typer
from http_load import Connection, Reply, closed_loop, open_loop, percentile, post_request

from headway.hardware import processor_name
from headway.serve.config import LimitsConfig

HERE = Path(__file__).resolve().parent
BEAM, TARGET_LENGTH, CLIENTS, VOCABULARY = 4, 20, 64, 32_000
SEED = 1
QUEUE_SECONDS = LimitsConfig().queue_seconds  # of the overload


class Measured:
    """The served model and the requests."""

    def __init__(self, folder: Path, source: str, target: str, texts: Sequence[str], max_length: int | None) -> None:
        self.folder, self.source, self.target, self.texts = folder, source, target, texts
        self.options: dict[str, Any] = {"beam_size": BEAM} | ({"max_length": max_length} if max_length else {})
        self.max_length = max_length

    def body(self, text: str) -> dict[str, Any]:
        """Return the body of a request."""
        return {"text": text, "source": self.source, "target": self.target, "options": self.options}


def random_model(folder: Path) -> Measured:
    """Create a base model with random weights, its export for CTranslate2, and sentences of random words."""
    from decoding import make_model

    from headway.models.transformer import TransformerConfig

    make_model(folder, TransformerConfig.preset("base"), VOCABULARY)
    draw = random.Random(SEED)
    lengths = [min(60, max(3, round(draw.lognormvariate(2.7, 0.5)))) for _ in range(20_000)]  # median of 15 words
    texts = [" ".join(f"w{draw.randrange(VOCABULARY - 10)}" for _ in range(length)) for length in lengths]
    return Measured(folder, "source", "target", texts, TARGET_LENGTH)


_LEAKING = """
import sys
from headway.cli import main
from headway.serve.service import Service
kept, call = [], Service.call
async def leaking_call(*arguments, **keywords):
    kept.append(bytearray(1000))
    return await call(*arguments, **keywords)
Service.call = leaking_call
sys.exit(main())
"""


@contextmanager
def service(
    folder: Path, *arguments: str, queue_seconds: float = 600.0, leaks: bool = False
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the service, and yield its process and port."""
    environment = os.environ | {"HEADWAY_LIMITS__QUEUE_SECONDS": str(queue_seconds)}
    program = ["-c", _LEAKING] if leaks else ["-m", "headway"]
    command = [sys.executable, *program, "serve", str(folder), "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            port = 0
            for line in process.stderr:
                if "headway: serving" in line:
                    port = int(line.split("http://")[1].split()[0].rpartition(":")[2])
                    break
            if not port:
                raise SystemExit("the service did not start; its messages are above")
            drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            yield process, port
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            drain.wait()
        finally:
            process.kill()


@contextmanager
def ray_service(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run two Ray replicas, and yield the process that started them and the port."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        config = Path(temporary) / "serve.toml"
        config.write_text(f"limits.queue_seconds = 600\n[[models]]\npath = '{folder.absolute()}'\n", encoding="utf-8")
        command = [sys.executable, str(HERE / "ray_service.py"), str(config), str(port), temporary]
        environment = os.environ | {"HOME": temporary, "RAY_USAGE_STATS_ENABLED": "0"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise SystemExit("Ray did not start; its messages are above")
                yield process, port
            finally:
                process.terminate()
                process.wait(60)


@contextmanager
def peer(folder: Path, window_ms: float | None) -> Iterator[list[int]]:
    """Run two replicas of the peer, and yield their ports."""
    port = free_port()
    settings = json.dumps({"beam": BEAM, "max_length": TARGET_LENGTH, "window_ms": window_ms})
    command = [sys.executable, str(HERE / "serving_peers.py"), str(folder), str(port), settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, start_new_session=True, env=environment) as process:
        try:
            for one in (port, port + 1):
                wait_for_port(one)
            yield [port, port + 1]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """Return a free port whose successor is probably also free."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Wait until a process listens on the port."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nothing listens on port {port}")


def texts_per_second(ports: Sequence[int], path: str, bodies: Sequence[Any]) -> float:
    """Return the number of texts that the services translate per second, with a total of :data:`CLIENTS` clients."""

    async def run() -> float:
        shares = [bodies[at :: len(ports)] for at in range(len(ports))]
        start = time.perf_counter()
        found = await asyncio.gather(
            *(closed_loop(port, path, own, CLIENTS // len(ports)) for port, own in zip(ports, shares, strict=True))
        )
        seconds = time.perf_counter() - start
        for replies, _ in found:
            refuse_failures(replies)
        return len(bodies) / seconds

    return asyncio.run(run())


def refuse_failures(replies: Sequence[Reply]) -> None:
    """Stop if a request failed, because the time of failed requests is meaningless."""
    failed = next((reply for reply in replies if reply.status != 200), None)
    if failed is not None:
        raise SystemExit(f"status {failed.status}: {failed.body[:300]!r}")


def file_seconds(measured: Measured, texts: Sequence[str]) -> tuple[float, float]:
    """Return the time of ``headway translate`` with texts as a file, and the processor time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts"
        path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        command = [sys.executable, "-m", "headway", "translate", str(measured.folder), "-i", str(path)]
        command += ["-o", str(path) + ".out", "--precision", "int8", "--workers", str(os.cpu_count() or 1)]
        command += ["--beam-size", str(BEAM)]
        command += ["--max-length", str(measured.max_length)] if measured.max_length else []
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return time.perf_counter() - start, used


def measure_throughput(measured: Measured, rounds: int, count: int) -> dict[str, Any]:
    """Return the texts per second of all contestants, and ratios."""
    found: dict[str, list[float]] = {"service": [], "file": [], "file with its start": []}
    texts = list(measured.texts[:count])
    count = len(texts)
    ours = [measured.body(text) for text in texts]
    theirs = [{"q": text} for text in texts]
    processor: dict[str, list[float]] = {"service": [], "load generator": [], "file": []}  # ms for each text
    has_peer = (measured.folder / "ct2").is_dir()
    for _ in range(rounds):
        with service(measured.folder) as (process, port):
            texts_per_second([port], "/api/v1/translate", ours[:CLIENTS])
            before, own = processor_seconds(process.pid), time.process_time()
            found["service"].append(texts_per_second([port], "/api/v1/translate", ours))
            processor["load generator"].append(1e3 * (time.process_time() - own) / count)
            processor["service"].append(1e3 * (processor_seconds(process.pid) - before) / count)
        (start, start_used), (whole, used) = file_seconds(measured, texts[:2]), file_seconds(measured, texts)
        found["file"].append(count / (whole - start))
        processor["file"].append(1e3 * (used - start_used) / count)
        found["file with its start"].append(count / whole)
        for name, window_ms in (("CTranslate2", None), ("CTranslate2, 10 ms", 10.0)) if has_peer else ():
            with peer(measured.folder, window_ms) as ports:
                texts_per_second(ports, "/translate", theirs[:CLIENTS])
                found.setdefault(name, []).append(texts_per_second(ports, "/translate", theirs))
        print({name: round(values[-1], 1) for name, values in found.items()}, flush=True)
    ratios = {
        f"service / {name}": statistics.median(
            ours / theirs for ours, theirs in zip(found["service"], values, strict=True)
        )
        for name, values in found.items()
        if name != "service"
    }
    print(ratios, processor, flush=True)
    return {"texts per second": found, "ratios": ratios, "processor ms per text": processor, "texts": count}


_WARM_UP = 20  # sentences
_IN_PROCESS = """
import json, sys, time
from headway.decode import DecodingOptions
from headway.predict import load_translator
folder, options = sys.argv[1], json.loads(sys.argv[2])
translator, options = load_translator(folder, precision="int8"), DecodingOptions.parse(options, "options")
translator.warm_up()
print("ready", flush=True)
for line in sys.stdin:
    text = json.loads(line)
    start = time.perf_counter()
    translator.translate(text, options)
    print(time.perf_counter() - start, flush=True)
"""


def measure_latency(measured: Measured, rounds: int, count: int) -> dict[str, Any]:
    """Return the difference between the time of a request and the time of the same call in a process.

    Both processes are restarted in each round, because the speed of two processes differs by about one percent. Each
    round uses different sentences.
    """
    command = [sys.executable, "-c", _IN_PROCESS, str(measured.folder), json.dumps(measured.options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    served, inside, medians = list[float](), list[float](), list[float]()

    async def run(port: int, process: subprocess.Popen[str], texts: Sequence[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        connection = Connection("127.0.0.1", port)
        for number, text in enumerate(texts):
            reply = await connection.send(post_request("/api/v1/translate", measured.body(text)))
            refuse_failures([reply])
            print(json.dumps(text), file=process.stdin, flush=True)
            seconds = float(process.stdout.readline())
            if number >= _WARM_UP:
                served.append(reply.seconds)
                inside.append(seconds)
        connection.close()

    for number in range(rounds):
        texts = measured.texts[number * (count + _WARM_UP) :][: count + _WARM_UP]
        with (
            service(measured.folder) as (_, port),
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            ) as process,
        ):
            asyncio.run(run(port, process, texts))
            process.kill()
        added = [1e3 * (ours - theirs) for ours, theirs in zip(served, inside, strict=True)]
        medians.append(percentile(added[number * count :], 0.5))
    found = {
        "service p50 ms": 1e3 * percentile(served, 0.5),
        "in process p50 ms": 1e3 * percentile(inside, 0.5),
        "added p50 ms": percentile(added, 0.5),
        "added p50 ms of each start": medians,
        "added p99 ms": percentile(added, 0.99),
        "p99 - p99 ms": 1e3 * (percentile(served, 0.99) - percentile(inside, 0.99)),
        "texts": len(added),
    }
    print(found, flush=True)
    return found


def measure_ray(measured: Measured, rounds: int, count: int) -> dict[str, Any]:
    """Return the throughput of the service and of Ray, and the time of a request of a single client."""
    bodies = [measured.body(text) for text in measured.texts[:count]]
    found: dict[str, Any] = {}
    for _ in range(rounds):
        for name, start in (("headway serve", service), ("Ray", ray_service)):
            own = found.setdefault(name, {"texts per second": [], "p50 ms": [], "p99 ms": []})
            with start(measured.folder) as (_, port):
                texts_per_second([port], "/api/v1/translate", bodies[:CLIENTS])
                own["texts per second"].append(texts_per_second([port], "/api/v1/translate", bodies))
                replies, _ = asyncio.run(closed_loop(port, "/api/v1/translate", bodies[:200], 1))
                refuse_failures(replies)
                seconds = [reply.seconds for reply in replies]
                own["p50 ms"].append(1e3 * percentile(seconds, 0.5))
                own["p99 ms"].append(1e3 * percentile(seconds, 0.99))
        print(found, flush=True)
    return found


def measure_overload(measured: Measured, seconds: float) -> dict[str, Any]:
    """Return the measurements at 0.8 and at 4 times the capacity."""
    bodies = [measured.body(text) for text in measured.texts]

    def make(number: int) -> Any:
        return bodies[number % len(bodies)]

    with service(measured.folder, queue_seconds=QUEUE_SECONDS) as (process, port):
        texts_per_second([port], "/api/v1/translate", bodies[:500])
        capacity = texts_per_second([port], "/api/v1/translate", bodies[:1500])
        found: dict[str, Any] = {"capacity": capacity}

        async def load(rate: float) -> tuple[list[Reply], float, float]:
            peak = 0

            async def watch() -> None:
                nonlocal peak
                while True:
                    peak = max(peak, await asyncio.to_thread(memory_bytes, process.pid, "Private_Dirty"))
                    await asyncio.sleep(1)

            watching = asyncio.ensure_future(watch())
            replies, whole = await open_loop(port, "/api/v1/translate", make, rate=rate, seconds=seconds)
            watching.cancel()
            return replies, whole, peak / 1e6

        for name, share in (("0.8", 0.8), ("4", 4.0)):
            replies, whole, peak = asyncio.run(load(share * capacity))
            accepted = [reply.seconds for reply in replies if reply.status == 200]
            refused = [reply for reply in replies if reply.status == 429]
            found[name] = {
                "requests": len(replies),
                "accepted": len(accepted),
                "refused": len(refused),
                "other statuses": sorted({reply.status for reply in replies} - {200, 429}),
                "accepted p50 s": percentile(accepted, 0.5),
                "accepted p99 s": percentile(accepted, 0.99),
                "refused p50 s": percentile([reply.seconds for reply in refused], 0.5),
                "refused p99 s": percentile([reply.seconds for reply in refused], 0.99),
                "with Retry-After": sum("retry-after" in reply.headers for reply in refused),
                "goodput / capacity": len(accepted) / whole / capacity,
                "peak of the anonymous memory in MB": peak,
            }
            print(name, found[name], flush=True)
    return found


def with_descendants(pid: int) -> list[int]:
    """Return a process and its descendants."""
    listed = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(each for children in listed for child in children for each in with_descendants(int(child)))]


def memory_bytes(pid: int, kind: str) -> int:
    """Return the memory of a process and its descendants, of one kind in ``/proc/PID/smaps_rollup``."""
    total = 0
    for each in with_descendants(pid):
        text = Path(f"/proc/{each}/smaps_rollup").read_text(encoding="ascii")
        total += sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{kind}:"))
    return total


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its running descendants."""
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in with_descendants(pid)]
    return sum(int(own[11]) + int(own[12]) for own in fields) / os.sysconf("SC_CLK_TCK")


def measure_start(measured: Measured, rounds: int) -> dict[str, Any]:
    """Return the seconds from the command to the first 200 of /ready."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        with service(measured.folder) as (_, port):
            while not is_ready(port):
                time.sleep(0.005)
            seconds.append(time.perf_counter() - start)
    print("start", seconds, flush=True)
    return {"seconds": seconds, "median": statistics.median(seconds)}


def is_ready(port: int) -> bool:
    """Return whether /ready replies with status 200."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as reply:
            return bool(reply.status == 200)
    except HTTPError:
        return False


def measure_memory(measured: Measured) -> dict[str, Any]:
    """Return the PSS of the service with one worker and with two."""
    bodies, found = [measured.body(text) for text in measured.texts[:500]], dict[str, Any]()
    for workers in (1, 2):
        with service(measured.folder, "--workers", str(workers)) as (process, port):
            texts_per_second([port], "/api/v1/translate", bodies)
            found[f"{workers} workers, MB"] = memory_bytes(process.pid, "Pss") / 1e6
    found["2 workers / 1 worker"] = found["2 workers, MB"] / found["1 workers, MB"]
    print("memory", found, flush=True)
    return found


def measure_soak(measured: Measured, requests: int) -> dict[str, Any]:
    """Return the memory growth per 10,000 requests."""
    body = {**measured.body("w1"), "options": {"beam_size": 1, "max_length": 2}}
    found: dict[str, Any] = {"requests": requests}
    step = max(requests // 10, 1)
    for name, leaks in (("as it is", False), ("with the leak", True)):
        sizes = []
        with service(measured.folder, "--workers", "1", leaks=leaks) as (process, port):
            for _ in range(10):
                replies, _seconds = asyncio.run(closed_loop(port, "/api/v1/translate", [body] * step, 16))
                refuse_failures(replies)
                sizes.append(memory_bytes(process.pid, "Private_Dirty") / 1e6)
        # In the first half, caches and free lists are filled, and workers copy pages that they share with the loader.
        gained = (sizes[-1] - sizes[4]) / 5
        found[name] = {"MB after each tenth": sizes, "MB for 10,000 requests": gained / step * 10_000}
        print(name, found[name], flush=True)
    return found


def main(
    model: Annotated[Path | None, typer.Option(help="A trained model. Default: base with random weights.")] = None,
    source: Annotated[str, typer.Option(help="The model's source language.")] = "en",
    target: Annotated[str, typer.Option(help="The model's target language.")] = "de",
    texts: Annotated[Path | None, typer.Option(help="Sentences for the trained model, one per line.")] = None,
    parts: Annotated[str, typer.Option(help="Parts to measure.")] = "throughput,latency,start,memory,overload,soak",
    rounds: Annotated[
        int, typer.Option(help="Rounds of the throughput, and starts for the latency and the time to start.")
    ] = 3,
    count: Annotated[int, typer.Option(help="Number of sentences in each round.")] = 2000,
    seconds: Annotated[float, typer.Option(help="Duration in seconds of each load of the overload test.")] = 60.0,
    requests: Annotated[
        int, typer.Option(help="Number of requests of the soak test; the second half is measured.")
    ] = 200_000,
    output: Annotated[Path | None, typer.Option(help="JSON file to write the results to.")] = None,
) -> None:
    """Measure and print."""
    gc.freeze()
    with tempfile.TemporaryDirectory() as temporary:
        if model is None:
            measured = random_model(Path(temporary) / "model")
        else:
            lines = (texts.read_text(encoding="utf-8") if texts else "a b c\n").splitlines()
            measured = Measured(model, source, target, lines, None)
        results: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "model": "base, random weights" if model is None else str(model),
            "versions": {name: version(name) for name in ("torch", "ctranslate2", "fastapi", "uvicorn")},
        }
        measures = {
            "throughput": lambda: measure_throughput(measured, rounds, count),
            "latency": lambda: measure_latency(measured, rounds, 100),
            "start": lambda: measure_start(measured, rounds),
            "memory": lambda: measure_memory(measured),
            "overload": lambda: measure_overload(measured, seconds),
            "ray": lambda: measure_ray(measured, rounds, count),
            "soak": lambda: measure_soak(measured, requests),
        }
        for part in parts.split(","):
            results[part] = measures[part]()
    print(json.dumps(results, indent=2))
    if output is not None:
        output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
