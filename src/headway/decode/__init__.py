"""Search for the most probable target. Models implement a protocol; nothing here depends on an architecture."""

from typing import Any

from headway.decode.constraints import Phrase, WordBoundaries
from headway.decode.ensemble import Ensemble
from headway.decode.protocol import SearchModel, Step
from headway.decode.ranking import NextTokens
from headway.decode.request import DecodingOptions, Hypothesis, Request, Sampling, length_penalty
from headway.decode.scoring import NextToken, score_targets, top_next_tokens
from headway.decode.search import length_batches, search, search_all, search_stream
from headway.deprecation import renamed

__all__ = [
    "DecodingOptions",
    "Ensemble",
    "Hypothesis",
    "NextToken",
    "NextTokens",
    "Phrase",
    "Request",
    "Sampling",
    "SearchModel",
    "Step",
    "WordBoundaries",
    "length_batches",
    "length_penalty",
    "score_targets",
    "search",
    "search_all",
    "search_stream",
    "top_next_tokens",
]


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, {"Alternative": "NextToken", "alternatives": "top_next_tokens"})
