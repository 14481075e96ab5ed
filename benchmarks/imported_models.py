"""Compare an imported int8 CTranslate2 model with CTranslate2 itself, and a Headway model with its export.

    python benchmarks/imported_models.py                                                # the paper's base size
    python benchmarks/imported_models.py --ctranslate2 FOLDER                           # a folder of CTranslate2
    python benchmarks/imported_models.py --model M --source FILE --reference FILE       # a trained model, a whole file

Two pairs of contestants take turns (``decoding.py`` describes the cases and the method). In the pair "imported",
CTranslate2 runs an int8 folder, and Headway runs the result of ``headway import``. In the pair "own", Headway runs a
model that was not imported, and CTranslate2 runs its export. With ``--ctranslate2``, the own model has random weights
and the same sizes as the imported model; otherwise, the imported folder is the export of the own model. Headway
computes in int8, and CTranslate2 in int8_float32. If both pairs have the same ratio, importing does not reduce the
speed.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from decoding import CASES, LENGTH, Contestant, measure

from headway.bundle import Bundle, TaskConfig
from headway.evaluation import bleu
from headway.hardware import processor_name
from headway.interop.exporting import export_to
from headway.interop.importing import import_ctranslate2
from headway.models.transformer import Transformer, TransformerConfig
from headway.text.base import NUM_SPECIAL
from headway.text.tokenizer import Tokenizer, TokenizerConfig

Json = dict[str, Any]


def random_model(folder: Path, config: TransformerConfig, vocabulary: int) -> None:
    """Write a model with random weights whose tokens are made-up words."""
    torch.manual_seed(0)
    words = " ".join(f"w{number}" for number in range(vocabulary - NUM_SPECIAL))
    tokenizer = Tokenizer.train([words], TokenizerConfig(kind="whitespace"))
    Bundle(TaskConfig(), Transformer(config, vocabulary, vocabulary).eval(), tokenizer, tokenizer).save(folder, "")


def import_int8(exported: Path, folder: Path) -> None:
    """Import a CTranslate2 folder to ``folder``, and link the original next to it for CTranslate2."""
    imported = import_ctranslate2(exported)
    imported.bundle.save(folder, imported.card)
    (folder / "ct2").symlink_to(exported.resolve())


def pair(name: str, folder: Path, threads: int) -> list[Contestant]:
    """Start Headway and CTranslate2, each with threads and with processes, for the model in ``folder``."""
    shared: Json = {"model": str(folder), "threads": threads}
    ours = {**shared, "engine": "headway", "precision": "int8"}
    theirs = {**shared, "engine": "ctranslate2", "precision": "int8_float32"}
    settings = {"headway threads": ours, "ctranslate2 threads": {**theirs, "inter": 1, "batch": 64}}
    if threads > 1:
        settings |= {"headway workers": {**ours, "workers": threads}}
        settings |= {"ctranslate2 workers": {**theirs, "inter": threads, "batch": 64 // threads}}
    return [Contestant(f"{name}: {each}", setting) for each, setting in settings.items()]


def best_seconds(answers: dict[str, list[Json]], contestant: str) -> float:
    """Return the median time of the faster setting of a contestant, such as "imported: headway"."""
    medians = (
        statistics.median(answer["seconds"] for answer in found)
        for name, found in answers.items()
        if name.startswith(contestant)
    )
    return float(min(medians))


def compared(answers: dict[str, list[Json]]) -> Json:
    """Return the ratio of Headway's speed to CTranslate2's in both pairs, and the times of all contestants."""
    ratios = {
        name: round(best_seconds(answers, f"{name}: ctranslate2") / best_seconds(answers, f"{name}: headway"), 3)
        for name in ("imported", "own")
    }
    seconds = {name: [round(answer["seconds"], 5) for answer in found] for name, found in answers.items()}
    return {"ratios": ratios, "seconds": seconds}


def main(
    ctranslate2: Annotated[Path | None, typer.Option(help="A folder of CTranslate2 with int8 weights.")] = None,
    model: Annotated[Path | None, typer.Option(help="A trained model of Headway.")] = None,
    source: Annotated[Path | None, typer.Option(help="A file to translate, for --model.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Reference translations of the file.")] = None,
    preset: Annotated[str, typer.Option(help="Size of the model with random weights.")] = "base",
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size of the model with random weights.")] = 32_000,
    threads: Annotated[int, typer.Option(help="Threads of each contestant.")] = 2,
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 5,
    output: Annotated[Path | None, typer.Option(help="JSON file to write the results to.")] = None,
) -> None:
    """Measure, print, and write the results."""
    torch.set_num_threads(threads)
    result: Json = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "ctranslate2")},
        "threads": threads,
        "rounds": rounds,
    }
    with tempfile.TemporaryDirectory() as temporary:
        own, imported = Path(temporary) / "own", Path(temporary) / "imported"
        if ctranslate2 is not None:
            import_int8(ctranslate2, imported)
            bundle = Bundle.load(imported)
            vocabulary = bundle.source_tokenizer.vocab_size
            random_model(own, bundle.model.config, vocabulary)
        elif model is not None:
            Bundle.load(model).save(own, "")
        else:
            random_model(own, TransformerConfig.preset(preset), vocabulary)
        export_to("ctranslate2", Bundle.load(own), own / "ct2", quantization="int8")
        if ctranslate2 is None:
            if model is None:  # its words would be read differently with the tokenizer of `transformers`
                (own / "ct2" / "tokenizer.json").unlink()
            import_int8(own / "ct2", imported)
        running = [*pair("imported", imported, threads), *pair("own", own, threads)]
        if source is not None and reference is not None:
            order: Json = {"lines": source.read_text(encoding="utf-8").splitlines(), "beam": 4}
            references = reference.read_text(encoding="utf-8").splitlines()
            answers = measure(running, order, rounds)
            scores = {name: round(bleu(found[-1]["texts"], references).value, 2) for name, found in answers.items()}
            result["file"] = {**compared(answers), "bleu": scores}
        else:
            shared = {"source": LENGTH, "target": LENGTH, "vocabulary": vocabulary}
            result["forced"] = {}
            for sentences, beam in CASES["cpu"]:
                order = {"sentences": sentences, "beam": beam, **shared}
                answers = measure(running, order, rounds * 4 if sentences == 1 else rounds)
                result["forced"][f"batch {sentences}, beam {beam}"] = found = compared(answers)
                print(f"batch {sentences}, beam {beam}: {found['ratios']}", flush=True)
        for one in running:
            one.close()
    text = json.dumps(result, indent=1) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
