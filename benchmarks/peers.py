"""Measure how fast other PyTorch translation toolkits train the same model on the same machine.

Each peer has its own virtual environment and trains the same model (``trainees.py``) with its own command and training
loop. Each Headway token is treated as a word. Before the peer's command, a few lines (``probe``) run in its process.
They wrap the method that takes one training step and print the lengths of its sentences (``contest.py``). Nothing else
in the toolkit is changed. ``--sweep`` searches for each peer's fastest settings: batch size, data workers, the number
of sentences that are sorted together (if the toolkit sorts them), and whether the C library keeps freed memory for the
next step (set by an environment variable). None of the peers can train in several processes on a CPU.

    python benchmarks/peers.py --data FOLDER --sweep        # FOLDER contains train.de, train.en, val.de, val.en
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from contest import REPORT, Running, Settings, Trial, measure_once, sweep
from rich.console import Console
from rich.table import Table
from trainees import CLIP_NORM, DROPOUT, LABEL_SMOOTHING, LEARNING_RATE, SOURCE, TARGET, prepare_corpus, sizes

from headway.models.transformer import TransformerConfig
from headway.storage import atomic_write_folder
from headway.text.base import EOS, NUM_SPECIAL
from headway.training.task import RunData

ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Peer:
    """A toolkit: its pip requirements, its configuration, the code that reports its steps, and the axes of a sweep."""

    toolkit: str
    version: str
    requirements: tuple[str, ...]
    precision: str
    config: Callable[[Path, Path, TransformerConfig, Settings], dict[str, Any]]
    probe: str
    start: Settings
    axes: dict[str, tuple[Any, ...]]


def joeynmt_config(tokens: Path, run: Path, model: TransformerConfig, settings: Settings) -> dict[str, Any]:
    """Return JoeyNMT's configuration. A batch is complete when rows x longer side (including BOS and EOS) reaches the
    limit."""
    stack = {
        "type": "transformer",
        "num_heads": model.num_heads,
        "embeddings": {"embedding_dim": model.d_model, "scale": True, "dropout": DROPOUT},
        "hidden_size": model.d_model,
        "ff_size": model.d_ff,
        "dropout": DROPOUT,  # also on attention weights, which JoeyNMT cannot turn off
        "layer_norm": "pre",
    }
    side = {"level": "word", "lowercase": False, "normalize": False, "voc_file": str(tokens / "vocabulary")}
    return {
        "name": "peer",
        "model_dir": str(run),
        "use_cuda": False,
        "num_workers": settings.workers,
        "random_seed": 1,
        "data": {
            "dataset_type": "plain",
            "train": str(tokens / "train"),
            "dev": str(tokens / "val"),
            "src": {"lang": SOURCE, **side},
            "trg": {"lang": TARGET, **side},
        },
        "testing": {},
        "training": {
            "overwrite": True,
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "scheduling": "noam",  # JoeyNMT requires a schedule
            "learning_rate_factor": 0.5,
            "learning_rate_warmup": 4_000,
            "clip_grad_norm": CLIP_NORM,
            "label_smoothing": LABEL_SMOOTHING,
            "normalization": "tokens",
            "batch_size": settings.max_tokens,
            "batch_type": "token",
            "epochs": 1_000,
            "logging_freq": 100,
            "validation_freq": 1_000_000,
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": {**stack, "num_layers": model.encoder_layers},
            "decoder": {**stack, "num_layers": model.decoder_layers},
        },
    }


def eole_config(
    tokens: Path, run: Path, model: TransformerConfig, settings: Settings, precision: str = "fp32"
) -> dict[str, Any]:
    """Return Eole's configuration.

    A batch is filled while rows x longer side stays within the limit. The length of a target includes BOS and EOS.
    """
    return {
        "seed": 1,
        "share_vocab": True,
        "src_vocab": str(tokens / "vocabulary"),
        "overwrite": True,
        "report_every": 100,
        "data": {"train": {"path_src": str(tokens / f"train.{SOURCE}"), "path_tgt": str(tokens / f"train.{TARGET}")}},
        "training": {
            "model_path": str(run),
            "world_size": 0,
            "gpu_ranks": [],
            "num_workers": settings.workers,
            "bucket_size": settings.pool_size,
            "batch_type": "tokens",
            "batch_size": settings.max_tokens,
            "normalization": "tokens",
            "compute_dtype": precision,
            "log_attention_entropy": False,  # on by default, and takes time
            "dropout": [DROPOUT],
            "attention_dropout": [0.0],
            "label_smoothing": LABEL_SMOOTHING,
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": LEARNING_RATE,
            "max_grad_norm": CLIP_NORM,
            "param_init_method": "xavier_uniform",
            "train_steps": 1_000_000,
            "valid_steps": 1_000_000,
            "save_checkpoint_steps": 1_000_000,
        },
        "model": {
            "architecture": "transformer",
            "encoder": {"encoder_type": "transformer", "layers": model.encoder_layers},
            "decoder": {"decoder_type": "transformer", "layers": model.decoder_layers},
            "heads": model.num_heads,
            "hidden_size": model.d_model,
            "transformer_ff": model.d_ff,
            "add_qkvbias": True,
            "add_ffnbias": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": model.d_model, "position_encoding_type": "SinusoidalInterleaved"},
        },
    }


# Both probes end by running the peer's command line. JoeyNMT's loss is a divergence, Eole's is a cross-entropy.
JOEYNMT_PROBE = """
from joeynmt import __main__, training
take_step = training.TrainManager._train_step
def watched_step(self, batch):
    loss, correct = take_step(self, batch)
    report(batch.src_length.tolist(), batch.trg_mask.sum((1, 2)).tolist(), loss)
    return loss, correct
training.TrainManager._train_step = watched_step
sys.argv[1:] = ["train", sys.argv[1], "--skip-test"]
__main__.main()
"""
EOLE_PROBE = """
from eole import trainer
from eole.bin.main import main
take_step = trainer.Trainer._train_step
def watched_step(self, batches, normalization, total, *others, **named):
    loss = total.loss
    take_step(self, batches, normalization, total, *others, **named)
    source = [length + 1 for batch in batches for length in batch["srclen"].tolist()]  # its sources have no end symbol
    padding = self.train_loss.padding_idx
    target = [length for batch in batches for length in batch["tgt"][:, 1:].ne(padding).sum(1).tolist()]
    report(source, target, (total.loss - loss) / sum(target))
trainer.Trainer._train_step = watched_step
sys.argv[1:] = ["train", "--config", sys.argv[1]]
main()
"""
BATCH_SIZES = (2_048, 8_192)
EOLE = Peer(
    toolkit="eole",
    version="0.6.4",
    requirements=("eole==0.6.4", "aiohttp"),  # its command imports aiohttp, which its package does not require
    precision="float32",
    config=eole_config,
    probe=EOLE_PROBE,
    start=Settings(),
    axes={
        "keep_freed_memory": (False,),
        "max_tokens": BATCH_SIZES,
        "pool_size": (262_144,),  # Eole's default
        "workers": (1,),
    },
)
PEERS = {
    # JoeyNMT imports importlib_metadata without requiring it, and calls functions that later releases of SentencePiece
    # have removed. It supports neither 16-bit training on a CPU nor batches of similar lengths.
    "joeynmt": Peer(
        toolkit="joeynmt",
        version="2.3.0",
        requirements=("joeynmt==2.3.0", "importlib_metadata", "sentencepiece==0.2.0"),
        precision="float32",
        config=joeynmt_config,
        probe=JOEYNMT_PROBE,
        start=Settings(pool_size=None),
        axes={"keep_freed_memory": (False,), "max_tokens": BATCH_SIZES, "workers": (1,)},
    ),
    "eole": EOLE,
    "eole-bf16": replace(EOLE, precision="bfloat16", config=partial(eole_config, precision="bf16")),
}


def begin_peer(name: str, preset: str, data: Path, workdir: Path, threads: int, settings: Settings) -> Running:
    """Start a peer on ``data`` (train.de, train.en, val.de, val.en).

    If the peer's environment or the tokens are missing in ``workdir``, they are created first.
    """
    peer = PEERS[name]
    python = install(peer, workdir)
    recipe, prepared = prepare_corpus(data, workdir, preset)
    tokens = write_tokens(prepared, workdir)
    run = workdir / f"{name}-run"
    shutil.rmtree(run, ignore_errors=True)
    config = workdir / f"{name}.yaml"
    config.write_text(json.dumps(peer.config(tokens, run, sizes(recipe), settings), indent=2))  # JSON is YAML
    command = [str(python), "-c", REPORT + peer.probe, str(config)]
    return Running(
        command,
        workdir / f"{name}.log",
        threads,
        sizes(recipe),
        prepared.tokenizers.source.vocab_size,
        keep_freed_memory=settings.keep_freed_memory,
    )


def install(peer: Peer, workdir: Path) -> Path:
    """Create the peer's environment if it is missing, and return its Python. The PyTorch version is the same as in our
    tests."""
    constraints = (ROOT.parent / "constraints.txt").read_text().splitlines()
    torch = next(line for line in constraints if line.startswith("torch=="))
    environment = workdir / peer.toolkit
    python = environment / "bin" / "python"
    ready = environment / ".ready"
    wanted = "\n".join((torch, *peer.requirements))
    if not ready.exists() or ready.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", torch], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", torch, *peer.requirements], check=True)
        ready.write_text(wanted)
    return python


def write_tokens(prepared: RunData, workdir: Path) -> Path:
    """Write the corpus as ids separated by spaces, and the vocabulary as one id per line, and return the folder.

    The toolkits treat each id as a word.
    """
    folder = workdir / "words"
    if folder.exists():
        return folder
    assert prepared.dev is not None
    with atomic_write_folder(folder) as aside:
        write_lines(aside / "vocabulary", map(str, range(NUM_SPECIAL, prepared.tokenizers.source.vocab_size)))
        for split, corpora in {"train": prepared.train, "val": prepared.dev}.items():
            batch = corpora.batch(np.arange(len(corpora)))
            for language, rows in {SOURCE: batch.source, TARGET: batch.target}.items():
                write_lines(aside / f"{split}.{language}", (" ".join(map(str, row[row > EOS])) for row in rows))
    return folder


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each followed by a newline."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def trials_table(title: str, trials: Sequence[Trial]) -> Table:
    """Return a table of the trials of a sweep, one row each."""
    table = Table("settings", "target tokens/s", "source tokens/s", "peak GiB", "loss", title=title)
    for trial in trials:
        if trial.speed is None:
            table.add_row(str(trial.settings), trial.failure)
        else:
            table.add_row(
                str(trial.settings),
                f"{trial.speed.target_tokens_per_s:,.0f}",
                f"{trial.speed.source_tokens_per_s:,.0f}",
                f"{trial.speed.peak_bytes / 2**30:.2f}",
                f"{trial.speed.loss:.2f}",
            )
    return table


def main(
    data: Annotated[Path, typer.Option(help="Folder with train.de, train.en, val.de and val.en.")],
    workdir: Annotated[Path, typer.Option(help="Folder for environments and tokens.")] = ROOT / ".peers",
    models: Annotated[str, typer.Option(help="Presets, separated by commas.")] = "base,small",
    seconds: Annotated[float, typer.Option(help="Seconds of measurement in each run, after the warm-up.")] = 20.0,
    threads: Annotated[int, typer.Option(help="Number of PyTorch's threads.")] = 2,
    peer: Annotated[list[str] | None, typer.Option(help="Run only this peer; may be repeated.")] = None,
    search: Annotated[bool, typer.Option("--sweep", help="Search for the fastest settings.")] = False,
) -> None:
    """Measure the training speed of other toolkits on this machine."""
    names = peer or list(PEERS)
    if unknown := set(names) - set(PEERS):
        raise typer.BadParameter(f"{sorted(unknown)}: expected one of {list(PEERS)}", param_hint="--peer")
    for preset in models.split(","):
        for name in names:
            begin = partial(begin_peer, name, preset, data.resolve(), workdir.resolve(), threads)
            run = partial(measure_once, begin, seconds)
            best, trials = sweep(run, PEERS[name].axes if search else {}, PEERS[name].start)
            title = f"{name} {PEERS[name].version}, {preset} model, {PEERS[name].precision}"
            Console().print(trials_table(f"{title}: best with {best.settings}", trials))


if __name__ == "__main__":
    typer.run(main)
