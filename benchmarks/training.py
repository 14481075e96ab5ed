"""How fast does Headway train, beside JoeyNMT and Eole, on the same model, tokens, batch size and machine?

    python benchmarks/training.py --data FOLDER        # FOLDER holds Multi30k: train.de, train.en, val.de, val.en

One run measures, one after the other: the machine's matrix products, Headway (bfloat16 where the hardware has it, and
float32), a plain loop over ``torch.nn.Transformer`` in float32 on Headway's own batches, and the peers in environments
of their own (``peers.py``). The model is ``peers.MODEL``: 256 wide, 4 heads, 1,024 in the feed-forward layers, 3 + 3
layers, a joint byte-pair vocabulary of 8,000, pre-norm, dropout 0.3 on sub-layers and inside the feed-forward layers;
batches of at most 4,096 tokens, rows x longer side. A rate counts real target tokens, end symbols included, over wall
time, data loading and optimiser inside, start-up and padding not.
"""

import json
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import peers
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from headway.models.transformer import Transformer
from headway.nn import SinusoidalPositions, TokenEmbedding
from headway.train.hardware import autocast, choose_device, keep_freed_memory, processor_name, product_rate
from headway.train.loop import Stream
from headway.train.objective import TokenBatch, batch_loss, to_device
from headway.train.optim import make_optimizer
from headway.train.prepare import Prepared, prepare
from headway.train.recipe import Recipe
from headway.train.report import Silence
from headway.train.state import Progress

WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Rate:
    """Real tokens per second of one contestant."""

    name: str
    settings: str
    target_tokens_per_s: float
    source_tokens_per_s: float


def recipe(data: Path) -> Recipe:
    """The peers' model and batches as a recipe."""
    model = peers.MODEL
    return Recipe.parse(
        {
            "data": {
                "folder": str(data),
                "train": [{"files": ["train.de", "train.en"]}],
                "max_tokens": peers.MAX_TOKENS,
            },
            "tokenizer": {"vocab_size": peers.VOCABULARY_SIZE},
            "model": {
                "d_model": model.d_model,
                "num_heads": model.num_heads,
                "d_ff": model.d_ff,
                "encoder_layers": model.num_layers,
                "decoder_layers": model.num_layers,
                "dropout": model.dropout,
                "feed_forward_dropout": model.dropout,
                "norm": "pre",
            },
            "optimizer": {"clip_norm": model.clip_norm, "warmup_steps": model.warmup_steps},
            "training": {"label_smoothing": model.label_smoothing},
        },
        "benchmark",
    )


class PlainTransformer(nn.Module):
    """What one writes in an afternoon: ``torch.nn.Transformer`` with embeddings, positions and a tied projection."""

    def __init__(self, setting: Recipe, vocab_size: int) -> None:
        super().__init__()
        config = setting.model
        self.embedding = TokenEmbedding(vocab_size, config.d_model)
        self.positions = SinusoidalPositions(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )

    def loss(self, batch: TokenBatch, smoothing: float) -> Tensor:
        """The summed label-smoothed cross-entropy."""
        causal = nn.Transformer.generate_square_subsequent_mask(batch.shifted.size(1))
        padding = torch.zeros(batch.source.shape).masked_fill(batch.source == 0, -torch.inf)
        hidden = self.transformer(
            self.dropout(self.positions(self.embedding(batch.source))),
            self.dropout(self.positions(self.embedding(batch.shifted))),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = hidden @ self.embedding.weight.T
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target.flatten(), ignore_index=0, label_smoothing=smoothing, reduction="sum"
        )


def measure(name: str, setting: Recipe, prepared: Prepared, seconds: float, precision: str, *, plain: bool) -> Rate:
    """Train for about ``seconds`` and count."""
    device = choose_device("cpu")
    vocab_size = prepared.source_tokenizer.vocab_size
    torch.manual_seed(1)
    model = PlainTransformer(setting, vocab_size) if plain else Transformer(setting.model, vocab_size, vocab_size)
    optimizer = torch.optim.Adam(model.parameters()) if plain else make_optimizer(model, setting.optimizer)
    stream = Stream(prepared.train, setting, Progress())
    sources = targets = 0
    step = 0
    begin = time.perf_counter()
    while step <= WARM_UP_STEPS or time.perf_counter() - begin < seconds:
        batch = to_device(stream.next(), device)
        with autocast(device, precision):
            smoothing = setting.training.label_smoothing
            loss = (
                model.loss(batch, smoothing)
                if isinstance(model, PlainTransformer)
                else batch_loss(model, batch, smoothing)
            )
        torch.autograd.backward(loss / batch.num_targets)
        nn.utils.clip_grad_norm_(model.parameters(), peers.MODEL.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == WARM_UP_STEPS:
            sources = targets = 0
            begin = time.perf_counter()
        elif step > WARM_UP_STEPS:
            sources, targets = sources + batch.num_sources, targets + batch.num_targets
    elapsed = time.perf_counter() - begin
    return Rate(name, precision, targets / elapsed, sources / elapsed)


def main(
    data: Annotated[Path, typer.Option(help="Multi30k: train.de, train.en, val.de, val.en.")],
    workdir: Annotated[Path, typer.Option(help="Where the peers' environments are made.")] = peers.ROOT / ".peers",
    seconds: Annotated[float, typer.Option(help="Steady state measured for each contestant.")] = 60.0,
    threads: Annotated[int, typer.Option(help="Processor threads for each.")] = 2,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure all and print one table."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    setting = recipe(data)
    products = {
        str(dtype).removeprefix("torch."): product_rate(dtype, choose_device("cpu"))
        for dtype in (torch.float32, torch.bfloat16)
    }
    rates = []
    with tempfile.TemporaryDirectory() as run:
        prepared = prepare(setting, Path(run), Silence())
        rates.append(measure("headway", setting, prepared, seconds, "auto", plain=False))
        rates.append(measure("headway", setting, prepared, seconds, "float32", plain=False))
        rates.append(measure("plain torch.nn.Transformer", setting, prepared, seconds, "float32", plain=True))
    for name in peers.PEERS:
        result = peers.run_peer(name, data, workdir, seconds, threads)
        rates.append(
            Rate(
                f"{result.name} {result.version}",
                result.settings,
                result.target_tokens_per_s,
                result.source_tokens_per_s,
            )
        )
    machine = f"{processor_name()}, {threads} threads, PyTorch {version('torch')}, Python {platform.python_version()}"
    table = Table("toolkit", "settings", "target tokens/s", "source tokens/s", "headway is")
    for rate in rates:
        ratio = rates[0].target_tokens_per_s / rate.target_tokens_per_s
        table.add_row(
            rate.name,
            rate.settings,
            f"{rate.target_tokens_per_s:,.0f}",
            f"{rate.source_tokens_per_s:,.0f}",
            f"{ratio:.1f} x",
        )
    console = Console()
    console.print(f"{date.today()}: {machine}")
    console.print("matrix products: " + ", ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in products.items()))
    console.print(table)
    if output is not None:
        figures = {
            "date": str(date.today()),
            "machine": machine,
            "products_gflops": products,
            "rates": [asdict(r) for r in rates],
        }
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
