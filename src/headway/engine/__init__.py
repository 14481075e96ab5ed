"""Makes models fast from outside: converts them for search, and chooses the precision that they compute in."""

import torch

import headway.kernels as kernels
from headway.engine.search_model import (
    Precision,
    SearchDecoderOnly,
    SearchTransformer,
    choose_precision,
    fastest_float_precision,
    to_search_model,
    unsupported_reason,
)
from headway.engine.shortlist import Shortlist

kernels.host_threads.get, kernels.host_threads.set = torch.get_num_threads, torch.set_num_threads

__all__ = [
    "Precision",
    "SearchDecoderOnly",
    "SearchTransformer",
    "Shortlist",
    "choose_precision",
    "fastest_float_precision",
    "to_search_model",
    "unsupported_reason",
]
