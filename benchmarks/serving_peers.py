"""The services that Headway's service is compared with: FastAPI and CTranslate2, as users typically combine them.

    python benchmarks/serving_peers.py FOLDER PORT SETTINGS      # FOLDER has ct2/; SETTINGS are JSON

Each replica is a process with one thread. With ``window_ms``, the requests that arrive within this time are translated
as one batch; without it, each is translated on its own.
"""

import asyncio
import json
import sys
from multiprocessing import Process
from pathlib import Path
from typing import Any

import ctranslate2
import uvicorn
from fastapi import FastAPI, Request

from headway.bundle import Bundle
from headway.text.base import EOS


def make_app(folder: Path, beam: int, max_length: int, window_ms: float | None) -> FastAPI:
    """Return an application with its own model."""
    translator = ctranslate2.Translator(str(folder / "ct2"), compute_type="int8", inter_threads=1, intra_threads=1)
    tokenizer = Bundle.load(folder).source_tokenizer
    names = json.loads((folder / "ct2" / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = {name: index for index, name in enumerate(names)}
    app = FastAPI()
    waiting: asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]] = asyncio.Queue()

    def translate(batch: list[list[str]]) -> list[list[str]]:
        found = translator.translate_batch(
            batch,
            beam_size=beam,
            max_decoding_length=max_length,
            length_penalty=1.0,
            max_batch_size=64,
            disable_unk=True,
        )
        return [each.hypotheses[0] for each in found]

    async def collect() -> None:
        assert window_ms is not None
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(window_ms / 1000)
            while not waiting.empty():
                batch.append(waiting.get_nowait())
            found = await asyncio.to_thread(translate, [tokens for tokens, _ in batch])
            for (_, future), tokens in zip(batch, found, strict=True):
                future.set_result(tokens)

    @app.on_event("startup")
    async def start() -> None:
        if window_ms is not None:
            app.state.collecting = asyncio.ensure_future(collect())

    @app.post("/translate")
    async def answer(request: Request) -> dict[str, Any]:
        body = await request.json()
        source = [names[index] for index in (*tokenizer.encode(body["q"]), EOS)]
        if window_ms is None:
            (tokens,) = await asyncio.to_thread(translate, [source])
        else:
            future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            waiting.put_nowait((source, future))
            tokens = await future
        return {"translatedText": tokenizer.decode([ids[token] for token in tokens])}

    return app


def serve(folder: Path, port: int, settings: dict[str, Any]) -> None:
    """Serve one replica."""
    uvicorn.run(make_app(folder, **settings), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    where, first_port, chosen = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    replicas = [Process(target=serve, args=(where, first_port + at, chosen)) for at in range(2)]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join()
