"""Record artifacts of an earlier commit for :mod:`test_recorded`: small real folders of every kind, and their results.

    git worktree add ../old COMMIT
    PYTHONPATH=../old/src python tests/compat/record.py

Each line of ``recorded/SOURCE`` has the commit that made an archive, the beginning of its BLAKE2b checksum, and its
name. An archive that exists is never recorded again. When a format changes, record artifacts of the last commit before
the change under new names (``--prefix``). This script depends on internals of the recorded commit, and may be changed
for a later one.

To record a new architecture, task, export format, family of imports or kind of tokenizer, add it to a table below;
:mod:`test_recorded` fails until there is an archive of each.

Archives, by the first part of their names:

    bundle-*  a model folder; the archives together have every option of every architecture
    run-*     a run folder in mid-training, its corpus and its recipe, and the losses of the following steps of an
              uninterrupted run
    store-*   a run folder with tokenizers and token stores before training, its corpus and its recipe
    import-*  a folder of a Hugging Face format, and the model folder imported from it
    export-*  a model folder, and the folder that it was exported to
    recipes   the resolved form of each recipe in recipes/
    orders*   the batches of three epochs (:mod:`orders`), for each version of the order

Each archive has ``expected.json``. Texts are from Unicode CLDR (:func:`headway.data.builtin.build_corpus`). Widths are
as small as the options allow. The weights of ``bundle-*`` are rounded to bfloat16 values after training: half of each
number is then zero, and compresses to nothing.
"""

# mypy: ignore-errors
# It runs with an earlier commit's code, whose names and signatures this commit need not have.

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from observing import EXPORT_FORMATS, RECORDED, checked_command, command, losses, observe, pack
from orders import observed_orders
from safetensors.torch import load_file, save_file

from headway.config import to_toml
from headway.data.builtin import build_corpus
from headway.data.draws import ORDER_VERSION
from headway.errors import ConfigError
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES
from headway.interop.huggingface.families import FAMILIES
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.t5_importing import T5_FAMILIES
from headway.models.registry import ARCHITECTURES
from headway.storage import checksum
from headway.tasks import load_recipe, train
from headway.training import snapshot as state
from headway.training.environment import git_commit
from headway.training.report import Listener

ROOT = Path(__file__).parents[2]
STOP, STEPS = 6, 16  # training is interrupted after step 6 of 16
ROUNDED = 6  # decimals

Sections = dict[str, dict[str, Any]]

SMALL: dict[str, Any] = {"d_model": 8, "num_heads": 2, "d_ff": 12, "encoder_layers": 1, "decoder_layers": 1}
BLOCKS: dict[str, Any] = {"d_model": 8, "num_heads": 2, "d_ff": 12, "max_length": 16}
PLAIN: dict[str, Any] = {"dropout": 0.0}
WIDE: dict[str, Any] = {"d_model": 32, "num_heads": 4, "d_ff": 32}  # rows of 32: the int8 kernels take them
ROTARY: dict[str, Any] = {
    "positions": "rotary",
    "rotary_base": 100.0,
    "rotary_fraction": 0.5,
    "rotary_scaling": {"kind": "llama3", "factor": 4.0, "original_length": 8},
}
RELATIVE: Sections = {
    "model": {
        "positions": "relative_bias",
        "relative_buckets": 8,
        "relative_max_distance": 9,
        "activation": "geglu_tanh",
        "norm": "pre",
    },
}

TRANSFORMERS: dict[str, Sections] = {
    "base": {},
    "learned-gelu-pre": {
        "model": {"positions": "learned", "max_length": 64, "activation": "gelu", "norm": "pre", "output_bias": True},
    },
    "rotary-silu-dot": {
        "model": {"positions": "rotary", "activation": "silu", "score": "dot", "embedding_norm": True},
        "tokenizer": {"kind": "bpe", "vocab_size": 300, "split_digits": True},
    },
    "halves-glu-additive": {
        "model": {"sinusoid_layout": "halves", "activation": "glu", "score": "additive", "tie": "none"},
        "tokenizer": {"joint": False},
    },
    "inclusive-reglu-general": {
        "model": {"sinusoid_spacing": "inclusive", "activation": "reglu", "score": "general", "d_key": 3, "d_value": 5},
    },
    "offset-geglu-cosine": {
        "model": {"position_offset": 2, "activation": "geglu", "score": "cosine", "tie": "target"},
        "tokenizer": {"joint": False},
    },
    "none-swiglu-feed-forward": {
        "model": {"positions": "none", "activation": "swiglu", "score": "feed_forward", "scale_embedding": False},
    },
    "no-residual-hidden": {"model": {"residual": False, "qk_projection": "hidden", "norm": "none"}},
    "dropouts-layers": {
        "model": {
            "dropout": 0.05,
            "attention_dropout": 0.05,
            "feed_forward_dropout": 0.05,
            "layer_dropout": 0.05,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "norm": "pre",
            "activation": "swiglu",
            "positions": "rotary",
        },
    },
    "int8": {"model": WIDE},
    "grouped-rms-gelu-tanh": {
        "model": {**ROTARY, "num_kv_heads": 1, "norm_kind": "rms", "norm_epsilon": 1e-4, "bias": "none"},
        "tokenizer": {"kind": "whitespace"},
    },
    "windows-qk-norm": {
        "model": {"bias": "qkv", "qk_norm": True, "encoder_window": 5, "decoder_window": 4, "activation": "gelu_tanh"},
    },
    "words": {"tokenizer": {"kind": "words", "vocab_size": 300}},
    "inputs-tied": {"model": {"tie": "inputs"}},
    "relative": {"model": {**RELATIVE["model"], "tie": "inputs"}},
}
RECURRENT: dict[str, Sections] = {
    "default": {},
    "cho": {"model": {"attention": "none", "context": "every_step", "bidirectional": False, "d_embedding": 6}},
    "sutskever": {
        "model": {"attention": "none", "context": "start", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 2},
    },
    "bahdanau-lstm-feed-forward": {
        "model": {"cell": "lstm", "score": "feed_forward", "score_hidden": 5, "output_bias": True, "summary": "mean"},
    },
    "bahdanau-dot": {"model": {"score": "dot", "summary": "max", "tie": "none"}},
    "luong": {
        "model": {
            "attention": "luong",
            "score": "general",
            "cell": "lstm",
            "bidirectional": False,
            "input_feeding": True,
        }
    },
    "luong-scaled": {"model": {"attention": "luong", "score": "scaled_dot", "tie": "target", "decoder_layers": 2}},
    "luong-cosine": {"model": {"attention": "luong", "score": "cosine"}},
    "luong-additive": {"model": {"attention": "luong", "score": "additive", "score_hidden": 3}},
    "inputs-tied": {"model": {"tie": "inputs"}},
}
CLASSIFIERS: dict[str, Sections] = {
    "default": {},
    "max-convolution": {
        "model": {"pooling": "max", "convolution": 3, "activation": "gelu", "positions": "learned", "norm": "post"},
    },
    "mean-max-rotary": {"model": {"pooling": "mean_max", "positions": "rotary", "score": "dot", "activation": "silu"}},
    "first-none": {
        "model": {"pooling": "first", "positions": "none", "activation": "glu", "score": "cosine", "max_length": 20},
    },
    "last-padded": {
        "model": {
            "pooling": "last",
            "masked": False,
            "pad_to_max_length": True,
            "max_length": 24,
            "activation": "reglu",
        }
        | {"residual": False, "norm": "none", "score": "general"},
    },
    "attention-dropouts": {
        "model": {
            "pooling": "attention",
            "scale_embedding": False,
            "qk_projection": "hidden",
            "activation": "geglu",
            "dropout": 0.05,
            "embedding_dropout": 0.05,
            "attention_dropout": 0.05,
            "feed_forward_dropout": 0.05,
            "word_dropout": 0.05,
            "pooled_dropout": 0.05,
            "score": "additive",
        },
    },
    "swiglu": {"model": {"activation": "swiglu", "score": "feed_forward", "encoder_layers": 2}},
    "no-block": {"model": {"encoder_layers": 0}},
    "relative": RELATIVE,
    "grouped-rms-gelu-tanh": {
        "model": {**ROTARY, "num_kv_heads": 1, "norm_kind": "rms", "norm_epsilon": 1e-4, "bias": "none"},
    },
    "window-qk-norm": {
        "model": {"bias": "qkv", "qk_norm": True, "encoder_window": 5, "activation": "gelu_tanh"}
        | {"d_key": 3, "d_value": 5, "layer_dropout": 0.05},
    },
}
# Options of blocks that both kinds of language models have: each list of literals is complete.
LANGUAGE_MODELS: dict[str, Sections] = {
    "default": {},
    "grouped-rms-relu": {
        "model": {**ROTARY, "num_kv_heads": 1, "norm_kind": "rms", "norm_epsilon": 1e-4, "bias": "none"}
        | {"activation": "relu", "tie": "none"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
    },
    "qk-norm-gelu-tanh": {
        "model": {"bias": "qkv", "qk_norm": True, "activation": "gelu_tanh", "positions": "sinusoidal"}
        | {"scale_embedding": True, "score": "dot", "norm": "post"},
        "tokenizer": {"kind": "whitespace"},
    },
    "silu-none-additive": {
        "model": {"activation": "silu", "positions": "none", "score": "additive", "d_key": 3, "d_value": 5}
        | {"norm": "none"},
    },
    "glu-general": {"model": {"activation": "glu", "score": "general", "qk_projection": "hidden"}},
    "reglu-cosine": {"model": {"activation": "reglu", "score": "cosine", "residual": False}},
    "geglu-feed-forward": {"model": {"activation": "geglu", "score": "feed_forward", "norm": "pre"}},
    "relative": RELATIVE,
    "swiglu-dropouts": {
        "model": {
            "activation": "swiglu",
            "dropout": 0.05,
            "attention_dropout": 0.05,
            "feed_forward_dropout": 0.05,
            "layer_dropout": 0.05,
        },
    },
}
DECODER_ONLY: dict[str, Sections] = {
    **LANGUAGE_MODELS,
    "parallel-window": {"model": {"parallel": True, "decoder_window": 4, "output_bias": True, "decoder_layers": 2}},
}
MASKED: dict[str, Sections] = {
    **LANGUAGE_MODELS,
    "window-segments": {
        "model": {"encoder_window": 5, "global_every": 2, "local_rotary_base": 50.0, "positions": "rotary"}
        | {"num_segments": 2, "embedding_norm": False, "output_bias": False, "encoder_layers": 3},
    },
}
RECURRENT_LMS: dict[str, Sections] = {
    "default": {},
    "gru": {"model": {"cell": "gru", "d_embedding": 6, "num_layers": 1, "tie": "none", "carry_state": False}},
    "dropouts": {
        "model": {
            "dropout": 0.05,
            "input_dropout": 0.05,
            "output_dropout": 0.05,
            "word_type_dropout": 0.05,
            "weight_drop": 0.05,
            "output_bias": False,
        },
    },
}
SEQUENCE_CLASSIFIERS: dict[str, Sections] = {
    "default": {},
    "max-tanh": {"model": {"pooling": "max", "dense": "tanh", "dense_norm": True}},
    "mean-max-relu": {"model": {"pooling": "mean_max", "dense": "relu", "pooled_dropout": 0.05}},
    "first-gelu": {"model": {"pooling": "first", "dense": "gelu", "word_dropout": 0.05}},
    "last-decoder-only": {
        "model": {"pooling": "last", "body": {"kind": "decoder_only", **BLOCKS, "decoder_layers": 1}}
    },
    "attention": {"model": {"pooling": "attention"}},
}
BUNDLES: dict[str, dict[str, Sections]] = {
    "transformer": TRANSFORMERS,
    "recurrent": RECURRENT,
    "classifier": CLASSIFIERS,
    "decoder_only": DECODER_ONLY,
    "recurrent_lm": RECURRENT_LMS,
    "masked": MASKED,
    "sequence_classifier": SEQUENCE_CLASSIFIERS,
}
UNUSED = {"decoder_only": {"encoder_window"}, "masked": {"decoder_window"}, "classifier": {"decoder_window"}}
# By the capability of an architecture.
TASK_KINDS = {
    "translates": "translation",
    "labels": "classification",
    "continues": "language_model",
    "fills": "masked_language_model",
}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {**SMALL, **PLAIN},
    "recurrent": {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, **PLAIN},
    "classifier": {"d_model": 8, "num_heads": 2, "d_ff": 12, **PLAIN},
    "decoder_only": {**BLOCKS, "decoder_layers": 1, **PLAIN},
    "recurrent_lm": {"d_model": 8, "max_length": 16, **PLAIN},
    "masked": {**BLOCKS, "encoder_layers": 1, **PLAIN},
    "sequence_classifier": {"body": {"kind": "masked", **BLOCKS, "encoder_layers": 1, **PLAIN}, "pooled_dropout": 0.0},
}
RUNS: dict[str, Sections] = {
    "adam": {"optimizer": {"clip_norm": 1.0}, "training": {"accumulate": 2, "ema": 0.8}, "validation": {"every": 3}},
    "paper": {
        "optimizer": {"schedule": "paper", "learning_rate": 0.5, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.1},
        "checkpoints": {"every": 2, "keep": 2, "keep_best": 1, "average": 2},
        "validation": {"every": 2, "metric": "bleu", "beam_size": 2},
    },
    "adafactor": {
        "optimizer": {"kind": "adafactor", "schedule": "linear", "final_fraction": 0.1, "learning_rate": 0.3},
        "tokenizer": {"joint": False},
        "model": {"tie": "none", "output_bias": True},
    },
    "cosine-frozen": {
        "optimizer": {"schedule": "cosine", "beta1": 0.8},
        "training": {"freeze": ["encoder.*", "*norm*"]},
        "model": {"positions": "learned", "max_length": 64, "activation": "swiglu", "norm": "pre"},
    },
    "constant-recurrent": {
        "optimizer": {"schedule": "constant"},
        "model": {"kind": "recurrent", "attention": "bahdanau", "cell": "lstm"},
    },
    "halve-every-recurrent": {
        "optimizer": {"schedule": "halve_every", "halve_every": 4},
        "model": {"kind": "recurrent", "attention": "luong", "input_feeding": True},
    },
    "halve-every-third": {"optimizer": {"schedule": "halve_every"}, "training": {"label_smoothing": 0.0}},
    "languages": {
        "data": {
            "train": [
                {"files": ["train.en", "train.de"], "target_language": "de", "weight": 2.0},
                {"files": ["train.de", "train.en"], "target_language": "en", "weight": 0.5},
            ],
            "dev": {"files": ["dev.en", "dev.de"], "target_language": "de"},
            "temperature": 2.0,
        },
    },
    "bpe-dropout": {
        "data": {"bpe_dropout": 0.1, "segmentations": 2},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "model": {"d_model": 4},
    },
    "classifier": {
        "task": {"kind": "classification"},
        "training": {"class_weights": "balanced"},
        "validation": {"metric": "macro_f1"},
    },
    "started": {"training": {"start_from": "start"}},
    "two-processes": {"training": {"accumulate": 2}},
    "dropout": {
        "model": {"dropout": 0.2, "attention_dropout": 0.1, "feed_forward_dropout": 0.1, "layer_dropout": 0.1},
        "training": {"r_drop": 0.5},
    },
    "muon": {"optimizer": {"kind": "muon", "clip_norm": 1.0, "layer_decay": 0.9}},
    "decoder-only": {"model": {"kind": "decoder_only"}, "training": {"ema": 0.8, "accumulate": 2}},
    "decoder-only-documents": {
        "model": {"kind": "decoder_only"},
        "data": {
            "train": [{"files": ["train.en"], "documents": "line", "weight": 1.5}, {"files": ["train.de"]}],
            "temperature": 2.0,
            "attend_within_documents": True,
            "reset_positions": True,
        },
    },
    "recurrent-lm": {"model": {"kind": "recurrent_lm"}},
    "recurrent-lm-blocks": {"model": {"kind": "recurrent_lm", "cell": "gru", "carry_state": False}},
    "masked": {"model": {"kind": "masked"}},
    "masked-spans": {
        "model": {"kind": "masked"},
        "data": {
            "train": [{"files": ["train.en"], "weight": 2.5}, {"files": ["train.de"]}],
            "masking": {"unit": "spans", "fraction": 0.3},
        },
    },
    "sequence-classifier": {"model": {"kind": "sequence_classifier"}, "optimizer": {"learning_rate": 0.05}},
}
# Options of the exported models: those that the other toolkits support.
EXPORTED: dict[str, Sections] = {
    "transformer": {"model": {"norm": "pre", "activation": "gelu"}},
    "classifier": {"tokenizer": {"kind": "bpe", "vocab_size": 300}},
    "decoder_only": {"tokenizer": {"kind": "bpe", "vocab_size": 300}},
    "masked": {"tokenizer": {"kind": "bpe", "vocab_size": 300}},
    "sequence_classifier": {
        "model": {"pooling": "first", "dense": "tanh"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
    },
}
STORES: dict[str, Sections] = {
    "translation": {
        "data": {
            "train": [
                {"files": ["train.en", "train.de"], "target_language": "de", "weight": 2.0},
                {"files": ["train.de", "train.en"], "target_language": "en"},
            ],
            "dev": {"files": ["dev.en", "dev.de"], "target_language": "de"},
            "filter": {"max_length": 10},
        },
        "tokenizer": {"joint": False},
        "model": {"tie": "none"},
    },
    "translation-bpe-dropout": {
        "data": {"bpe_dropout": 0.1, "segmentations": 2},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
    },
    "translation-imported": {"training": {"start_from": "start"}, "model": None},
    "classification": {"task": {"kind": "classification"}},
    "language-model": {
        "model": {"kind": "decoder_only"},
        "data": {"train": [{"files": ["train.en"], "documents": "line"}, {"files": ["train.de"]}]},
    },
    "masked-language-model": {"model": {"kind": "masked"}},
}
TWO_PROCESSES = ("two-processes",)


def merged(*all_sections: Sections) -> Sections:
    """Merge recipe sections; later values take precedence."""
    whole: Sections = {}
    for sections in all_sections:
        for name, section in sections.items():
            whole[name] = {} if section is None else {**whole.get(name, {}), **section}
    return whole


def recipe(changes: Sections, *, steps: int) -> Sections:
    """Return a recipe of ``steps`` quick steps on one core, each with a line in the metrics."""
    classifies = changes.get("task", {}).get("kind") == "classification"
    kind = (changes.get("model") or {}).get("kind", "classifier" if classifies else "transformer")
    task = TASK_KINDS[ARCHITECTURES[kind].capability]
    train, dev = {
        "translation": (["train.en", "train.de"], ["dev.en", "dev.de"]),
        "classification": (["train.tsv"], ["dev.tsv"]),
    }.get(task, (["train.en"], ["dev.en"]))
    translates = task == "translation"
    plain: Sections = {
        "task": {"source_language": "en", "target_language": "de"} if translates else {"kind": task},
        "data": {"folder": "corpus", "train": [{"files": train}], "dev": {"files": dev}, "max_tokens": 160},
        "tokenizer": {"kind": "characters"},
        "model": {"kind": kind, **SIZES[kind]},
        "optimizer": {"learning_rate": 0.02, "warmup_steps": 4},
        "training": {"steps": steps, "log_every": 1, "precision": "float32", "device": "cpu"},
        "validation": {"every": STOP, "metric": "loss"},
        "checkpoints": {"every": STOP, "keep": 1, "average": 0},
    }
    return merged(plain, changes)


def written(folder: Path, changes: Sections, *, steps: int) -> Path:
    """Write the recipe into ``folder``."""
    path = folder / "recipe.toml"
    path.write_text(to_toml({name: each for name, each in recipe(changes, steps=steps).items() if each}))
    return path


def write_corpus(folder: Path) -> None:
    """Write 60 short pairs and their categories for training, and 10 for development."""
    folder.mkdir(parents=True)
    corpus = build_corpus("en", "de", size=1000)
    for split, pairs, count in (("train", corpus.train, 60), ("dev", corpus.dev, 10)):
        kept = [pair for pair in pairs if pair.category in ("relative", "compact", "names") and len(pair.source) < 16]
        kept = kept[:count]
        for side, texts in (("en", [pair.source for pair in kept]), ("de", [pair.target for pair in kept])):
            (folder / f"{split}.{side}").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        lines = "".join(f"{pair.category}\t{pair.source}\n" for pair in kept)
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")


def texts(folder: Path) -> dict[str, Any]:
    """Return some texts of the development set, and one that is unlike the training data."""
    sides = [(folder / f"dev.{side}").read_text(encoding="utf-8").splitlines()[:5] for side in ("en", "de")]
    return {"sources": [*sides[0], "in 4 names and 71 m"], "targets": [*sides[1], "in 4 m"]}


def round_weights(folder: Path) -> None:
    """Round the weights of a model folder to bfloat16 values, still stored as float32."""
    path = folder / "model.safetensors"
    save_file({name: each.bfloat16().float() for name, each in load_file(path).items()}, path)


def rounded(value: Any) -> Any:
    """Return ``value`` with all floats in it rounded."""
    if isinstance(value, float):
        return round(value, ROUNDED)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def note(folder: Path, **facts: Any) -> None:
    """Write expected.json beside the artifact."""
    whole = json.dumps(rounded(facts), ensure_ascii=False, separators=(",", ":"))
    (folder / "expected.json").write_text(whole + "\n", encoding="utf-8")


def make_bundle(folder: Path, changes: Sections) -> dict[str, Any]:
    """Train a model for some seconds and keep its model folder, as ``folder``/model; returns the texts to ask."""
    write_corpus(folder / "corpus")
    with chdir(folder):
        checked_command("train", written(folder, changes, steps=80), "--run", "run")
        Path("run/best").rename("model")
        round_weights(Path("model"))
        asked = texts(Path("corpus"))
        for name in ("run", "corpus", "recipe.toml"):
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
    return asked


def record_bundle(folder: Path, changes: Sections) -> None:
    """Record a model folder and its results."""
    asked = make_bundle(folder, changes)
    note(folder, texts=asked, observed=observe(folder / "model", asked))


def record_integers(folder: Path, changes: Sections) -> None:
    """Record a model folder whose weights and embeddings are 8-bit integers, and its results."""
    asked = make_bundle(folder, changes)
    (folder / "model").rename(folder / "floats")
    options = ("--to", "headway", "--quantization", "int8", "--quantize-embeddings")
    checked_command("export", folder / "floats", *options, "-o", folder / "model")
    shutil.rmtree(folder / "floats")
    note(folder, texts=asked, observed=observe(folder / "model", asked))


class _Stop(Listener):
    """Interrupts training like Ctrl-C."""

    def on_step(self, step: int, *_: Any) -> None:
        if step == STOP:
            signal.raise_signal(signal.SIGINT)


def train_until_stop(path: Path, run: Path) -> None:
    """Train until :data:`STOP`, and interrupt there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = load_recipe(path)
    result = train(chosen, run, listener=_Stop())
    assert result.interrupted, "training was over before the interruption"


def record_run(folder: Path, name: str, changes: Sections) -> None:
    """Record a run folder in mid-training, and the losses of the following steps."""
    write_corpus(folder / "corpus")
    with chdir(folder):
        if "start_from" in changes.get("training", {}):
            make_bundle(folder / "made", {})
            (folder / "made" / "model").rename("start")
            shutil.rmtree("made")
        path = written(folder, changes, steps=STEPS)
        if name in TWO_PROCESSES:
            launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            subprocess.run([*launch, __file__, "--until-stop", str(path), "run"], check=True)
        else:
            train_until_stop(Path("recipe.toml"), Path("run"))
        checked_command("train", "recipe.toml", "--run", "undisturbed")
        following = {
            key: loss for key, loss in losses(Path("undisturbed")).items() if int(key.partition(" ")[2]) > STOP
        }
        shutil.rmtree("undisturbed")
        Path("run/tokens/inputs.json").unlink(missing_ok=True)  # known hashes of inputs, by absolute names
        if name != "adam":
            shutil.rmtree("run/tensorboard")
        noise = _without_moments(Path("run"), following) if name not in (*TWO_PROCESSES, "dropout") else None
        if noise is not None:
            print(f"  without the optimizer's state the losses would differ by {noise:.3f}")
            assert noise > 0.02, "the recorded losses would not show that the state is missing"
        note(folder, dropout=name == "dropout", losses=following)


def record_store(folder: Path, name: str, changes: Sections) -> None:
    """Record the tokenizers and the token stores of a run that has not begun."""
    write_corpus(folder / "corpus")
    with chdir(folder):
        if name == "translation-imported":
            _foreign("marian", Path("foreign"))
            checked_command("import", "huggingface:foreign", "-o", "start")
            shutil.rmtree("foreign")
        checked_command("prepare", written(folder, changes, steps=STEPS), "--run", "run")
        Path("run/tokens/inputs.json").unlink(missing_ok=True)
        note(folder)


def _without_moments(run: Path, following: dict[str, float]) -> float:
    """Return how much the losses differ if the optimizer's state is lost."""
    with tempfile.TemporaryDirectory() as aside:
        copy = Path(aside) / "run"
        shutil.copytree(run, copy)
        for path in (copy / "checkpoints").iterdir():
            snapshot = state.read_snapshot(path)
            kept = {key: each for key, each in snapshot.tensors.items() if not key.startswith("moments/")}
            state.write_snapshot(copy / "checkpoints", replace(snapshot, tensors=kept))
        checked_command("train", "recipe.toml", "--run", copy)
        found = losses(copy)
    return max(abs(found[key] - loss) for key, loss in following.items())


def record_import(folder: Path, name: str) -> None:
    """Record a folder of a Hugging Face format, the model folder imported from it, and its results."""
    foreign = _foreign(name, folder / "foreign")
    path = foreign / "model.safetensors"
    save_file({name: each.bfloat16().float() for name, each in load_file(path).items()}, path, {"format": "pt"})
    checked_command("import", f"huggingface:{foreign}", "-o", folder / "model")
    asked = {"sources": ["der kleine Frosch.", "the big dog runs"], "targets": ["the small frog.", "der Hund"]}
    if name in TARGET_LANGUAGES:
        asked["to"] = TARGET_LANGUAGES[name]
    note(folder, texts=asked, observed=observe(folder / "model", asked))


class NotExportedError(Exception):
    """The format does not support the architecture."""


def record_export(folder: Path, form: str, changes: Sections) -> None:
    """Record a model folder, and the folder that it was exported to."""
    asked = make_bundle(folder, changes)
    with chdir(folder):
        code, said = command("export", "model", "--to", form, "-o", "exported")
        if code:
            raise NotExportedError(said)
        note(folder, texts=asked, observed=observe(folder / "model", asked))


def record_orders(folder: Path, order_version: int) -> None:
    """Record the batches of some epochs of data sets of every kind."""
    note(folder, orders=observed_orders(order_version=order_version))


def record_recipes(folder: Path) -> None:
    """Record the resolved form of every recipe of the project."""
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        (folder / path.name).write_text(to_toml(load_recipe(path).as_dict()), encoding="utf-8")
    note(folder)


def check_options() -> None:
    """Check that every option of every architecture has a value other than its default in some model folder."""
    for kind, architecture in ARCHITECTURES.items():
        config = architecture.config_class
        chosen = []
        for name, changes in BUNDLES[kind].items():
            try:
                sections = recipe(merged(with_kind(kind), changes), steps=1)
                chosen.append(config.parse(sections["model"], f"{kind}-{name}"))
            except ConfigError as error:
                raise SystemExit(str(error)) from None
        for name, field in config.model_fields.items():
            values = {getattr(one, name) for one in chosen}
            assert name in {"kind", *UNUSED.get(kind, ())} or values - {field.default}, (
                f"{config.__name__}.{name}: only the default is recorded"
            )
            literals = _literals(field.annotation)
            assert literals <= values, f"{config.__name__}.{name}: {literals - values} is not recorded"


def _literals(annotation: Any) -> set[Any]:
    """Return the values that a field of a Literal type accepts; empty for other types."""
    from typing import Literal, get_args, get_origin

    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return {value for part in get_args(annotation) for value in _literals(part)}


def with_kind(kind: str) -> Sections:
    """Return the changes of a recipe for an architecture."""
    task = TASK_KINDS[ARCHITECTURES[kind].capability]
    return {"task": {"kind": task} if task == "classification" else {}, "model": {"kind": kind}}


def everything() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Return the name of each archive, and the function that makes its content in a folder."""
    for kind, each in BUNDLES.items():
        for name, changes in each.items():
            whole = merged(with_kind(kind), changes)
            yield f"bundle-{kind}-{name}", partial(record_bundle, changes=whole)
    for kind in ("transformer", "decoder_only"):
        whole = merged(with_kind(kind), {"model": WIDE})
        yield f"bundle-{kind}-integers", partial(record_integers, changes=whole)
    for name, changes in RUNS.items():
        yield f"run-{name}", partial(record_run, name=name, changes=changes)
    for name, changes in STORES.items():
        yield f"store-{name}", partial(record_store, name=name, changes=changes)
    for name in [
        *FAMILIES,
        *T5_FAMILIES,
        *CAUSAL_FAMILIES,
        *MASKED_FAMILIES,
        *(f"classifier-{name}" for name in CLASSIFIER_FAMILIES),
    ]:
        yield f"import-{name}", partial(record_import, name=name)
    for form in EXPORT_FORMATS:
        for kind in ARCHITECTURES:
            changes = merged(with_kind(kind), EXPORTED.get(kind, {}))
            name = f"export-{form}" if kind == "transformer" else f"export-{form}-{kind}"
            yield name, partial(record_export, form=form, changes=changes)
    yield "recipes", record_recipes
    for version in range(1, ORDER_VERSION + 1):
        yield f"orders-{version}" if version > 1 else "orders", partial(record_orders, order_version=version)


TARGET_LANGUAGES = {"m2m_100": "en", "mbart": "en_XX"}


def _foreign(name: str, folder: Path) -> Path:
    """Make a small folder of a Hugging Face family with the functions of the tests of interop."""
    sys.path.insert(0, str(ROOT / "tests" / "interop"))
    import causal_models
    import foreign
    import masked_models

    # Without Unicode's tables, which would be nine tenths of the files.
    trainer = foreign.sentencepiece.SentencePieceTrainer
    if not isinstance(trainer.train, partial):
        trainer.train = partial(trainer.train, normalization_rule_name="identity")
    foreign.SIZES.update(d_model=8, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    foreign.SIZES.update(encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=64)
    foreign.T5_SIZES.update(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    if name in CAUSAL_FAMILIES:
        changes = {"n_embd": 16, "n_layer": 1, "n_head": 2} if name == "gpt2" else {**sizes}
        changes |= {} if name in ("gpt2", "gpt_neox") else {"num_key_value_heads": 1}
        causal_models.published("llama2" if name == "llama" else name, folder, **changes)
        return folder
    classifies, family = name.startswith("classifier-"), name.removeprefix("classifier-")
    if family in MASKED_FAMILIES:
        if family == "distilbert":
            sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
        purpose = ["SequenceClassification"] if classifies else []
        changes = {"id2label": {0: "no", 1: "so so", 2: "yes"}} if classifies else {}
        masked_models.published(family, folder, *purpose, **sizes, **changes)
        return folder
    return getattr(foreign, {"m2m_100": "m2m"}.get(name, name))(folder)


def main() -> None:
    """Record all archives that do not exist yet, or those of them whose name contains ONLY."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--until-stop", nargs=2, metavar=("RECIPE", "RUN"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="Record the archives whose names contain this.")
    parser.add_argument("--prefix", default="", help="Put this after the first part of each archive's name.")
    arguments = parser.parse_args()
    if arguments.until_stop:
        train_until_stop(*map(Path, arguments.until_stop))
        return
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    check_options()
    RECORDED.mkdir(exist_ok=True)
    for name, make in everything():
        kind, _, rest = name.partition("-")
        archive = RECORDED / (f"{'-'.join(filter(None, (kind, arguments.prefix, rest)))}.tar.xz")
        if arguments.only not in name or archive.exists():
            continue
        print(f"{archive.name} ...", flush=True)
        with tempfile.TemporaryDirectory() as aside:
            try:
                make(Path(aside))
            except NotExportedError as reason:
                print(f"  not exported: {reason}")
                continue
            pack(Path(aside), archive)
        with (RECORDED / "SOURCE").open("a", encoding="utf-8") as file:
            file.write(f"{git_commit()} {checksum(archive)[:16]} {archive.name}\n")
        print(f"{archive.name}: {archive.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
