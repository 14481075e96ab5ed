"""Send random requests at the limits of all APIs to a service, and measure the effect on another client.

    python benchmarks/random_requests.py MODEL_FOLDER... [--count 2000] [--seed 1]

The bodies are generated from schemas: from the OpenAPI description for the native API, and from the table below for the
other APIs. Their values are the largest, deepest and strangest values that the limits allow, and values slightly beyond
the limits. One key sends the requests over four connections, while another key repeatedly translates a short sentence,
and a third connection requests /health every 50 ms. The report contains the statuses, the longest block of the
service's event loop, the waiting times of /health, the other key's median and 99th percentile (idle and during the
requests), the number of replaced workers, and the memory before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

_KEYS = {"alpha": "a" * 32, "beta": "b" * 32}
_BEARER = {name: {"Authorization": f"Bearer {key}"} for name, key in _KEYS.items()}
_PIECES = (
    "Ein Hund läuft. ", "x z ", "。「", "\n", "<b>a</b>", "<li>a", "[MASK] ", "{0} %s ", "| a | b |\n", "𝕏", "a", "w1 ",
    "&amp;", "**", "`", "http://a.b/c?d ", "\u0301", "e\u0301", "ﬁ", "\u202e", "日本", "ab" * 50, "1,000.5 km ", "😀",
)  # fmt: skip
_NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 8, 31, 32, 50, 64, 100, 127, 128, 129, 200, 240, 1000, 1024, 90_000, 100_000, 10**9)
_OPTIONS: dict[str, Any] = {
    "beam_size": (1, 4, 32, 64, 128), "n_best": (1, 2, 8, 128), "length_penalty": (0.0, 0.3, 0.61, 1.0, 2.7),
    "min_length": (0, 5, 150, 90_000), "max_length": (None, 1, 240, 100_000), "coverage_penalty": (0.0, 0.2),
    "groups": (1, 2, 4), "no_repeat_ngram": (0, 1, 3, 1000), "repetition_penalty": (1.0, 1.5), "stopping": ("first",),
    "sampling": ({"temperature": 5.0}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.9}),
    "max_new_tokens": (1, 64, 100_000), "n": (1, 2, 128), "temperature": (0, 1.0, 5.0), "seed": (0, 1, 2**62),
}  # fmt: skip
_STRING, _STRINGS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
_TEXTS = {"anyOf": [_STRING, _STRINGS]}
_COUNT, _FLAG, _CODE = {"type": "integer"}, {"type": "boolean"}, {"enum": ["en", "de", "auto", "xx", "EN-US"]}
_MESSAGE = {"type": "object", "properties": {"role": {"enum": ["user", "system"]}, "content": _STRING}}
_MESSAGES = {"type": "array", "items": _MESSAGE}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


# The path, the schema of the body, and how the key is sent (by default as a Bearer token).
_OTHER_APIS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/translate", _object(q=_TEXTS, source=_CODE, target=_CODE, format={"enum": ["text", "html"]},
                           alternatives=_COUNT)),
    ("/detect", _object(q=_TEXTS)),
    ("/v2/translate", _object(text=_STRINGS, source_lang=_CODE, target_lang=_CODE, split_sentences={"enum": ["0", "1"]},
                              tag_handling={"enum": ["html", "xml"]}, ignore_tags=_STRINGS, context=_STRING)),
    ("/v2/glossaries", _object(name=_STRING, source_lang=_CODE, target_lang=_CODE, entries=_STRING,
                               entries_format={"enum": ["tsv", "csv"]})),
    ("/deeplx/translate", _object(text=_STRING, source_lang=_CODE, target_lang=_CODE)),
    ("/language/translate/v2", _object(q=_TEXTS, source=_CODE, target=_CODE, format={"enum": ["text", "html"]})),
    ("/language/translate/v2/detect", _object(q=_TEXTS)),
    ("/v3/projects/p:translateText", _object(contents=_STRINGS, sourceLanguageCode=_CODE, targetLanguageCode=_CODE,
                                             mimeType={"enum": ["text/plain", "text/html"]})),
    ("/azure/translate?api-version=3.0&to=de&to=en", {"type": "array", "items": _object(Text=_STRING)}),
    ("/azure/detect?api-version=3.0", {"type": "array", "items": _object(Text=_STRING)}),
    ("/v1/completions", _object(model=_STRING, prompt=_TEXTS, n=_COUNT, best_of=_COUNT, max_tokens=_COUNT,
                                stop=_STRINGS, echo=_FLAG, logprobs=_COUNT, stream=_FLAG)),
    ("/v1/chat/completions", _object(n=_COUNT, max_tokens=_COUNT, stream=_FLAG, messages=_MESSAGES)),
    ("/models/{model}", _object(inputs=_TEXTS, parameters=_object(max_new_tokens=_COUNT, num_beams=_COUNT, top_k=_COUNT,
                                                                src_lang=_CODE, tgt_lang=_CODE, do_sample=_FLAG))),
    ("/v2/models/{model}/infer", _object(inputs={"type": "array", "items": _object(
        name={"enum": ["text", "source"]}, shape={"type": "array", "items": _COUNT}, datatype={"enum": ["BYTES"]},
        data=_STRINGS)}, parameters=_object(source=_CODE, target=_CODE))),
)  # fmt: skip


class _Generator:
    """Generates random values for JSON schemas."""

    def __init__(self, seed: int, definitions: dict[str, Any], models: list[str]) -> None:
        self._random, self._definitions, self._models = random.Random(seed), definitions, models

    def text(self) -> str:
        """Return a text that repeats one or two fragments: short, long, or beyond the limits."""
        length = self._random.choice((0, 1, 5, 20, 60, 60, 200, 1000, 2000, 10_000, 50_000, 100_000, 110_000))
        pieces = self._random.choices(_PIECES, k=self._random.choice((1, 1, 2, 5)))
        return ("".join(pieces) * (length // max(1, len("".join(pieces))) + 1))[:length]

    def value(self, schema: dict[str, Any], name: str = "") -> Any:
        """Return a value that nearly always matches the schema."""
        choice, rand = self._random.choice, self._random.random
        if "$ref" in schema:
            return self.value(self._definitions[schema["$ref"].rpartition("/")[2]], name)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.value(choice(schema[several]), name)
        if "enum" in schema or "const" in schema:
            return choice(schema.get("enum") or [schema["const"]])
        match schema.get("type"):
            case "string":
                if name in ("source", "target", "language") and rand() < 0.9:
                    return choice(("en", "de", "auto", "xx"))
                return choice(self._models) if name == "model" else self.text()
            case "integer" | "number":
                return choice(_NUMBERS)
            case "boolean":
                return rand() < 0.5
            case "array":
                count = choice((0, 1, 1, 2, 3, 20, 60, 200, 256, 1024, 2000))
                item = self.value(schema.get("items", _STRING))
                size = max(1, len(json.dumps(item)))
                other = self.value(schema.get("items", _STRING)) if count < 100 else item
                return [item if index % 2 else other for index in range(min(count, 3_000_000 // size))]
            case "object":
                fields, required = schema.get("properties", {}), schema.get("required", ())
                return {
                    key: self.value(field, key) for key, field in fields.items() if key in required or rand() < 0.35
                }
            case "null":
                return None
        return self.text()

    def options(self) -> dict[str, Any]:
        """Return a few search or generation options."""
        names = self._random.sample(sorted(_OPTIONS), self._random.choice((0, 0, 1, 2, 3)))
        return {name: self._random.choice(_OPTIONS[name]) for name in names}

    def request(self, routes: list[tuple[str, str, dict[str, Any]]]) -> tuple[str, str, Any]:
        """Return the method, the path and the body of a request."""
        method, path, schema = self._random.choice(routes)
        body = self.value(schema) if schema else None
        if isinstance(body, dict) and "options" in body:
            body["options"] = self.options()
        return method, re.sub(r"\{\w+\}", self._random.choice(self._models), path), body


def _routes(description: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the routes of the native API, from its description, and the routes of the other APIs."""
    routes = [("POST", path, schema) for path, schema in _OTHER_APIS]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            content = route.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                routes += [(method.upper(), path, content["application/json"]["schema"])] * 2
            elif not content:
                routes.append((method.upper(), path, {}))
    return routes


def _memory(pid: int) -> float:
    """Return the memory of a process and its children in megabytes, without shared memory."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_"):
            total += int(line.split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return total / 1024 + sum(_memory(int(child)) for child in children)


async def _probe(http: httpx.AsyncClient, waits: list[float], call: Any, pause_s: float) -> None:
    while True:
        started = time.perf_counter()
        try:
            reply = await call(http)
            if reply.status_code == 200:
                waits.append(time.perf_counter() - started)
            else:
                waits.append(float("inf"))
        except httpx.HTTPError:
            waits.append(float("inf"))
        await asyncio.sleep(pause_s)


async def _measure(url: str, pid: int, count: int, seed: int, connections: int) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        health, beta = list[float](), list[float]()
        sentence = {"text": "Two dogs run across the grass.", "source": "en", "target": "de"}

        def ask_for_health(http: httpx.AsyncClient) -> Any:
            return http.get("/health")

        def translate(http: httpx.AsyncClient) -> Any:
            return http.post("/api/v1/translate", json=sentence, headers=_BEARER["beta"])

        probes = [
            asyncio.ensure_future(_probe(http, health, ask_for_health, 0.05)),
            asyncio.ensure_future(_probe(http, beta, translate, 0.02)),
        ]
        await asyncio.sleep(10)
        idle = {"health": list(health), "beta": list(beta)}
        memory = _memory(pid)
        health.clear()
        beta.clear()
        description = (await http.get("/api/v1/openapi.json", headers=_BEARER["alpha"])).json()
        names = [model["name"] for model in (await http.get("/api/v1/models", headers=_BEARER["alpha"])).json()]
        generator = _Generator(seed, description["components"]["schemas"], names)
        routes, statuses = _routes(description), collections.Counter[str]()
        slow, failed = list[tuple[float, str]](), list[str]()
        remaining = iter(range(count))

        async def attack() -> None:
            for _ in remaining:
                method, path, body = generator.request(routes)
                content = None if body is None else json.dumps(body).encode("utf-8", "surrogatepass")
                headers = {**_BEARER["alpha"], "Content-Type": "application/json"}
                if "/v2/" in path and "models" not in path:
                    headers["Authorization"] = f"DeepL-Auth-Key {_KEYS['alpha']}"
                if "azure" in path:
                    headers["Ocp-Apim-Subscription-Key"] = _KEYS["alpha"]
                if isinstance(body, dict) and path in ("/translate", "/detect"):
                    content = json.dumps({**body, "api_key": _KEYS["alpha"]}).encode("utf-8", "surrogatepass")
                started = time.perf_counter()
                try:
                    reply = await http.request(method, path, content=content, headers=headers)
                    statuses[str(reply.status_code)] += 1
                    if reply.status_code >= 500:
                        failed.append(f"{reply.status_code} {method} {path} {str(body)[:300]}: {reply.text[:200]}")
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                    failed.append(f"{type(error).__name__} {method} {path} {str(body)[:300]}")
                slow.append((time.perf_counter() - started, f"{method} {path} {str(body)[:200]}"))

        await asyncio.gather(*(attack() for _ in range(connections)))
        metrics = (await http.get("/metrics", headers=_BEARER["alpha"])).text
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await asyncio.sleep(10)

        def metric(name: str) -> float:
            match = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
            return float(match[1]) if match else float("nan")

        def times(waits: list[float]) -> dict[str, float]:
            good = sorted(waits) or [float("nan")]
            return {
                "median_ms": round(1000 * statistics.median(good), 1),
                "p99_ms": round(1000 * good[int(0.99 * (len(good) - 1))], 1),
                "longest_ms": round(1000 * good[-1], 1),
                "count": len(waits),
            }

        return {
            "statuses": dict(statuses),
            "failed": failed[:40],
            "slowest": sorted(slow, reverse=True)[:10],
            "loop_stop_ms": round(1000 * metric("headway_loop_stop_seconds"), 1),
            "restarts": metric("headway_worker_restarts_total"),
            "health": {"idle": times(idle["health"]), "beside": times(health)},
            "beta": {"idle": times(idle["beta"]), "beside": times(beta)},
            "memory_mb": {"before": round(memory), "after": round(_memory(pid))},
        }


def main() -> None:
    """Start a service, send the requests and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = ["port = 0", "workers = 2"]
        for number, model in enumerate(arguments.models):
            name = "model" if not number else f"model{number}"
            lines += ["[[models]]", f"path = {json.dumps(str(model.absolute()))}", f'name = "{name}"']
        for name, key in _KEYS.items():
            lines += ["[[keys]]", f'name = "{name}"', f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"']
        Path(folder, "serve.toml").write_text("\n".join(lines))
        command = [sys.executable, "-m", "headway", "serve", "--config", str(Path(folder, "serve.toml"))]
        log = Path(folder, "log")
        with log.open("w") as output:
            service = subprocess.Popen(command, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            while not (address := re.search(r"serving .* on (http://\S+)", log.read_text())):
                assert service.poll() is None, log.read_text()
                time.sleep(0.1)
            url, count = address[1], arguments.count
            report = asyncio.run(_measure(url, service.pid, count, arguments.seed, arguments.connections))
            print(json.dumps(report, indent=1, ensure_ascii=False))
            lines = [line for line in log.read_text().splitlines() if not line.startswith("{")]
            print("\n".join(lines[-60:]))
        finally:
            service.terminate()
            service.wait()


if __name__ == "__main__":
    main()
