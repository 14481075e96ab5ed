"""Compare the speed of generation with CTranslate2's Generator and with Hugging Face's generate.

A model with the dimensions of GPT-2 small and random weights continues random prompts with a fixed number of tokens,
greedily and without EOS. Every engine is a separate process that computes on request. The engines take turns, round
after round, so that other load on the machine affects all of them. A ratio is the median over the rounds of (time of
the peer) / (time of Headway). In the case "prompt", one token is added to a prompt of 512 tokens. In "shared
beginning", one token is added to each of 64 prompts that share their first 512 tokens.

The engines' threads use their default waiting policy. (With OMP_WAIT_POLICY=passive, they would sleep between two
products, and waking them takes 60 µs on some virtual machines, which is half of the time of a token at batch size 1.)

All engines compute the same function up to its weights: Headway's own weights are also random. CTranslate2 is measured
with one worker for all threads and with one worker per thread, and the faster setting is used.

    python benchmarks/generation.py --output benchmarks/results/generation-DATE.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT = 50_257, 768, 12, 12, 1024
CASES = {  # prompts, tokens of each, new tokens, tokens that all prompts begin with
    "batch 1": (1, 128, 128, 0),
    "batch 16": (16, 128, 128, 0),
    "batch 64": (64, 128, 128, 0),
    "prompt": (1, 512, 1, 0),
    "shared beginning": (64, 544, 1, 512),
}
Prompts = list[list[int]]
Engine = Callable[[Prompts, int], int]


def headway(_folder: Path, precision: str) -> Engine:
    """Return Headway's engine."""
    from headway.decode import DecodingOptions, Request, SearchVocabulary, search_all
    from headway.engine import to_search_model
    from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
    from headway.text.base import BOS, EOS

    config = DecoderOnlyConfig.parse({"preset": "gpt2", "activation": "gelu_tanh"}, "benchmark")
    model = to_search_model(DecoderOnly(config, VOCABULARY).eval(), precision)  # type: ignore[arg-type]
    options = DecodingOptions(beam_size=1, length_penalty=0.0)

    def run(prompts: Prompts, new: int) -> int:
        requests = [Request(source=tuple(each[:-1]), first_token=each[-1], limit=new) for each in prompts]
        limits: dict[str, Any] = {"max_batch_tokens": 1 << 14, "max_sequences": 64}
        found = search_all(model, requests, options, SearchVocabulary(BOS, EOS, banned=(EOS,)), **limits)
        return sum(len(hypotheses[0].tokens) for hypotheses in found)

    return run


def ctranslate2(folder: Path, workers: str) -> Engine:
    """Return CTranslate2's engine in int8, with one worker for all threads or one per thread.

    CTranslate2 computes the shared prefix of the prompts only once if it is passed separately, as in this benchmark.
    """
    import ctranslate2

    threads = int(os.environ["OMP_NUM_THREADS"])
    count = threads if workers == "threads" else 1
    each = max(1, threads // count)
    generator = ctranslate2.Generator(str(folder / "ct2"), compute_type="int8", inter_threads=count, intra_threads=each)

    def run(prompts: Prompts, new: int) -> int:
        texts = [[f"t{token}" for token in prompt] for prompt in prompts]
        shared = next((at for at, each in enumerate(zip(*texts, strict=True)) if len(set(each)) > 1), 0)
        results = generator.generate_batch(
            [text[shared:] for text in texts],
            static_prompt=texts[0][:shared] or None,
            cache_static_prompt=False,  # it would be computed only in the first round
            max_length=new,
            min_length=new,
            include_prompt_in_result=False,
            max_batch_size=-(-len(prompts) // count),
        )
        return sum(len(result.sequences_ids[0]) for result in results)

    return run


def transformers(folder: Path, precision: str) -> Engine:
    """Return Hugging Face's generate."""
    import torch
    from transformers import GPT2LMHeadModel

    dtype = getattr(torch, precision)
    model: Any = GPT2LMHeadModel.from_pretrained(folder / "hf", dtype=dtype)
    model.eval()

    def run(prompts: Prompts, new: int) -> int:
        tokens = torch.tensor(prompts)
        with torch.inference_mode():
            found = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=new,
                min_new_tokens=new,
                pad_token_id=0,
            )
        return int(found.numel() - tokens.numel())

    return run


ENGINES: dict[str, Callable[[Path, str], Engine]] = {
    "headway": headway,
    "ctranslate2": ctranslate2,
    "transformers": transformers,
}
CONTESTANTS = (
    ("headway", "int8"),
    ("headway", "float32"),
    ("headway", "bfloat16"),
    ("ctranslate2", "one"),
    ("ctranslate2", "threads"),
    ("transformers", "float32"),
    ("transformers", "bfloat16"),
)
# The ratio of a peer's time to that of a form of Headway.
RATIOS = {
    "int8 against CTranslate2 int8": ("headway int8", ("ctranslate2 one", "ctranslate2 threads")),
    "int8 against transformers float32": ("headway int8", ("transformers float32",)),
    "float32 against transformers float32": ("headway float32", ("transformers float32",)),
    "best against transformers' best": (None, ("transformers float32", "transformers bfloat16")),
}


def work() -> None:
    """Process the requests on standard input, each one of :data:`CASES`, and answer with the seconds."""
    import random

    engine = ENGINES[sys.argv[2]](Path(sys.argv[4]), sys.argv[3])
    print("ready", flush=True)
    for line in sys.stdin:
        count, length, new, shared = json.loads(line)
        draw = random.Random(1)
        beginning = [draw.randrange(10, VOCABULARY) for _ in range(shared)]
        prompts = [beginning + [draw.randrange(10, VOCABULARY) for _ in range(length - shared)] for _ in range(count)]
        start = time.perf_counter()
        made = engine(prompts, new)
        seconds = time.perf_counter() - start
        assert made == count * new, f"{made} tokens, expected {count * new}"
        print(json.dumps(seconds), flush=True)


def export(folder: Path) -> None:
    """Write a random GPT-2 for transformers and CTranslate2."""
    from ctranslate2.converters import TransformersConverter
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    ids = {f"t{at}": at for at in range(VOCABULARY - 1)} | {"<|endoftext|>": VOCABULARY - 1}
    words = Tokenizer(WordLevel(ids, unk_token="<|endoftext|>"))
    end = "<|endoftext|>"
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=words, bos_token=end, eos_token=end, unk_token=end)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder / "hf")
    fast.save_pretrained(folder / "hf")
    TransformersConverter(str(folder / "hf")).convert(str(folder / "ct2"), quantization="int8")


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--contestants", nargs="*", help="for example headway:int8 ctranslate2:one")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    chosen = [tuple(each.split(":")) for each in arguments.contestants or []] or list(CONTESTANTS)
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(folder)
        running = {
            f"{engine} {form}": subprocess.Popen(
                [sys.executable, __file__, "--work", engine, form, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for engine, form in chosen
        }
        for process in running.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        seconds: dict[str, dict[str, list[float]]] = {}
        for case in arguments.cases:
            taken: dict[str, list[float]] = {name: [] for name in running}
            for number in range(arguments.rounds + 1):
                for each, process in running.items():
                    value = _ask(process, CASES[case])
                    if number:  # the first round warms up
                        taken[each].append(value)
            seconds[case] = taken
            print(case, {each: round(statistics.median(values), 4) for each, values in taken.items()})
            print("   ", {each: round(value, 2) for each, value in _ratios(taken).items()}, flush=True)
            if arguments.output:  # after each case, so that an interrupted measurement is not lost
                _write(arguments.output, arguments.threads, seconds)
        for process in running.values():
            process.terminate()


def _write(path: Path, threads: int, seconds: dict[str, dict[str, list[float]]]) -> None:
    from headway.hardware import processor_name

    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor_name(),
        "threads": threads,
        "versions": {each: version(each) for each in ("torch", "ctranslate2", "transformers")},
        "cases": {
            case: dict(zip(("prompts", "tokens", "new", "shared"), CASES[case], strict=True)) for case in seconds
        },
        "ratios": {case: _ratios(taken) for case, taken in seconds.items()},
        "seconds": seconds,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _ask(process: subprocess.Popen[str], case: tuple[int, int, int, int]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(case) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def _ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the median over the rounds of each ratio whose engines were measured."""
    found = {}
    for name, (ours, peers) in RATIOS.items():
        own = [ours] if ours else [each for each in seconds if each.startswith("headway")]
        if all(each in seconds for each in (*own, *peers)):
            best = min(own, key=lambda each: statistics.median(seconds[each]))
            peer = min(peers, key=lambda each: statistics.median(seconds[each]))
            found[name] = statistics.median(
                theirs / mine for theirs, mine in zip(seconds[peer], seconds[best], strict=True)
            )
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work()
    else:
        main()
