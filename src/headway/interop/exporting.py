"""Export a model to the format of another toolkit: weights, tokenizer and model card.

The folder is written completely or not at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, get_args

from headway.bundle import AnyBundle, Bundle, ClassifierBundle, LanguageModelBundle, MaskedLanguageModelBundle
from headway.config import spelling_hint
from headway.engine import Shortlist
from headway.errors import ConfigError
from headway.interop.model_card import exported_card
from headway.interop.supported import require_exportable_model, require_transformer
from headway.interop.tokenizer_exporting import language_model_tokenizer_files, tokenizer_files, unique_token_names
from headway.kinds import Capability
from headway.models.sequence_classifier import SequenceClassifier
from headway.storage import atomic_write_folder
from headway.text.base import EOS
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.special_tokens import SpecialTokens

ExportFormat = Literal["huggingface", "ctranslate2", "onnx"]

# for models other than translation models: a description, and the supported formats
_FORMATS: dict[Capability, tuple[str, tuple[ExportFormat, ...]]] = {
    "labels": ("a classifier", ("huggingface", "onnx")),
    "continues": ("a language model", ("huggingface", "ctranslate2", "onnx")),
    "fills": ("a masked language model", ("huggingface", "onnx")),
}


def export_to(
    export_format: str,
    bundle: AnyBundle,
    folder: str | Path,
    *,
    quantization: str | None = None,
    shortlist: Shortlist | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Export ``bundle`` to the format of another toolkit.

    Args:
        export_format: "huggingface" (`transformers`), "ctranslate2" or "onnx".
        bundle: The model to export, with its tokenizers.
        folder: The folder to write. An existing folder is replaced when the export is complete.
        quantization: Data type of the weights in a CTranslate2 folder. None means float32.
        shortlist: The model's shortlist, if it has one. Only CTranslate2 supports it.
        source_language: The source language that the exported tokenizer passes to a multilingual model.
        target_language: The target language that the exported tokenizer passes to a multilingual model.

    Raises:
        ConfigError: The other toolkit does not support an option of the model, or the model does not support a given
            language.
        MissingPackageError: A package that the export needs is not installed.
    """
    folder = Path(folder)
    if export_format not in get_args(ExportFormat):
        known = (*get_args(ExportFormat), "headway")  # the command and AnyBundle.save write "headway"
        raise ConfigError(f"unknown format {export_format!r}; {spelling_hint(export_format, known)}")
    if quantization is not None and export_format != "ctranslate2":
        raise ConfigError(
            f"quantization {quantization!r}: only --to ctranslate2 supports it; other formats use float32"
        )
    chooses_language = source_language is not None or target_language is not None
    if bundle.capability in _FORMATS:
        what, formats = _FORMATS[bundle.capability]
        if chooses_language:
            raise ConfigError(f"{what} has no languages to choose; leave out --source-language and --target-language")
        if export_format not in formats:
            raise ConfigError(f"{what} cannot be exported to {export_format}; choose {' or '.join(formats)}")
    if export_format == "onnx":
        if chooses_language:
            raise ConfigError(
                "an ONNX model's languages are chosen at each call; leave out --source-language and --target-language"
            )
        from headway.interop.onnx import export

        export(bundle, folder)
        return
    toolkit = "CTranslate2" if export_format == "ctranslate2" else "Hugging Face `transformers`"
    require_exportable_model(bundle, toolkit)
    with atomic_write_folder(folder) as aside:
        if isinstance(bundle, MaskedLanguageModelBundle):
            use, files = _write_masked(bundle, aside)
        elif isinstance(bundle, ClassifierBundle):
            use, files = _write_huggingface_classifier(bundle, aside)
        elif isinstance(bundle, LanguageModelBundle):
            use, files = _write_language_model(bundle, aside, export_format, quantization)
        else:
            assert isinstance(bundle, Bundle)
            special = bundle.token_template.fill(source_language=source_language, target_language=target_language)
            languages = (bundle.task.source_language, bundle.task.target_language)
            files = tokenizer_files(bundle.source_tokenizer, bundle.target_tokenizer, special, languages)
            if export_format == "huggingface":
                use = _write_huggingface(bundle, aside, special)
            else:
                from headway.interop.ctranslate2 import write_ctranslate2

                write_ctranslate2(bundle, aside, quantization=quantization, shortlist=shortlist)
                use = _ctranslate2_use(bundle, special, has_tokenizer="tokenizer_config.json" in files)
        (aside / "README.md").write_text(exported_card(bundle, toolkit, use), encoding="utf-8")
        for name, content in files.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_bytes(content)


def _write_huggingface_classifier(bundle: ClassifierBundle, folder: Path) -> tuple[str, dict[str, bytes]]:
    """Write the model. Return the usage section of its card, and the content of the tokenizer's files."""
    if isinstance(bundle.model, SequenceClassifier):
        from headway.interop.huggingface.masked_exporting import export_sequence_classifier

        export_sequence_classifier(bundle, folder)
        return _HUGGINGFACE_SEQUENCE_CLASSIFIER, {}
    from headway.interop.huggingface import export_classifier

    files = tokenizer_files(bundle.tokenizer, bundle.tokenizer, SpecialTokens((), (EOS,), ()), ("", ""))
    if "tokenizer_config.json" not in files:
        raise ConfigError(f"a classifier with a {bundle.tokenizer.kind} tokenizer cannot be exported to `transformers`")
    settings = json.loads(files["tokenizer_config.json"]) | {"model_max_length": bundle.model.max_length}
    files["tokenizer_config.json"] = (json.dumps(settings, ensure_ascii=False) + "\n").encode()
    export_classifier(bundle, folder)
    return _HUGGINGFACE_CLASSIFIER, files


_HUGGINGFACE_CLASSIFIER = """
`transformers` does not have this architecture, so `modeling_headway.py` defines it. `trust_remote_code=True` runs this
file; read it first if you did not create the folder yourself.

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
model = AutoModelForSequenceClassification.from_pretrained("THIS_FOLDER", trust_remote_code=True)
logits = model(**tokenizer(["TEXT"], return_tensors="pt", padding=True, truncation=True)).logits
print([model.config.id2label[index] for index in logits.argmax(1).tolist()])
```
"""


_HUGGINGFACE_SEQUENCE_CLASSIFIER = """
```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
model = AutoModelForSequenceClassification.from_pretrained("THIS_FOLDER")
logits = model(**tokenizer(["TEXT"], return_tensors="pt", padding=True, truncation=True)).logits
print([model.config.id2label[index] for index in logits.argmax(1).tolist()])
```
"""


def _write_masked(bundle: MaskedLanguageModelBundle, folder: Path) -> tuple[str, dict[str, bytes]]:
    """Write the model. Return the usage section of its card, and the content of the tokenizer's files."""
    from headway.interop.huggingface.masked_exporting import export_masked

    assert bundle.tokenizer.mask_id is not None  # checked by the bundle
    export_masked(bundle, folder)
    mask = unique_token_names(bundle.tokenizer)[bundle.tokenizer.mask_id]
    use = f"""
```python
from transformers import pipeline

fill = pipeline("fill-mask", "THIS_FOLDER")
print([(each["token_str"], each["score"]) for each in fill("A text with a {mask} word.")])
```
"""
    return use, {}


_HUGGINGFACE_LANGUAGE_MODEL = """
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")
found = model.generate(**tokenizer(["PROMPT"], return_tensors="pt", padding=True), max_new_tokens=50)
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```
"""


def _write_language_model(
    bundle: LanguageModelBundle, folder: Path, export_format: str, quantization: str | None
) -> tuple[str, dict[str, bytes]]:
    """Write the model. Return the usage section of its card, and the content of the tokenizer's files."""
    if export_format == "huggingface":
        from headway.interop.huggingface.causal_exporting import export_language_model

        export_language_model(bundle, folder)
        return _HUGGINGFACE_LANGUAGE_MODEL, {}
    from headway.interop.ctranslate2 import write_generator

    tokenizer, ids = bundle.tokenizer, range(bundle.tokenizer.vocab_size)
    files = language_model_tokenizer_files(tokenizer, bundle.prompt_prefix, ids, bundle.model.config.max_length)
    write_generator(bundle, folder, quantization=quantization)
    return _CTRANSLATE2_LANGUAGE_MODEL, files


_CTRANSLATE2_LANGUAGE_MODEL = """
```python
import ctranslate2
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
generator = ctranslate2.Generator("THIS_FOLDER")
prompt = tokenizer.convert_ids_to_tokens(tokenizer.encode("PROMPT"))
found = generator.generate_batch([prompt], max_length=50, include_prompt_in_result=False)[0].sequences_ids[0]
print(tokenizer.decode(found, skip_special_tokens=True))
```
"""


def _write_huggingface(bundle: Bundle, folder: Path, special: SpecialTokens) -> str:
    """Write the model, and return the usage section of its card."""
    from headway.interop.huggingface import export_model

    if special.target_prefix:
        raise ConfigError(
            "the model's targets must begin with a language code, which the MarianMT format does not support; "
            "the model cannot be exported to Hugging Face"
        )
    export_model(require_transformer(bundle, "Hugging Face's MarianMT"), folder, search=bundle.search)
    return f"{_HUGGINGFACE}{_SIDES}{_language_note(bundle, special)}"


_HUGGINGFACE = """
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
model = AutoModelForSeq2SeqLM.from_pretrained("THIS_FOLDER")
found = model.generate(**tokenizer(["TEXT"], return_tensors="pt", padding=True))
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```
"""


def _ctranslate2_use(bundle: Bundle, special: SpecialTokens, *, has_tokenizer: bool) -> str:
    """Return the model card's section on how to translate with the exported folder.

    The example uses the folder's `transformers` tokenizer if it has one, otherwise SentencePiece.
    """
    source, target = unique_token_names(bundle.source_tokenizer), unique_token_names(bundle.target_tokenizer)
    forced = [target[index] for index in special.target_prefix]
    prefix = f", target_prefix=[{forced}]" if forced else ""
    shown = f"[{len(forced)}:]" if forced else ""
    notes = f"{_SIDES}{_language_note(bundle, special)}"
    if has_tokenizer:
        read = 'tokenizer.convert_ids_to_tokens(tokenizer.encode("TEXT"))'
        write = "tokenizer.decode(tokenizer.convert_tokens_to_ids(found), skip_special_tokens=True)"
        if isinstance(bundle.source_tokenizer, MosesTokenizer):  # encodes with source ids, decodes with target ids
            read, write = f'[*tokenizer.tokenize("TEXT"), {source[EOS]!r}]', "tokenizer.convert_tokens_to_string(found)"
            notes = ""
        tokenizers = "transformers import AutoTokenizer"
        load = 'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")'
    else:
        before, after = ([source[index] for index in ids] for ids in (special.source_prefix, special.source_suffix))
        tokenizers = "sentencepiece import SentencePieceProcessor"
        load = """reader = SentencePieceProcessor(model_file="THIS_FOLDER/source.spm")
writer = SentencePieceProcessor(model_file="THIS_FOLDER/target.spm")"""
        read, write = f'[*{before}, *reader.encode("TEXT", out_type=str), *{after}]', "writer.decode(found)"
    return f"""```python
import ctranslate2
from {tokenizers}

{load}
translator = ctranslate2.Translator("THIS_FOLDER")
tokens = {read}
found = translator.translate_batch([tokens]{prefix}, beam_size=4, disable_unk=True)[0].hypotheses[0]{shown}
print({write})
```
{notes}"""


def _language_note(bundle: Bundle, special: SpecialTokens) -> str:
    """Return a note on how to select the target language if its code is part of the text, or an empty string."""
    tokenizer = bundle.source_tokenizer
    if not isinstance(tokenizer, SentencePieceTokenizer) or not special.source_prefix:
        return ""
    code = tokenizer.pieces[special.source_prefix[0]]
    return f"\nPut the code of the target language before the text: `{code} TEXT`.\n" if code.startswith(">>") else ""


_SIDES = """
If there is a folder `target`, source and target have separate vocabularies. Then decode with the tokenizer
`AutoTokenizer.from_pretrained("THIS_FOLDER", subfolder="target")`.
"""
