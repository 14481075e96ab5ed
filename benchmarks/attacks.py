"""Attack ``headway serve`` with requests that cost far more than they seem to, and measure the effect on other users.

    python benchmarks/attacks.py --model runs/quickstart-en-de/best --output benchmarks/results/attacks-DATE.json
    python benchmarks/attacks.py --model MODEL --only phrases,documents --seconds 20

Each attack runs against a separate service with two workers, default limits and two keys. One other process computes
all the time. The measuring process sends ``GET /health`` every 50 ms, and short requests of the other key one after the
other. It first measures without the attack (*idle*). Then the attacker sends each request of the attack once, and then
100 requests per minute, whether or not earlier requests have been answered.

The service withstands an attack if ``/health`` never waits longer than 0.25 s, the other key's median is at most 2
times and its 99th percentile at most 4 times the idle value, the other key is never refused, no worker is killed, and
the memory of all processes returns to within 100 MB. The statuses and the longest time of the attacker's own requests
are reported.

On a small machine, the measuring process shares two cores with the service, its workers and the busy process, so a
single late reply from ``/health`` may be caused by the machine. The first row shows the machine's effect: its attack
consists of two more processes that compute, as both workers do during some attacks. ``--repeat`` runs each attack
several times and keeps the best run.
"""

import hashlib
import io
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer
from http_load import percentile
from serving import memory_bytes

from headway.hardware import processor_name

ATTACKER, OTHER = "the attacker's key", "the other key"
HEALTH_S, MEDIAN_TIMES, P99_TIMES, MEMORY_MB = 0.25, 2.0, 4.0, 100.0
PER_MINUTE = 100
SETTLE_S = 5.0
REPLY_S = 90.0  # longer than limits.request_seconds
DOCX_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'wordprocessingml.document.main+xml"/></Types>'
)
DOCX_RELATIONSHIPS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)


@dataclass(frozen=True)
class Attack:
    """The requests of an attacker.

    Attributes:
        name: Name of the attack.
        requests: The bytes of the requests, which are sent in turn.
        parallel: Number of requests that are sent at once.
        close_after: Time in seconds after which the attacker closes the connection. None means that it waits.
        keeps_sending: Whether ``parallel`` clients send one request after the other instead of 100 requests per minute.
        prepare: Sends preparatory requests to the given port, and returns more requests.
        processes: Number of additional processes that compute during the attack.
    """

    name: str
    requests: tuple[bytes, ...] = ()
    parallel: int = 1
    close_after: float | None = None
    keeps_sending: bool = False
    prepare: Callable[[int], tuple[bytes, ...]] | None = None
    processes: int = 0


def request_bytes(path: str, body: bytes, content_type: str, key: str | None = ATTACKER, method: str = "POST") -> bytes:
    """Return a request that closes its connection."""
    credentials = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n{credentials}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def json_request(path: str, value: Any, key: str | None = ATTACKER, method: str = "POST") -> bytes:
    """Return a request with a JSON body."""
    return request_bytes(path, json.dumps(value).encode(), "application/json", key, method)


def translation(key: str | None = ATTACKER, **fields: Any) -> bytes:
    """Return a request for a translation in the native API."""
    return json_request("/api/v1/translate", {"text": "a", "source": "en", "target": "de", **fields}, key)


def upload(path: str, name: str, content: bytes, key: str | None = ATTACKER, charset: str = "", **fields: str) -> bytes:
    """Return a multipart request with a file."""
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n' for field, value in fields.items()
    ]
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + content + b"\r\n--x--\r\n"
    return request_bytes(path, body, f"multipart/form-data; boundary=x{charset}", key)


def send(port: int, request: bytes, close_after: float | None = None) -> tuple[int, float, bytes]:
    """Send a request, and return the status (0 without a reply), the time in seconds and the start of the reply."""
    begin, received = time.perf_counter(), bytearray()
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=REPLY_S) as connection:
        connection.settimeout(close_after or REPLY_S)
        with suppress(OSError):  # the service may refuse the request before all of it is sent
            connection.sendall(request)
        while part := connection.recv(1 << 20):
            if len(received) < 1 << 16:
                received += part
    status = int(received[9:12]) if received[:5] == b"HTTP/" else 0
    return status, time.perf_counter() - begin, bytes(received)


def docx(body: str) -> bytes:
    """Return a Word document with the given content of its body."""
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("[Content_Types].xml", DOCX_TYPES)
        package.writestr("_rels/.rels", DOCX_RELATIONSHIPS)
        package.writestr("word/document.xml", f"<w:document {namespace}><w:body>{body}</w:body></w:document>")
    return file.getvalue()


def stored_glossary(port: int, entries: int, prefix: str = "") -> tuple[bytes, ...]:
    """Store a glossary, and return a streamed request of many texts that uses it."""
    rows = [[f"{prefix}word{number}", f"wort{number}"] for number in range(entries)]
    identifier = ""
    for start in range(0, entries, 80_000):
        part = rows[start : start + 80_000]
        if not identifier:
            dictionaries = [{"source": "en", "target": "de", "entries": part}]
            request = json_request("/api/v1/glossaries", {"name": "large", "dictionaries": dictionaries})
            status, _, reply = send(port, request)
            if status != 201:
                return (request,)
            identifier = json.loads(reply.partition(b"\r\n\r\n")[2])["id"]
        else:
            lines = "\n".join(f"{source}\t{target}" for source, target in part)
            dictionary = {"source_lang": "en", "target_lang": "de", "entries": lines, "entries_format": "tsv"}
            send(port, json_request(f"/v3/glossaries/{identifier}", {"dictionaries": [dictionary]}, method="PATCH"))
    return (translation(text=["a"] * 256, glossary=identifier, stream=True),)


def attacks() -> list[Attack]:
    """Return all attacks."""
    punycode = '--x\r\nContent-Disposition: form-data; name="q-"\r\n\r\ne28h' + "a" * 300_000 + "\r\n--x--\r\n"
    multipart = "multipart/form-data; boundary=x; charset=punycode"
    number = "1" + ",1" * 999_999
    tags = '{"text":"a","target":"de","markup":{"kind":"xml","ignore_tags":[' + number + "]}}"
    chat = '{"model":"x","messages":[{"role":"user","content":[' + number[:800_000].rstrip(",") + "]}]}"
    nested = b'{"q":"a","source":[' + b"[]," * 1_390_000 + b"[]]}"  # less than limits.body_bytes
    words = [f"wort {number} haus" for number in range(200)]
    paragraph = "<w:p>{}<w:r><w:t>a word</w:t></w:r></w:p>"
    field_begin = '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
    bookmark = '<w:bookmarkStart w:id="{}" w:name="b{}"/>'
    po = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n#, c-format\nmsgid "a %{} b"\nmsgstr ""\n'
    sampling = {"sampling": {"temperature": 5.0}, "n_best": 128, "min_length": 150, "max_length": 240}
    candidates: dict[str, Any] = {"text": "x9 " * 60, "alignment": True, "options": sampling}
    other_options = tuple(
        translation(text="a long sentence of many words", options={"beam_size": 128, "length_penalty": number / 100})
        for number in range(100)
    )
    long_text = translation(text="the house is red and " * 400, options={"beam_size": 16})
    return [
        Attack("no attack, two more busy processes", processes=2),
        Attack(
            "multipart in punycode",
            tuple(request_bytes(path, punycode.encode(), multipart, None) for path in ("/translate", "/v2/translate")),
        ),
        Attack(
            "lists of a million errors",
            (
                request_bytes("/api/v1/translate", tags.encode(), "application/json", None),
                request_bytes("/api/v1/translate", tags.encode(), "application/json"),
                request_bytes("/api/v1/jobs", tags.encode(), "application/json", None),
                request_bytes("/v1/chat/completions", chat.encode(), "application/json"),
            ),
        ),
        Attack("nested lists without a key", (request_bytes("/translate", nested, "application/json", None),)),
        Attack(
            "uploads without a key",
            (upload("/translate_file", "a.txt", b"a" * 15_000_000, None, source="en", target="de"),),
        ),
        Attack("many banned phrases", (translation(text=["a"] * 1000, ban=words),)),
        Attack(
            "long banned phrases",
            (
                translation(ban=["x z " * 20_000, "x z " * 10_000 + "y"]),
                translation(ban=["x z " * 80_000, "x z " * 40_000 + "y"]),
            ),
        ),
        Attack(
            "alternatives of phrases", (translation(include=[[f"w{i} {j}" for j in range(200)] for i in range(200)]),)
        ),
        Attack("long prefixes", (translation(text=["a"] * 20, prefix="x z " * 250_000),)),
        Attack("inline glossaries", (translation(glossary=[[f"s{i}", f"t{i}"] for i in range(150_000)]),)),
        Attack("very long translations", (translation(options={"min_length": 90_000, "max_length": 100_000}),)),
        Attack(
            "jobs with banned phrases",
            (json_request("/api/v1/jobs", {"text": ["a"] * 5000, "source": "en", "target": "de", "ban": words}),),
        ),
        Attack("canceled phrases", (translation(ban=["x z " * 60_000, "x z " * 30_000 + "y"]),), close_after=0.3),
        Attack(
            "sentences to split",
            (
                json_request("/api/v1/sentences", {"text": "。「" * 50_000, "language": "en"}),
                json_request("/api/v1/sentences", {"text": "\n" * 20_000, "language": "en"}),
            ),
        ),
        Attack("streams with a stored glossary", prepare=lambda port: stored_glossary(port, 400_000)),
        Attack(
            "glossaries that evict each other",
            prepare=lambda port: tuple(stored_glossary(port, 130_000, prefix)[0] for prefix in "abc"),
        ),
        Attack(
            "large bodies at the same time",
            (json_request("/api/v1/translate", {"text": ["a b " * 7] * 30_000, "target": "de"}),),
            parallel=8,
        ),
        Attack(
            "streams with an inline glossary",
            (
                translation(
                    text=["a"] * 256, stream=True, glossary=[[f"source{i}", f"target{i}"] for i in range(55_000)]
                ),
            ),
        ),
        Attack(
            "many candidates with alignment",
            (translation(**candidates), translation(**(candidates | {"text": ["x9 " * 6] * 60}))),
            parallel=2,
        ),
        Attack("other options in each request", other_options),
        Attack("other options, 100 clients that keep sending", other_options, parallel=100, keeps_sending=True),
        Attack(
            "documents",
            (
                upload("/api/v1/documents", "a.po", po.format("0" * 45_000).encode(), source="en", target="de"),
                upload(
                    "/api/v1/documents",
                    "a.html",
                    b"<meta " * 227 + b"charset=" + b" " * 2700 + b">",
                    source="en",
                    target="de",
                ),
                upload(
                    "/api/v1/documents",
                    "a.docx",
                    docx(paragraph.format(field_begin * 12_000)),
                    source="en",
                    target="de",
                ),
                upload(
                    "/api/v1/documents",
                    "b.docx",
                    docx(paragraph.format("".join(bookmark.format(i, i) for i in range(20_000)))),
                    source="en",
                    target="de",
                ),
                upload("/api/v1/documents", "a.json", b"[" + b'"a",' * 1_000_000 + b'"a"]', source="en", target="de"),
            ),
        ),
        Attack(
            "a request behind a canceled one",
            (long_text.replace(b"Connection: close\r\n", b"") + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",),
            close_after=0.3,
        ),
        Attack(
            "markup of an unknown language",
            (
                translation(text="<li>a" * 20_000, target="xx", markup="html"),
                translation(text="<li>a" * 20_000, source="auto", markup="html"),
            ),
        ),
    ]


@dataclass
class Probe:
    """The measurements of the measuring process.

    Attributes:
        health: Times of ``GET /health`` in seconds.
        other: Times of the other key's requests in seconds.
        statuses: Number of the other key's requests with each status.
    """

    health: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


def probe(port: int, channel: Connection) -> None:
    """Measure until something arrives on ``channel``, and then send a :class:`Probe`. Repeat until None arrives."""
    request = translation(OTHER, text="a short text")
    health = request_bytes("/health", b"", "text/plain", None, "GET")
    while channel.recv() is not None:
        seen, is_over = Probe(), threading.Event()

        def watch_health(seen: Probe = seen, is_over: threading.Event = is_over) -> None:
            while not is_over.is_set():
                seen.health.append(send(port, health)[1])
                is_over.wait(0.05)

        def send_requests(seen: Probe = seen, is_over: threading.Event = is_over) -> None:
            while not is_over.is_set():
                status, seconds, _ = send(port, request)
                seen.statuses[status] += 1
                seen.other.append(seconds)
                is_over.wait(0.02)

        threads = [threading.Thread(target=target) for target in (watch_health, send_requests)]
        for thread in threads:
            thread.start()
        channel.recv()
        is_over.set()
        for thread in threads:
            thread.join()
        channel.send(seen)


def compute() -> None:
    """Keep a core busy."""
    number = 0
    while True:
        number += 1


@contextmanager
def computing(num_processes: int) -> Iterator[None]:
    """Keep processes computing while the context is entered."""
    processes = [multiprocessing.Process(target=compute, daemon=True) for _ in range(num_processes)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.terminate()


class Service:
    """A service with two keys, and the process that measures it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, folder: Path) -> None:
        self.process, self._log, self.temporary = process, log, folder
        pattern = re.compile(r"serving .* on http://\S+:(\d+)")
        while not (match := pattern.search(log.read_text(encoding="utf-8"))):
            if process.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8"))
            time.sleep(0.1)
        self.port = int(match[1])
        self._channel, other_end = multiprocessing.Pipe()
        self._prober = multiprocessing.Process(target=probe, args=(self.port, other_end), daemon=True)
        self._prober.start()

    @contextmanager
    def measured(self) -> Iterator[Probe]:
        """Measure while the context is entered. The returned object is filled in at its end."""
        seen = Probe()
        self._channel.send("start")
        yield seen
        self._channel.send("end")
        result: Probe = self._channel.recv()
        seen.health, seen.other, seen.statuses = result.health, result.other, result.statuses

    def memory_mb(self) -> float:
        """Return the anonymous memory of all processes in megabytes."""
        return memory_bytes(self.process.pid, "Private_Dirty") / 1e6

    def killed_workers(self) -> int:
        """Return how many workers were killed or ended."""
        log = self._log.read_text(encoding="utf-8")
        lines = re.findall(r".*(?:is killed|ended unexpectedly|restarted).*", log)
        if lines:
            print(*lines, sep="\n", file=sys.stderr)
        return len(lines)

    def close(self) -> None:
        """End the measuring process."""
        self._channel.send(None)
        self._prober.join()


@contextmanager
def service(model: Path) -> Iterator[Service]:
    """Run a service."""
    with tempfile.TemporaryDirectory(prefix="attacks") as name:
        folder = Path(name)
        keys = "".join(
            f"[[keys]]\nname = '{title}'\nsha256 = '{hashlib.sha256(key.encode()).hexdigest()}'\n"
            for title, key in (("attacker", ATTACKER), ("other", OTHER))
        )
        (folder / "serve.toml").write_text(
            f"port = 0\nworkers = 2\n[[models]]\npath = '{model.absolute()}'\n{keys}", encoding="utf-8"
        )
        (folder / "temporary").mkdir()
        environment = os.environ | {"TMPDIR": str(folder / "temporary")}
        command = [sys.executable, "-m", "headway", "serve", "--config", str(folder / "serve.toml")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
        try:
            running = Service(process, folder / "log", folder / "temporary")
            yield running
            running.close()
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


@dataclass
class Outcome:
    """The effects of an attack. Times are in seconds."""

    attack: str
    health_longest: float
    idle_health_longest: float
    median_times: float
    p99_times: float
    idle_median: float
    other_statuses: dict[int, int]
    killed_workers: int
    memory_mb: float
    attacker_statuses: dict[int, int]
    attacker_longest: float
    temporary_files: int

    @property
    def failures(self) -> list[str]:
        """The requirements that were not met."""
        bars = {
            "/health": self.health_longest <= HEALTH_S,
            "median": self.median_times <= MEDIAN_TIMES,
            "p99": self.p99_times <= P99_TIMES,
            "refused": set(self.other_statuses) <= {200},
            "killed": self.killed_workers == 0,
            "memory": self.memory_mb <= MEMORY_MB,
            "5xx": not any(status in (0, 500, 502, 503) for status in self.attacker_statuses),
        }
        return [name for name, holds in bars.items() if not holds]


def run(attack: Attack, model: Path, seconds: float) -> Outcome:
    """Attack a service."""
    statuses, longest, threads = Counter[int](), [0.0], list[threading.Thread]()
    with service(model) as target:
        requests = attack.requests + (attack.prepare(target.port) if attack.prepare else ())
        for _ in range(50):
            send(target.port, translation(OTHER, text="a short text"))
        with target.measured() as idle:
            time.sleep(max(8.0, seconds / 2))
        memory, killed = target.memory_mb(), target.killed_workers()

        def once(request: bytes) -> None:
            status, elapsed, _ = send(target.port, request, attack.close_after)
            if attack.close_after is None or status:
                statuses[status] += 1
            longest[0] = max(longest[0], elapsed)

        def begin(request: bytes) -> None:
            thread = threading.Thread(target=once, args=(request,))
            thread.start()
            threads.append(thread)

        def keep_sending(share: Sequence[bytes], end: float) -> None:
            while time.monotonic() < end:
                for request in share:
                    once(request)

        with target.measured() as seen, computing(attack.processes):
            if not requests:
                time.sleep(seconds)
            elif attack.keeps_sending:
                end = time.monotonic() + seconds
                for client in range(attack.parallel):
                    share = requests[client :: attack.parallel]
                    threads.append(threading.Thread(target=keep_sending, args=(share, end)))
                    threads[-1].start()
            else:
                for request in requests:
                    for _ in range(attack.parallel):
                        begin(request)
                for number in range(int(seconds * PER_MINUTE / 60)):
                    time.sleep(60 / PER_MINUTE)
                    begin(requests[number % len(requests)])
            for thread in threads:
                thread.join()
        time.sleep(SETTLE_S)
        return Outcome(
            attack=attack.name,
            health_longest=max(seen.health),
            idle_health_longest=max(idle.health),
            median_times=percentile(seen.other, 0.5) / percentile(idle.other, 0.5),
            p99_times=percentile(seen.other, 0.99) / percentile(idle.other, 0.99),
            idle_median=percentile(idle.other, 0.5),
            other_statuses=dict(seen.statuses),
            killed_workers=target.killed_workers() - killed,
            memory_mb=target.memory_mb() - memory,
            attacker_statuses=dict(statuses),
            attacker_longest=longest[0],
            temporary_files=sum(path.is_file() for path in target.temporary.rglob("*")),
        )


def main(
    model: Annotated[Path, typer.Option(help="A trained model from English into German.")],
    only: Annotated[
        str, typer.Option(help="Attacks whose names contain one of these words, separated by commas.")
    ] = "",
    seconds: Annotated[float, typer.Option(help="Time of the attack at 100 requests a minute.")] = 20.0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each attack that fails.")] = 1,
    output: Annotated[Path | None, typer.Option(help="JSON file to write the results to.")] = None,
) -> None:
    """Run the attacks, and print the failed requirements."""
    results = []
    with computing(1):
        for attack in attacks():
            if only and not any(word in attack.name for word in only.split(",")):
                continue
            outcomes: list[Outcome] = []
            while not outcomes or (outcomes[-1].failures and len(outcomes) < repeat):
                outcomes.append(run(attack, model, seconds))
            outcome = min(outcomes, key=lambda outcome: len(outcome.failures))
            result = asdict(outcome) | {"fails": outcome.failures, "runs": len(outcomes)}
            results.append(result)
            print(json.dumps(result), flush=True)
    if output is not None:
        head = {"date": datetime.now(UTC).date().isoformat(), "processor": processor_name(), "cores": os.cpu_count()}
        output.write_text(json.dumps(head | {"seconds": seconds, "attacks": results}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
