"""Measure the cost of a glossary if none of its entries occurs in the text.

    python benchmarks/glossary.py --data ../shared/data/multi30k
    python benchmarks/glossary.py --data FOLDER --entries 10000 --pairs 20 --output F.json

An untrained model (preset small, 4,000 tokens) translates 64 sentences of Multi30k alternately without and with the
glossary. The settings are the fastest that glossaries support, because the relative cost is highest with them: a beam
of 2, and the machine's fastest precision. Every translation is forced to the same length. Each pair yields the
processor time with the glossary divided by the processor time without it; processor time is less sensitive to other
load on the machine than wall time. The script prints the median over the pairs with a 95 % confidence interval
(bootstrap of the median), and the time for loading the file once.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import random
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import Glossary, Translator
from headway.text.tokenizer import Tokenizer, TokenizerConfig

LENGTH = 20  # tokens of each translation


def read_sentences(folder: Path, count: int) -> list[str]:
    """Return German sentences of Multi30k's training text."""
    path = next(path for path in sorted(folder.glob("train*de*")) if path.is_file())
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode().splitlines()[:count]


def write_glossary(path: Path, sentences: list[str], entries: int) -> None:
    """Write entries of one to three words. All words except the last occur in the sentences."""
    words = sorted({word for sentence in sentences for word in sentence.split() if word.isalpha()})
    dice = random.Random(1)
    rows = [f"{' '.join(dice.choices(words, k=number % 3))} Unwort{number}".strip() for number in range(entries)]
    path.write_text("".join(f"{row}\tterm {number}\n" for number, row in enumerate(rows)), encoding="utf-8")


def make_translator(sentences: list[str]) -> Translator:
    """Return a translator with random weights."""
    tokenizer = Tokenizer.train(sentences, TokenizerConfig.parse({"vocab_size": 4000}, "benchmark"))
    config = TransformerConfig.parse({"preset": "small"}, "benchmark")
    torch.manual_seed(1)
    model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
    task = TaskConfig(source_language="de", target_language="en")
    return Translator(Bundle(task, model, tokenizer, tokenizer), precision="auto", avoid_flagged=False)


def measure(translator: Translator, sentences: list[str], glossary: Glossary, pairs: int) -> list[float]:
    """Return the ratio of times with and without the glossary for each pair."""
    options = DecodingOptions(beam_size=2, min_length=LENGTH, max_length=LENGTH)

    def seconds(given: Glossary | None) -> float:
        started = time.process_time()
        translator.translate(sentences, options, glossary=given)
        return time.process_time() - started

    seconds(None), seconds(glossary)  # warm up
    ratios = []
    for number in range(pairs):
        order = (None, glossary) if number % 2 else (glossary, None)
        times = {given is None: seconds(given) for given in order}
        ratios.append(times[False] / times[True])
    return ratios


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median."""
    dice = random.Random(1)
    medians = sorted(median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    """Measure, print, and write the result if a file is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    sentences = read_sentences(arguments.data, 5_000)
    translator = make_translator(sentences)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "glossary.tsv"
        write_glossary(path, sentences, arguments.entries)
        started = time.process_time()
        glossary = Glossary.load(path)
        loading = time.process_time() - started
    chosen = sentences[: arguments.sentences]
    assert not any(glossary.matches(sentence) for sentence in chosen)
    ratios = measure(translator, chosen, glossary, arguments.pairs)
    low, high = interval(ratios)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "entries": arguments.entries,
        "sentences": len(chosen),
        "loading_s": round(loading, 3),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median": round(median(ratios), 4),
        "interval": [round(low, 4), round(high, 4)],
    }
    print(
        f"processor time with {arguments.entries:,} entries / without: {median(ratios):.3f} ({low:.3f} to {high:.3f})"
    )
    print(f"loading the file: {loading:.2f} s")
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
