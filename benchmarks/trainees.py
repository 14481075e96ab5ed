"""Two contestants, Headway and a plain training loop, which train and print a line after each step.

The plain loop is a simple one: ``torch.nn.Transformer`` in float32 with Adam, on Headway's batches. The model has the
sizes of a preset, pre-norm layers, sinusoids, one matrix for both embeddings and the output, and dropout on embeddings,
sublayers and inside the feed-forward layers, because all contestants support these options. Headway can also train the
paper's own blocks: post-norm, without dropout inside the feed-forward layers. A step does the same as in
``headway.training``'s loop: next batch, loss, backward, clip, optimizer, and from time to time returning freed memory.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from contest import MARK
from torch import Tensor, nn

from headway.engine.accelerate import accelerate
from headway.hardware import autocast, choose_device, keep_freed_memory, return_freed_memory
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import SinusoidalPositions, TokenEmbedding
from headway.tasks import parse_recipe, task_of
from headway.tasks.translation import TranslationObjective
from headway.text.base import PAD
from headway.training.optim import clip_and_step, make_optimizer
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.stream import BatchStream, StepBatches, TokenBatch
from headway.training.task import RunData

SOURCE, TARGET = "de", "en"
VOCABULARY_SIZE = 8_000
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
CLIP_NORM = 1.0
LEARNING_RATE = 1e-4
RETURN_MEMORY_EVERY = 50  # steps; training does this when it logs


def recipe(data: Path, preset: str, max_tokens: int = 4_096, pool_size: int = 29_000) -> Recipe:
    """Return the recipe of the comparison. ``data`` contains train.de, train.en, val.de and val.en."""
    return parse_recipe(
        {
            "data": {
                "folder": str(data),
                "train": [{"files": [f"train.{SOURCE}", f"train.{TARGET}"]}],
                "dev": {"files": [f"val.{SOURCE}", f"val.{TARGET}"]},
                "max_tokens": max_tokens,
                "pool_size": pool_size,
            },
            "tokenizer": {"vocab_size": VOCABULARY_SIZE},
            "model": {"preset": preset, "norm": "pre", "dropout": DROPOUT, "feed_forward_dropout": DROPOUT},
            "optimizer": {"clip_norm": CLIP_NORM},
            "training": {"label_smoothing": LABEL_SMOOTHING},
        },
        "benchmark",
    )


def sizes(setting: Recipe) -> TransformerConfig:
    """Return the configuration of the recipe's model."""
    assert isinstance(setting.model, TransformerConfig)
    return setting.model


def prepare_corpus(
    data: Path, workdir: Path, preset: str, max_tokens: int = 4_096, pool_size: int = 29_000
) -> tuple[Recipe, RunData]:
    """Return the recipe and its prepared data; tokenizer and tokens are created once in ``workdir``."""
    setting = recipe(data, preset, max_tokens, pool_size)
    prepared = task_of(setting).prepare(setting, workdir / "headway", Listener())
    assert prepared is not None
    return setting, prepared


class PlainTransformer(nn.Module):
    """``torch.nn.Transformer`` with embeddings, positions and a tied projection."""

    def __init__(self, config: TransformerConfig, vocab_size: int) -> None:
        super().__init__()
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
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # the other contestants have no dropout on attention weights

    def loss(self, batch: TokenBatch) -> Tensor:
        """Compute the summed label-smoothed cross-entropy."""
        causal = nn.Transformer.generate_square_subsequent_mask(batch.decoder_input.size(1))
        padding = torch.zeros(batch.source.shape).masked_fill(batch.source == PAD, -torch.inf)
        hidden = self.transformer(
            self.dropout(self.positions(self.embedding(batch.source))),
            self.dropout(self.positions(self.embedding(batch.decoder_input))),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = hidden @ self.embedding.weight.T
        target = torch.full(batch.decoder_input.shape, PAD)
        target.view(-1)[batch.target_positions] = batch.targets
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=LABEL_SMOOTHING, reduction="sum"
        )


def train(
    model: nn.Module,
    loss: Callable[[TokenBatch], Tensor],
    take_step: Callable[[], object],
    stream: BatchStream,
    precision: str,
) -> None:
    """Train until the process is killed. ``take_step`` updates the weights after the backward pass."""
    device = choose_device("cpu")
    model.train()
    for step, work in enumerate(stream, start=1):
        torch.manual_seed(step)
        total = 0.0
        for batch in work.micro_batches.values():
            with autocast(device, precision):
                mean = loss(batch) / work.num_target_tokens
            torch.autograd.backward(mean)
            total += float(mean)
        take_step()
        model.zero_grad()
        if step % RETURN_MEMORY_EVERY == 0:
            return_freed_memory()
        print(MARK + json.dumps([time.perf_counter(), *lengths(work), total]), flush=True)


def lengths(work: StepBatches) -> tuple[list[int], list[int]]:
    """Return the lengths of the sources and of the targets in tokens, including end symbols."""
    source: list[int] = []
    target: list[int] = []
    for batch in work.micro_batches.values():
        rows, width = batch.decoder_input.shape
        source += (batch.source != PAD).sum(1).tolist()
        target += torch.bincount(batch.target_positions // width, minlength=rows).tolist()
    return source, target


def main(
    data: Annotated[Path, typer.Option(help="Folder with train.de, train.en, val.de and val.en.")],
    workdir: Annotated[Path, typer.Option(help="Folder for the tokens.")],
    preset: Annotated[str, typer.Option(help="Sizes of the model: tiny, small, base or big.")] = "base",
    kind: Annotated[
        Literal["headway", "paper", "plain"],
        typer.Option(help="Headway, Headway with the paper's blocks, or the plain loop."),
    ] = "headway",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    max_tokens: Annotated[int, typer.Option(help="Maximum number of tokens in a batch.")] = 4_096,
    pool_size: Annotated[int, typer.Option(help="Number of sentences sorted by length together.")] = 29_000,
) -> None:
    """Train until killed, and print the lengths of each step. OMP_NUM_THREADS sets the number of threads."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    keep_freed_memory()
    setting, prepared = prepare_corpus(data, workdir, preset, max_tokens, pool_size)
    vocab_size = prepared.tokenizers.source.vocab_size
    stream = BatchStream(prepared.train, setting, choose_device("cpu"))
    torch.manual_seed(1)
    if kind == "plain":
        plain = PlainTransformer(sizes(setting), vocab_size)
        plain_optimizer = torch.optim.Adam(plain.parameters(), LEARNING_RATE)

        def take_plain_step() -> None:
            nn.utils.clip_grad_norm_(plain.parameters(), CLIP_NORM)
            plain_optimizer.step()

        train(plain, plain.loss, take_plain_step, stream, precision)
    config = TransformerConfig.preset(preset, dropout=DROPOUT) if kind == "paper" else sizes(setting)
    model = accelerate(Transformer(config, vocab_size, vocab_size))
    optimizer = make_optimizer(model, setting.optimizer)
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    train(
        model,
        TranslationObjective(model, LABEL_SMOOTHING),
        lambda: clip_and_step(optimizer, CLIP_NORM),
        stream,
        precision,
    )


if __name__ == "__main__":
    typer.run(main)
