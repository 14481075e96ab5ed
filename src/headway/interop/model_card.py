"""Model cards (README.md) for models imported from, or exported to, other toolkits."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version

from headway.bundle import AnyBundle, Bundle, ClassifierBundle, LanguageModelBundle, MaskedLanguageModelBundle
from headway.config import Config
from headway.version import __version__

_PACKAGES = ("torch", "tokenizers")


def imported_card(
    bundle: Bundle,
    name: str,
    family: str,
    license_name: str | None,
    *,
    kind: str = "Hugging Face folder",
    weights: str = "unchanged",
) -> str:
    """Return the card of a model folder that was imported from another toolkit.

    ``kind`` describes what the model was imported from, and ``weights`` how its weights were converted.
    """
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    search = _settings(bundle.search) or "as in the paper"
    sizes = f"{source.vocab_size:,} tokens" if source is target else f"{source.vocab_size:,} and {target.vocab_size:,}"
    return _imported_card(
        f"Translation from {bundle.task.source_language} to {bundle.task.target_language}",
        f"headway translate THIS_FOLDER -i input.txt -o output.txt{_language_options(bundle)}",
        _Origin(name, family, license_name, _weights(bundle), kind, weights),
        f"- Tokenizer: {source.kind}, {sizes}. Unlike in the original, encoding never yields special tokens or "
        f"language codes.\n- Languages: {_languages(bundle)}\n- Default search: {search}",
    )


def _settings(options: Config) -> str:
    settings = options.model_dump(mode="json", exclude_unset=True)
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def imported_language_model_card(
    bundle: LanguageModelBundle | MaskedLanguageModelBundle, name: str, family: str, license_name: str | None
) -> str:
    """Return the card of a causal or masked language model that was imported from another toolkit."""
    title, command = f"Masked language model {name}", 'headway fill THIS_FOLDER "A text with a [MASK]."'
    about = (
        f"- Tokenizer: {bundle.tokenizer.kind}, {bundle.tokenizer.vocab_size:,} tokens. Unlike in the original, "
        "encoding never yields special tokens."
    )
    if isinstance(bundle, LanguageModelBundle):
        title, command = f"Language model {name}", 'headway generate THIS_FOLDER "PROMPT"'
        before = ", ".join(bundle.tokenizer.display(bundle.prompt_prefix)) or "nothing"
        about += f"\n- Special tokens before a prompt: {before}."
        about += f"\n- Default generation: {_settings(bundle.generation) or 'draws from the whole distribution'}"
    return _imported_card(title, command, _Origin(name, family, license_name, _weights(bundle)), about)


def imported_classifier_card(bundle: ClassifierBundle, name: str, family: str, license_name: str | None) -> str:
    """Return the card of a sequence classifier that was imported from another toolkit."""
    return _imported_card(
        f"Text classification: {', '.join(bundle.labels)}",
        "headway classify THIS_FOLDER -i input.txt -o output.txt",
        _Origin(name, family, license_name, _weights(bundle)),
        f"- Tokenizer: {bundle.tokenizer.kind}, {bundle.tokenizer.vocab_size:,} tokens. Unlike in the original, "
        "encoding never yields special tokens.",
    )


@dataclass(frozen=True)
class _Origin:
    """The origin of an imported model."""

    name: str
    family: str
    license_name: str | None
    num_weights: int
    kind: str = "Hugging Face folder"
    weights: str = "unchanged"


def _imported_card(title: str, command: str, origin: _Origin, conversion: str) -> str:
    missing = "not named in the folder's model card; see the source of the model"
    return f"""# {title}

A {origin.family} model with {origin.num_weights:,} weights, imported into Headway from the {origin.kind} \
`{origin.name}`.

    {command}

## Origin

- Family: {origin.family}
- {origin.kind}: {origin.name}
- License: {origin.license_name or missing}

For data, training and scores, see the model card of the original model.

## Conversion

- Weights: {origin.weights}; vocabulary rows in Headway's order (padding, begin, end, unknown, then all others).
{conversion}

## Versions

{_versions()}
"""


def exported_card(bundle: AnyBundle, toolkit: str, usage: str) -> str:
    """Return the card of a folder exported for ``toolkit``. ``usage`` is the card's section on how to use the model."""
    title, what = f"Translation from {bundle.task.source_language} to {bundle.task.target_language}", "A Transformer"
    if isinstance(bundle, LanguageModelBundle):
        title = "Language model"
    if isinstance(bundle, MaskedLanguageModelBundle):
        title, what = "Masked language model", "An encoder"
    if isinstance(bundle, ClassifierBundle):
        title, what = f"Text classification: {', '.join(bundle.labels)}", "An encoder"
    return f"""# {title}

{what} with {_weights(bundle):,} weights, exported from Headway for {toolkit}.

{usage.strip()}

## Versions

{_versions()}
"""


def _weights(bundle: AnyBundle) -> int:
    return sum(parameter.numel() for parameter in bundle.model.parameters())


def _language_options(bundle: Bundle) -> str:
    template = bundle.token_template
    source = ("--from", template.source_languages, template.source_language)
    options = source, ("--to", template.target_languages, template.target_language)
    return "".join(f" {option} LANGUAGE" for option, languages, default in options if languages and default is None)


def _languages(bundle: Bundle) -> str:
    template = bundle.token_template
    if not template.languages:
        return "one source and one target language; the model does not choose between several."
    defaults = [("source", template.source_language), ("target", template.target_language)]
    listed = ", ".join(f"{side} {language}" for side, language in defaults if language)
    return f"{', '.join(template.languages)}" + (f" (default: {listed})" if listed else "")


def _versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"headway {__version__}, {packages}, Python {platform.python_version()}"
