"""Encoder-decoder models of Hugging Face `transformers`: read into Headway's Transformer, and written from it.

Neither needs `transformers`: a model is a folder with config.json and model.safetensors (or pytorch_model.bin). What
the families have in common, and where they differ, stands in :mod:`~headway.interop.huggingface.families`.
"""

from headway.interop.huggingface.exporting import export_classifier, export_model
from headway.interop.huggingface.importing import ImportedModel, import_model

__all__ = ["ImportedModel", "export_classifier", "export_model", "import_model"]
