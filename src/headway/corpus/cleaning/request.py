"""Create the inputs and settings for cleaning a corpus from files, languages and models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.corpus.cleaning.config import CleaningConfig
from headway.corpus.cleaning.corpus_files import CorpusInput, corpus_inputs
from headway.corpus.cleaning.corpus_lines import CorpusKind
from headway.corpus.cleaning.measuring import CleaningSettings
from headway.errors import ConfigError
from headway.text.languages import base_language


def cleaning_request(
    files: Sequence[Path],
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    has_labels: bool = False,
    fields: Sequence[str] | None = None,
    held_out: Sequence[Path] = (),
    model: Path | None = None,
    reverse_model: Path | None = None,
    config: CleaningConfig | None = None,
) -> tuple[list[CorpusInput], CleaningSettings]:
    """Return the inputs and the settings for :func:`headway.corpus.cleaning.run.clean`.

    Args:
        files: The files of the corpus. Plain text files with pairs are grouped in twos (source, target).
        source_language: The language of the sources, or of single texts. None if it is not known.
        target_language: The language of the targets. If it is given, the corpus contains pairs.
        has_labels: Whether the corpus contains labeled texts.
        fields: Column numbers in TSV, counted from 1, or field names in JSON. None means the default ones.
        held_out: Files with texts that must not be in the corpus.
        model: A translation model from source to target, for the rule "cross_entropy".
        reverse_model: A translation model from target to source.
        config: Repairs, rules and thresholds. None means the default ones.

    Raises:
        ConfigError: A file does not exist, or the arguments are not compatible.
        BundleError: A model cannot be read.
        DataError: A file is binary.
    """
    for path in held_out:
        if not path.is_file():
            raise ConfigError(f"--held-out {path}: no such file")
    if (model is None) != (reverse_model is None) or (model is not None and target_language is None):
        raise ConfigError("--model and --reverse must be used together, and need pairs (--from and --to)")
    kind = _kind(source_language, target_language, has_labels)
    if model is not None and reverse_model is not None and source_language and target_language:
        _check_model("--model", model, source_language, target_language)
        _check_model("--reverse", reverse_model, target_language, source_language)
    settings = CleaningSettings(
        kind=kind,
        languages=(source_language, target_language) if kind == "pairs" else (source_language,),
        fields=None if fields is None else tuple(fields),
        held_out=tuple(str(path) for path in held_out),
        model=None if model is None else str(model.resolve()),
        reverse_model=None if reverse_model is None else str(reverse_model.resolve()),
        config=config or CleaningConfig(),
    )
    return corpus_inputs(files, kind, settings.fields, has_languages=source_language is not None), settings


def _check_model(option: str, folder: Path, source_language: str, target_language: str) -> None:
    """Raise an error if a model does not translate, or translates in the opposite direction.

    Other differences between language names are accepted, because a model may be for a family of languages.
    """
    from headway.bundle import read_config

    config = read_config(folder)
    if config.capability != "translates":
        raise ConfigError(f"{option} {folder}: does not translate; expected a translation model")
    direction = base_language(config.task.source_language), base_language(config.task.target_language)
    expected = base_language(source_language), base_language(target_language)
    if direction == expected[::-1] != expected:
        raise ConfigError(
            f"{option} {folder}: translates from {direction[0]} to {direction[1]}; expected {expected[0]} to "
            f"{expected[1]}; exchange --model and --reverse, or --from and --to"
        )


def _kind(source_language: str | None, target_language: str | None, has_labels: bool) -> CorpusKind:
    if has_labels and target_language is not None:
        raise ConfigError("--labels and --to cannot be combined: labeled texts have no target language")
    if target_language is not None and source_language is None:
        raise ConfigError("--to needs --from, the language of the sources")
    return "labels" if has_labels else "texts" if target_language is None else "pairs"
