"""Convert a model of the Hub to a model folder, once for each content."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.bundle import AnyBundle, LanguageModelBundle
from headway.engine.int8_check import measure_int8, write_int8_check
from headway.engine.shortlist_file import write_shortlist
from headway.errors import HeadwayError
from headway.interop.hub.converted import ConvertedModel, converted_models, find_converted, folder_of, locked, record
from headway.interop.hub.download import DownloadedModel, download
from headway.interop.hub.names import HubName
from headway.interop.importing import ImportedBundle, check_supported, import_from
from headway.models.decoder_only import DecoderOnly
from headway.storage import atomic_write_folder


def convert(name: HubName) -> ConvertedModel:
    """Return the converted model of a name, which is downloaded and converted if it has not been yet.

    Processes that need the same model at the same time wait for the first of them.

    Raises:
        HeadwayError: The model cannot be downloaded, verified, converted or written. Nothing is left of it.
    """
    with locked(name):
        return find_converted(name) or _convert(name)


def update(name: HubName) -> ConvertedModel:
    """Ask the Hub for the newest commit of a revision, and convert it if its content has changed."""
    with locked(name):
        return _convert(name, must_ask=True)


@contextmanager
def downloaded_source(name: HubName) -> Iterator[str]:
    """Yield the downloaded files of a model, or links to them, as ``FORMAT:PATH`` of an import."""
    with _linked(name, downloaded := _download(name)) as folder:
        yield _source(folder, downloaded)


def _source(folder: Path, downloaded: DownloadedModel) -> str:
    """Return what to import from a folder with the downloaded files."""
    match downloaded.form:
        case "argos":
            (package,) = downloaded.files
            return f"argos:{folder / package}"
        case "headway":
            return f"huggingface:{folder}"  # which is refused
    return f"{downloaded.form}:{folder}"


def _download(name: HubName, *, must_ask: bool = False) -> DownloadedModel:
    """Download a model that can be imported."""

    def check(folder: Path) -> None:
        try:
            check_supported(folder)
        except HeadwayError as error:
            raise error.with_location(str(name)) from None

    return download(name, check, must_ask=must_ask)


def _convert(name: HubName, *, must_ask: bool = False) -> ConvertedModel:
    downloaded = _download(name, must_ask=must_ask)
    model = ConvertedModel(name, downloaded.commit, folder_of(name, downloaded.digest))
    is_new = model.folder not in [known.folder for known in converted_models()]
    try:
        if is_new:
            with _linked(name, downloaded) as folder:
                _write(folder, downloaded, model.folder)
        record(model)
    except BaseException:
        if is_new:
            shutil.rmtree(model.folder, ignore_errors=True)
        raise
    return model


def _write(source: Path, downloaded: DownloadedModel, target: Path) -> None:
    if downloaded.form == "headway":
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
        check = measure_int8(bundle.model, bundle.tokenizer, bundle.prompt_prefix)
        if check is not None:
            write_int8_check(check, target)


@contextmanager
def _linked(name: HubName, downloaded: DownloadedModel) -> Iterator[Path]:
    """Yield a folder with links to the downloaded files, without others that the client's cache may have.

    Errors from reading it begin with the name of the model.
    """
    with tempfile.TemporaryDirectory(prefix="headway-hub-") as parent:
        folder = Path(parent) / name.title
        for file, path in downloaded.files.items():
            link = folder / file
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                link.symlink_to(path.resolve())
            except OSError:  # Windows allows links only with a privilege
                shutil.copyfile(path, link)
        try:
            yield folder
        except HeadwayError as error:
            raise error.with_location(str(name)) from None
