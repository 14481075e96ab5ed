"""Translation models whose encoder is that of a masked language model, and whose decoder may be that of a causal one:
weights, output, exact resume, refusals.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import headway
from headway.bundle import Bundle, LanguageModelBundle, MaskedLanguageModelBundle, TaskConfig, load_bundle
from headway.errors import ConfigError
from headway.experiments.pool import merge_sections
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.models.transformer import Transformer
from headway.nn.masks import padding_mask
from headway.tasks import parse_recipe, task_of, train
from headway.text.base import BOS, EOS, MASK, PAD
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.training.fine_tuning import complete_recipe, load_initial_weights
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.weights import named_weights

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 24, "max_length": 64}
FORMS: dict[str, dict[str, Any]] = {
    "bert": {"num_segments": 2, "norm_epsilon": 1e-6},
    "sinusoidal": {"positions": "sinusoidal", "embedding_norm": False},
    "plain": {"norm": "pre", "embedding_norm": False},
    "pre": {"norm": "pre", "embedding_norm": False, "positions": "rotary", "activation": "geglu", "encoder_window": 5},
    "alternating": {"positions": "rotary", "encoder_window": 5, "global_every": 2},
    "modern": {"norm": "pre", "positions": "rotary"},
    "segments": {"positions": "rotary", "num_segments": 2},
}
CAUSAL: dict[str, dict[str, Any]] = {"causal": {"output_bias": True}, "parallel": {"parallel": True}}
COMMON: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
    "training": {"steps": 2, "device": "cpu", "precision": "float32"},
    "checkpoints": {"every": 2, "average": 0},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parallel corpus, masked models of several forms for its sources, and causal ones for its targets."""
    home, rng = tmp_path_factory.mktemp("start_encoder"), random.Random(1)
    words = {"rot": "red", "grün": "green", "Haus": "house", "Baum": "tree", "ein": "a"}
    texts = [rng.choices(list(words), k=rng.randint(3, 7)) for _ in range(40)]
    sides = {"de": list(map(" ".join, texts)), "en": [" ".join(words[word] for word in text) for text in texts]}
    for side, lines in sides.items():
        (home / f"text.{side}").write_text("\n".join(lines), encoding="utf-8")
    config = TokenizerConfig(vocab_size=320, min_frequency=1)
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(sides["de"], config, tags=[MASK])
    for name, form in FORMS.items():
        masked = MaskedTransformer(
            MaskedConfig.parse({**SIZES, "encoder_layers": 2, **form}, name), tokenizer.vocab_size
        )
        task = TaskConfig(kind="masked_language_model")
        MaskedLanguageModelBundle(task, masked, tokenizer).save(home / name, "")
    tokenizer = Tokenizer.train(sides["en"], config)
    for name, form in CAUSAL.items():
        causal = DecoderOnly(
            DecoderOnlyConfig.parse({**SIZES, "decoder_layers": 1, **form}, name), tokenizer.vocab_size
        )
        LanguageModelBundle(TaskConfig(kind="language_model"), causal, tokenizer).save(home / name, "")
    return home


def recipe(home: Path, form: str, *changes: dict[str, dict[str, Any]]) -> Recipe:
    sections: dict[str, dict[str, Any]] = {
        "data": {"folder": str(home), "train": [{"files": ["text.de", "text.en"]}], "max_tokens": 128},
        "training": {"start_from": str(home / form)},
        "model": {"decoder_layers": 1, "tie": "target"},
        "tokenizer": {"joint": False, "vocab_size": 320},
    }
    return parse_recipe(merge_sections(COMMON, sections, *changes), "test")


def begin(chosen: Recipe, run: Path) -> tuple[Transformer, Any]:
    """Return the model of a run before its first step, and the prepared data."""
    task, chosen = task_of(chosen), complete_recipe(chosen, run)
    prepared = task.prepare(chosen, run, Listener())
    model = task.build_model(chosen, prepared)
    decoder = chosen.training.start_decoder_from
    load_initial_weights(model, Path(str(chosen.training.start_from)), Path(decoder) if decoder else None)
    return cast("Transformer", model).eval(), prepared


@pytest.mark.parametrize("form", ["bert", "sinusoidal", "pre"])
def test_the_encoder_is_that_of_the_masked_model(home: Path, tmp_path: Path, form: str) -> None:
    masked = MaskedLanguageModelBundle.load(home / form)
    model, prepared = begin(recipe(home, form), tmp_path)
    found, before = named_weights(model), named_weights(masked.model)
    names = {name: name for name in before if name.startswith("encoder.")}
    names |= {"embedding.weight": "source_embedding.weight"}
    assert len(names) > 20
    for old, new in names.items():
        assert torch.equal(found[new], before[old])

    assert prepared.tokenizers.source.fingerprint == masked.tokenizer.fingerprint
    assert len(prepared.tokenizers.target.encode("red house")) < len(masked.tokenizer.encode("red house"))
    encode = masked.tokenizer.encode
    rows = [[BOS, *encode("ein rot Haus"), EOS], [BOS, *encode("grün"), EOS]]
    source = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True)
    mask = source != PAD
    with torch.no_grad():
        memory, expected = model.encode(source, padding_mask(source, PAD)), masked.model.hidden(source)
    torch.testing.assert_close(memory[mask], expected[mask], atol=1e-5, rtol=1e-5)

    # Training reads sources as the masked model reads texts.
    data = prepared.train
    batch = data.batch(next(iter(data.plan_sequential(10_000, None))))
    first = (home / "text.de").read_text(encoding="utf-8").splitlines()
    assert {tuple(row[row > 0]) for row in batch.source} == {(BOS, *encode(text), EOS) for text in first}


def with_decoder(home: Path, name: str, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections that start the decoder from a language model, and leave its options and tokenizer to it."""
    training = {"start_decoder_from": str(home / name), **changes.pop("training", {})}
    return {"training": training, **changes}


def test_the_decoder_is_that_of_the_causal_model(home: Path, tmp_path: Path) -> None:
    chosen = recipe(home, "plain", with_decoder(home, "causal")).as_dict() | {"model": {}, "tokenizer": {}}
    model, prepared = begin(parse_recipe(chosen, "test"), tmp_path)
    masked, causal = (load_bundle(home / name) for name in ("plain", "causal"))
    assert isinstance(masked, MaskedLanguageModelBundle)
    assert isinstance(causal, LanguageModelBundle)
    assert prepared.tokenizers.source.fingerprint == masked.tokenizer.fingerprint
    assert prepared.tokenizers.target.fingerprint == causal.tokenizer.fingerprint
    assert model.projection.weight is model.target_embedding.weight
    assert torch.equal(model.projection.bias, causal.model.projection.bias)
    assert torch.equal(named_weights(model)["source_embedding.weight"], masked.model.get_parameter("embedding.weight"))

    # Without its attention to the source, the decoder is the causal model.
    source = torch.tensor([[BOS, *masked.tokenizer.encode("ein Haus"), EOS]])
    target = torch.tensor([[BOS, *causal.tokenizer.encode("a red house")]])
    with torch.no_grad():
        expected = causal.model(target)
        assert not torch.allclose(model(source, target), expected, atol=1e-3)
        for block in model.decoder.blocks:
            for weight in block.get_submodule("cross_attention.output").parameters():
                weight.zero_()
        torch.testing.assert_close(model(source, target), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decoder", [None, "causal"])
def test_a_run_learns_resumes_exactly_and_translates(home: Path, tmp_path: Path, decoder: str | None) -> None:
    def chosen(steps: int) -> Recipe:
        training = {"training": {"steps": steps, "unfreeze_every": 2}}
        if decoder is None:
            return recipe(home, "bert", training)
        return recipe(home, "plain", with_decoder(home, decoder, **training))

    train(chosen(6), tmp_path / "whole")
    train(chosen(3), tmp_path / "parts")
    train(chosen(6), tmp_path / "parts")
    whole, parts = (Bundle.load(tmp_path / run / "best") for run in ("whole", "parts"))
    found = named_weights(parts.model)
    assert all(torch.equal(weight, found[name]) for name, weight in named_weights(whole.model).items())
    assert whole.token_template.fill().add_to_source([7]) == [BOS, 7, EOS]
    translator = headway.load(tmp_path / "whole" / "best")
    assert isinstance(translator, headway.Translator)
    assert isinstance(translator.translate("ein rot Haus").text, str)


def test_both_sides_may_have_the_masked_models_vocabulary(home: Path, tmp_path: Path) -> None:
    chosen = recipe(home, "bert", {"tokenizer": {"joint": True}, "model": {"tie": "all"}})
    masked = MaskedLanguageModelBundle.load(home / "bert")
    model, prepared = begin(chosen, tmp_path)
    assert prepared.tokenizers.target.fingerprint == masked.tokenizer.fingerprint
    assert model.projection.weight is model.source_embedding.weight
    assert torch.equal(model.projection.weight, masked.model.get_parameter("embedding.weight"))


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("alternating", {}, "the masked language model has global_every = 2, which a transformer's encoder does"),
        ("modern", {}, r"has embedding_norm = true with norm = 'pre'"),
        ("segments", {}, r"has num_segments = 2 without positions = 'learned'"),
        ("bert", {"model": {"norm": "pre"}}, r"the recipe's \[model\] differs: norm is 'pre', but 'post' in the model"),
        ("bert", {"model": {"encoder_window": 3}}, "differs: encoder_window is 3, but not set in the model"),
        ("pre", {"model": {"encoder_window": 3}}, "differs: encoder_window is 3, but 5 in the model"),
        ("bert", {"model": {"max_length": 40}}, "differs: max_length is 40, but 64 in the model"),
        ("bert", {"model": {"kind": "recurrent", "cell": "gru"}}, r"this is a masked model; set model\.kind = 't"),
        ("bert", {"model": {"tie": "all"}}, r"model\.tie = 'all' shares one embedding"),
        ("bert", {"tokenizer": {"kind": "characters"}}, r"tokenizer\.kind = 'characters', but .* has 'bpe'"),
        (
            "bert",
            {"decoder": "causal"},
            r"embedding_norm is False in the decoder, but True in the encoder; norm is 'pre' in the decoder",
        ),
        (
            "plain",
            {"decoder": "parallel"},
            "the language model has parallel = true, which a transformer's decoder",
        ),
        ("plain", {"decoder": "bert"}, "this is a masked model; expected a decoder_only model"),
        ("plain", {"decoder": "causal", "model": {"tie": "none"}}, "differs: tie is 'none', but 'target' in the model"),
        ("plain", {"decoder": "causal", "tokenizer": {"joint": True}}, "joint = True does not match the tokenizers"),
        (
            "bert",
            {"data": {"train": [{"files": ["text.de", "text.en"], "target_language": "en"}]}},
            r"its vocabulary has no tag <2en>",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    home: Path, tmp_path: Path, form: str, changes: dict[str, Any], message: str
) -> None:
    if "decoder" in changes:
        changes = with_decoder(home, changes["decoder"], **{k: v for k, v in changes.items() if k != "decoder"})
    if "kind" in changes.get("model", {}):  # a recurrent model has other keys
        chosen = recipe(home, form).as_dict() | {"model": changes["model"]}
        with pytest.raises(ConfigError, match=message):
            train(parse_recipe(chosen, "test"), tmp_path)
        return
    with pytest.raises(ConfigError, match=message):
        train(recipe(home, form, changes), tmp_path)


def test_a_decoder_needs_an_encoder(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"start_decoder_from has no effect unless training\.start_from"):
        recipe(home, "plain", with_decoder(home, "causal", training={"start_from": None}))
    train(recipe(home, "bert", {"training": {"steps": 1}}), tmp_path / "first")
    start = {"start_from": str(tmp_path / "first" / "best")}
    with pytest.raises(ConfigError, match=r"requires a masked language model in training\.start_from"):
        train(recipe(home, "bert", with_decoder(home, "causal", training=start)), tmp_path / "second")
