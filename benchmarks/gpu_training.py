"""Measure the speed and FLOP utilization of training on a GPU, for Headway and for the same model in MarianMT.

    python benchmarks/gpu_training.py                             # base and big model, 25,000 + 25,000 tokens per step
    python benchmarks/gpu_training.py --device cpu --preset tiny --max-tokens 500 --vocab-size 300 --seconds 2

No corpus is needed: tokens are random, and the lengths are distributed as in translation data (log-normal, with a mean
of about 27 tokens per sentence, and similar lengths on both sides). Headway sorts the sentences and divides them into
batches, which are copied to the device beforehand. Each contestant trains in eager mode and with torch.compile, in
bfloat16 autocast if the hardware supports it, with float32 weights, label smoothing, gradient clipping and a fused
Adam. Marian has the preset's sizes, tied embeddings, fused attention, and a loss on the logits of all positions, as it
is usually trained. ``transformers`` is not a requirement of Headway; if it is missing, Marian is skipped with a
message.

The timing covers many steps in a row after every batch has been used twice. The script synchronizes with the device
before and after them, but not between them. ``host waits`` counts the operations in one additional step that made the
host wait (torch.cuda's sync debug mode; 0 on a CPU). ``flops.py`` defines model FLOP. The peak is the fastest matrix
product of 2,048 to 8,192 units per side or of the model's own shapes, measured before and after training. Memory is the
peak that tensors occupy on the device.
"""

import importlib
import importlib.util
import json
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from flops import Product, best_product, training_flop, wait
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from headway.data.batching import PaddedBatch, plan_batches
from headway.engine.accelerate import accelerate, compile_blocks
from headway.hardware import autocast, choose_device, disable_cudnn_attention, has_fast_bfloat16, processor_name
from headway.models.registry import blocks_of
from headway.models.transformer import PRESETS, Transformer, TransformerConfig
from headway.tasks.translation import TranslationObjective
from headway.text.base import BOS, EOS, NUM_SPECIAL, PAD
from headway.training.optim import OptimizerConfig, clip_and_step, make_optimizer
from headway.training.stream import TokenBatch, to_device

LABEL_SMOOTHING = 0.1
CLIP_NORM = 1.0
LEARNING_RATE = 1e-4
LONGEST = 128  # maximum number of tokens in a sentence

TakeStep = Callable[[int], None]


@dataclass(frozen=True)
class MadeUpBatch:
    """A batch on the device, with its number of tokens and FLOP."""

    tokens: TokenBatch
    mask: Tensor  # (B, S): real source tokens
    padded_target: Tensor  # (B, T): targets for Marian's loss, with -100 as padding
    num_source_tokens: int
    num_target_tokens: int
    flop: float


@dataclass(frozen=True)
class Result:
    """The measurements of one contestant on one model."""

    preset: str
    name: str
    compiled: bool
    target_tokens_per_s: float
    source_tokens_per_s: float
    model_flop_per_s: float
    peak_bytes: int | None  # peak memory of tensors on the device; None on a CPU
    host_waits: int
    steps: int


def made_up_batches(
    config: TransformerConfig, vocab_size: int, max_tokens: int, count: int, device: torch.device
) -> list[MadeUpBatch]:
    """Return ``count`` batches of at most ``max_tokens`` (rows x longer side), with the lengths of translation data."""
    rng = np.random.default_rng(1)
    sentences = max(count * max_tokens // 10, 1)
    source = np.clip(rng.lognormal(3.15, 0.55, sentences), 2, LONGEST).astype(np.int32)
    target = np.clip(source * rng.normal(1.0, 0.15, sentences), 2, LONGEST).astype(np.int32)
    plan = plan_batches(source, target, np.arange(sentences), max_batch_tokens=max_tokens, pool_size=sentences, rng=rng)
    batches = []
    for rows in (plan[index] for index in range(min(count, len(plan)))):
        batch = PaddedBatch(_tokens(source[rows], vocab_size, rng), _tokens(target[rows], vocab_size, rng))
        tokens = to_device(batch, device)
        padded = torch.from_numpy(np.where(batch.target == PAD, -100, batch.target)).to(device)
        flop = training_flop(config, vocab_size, source[rows], target[rows])
        batches.append(
            MadeUpBatch(tokens, tokens.source != PAD, padded, int(source[rows].sum()), int(target[rows].sum()), flop)
        )
    return batches


def _tokens(lengths: NDArray[np.int32], vocab_size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return random sentences of these lengths, with end symbols and padding."""
    places = np.arange(lengths.max())
    tokens = rng.integers(NUM_SPECIAL, vocab_size, (len(lengths), len(places)))
    tokens[np.arange(len(lengths)), lengths - 1] = EOS
    return np.where(places < lengths[:, None], tokens, PAD)


def headway_step(
    config: TransformerConfig, vocab_size: int, batches: Sequence[MadeUpBatch], device: torch.device, *, compiled: bool
) -> TakeStep:
    """Return a function that trains Headway's model on the batch with a given number, like the training loop."""
    model = accelerate(Transformer(config, vocab_size, vocab_size)).to(device).train()
    optimizer = make_optimizer(model, OptimizerConfig())
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    objective = TranslationObjective(model, LABEL_SMOOTHING)
    if compiled:
        compile_blocks(blocks_of(model))

    def take_step(number: int) -> None:
        batch = batches[number]
        with autocast(device, "auto"):
            loss = objective(batch.tokens)
        torch.autograd.backward(loss / batch.num_target_tokens)
        clip_and_step(optimizer, CLIP_NORM)
        optimizer.zero_grad()

    return take_step


def marian_step(
    config: TransformerConfig, vocab_size: int, batches: Sequence[MadeUpBatch], device: torch.device, *, compiled: bool
) -> TakeStep:
    """Return a function that trains Hugging Face's MarianMT on the batch with a given number.

    It computes the logits of every position, then cross-entropy with label smoothing.
    """
    transformers: Any = importlib.import_module("transformers")
    marian: nn.Module = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            dropout=config.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            max_position_embeddings=LONGEST + 1,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            attn_implementation="sdpa",
        )
    )
    model = marian.to(device).train()
    forward = torch.compile(model, dynamic=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def take_step(number: int) -> None:
        batch = batches[number]
        with autocast(device, "auto"):
            logits = forward(
                input_ids=batch.tokens.source,
                attention_mask=batch.mask,
                decoder_input_ids=batch.tokens.decoder_input,
                use_cache=False,
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1), batch.padded_target.flatten(), label_smoothing=LABEL_SMOOTHING, reduction="sum"
            )
        torch.autograd.backward(loss / batch.num_target_tokens)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return take_step


def timed(take_step: TakeStep, order: Sequence[int], device: torch.device) -> float:
    """Return the seconds for these batches in a row, without synchronization between them."""
    wait(device)
    begin = time.perf_counter()
    for number in order:
        take_step(number)
    wait(device)
    return time.perf_counter() - begin


def host_waits(take_step: TakeStep, device: torch.device) -> int:
    """Return the number of operations in a step on the first batch that make the host wait for the device."""
    if device.type != "cuda":
        take_step(0)
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            take_step(0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def measure(
    preset: str,
    name: str,
    compiled: bool,
    take_step: TakeStep,
    batches: Sequence[MadeUpBatch],
    seconds: float,
    device: torch.device,
) -> Result:
    """Measure a contestant for about ``seconds``, in whole passes over the batches."""
    once = range(len(batches))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    timed(take_step, once, device)  # compiles and allocates
    rounds = max(1, round(seconds / timed(take_step, once, device)))
    elapsed_s = timed(take_step, [*once] * rounds, device)
    return Result(
        preset,
        name,
        compiled,
        target_tokens_per_s=rounds * sum(batch.num_target_tokens for batch in batches) / elapsed_s,
        source_tokens_per_s=rounds * sum(batch.num_source_tokens for batch in batches) / elapsed_s,
        model_flop_per_s=rounds * sum(batch.flop for batch in batches) / elapsed_s,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        host_waits=host_waits(take_step, device),
        steps=rounds * len(batches),
    )


def measure_all(
    preset: str, vocab_size: int, max_tokens: int, seconds: float, device: torch.device, compiles: Sequence[bool]
) -> Iterator[Result]:
    """Measure all contestants on one model, one after another."""
    config = TransformerConfig.preset(preset)
    batches = made_up_batches(config, vocab_size, max_tokens, 32 if device.type == "cuda" else 2, device)
    makers = {"headway": headway_step}
    if importlib.util.find_spec("transformers"):
        makers["marian"] = marian_step
    for name, make in makers.items():
        for compiled in compiles:
            torch.compiler.reset()
            torch.manual_seed(1)
            take_step = make(config, vocab_size, batches, device, compiled=compiled)
            yield measure(preset, name, compiled, take_step, batches, seconds, device)
            del take_step
            if device.type == "cuda":
                torch.cuda.empty_cache()


def table(results: Sequence[Result], peak: Product, dtype: torch.dtype) -> Table:
    """Return the results of one model. "headway is" compares Headway's fastest row in target tokens per second."""
    title = f"{results[0].preset} model; peak {peak.flop_per_s / 1e12:,.2f} TFLOP/s in {dtype} ({peak})"
    names = (
        "toolkit",
        "compiled",
        "target tok/s",
        "source tok/s",
        "model TFLOP/s",
        "of peak",
        "headway is",
        "peak GiB",
    )
    drawn = Table(*names, "host waits", "steps", title=title)
    best = max(result.target_tokens_per_s for result in results if result.name == "headway")
    for result in results:
        drawn.add_row(
            result.name,
            "yes" if result.compiled else "no",
            f"{result.target_tokens_per_s:,.0f}",
            f"{result.source_tokens_per_s:,.0f}",
            f"{result.model_flop_per_s / 1e12:,.2f}",
            f"{result.model_flop_per_s / peak.flop_per_s:.1%}",
            f"{best / result.target_tokens_per_s:.2f} x",
            "" if result.peak_bytes is None else f"{result.peak_bytes / 2**30:.2f}",
            str(result.host_waits),
            str(result.steps),
        )
    return drawn


def main(
    preset: Annotated[str, typer.Option(help=f"Models, separated by commas: {', '.join(PRESETS)}.")] = "base,big",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seconds: Annotated[float, typer.Option(help="Seconds of measurement for each contestant.")] = 20.0,
    max_tokens: Annotated[int, typer.Option(help="Size of a batch: rows x longer side.")] = 25_000,
    vocab_size: Annotated[int, typer.Option(help="Size of the joint vocabulary.")] = 32_000,
    compile_: Annotated[Literal["both", "on", "off"], typer.Option("--compile", help="Use torch.compile.")] = "both",
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure all contestants and print a table for each model."""
    place = choose_device(device)
    if place.type == "cuda":
        disable_cudnn_attention()
    dtype = torch.bfloat16 if has_fast_bfloat16(place) else torch.float32
    compiles = {"both": (False, True), "on": (True,), "off": (False,)}[compile_]
    cubes = (2_048, 4_096, 8_192) if place.type == "cuda" else (256,)
    console = Console(width=None if sys.stdout.isatty() else 150)
    hardware = torch.cuda.get_device_name(place) if place.type == "cuda" else processor_name()
    machine = (
        f"{hardware}, PyTorch {version('torch')}, Python {platform.python_version()}, Headway {version('headway')}"
    )
    command = f"python benchmarks/gpu_training.py {shlex.join(sys.argv[1:])}"
    console.print(f"{date.today()}: {machine}\n{command}")
    if not importlib.util.find_spec("transformers"):
        console.print("MarianMT is skipped because transformers is not installed: pip install transformers")
    figures = []
    for name in preset.split(","):
        config = TransformerConfig.preset(name)
        before = best_product(dtype, place, config, vocab_size, max_tokens, cubes)
        results = list(measure_all(name, vocab_size, max_tokens, seconds, place, compiles))
        after = best_product(dtype, place, config, vocab_size, max_tokens, cubes)
        peak = max(before, after, key=lambda product: product.flop_per_s)
        console.print(table(results, peak, dtype))
        figures.append({"peak": asdict(peak), "results": [asdict(result) for result in results]})
    if output is not None:
        header = {"date": str(date.today()), "machine": machine, "command": command, "max_tokens": max_tokens}
        output.write_text(json.dumps({**header, "models": figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
