"""Import models from other toolkits: weights, tokenizers, special tokens, and a model card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from headway.bundle import (
    ANY_LANGUAGE,
    Bundle,
    ClassifierBundle,
    LanguageModelBundle,
    MaskedLanguageModelBundle,
    TaskConfig,
)
from headway.config import spelling_hint
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.engine import Shortlist
from headway.errors import BundleError, ConfigError
from headway.interop.argos import is_argos, open_package, read_package_tokenizers
from headway.interop.ctranslate2_importing import CTranslate2Model, import_ctranslate2_model, is_ctranslate2
from headway.interop.ctranslate2_tokenizers import FolderTokenizers, read_folder_tokenizers
from headway.interop.ctranslate2_vocabularies import read_vocabulary_map
from headway.interop.hub.names import SCHEMES
from headway.interop.huggingface import ImportedModel, import_model
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES
from headway.interop.huggingface.causal_importing import import_causal
from headway.interop.huggingface.checkpoint import Checkpoint, ModelFamily, read_checkpoint_config
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES
from headway.interop.huggingface.families import FAMILIES
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.masked_importing import import_masked, import_sequence_classifier
from headway.interop.huggingface.t5_importing import T5_FAMILIES, import_t5
from headway.interop.json_objects import read_json
from headway.interop.marian import import_marian_model, is_marian
from headway.interop.model_card import imported_card, imported_classifier_card, imported_language_model_card
from headway.interop.search_settings import ARGOS_SEARCH, read_transformers_generation, read_transformers_search
from headway.interop.tokenizer_importing import (
    ForeignVocabularies,
    read_language_model_tokenizer,
    read_masked_tokenizer,
    read_tokenizer_files,
)
from headway.models.transformer import Transformer
from headway.text.base import EOS, TextTokenizer
from headway.text.special_tokens import LanguageSide, SpecialTokenTemplate

ImportFormat = Literal["huggingface", "ctranslate2", "argos", "marian"]
_TRANSLATION_FAMILIES: Mapping[str, ModelFamily] = {**FAMILIES, **T5_FAMILIES}


@dataclass(frozen=True)
class ImportedBundle:
    """An imported translation model and its model card.

    Attributes:
        bundle: The imported model with its tokenizers.
        card: The text of its model card.
        description: The kind of model and the files that were found.
        shortlist: The shortlist that came with the model, if any.
    """

    bundle: Bundle
    card: str
    description: str = ""
    shortlist: Shortlist | None = None


@dataclass(frozen=True)
class ImportedLanguageModelBundle:
    """An imported language model and its model card."""

    bundle: LanguageModelBundle
    card: str


@dataclass(frozen=True)
class ImportedMaskedBundle:
    """An imported masked language model and its model card."""

    bundle: MaskedLanguageModelBundle
    card: str


@dataclass(frozen=True)
class ImportedClassifierBundle:
    """An imported sequence classifier and its model card."""

    bundle: ClassifierBundle
    card: str


def import_from(
    source: str, *, source_language: str | None = None, target_language: str | None = None
) -> ImportedBundle | ImportedLanguageModelBundle | ImportedMaskedBundle | ImportedClassifierBundle:
    """Import a model from a path, whose format is detected from its files, or from ``FORMAT:PATH`` (``argos:de_en``).

    See :func:`import_huggingface`, :func:`import_language_model`, :func:`import_masked_language_model`,
    :func:`import_classifier`, :func:`import_ctranslate2`, :func:`import_argos` and :func:`import_marian`.
    """
    form, path = locate_source(source)
    languages = {"source_language": source_language, "target_language": target_language}
    match form:
        case "ctranslate2":
            return import_ctranslate2(path, **languages)
        case "argos":
            if source_language is not None or target_language is not None:
                raise ConfigError(
                    "an Argos Translate package defines its languages; leave out --source-language and "
                    "--target-language out"
                )
            return import_argos(path)
        case "marian":
            return import_marian(path, **languages)
    if not path.is_dir():
        raise ConfigError(
            f"{path}: no such folder; expected a folder with a model's config.json, weights and tokenizer files "
            "(to download one: hf download NAME --local-dir FOLDER)"
        )
    return _import_huggingface_folder(path, languages)


def locate_source(source: str) -> tuple[ImportFormat, Path]:
    """Return the format and the path for ``FORMAT:PATH``, or for a path whose format is detected from its files.

    Raises:
        ConfigError: There is no such file or folder, or it is not a model in a known format.
    """
    form, colon, rest = source.partition(":")
    if colon and form in SCHEMES:
        return "huggingface", Path(rest)
    if colon and form in get_args(ImportFormat):
        return cast("ImportFormat", form), Path(rest)
    path = Path(source)
    if not path.exists():
        near = spelling_hint(f"{form}:", [f"{known}:" for known in get_args(ImportFormat)]) if colon else ""
        hint = near if near.startswith("did you mean") else f"expected {_EXPECTED}"
        raise ConfigError(f"{source}: no such file or folder; {hint}")
    return _format_of(path), path


_EXPECTED = "a Hugging Face or CTranslate2 folder, an Argos Translate package (.argosmodel), or Marian's .npz"


def _format_of(path: Path) -> ImportFormat:
    if is_argos(path):
        return "argos"
    if path.is_dir():
        config = read_json(path / "config.json") if (path / "config.json").is_file() else None
        if config is not None and "format" in config and "tokenizers" in config:
            raise ConfigError(f"{path}: this is already a Headway model folder; use it as it is")
        if is_ctranslate2(path):
            return "ctranslate2"
        if config is not None and "model_type" in config:
            return "huggingface"
    elif path.name == "model.bin" or path.name == "config.json":
        raise ConfigError(f"{path}: specify its folder, {path.parent}")
    if is_marian(path):
        return "marian"
    raise ConfigError(f"{path}: unknown model format; expected {_EXPECTED}")


def _import_huggingface_folder(
    folder: Path, languages: Mapping[str, str | None]
) -> ImportedBundle | ImportedLanguageModelBundle | ImportedMaskedBundle | ImportedClassifierBundle:
    classifies = _is_classifier(folder)
    checkpoint = check_supported(folder)
    if checkpoint["model_type"] in _TRANSLATION_FAMILIES:
        return import_huggingface(folder, **languages)
    if any(language is not None for language in languages.values()):
        what = "classifier" if classifies else "language model"
        raise ConfigError(f"a {what} has no languages to choose; leave out --source-language and --target-language")
    if classifies:
        return import_classifier(folder)
    if checkpoint["model_type"] in MASKED_FAMILIES:
        return import_masked_language_model(folder)
    return import_language_model(folder)


def import_ctranslate2(
    folder: str | Path, *, source_language: str | None = None, target_language: str | None = None
) -> ImportedBundle:
    """Import a CTranslate2 folder with an encoder-decoder Transformer and, if it contains them, its tokenizers.

    Args:
        folder: A folder with model.bin and its vocabularies. Without tokenizer files, texts must be tokens separated by
            spaces.
        source_language: Code of the source language, or of the default source language if a token selects the language.
        target_language: Code of the target language, or of the default target language if a token selects the language.

    Raises:
        BundleError: A file is missing or damaged, or Headway does not support an option of the model.
        ConfigError: Tokens select the model's languages, but the model does not have a given language.
    """
    folder = Path(folder)
    model = import_ctranslate2_model(folder, start_token=target_language)
    files = read_folder_tokenizers(folder, model)
    asked: dict[LanguageSide, str | None] = {"source_language": source_language, "target_language": target_language}
    description = f"CTranslate2 model, binary version {model.version}, {model.dtype} weights; {files.description}"
    return _imported_ctranslate2(model, files, folder, asked, description)


def import_argos(path: str | Path) -> ImportedBundle:
    """Import an Argos Translate package: a CTranslate2 model, its tokenizer and its languages.

    Args:
        path: An .argosmodel file, or a folder with its files.

    Raises:
        BundleError: The package is damaged or not for translation, or Headway does not support an option of its model.
        MissingPackageError: The tokenizer needs a package that is not installed.
    """
    path = Path(path)
    with open_package(path) as package:
        model = import_ctranslate2_model(package.model_folder)
        files = read_package_tokenizers(package, model)
        languages: dict[LanguageSide, str | None] = {
            "source_language": package.source_language,
            "target_language": package.target_language,
        }
        description = (
            f"Argos Translate package from {package.source_language} to {package.target_language}: CTranslate2 model, "
            f"binary version {model.version}, {model.dtype} weights; {files.description}"
        )
        return _imported_ctranslate2(model, files, package.folder, languages, description, path)


def _imported_ctranslate2(
    model: CTranslate2Model,
    files: FolderTokenizers,
    folder: Path,
    asked: Mapping[LanguageSide, str | None],
    description: str,
    origin: Path | None = None,
) -> ImportedBundle:
    kind = "CTranslate2 folder" if origin is None else "Argos Translate package"
    name = (origin or folder).absolute().name  # of the link, not of the linked file in the Hub client's cache
    weights = f"{model.dtype} converted to float32" if model.dtype != "float32" else "unchanged"
    search = PAPER_OPTIONS if origin is None else ARGOS_SEARCH
    imported = _translation_bundle(model.model, files.source, files.target, files.template, asked, search)
    fingerprints = " ".join(tokenizer.fingerprint for tokenizer in imported.tokenizers.values())
    map_folder = folder if origin is None else folder / "model"
    shortlist = read_vocabulary_map(
        map_folder / "vmap.txt", model.source_vocabulary, model.target_vocabulary, fingerprints
    )
    if shortlist is not None:
        description += "; vmap.txt, which becomes a shortlist"
    card = imported_card(imported, name, "CTranslate2", _license(folder), kind=kind, weights=weights)
    return ImportedBundle(imported, card, description, shortlist)


def import_marian(
    path: str | Path, *, source_language: str | None = None, target_language: str | None = None
) -> ImportedBundle:
    """Import a Marian Transformer: its weights, vocabularies and tokenizers.

    Args:
        path: An .npz file, or a folder that contains it. The vocabularies and, for OPUS-MT, source.spm and target.spm
            are in the same folder.
        source_language: Code of the source language.
        target_language: Code of the target language, or of the default target language if the model has several.

    Raises:
        BundleError: A file is missing or damaged, or Headway does not support an option of the model.
        ConfigError: The model has several target languages, but not the given language.
        MissingPackageError: A package that the import needs is not installed.
    """
    path = Path(path)
    model = import_marian_model(path)
    asked: dict[LanguageSide, str | None] = {"source_language": source_language, "target_language": target_language}
    bundle = _translation_bundle(model.model, model.source, model.target, model.template, asked, model.search)
    folder = path if path.is_dir() else path.parent
    card = imported_card(bundle, path.resolve().name, "Marian", _license(folder), kind="Marian model")
    return ImportedBundle(bundle, card, f"Marian model, {model.description}")


def _translation_bundle(
    model: Transformer,
    source: TextTokenizer,
    target: TextTokenizer,
    template: SpecialTokenTemplate,
    asked: Mapping[LanguageSide, str | None],
    search: DecodingOptions = PAPER_OPTIONS,
) -> Bundle:
    """Return the bundle of a model whose files do not name its languages, or list them only in the vocabulary.

    A language in ``asked`` becomes the default of a side whose language is selected by a token, or the language of
    another side.
    """
    for side, language in asked.items():
        if language is not None and side in template.language_sides:
            _check_language(language, side, template.languages)
            template = template.model_copy(update={side: language})
    task = TaskConfig(
        source_language=asked["source_language"] or template.source_language or _unnamed(template.source_languages),
        target_language=asked["target_language"] or template.target_language or _unnamed(template.target_languages),
    )
    return Bundle(task, model.eval(), source, target, template, search=search)


def import_language_model(folder: str | Path) -> ImportedLanguageModelBundle:
    """Import a Hugging Face `transformers` folder with a decoder-only language model and its tokenizer.

    The special tokens that the family's tokenizer puts before a text are stored with the model, and are put before a
    prompt. Many families have no such tokens.

    Raises:
        BundleError: The folder does not contain a language model, or Headway does not support its model or tokenizer.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(folder, CAUSAL_FAMILIES)
    side = read_language_model_tokenizer(folder, checkpoint["model_type"])
    imported = import_causal(folder, unknown_id=side.unknown_id)
    tokenizer, prefix = side.make_tokenizer(imported.vocabulary), imported.vocabulary.to_headway_ids(side.prefix)
    template = SpecialTokenTemplate(source_prefix=prefix, source_suffix=imported.end_ids)
    task, generation = TaskConfig(kind="language_model"), read_transformers_generation(folder)
    bundle = LanguageModelBundle(task, imported.model, tokenizer, template, generation=generation)
    card = imported_language_model_card(bundle, folder.resolve().name, imported.family, _license(folder))
    return ImportedLanguageModelBundle(bundle, card)


def import_masked_language_model(folder: str | Path) -> ImportedMaskedBundle:
    """Import a Hugging Face `transformers` folder with a masked language model and its tokenizer.

    Raises:
        BundleError: The folder does not contain such a model, or Headway does not support its model or tokenizer.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(folder, MASKED_FAMILIES)
    side = read_masked_tokenizer(folder, checkpoint["model_type"])
    imported = import_masked(folder, **side.special_ids)
    task = TaskConfig(kind="masked_language_model")
    bundle = MaskedLanguageModelBundle(task, imported.model, side.make_tokenizer(imported.vocabulary))
    card = imported_language_model_card(bundle, folder.resolve().name, imported.family, _license(folder))
    return ImportedMaskedBundle(bundle, card)


def import_classifier(folder: str | Path) -> ImportedClassifierBundle:
    """Import a Hugging Face `transformers` folder with a sequence classifier and its tokenizer.

    Raises:
        BundleError: The folder does not contain such a model, or Headway does not support its model or tokenizer.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(folder, CLASSIFIER_FAMILIES)
    side = read_masked_tokenizer(folder, checkpoint["model_type"])
    imported = import_sequence_classifier(folder, **side.special_ids)
    tokenizer = side.make_tokenizer(imported.vocabulary)
    bundle = ClassifierBundle(TaskConfig(kind="classification"), imported.model, tokenizer, imported.labels)
    card = imported_classifier_card(bundle, folder.resolve().name, imported.family, _license(folder))
    return ImportedClassifierBundle(bundle, card)


def check_supported(folder: Path) -> Checkpoint[ModelFamily]:
    """Return the configuration in a Hugging Face folder, after checking that config.json describes a supported model.

    Raises:
        BundleError: The model is not supported. The message contains the reason.
    """
    is_classifier = _is_classifier(folder)
    others = {**_TRANSLATION_FAMILIES, **CAUSAL_FAMILIES, **MASKED_FAMILIES}
    return read_checkpoint_config(folder, CLASSIFIER_FAMILIES if is_classifier else others)


def _is_classifier(folder: Path) -> bool:
    """Return whether config.json names a sequence classifier; raise :class:`BundleError` if it cannot be imported."""
    config = read_json(folder / "config.json") or {}
    architectures = [
        name for name in config.get("architectures") or [] if str(name).endswith("ForSequenceClassification")
    ]
    if architectures and config.get("model_type") not in CLASSIFIER_FAMILIES:
        supported = ", ".join(family.architecture for family in CLASSIFIER_FAMILIES.values())
        raise BundleError(
            f"{folder / 'config.json'}: architectures = {architectures} is not supported; supported sequence "
            f"classifiers: {supported}"
        )
    return bool(architectures)


def import_huggingface(
    folder: str | Path, *, source_language: str | None = None, target_language: str | None = None
) -> ImportedBundle:
    """Import a Hugging Face `transformers` folder with a translation model: weights, tokenizers and languages.

    Args:
        folder: A folder with config.json, weights and tokenizer files.
        source_language: Code of the default source language. None means the language that the folder defines.
        target_language: Code of the default target language. If the config.json of an mBART model does not define the
            first decoder token, this is the only target language.

    Raises:
        BundleError: The folder does not contain a model, or Headway does not support its model or tokenizer.
        ConfigError: The model does not have a given language; the message lists its languages.
    """
    folder = Path(folder)
    # Check the model first, so that an unsupported model is reported before an unsupported tokenizer.
    checkpoint = read_checkpoint_config(folder, _TRANSLATION_FAMILIES)
    sides = read_tokenizer_files(folder, checkpoint["model_type"])
    asked: dict[LanguageSide, str | None] = {"source_language": source_language, "target_language": target_language}
    if checkpoint["model_type"] in T5_FAMILIES:
        imported = import_t5(folder, unknown_id=sides.source.unknown_id)
    else:
        start = _start(checkpoint, sides, target_language)
        imported = import_model(
            folder, decoder_start_id=start, unknown_ids=(sides.source.unknown_id, sides.target.unknown_id)
        )
        if start is not None:
            asked["target_language"] = None
    template = _template(folder, imported, sides, asked)
    source = sides.source.make_tokenizer(imported.source_vocabulary)
    target = source if sides.target is sides.source else sides.target.make_tokenizer(imported.target_vocabulary)
    # MADLAD-400 translates from any of its languages without a source language token.
    sources = template.languages if checkpoint["model_type"] in T5_FAMILIES else template.source_languages
    task = TaskConfig(
        source_language=template.source_language or sides.source_language or _unnamed(tuple(sources)),
        target_language=template.target_language
        or target_language
        or sides.target_language
        or _unnamed(template.target_languages),
    )
    bundle = Bundle(task, imported.model.eval(), source, target, template, search=read_transformers_search(folder))
    return ImportedBundle(bundle, imported_card(bundle, folder.resolve().name, imported.family, _license(folder)))


def _start(checkpoint: Checkpoint[ModelFamily], sides: ForeignVocabularies, target_language: str | None) -> int | None:
    """Return the first decoder token of an mBART model that does not define it: the target language's code.

    None for other models.
    """
    if checkpoint["model_type"] != "mbart" or checkpoint.generation_setting("decoder_start_token_id") is not None:
        return None
    language = target_language or sides.target_language
    if language is None:
        raise ConfigError(
            f"{checkpoint.path.parent}: decoding begins with the target language's code, which the folder does not "
            f"define; specify one of {', '.join(sides.target.languages)} (target_language=, on the command line "
            "--target-language)"
        )
    _check_language(language, "target_language", sides.target.languages)
    return sides.target.languages[language]


def _check_language(language: str, side: LanguageSide, known: Mapping[str, int]) -> None:
    if language not in known:
        names = f"known: {', '.join(known)}" if known else "this language cannot be chosen; leave it out"
        raise ConfigError(f"{side} {language!r}: not a language code of this model; {names}")


def _template(
    folder: Path, imported: ImportedModel, sides: ForeignVocabularies, asked: dict[LanguageSide, str | None]
) -> SpecialTokenTemplate:
    """Return the family's special-token template with the tokenizer's languages added.

    OPUS-MT models with several target languages and MADLAD-400 expect the code of the target language before the
    source. Only the vocabulary indicates this.
    """
    template, languages = imported.token_template, sides.source.languages
    if languages and imported.family in ("MarianMT", *(family.title for family in T5_FAMILIES.values())):
        before = imported.source_vocabulary.to_headway_ids(sides.source.language_code_prefix)
        prefix = (*before, "target_language", *template.source_prefix)
        template = template.model_copy(update={"source_prefix": prefix})
    for side, language in asked.items():
        if language is not None:
            _check_language(language, side, sides.source.languages if side in template.language_sides else {})
    if imported.family == "M2M-100" and _is_legacy_nllb(folder):
        template = template.model_copy(update={"source_prefix": (), "source_suffix": (EOS, "source_language")})
    if not template.language_sides:
        return template
    if not languages:
        raise BundleError(f"{folder}: tokens select the model's languages, but the tokenizer files list no languages")
    only = next(iter(languages)) if len(languages) == 1 else None
    folder_says = {"source_language": sides.source_language, "target_language": sides.target_language}
    update: dict[str, Any] = {side: asked[side] or folder_says[side] or only for side in template.language_sides}
    ids = dict(zip(languages, imported.source_vocabulary.to_headway_ids(languages.values()), strict=True))
    return template.model_copy(update=update | {"languages": ids})


def _is_legacy_nllb(folder: Path) -> bool:
    """Return whether the tokenizer puts the source language after the text, as NLLB's tokenizer originally did."""
    config = read_json(folder / "tokenizer_config.json") or {}
    is_nllb = str(config.get("tokenizer_class")).removesuffix("Fast") == "NllbTokenizer"
    return is_nllb and bool(config.get("legacy_behaviour"))


def _unnamed(languages: tuple[str, ...]) -> str:
    return ANY_LANGUAGE if languages else "und"


def _license(folder: Path) -> str | None:
    """Return the license named in the folder's model card, or None."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    first, *lines = text.split("\n")
    end = next((number for number, line in enumerate(lines) if line.startswith("---")), None)
    if first.rstrip() != "---" or end is None:
        return None
    matches = (re.fullmatch(r"license:\s*+([\w.+-]++)\s*", line) for line in lines[:end])
    return next((match[1] for match in matches if match), None)
