"""Learn a model's shortlist from parallel text, and store it in the model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from headway.bundle import AnyBundle, Bundle
from headway.engine import Shortlist, unsupported_reason
from headway.engine.shortlist_file import SHORTLIST_FILE
from headway.errors import BundleError, ConfigError, DataError
from headway.weights import check_readable

_COVERAGE_SENTENCES = 2000


@dataclass(frozen=True)
class ShortlistCoverage:
    """The mean size and the coverage of the sentences' shortlists, measured on a sample of sentences.

    Attributes:
        mean_tokens: Mean number of tokens in a sentence's shortlist.
        covered_share: Share of the reference tokens that are in their sentence's shortlist.
    """

    mean_tokens: float
    covered_share: float


def learn_shortlist(
    bundle: Bundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    targets_per_source: int = 50,
    num_always: int = 100,
) -> Shortlist:
    """Learn a shortlist of the most frequent target tokens and the most probable translations of each source token.

    Args:
        bundle: The model for which the shortlist is learned.
        sources: The source texts of a parallel corpus.
        targets: A translation of each source.
        targets_per_source: Number of target tokens for each source token.
        num_always: Number of the most frequent target tokens, which every translation may contain.

    Raises:
        ConfigError: There is no text, or the model cannot use a shortlist.
        DataError: The numbers of sources and targets differ.
    """
    if reason := unsupported_reason(bundle.model):
        raise ConfigError(f"a shortlist: {reason}")
    ours, theirs = _encoded(bundle, sources, targets)
    return Shortlist.learn(
        ours,
        theirs,
        source_size=bundle.source_tokenizer.vocab_size,
        target_size=bundle.target_tokenizer.vocab_size,
        joint=bundle.source_tokenizer.fingerprint == bundle.target_tokenizer.fingerprint,
        vocabulary_fingerprints=vocabulary_fingerprints(bundle),
        targets_per_source=targets_per_source,
        num_always=num_always,
    )


def read_shortlist(bundle: AnyBundle, folder: Path) -> Shortlist | None:
    """Return the shortlist in a model folder, or None if it has none.

    Raises:
        BundleError: The file is damaged, or was made for different vocabularies.
    """
    path = folder / SHORTLIST_FILE
    if not path.exists():
        return None
    check_readable(path)
    try:
        with safe_open(path, framework="numpy") as file:
            always, table = (file.get_tensor(name) for name in ("always", "table"))
            shortlist = Shortlist(always, table, (file.metadata() or {})["vocabularies"])
    except (SafetensorError, ConfigError, KeyError, TypeError, ValueError, OSError) as error:
        raise BundleError(f"{path}: not a shortlist, or damaged ({error}); learn it again") from None
    if shortlist.vocabulary_fingerprints != vocabulary_fingerprints(bundle):
        raise BundleError(f"{path}: made for a model with different vocabularies; learn it again")
    return shortlist


def vocabulary_fingerprints(bundle: AnyBundle) -> str:
    """Return the fingerprints of a model's vocabularies as one string."""
    return " ".join(tokenizer.fingerprint for tokenizer in bundle.tokenizers.values())


def shortlist_coverage(
    bundle: Bundle, shortlist: Shortlist, sources: Sequence[str], targets: Sequence[str]
) -> ShortlistCoverage:
    """Measure the coverage on about 2,000 evenly spaced sentences."""
    step = max(1, len(sources) // _COVERAGE_SENTENCES)
    ours, theirs = _encoded(bundle, sources[::step], targets[::step])
    sizes, num_covered, tokens = 0, 0, 0
    for source, target in zip(ours, theirs, strict=True):
        listed = set(shortlist.allowed_tokens([source])[0].tolist())
        sizes += len(listed)
        tokens += len(target)
        num_covered += sum(token in listed for token in target)
    return ShortlistCoverage(sizes / max(1, len(ours)), num_covered / max(1, tokens))


def _encoded(bundle: Bundle, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
    if len(sources) != len(targets):
        raise DataError(f"{len(sources):,} sources and {len(targets):,} targets; expected a target for each source")
    sources, targets = list(map(bundle.normalized, sources)), list(map(bundle.normalized, targets))
    return bundle.source_tokenizer.encode_batch(sources), bundle.target_tokenizer.encode_batch(targets)
