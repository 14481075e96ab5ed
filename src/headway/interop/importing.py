"""Import a model folder from another toolkit: weights, tokenizers, special tokens, and a model card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.bundle import Bundle, ClassifierBundle, LanguageModelBundle, MaskedLanguageModelBundle, TaskConfig
from headway.config import spelling_hint
from headway.errors import BundleError, ConfigError
from headway.interop.huggingface import ImportedModel, import_model
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES
from headway.interop.huggingface.causal_importing import import_causal
from headway.interop.huggingface.checkpoint import Checkpoint, read_checkpoint_config, read_json
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES
from headway.interop.huggingface.families import FAMILIES, Family
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.masked_importing import import_masked, import_sequence_classifier
from headway.interop.model_card import imported_card, imported_classifier_card, imported_language_model_card
from headway.interop.tokenizer_importing import (
    ForeignVocabularies,
    read_masked_tokenizer,
    read_prompt_tokenizer,
    read_tokenizer_files,
)
from headway.text.base import EOS
from headway.text.special_tokens import LanguageSide, SpecialTokenTemplate

_MANY = "mul"  # ISO 639-2 and BCP 47: several languages


@dataclass(frozen=True)
class ImportedBundle:
    """An imported translation model and its model card."""

    bundle: Bundle
    card: str


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
    """Import ``FORMAT:PATH``, such as ``huggingface:opus-mt-en-de``.

    See :func:`import_huggingface`, :func:`import_language_model`, :func:`import_masked_language_model` and
    :func:`import_classifier`.
    """
    form, colon, path = source.partition(":")
    if not colon or form != "huggingface":
        hint = spelling_hint(form, ["huggingface"]) if colon else "the format comes first"
        raise ConfigError(f"{source!r}: expected huggingface:FOLDER; {hint}")
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; expected a folder with a model's config.json, weights and tokenizer files "
            "(to download one: hf download NAME --local-dir FOLDER)"
        )
    classifies = _is_classifier(folder)
    families = CLASSIFIER_FAMILIES if classifies else {**FAMILIES, **CAUSAL_FAMILIES, **MASKED_FAMILIES}
    checkpoint = read_checkpoint_config(folder, families)
    if checkpoint["model_type"] in FAMILIES:
        return import_huggingface(folder, source_language=source_language, target_language=target_language)
    if source_language is not None or target_language is not None:
        what = "classifier" if classifies else "language model"
        raise ConfigError(f"a {what} has no languages to choose; leave --source-language and --target-language out")
    if classifies:
        return import_classifier(folder)
    if checkpoint["model_type"] in MASKED_FAMILIES:
        return import_masked_language_model(folder)
    return import_language_model(folder)


def import_language_model(folder: str | Path) -> ImportedLanguageModelBundle:
    """Import a Hugging Face `transformers` folder with a decoder-only language model and its tokenizer.

    The special tokens that the family's tokenizer puts before a text are stored with the model, which puts them before
    a prompt. Many families have none.

    Raises:
        BundleError: The folder does not contain a language model, or Headway does not support its model or tokenizer.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(folder, CAUSAL_FAMILIES)
    side = read_prompt_tokenizer(folder, checkpoint["model_type"])
    imported = import_causal(folder, unknown_id=side.unknown_id)
    tokenizer, prefix = side.make_tokenizer(imported.vocabulary), imported.vocabulary.to_headway_ids(side.prefix)
    template = SpecialTokenTemplate(source_prefix=prefix, source_suffix=imported.ends)
    bundle = LanguageModelBundle(TaskConfig(kind="language_model"), imported.model, tokenizer, template)
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


def _is_classifier(folder: Path) -> bool:
    """Return whether config.json names a sequence classifier; raise :class:`BundleError` if it cannot be imported."""
    config = read_json(folder / "config.json") or {}
    architectures = [
        name for name in config.get("architectures") or [] if str(name).endswith("ForSequenceClassification")
    ]
    if architectures and config.get("model_type") not in CLASSIFIER_FAMILIES:
        supported = ", ".join(family.architecture for family in CLASSIFIER_FAMILIES.values())
        raise BundleError(
            f"{folder / 'config.json'}: architectures = {architectures} is not supported; "
            f"sequence classifiers that are: {supported}"
        )
    return bool(architectures)


def import_huggingface(
    folder: str | Path, *, source_language: str | None = None, target_language: str | None = None
) -> ImportedBundle:
    """Import a Hugging Face `transformers` folder with a translation model: weights, tokenizers and languages.

    Args:
        folder: A folder with config.json, weights and tokenizer files.
        source_language: Code of the default source language. None means the language that the folder defines.
        target_language: Code of the default target language. For an mBART model whose config.json does not define the
            first decoder token, this is the only target language.

    Raises:
        BundleError: The folder does not contain a model, or Headway does not support its model or tokenizer.
        ConfigError: The model does not have a given language; the message lists its languages.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(
        folder, FAMILIES
    )  # first, so that an unsupported model is reported before its tokenizer
    sides = read_tokenizer_files(folder, checkpoint["model_type"])
    asked: dict[LanguageSide, str | None] = {"source_language": source_language, "target_language": target_language}
    start = _start(checkpoint, sides, target_language)
    imported = import_model(
        folder, decoder_start_id=start, unknown_ids=(sides.source.unknown_id, sides.target.unknown_id)
    )
    if start is not None:
        asked["target_language"] = None
    template = _template(folder, imported, sides, asked)
    source = sides.source.make_tokenizer(imported.source_vocabulary)
    target = source if sides.target is sides.source else sides.target.make_tokenizer(imported.target_vocabulary)
    task = TaskConfig(
        source_language=template.source_language or sides.source_language or _unnamed(template.source_languages),
        target_language=template.target_language
        or target_language
        or sides.target_language
        or _unnamed(template.target_languages),
    )
    bundle = Bundle(task, imported.model.eval(), source, target, template)
    return ImportedBundle(bundle, imported_card(bundle, folder.resolve().name, imported.family, _license(folder)))


def _start(checkpoint: Checkpoint[Family], sides: ForeignVocabularies, target_language: str | None) -> int | None:
    """Return the first decoder token of an mBART model that does not define it: the target language's code.

    None for other models.
    """
    if checkpoint["model_type"] != "mbart" or checkpoint.generation_setting("decoder_start_token_id") is not None:
        return None
    language = target_language or sides.target_language
    if language is None:
        raise ConfigError(
            f"{checkpoint.path.parent}: decoding begins with the target language's code, which the folder does not "
            f"define; give one of {', '.join(sides.target.languages)} (target_language=, on the command line "
            "--target-language)"
        )
    _check_language(language, "target_language", sides.target.languages)
    return sides.target.languages[language]


def _check_language(language: str, side: LanguageSide, known: Mapping[str, int]) -> None:
    if language not in known:
        names = f"known: {', '.join(known)}" if known else "it does not choose this language; leave it out"
        raise ConfigError(f"{side} {language!r}: not a language code of this model; {names}")


def _template(
    folder: Path, imported: ImportedModel, sides: ForeignVocabularies, asked: dict[LanguageSide, str | None]
) -> SpecialTokenTemplate:
    """Return the family's special-token template with the tokenizer's languages added.

    OPUS-MT models with several target languages expect the code of the target language before the source. Only their
    vocabulary shows this.
    """
    template, languages = imported.token_template, sides.source.languages
    if languages and imported.family == "MarianMT":
        prefix = ("target_language", *template.source_prefix)
        template = template.model_copy(update={"source_prefix": prefix})
    for side, language in asked.items():
        if language is not None:
            _check_language(language, side, sides.source.languages if side in template.language_sides else {})
    if imported.family == "M2M-100" and _is_legacy_nllb(folder):
        template = template.model_copy(update={"source_prefix": (), "source_suffix": (EOS, "source_language")})
    if not template.language_sides:
        return template
    if not languages:
        raise BundleError(f"{folder}: the model reads its languages from tokens, but its tokenizer files list none")
    only = next(iter(languages)) if len(languages) == 1 else None
    folder_says = {"source_language": sides.source_language, "target_language": sides.target_language}
    update: dict[str, Any] = {side: asked[side] or folder_says[side] or only for side in template.language_sides}
    ids = dict(zip(languages, imported.source_vocabulary.to_headway_ids(languages.values()), strict=True))
    return template.model_copy(update=update | {"languages": ids})


def _is_legacy_nllb(folder: Path) -> bool:
    """Return whether the tokenizer puts the source language after the text, as NLLB's did before it was corrected."""
    config = read_json(folder / "tokenizer_config.json") or {}
    is_nllb = str(config.get("tokenizer_class")).removesuffix("Fast") == "NllbTokenizer"
    return is_nllb and bool(config.get("legacy_behaviour"))


def _unnamed(languages: tuple[str, ...]) -> str:
    return _MANY if languages else "und"


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
