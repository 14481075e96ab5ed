"""``headway export --to headway``: write a model folder with weights in 8-bit integers or a smaller vocabulary.

The shortlist is also written to the folder, and is reduced in the same way as the vocabulary. The calibration of flags
is copied only if the vocabulary remains unchanged, because it contains the frequencies of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.bundle import AnyBundle, Quantization


@dataclass(frozen=True)
class SmallerFolderSpec:
    """Specification of a smaller model folder.

    Attributes:
        quantization: Data type of the weights: "int8", or None for the original data type.
        quantizes_embeddings: Whether embeddings are also stored in this data type.
        texts: Files with texts whose tokens are kept in the vocabulary.
        languages: Languages whose tokens are kept in the vocabulary.
    """

    quantization: str | None
    quantizes_embeddings: bool = False
    texts: Sequence[Path] = ()
    languages: Sequence[str] = ()

    @property
    def cuts_vocabulary(self) -> bool:
        """Whether the vocabulary is reduced."""
        return bool(self.texts or self.languages)

    def checked_quantization(self) -> Quantization | None:
        """Return the quantization of the weights, or None for float32.

        Raises:
            ConfigError: The data type is unknown, or embeddings are to be quantized without the other weights.
        """
        from headway.bundle import Quantization

        if self.quantization is None and self.quantizes_embeddings:
            raise ConfigError("--quantize-embeddings needs --quantization int8")
        if self.quantization is None:
            return None
        if self.quantization != "int8":
            raise ConfigError(
                f"--quantization {self.quantization!r}: a model folder stores int8 or, without it, float32"
            )
        return Quantization(embeddings=self.quantizes_embeddings)


def write_smaller_folder(model: Path, folder: Path, request: SmallerFolderSpec) -> Iterator[str]:
    """Write a smaller version of ``model`` into ``folder``, and yield remarks for the user.

    Raises:
        ConfigError: The model cannot be made smaller in this way.
        DataError: A text cannot be read.
    """
    from headway.bundle import load_bundle, require_float_weights
    from headway.diagrams.model_card import DRAWING_FILE, add_drawing
    from headway.engine.int8_check import read_int8_check
    from headway.engine.shortlist_file import write_shortlist
    from headway.interop.vocabulary_cut import choose_tokens, cut_shortlist, cut_vocabulary
    from headway.predict.translation.calibration import CALIBRATION_FILE
    from headway.predict.translation.shortlisting import read_shortlist, vocabulary_fingerprints
    from headway.storage import atomic_write

    quantization = request.checked_quantization()
    if quantization is None and not request.cuts_vocabulary:
        raise ConfigError(
            "a smaller model folder needs --quantization int8, --keep-text FILE or --keep-languages CODES"
        )
    require_float_weights(model, "an export")
    bundle = load_bundle(model)
    shortlist = read_shortlist(bundle, model)
    card, sections = (model / "README.md").read_text(encoding="utf-8").rstrip(), []
    smaller: AnyBundle = bundle
    if request.cuts_vocabulary:
        texts = _lines(request.texts) if request.texts else None
        cut = choose_tokens(bundle, texts=texts, languages=request.languages)
        smaller = cut_vocabulary(bundle, cut)
        described = cut.describe(bundle)
        yield from described
        sections.append(_cut_section(request, described))
        if shortlist is not None:
            shortlist = cut_shortlist(shortlist, cut, vocabulary_fingerprints(smaller))
        if (model / CALIBRATION_FILE).is_file():
            yield "the flag 'unlikely' is not calibrated for the smaller vocabulary; run headway calibrate again"
    if quantization is not None:
        sections.append(_int8_section(quantization))
        check = read_int8_check(model)
        if check is not None and not check.passed:
            yield f"int8 changes this model: {check.describe()}"
    smaller.save(folder, "\n\n".join([card, *sections]) + "\n", quantization=quantization)
    if shortlist is not None:
        write_shortlist(shortlist, folder)
    if not request.cuts_vocabulary and (model / CALIBRATION_FILE).is_file():
        with atomic_write(folder / CALIBRATION_FILE) as aside:
            aside.write_bytes((model / CALIBRATION_FILE).read_bytes())
    if (model / DRAWING_FILE).is_file():  # the model card contains the drawing
        add_drawing(folder, smaller.model)


def _lines(files: Sequence[Path]) -> Iterator[str]:
    from headway.data.readers import read_lines

    for file in files:
        yield from read_lines(file)


def _int8_section(quantization: Quantization) -> str:
    from headway.version import __version__

    return f"""## Weights in 8-bit integers

Exported with headway {__version__}: {quantization.describe()}. Searches on a CPU give the same results as the \
original model in int8. Scores of given texts, alignments and searches in other precisions use the dequantized \
weights. To train the model further, use the original."""


def _cut_section(request: SmallerFolderSpec, described: Sequence[str]) -> str:
    from headway.version import __version__

    kept = [f"the languages {', '.join(request.languages)}"] if request.languages else []
    kept += [f"the texts {', '.join(path.name for path in request.texts)}"] if request.texts else []
    facts = "\n".join(f"- {fact}" for fact in described)
    return f"## Smaller vocabulary\n\nCut with headway {__version__} to the tokens of {' and '.join(kept)}.\n\n{facts}"
