"""Import and export encoder-decoder models of Hugging Face `transformers`, and export classifiers.

The package `transformers` is not needed: a model is a folder with config.json and model.safetensors (or
pytorch_model.bin). :mod:`~headway.interop.huggingface.families` describes what the model families have in common and
how they differ.
"""

from headway.interop.huggingface.exporting import export_classifier, export_model
from headway.interop.huggingface.importing import ImportedModel, import_model

__all__ = ["ImportedModel", "export_classifier", "export_model", "import_model"]
