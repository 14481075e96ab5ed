"""Convert models from the Hub to model folders. Models with the same content are converted once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.bundle import AnyBundle, LanguageModelBundle
from headway.engine.int8_check import measure_int8_agreement, write_int8_check
from headway.engine.shortlist_file import write_shortlist
from headway.errors import HeadwayError
from headway.interop.hub.converted import (
    ConvertedModel,
    converted_folder,
    converted_models,
    find_converted,
    lock_converted,
    record_converted,
)
from headway.interop.hub.download import DownloadedModel, download
from headway.interop.hub.names import HubName
from headway.interop.importing import ImportedBundle, check_supported, import_from
from headway.models.decoder_only import DecoderOnly
from headway.storage import atomic_write_folder


def convert(name: HubName) -> ConvertedModel:
    """Return the converted model for a name. Download and convert it if necessary.

    If several processes need the same model at the same time, they wait for the first process to convert it.

    Raises:
        HeadwayError: The model cannot be downloaded, verified, converted or written. Partial results are removed.
    """
    with lock_converted(name):
        return find_converted(name) or _convert(name)


def update_converted(name: HubName) -> ConvertedModel:
    """Get the newest commit of a revision from the Hub, and convert it if its content has changed."""
    with lock_converted(name):
        return _convert(name, must_ask=True)


@contextmanager
def downloaded_source(name: HubName) -> Iterator[str]:
    """Yield the downloaded files of a model, or links to them, as an import source ``FORMAT:PATH``."""
    with _linked(name, downloaded := _download(name)) as folder:
        yield _source(folder, downloaded)


def _source(folder: Path, downloaded: DownloadedModel) -> str:
    """Return the import source for a folder with the downloaded files."""
    match downloaded.model_format:
        case "argos":
            (package,) = downloaded.files
            return f"argos:{folder / package}"
        case "headway":
            return f"huggingface:{folder}"  # the import rejects it
    return f"{downloaded.model_format}:{folder}"


def _download(name: HubName, *, must_ask: bool = False) -> DownloadedModel:
    """Download a model after checking that it can be imported."""

    def check(folder: Path) -> None:
        try:
            check_supported(folder)
        except HeadwayError as error:
            raise error.with_location(str(name)) from None

    return download(name, check, must_ask=must_ask)


def _convert(name: HubName, *, must_ask: bool = False) -> ConvertedModel:
    downloaded = _download(name, must_ask=must_ask)
    model = ConvertedModel(name, downloaded.commit, converted_folder(name, downloaded.digest))
    is_new = model.folder not in [known.folder for known in converted_models()]
    try:
        if is_new:
            with _linked(name, downloaded) as folder:
                _write(folder, downloaded, model.folder)
        record_converted(model)
    except BaseException:
        if is_new:
            shutil.rmtree(model.folder, ignore_errors=True)
        raise
    return model


def _write(source: Path, downloaded: DownloadedModel, target: Path) -> None:
    if downloaded.model_format == "headway":
        with atomic_write_folder(target) as aside:
            for file in source.iterdir():
                shutil.copyfile(file, aside / file.name)
            AnyBundle.load_without_weights(aside)
        return
    imported = import_from(_source(source, downloaded))
    imported.bundle.save(target, imported.card)
    if isinstance(imported, ImportedBundle) and imported.shortlist is not None:
        write_shortlist(imported.shortlist, target)
    bundle = imported.bundle
    if isinstance(bundle, LanguageModelBundle) and isinstance(bundle.model, DecoderOnly):
        check = measure_int8_agreement(bundle.model, bundle.tokenizer, bundle.prompt_prefix)
        if check is not None:
            write_int8_check(check, target)


@contextmanager
def _linked(name: HubName, downloaded: DownloadedModel) -> Iterator[Path]:
    """Yield a folder with links to only the downloaded files, because the client's cache may contain other files.

    Messages of errors that are raised while the folder is read begin with the name of the model.
    """
    with tempfile.TemporaryDirectory(prefix="headway-hub-") as parent:
        folder = Path(parent) / name.title
        for file, path in downloaded.files.items():
            link = folder / file
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                link.symlink_to(path.resolve())
            except OSError:  # Windows requires a privilege for links
                shutil.copyfile(path, link)
        try:
            yield folder
        except HeadwayError as error:
            raise error.with_location(str(name)) from None
