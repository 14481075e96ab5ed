"""Accelerates models without changing their code: converts them for search, and chooses the computing precision."""

import torch

import headway.kernels as kernels
from headway.engine.search_model import SearchDecoderOnly, SearchTransformer, to_search_model
from headway.engine.search_support import (
    Precision,
    choose_precision,
    describe_search_acceleration,
    fastest_float_precision,
    search_precision,
    stored_int8_note,
    unsupported_reason,
)
from headway.engine.shortlist import Shortlist
from headway.hardware import set_num_threads_of_this_thread

kernels.host_threads.get, kernels.host_threads.set = torch.get_num_threads, set_num_threads_of_this_thread

__all__ = [
    "Precision",
    "SearchDecoderOnly",
    "SearchTransformer",
    "Shortlist",
    "choose_precision",
    "describe_search_acceleration",
    "fastest_float_precision",
    "search_precision",
    "stored_int8_note",
    "to_search_model",
    "unsupported_reason",
]
