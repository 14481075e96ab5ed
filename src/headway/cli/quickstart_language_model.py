"""``headway quickstart --language-model``: train a language model on a poem, and compare it with text compressors."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import typer

from headway.cli.options import Device
from headway.errors import DivergenceError

_WRITTEN = 400  # number of characters to generate


def quickstart_language_model(folder: Path, steps: int, device: Device, fresh: bool) -> None:
    """Train on Milton's Paradise Lost, and print generated text and the bits per byte of held-out text."""
    from headway.calls.progress import ProgressListener
    from headway.calls.quickstart import bits_per_byte, train_on_poem
    from headway.cli.training_runs import command_name
    from headway.predict import load_language_model
    from headway.training.previous_run import move_previous_run_aside

    begin = time.perf_counter()
    with ProgressListener() as listener, move_previous_run_aside(folder, fresh, listener.on_message):
        (read, held_out), result = train_on_poem(folder, steps=steps, device=device, listener=listener)
        if result.divergence is not None:
            raise DivergenceError(result.divergence)
        if result.interrupted:
            listener.on_message(f"stopped and saved after step {result.step:,}; run the same command again to resume")
            raise typer.Exit(130)
        assert result.model_folder is not None
        model = load_language_model(result.model_folder, device=device)
        listener.on_message("measuring the model on the held-out text")
        measured = bits_per_byte(model, read, held_out)
    (written,) = model.generate("Of ", temperature=0.7, max_new_tokens=_WRITTEN, seed=3, beyond_context="slide")
    print(f"\nThe model writes:\n\nOf {written.text}\n")
    print("Bits per byte of the held-out text, after training on the rest of the poem:")
    for name, bits in measured.items():
        print(f"    {name:<5} {bits:.2f}")
    print(f"\n{time.perf_counter() - begin:.0f} s in all. The model is in {result.model_folder}. Try:\n")
    print(f'    {command_name()} generate {result.model_folder} "Of Mans First Disobedience"')
    print(f"    {command_name()} evaluate {result.model_folder} --data {folder / 'data' / 'held-out.txt'}")
    sys.stdout.flush()
