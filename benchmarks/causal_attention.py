"""Compare causal self-attention without a mask tensor with the same layer with a mask of all pairs.

The script measures the forward and backward passes of one layer in its fast form, with multi-head and with
grouped-query attention. The two forms take turns in one process, and the ratio of their median times is printed. Peak
memory is measured in a separate process on a CPU, and taken from PyTorch's statistics on a GPU.

    python benchmarks/causal_attention.py [--device cuda] [--output benchmarks/results/NAME.json]
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from headway.engine.accelerate import accelerate
from headway.hardware import autocast, processor_name
from headway.nn import Causal, MultiHeadAttention, causal_mask

WIDTH, HEADS = 512, 8
TOKENS = {"cpu": 4096, "cuda": 32768}


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    lengths: Annotated[list[int] | None, typer.Option("--length", help="Sequence length; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=3)] = 9,
    output: Annotated[Path | None, typer.Option(help="A JSON file for the figures.")] = None,
    peak_of: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure both forms at all lengths."""
    if peak_of is not None:
        form, positions, kv_heads, precision = peak_of.split(",")
        _step(form, int(positions), int(kv_heads), precision, device)()
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
        return
    found = []
    for length in lengths or [512, 2048]:
        for precision in ("float32", "bfloat16"):
            for heads in (HEADS, HEADS // 4):
                forms = {form: _step(form, length, heads, precision, device) for form in ("tensor", "causal")}
                seconds: dict[str, list[float]] = {form: [] for form in forms}
                for turn in range(rounds + 1):
                    for form, step in forms.items():
                        passed = _timed(step, device)
                        if turn:
                            seconds[form].append(passed)
                medians = {form: statistics.median(each) for form, each in seconds.items()}
                peaks = {form: _peak(form, length, heads, precision, device) for form in forms}
                speed = medians["tensor"] / medians["causal"]
                print(
                    f"T {length}, {precision}, {heads} of {HEADS} key heads: {medians['causal'] * 1e3:.1f} ms, "
                    f"{speed:.2f} times the speed; peak {peaks['causal']:.0f} instead of {peaks['tensor']:.0f} MiB"
                )
                found.append(
                    {"length": length, "precision": precision, "kv_heads": heads, "seconds": medians, "peak_mib": peaks}
                )
    if output is not None:
        name = torch.cuda.get_device_name() if device == "cuda" else processor_name()
        facts = {"date": datetime.now(UTC).date().isoformat(), "device": name, "torch": torch.__version__}
        output.write_text(json.dumps(facts | {"threads": torch.get_num_threads(), "results": found}, indent=1) + "\n")


def _step(form: str, length: int, kv_heads: int, precision: str, device: str) -> Callable[[], None]:
    """Return a function that computes a forward and a backward pass."""
    torch.manual_seed(0)
    layer = accelerate(MultiHeadAttention(WIDTH, HEADS, num_kv_heads=kv_heads)).to(device).train()
    x = torch.randn(max(TOKENS[device] // length, 1), length, WIDTH, device=device, requires_grad=True)

    def step() -> None:
        mask: Any = Causal() if form == "causal" else causal_mask(length, device)
        with autocast(torch.device(device), precision):
            out: Tensor = layer(x, mask=mask)
        torch.autograd.backward(out.float().pow(2).mean())

    return step


def _timed(step: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _peak(form: str, length: int, kv_heads: int, precision: str, device: str) -> float:
    """Return the peak memory of one step in MiB."""
    if device == "cuda":
        step = _step(form, length, kv_heads, precision, device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    arguments = ["--device", device, "--peak-of", f"{form},{length},{kv_heads},{precision}"]
    return float(subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True).stdout)


if __name__ == "__main__":
    typer.run(main)
