"""The facts about a model folder that ``headway info`` shows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import cast

from headway.bundle import LanguageModelBundle, load_bundle, read_config
from headway.engine import describe_search_acceleration
from headway.engine.accelerate import describe_forward_acceleration
from headway.engine.int8_check import Int8Check, read_int8_check
from headway.interop.hub import model_folder
from headway.predict import LanguageModel
from headway.predict.translation.calibration import read_calibration


def model_facts(model: str | Path) -> dict[str, object]:
    """Describe a model folder: task, architecture, vocabularies, weights, and how it runs on this machine.

    Returns:
        Texts and numbers, keyed by name, in the order in which to show them. "weights" counts the weights, "bytes" is
        the size of the folder.

    Raises:
        BundleError: ``model`` is not a model folder, or a file in it is damaged.
    """
    model = model_folder(model)
    bundle = load_bundle(model)
    task = bundle.task.as_dict()
    if bundle.capability != "translates":
        del task["source_language"], task["target_language"]
    facts: dict[str, object] = {
        "folder": str(model),
        **{f"task.{key}": value for key, value in task.items()},
        **{f"model.{key}": value for key, value in bundle.model.config.as_dict().items()},
    }
    if bundle.labels:
        facts["labels"] = ", ".join(bundle.labels)
    for side, tokenizer in bundle.tokenizers.items():
        name = f"{side} tokenizer" if len(bundle.tokenizers) > 1 else "tokenizer"
        facts[name] = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
    if (quantization := read_config(model).quantization) is not None:
        facts["stored weights"] = quantization.describe()
    facts["forward pass"] = describe_forward_acceleration(bundle.model)
    if bundle.capability in ("translates", "continues"):
        facts["search"] = describe_search_acceleration(bundle.model)
    for name, defaults in (("search settings", bundle.search), ("generation settings", bundle.generation)):
        if settings := defaults.model_dump(mode="json", exclude_unset=True):
            facts[name] = ", ".join(f"{option} = {value}" for option, value in settings.items())
    if bundle.capability == "continues":
        facts["precision on a CPU"] = _cpu_precision(cast("LanguageModelBundle", bundle), read_int8_check(model))
    if bundle.capability == "translates":
        stored_calibration = read_calibration(bundle, model)
        facts["unlikely flag"] = (
            f"calibrated on {stored_calibration.texts:,} texts" if stored_calibration else "not calibrated"
        )
    facts["drawing"] = f"headway diagram {shlex.quote(str(model))} -o model.svg"
    facts["weights"] = sum(parameter.numel() for parameter in bundle.model.parameters())
    facts["bytes"] = sum(file.stat().st_size for file in model.iterdir())
    return facts


def _cpu_precision(bundle: LanguageModelBundle, check: Int8Check | None) -> str:
    """Return the precision in which a language model generates on a CPU, and the reason. The int8 check is not run."""
    model = LanguageModel(bundle, device="cpu", precision="auto", int8_check=check)
    if model.awaits_int8_check:
        return "int8 if it agrees with float32, which has not been checked yet"
    if (known := model.int8_check) is not None:
        return f"{model.precision}: {known.describe()}"
    return f"{model.precision}: not compared with float32" if model.precision == "int8" else model.precision
