"""Reduce the vocabulary of a model to the tokens that some texts or languages need.

Multilingual models have vocabularies of up to 256,000 tokens, of which two languages use a tenth. The rows of the other
tokens cost memory and time in the embeddings and the output projection. A smaller vocabulary contains

- the tokens into which the given texts are segmented, and tokens that contain only letters of the given languages;
- a margin for other texts: the most frequent remaining tokens whose characters also occur in the kept tokens;
- special tokens, language codes, and byte tokens;
- the tokens from which these tokens are built, such as the results of earlier merges.

Texts whose tokens are all kept are segmented as before (:meth:`headway.text.base.TextTokenizer.restrict_vocabulary`),
and the logits of the kept tokens do not change. In other texts, a missing token is split into smaller tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from headway.bundle import AnyBundle, build_without_initialization
from headway.engine import Shortlist
from headway.errors import ConfigError, DataError
from headway.text.alphabets import alphabet_predicate
from headway.text.base import UNK, TextTokenizer
from headway.text.special_tokens import SpecialTokenTemplate, TemplateItem
from headway.weights import load_weights, named_weights

BundleT = TypeVar("BundleT", bound=AnyBundle)

DEFAULT_MARGIN = 0.1
"""Tokens to keep for other texts, as a fraction of the number of tokens that the given texts and languages need."""

_BATCH = 2048  # number of texts to encode together
_SHOWN = 20  # number of unknown characters to list
# The names of weights with a row for each token, by architecture and side.
_ROWS: dict[str, dict[str, tuple[str, ...]]] = {
    "transformer": {
        "source": ("source_embedding.weight",),
        "target": ("target_embedding.weight", "projection.weight", "projection.bias"),
    },
    "decoder_only": {"source": ("embedding.weight", "projection.weight", "projection.bias")},
}


@dataclass(frozen=True)
class VocabularyCut:
    """The tokens of a model's vocabulary to keep.

    Attributes:
        kept_ids: The ids to keep on each side, "source" and "target", in ascending order. The new id of a token is the
            position of its old id in the list.
        unknown_characters: The characters of the texts that the vocabulary does not contain, the most frequent first.
    """

    kept_ids: dict[str, list[int]]
    unknown_characters: tuple[str, ...]

    def describe(self, bundle: AnyBundle) -> list[str]:
        """Describe how many tokens of the vocabulary of ``bundle`` are kept, and which characters could not be kept."""
        lines = []
        for side, tokenizer in bundle.tokenizers.items():
            kept, size = len(self.kept_ids[side]), tokenizer.vocab_size
            lines.append(f"{side} vocabulary: {kept:,} of {size:,} tokens ({100 * kept / size:.1f} %)")
        if self.unknown_characters:
            shown, more = " ".join(self.unknown_characters[:_SHOWN]), len(self.unknown_characters) - _SHOWN
            others = f" and {more:,} more" if more > 0 else ""
            lines.append(f"could not be kept, because the model has no tokens for them: {shown}{others}")
        return lines


def choose_tokens(
    bundle: AnyBundle,
    *,
    texts: Iterable[str] | None = None,
    languages: Sequence[str] = (),
    margin: float = DEFAULT_MARGIN,
) -> VocabularyCut:
    """Choose the tokens that texts or languages need.

    Args:
        bundle: The model whose vocabulary is to be reduced.
        texts: Texts in all languages that the model will translate from or generate. None means that only ``languages``
            are used.
        languages: Languages of the letters whose tokens are kept.
        margin: Tokens to keep for other texts, as a fraction of the number of tokens that the texts and languages need.

    Raises:
        ConfigError: The vocabulary of the model cannot be reduced, or the letters of a language are unknown.
        DataError: The texts are empty.
    """
    config, tokenizers = bundle.model.config, bundle.tokenizers
    if config.kind not in _ROWS:
        raise ConfigError(
            f"model.kind = {config.kind!r}: the vocabulary of such a model cannot be reduced; "
            f"supported: {', '.join(_ROWS)}"
        )
    distinct = list({id(tokenizer): tokenizer for tokenizer in tokenizers.values()}.values())
    used: list[set[int]] = [set() for _ in distinct]
    unknown = Counter[str]()
    for batch in _batches(map(bundle.normalized, texts or ())):
        for tokenizer, ids in zip(distinct, used, strict=True):
            rows = tokenizer.encode_batch(batch)
            ids.update(*rows)
            unknown += _unknown_characters(tokenizer, batch, rows)
    if texts is not None and not any(used):
        raise DataError("the texts to keep are empty; pass texts in the languages of the model")
    if languages:
        belongs = alphabet_predicate(languages)
        for tokenizer, ids in zip(distinct, used, strict=True):
            ids |= {index for index, name in _named(tokenizer) if belongs(name)}
    if len(distinct) == 1 or config.tie in ("all", "inputs"):
        groups = [(distinct, set[int]().union(*used))]
    else:
        groups = [([tokenizer], ids) for tokenizer, ids in zip(distinct, used, strict=True)]
    kept = {id(one): _completed(bundle, group, ids, margin) for group, ids in groups for one in group}
    sides = {side: kept[id(tokenizer)] for side, tokenizer in tokenizers.items()}
    return VocabularyCut(sides, tuple(character for character, _ in unknown.most_common()))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def _unknown_characters(tokenizer: TextTokenizer, texts: Sequence[str], rows: Sequence[Sequence[int]]) -> Counter[str]:
    """Return the number of texts that contain each character for which the vocabulary has no token."""
    lines = Counter(character for text, row in zip(texts, rows, strict=True) if UNK in row for character in set(text))
    encoded = tokenizer.encode_batch(list(lines))
    return Counter({one: lines[one] for one, ids in zip(lines, encoded, strict=True) if UNK in ids})


def _named(tokenizer: TextTokenizer) -> Iterator[tuple[int, str]]:
    """Yield the id and name of each token that may occur in text, except byte tokens and parts of characters."""
    reserved = tokenizer.mandatory_ids()
    ids = [index for index in range(tokenizer.vocab_size) if index not in reserved]
    return ((index, name) for index, name in zip(ids, tokenizer.display(ids), strict=True) if "<0x" not in name)


def _completed(bundle: AnyBundle, tokenizers: Sequence[TextTokenizer], used: set[int], margin: float) -> list[int]:
    """Return ``used``, the margin, and all ids that a vocabulary shared by ``tokenizers`` needs."""
    size = tokenizers[0].vocab_size
    characters = {character for index, name in _named(tokenizers[0]) if index in used for character in name}
    missing = (index for index, name in _named(tokenizers[0]) if index not in used and characters.issuperset(name))
    kept = {*used, *islice(missing, math.ceil(margin * len(used)))}
    template = bundle.imported_token_template
    if template is not None:
        items = (*template.source_prefix, *template.source_suffix, *template.target_prefix)
        ids = (*(item for item in items if isinstance(item, int)), *template.languages.values())
        kept |= {index for index in ids if index < size}
    for tokenizer in tokenizers:
        kept |= tokenizer.mandatory_ids()
    complete = False
    while not complete:
        before = len(kept)
        for tokenizer in tokenizers:
            kept = tokenizer.with_required_ids(kept)
        complete = len(kept) == before
    return sorted(kept)


def cut_vocabulary(bundle: BundleT, cut: VocabularyCut) -> BundleT:
    """Return a copy of the bundle with the smaller vocabulary."""
    kept, tokenizers = cut.kept_ids, bundle.tokenizers
    source, target = kept["source"], kept.get("target", kept["source"])
    rows = {name: torch.tensor(kept[side]) for side, names in _ROWS[bundle.model.config.kind].items() for name in names}
    weights = {
        name: weight.index_select(0, rows[name]) if name in rows else weight
        for name, weight in named_weights(bundle.model).items()
    }
    model = build_without_initialization(bundle.model.config, len(source), len(target))
    load_weights(model, weights, Path("the smaller vocabulary"))
    changed: dict[str, Any] = {"model": model.eval()}
    smaller = {id(tokenizer): tokenizer.restrict_vocabulary(kept[side]) for side, tokenizer in tokenizers.items()}
    for side, tokenizer in tokenizers.items():
        changed[f"{side}_tokenizer" if len(tokenizers) > 1 else "tokenizer"] = smaller[id(tokenizer)]
    if bundle.imported_token_template is not None:
        changed["imported_token_template"] = _renumbered(bundle.imported_token_template, source, target)
    return cast("BundleT", replace(cast("Any", bundle), **changed))


def _renumbered(template: SpecialTokenTemplate, source: Sequence[int], target: Sequence[int]) -> SpecialTokenTemplate:
    """Return the template with the new ids."""
    new_source, new_target = ({old: new for new, old in enumerate(kept)} for kept in (source, target))

    def renumbered(items: tuple[TemplateItem, ...], ids: dict[int, int]) -> tuple[TemplateItem, ...]:
        return tuple(ids[item] if isinstance(item, int) else item for item in items)

    return template.model_copy(
        update={
            "source_prefix": renumbered(template.source_prefix, new_source),
            "source_suffix": renumbered(template.source_suffix, new_source),
            "target_prefix": renumbered(template.target_prefix, new_target),
            "languages": {language: new_source[index] for language, index in template.languages.items()},
        }
    )


def cut_shortlist(shortlist: Shortlist, cut: VocabularyCut, fingerprints: str) -> Shortlist:
    """Return the shortlist for the smaller vocabulary, whose tokenizers have these ``fingerprints``."""
    source, target = np.array(cut.kept_ids["source"]), np.array(cut.kept_ids["target"], dtype=np.int32)
    new_ids = np.zeros(max(target.max(), shortlist.translations.max(initial=0)) + 1, dtype=np.int32)
    new_ids[target] = np.arange(len(target), dtype=np.int32)
    always = new_ids[np.intersect1d(shortlist.always_allowed, target)]
    return Shortlist(always, new_ids[shortlist.translations[source]], fingerprints)  # removed tokens become padding, 0
