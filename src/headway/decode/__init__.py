"""Search for the best target. It meets models through a protocol and knows no architecture."""

from headway.decode.beam import beam_search
from headway.decode.greedy import greedy_search
from headway.decode.protocol import Hypothesis, SearchModel, SearchState, length_penalty

__all__ = ["Hypothesis", "SearchModel", "SearchState", "beam_search", "greedy_search", "length_penalty"]
