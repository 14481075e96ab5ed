"""Search for the best target. It meets models through a protocol and knows no architecture."""

from headway.decode.ensemble import Ensemble
from headway.decode.options import DecodingOptions, Sampling
from headway.decode.parallel import length_batches, search_all
from headway.decode.protocol import Hypothesis, SearchModel, SearchState, length_penalty
from headway.decode.request import Request
from headway.decode.scoring import Alternative, alternatives, score_targets
from headway.decode.search import search, search_stream

__all__ = [
    "Alternative",
    "DecodingOptions",
    "Ensemble",
    "Hypothesis",
    "Request",
    "Sampling",
    "SearchModel",
    "SearchState",
    "alternatives",
    "length_batches",
    "length_penalty",
    "score_targets",
    "search",
    "search_all",
    "search_stream",
]
