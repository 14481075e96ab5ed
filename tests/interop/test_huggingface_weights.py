"""Models of `transformers` imported into Headway compute the same numbers as in `transformers`, for every family."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_models import (
    PREFIXES,
    SIZES,
    V,
    assert_same_weights,
    drawn,
    each_family,
    padded,
    saved,
    sentences,
    transformers,
)
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.torch_version import TorchVersion

from headway.errors import BundleError, ConfigError
from headway.interop.huggingface import ImportedModel, import_model
from headway.interop.huggingface.families import FAMILIES
from headway.text.base import BOS, EOS, PAD
from headway.weights import named_weights

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in PREFIXES),
    *((family, {"scale_embedding": not FAMILIES[family].defaults["scale_embedding"]}) for family in PREFIXES),
    *((family, {"encoder_layers": 1, "decoder_layers": 3, "activation_function": "swish"}) for family in PREFIXES),
    ("marian", {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3}),
    ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V + 2}),
    ("marian", {"tie_word_embeddings": False, "activation_function": "relu"}),
    ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V + 2, "tie_word_embeddings": False}),
    ("m2m_100", {"tie_word_embeddings": False, "activation_function": "gelu", "d_model": 20, "pad_token_id": 4}),
    ("bart", {"tie_word_embeddings": False, "activation_function": "relu", "encoder_layers": 3}),
    ("bart", {"decoder_start_token_id": 0}),
    ("mbart", {"tie_word_embeddings": False, "activation_function": "relu"}),
    ("mbart", {"decoder_start_token_id": 2}),
    ("fsmt", {"tgt_vocab_size": V, "tie_word_embeddings": True, "d_model": 24, "activation_function": "gelu"}),
    ("fsmt", {"encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "pad_token_id": 5}),
    ("pegasus", {"tie_word_embeddings": False, "activation_function": "relu"}),
]
each_variant = pytest.mark.parametrize(("family", "options"), VARIANTS, ids=[f"{f}-{'-'.join(o)}" for f, o in VARIANTS])


def both_logits(model: Any, imported: ImportedModel, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return (ours, theirs) after every position of random targets in a padded batch, both in our order of tokens."""
    config, source_ids, target_ids = model.config, imported.source_vocabulary, imported.target_vocabulary
    sources = sentences(model, lengths, max(source_ids.order) + 1)
    targets = [row[:-1] for row in sentences(model, (7,) * len(lengths), max(target_ids.order) + 1)]
    source = padded(sources, config.pad_token_id)
    begun = torch.tensor([[config.decoder_start_token_id, *row] for row in targets])
    with torch.no_grad():
        theirs = model(
            input_ids=source,
            attention_mask=(source != config.pad_token_id).long(),
            decoder_input_ids=begun,
            use_cache=False,
        ).logits
        ours = imported.model(
            padded([list(source_ids.to_headway_ids(row)) for row in sources], 0),
            torch.tensor([[1, *target_ids.to_headway_ids(row)] for row in targets]),
        )
    return ours, theirs[..., list(target_ids.order)]


def once(logits: Tensor, imported: ImportedModel) -> Tensor:
    """Return logits without the begin symbol if its row is a copy of another token's row."""
    first_places = {old: new for new, old in reversed(list(enumerate(imported.target_vocabulary.order))) if new != 1}
    return logits[..., sorted(first_places.values())] if len(first_places) < logits.size(-1) else logits


def assert_equal_logits(model: Any, imported: ImportedModel, lengths: tuple[int, ...] = (5, 1, 9)) -> None:
    ours, theirs = both_logits(model, imported, lengths)
    assert theirs.std() > 0.5  # far from uniform, so that differences would show
    torch.testing.assert_close(once(ours, imported), once(theirs, imported), atol=1e-4, rtol=0)


# The same numbers.


@pytest.mark.slow_but_every(7)
@each_variant
def test_logits_equal_those_of_transformers(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = drawn(family, **options)
    assert_equal_logits(model, import_model(saved(model, tmp_path)))


@pytest.mark.parametrize("seed", [1, 2])
@each_family
def test_other_draws_agree_as_well(family: str, seed: int, tmp_path: Path) -> None:
    sizes = [{"d_model": 32, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}, {"d_model": 8, "encoder_layers": 3}]
    model = drawn(family, seed, **sizes[seed - 1])
    assert_equal_logits(model, import_model(saved(model, tmp_path)))


@each_family
def test_positions_far_into_a_text_agree(family: str, tmp_path: Path) -> None:
    model = drawn(family)
    assert_equal_logits(model, import_model(saved(model, tmp_path)), lengths=(45, 2))


# Every tensor, in any file format.


def test_a_start_token_that_is_there_twice_has_one_probability(tmp_path: Path) -> None:
    model = drawn("m2m_100")
    imported = import_model(saved(model, tmp_path))
    ours, theirs = both_logits(model, imported, (5, 1, 9))
    begin, end = 1, 2
    probabilities = ours.softmax(-1)
    assert (probabilities[..., begin] == 0).all()
    torch.testing.assert_close(probabilities[..., end], once(theirs, imported).softmax(-1)[..., end - 1])


@each_family
def test_each_tensor_is_needed_or_known(family: str, tmp_path: Path) -> None:
    """If a tensor is missing, the file is refused with the tensor's name, or the model is the same without it."""
    model = drawn(family, encoder_layers=1, decoder_layers=1)
    saved(model, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    whole = named_weights(import_model(tmp_path).model)
    computed = {name for name in tensors if "embed_positions" in name and family not in ("bart", "mbart")}
    for left_out in sorted(tensors.keys() - {"final_logits_bias"}):
        save_file({name: tensor for name, tensor in tensors.items() if name != left_out}, path)
        if left_out in computed:
            assert_same_weights(import_model(tmp_path).model, whole)
        elif (family, left_out) == ("fsmt", "model.decoder.output_projection.weight"):
            assert import_model(tmp_path).model.config.tie == "target"  # as fsmt once always was
        else:
            with pytest.raises(BundleError, match=f"tensor '{left_out}' is missing"):
                import_model(tmp_path)
    save_file({**tensors, "model.encoder.layers.1.fc3.weight": torch.zeros(1)}, path)
    with pytest.raises(BundleError, match=r"unknown tensor 'model.encoder.layers.1.fc3.weight' \(1 in total\)"):
        import_model(tmp_path)
    save_file({**tensors, "model.encoder.version": torch.zeros(1)}, path)
    assert_same_weights(import_model(tmp_path).model, whole)


def test_output_biases_that_are_left_out_are_zero(tmp_path: Path) -> None:
    model = drawn("bart", decoder_start_token_id=0)
    model.final_logits_bias.zero_()
    saved(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["final_logits_bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    imported = import_model(tmp_path)
    assert not imported.model.config.output_bias
    assert_equal_logits(model, imported)


@each_family
def test_older_files_hold_each_tensor_under_all_its_names(family: str, tmp_path: Path) -> None:
    model = drawn(family)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_equal_logits(model, import_model(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_may_lie_in_several_files(name: str, tmp_path: Path) -> None:
    model = drawn("m2m_100")
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 1
    if name == "pytorch_model.bin":
        (tmp_path / "model.safetensors.index.json").unlink()
        for file in files:
            torch.save(load_file(tmp_path / file), tmp_path / f"{file}.bin")
            (tmp_path / file).unlink()
        index["weight_map"] = {tensor: f"{file}.bin" for tensor, file in index["weight_map"].items()}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert_equal_logits(model, import_model(tmp_path))


@pytest.mark.parametrize("old", ["shards", "only their index"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_file_of_all_weights_comes_before_older_shards(name: str, old: str, tmp_path: Path) -> None:
    """The order is that of `transformers`."""
    drawn("marian", 1).save_pretrained(tmp_path, max_shard_size="8KB")
    model = drawn("marian", 2)
    saved(model, tmp_path / "new")
    index = tmp_path / "model.safetensors.index.json"
    shards = sorted(tmp_path.glob("model-*"))
    assert len(shards) > 1
    for shard in shards if old == "only their index" or name == "pytorch_model.bin" else []:
        shard.unlink()
    if name == "pytorch_model.bin":
        index.rename(tmp_path / "pytorch_model.bin.index.json")
        torch.save(load_file(tmp_path / "new" / "model.safetensors"), tmp_path / name)
    else:
        (tmp_path / "new" / name).rename(tmp_path / name)
    with pytest.warns(UserWarning, match=rf"{name}.index.json: not used, because {name} contains all weights"):
        imported = import_model(tmp_path)
    assert_equal_logits(model, imported)
    assert_equal_logits(transformers.MarianMTModel.from_pretrained(tmp_path).eval(), imported)


@pytest.mark.parametrize("size", [10**9, 10**12])
def test_sizes_are_compared_with_the_weights_before_memory_is_allocated(size: int, tmp_path: Path) -> None:
    """Any of them took all memory, and half a minute."""
    folder = saved(drawn("m2m_100"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "pad_token_id"):
        changed = {**config, key: size}
        if key == "encoder_ffn_dim":
            changed["decoder_ffn_dim"] = size
        (folder / "config.json").write_text(json.dumps(changed))
        began = time.process_time()
        with pytest.raises(BundleError, match=r"but no tensor|but the weights are|is not in the vocabulary"):
            import_model(folder)
        assert time.process_time() - began < 1


def test_a_file_without_the_output_projection_has_other_names(tmp_path: Path) -> None:
    saved(drawn("bart").model, tmp_path)
    assert all(not name.startswith("model.") for name in load_file(tmp_path / "model.safetensors"))
    model = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert_equal_logits(model, import_model(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    imported = import_model(saved(drawn("marian").to(dtype), tmp_path))
    model = transformers.MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert {weight.dtype for weight in imported.model.parameters()} == {torch.float32}
    assert_equal_logits(model, imported)


@each_family
def test_keys_that_are_left_out_have_their_defaults(family: str) -> None:
    config = getattr(transformers, f"{PREFIXES[family]}Config")()
    told = config.to_dict()
    for key, default in FAMILIES[family].defaults.items():
        if key in ("vocab_size", "share_encoder_decoder_embeddings") and key not in type(config).__dataclass_fields__:
            continue
        assert told.get(key) == default, key


# The order of the vocabularies, and the special tokens around sentences.


@pytest.mark.parametrize(
    ("family", "options", "prefix", "suffix", "target"),
    [
        ("marian", {}, (), (2,), ()),
        ("fsmt", {}, (), (2,), ()),
        ("pegasus", {}, (), (2,), ()),
        ("bart", {}, (4,), (2,), ()),  # <s>, foreign id 0, is the first token after the special tokens
        ("bart", {"forced_bos_token_id": 0}, (4,), (2,), (4,)),
        ("bart", {"force_bos_token_to_be_generated": True}, (4,), (2,), (4,)),  # as before transformers 4.3
        ("m2m_100", {}, ("source_language",), (2,), ("target_language",)),
        ("mbart", {"decoder_start_token_id": 2}, ("source_language",), (2,), ("target_language",)),
        ("mbart", {}, (), (2, "source_language"), ()),
    ],
)
def test_special_token_templates(
    family: str, options: dict[str, Any], prefix: tuple[Any], suffix: tuple[Any], target: tuple[Any], tmp_path: Path
) -> None:
    saved(drawn(family, **{key: value for key, value in options.items() if key != "forced_bos_token_id"}), tmp_path)
    change(tmp_path, **options)
    template = import_model(tmp_path).token_template
    assert (template.source_prefix, template.source_suffix, template.target_prefix) == (prefix, suffix, target)


def test_each_side_has_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    options = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V + 2}
    saved(drawn("marian", **options), tmp_path)
    change(tmp_path, unk_token_id=None)
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 5}))
    both = import_model(tmp_path)  # one file is used for both
    assert (both.source_vocabulary.order[:5], both.target_vocabulary.order[3]) == ((39, 39, 0, 5, 1), 5)
    (tmp_path / "target_vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 7}))
    apart = import_model(tmp_path)
    assert (len(apart.source_vocabulary), len(apart.target_vocabulary)) == (V + 1, V + 3)
    assert (apart.source_vocabulary.order[3], apart.target_vocabulary.order[3]) == (5, 7)
    told = import_model(tmp_path, unknown_ids=(8, 9))
    assert (told.source_vocabulary.order[3], told.target_vocabulary.order[3]) == (8, 9)


def test_the_start_may_be_told(tmp_path: Path) -> None:
    saved(drawn("mbart", decoder_start_token_id=None), tmp_path)
    with pytest.raises(BundleError, match="decoder_start_token_id = None: expected the id of the token that decoding"):
        import_model(tmp_path)
    assert import_model(tmp_path, decoder_start_id=33).target_vocabulary.order[:2] == (1, 33)
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 34}')
    assert import_model(tmp_path).target_vocabulary.order[:2] == (1, 34)


def test_configurations_as_they_were_written_years_ago_are_read(tmp_path: Path) -> None:
    """OPUS-MT's configuration of 2020, with keys that `transformers` has removed since."""
    model = drawn("marian", vocab_size=60, pad_token_id=59, decoder_start_token_id=59, activation_function="swish")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    old = {
        "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
        "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0,
        "bad_words_ids": [[59]], "bos_token_id": 0, "classif_dropout": 0.0, "decoder_layerdrop": 0.0,
        "decoder_start_token_id": 59, "dropout": 0.1, "encoder_layerdrop": 0.0, "eos_token_id": 0,
        "extra_pos_embeddings": 60, "id2label": {"0": "LABEL_0"}, "init_std": 0.02, "is_encoder_decoder": True,
        "max_length": 512, "model_type": "marian", "normalize_before": False, "normalize_embedding": False,
        "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 59, "scale_embedding": False,
        "static_position_embeddings": True, "vocab_size": 60, **SIZES,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(old))
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 59}))
    imported = import_model(tmp_path)
    assert imported.source_vocabulary.order[:4] == (59, 59, 0, 1)
    assert_equal_logits(model, imported)


def test_bad_words_are_never_likely(tmp_path: Path) -> None:
    drawn("marian").save_pretrained(tmp_path)
    free = import_model(tmp_path)
    change(tmp_path, bad_words_ids=[*([free.target_vocabulary.order[special]] for special in (PAD, EOS)), [20]])
    imported = import_model(tmp_path)
    place = imported.target_vocabulary.order.index(20)
    source, target = torch.tensor([[7, 9, 12, EOS]]), torch.tensor([[BOS, 8, 11]])
    with torch.no_grad():
        before, after = (each.model(source, target) for each in (free, imported))
    assert (after[..., place] < -5000).all()
    before[..., place] = after[..., place]
    torch.testing.assert_close(after, before)


# What is refused.


def change(folder: Path, **values: Any) -> None:
    """Write other values into config.json, which takes precedence."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("marian", {"bad_words_ids": [[3, 4]]}, r"bad_words_ids contains \[3, 4\], but only lists with a single"),
        ("marian", {"bad_words_ids": [["a"]]}, r"bad_words_ids contains \['a'\], but only lists with a single"),
        ("marian", {"bad_words_ids": 7}, "bad_words_ids contains 7, but only lists with a single"),
        ("marian", {"model_type": "umt5"}, r"'umt5' is not supported; supported: marian \(MarianMT\), m2m_100"),
        ("marian", {"model_type": None}, "model_type = None is not supported"),
        ("marian", {"logit_scale": 0.0625}, "logit_scale = 0.0625 is not supported for MarianMT"),
        ("bart", {"architectures": ["BartForSequenceClassification"]}, "expected BartForConditionalGeneration for BA"),
        ("bart", {"normalize_before": True}, "normalize_before = true is not supported; expected false for BART"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings = false is not supported"),
        ("marian", {"activation_function": "gelu_new"}, "activation_function = 'gelu_new': expected one of relu"),
        ("marian", {"decoder_ffn_dim": 7}, "encoder_ffn_dim = 24 and decoder_ffn_dim = 7: Headway needs"),
        ("fsmt", {"decoder_attention_heads": 2}, "encoder_attention_heads = 4 and decoder_attention_heads = 2"),
        ("marian", {"encoder_layers": 0}, "encoder_layers = 0: expected a whole number of at least 1"),
        ("marian", {"d_model": 18}, "num_heads = 4 does not divide d_model = 18"),
        ("m2m_100", {"d_model": 15}, "d_model = 15 is not supported; M2M-100's sinusoids need an even number"),
        ("m2m_100", {"decoder_start_token_id": 1}, "decoder_start_token_id = 1 is the padding token"),
        ("bart", {"pad_token_id": 2}, r"the pad and end tokens are the same \(id 2\)"),
        ("bart", {"eos_token_id": [2, 5]}, r"eos_token_id = \[2, 5\]: expected the id of one token"),
        ("bart", {"bos_token_id": 99}, "token id 99 is not in the vocabulary, whose ids are 0 to 39"),
        ("bart", {"pad_token_id": 99}, "the pad token's id 99 is not in the vocabulary, which has 40 tokens"),
        ("marian", {"unk_token_id": None}, "the unknown token is not defined; expected <unk> in vocab.json"),
        ("m2m_100", {"vocab_size": 41}, r"'model.shared.weight' has shape \[40, 16\]; config.json requires \[41"),
        ("bart", {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8}, r"fc1.weight' has shape \[24, 16\], which does not"),
        ("bart", {"max_position_embeddings": 9}, r"embed_positions.weight' has shape \[50, 16\], which does not match"),
        ("m2m_100", {"tie_word_embeddings": False}, "tensor 'lm_head.weight' is missing"),
        ("marian", {"dropout": 2}, "dropout = 2: input should be less than 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    family: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved(drawn(family), tmp_path)
    change(tmp_path, **values)
    with pytest.raises(
        BundleError if "input should" not in message and "divide" not in message else ConfigError, match=message
    ):
        import_model(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, {"a": "../b"}, {"a": 3}])
def test_a_damaged_index_is_refused(weight_map: Any, tmp_path: Path) -> None:
    drawn("bart").config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BundleError, match=r"model.safetensors.index.json: damaged \(expected weight_map"):
        import_model(tmp_path)


def test_a_bias_of_another_size_is_refused(tmp_path: Path) -> None:
    path = saved(drawn("bart"), tmp_path) / "model.safetensors"
    save_file({**load_file(path), "final_logits_bias": torch.zeros(1, 7)}, path)
    with pytest.raises(BundleError, match=r"'final_logits_bias' has shape \[1, 7\]; config.json requires \[1, 40\]"):
        import_model(tmp_path)


def test_positions_that_are_no_sinusoids_are_refused(tmp_path: Path) -> None:
    path = saved(drawn("pegasus"), tmp_path) / "model.safetensors"
    tensors = load_file(path)
    tensors["model.encoder.embed_positions.weight"][3, 4] += 0.1
    save_file(tensors, path)
    with pytest.raises(BundleError, match=r"encoder.embed_positions.weight' does not contain this family's sinusoids"):
        import_model(tmp_path)


def test_folders_that_hold_no_model_are_explained(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config.json: missing; expected a folder with a `transformers` model"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BundleError, match=r"config.json: damaged \(expected a JSON object\)"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BundleError, match=r"config.json: damaged \(Expecting"):
        import_model(tmp_path)
    drawn("bart").config.save_pretrained(tmp_path)
    with pytest.raises(BundleError, match=r"no weights; expected model.safetensors or pytorch_model.bin"):
        import_model(tmp_path)
    weights = tmp_path / "pytorch_model.bin"
    weights.write_bytes(b"nothing")
    with pytest.raises(BundleError, match=r"pytorch_model.bin: not a file of tensors \("):
        import_model(tmp_path)
    torch.save([1], weights)
    with pytest.raises(BundleError, match=r"pytorch_model.bin: not a file of tensors; expected a state dict"):
        import_model(tmp_path)


def test_nothing_is_unpickled_with_a_pytorch_that_such_files_can_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn("bart").config.save_pretrained(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1+cpu"))
    with pytest.raises(
        BundleError, match=r"a security risk in PyTorch 2\.9\.1\+cpu; install PyTorch 2\.10 or newer, or use model"
    ):
        import_model(tmp_path)


def test_nothing_is_unpickled_but_tensors(tmp_path: Path) -> None:
    drawn("bart").config.save_pretrained(tmp_path)
    torch.save({"a": Path("b")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BundleError, match="not a file of tensors"):
        import_model(tmp_path)
