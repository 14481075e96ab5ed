"""Compare Headway's decoding speed with CTranslate2 and Hugging Face's generate, on the same weights and machine.

Every contestant is a long-running process (``decoders.py``). They run in turns, round after round, so that other load
on the machine affects all of them; the speed in a case is the median over the rounds. By default, a model with random
weights decodes random sentences of one length to targets of the same length. With ``--model``, a trained model
translates a whole file with natural lengths, and its BLEU is reported with the time. All contestants normalize scores
by length in the same way (exponent 1) and choose among the same tokens.

If the trained model has a shortlist (``headway shortlist``), Headway and CTranslate2 also translate with it. In
Headway, each sentence chooses among its own tokens; in CTranslate2, among the tokens of its batch.

``--sweep`` searches for the best settings of each peer: CTranslate2's compute types, workers and batch sizes, and
generate's precision and static cache, with which it compiles the model. Each setting runs on its own, and the settings
that are fastest in at least one case take part in the comparison. Without ``--sweep``, the settings are those that an
earlier sweep found best.

The floor is the time that the matrix products of a case take on their own, at their own shapes and in the same
precision, as a share of Headway's time.

On a GPU (``--device cuda``) the cases are larger. All contestants compute in bfloat16 and float32, generate also runs
with a static cache, and CTranslate2 takes part if its build finds the GPU. A peer that is not installed is skipped.

    python benchmarks/decoding.py                                                # random sentences
    python benchmarks/decoding.py --model FOLDER --source FILE --reference FILE  # a trained model on a file
    python benchmarks/decoding.py --device cuda --sweep                          # all settings on a GPU
"""

import importlib
import importlib.util
import json
import math
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from flops import wait
from rich.console import Console
from rich.table import Table

from headway import kernels
from headway.bundle import Bundle, TaskConfig
from headway.engine.shortlist_file import SHORTLIST_FILE
from headway.evaluation import bleu
from headway.hardware import has_fast_bfloat16, processor_name
from headway.interop.exporting import export_to
from headway.models.transformer import Transformer, TransformerConfig
from headway.predict.translation.shortlisting import read_shortlist
from headway.text.base import NUM_SPECIAL
from headway.text.tokenizer import Tokenizer, TokenizerConfig

ROOT = Path(__file__).resolve().parent
CASES = {  # sentences, beam
    "cpu": ((1, 1), (1, 4), (16, 4), (64, 4), (64, 1)),
    "cuda": ((1, 1), (1, 4), (64, 1), (64, 4), (256, 1), (256, 4)),
}
_REST_S = 0.3
LENGTH = 20  # tokens of a source, including its end symbol, and of a target


class Contestant:
    """A process that decodes on request."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name, self.settings = name, settings
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "decoders.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for the answer."""
        assert self.process.stdin is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """Close the input of the process and wait for it to end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}; its messages are above")


def contestants(folder: Path, device: str, threads: int, sweep: bool) -> dict[str, dict[str, Any]]:
    """Return the settings of all contestants by name."""
    shared = {"model": str(folder), "threads": threads, "device": device}
    processor, bfloat16 = device == "cpu", has_fast_bfloat16(torch.device(device))
    ours, theirs = {**shared, "engine": "headway"}, {**shared, "engine": "transformers"}
    found: dict[str, dict[str, Any]] = {"headway float32": {**ours, "precision": "float32"}}
    if bfloat16:
        found["headway bfloat16"] = {**ours, "precision": "bfloat16"}
    if processor and kernels.is_available():
        found["headway int8"] = {**ours, "precision": "int8"}
        if threads > 1:
            found["headway int8 workers"] = {**found["headway int8"], "workers": threads}
    ctranslate2: Any = importlib.import_module("ctranslate2") if _installed("ctranslate2") else None
    if ctranslate2 and (processor or ctranslate2.get_cuda_device_count()):
        types = ["float32", "int8_float32"] if processor else ["bfloat16", "float16"]
        if sweep:
            types = sorted(ctranslate2.get_supported_compute_types(device))
        for kind in types:
            for inter in sorted({1, threads}) if processor else (1,):
                for batch in ((16, 32, 64) if sweep else (64 // inter,)) if processor else (256,):
                    name = f"ctranslate2 {kind} {inter}x{threads // inter} batch {batch}"
                    settings = {"precision": kind, "inter": inter, "batch": batch}
                    found[name] = {**shared, "engine": "ctranslate2", **settings}
    if (folder / SHORTLIST_FILE).exists() and processor:
        with_list = {name: {**settings, "shortlist": True} for name, settings in found.items()}
        found |= {f"{name} shortlist": settings for name, settings in with_list.items()}
    if _installed("transformers"):
        found["transformers float32"] = {**theirs, "precision": "float32"}
        if bfloat16 and (sweep or not processor):
            found["transformers bfloat16"] = {**theirs, "precision": "bfloat16"}
        if sweep or not processor:
            plain = [name for name in found if name.startswith("transformers") and (not processor or "float32" in name)]
            found |= {f"{name} static": {**found[name], "compiled": True} for name in plain}
    return found


def make_model(folder: Path, config: TransformerConfig, vocabulary: int) -> None:
    """Write a model with random weights and a tokenizer of made-up words, and export it for all engines."""
    torch.manual_seed(0)
    words = " ".join(f"w{number}" for number in range(vocabulary - NUM_SPECIAL))
    tokenizer = Tokenizer.train([words], TokenizerConfig(kind="whitespace"))
    Bundle(TaskConfig(), Transformer(config, vocabulary, vocabulary).eval(), tokenizer, tokenizer).save(folder, "")
    export_for_all(folder)


def export_for_all(folder: Path) -> None:
    """Export a model for the other engines into its folder."""
    bundle = Bundle.load(folder)
    if _installed("ctranslate2"):
        export_to("ctranslate2", bundle, folder / "ct2", shortlist=read_shortlist(bundle, folder))
    export_to("huggingface", bundle, folder / "huggingface")


def contest(folder: Path, device: str, threads: int, orders: list[dict[str, Any]], sweep: bool) -> list[Contestant]:
    """Start all contestants."""
    settings = contestants(folder, device, threads, sweep)
    return [Contestant(name, each) for name, each in (fittest(settings, orders) if sweep else settings).items()]


def fittest(settings: dict[str, dict[str, Any]], orders: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return Headway's settings, and for each peer the settings that are fastest with at least one order."""
    best: dict[tuple[str, bool, int], tuple[float, str]] = {}
    for name, each in settings.items():
        if each["engine"] == "headway":
            continue
        kind = each["engine"], each.get("shortlist", False)
        try:
            one = Contestant(name, each)
            found = [min(answer["seconds"] for answer in measure([one], order, rounds=2)[name]) for order in orders]
            one.close()
        except RuntimeError as error:  # this setting does not run on this machine
            print(error, flush=True)
            continue
        print(f"{name}: {', '.join(f'{seconds:.3f} s' for seconds in found)}", flush=True)
        for number, seconds in enumerate(found):
            best[*kind, number] = min(best.get((*kind, number), (math.inf, "")), (seconds, name))
    fit = {name for _, name in best.values()}
    return {name: each for name, each in settings.items() if each["engine"] == "headway" or name in fit}


def measure(running: list[Contestant], order: dict[str, Any], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the answers of all contestants, which run in turns; the first round is a warm-up.

    A pause before each answer lets the threads of the others go to sleep: CTranslate2's threads spin for 200 ms after
    their work is done.
    """
    answers: dict[str, list[dict[str, Any]]] = {one.name: [] for one in running}
    for number in range(rounds + 1):
        for one in running:
            time.sleep(_REST_S)
            answer = one.ask(order)
            if number:
                answers[one.name].append(answer)
    return answers


def floor_seconds(
    config: TransformerConfig, vocabulary: int, sentences: int, beam: int, precision: str, threads: int, device: str
) -> float:
    """Return the time of the matrix products of a case: each product at its own shape, best of ten.

    In int8, threads decode different sentences if there are several, so the share of one thread is measured on one
    thread.
    """
    if precision == "int8" and sentences > 1:
        torch.set_num_threads(1)
        sentences = -(-sentences // threads)
    rows, tokens, d, f = sentences * beam, sentences * LENGTH, config.d_model, config.d_ff
    encoder = [(tokens, d, 3 * d), (tokens, d, d), (tokens, d, f), (tokens, f, d)]
    decoder = [(rows, d, 3 * d), (rows, d, d), (rows, d, d), (rows, d, d), (rows, d, f), (rows, f, d)]
    step = config.decoder_layers * sum(_product_seconds(*shape, precision, device) for shape in decoder)
    step += _product_seconds(rows, d, vocabulary, precision, device)
    once = config.encoder_layers * sum(_product_seconds(*shape, precision, device) for shape in encoder)
    once += _product_seconds(tokens, d, 2 * d * config.decoder_layers, precision, device)
    torch.set_num_threads(threads)
    return once + (LENGTH + 1) * step


def _product_seconds(rows: int, inner: int, columns: int, precision: str, device: str) -> float:
    x, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    run: Callable[[], object]
    if precision == "int8":
        from headway.kernels.int8_linear import QuantizedLinear

        run = partial(QuantizedLinear(weight.numpy()), x.numpy())
    else:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        run = partial(torch.nn.functional.linear, x.to(device, dtype), weight.to(device, dtype))

    repeats = 1 if device == "cpu" else 20  # on a GPU, a single product takes less time than launch and synchronization
    best = float("inf")
    for _ in range(10):
        wait(torch.device(device))
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        wait(torch.device(device))
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best


def main(
    preset: Annotated[str, typer.Option(help="Size of the model with random weights.")] = "base",
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size of the model with random weights.")] = 32_000,
    model: Annotated[Path | None, typer.Option(help="A trained model that translates a whole file.")] = None,
    source: Annotated[Path | None, typer.Option(help="The file to translate.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Reference translations of the file.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of each contestant.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 5,
    sweep: Annotated[bool, typer.Option("--sweep", help="Search for each peer's best settings.")] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file to write the results to.")] = None,
) -> None:
    """Measure, print tables, and write the results."""
    torch.set_num_threads(threads)
    console = Console(width=140)
    versions = {name: version(name) for name in ("torch", "ctranslate2", "transformers") if _installed(name)}
    results: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor_name(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": threads,
        "rounds": rounds,
    }
    with tempfile.TemporaryDirectory() as temporary:
        if model is None or source is None or reference is None:
            config = TransformerConfig.preset(preset)
            folder = Path(temporary) / "random"
            make_model(folder, config, vocabulary)
            results["forced"] = forced_lengths(
                *(console, folder, config, vocabulary), device=device, threads=threads, rounds=rounds, sweep=sweep
            )
        else:
            copy = Path(temporary) / "trained"
            Bundle.load(model).save(copy, "")
            if (model / SHORTLIST_FILE).exists():
                shutil.copy(model / SHORTLIST_FILE, copy)
            export_for_all(copy)
            lines = source.read_text(encoding="utf-8").splitlines()
            references = reference.read_text(encoding="utf-8").splitlines()
            results["file"] = whole_file(
                *(console, copy, lines, references), device=device, threads=threads, rounds=rounds, sweep=sweep
            )
    if output is not None:
        output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def forced_lengths(
    console: Console,
    folder: Path,
    config: TransformerConfig,
    vocabulary: int,
    *,
    device: str,
    threads: int,
    rounds: int,
    sweep: bool,
) -> dict[str, Any]:
    """Measure the decoding of random sentences of one length."""
    shared = {"source": LENGTH, "target": LENGTH, "vocabulary": vocabulary}
    orders = [{"sentences": sentences, "beam": beam, **shared} for sentences, beam in CASES[device]]
    running = contest(folder, device, threads, orders, sweep)
    speeds: dict[str, dict[str, Any]] = {}
    for (sentences, beam), order in zip(CASES[device], orders, strict=True):
        answers = measure(running, order, rounds * 4 if sentences == 1 else rounds)
        case = f"batch {sentences}, beam {beam}"
        speeds[case] = {
            name: {
                "tokens_per_s": statistics.median(each["tokens"] / each["seconds"] for each in found),
                "p50_ms": 1e3 * statistics.median(each["seconds"] for each in found),
                "p95_ms": 1e3 * sorted(each["seconds"] for each in found)[int(0.95 * (len(found) - 1) + 0.5)],
                "peak_mib": found[-1]["peak_mib"],
                "device_mib": found[-1].get("device_mib"),
            }
            for name, found in answers.items()
        }
        ours = _best(speeds[case], "headway")
        floor = floor_seconds(config, vocabulary, sentences, beam, ours.split()[1], threads, device)
        speeds[case]["floor share"] = floor / (speeds[case][ours]["p50_ms"] / 1e3)
        ranked = sorted(answers, key=lambda name: -speeds[case][name]["tokens_per_s"])
        console.print(f"{case}: " + ", ".join(f"{name} {speeds[case][name]['tokens_per_s']:,.0f}" for name in ranked))
    for one in running:
        one.close()
    table = Table(title=f"target tokens per second, {LENGTH} source and {LENGTH} forced target tokens")
    table.add_column("")
    for case in speeds:
        table.add_column(case, justify="right")
    for one in running:
        table.add_row(one.name, *(f"{found[one.name]['tokens_per_s']:,.0f}" for found in speeds.values()))
    for peer in ("ctranslate2", "transformers"):
        if not any(one.name.startswith(peer) for one in running):
            continue
        table.add_row(
            f"headway's best / {peer}'s best",
            *(
                f"{found[_best(found, 'headway')]['tokens_per_s'] / found[_best(found, peer)]['tokens_per_s']:.2f}"
                for found in speeds.values()
            ),
        )
    table.add_row("matrix products / headway's time", *(f"{found['floor share']:.0%}" for found in speeds.values()))
    console.print(table)
    return speeds


def whole_file(
    console: Console,
    folder: Path,
    lines: list[str],
    references: list[str],
    *,
    device: str,
    threads: int,
    rounds: int,
    sweep: bool,
) -> dict[str, Any]:
    """Measure the translation of a file by a trained model with a beam of 4."""
    order = {"lines": lines, "beam": 4}
    running = contest(folder, device, threads, [order], sweep)
    answers = measure(running, order, rounds)
    for one in running:
        one.close()
    table = Table(title=f"a trained model, {len(lines):,} lines, beam 4")
    for heading in ("", "seconds", "lines/s", "BLEU", "peak MiB"):
        table.add_column(heading, justify="right" if heading else "left")
    results: dict[str, Any] = {}
    for name, found in answers.items():
        seconds = statistics.median(each["seconds"] for each in found)
        score = bleu(found[-1]["texts"], references)
        results[name] = {"seconds": seconds, "bleu": score.value, "peak_mib": found[-1]["peak_mib"]}
        peak = f"{found[-1]['peak_mib']:,.0f}"
        table.add_row(name, f"{seconds:.1f}", f"{len(lines) / seconds:,.0f}", f"{score.value:.2f}", peak)
    console.print(table)
    return results


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _best(found: dict[str, Any], engine: str) -> str:
    return max((name for name in found if name.startswith(engine)), key=lambda name: found[name]["tokens_per_s"])


if __name__ == "__main__":
    typer.run(main)
