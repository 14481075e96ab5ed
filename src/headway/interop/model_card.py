"""Model cards (README.md) for models imported from, or exported to, other toolkits."""

from __future__ import annotations

import platform
from importlib.metadata import version

from headway.bundle import Bundle, ClassifierBundle

_PACKAGES = ("headway", "torch", "tokenizers")


def imported_card(bundle: Bundle, name: str, family: str, license_name: str | None) -> str:
    """Return the card of a model folder that was imported from another toolkit."""
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    sizes = f"{source.vocab_size:,} tokens" if source is target else f"{source.vocab_size:,} and {target.vocab_size:,}"
    return f"""# Translation from {bundle.task.source_language} to {bundle.task.target_language}

A {family} model with {_weights(bundle):,} weights, imported into Headway from the Hugging Face folder `{name}`.

    headway translate THIS_FOLDER -i input.txt -o output.txt{_language_options(bundle)}

## Origin

- Family: {family}
- Folder: {name}
- License: {license_name or "the folder's model card names none; look it up where the model is from"}

Data, training and scores are those of the original: see its model card.

## Conversion

- Weights: taken over as they are, rows of the vocabulary in Headway's order (padding, begin, end, unknown, others).
- Tokenizer: {source.kind}, {sizes}. Text never produces special tokens or language codes, unlike in the original.
- Languages: {_languages(bundle)}

## Versions

{_versions()}
"""


def exported_card(bundle: Bundle | ClassifierBundle, form: str, use: str) -> str:
    """Return the card of a folder written for another toolkit; ``use`` shows how to use the model with it."""
    title, what = f"Translation from {bundle.task.source_language} to {bundle.task.target_language}", "A Transformer"
    if isinstance(bundle, ClassifierBundle):
        title, what = f"Text classification: {', '.join(bundle.labels)}", "An encoder"
    return f"""# {title}

{what} with {_weights(bundle):,} weights, exported from Headway for {form}.

{use.strip()}

## Versions

{_versions()}
"""


def _weights(bundle: Bundle | ClassifierBundle) -> int:
    return sum(parameter.numel() for parameter in bundle.model.parameters())


def _language_options(bundle: Bundle) -> str:
    template = bundle.token_template
    source = ("--from", template.source_languages, template.source_language)
    options = source, ("--to", template.target_languages, template.target_language)
    return "".join(f" {option} LANGUAGE" for option, languages, default in options if languages and default is None)


def _languages(bundle: Bundle) -> str:
    template = bundle.token_template
    if not template.languages:
        return "one for each side; the model is told none."
    defaults = [("source", template.source_language), ("target", template.target_language)]
    told = ", ".join(f"{side} {language}" for side, language in defaults if language)
    return f"{', '.join(template.languages)}" + (f" (where none is given: {told})" if told else "")


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in _PACKAGES) + f", Python {platform.python_version()}"
