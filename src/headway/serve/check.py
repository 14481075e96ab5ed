"""Check everything that the service needs to start, without loading models or modifying files."""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path

from headway import kernels
from headway.errors import ConfigError
from headway.serve.config import ServeConfig
from headway.serve.glossaries import GlossaryStore
from headway.serve.hub_models import needs_conversion
from headway.serve.listeners import open_sockets
from headway.serve.model_info import ModelSpec
from headway.serve.usage import Usage
from headway.serve.workers.loader import DECODING_CAPABILITIES

_MEGABYTE = 1_000_000


def check_configuration(config: ServeConfig) -> list[str]:
    """Check a configuration, and return notes for the operator.

    All files of the models are read, except that only the headers of weight files are read.

    Raises:
        HeadwayError: The service would not start; the message contains the reason.
        ImportError: A required package is missing.
    """
    importlib.import_module("headway.serve.app")
    present = [model for model in config.models if not needs_conversion(model.path)]
    specs = config.model_copy(update={"models": tuple(present)}).specs()
    for spec in specs:
        _check_model(spec)
    _check_memory(specs, config.limits.memory_mb)
    _check_files(config)
    notes = _check_addresses(config)
    missing = [model.path for model in config.models if model not in present]
    notes += [f"{name} has not been downloaded yet; the service downloads it when it starts" for name in missing]
    if (reason := kernels.unavailable_reason()) and any(model.precision == "auto" for model in config.models):
        notes.append(f"models compute in bfloat16 or float32 ({reason})")
    return notes


def _check_model(spec: ModelSpec) -> None:
    import torch

    from headway.bundle import load_without_weights
    from headway.engine import search_precision
    from headway.engine.int8_check import read_int8_check
    from headway.interop.onnx import DECODER_STEP_FILE

    folder = Path(spec.folder)
    bundle, precision = load_without_weights(folder), spec.load_options["precision"]
    is_onnx = (folder / DECODER_STEP_FILE).is_file()
    if is_onnx:
        importlib.import_module("onnxruntime")
    if bundle.capability not in DECODING_CAPABILITIES:
        return
    read_int8_check(folder)
    try:
        if is_onnx and precision not in ("auto", "float32"):
            raise ConfigError(f"precision {precision!r}: an ONNX folder runs in float32; use 'auto'")
        if not is_onnx:
            search_precision(bundle.model, precision, torch.device("cpu"))
    except ConfigError as error:
        raise error.with_location(f"the model {spec.name}") from None


def _check_memory(specs: list[ModelSpec], memory_mb: float | None) -> None:
    """Check that the weights fit into memory. Their size is a lower bound of the memory that the models use."""
    stored = sum(spec.stored_bytes for spec in specs if not spec.on_demand) / _MEGABYTE
    if memory_mb is not None and stored > memory_mb:
        raise ConfigError(
            f"limits.memory_mb = {memory_mb:g}, but the weights of the models that are loaded at the start have "
            f'{stored:.0f} MB; raise the limit, or set load = "demand" for some models'
        )


def _check_files(config: ServeConfig) -> None:
    if config.glossary_folder is not None:
        folder, limits = Path(config.glossary_folder), config.limits
        _check_writable("glossary_folder", folder)
        if folder.is_dir():
            GlossaryStore(folder, max_glossaries=limits.glossaries, max_characters=limits.glossary_characters)
    if config.usage_file is not None:
        file = Path(config.usage_file)
        if file.is_dir():
            raise ConfigError(f"usage_file: {file} is a folder")
        _check_writable("usage_file", file.parent)
        Usage(file)


def _check_writable(setting: str, folder: Path) -> None:
    """Check that files can be written to a folder, or that the folder can be created."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{setting}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{setting}: {existing} is not writable")


def _check_addresses(config: ServeConfig) -> list[str]:
    """Check that the service can listen on its addresses.

    An address that another process uses, such as the running service, results only in a note.
    """
    try:
        with open_sockets(config.hosts, config.port, int(config.unix_mode, base=8)):
            return []
    except ConfigError as error:
        if os.strerror(errno.EADDRINUSE) not in str(error):
            raise
        return [f"{str(error).partition(': cannot listen')[0]} is in use now"]
