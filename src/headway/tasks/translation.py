"""The translation task: convert a sequence to another one. See :mod:`headway.tasks.token_objective` for the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator
from torch import Tensor

from headway.bundle import Bundle, TaskConfig
from headway.config import Inert
from headway.data.bad_lines import SKIP_HINT, BadLines
from headway.data.encoding import SideSpec
from headway.data.readers import Corpus, read_examples
from headway.data.store_builder import Shard
from headway.decode.request import DecodingOptions
from headway.errors import LengthError
from headway.evaluation import Score, evaluate, tokenization_for
from headway.evaluation.tokenization import DEFAULT_TOKENIZATION, Tokenization
from headway.evaluation.translation import are_too_short_for_bleu
from headway.models.base import TranslationModel
from headway.models.registry import build_model
from headway.tasks.smoothing_prior import smoothing_prior
from headway.tasks.token_objective import TokenObjective
from headway.text.base import EOS, TextTokenizer
from headway.text.bpe_dropout import BPEDropoutEncoder
from headway.text.corpus_encoder import CorpusEncoder
from headway.training.prepare import BpeSampling, CorpusEncoding, DataPreparation
from headway.training.recipe import Recipe, ValidationConfig
from headway.training.report import Listener
from headway.training.stream import TokenBatch
from headway.training.task import RunData, Task, Tokenizers

if TYPE_CHECKING:
    from headway.predict import Translator


_SCORE_NAMES = {"chrf": "chrf2"}  # metrics that have a different name in scores
_COUNTED_EXAMPLES = 100_000  # maximum number of examples per corpus whose tokens are counted for the calibration


class TranslationValidation(ValidationConfig):
    """Configuration of validation for translation models."""

    metric: Literal["bleu", "chrf", "exact_match", "loss"] = Field(
        "bleu",
        description="Score by which the best model is selected. If almost no reference has four tokens, bleu is "
        "replaced by chrf. The loss breaks ties between equal scores.",
    )
    tokenization: Annotated[
        Literal["auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none"], Inert(DEFAULT_TOKENIZATION)
    ] = Field(
        "auto",
        description="sacreBLEU's name of the tokenization for BLEU. auto: the tokenization for the target language, "
        "which then stays the same for the whole run.",
    )


class TranslationRecipe(Recipe):
    """The recipe of a translation model."""

    validation: TranslationValidation = Field(default_factory=TranslationValidation)

    @model_validator(mode="after")
    def _check_translation(self) -> TranslationRecipe:
        if self.training.class_weights != "none":
            raise ValueError("training.class_weights: translation has no classes; remove the key")
        imported = self.training.start_from is not None  # its two tokenizers may share a vocabulary
        tie = self.model.as_dict().get("tie")
        if not imported and not self.tokenizer.joint and tie in ("all", "inputs"):
            raise ValueError(
                f"model.tie = {tie!r} shares one embedding between the languages, but with tokenizer.joint = false "
                "each language has a separate vocabulary; set model.tie to 'target' or 'none'"
            )
        return self

    def with_resolved_options(self, begun: Recipe | None) -> TranslationRecipe:
        """Return this recipe with the languages of translation memories and the tokenization of scores filled in.

        A new run uses the tokenization for the target language; a started run keeps its tokenization.
        """
        recipe, dev = self, self.data.dev
        if any(corpus.format == "tmx" for corpus in (*self.data.train, *([dev] if dev else []))):
            train = tuple(map(self._with_tmx_languages, self.data.train))
            corpora = {"train": train, "dev": dev and self._with_tmx_languages(dev)}
            recipe = self.model_copy(update={"data": self.data.model_copy(update=corpora)})
        if self.validation.tokenization != "auto":
            return recipe
        language = (dev and dev.target_language) or self.task.target_language
        chosen = cast("TranslationRecipe", begun or self).validation.tokenization
        tokenization = tokenization_for(language) if chosen == "auto" else chosen
        validation = self.validation.model_copy(update={"tokenization": tokenization})
        return recipe.model_copy(update={"validation": validation})

    def _with_tmx_languages(self, corpus: Corpus) -> Corpus:
        """Fill in the languages of a translation memory, if they are known. Other corpora are returned unchanged."""
        languages = (
            corpus.source_language or self.task.source_language,
            corpus.target_language or self.task.target_language,
        )
        unknown = {TaskConfig().source_language, TaskConfig().target_language}
        if corpus.format != "tmx" or corpus.fields is not None or unknown & {*languages}:
            return corpus
        return corpus.model_copy(update={"fields": languages})


class TranslationObjective(TokenObjective):
    """The loss of each target token, given the source and the target tokens before it."""

    model: TranslationModel

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the source tokens, and the decoder input, which begins with BOS."""
        return batch.source, batch.decoder_input


class TranslationTask(Task[TranslationRecipe, RunData, TranslationModel]):
    """The translation task."""

    kind: ClassVar[str] = "translation"
    recipe_type = TranslationRecipe
    bundle_type = Bundle
    command: ClassVar[str] = "translate"

    def prepare(
        self, recipe: TranslationRecipe, run: Path, listener: Listener, shard: Shard | None = None
    ) -> RunData | None:
        """Train the tokenizers and tokenize the corpora, or load existing results from the run folder."""
        preparation = DataPreparation(recipe, run, listener, shard)
        tokenizers = preparation.make_tokenizers(read_examples)
        encode = partial(_encoding, tokenizers, Path(recipe.data.folder))
        datasets = preparation.load_or_build_datasets(encode, recipe.data.filter)
        return None if datasets is None else RunData(*datasets, tokenizers)

    def build_model(self, recipe: TranslationRecipe, prepared: RunData) -> TranslationModel:
        """Build the model.

        Raises:
            LengthError: A sequence in the data is longer than the model allows.
        """
        source, target = prepared.tokenizers.source, prepared.tokenizers.target
        model = cast("TranslationModel", build_model(recipe.model, source.vocab_size, target.vocab_size))
        limit = model.max_length
        for name, dataset in {"training": prepared.train, "development": prepared.dev}.items():
            if dataset is not None and limit is not None and (longest := dataset.max_length) > limit:
                raise LengthError(
                    f"model.max_length = {limit}: the {name} data contain a sequence of {longest} tokens, including "
                    "EOS; raise model.max_length, lower data.filter.max_length (training data), or choose "
                    "positions = 'sinusoidal'"
                )
        return model

    def build_objective(
        self, model: TranslationModel, recipe: TranslationRecipe, prepared: RunData
    ) -> TranslationObjective:
        """Return the label-smoothed cross-entropy objective with the recipe's settings."""
        prior = smoothing_prior(recipe, prepared, prepared.tokenizers.target.vocab_size)
        return TranslationObjective(model, recipe.training.label_smoothing, recipe.training.r_drop, prior)

    def selection_metric(self, recipe: TranslationRecipe) -> str:
        """Return the metric for model selection. It is never BLEU if almost no reference has four tokens (BLEU would be
        0).
        """
        metric = recipe.validation.metric
        if metric == "bleu" and recipe.data.dev is not None and _are_short(recipe, _dev_targets(recipe)):
            metric = "chrf"
        return _SCORE_NAMES.get(metric, metric)

    def dev_scores(self, bundle: Bundle, recipe: TranslationRecipe) -> Sequence[Score]:
        """Translate the development set, and return BLEU and the score that selects the best model."""
        from headway.predict import Translator

        dev, validation = recipe.data.dev, recipe.validation
        if dev is None or validation.metric == "loss":
            return ()
        examples = _dev_examples(recipe)
        translations = Translator(bundle).translate(
            [source for source, _ in examples],
            DecodingOptions(beam_size=validation.beam_size),
            source_language=dev.source_language,
            target_language=dev.target_language,
            protect=False,
        )
        hypotheses, references = [translation.text for translation in translations], [target for _, target in examples]
        metrics = ["bleu", validation.metric]
        if validation.metric == "bleu" and _are_short(recipe, references):
            metrics = ["bleu", "chrf"]
        tokenization = cast("Tokenization", validation.tokenization)
        return evaluate(
            hypotheses, references, metrics=list(dict.fromkeys(metrics)), bootstrap=0, tokenization=tokenization
        )

    def build_bundle(self, model: TranslationModel, recipe: TranslationRecipe, prepared: RunData) -> Bundle:
        """Return the content of the model folder."""
        tokenizers, normalize = prepared.tokenizers, recipe.data.normalize
        template = tokenizers.imported_token_template
        sides = tokenizers.source, tokenizers.target
        return Bundle(recipe.task, model, *sides, template, normalize, tokenizers.defaults.search)

    def complete_model_folder(self, folder: Path, recipe: TranslationRecipe) -> None:
        """Calibrate the flags ``unlikely`` and ``forced`` on the development set if it is large enough."""
        from headway.predict import load_translator
        from headway.predict.translation.calibrate import calibrate
        from headway.predict.translation.calibration import MIN_TEXTS, write_calibration

        dev, data = recipe.data.dev, Path(recipe.data.folder)
        examples = _dev_examples(recipe)
        if dev is None or len(examples) < MIN_TEXTS:
            return
        training = chain.from_iterable(
            islice(read_examples(corpus, data, bad_lines=BadLines(recipe.data.on_error)), _COUNTED_EXAMPLES)
            for corpus in recipe.data.train
        )
        calibration = calibrate(
            load_translator(folder, device=recipe.training.device, precision="float32"),
            [source for source, _ in examples],
            [source for source, _ in training],
            references=[target for _, target in examples],
            source_language=dev.source_language,
            target_language=dev.target_language,
        )
        if calibration is not None:
            write_calibration(calibration, folder)

    def describe_for_model_card(self, recipe: TranslationRecipe, prepared: RunData) -> tuple[str, str]:
        """Return the title of the model card, and the size of the training data."""
        data = prepared.train
        sources, targets = data.num_tokens("source"), data.num_tokens("target")
        return (
            f"Translation from {recipe.task.source_language} to {recipe.task.target_language}",
            f"{len(data):,} pairs ({sources:,} source and {targets:,} target tokens)",
        )

    def load_predictor(self, folder: Path, **settings: Any) -> Translator:
        """Load a :class:`~headway.predict.Translator`."""
        from headway.predict import load_translator

        return load_translator(folder, **settings)


def _dev_examples(recipe: TranslationRecipe) -> list[tuple[str, ...]]:
    """Read the development set, if any."""
    dev, bad_lines = recipe.data.dev, BadLines(recipe.data.on_error, SKIP_HINT)
    return [] if dev is None else list(read_examples(dev, Path(recipe.data.folder), bad_lines=bad_lines))


def _dev_targets(recipe: TranslationRecipe) -> list[str]:
    return [target for _, target in _dev_examples(recipe)]


def _are_short(recipe: TranslationRecipe, references: Sequence[str]) -> bool:
    return are_too_short_for_bleu(references, cast("Tokenization", recipe.validation.tokenization))


def _encoding(tokenizers: Tokenizers, folder: Path, corpus: Corpus, sampling: BpeSampling | None) -> CorpusEncoding:
    special = tokenizers.token_template.fill(
        source_language=corpus.source_language, target_language=corpus.target_language
    )

    def encoders(tokenizer: TextTokenizer) -> tuple[CorpusEncoder, BPEDropoutEncoder | None]:
        return CorpusEncoder(tokenizer), BPEDropoutEncoder(tokenizer, *sampling) if sampling else None

    def sides() -> tuple[SideSpec, SideSpec]:
        source = encoders(tokenizers.source)
        # With a joint vocabulary, both sides use the same encoder, so that they share its word cache.
        target = source if tokenizers.target is tokenizers.source else encoders(tokenizers.target)
        return (
            SideSpec(*source, prefix_ids=special.source_prefix, suffix_ids=special.source_suffix),
            SideSpec(*target, prefix_ids=special.target_prefix, suffix_ids=(EOS,)),
        )

    keys = (tokenizers.source.fingerprint, tokenizers.target.fingerprint)
    others = {"special_tokens": asdict(special)} if tokenizers.imported_token_template else {}
    return CorpusEncoding(partial(read_examples, corpus, folder), sides, keys, others)
