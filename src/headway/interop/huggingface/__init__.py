"""Import and export models of Hugging Face `transformers`: encoder-decoder models, decoder-only and masked language
models, and classifiers.

The package `transformers` is not needed: a model is a folder with config.json and model.safetensors (or
pytorch_model.bin). The model families, what they have in common and how they differ, are described in
:mod:`~headway.interop.huggingface.families` (encoder-decoders), :mod:`~headway.interop.huggingface.causal_families`
(decoder-only models) and :mod:`~headway.interop.huggingface.masked_families` (masked language models).
"""

from headway.interop.huggingface.exporting import export_classifier, export_model
from headway.interop.huggingface.importing import ImportedModel, import_model

__all__ = ["ImportedModel", "export_classifier", "export_model", "import_model"]
