"""Read Argos Translate's translation packages (.argosmodel), which LibreTranslate also uses.

A package is a zip archive of a folder, or the folder itself:

    metadata.json                          languages (from_code, to_code), type, target_prefix
    model/                                 a CTranslate2 folder
    sentencepiece.model, or bpe.model      the tokenizer; bpe.model has subword-nmt merges, applied after Moses rules

Argos adds no special tokens to a source. If there is a ``target_prefix``, every translation begins with this token.
Argos also splits texts into sentences with Stanza or MiniSBD. Headway does not need their files, because it splits
texts itself.

Only the files that are needed are unpacked, into a temporary folder, under names that this module chooses. Their sizes
and compression factors are limited.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headway.errors import BundleError
from headway.interop.ctranslate2_importing import CTranslate2Model, is_ctranslate2
from headway.interop.ctranslate2_tokenizers import FolderTokenizers
from headway.interop.json_objects import read_json
from headway.interop.stored_vocabulary import StoredVocabulary
from headway.text.base import TextTokenizer
from headway.text.moses import END_OF_WORD, MosesTokenizer

TOOLKIT_NAME = "Argos Translate"
_MODEL, _SENTENCEPIECE, _BPE = "model", "sentencepiece.model", "bpe.model"
_VOCABULARIES = ("shared_vocabulary", "source_vocabulary", "target_vocabulary")
_SMALL_FILES = (
    *("metadata.json", "README.md", _SENTENCEPIECE, _BPE, f"{_MODEL}/config.json", f"{_MODEL}/vmap.txt"),
    *(f"{_MODEL}/{name}.{ending}" for name in _VOCABULARIES for ending in ("json", "txt")),
)
_WEIGHTS = f"{_MODEL}/model.bin"
_MAX_SMALL, _MAX_WEIGHTS = 2**28, 2**36  # maximum file sizes in bytes
_MAX_COMPRESSION, _COMPRESSION_FREE = 200, 2**20  # maximum compression factor of files larger than this many bytes
_JOINER = "@@"  # subword-nmt's mark at the end of pieces that are not the last piece of a word


@dataclass(frozen=True)
class ArgosPackage:
    """An unpacked Argos Translate package.

    Attributes:
        folder: The folder with metadata.json.
        source_language: The code of the source language.
        target_language: The code of the target language.
        target_prefix: The token that every translation begins with, or an empty string.
    """

    folder: Path
    source_language: str
    target_language: str
    target_prefix: str

    @property
    def model_folder(self) -> Path:
        """The CTranslate2 folder."""
        return self.folder / _MODEL


def is_argos(path: Path) -> bool:
    """Return whether a path is an Argos Translate package, judging by its name or, for a folder, by its files."""
    if path.is_dir():
        return (path / "metadata.json").is_file() and (path / _MODEL).is_dir()
    return path.suffix == ".argosmodel"


@contextmanager
def open_package(path: Path) -> Iterator[ArgosPackage]:
    """Yield a package, unpacked into a temporary folder if it is an archive.

    Raises:
        BundleError: The archive or a file in it is damaged, or the package is not for translation.
    """
    if path.is_dir():
        yield _read_package(path)
        return
    with tempfile.TemporaryDirectory(prefix="headway-argos-") as folder:
        _unpack(path, Path(folder))
        try:
            yield _read_package(Path(folder))
        except BundleError as error:
            raise BundleError(f"{path}: {str(error).removeprefix(folder).lstrip('/: ')}") from None


def _read_package(folder: Path) -> ArgosPackage:
    metadata = read_json(folder / "metadata.json")
    if metadata is None:
        raise BundleError(f"{folder}: no metadata.json; expected an {TOOLKIT_NAME} package")
    kind = metadata.get("type") or "translate"
    if kind != "translate":
        raise BundleError(f"{folder}: packages of type {kind!r} are not supported; supported: 'translate'")
    languages = metadata.get("from_code"), metadata.get("to_code")
    prefix = metadata.get("target_prefix") or ""
    if not all(isinstance(language, str) and language for language in languages) or not isinstance(prefix, str):
        raise BundleError(f"{folder}: metadata.json: expected from_code and to_code, the codes of the two languages")
    if not is_ctranslate2(folder / _MODEL):
        raise BundleError(f"{folder}: no CTranslate2 model in the folder {_MODEL}; expected an {TOOLKIT_NAME} package")
    return ArgosPackage(folder, str(languages[0]), str(languages[1]), prefix)


def _unpack(path: Path, folder: Path) -> None:
    """Unpack the files that are needed from an archive to ``folder``."""
    try:
        with zipfile.ZipFile(path) as archive:
            root = _root(path, archive)
            for name in (*_SMALL_FILES, _WEIGHTS):
                try:
                    entry = archive.getinfo(f"{root}{name}")
                except KeyError:
                    continue
                _check_size(path, entry, _MAX_WEIGHTS if name == _WEIGHTS else _MAX_SMALL)
                target = folder / name
                target.parent.mkdir(exist_ok=True)
                with archive.open(entry) as stored, target.open("wb") as file:
                    shutil.copyfileobj(stored, file, 2**20)
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file; expected an {TOOLKIT_NAME} package") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BundleError(f"{path}: not an {TOOLKIT_NAME} package, or damaged ({error}); download it again") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be unpacked ({error.strerror or error})") from None


def _root(path: Path, archive: zipfile.ZipFile) -> str:
    """Return the prefix of the names of the package's files: the name of its folder, or an empty string."""
    metadata = [name for name in archive.namelist() if PurePosixPath(name).name == "metadata.json"]
    roots = [name.removesuffix("metadata.json") for name in metadata if name.count("/") <= 1 and "\\" not in name]
    if len(roots) != 1:
        what = "several files" if roots else "no file"
        raise BundleError(f"{path}: {what} metadata.json in the archive; expected one, as in {TOOLKIT_NAME} packages")
    return roots[0]


def _check_size(path: Path, entry: zipfile.ZipInfo, limit: int) -> None:
    bomb = entry.file_size > _MAX_COMPRESSION * entry.compress_size + _COMPRESSION_FREE
    if entry.file_size > limit or bomb:
        raise BundleError(
            f"{path}: {entry.filename} has {entry.file_size:,} bytes, compressed to {entry.compress_size:,}, which is "
            "more than packages contain"
        )


def read_package_tokenizers(package: ArgosPackage, model: CTranslate2Model) -> FolderTokenizers:
    """Return the tokenizers of a package, and the special tokens that surround a text.

    Raises:
        BundleError: A file is missing or damaged.
        MissingPackageError: The tokenizer needs a package that is not installed.
    """
    source, target = model.source_vocabulary, model.target_vocabulary
    template, folder = model.token_template, package.folder
    if package.target_prefix:
        if package.target_prefix not in target.ids:
            raise BundleError(
                f"{folder}: metadata.json: target_prefix = {package.target_prefix!r} is not in the vocabulary"
            )
        prefix = target.order.to_headway_ids([target.ids[package.target_prefix]])
        template = template.model_copy(update={"target_prefix": prefix})
    first: TextTokenizer
    second: TextTokenizer
    if (file := folder / _SENTENCEPIECE).is_file():
        first = source.sentencepiece_tokenizer(file)
        second = first if source is target else target.sentencepiece_tokenizer(file)
        return FolderTokenizers(first, second, template, f"SentencePiece ({_SENTENCEPIECE})")
    if not (file := folder / _BPE).is_file():
        raise BundleError(f"{folder}: no tokenizer in the package; expected {_SENTENCEPIECE} or {_BPE}")
    merges = _merges(file)
    first = _bpe_tokenizer(source, merges, package.source_language, str(file))
    second = _bpe_tokenizer(target, merges, package.target_language, str(file))
    return FolderTokenizers(first, second, template, f"Moses rules and {_BPE}")


def _bpe_tokenizer(
    vocabulary: StoredVocabulary, merges: list[tuple[str, str]], language: str, origin: str
) -> MosesTokenizer:
    """Return the tokenizer of one side. subword-nmt marks all pieces of a word except the last ("wo@@ rd"); Headway's
    tokenizer marks the last piece ("wo", "rd</w>").
    """
    order, tokens = vocabulary.order.order, vocabulary.ordered_tokens
    pieces = [token.removesuffix(_JOINER) if token.endswith(_JOINER) else f"{token}{END_OF_WORD}" for token in tokens]
    reserved = [new for new, old in enumerate(order) if old in vocabulary.special_ids or old >= len(vocabulary.tokens)]
    return MosesTokenizer(language, merges, pieces, reserved, rules="argos", origin=origin)


def _merges(path: Path) -> list[tuple[str, str]]:
    """Read subword-nmt merges, version 0.2. If a pair occurs twice, the second occurrence is ignored."""
    try:
        first, *lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); download the package again") from None
    if not first.startswith("#version:") or first.split()[-1] != "0.2":
        raise BundleError(
            f"{path}: begins with {first[:40]!r}; only subword-nmt merges of version 0.2 are supported (#version: 0.2)"
        )
    merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines, start=2):
        if not (stripped := line.strip("\r\n ")):
            continue
        left, *rest = stripped.split(" ")
        if len(rest) != 1:
            raise BundleError(f"{path}, line {number}: expected the two pieces of a merge, got {line[:40]!r}")
        merges.setdefault((left, rest[0]))
    return list(merges)
