"""The one place that makes a model fast: models converted for search, and the precisions that they compute in."""

from headway.engine.precision import Precision, choose_precision
from headway.engine.search_model import SearchTransformer, for_search, unsupported_reason
from headway.engine.shortlist import Shortlist

__all__ = ["Precision", "SearchTransformer", "Shortlist", "choose_precision", "for_search", "unsupported_reason"]
