"""Take away each undocumented name of PyTorch that Headway uses, and train and translate without it.

    python tests/private_torch_names.py               # every name in every way, one after another
    python tests/private_torch_names.py adam hooks    # names that contain one of these words

The names are those in ``headway/torch_internals.py``. A run without one must print one warning that names it, and its
losses and outputs must be those of the slower form, bit for bit. That form is found by a run in which PyTorch is as
usual, but Headway is told that the name does not work. It must also be close to the usual run. Each run is a fresh
interpreter that trains a tiny model for a few steps and then uses it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

Model = Literal["translation", "lstm", "lstm in bfloat16", "gru"]


def _raises(*_: object, **__: object) -> Any:
    raise TypeError("this name takes other arguments")


def _with_other_numbers(function: Any) -> Any:
    """Return a function that returns and writes what ``function`` does, times 1.5."""

    def changed(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        written = options.get("grad_input", arguments[0] if result is None else result)
        for tensor in written if isinstance(written, list | tuple) else [written]:
            tensor.mul_(1.5)
        return result

    return changed


def _delete(owner: Any, name: str) -> Callable[[], None]:
    def delete() -> None:
        with contextlib.suppress(ImportError):  # reads torch.lstm and torch.gru when it is imported
            importlib.import_module("torch.nn.utils._expanded_weights.expanded_weights_impl")
        delattr(owner, name)

    return delete


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    return lambda: setattr(owner, name, make(getattr(owner, name)))


def _deaf_adam(*ignored: str) -> Callable[[], None]:
    """Let fused Adam ignore some of its attributes, which stay there."""

    def make(step: Any) -> Any:
        def deaf(self: torch.optim.Optimizer, closure: None = None) -> None:
            own = {name: vars(self)[name] for name in ignored if name in vars(self)}
            vars(self).update(dict.fromkeys(own))
            step(self, closure)
            vars(self).update(own)

        return deaf

    return _replace(torch.optim.AdamW, "step", make)


def _hide_from_headway(name: str, value: object) -> Callable[[], None]:
    """Replace a name of Headway, where the same name of PyTorch cannot be taken away without breaking PyTorch."""

    def hide() -> None:
        import headway.torch_internals

        setattr(headway.torch_internals, name, value)

    return hide


def _draw_unseen(draw: Any) -> Any:
    def unseen(*arguments: Any, **options: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return draw(*arguments, **options)

    return unseen


@dataclass(frozen=True)
class Case:
    """A name that is taken away.

    Attributes:
        shown: Part of the warning.
        predicate: The function of torch_internals that tries the name.
        model: The model that needs it.
        take_away: What is done before Headway is imported.
    """

    shown: str
    predicate: str
    model: Model
    take_away: Callable[[], None]


def _operation(
    owner: Any, name: str, shown: str, predicate: str, model: Model, *, deletable: bool = True
) -> dict[str, Case]:
    ways = {
        "takes other arguments": _replace(owner, name, lambda _: _raises),
        "has other results": _replace(owner, name, _with_other_numbers),
    } | ({"deleted": _delete(owner, name)} if deletable else {})
    return {f"{name} {way}": Case(shown, predicate, model, take_away) for way, take_away in ways.items()}


_ADAM: tuple[str, str, Model] = ("found_inf and grad_scale", "fused_adam_step_works", "translation")
_HOOKS: tuple[str, str, Model] = ("nn.Module._forward_hooks", "hooks_are_visible", "translation")
_PARTS: tuple[str, str, Model] = ("nn.Module._modules", "module_members_are_visible", "translation")
_LOADING: tuple[str, str, Model] = (
    "nn.Module._load_state_dict_pre_hooks",
    "load_hooks_are_visible",
    "translation",
)
_INIT: tuple[str, str, Model] = ("torch.nn.init", "_initialization_is_skipped", "translation")
_GATES: tuple[str, str, Model] = ("aten::sigmoid_backward", "_gate_gradients_work", "lstm in bfloat16")
CASES: dict[str, Case] = {
    "adam ignores found_inf": Case(*_ADAM, _deaf_adam("found_inf")),
    "adam ignores grad_scale": Case(*_ADAM, _deaf_adam("grad_scale")),
    "adam ignores both": Case(*_ADAM, _deaf_adam("found_inf", "grad_scale")),
    "_fused_adamw_ has no grad_scale": Case(
        *_ADAM,
        _replace(
            torch,
            "_fused_adamw_",
            lambda function: (
                lambda *arguments, grad_scale=None, found_inf=None, **options: function(*arguments, **options)
            ),
        ),
    ),
    **_operation(
        torch, "_softmax_backward_data", "torch._softmax_backward_data", "_softmax_backward_works", "translation"
    ),
    **_operation(  # PyTorch itself does not start without it
        torch, "_foreach_lerp_", "torch._foreach_lerp_", "_lerp_all_works", "translation", deletable=False
    ),
    **_operation(torch.ops.aten, "sigmoid_backward", *_GATES, deletable=False),
    **_operation(torch.ops.aten, "tanh_backward", *_GATES, deletable=False),
    **_operation(torch, "lstm", "torch.lstm", "run_recurrent_layer_works", "lstm"),
    **_operation(torch, "gru", "torch.gru", "run_recurrent_layer_works", "gru"),
    "hooks renamed": Case(*_HOOKS, _hide_from_headway("_FORWARD_HOOKS", {"_renamed": "register_forward_hook"})),
    "hooks elsewhere": Case(*_HOOKS, _replace(nn.Module, "register_forward_hook", lambda _: lambda *_: None)),
    "parts renamed": Case(*_PARTS, _hide_from_headway("parts", _raises)),
    "loading hooks renamed": Case(*_LOADING, _hide_from_headway("rebind_load_hooks", _raises)),
    "init unseen by modes": Case(*_INIT, _replace(nn.init, "normal_", _draw_unseen)),
}


def _recipe(folder: Path, model: Model) -> str:
    data = (
        f'[data]\nfolder = "{folder}"\ntrain = [{{ files = {{files}} }}]\ndev = {{ files = {{files}} }}\n'
        f'max_tokens = 100\n[training]\nsteps = 4\nlog_every = 1\nema = 0.5\ndevice = "cpu"\n'
        f'precision = "{"bfloat16" if model == "lstm in bfloat16" else "float32"}"\n'
        "[optimizer]\nwarmup_steps = 2\nclip_norm = 0.1\n[validation]\nevery = 4\n[checkpoints]\naverage = 0\n"
    ).replace("{files}", '["x.de", "x.en"]' if model == "translation" else '["x.en"]')
    if model == "translation":
        return data + (
            "[tokenizer]\nvocab_size = 300\n"
            "[model]\nd_model = 64\nnum_heads = 2\nd_ff = 64\nencoder_layers = 1\ndecoder_layers = 1\n"
            'score = "additive"\n'
        )
    return data + (
        '[task]\nkind = "language_model"\n[tokenizer]\nkind = "characters"\n'
        f'[model]\nkind = "recurrent_lm"\ncell = "{model.split()[0]}"\nd_model = 32\nnum_layers = 1\n'
        "max_length = 16\nweight_drop = 0.5\n"
    )


def _run(case: str, model: Model, folder: Path) -> None:
    """Train and use a model in this process, and print the losses, the weights' digest and the outputs as JSON.

    ``case`` is a name of :data:`CASES`, or a predicate of torch_internals that is to return False, or empty.
    """
    if case in CASES:
        CASES[case].take_away()
    elif case:
        _hide_from_headway(case, lambda *_: False)()
    from headway.cli import main

    def command(*words: object) -> str:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        sys.argv = ["headway", *map(str, words)]
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main()
        out.flush()
        return out.buffer.getvalue().decode()

    run = folder / "run"
    command("train", folder / "recipe.toml", "--run", run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    words = ("translate", run / "best", "das rote Haus") if model == "translation" else ("perplexity", run / "best")
    text = () if model == "translation" else (folder / "x.en",)
    losses = [row[key] for row in rows for key in ("loss", "dev") if isinstance(row.get(key), float)]
    weights = hashlib.sha256((run / "best" / "model.safetensors").read_bytes()).hexdigest()
    print(json.dumps({"losses": losses, "weights": weights, "output": command(*words, *text)}))


@dataclass(frozen=True)
class Outcome:
    """The results of a run: exit code, what it printed as JSON, and its standard error."""

    code: int
    found: dict[str, Any]
    errors: str

    @property
    def warnings(self) -> list[str]:
        """The warnings about PyTorch."""
        return [line for line in self.errors.splitlines() if "warning: PyTorch" in line]


@cache
def outcome(case: str, model: Model) -> Outcome:
    """Return the outcome of :func:`_run` in a fresh interpreter."""
    source = [f"das {a} {b}" for a in ("rote", "grüne", "alte") for b in ("Haus", "Boot", "Tor", "Dach")]
    target = [f"the {a} {b}" for a in ("red", "green", "old") for b in ("house", "boat", "gate", "roof")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, lines in {"x.de": source, "x.en": target}.items():
            (folder / path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (folder / "recipe.toml").write_text(_recipe(folder, model), encoding="utf-8")
        command = [sys.executable, __file__, "--run", case, model, name]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(ended.stdout) if ended.returncode == 0 and ended.stdout else {}
    return Outcome(ended.returncode, found, ended.stderr.replace(name, "FOLDER"))


def fault(case: Case, ended: Outcome) -> str | None:
    """Return what is wrong with the outcome of a case, or None."""
    usual, slower = outcome("", case.model), outcome(case.predicate, case.model)
    for run in (ended, usual, slower):
        if run.code or not run.found or "Traceback" in run.errors:
            return f"ended with {run.code}: {run.errors[-1500:]}"
    if usual.warnings or slower.warnings:
        return "the usual run warns"
    if len(ended.warnings) != 1 or case.shown not in ended.warnings[0] or "slow" not in ended.warnings[0]:
        return f"expected one warning about {case.shown}, found: {ended.warnings}"
    if ended.found != slower.found:
        return f"other results than those of the slower form: {ended.found}, {slower.found}"
    losses, expected = slower.found["losses"], usual.found["losses"]
    if len(losses) != len(expected) or any(abs(a - b) > 1e-3 * b for a, b in zip(losses, expected, strict=True)):
        return f"the slower form is not close to the usual one: {losses}, {expected}"
    return None


def main() -> int:
    """Run the cases and print one line for each, and its warning or fault."""
    if sys.argv[1:2] == ["--run"]:
        _run(sys.argv[2], cast("Model", sys.argv[3]), Path(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description="Train and translate without each undocumented name of PyTorch.")
    parser.add_argument("words", nargs="*", help="only names that contain one of these words; default: all")
    words, faults = parser.parse_args().words, 0
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        ended = outcome(name, case.model)
        wrong = fault(case, ended)
        faults += wrong is not None
        print(f"{'FAULT' if wrong else 'ok':<6} {name}\n       {wrong or ended.warnings[0]}", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
