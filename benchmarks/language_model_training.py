"""Compare the speed of training a GPT with nanoGPT's train.py and with the Trainer of Hugging Face's transformers.

All contestants train a GPT with 6 layers, ``d_model = 384`` and 6 heads on blocks of 256 characters of one text, with
64 blocks per step, a dropout of 0.2 and AdamW. The peers also drop attention weights. Headway is measured with this
dropout ("like for like") and without it ("best"). Every contestant is a separate process. Each peer is measured
together with Headway, in the same precision and in the fastest form. They take turns, and all but one are stopped
(SIGSTOP), so that other load on the machine affects all of them. The step during which a contestant was stopped is not
counted. All peers at once would need more than 20 GB of memory. Each peer's figures are stored in a file next to the
output, so a measurement can be made in parts.

nanoGPT runs with the CPU command in its README, with these sizes, without and with torch.compile. On a CPU, it computes
only in float32; for the comparison in bfloat16, one line is changed to enable autocast. The Trainer, which needs the
package accelerate, reads blocks from memory. Headway runs ``headway train`` with the same model (the architecture of
GPT-2). The last ratio compares Headway's fastest form with the peers' defaults, which are float32.

The matrix-product peak is the speed of PyTorch's product of two bfloat16 matrices of 2,048 x 2,048 in the same turns.

    python benchmarks/language_model_training.py --nanogpt FOLDER --text FILE --output benchmarks/results/NAME.json
"""

import argparse
import json
import os
import pickle
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, CONTEXT, BATCH, DROPOUT = 384, 6, 6, 256, 64, 0.2
BEST = "headway bfloat16 best"
TRAINER = """
import json, sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
ids = torch.tensor(json.load(open("ids.json")))
class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, at):
        start = at * 97 % (len(ids) - CONTEXT)
        return {"input_ids": ids[start : start + CONTEXT], "labels": ids[start : start + CONTEXT]}
class Report(TrainerCallback):
    def on_step_end(self, *arguments, **others):
        print("step", time.perf_counter(), flush=True)
config = GPT2Config(vocab_size=int(ids.max()) + 1, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                    resid_pdrop=DROPOUT, embd_pdrop=DROPOUT, attn_pdrop=DROPOUT, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments("out", per_device_train_batch_size=BATCH, max_steps=10**6, use_cpu=True, report_to=[],
                              bf16=sys.argv[1] == "bfloat16", save_strategy="no", logging_strategy="no",
                              disable_tqdm=True)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Blocks(), callbacks=[Report()]).train()
"""
PEAK = """
import time, torch
x = torch.randn(2048, 2048, dtype=torch.bfloat16)
while True:
    for _ in range(8):
        x @ x
    print("step", time.perf_counter(), flush=True)
"""


class Contestant:
    """A training process that runs only during its turns. ``times`` reads the end times of its steps, in seconds."""

    def __init__(self, command: Sequence[str], folder: Path, times: Callable[[], list[float]], threads: int) -> None:
        self.times, self.seconds = times, list[float]()
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        self._log = folder / "log.txt"
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def turn(self, steps: int, limit_s: float) -> None:
        """Run until ``steps`` whole steps have ended after the one that is in progress."""
        self._signal(signal.SIGCONT)
        before, end = len(self.times()), time.perf_counter() + limit_s
        while len(found := self.times()) < before + steps + 1:
            if self._process.poll() is not None or time.perf_counter() > end:
                status = self._process.poll()
                what = f"no step in {limit_s} s" if status is None else f"ended with status {status}"
                raise RuntimeError(f"{what}: {self._process.args!r}\n{self._log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.05)
        self._signal(signal.SIGSTOP)
        self.seconds += np.diff(found[before : before + steps + 1]).tolist()

    def stop(self) -> None:
        """End the process and its children."""
        with suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


def _printed(path: Path) -> list[float]:
    return [float(each) for each in re.findall(r"^step ([\d.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)]


def _nanogpt_times(path: Path) -> list[float]:
    """Return the end times of steps. nanoGPT prints their durations."""
    durations = re.findall(r"^iter \d+: loss .*, time ([\d.]+)ms", path.read_text(encoding="utf-8"), re.MULTILINE)
    return list(accumulate(float(each) / 1000 for each in durations))


def _headway_times(path: Path) -> list[float]:
    if not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [record["elapsed_s"] for record in records if record["kind"] == "train"]


def contestants(folder: Path, nanogpt: Path, text: Path, threads: int) -> dict[str, Callable[[], Contestant]]:
    """Return functions that start the contestants."""
    characters = text.read_text(encoding="utf-8")
    numbers = {each: at for at, each in enumerate(sorted(set(characters)))}
    ids = [numbers[each] for each in characters]
    found: dict[str, Callable[[], Contestant]] = {}
    for precision, attention_dropout in product(("float32", "bfloat16"), (DROPOUT, 0.0)):
        name = f"headway {precision}" + ("" if attention_dropout else " best")
        own = folder / name.replace(" ", "-")
        own.mkdir()
        (own / "recipe.toml").write_text(
            f'[task]\nkind = "language_model"\n[data]\ntrain = [{{ files = ["{text.resolve()}"] }}]\n'
            f'max_tokens = {BATCH * CONTEXT}\n[tokenizer]\nkind = "characters"\n[model]\nd_model = {WIDTH}\n'
            f"num_heads = {HEADS}\nd_ff = {4 * WIDTH}\ndecoder_layers = {LAYERS}\nmax_length = {CONTEXT}\n"
            f"dropout = {DROPOUT}\nattention_dropout = {attention_dropout}\n"
            f"[training]\nprecision = '{precision}'\nlog_every = 1\n"
            '[optimizer]\nschedule = "constant"\nlearning_rate = 1e-3\nweight_decay = 0.1\nclip_norm = 1.0\n'
        )
        command = [sys.executable, "-m", "headway", "train", "recipe.toml", "--run", "run"]
        metrics = own / "run" / "metrics.jsonl"
        found[name] = partial(Contestant, command, own, partial(_headway_times, metrics), threads)
    program = (nanogpt / "train.py").read_text(encoding="utf-8")
    autocast = program.replace("nullcontext() if device_type == 'cpu' else ", "")
    assert autocast != program
    for name, code, options in (
        ("nanogpt float32", program, ("--compile=False",)),
        ("nanogpt float32 compiled", program, ("--compile=True",)),
        ("nanogpt bfloat16", autocast, ("--compile=False", "--dtype=bfloat16")),
        ("nanogpt bfloat16 compiled", autocast, ("--compile=True", "--dtype=bfloat16")),
    ):
        own = folder / name.replace(" ", "-")
        data = own / "data" / "shakespeare_char"
        data.mkdir(parents=True)
        for split in ("train", "val"):
            np.array(ids, dtype=np.uint16).tofile(data / f"{split}.bin")
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(numbers)}))
        for other in ("model.py", "configurator.py"):
            (own / other).write_text((nanogpt / other).read_text(encoding="utf-8"), encoding="utf-8")
        (own / "train.py").write_text(code, encoding="utf-8")
        sizes = {
            "dataset": "shakespeare_char", "device": "cpu", "eval_iters": 1, "eval_interval": 10**6, "log_interval": 1,
            "block_size": CONTEXT, "batch_size": BATCH, "n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH,
            "dropout": DROPOUT, "gradient_accumulation_steps": 1, "max_iters": 10**6,
        }  # fmt: skip
        command = [sys.executable, "-u", "train.py", *(f"--{key}={value}" for key, value in sizes.items()), *options]
        log = own / "log.txt"
        found[name] = partial(Contestant, command, own, partial(_nanogpt_times, log), threads)
    header = f"WIDTH, HEADS, LAYERS, CONTEXT, BATCH, DROPOUT = {(WIDTH, HEADS, LAYERS, CONTEXT, BATCH, DROPOUT)}\n"
    for name, code, arguments in (
        ("trainer float32", header + TRAINER, ["float32"]),
        ("trainer bfloat16", header + TRAINER, ["bfloat16"]),
        ("peak", PEAK, []),
    ):
        own = folder / name.replace(" ", "-")
        own.mkdir()
        (own / "ids.json").write_text(json.dumps(ids))
        (own / "program.py").write_text(code, encoding="utf-8")
        log = own / "log.txt"
        command = [sys.executable, "program.py", *arguments]
        found[name] = partial(Contestant, command, own, partial(_printed, log), threads)
    return found


def measure(starters: dict[str, Callable[[], Contestant]], rounds: int, steps: int) -> dict[str, float]:
    """Let the contestants take turns, and return the median time of a step of each."""
    running: dict[str, Contestant] = {}
    try:
        for name, start in starters.items():
            running[name] = start()
            running[name].turn(1, 600)  # starts, compiles and warms up
            running[name].seconds.clear()
        for _ in range(rounds):
            for each in running.values():
                each.turn(steps, 600)
    finally:
        for each in running.values():
            each.stop()
    return {name: statistics.median(each.seconds) for name, each in running.items()}


def ratios(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the time of a peer divided by Headway's time, for the fastest form of each peer.

    Args:
        found: For each peer, the seconds of a step of the peer and of ours in the same turns.
    """

    def fastest(peer: str, ours: str) -> float:
        """Return the smallest ratio of all forms of a peer to one of Headway's forms."""
        return min(seconds[name] / seconds[ours] for name, seconds in found.items() if name.startswith(peer))

    result = {
        f"{precision} against {peer}": fastest(f"{peer} {precision}", f"headway {precision}")
        for peer in ("nanogpt", "trainer")
        for precision in ("float32", "bfloat16")
    }
    return result | {
        f"best against {peer}'s default": fastest(f"{peer} float32", BEST) for peer in ("nanogpt", "trainer")
    }


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--text", type=Path, required=True, help="text file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="number of steps per turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--peers",
        nargs="*",
        help="contestants, for example 'nanogpt float32'; default: all that are missing",
    )
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    partial_path = arguments.output.with_suffix(".partial.json")
    with tempfile.TemporaryDirectory() as name:
        starters = contestants(Path(name), arguments.nanogpt, arguments.text, arguments.threads)
        ours = {each: start for each, start in starters.items() if each.startswith("headway")}
        seconds: dict[str, dict[str, float]] = json.loads(partial_path.read_text()) if partial_path.exists() else {}
        peers = [each for each in starters if each not in ours]
        for peer in arguments.peers or [each for each in peers if each not in seconds]:
            same = f"headway {peer.split()[1]}" if " " in peer else BEST
            chosen = {each: ours[each] for each in dict.fromkeys((same, BEST))}
            seconds[peer] = measure(chosen | {peer: starters[peer]}, arguments.rounds, arguments.steps)
            print(peer, seconds[peer], flush=True)
            partial_path.write_text(json.dumps(seconds), encoding="utf-8")
            for each in chosen:
                shutil.rmtree(Path(name) / each.replace(" ", "-") / "run")
    if not seconds.keys() >= set(peers):
        return
    weights = 12 * LAYERS * WIDTH**2
    flop = BATCH * CONTEXT * (6 * weights + 6 * LAYERS * CONTEXT * WIDTH)  # attention to half of the block on average
    beside_peak = seconds.pop("peak")
    peak = 8 * 2 * 2048**3 / beside_peak.pop("peak")
    found: dict[str, Any] = {
        "ratios": ratios(seconds),
        "seconds of a step": seconds,
        "share_of_peak": flop / min(beside_peak.values()) / peak,
        "peak_gflop_per_s": peak / 1e9,
    }
    print(json.dumps(found, indent=1))
    from headway.hardware import processor_name

    versions = {each: version(each) for each in ("torch", "transformers")}
    head = {"date": datetime.now(UTC).date().isoformat(), "processor": processor_name(), "versions": versions}
    arguments.output.write_text(json.dumps(head | found, indent=1) + "\n", encoding="utf-8")
    partial_path.unlink()


if __name__ == "__main__":
    main()
