"""``headway quickstart --language-model``: train a language model on a poem, and compare it with text compressors."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headway.cli.options import Device
from headway.errors import DivergenceError

if TYPE_CHECKING:
    from headway.training.recipe import Recipe

_HELD_OUT = 0.1  # the share at the end of the poem that is not trained on
_WRITTEN = 400  # characters


def quickstart_language_model(folder: Path, steps: int, device: Device, fresh: bool) -> None:
    """Train on Milton's Paradise Lost, print what the model writes, and its bits per byte on the end of the poem."""
    from headway.cli.progress import ProgressListener
    from headway.cli.training_runs import command_name
    from headway.data.builtin.poem import read_poem
    from headway.evaluation.compression import ppmd_bits_per_byte, xz_bits_per_byte
    from headway.predict import load_language_model
    from headway.storage import atomic_write_text
    from headway.tasks import train
    from headway.training.previous_run import move_previous_run_aside

    begin = time.perf_counter()
    poem = read_poem()
    cut = poem.rindex("\n", 0, round(len(poem) * (1 - _HELD_OUT))) + 1
    parts = {"train.txt": poem[:cut], "held-out.txt": poem[cut:]}
    with ProgressListener() as listener, move_previous_run_aside(folder, fresh, listener.say):
        listener.say(
            f"John Milton, Paradise Lost (1667): {len(poem):,} characters, of which the last 10 % are held out"
        )
        for name, text in parts.items():
            atomic_write_text(folder / "data" / name, text)
        result = train(_recipe(folder, steps, device), folder, listener=listener)
        if result.divergence is not None:
            raise DivergenceError(result.divergence)
        if result.interrupted:
            listener.say(f"stopped and saved after step {result.step:,}; run the same command again to resume")
            raise typer.Exit(130)
        assert result.model_folder is not None
        model = load_language_model(result.model_folder, device=device)
        listener.say("measuring the model on the held-out text")
        measured = model.perplexity([parts["held-out.txt"]])
    (written,) = model.generate("Of ", temperature=0.7, max_new_tokens=_WRITTEN, seed=3, beyond_context="slide")
    print(f"\nThe model writes:\n\nOf {written.text}\n")
    print("Bits per byte of the held-out text, after reading the rest of the poem:")
    print(f"    model {measured.bits_per_byte:.2f}")
    for name, measure in (("xz   ", xz_bits_per_byte), ("PPMd ", ppmd_bits_per_byte)):
        print(f"    {name} {measure(*parts.values()):.2f}")
    print(f"\n{time.perf_counter() - begin:.0f} s in all. The model is in {result.model_folder}. Try:\n")
    print(f'    {command_name()} generate {result.model_folder} "Of Mans First Disobedience"')
    print(f"    {command_name()} evaluate {result.model_folder} --data {folder / 'data' / 'held-out.txt'}")
    sys.stdout.flush()


def _recipe(folder: Path, steps: int, device: Device) -> Recipe:
    """Return a recipe for a small language model of characters, which takes minutes on two cores."""
    from headway.tasks import parse_recipe

    return parse_recipe(
        {
            "task": {"kind": "language_model"},
            "data": {
                "folder": str(folder / "data"),
                "train": [{"files": ["train.txt"]}],
                "dev": {"files": ["held-out.txt"]},
                "max_tokens": 2048,
            },
            "tokenizer": {"kind": "characters"},
            "model": {
                "d_model": 192,
                "num_heads": 3,
                "d_ff": 512,
                "decoder_layers": 4,
                "max_length": 256,
                "dropout": 0.0,
                "norm_kind": "rms",
                "bias": "none",
                "activation": "swiglu",
                "positions": "rotary",
            },
            "optimizer": {
                "schedule": "cosine",
                "learning_rate": 3e-3,
                "warmup_steps": 100,
                "beta2": 0.99,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
            },
            "training": {"steps": steps, "device": device},
            "validation": {"every": max(steps // 4, 1)},
            "checkpoints": {"every": max(steps // 4, 1), "average": 0},
        },
        "quickstart",
    )
