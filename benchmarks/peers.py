"""How fast do other PyTorch translation toolkits train the same model on the same machine?

Each peer gets a virtual environment of its own, the same tokens and the same model (``MODEL``), and trains through its
own command in its own loop, with those of its settings that proved fastest; ``PEERS`` says which and why. A few lines
(``probe``) run in the peer's process before its command: they wrap the method that takes one training step and print a
line after each, with clock, target tokens, source tokens and loss. Nothing else inside the toolkit changes.

A rate is tokens over wall time from the end of the warm-up to the last step: data loading, optimiser and the toolkit's
own reports are inside, start-up is not, and no peer validates or saves. Padding is never counted. A target token is one
that the loss asks about, so the end of a sentence counts; a source token is one of the file. Losses differ by a
constant between toolkits: JoeyNMT's is a divergence, so a perfect model reaches 0; Eole's is a cross-entropy.

    python benchmarks/peers.py --data FOLDER        # FOLDER holds train.de, train.en, val.de, val.en
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent
SOURCE, TARGET = "de", "en"
VOCABULARY_SIZE = 8_000
MAX_TOKENS = 4_096  # of a batch: rows x longer side, padding included
WARM_UP_STEPS = 5
MARK = "peer-step "


@dataclass(frozen=True)
class Model:
    """The network that every peer trains: pre-norm, sinusoids, one matrix for both embeddings and the output."""

    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1_024
    num_layers: int = 3
    dropout: float = 0.3
    label_smoothing: float = 0.1
    learning_rate_factor: float = 0.5  # times the paper's schedule, the one that the peers share
    warmup_steps: int = 1_000
    clip_norm: float = 1.0


MODEL = Model()


@dataclass(frozen=True)
class PeerResult:
    """What one run measured. Losses are the toolkit's own, per target token, one a step from the first step on."""

    name: str
    version: str
    settings: str
    target_tokens_per_s: float
    source_tokens_per_s: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Peer:
    """A toolkit under one set of settings: what pip installs, its configuration, how its training is watched."""

    toolkit: str
    version: str
    requirements: tuple[str, ...]
    settings: str
    config: Callable[[Path, Path], dict[str, Any]]
    probe: str


@dataclass(frozen=True)
class Step:
    """One training step as the probe saw it end."""

    clock_s: float
    target_tokens: int
    source_tokens: int
    loss: float


def joeynmt_config(tokens: Path, run: Path) -> dict[str, Any]:
    """JoeyNMT's YAML. A batch is closed once rows x longer side, ends included, reaches the limit."""
    stack = {
        "type": "transformer",
        "num_layers": MODEL.num_layers,
        "num_heads": MODEL.num_heads,
        "embeddings": {"embedding_dim": MODEL.d_model, "scale": True, "dropout": MODEL.dropout},
        "hidden_size": MODEL.d_model,
        "ff_size": MODEL.d_ff,
        "dropout": MODEL.dropout,  # also on attention weights and inside the feed-forward layer: no switch
        "layer_norm": "pre",
    }
    side = {"level": "word", "lowercase": False, "normalize": False, "voc_file": str(tokens / "vocabulary")}
    return {
        "name": "peer",
        "model_dir": str(run),
        "use_cuda": False,
        "num_workers": 0,
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
            "scheduling": "noam",
            "learning_rate": 0.0001,  # of the first step; then the schedule takes over
            "learning_rate_factor": MODEL.learning_rate_factor,
            "learning_rate_warmup": MODEL.warmup_steps,
            "learning_rate_min": 0.0,
            "clip_grad_norm": MODEL.clip_norm,
            "label_smoothing": MODEL.label_smoothing,
            "normalization": "tokens",
            "batch_size": MAX_TOKENS,
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
            "encoder": stack,
            "decoder": stack,
        },
    }


def eole_config(tokens: Path, run: Path, precision: str = "fp32") -> dict[str, Any]:
    """Eole's YAML. A batch is filled while rows x longer side stays within the limit; a target counts both marks."""
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
            "num_workers": 0,  # the default is two; on two cores one brought nothing
            "bucket_size": 29_000,  # sentences sorted together: one epoch of Multi30k, where the default holds nine
            "batch_type": "tokens",
            "batch_size": MAX_TOKENS,
            "normalization": "tokens",
            "compute_dtype": precision,
            "log_attention_entropy": False,  # on by default: a report of its own that costs time
            "dropout": [MODEL.dropout],
            "attention_dropout": [0.0],  # as in the paper
            "label_smoothing": MODEL.label_smoothing,
            "optim": "adam",
            "adam_beta2": 0.98,
            "decay_method": "noam",
            "learning_rate": MODEL.learning_rate_factor,
            "warmup_steps": MODEL.warmup_steps,
            "max_grad_norm": MODEL.clip_norm,
            "param_init_method": "xavier_uniform",
            "train_steps": 1_000_000,
            "valid_steps": 1_000_000,
            "save_checkpoint_steps": 1_000_000,
        },
        "model": {
            "architecture": "transformer",
            "layers": MODEL.num_layers,
            "heads": MODEL.num_heads,
            "hidden_size": MODEL.d_model,
            "transformer_ff": MODEL.d_ff,
            "add_qkvbias": True,
            "add_ffnbias": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": MODEL.d_model, "position_encoding_type": "SinusoidalInterleaved"},
        },
    }


# Both probes end in the peer's own command line and see `report(target_tokens, source_tokens, loss)`.
REPORT = f"""
import json, sys, time
def report(*numbers):
    print({MARK!r} + json.dumps([time.perf_counter(), *numbers]), flush=True)
"""
JOEYNMT_PROBE = """
from joeynmt import __main__, training
take_step = training.TrainManager._train_step
def watched_step(self, batch):
    loss, correct = take_step(self, batch)
    report(batch.ntokens, int(batch.src_length.sum()) - batch.nseqs, loss)
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
    loss, target, source = total.loss, total.n_tokens, total.n_src_tokens
    take_step(self, batches, normalization, total, *others, **named)
    target = total.n_tokens - target
    report(target, total.n_src_tokens - source, (total.loss - loss) / target)
trainer.Trainer._train_step = watched_step
sys.argv[1:] = ["train", "--config", sys.argv[1]]
main()
"""

EOLE = Peer(
    toolkit="eole",
    version="0.6.4",
    requirements=("eole==0.6.4", "aiohttp"),  # its command imports aiohttp, which its package does not ask for
    settings="float32, no attention dropout, buckets of one epoch, no data worker",
    config=eole_config,
    probe=EOLE_PROBE,
)
PEERS = {
    # Its package does not ask for importlib_metadata, which it imports. It has no 16-bit training on a CPU.
    "joeynmt": Peer(
        toolkit="joeynmt",
        version="2.3.0",
        requirements=("joeynmt==2.3.0", "importlib_metadata"),
        settings="float32, batches not grouped by length (it has no way to), no data worker",
        config=joeynmt_config,
        probe=JOEYNMT_PROBE,
    ),
    "eole": EOLE,
    "eole-bf16": replace(
        EOLE,
        settings=EOLE.settings.replace("float32", "bfloat16 autocast, float32 weights"),
        config=partial(eole_config, precision="bf16"),
    ),
}


def run_peer(name: str, data: Path, workdir: Path, seconds: float, threads: int = 2) -> PeerResult:
    """Train a peer for ``seconds`` after its warm-up, on ``data`` (train.de, train.en, val.de, val.en).

    What is missing in ``workdir`` (the peer's environment, the tokens) is made first.
    """
    peer = PEERS[name]
    python = install(peer, workdir)
    tokens = prepare(data, workdir)
    run = workdir / f"{name}-run"
    shutil.rmtree(run, ignore_errors=True)
    config = workdir / f"{name}.yaml"
    config.write_text(json.dumps(peer.config(tokens, run), indent=2))  # JSON is YAML
    command = [str(python), "-c", REPORT + peer.probe, str(config)]
    steps = take_steps(command, workdir / f"{name}.log", seconds, threads)
    measured = steps[WARM_UP_STEPS:]
    elapsed_s = measured[-1].clock_s - steps[WARM_UP_STEPS - 1].clock_s
    return PeerResult(
        name=name,
        version=peer.version,
        settings=f"{threads} threads, {peer.settings}",
        target_tokens_per_s=sum(step.target_tokens for step in measured) / elapsed_s,
        source_tokens_per_s=sum(step.source_tokens for step in measured) / elapsed_s,
        losses=tuple(step.loss for step in steps),
    )


def install(peer: Peer, workdir: Path) -> Path:
    """Make the peer's environment unless it stands, and return its Python. Torch is the version of our own tests."""
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


def prepare(data: Path, workdir: Path) -> Path:
    """Write the corpus as tokens between spaces (one joint byte-level BPE), and its vocabulary as one token a line."""
    folder = workdir / "tokens"
    if folder.exists():
        return folder
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(data / f"train.{language}") for language in (SOURCE, TARGET)], trainer)
    workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workdir) as scratch:
        unfinished = Path(scratch, "tokens")
        unfinished.mkdir()
        vocabulary = tokenizer.get_vocab()
        write_lines(unfinished / "vocabulary", sorted(vocabulary, key=vocabulary.__getitem__))
        for file in (f"{split}.{language}" for split in ("train", "val") for language in (SOURCE, TARGET)):
            lines = (data / file).read_text(encoding="utf-8").rstrip("\n").split("\n")
            write_lines(unfinished / file, [" ".join(encoding.tokens) for encoding in tokenizer.encode_batch(lines)])
        unfinished.rename(folder)
    return folder


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write one line each, with a newline after the last."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def take_steps(command: Sequence[str], log: Path, seconds: float, threads: int) -> list[Step]:
    """Run a probe, collect its steps, and end it ``seconds`` after the warm-up; what else it prints goes to ``log``."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
    }
    steps: list[Step] = []
    with (
        log.open("w") as transcript,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=log.parent,
            start_new_session=True,  # so that its children end with it
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if not line.startswith(MARK):
                    transcript.write(line)
                    continue
                steps.append(Step(*json.loads(line.removeprefix(MARK))))
                if len(steps) > WARM_UP_STEPS and steps[-1].clock_s - steps[WARM_UP_STEPS - 1].clock_s >= seconds:
                    return steps
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    raise RuntimeError(f"the peer ended after {len(steps)} steps, before its time was up; its output is in {log}")


def main(
    data: Annotated[Path, typer.Option(help="Folder with train.de, train.en, val.de and val.en.")],
    workdir: Annotated[Path, typer.Option(help="Where environments and tokens are kept.")] = ROOT / ".peers",
    seconds: Annotated[float, typer.Option(help="Measured time a peer, after its warm-up, in seconds.")] = 75.0,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch.")] = 2,
    peer: Annotated[list[str] | None, typer.Option(help="Run only this one; may be repeated.")] = None,
) -> None:
    """Measure the training speed of other toolkits on this machine."""
    names = peer or list(PEERS)
    if unknown := set(names) - set(PEERS):
        raise typer.BadParameter(f"{sorted(unknown)}: expected one of {list(PEERS)}", param_hint="--peer")
    table = Table("peer", "version", "settings", "target tokens/s", "source tokens/s", "last loss")
    for name in names:
        result = run_peer(name, data.resolve(), workdir.resolve(), seconds, threads)
        rates = (f"{result.target_tokens_per_s:,.0f}", f"{result.source_tokens_per_s:,.0f}")
        table.add_row(result.name, result.version, result.settings, *rates, f"{result.losses[-1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
