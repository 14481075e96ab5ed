"""Fine-tuning imported models: the losses equal those of `transformers`, and the results are ordinary model folders."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import SENTENCES, bart, corpus, m2m, marian, nllb, transformers

import headway
from headway.bundle import Bundle
from headway.data.readers import read_examples
from headway.decode import DecodingOptions
from headway.distillation import distill
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.interop.importing import import_huggingface
from headway.models.registry import build_model
from headway.predict import Translator
from headway.tasks import parse_recipe, train
from headway.tasks.translation import TranslationObjective, TranslationTask
from headway.training.fine_tuning import complete_recipe, load_initial_weights
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.stream import to_device
from headway.training.task import RunData

MAKERS: dict[str, Callable[[Path], Path]] = {"marian": marian, "m2m": m2m, "nllb": nllb, "bart": bart}
LANGUAGES = {"m2m": ("de", "en"), "nllb": ("deu_Latn", "eng_Latn")}
each_family = pytest.mark.parametrize("family", MAKERS)
PAIRS = list(zip(corpus()[:24], corpus()[1:25], strict=True))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY and FAMILY-headway, the same model twice, for each family; pairs.de and pairs.en."""
    home = tmp_path_factory.mktemp("families")
    for family, make in MAKERS.items():
        found = import_huggingface(make(home / family), **_languages(family, "source_language", "target_language"))
        found.bundle.save(home / f"{family}-headway", found.card)
    for number, name in enumerate(("pairs.de", "pairs.en")):
        (home / name).write_text("".join(f"{pair[number]}\n" for pair in PAIRS), encoding="utf-8")
    return home


def _languages(family: str, source: str, target: str) -> dict[str, str]:
    return dict(zip((source, target), LANGUAGES[family], strict=True)) if family in LANGUAGES else {}


def recipe(home: Path, family: str, corpus: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Recipe:
    pairs = {"files": ["pairs.de", "pairs.en"], **(corpus or {})}
    whole: dict[str, dict[str, Any]] = {
        "data": {"folder": str(home), "train": [pairs], "dev": pairs},
        "training": {"start_from": str(home / f"{family}-headway"), "steps": 12, "label_smoothing": 0.0, "seed": 3},
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 2, "schedule": "constant"},
        "validation": {"every": 6},
    }
    for name, keys in sections.items():
        whole[name] = {**whole.get(name, {}), **keys}
    return parse_recipe(whole, "test")


def _prepare(recipe: Any, run: Path) -> RunData:
    prepared = TranslationTask().prepare(complete_recipe(recipe, run), run, Listener())
    assert prepared is not None
    return prepared


@each_family
def test_the_loss_is_the_one_that_transformers_trains_with(family: str, home: Path, tmp_path: Path) -> None:
    """The special tokens around sentences are the same as in the model's own training."""
    prepared = _prepare(recipe(home, family), tmp_path / "run")
    assert prepared.dev is not None
    rows = next(iter(prepared.dev.plan_sequential(max_batch_tokens=10_000)))
    batch = to_device(prepared.dev.batch(rows), torch.device("cpu"))
    with torch.inference_mode():
        model = Bundle.load(home / f"{family}-headway").model
        ours = float(TranslationObjective(model, 0.0)(batch)) / batch.targets.numel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MarianTokenizer recommends a package
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            home / family, **_languages(family, "src_lang", "tgt_lang")
        )
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(home / family).eval()
    sources, targets = ([pair[number] for pair in PAIRS] for number in (0, 1))
    theirs: Any = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
    if family == "bart":  # its tokenizer begins with <s>, but this configuration forces no first token
        theirs["labels"] = theirs.labels[:, 1:]
    labels = theirs.labels.masked_fill(theirs.labels == tokenizer.pad_token_id, -100)
    with torch.inference_mode():
        expected = float(model(input_ids=theirs.input_ids, attention_mask=theirs.attention_mask, labels=labels).loss)
    assert int((labels >= 0).sum()) == batch.targets.numel()
    assert ours == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow_but_every(3)
@each_family
def test_it_learns_and_stays_what_it_was(family: str, home: Path, tmp_path: Path) -> None:
    """A fine-tuned model has the same special tokens, scores better on its text, and can be exported again."""
    chosen = recipe(home, family, model={"dropout": 0.05})
    result = train(chosen, tmp_path / "run")
    before, after = Bundle.load(home / f"{family}-headway"), Bundle.load(result.model_folder or tmp_path)
    assert (after.token_template, after.task) == (before.token_template, before.task)
    assert after.source_tokenizer.fingerprint == before.source_tokenizer.fingerprint
    sources, targets = ([pair[number] for pair in PAIRS] for number in (0, 1))
    old, new = (Translator(each).score(sources, targets) for each in (before, after))
    assert sum(found.log_probability for found in new) > sum(found.log_probability for found in old)
    if family != "marian":  # the only family that can be exported to Hugging Face
        export_to("ctranslate2", after, tmp_path / "back")
        assert (tmp_path / "back" / "model.bin").is_file()
        return
    export_to("huggingface", after, tmp_path / "back")
    again = import_huggingface(tmp_path / "back").bundle
    texts = SENTENCES[:3]
    assert [each.text for each in Translator(again).translate(texts)] == [
        each.text for each in Translator(after).translate(texts)
    ]


def test_a_run_that_has_begun_needs_the_import_no_more(home: Path, tmp_path: Path) -> None:
    settings = DecodingOptions(beam_size=2, normalization="average", length_penalty=1.0, max_length=30)
    bundle = replace(Bundle.load(home / "nllb-headway"), search=settings)
    bundle.save(tmp_path / "start", "")
    start = {"start_from": str(tmp_path / "start")}
    train(recipe(home, "nllb", training={**start, "steps": 2}), tmp_path / "run")
    shutil.rmtree(tmp_path / "start")
    result = train(recipe(home, "nllb", training={**start, "steps": 3}), tmp_path / "run")
    tuned = Bundle.load(result.model_folder or tmp_path)
    assert tuned.token_template.target_language == "eng_Latn"
    mean = headway.average(tmp_path / "run", last=1, output=tmp_path / "mean")
    for inherited in (tuned, Bundle.load(mean)):
        assert inherited.search.model_dump(exclude_unset=True) == settings.model_dump(exclude_unset=True)


def test_a_corpus_may_be_in_other_languages(home: Path, tmp_path: Path) -> None:
    tokens = {}
    for name, languages in {
        "usual": {},
        "other": {"source_language": "eng_Latn", "target_language": "rus_Cyrl"},
    }.items():
        prepared = _prepare(recipe(home, "nllb", languages), tmp_path / name)
        batch = prepared.train.batch(next(iter(prepared.train.plan_sequential(max_batch_tokens=10_000))))
        tokens[name] = {int(batch.source[0, 0])}, {int(batch.target[0, 0])}
        template = prepared.tokenizers.imported_token_template
        assert template is not None
        defaults = template.source_language, template.target_language
        assert defaults == tuple(languages.values() or LANGUAGES["nllb"])
    codes = Bundle.load(home / "nllb-headway").token_template.languages
    assert tokens["usual"] == ({codes["deu_Latn"]}, {codes["eng_Latn"]})
    assert tokens["other"] == ({codes["eng_Latn"]}, {codes["rus_Cyrl"]})


@pytest.mark.parametrize(
    ("family", "corpus", "sections", "message"),
    [
        ("nllb", {"target_language": "tlh"}, {}, r"one must be selected: got 'tlh'; choose one of deu_Latn, eng_Latn"),
        ("marian", {"source_language": "de"}, {}, "source language 'de': this model has only one source language"),
        ("marian", {}, {"data": {"bpe_dropout": 0.1}}, "only Headway's own bpe tokenizer reports .* 'sentencepiece'"),
        (
            "marian",
            {},
            {"model": {"norm": "pre"}},
            r"the recipe's \[model\] differs: norm is 'pre', but 'post' in the model",
        ),
        (
            "marian",
            {},
            {"model": {"kind": "recurrent", "cell": "gru"}},
            "this is a transformer model; set model.k",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    family: str, corpus: dict[str, Any], sections: dict[str, Any], message: str, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(recipe(home, family, corpus, **sections), tmp_path / "run")


def test_what_a_recipe_leaves_out_is_the_models(home: Path, tmp_path: Path) -> None:
    found = complete_recipe(recipe(home, "m2m", model={"dropout": 0.3}), tmp_path)
    model = Bundle.load(home / "m2m-headway").model.config
    assert found.model.as_dict() == {**model.as_dict(), "dropout": 0.3}
    assert (found.task.source_language, found.task.target_language) == ("de", "en")


def test_tokens_that_are_forbidden_weigh_little_in_means(home: Path) -> None:
    """Label smoothing and Adafactor average over the vocabulary, so a bias of -10,000 would dominate them."""
    bundle = Bundle.load(home / "nllb-headway")
    model = build_model(bundle.model.config, bundle.source_tokenizer.vocab_size, bundle.target_tokenizer.vocab_size)
    before = bundle.model.projection.bias.detach()
    load_initial_weights(model, home / "nllb-headway")
    after = model.projection.bias.detach()
    assert before.min() < -1000
    assert after.min() == -200
    torch.testing.assert_close((after - 9).exp(), (before - 9).exp(), rtol=0, atol=0)  # to a softmax all the same


def test_a_teacher_uses_the_language_of_each_corpus(home: Path, tmp_path: Path) -> None:
    """Keys that the recipe omits are taken from the start folder, also in distillation."""
    corpus = {"source_language": "rus_Cyrl"}
    chosen = complete_recipe(recipe(home, "nllb", corpus), tmp_path / "run")
    student = distill(home / "nllb-headway", chosen, tmp_path / "run", beam_size=1)
    taught = [target for _, target in read_examples(student.data.train[0], Path(student.data.folder))]
    translator = Translator(Bundle.load(home / "nllb-headway"))
    sources, options = [source for source, _ in PAIRS], DecodingOptions(beam_size=1)
    told, untold = (
        [each.text for each in translator.translate(sources, options, source_language=language, protect=False)]
        for language in ("rus_Cyrl", None)
    )
    assert taught == told != untold
