"""Compare the training losses of two numerical variants, with paired seeds, for the residual stream and for Muon's
projections.

Both comparisons train a character-level language model of Shakespeare with ``d_model = 192`` on 2,048 characters per
step, which is the recipe shakespeare-quick with other depths. The two runs of a pair have the same seed, so they begin
with the same weights and use the same batches.

    residual    Adam with a residual stream in bfloat16 (the fast form of training) and in float32, both under autocast
    muon        Muon with one orthogonal update for queries, keys and values together, and with one for each

The loss is computed with the final weights over all of val.txt in blocks of 256 that do not overlap, in nats per
character, in float32 by the plain model. The interval is Student's interval for the mean difference of pairs. Finished
runs are not repeated, and interrupted runs are resumed.

    python benchmarks/training_numerics.py residual --data FOLDER --runs FOLDER --output benchmarks/results/NAME.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "shakespeare-quick.toml"
BLOCK = 256
# The default form comes first.
FORMS = {"residual": ("bfloat16", "float32"), "muon": ("apart", "fused")}
DEPTHS = {"residual": (12, 24), "muon": (4,)}
OPTIONS = {"residual": (), "muon": ("optimizer.kind=muon",)}
FORM_OPTIONS = {"fused": ("optimizer.muon_splits_attention=false",)}


def use_form(form: str) -> None:
    """Replace the default form in this process with ``form``, unless a recipe option selects it."""
    if form == "float32":
        from headway.engine import accelerate
        from headway.engine.layers import KernelDropout

        for inside in accelerate._INSIDE.values():
            if "embedding_dropout" in inside:
                dropout = inside["embedding_dropout"]
                inside["embedding_dropout"] = accelerate.Replacement(
                    dropout.plain_type, KernelDropout, dropout.supported_attributes
                )


def train(form: str, arguments: list[str], run: Path) -> None:
    """Train in this process, then write the loss of the final weights to ``loss.json``."""
    use_form(form)
    from headway.cli import main

    sys.argv = ["headway", "train", *arguments, "--run", str(run)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    (run / "loss.json").write_text(json.dumps({"loss": final_loss(run)}), encoding="utf-8")


def final_loss(run: Path) -> float:
    """Return the loss of a run's weights over the development text, in nats per character, in float32."""
    import torch
    from torch.nn import functional as F

    from headway.bundle import load_bundle
    from headway.text.base import BOS

    bundle = load_bundle(run / "best")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = bundle.model.to(device).eval()
    recipe = (run / "recipe.toml").read_text(encoding="utf-8")
    folder = next(line.split('"')[1] for line in recipe.splitlines() if line.startswith("folder = "))
    ids = bundle.tokenizers["source"].encode((Path(folder) / "val.txt").read_text(encoding="utf-8"))
    size = len(ids) // BLOCK * BLOCK
    targets = torch.tensor(ids[:size]).view(-1, BLOCK)
    inputs = torch.tensor([BOS, *ids[: size - 1]]).view(-1, BLOCK)
    total = 0.0
    with torch.inference_mode():
        for read, predicted in zip(torch.split(inputs, 16), torch.split(targets, 16), strict=True):
            logits = model(read.to(device))
            total += float(F.cross_entropy(logits.flatten(0, 1), predicted.flatten().to(device), reduction="sum"))
    return total / size


def start(run: Path, form: str, depth: int, seed: int, options: Iterable[str]) -> float:
    """Train one run in a separate process unless it is finished, and return its loss."""
    if not (run / "loss.json").exists():
        run.mkdir(parents=True, exist_ok=True)
        own = (f"model.decoder_layers={depth}", f"training.seed={seed}", *options, *FORM_OPTIONS.get(form, ()))
        command = [sys.executable, __file__, "--form", form, "--run", str(run), str(RECIPE)]
        with (run.parent / f"{run.name}.log").open("a", encoding="utf-8") as log:
            subprocess.run(
                [*command, *(x for each in own for x in ("--set", each))], check=True, stdout=log, stderr=log
            )
    loss: float = json.loads((run / "loss.json").read_text(encoding="utf-8"))["loss"]
    return loss


def interval(differences: list[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean."""
    quantile = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}[len(differences)]
    half = quantile * statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.mean(differences)
    return mean - half, mean + half


def main() -> None:
    """Run the comparison, and print and write its results."""
    if "--form" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--form", required=True)
        parser.add_argument("--run", type=Path, required=True)
        own, others = parser.parse_known_args()
        train(own.form, others, own.run)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=FORMS)
    parser.add_argument("--data", type=Path, required=True, help="the folder with train.txt and val.txt")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--depths", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=1, help="number of runs at the same time")
    parser.add_argument("--set", action="append", default=[], help="an additional recipe option")
    arguments = parser.parse_args()
    options = [
        f"data.folder={arguments.data.resolve()}",
        f"training.steps={arguments.steps}",
        f"validation.every={arguments.steps}",
        *OPTIONS[arguments.comparison],
        *arguments.set,
    ]
    if arguments.comparison == "residual":
        options.append("training.precision=bfloat16")
    depths, forms = arguments.depths or DEPTHS[arguments.comparison], FORMS[arguments.comparison]
    with ThreadPoolExecutor(arguments.parallel) as pool:
        losses = {
            (depth, seed, form): pool.submit(
                start, arguments.runs / f"{depth}-{seed}-{form}", form, depth, seed, options
            )
            for depth in depths
            for seed in arguments.seeds
            for form in forms
        }
    found: list[dict[str, Any]] = []
    for depth in depths:
        pairs = [[losses[depth, seed, form].result() for form in forms] for seed in arguments.seeds]
        differences = [first - second for first, second in pairs]
        low, high = interval(differences)
        print(f"depth {depth}: {forms[0]} - {forms[1]} = {statistics.mean(differences):+.4f} [{low:+.4f}, {high:+.4f}]")
        columns = dict(zip(forms, zip(*pairs, strict=True), strict=True))
        found.append({"depth": depth, "seeds": arguments.seeds, "losses": columns, "interval": [low, high]})
    if arguments.output:
        record = {"date": datetime.now(UTC).date().isoformat(), "command": " ".join(sys.argv), **machine()}
        arguments.output.write_text(
            json.dumps(record | {"comparison": arguments.comparison, "results": found}, indent=1) + "\n",
            encoding="utf-8",
        )


def machine() -> dict[str, Any]:
    """Return a description of the machine on which the runs were computed."""
    import torch

    from headway.hardware import processor_name

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor_name()
    return {"device": device, "torch": torch.__version__, "threads": os.environ.get("OMP_NUM_THREADS")}


if __name__ == "__main__":
    main()
