"""Search for the most probable target of a model. Any model that implements :class:`SearchModel` can be searched."""

from headway.decode.caller import Caller, give_way, use_caller
from headway.decode.constraints import Phrase, WordBoundaries
from headway.decode.ensemble import Ensemble
from headway.decode.protocol import SearchModel, Step
from headway.decode.ranking import NextTokens
from headway.decode.request import (
    DecodingOptions,
    Hypothesis,
    NextToken,
    Request,
    Sampling,
    SearchVocabulary,
    length_penalty,
)
from headway.decode.scoring import score_targets, top_next_tokens
from headway.decode.search import (
    SearchFunction,
    SearchStepsFunction,
    length_batches,
    search,
    search_all,
    search_steps,
    trace_search,
)
from headway.decode.trace import SearchTrace, TracedHypothesis

__all__ = [
    "Caller",
    "DecodingOptions",
    "Ensemble",
    "Hypothesis",
    "NextToken",
    "NextTokens",
    "Phrase",
    "Request",
    "Sampling",
    "SearchFunction",
    "SearchModel",
    "SearchStepsFunction",
    "SearchTrace",
    "SearchVocabulary",
    "Step",
    "TracedHypothesis",
    "WordBoundaries",
    "give_way",
    "length_batches",
    "length_penalty",
    "score_targets",
    "search",
    "search_all",
    "search_steps",
    "top_next_tokens",
    "trace_search",
    "use_caller",
]
