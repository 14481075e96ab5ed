"""Imported decoder-only models compute the same logits, and generate the same text, as in `transformers`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from causal_models import config, drawn, published, sentencepiece_folder, tokenizer
from foreign import transformers
from tokenizers import processors
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import headway
from headway import kernels
from headway.bundle import LanguageModelBundle
from headway.cli.commands.import_ import import_
from headway.data.multiple_choice import Question, few_shot_prompts
from headway.engine.int8_check import INT8_CHECK_FILE, read_int8_check
from headway.errors import BundleError, ConfigError, LengthError
from headway.interop.exporting import export_to
from headway.interop.huggingface.causal_importing import import_causal
from headway.interop.importing import import_from, import_language_model
from headway.predict import LanguageModel, load_language_model, score_answers
from headway.text.base import BOS, EOS, PAD, UNK
from headway.text.huggingface import FastTokenizer

V, LIMIT = 90, 18
IDS = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"bos_token_id": 7, "eos_token_id": 7}),
    "gpt2-relu": ("gpt2", {"activation_function": "relu", "n_inner": 40, "layer_norm_epsilon": 0.1}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "neox": ("gpt_neox", {}),
    "neox-sequential": ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "gelu_new"}),
    "neox-half": ("gpt_neox", {"rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 0.5}}),
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "pad_token_id": 5}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "hidden_act": "gelu"}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}}),
    "llama-partial": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}},
    ),
    "llama-llama3": ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64}}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-yarn-own": ("llama", {"rope_parameters": {**YARN, "beta_fast": 16.0, "attention_factor": 1.3}}),
    "mistral-window": ("mistral", {"sliding_window": 6}),
    "mistral-all": ("mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}),
    "qwen3": ("qwen3", {"head_dim": 12, "rope_parameters": YARN}),
}


def saved(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def rows(seed: int = 1) -> list[list[int]]:
    """Return token ids of different lengths, one row longer than all windows and than the trained context of YaRN."""
    torch.manual_seed(seed)
    return [torch.randint(8, V, (length,)).tolist() for length in (70, 3, 19)]


def logits_of(folder: Path, sequences: list[list[int]]) -> tuple[Tensor, tuple[int, ...]]:
    """Return Headway's logits, with columns in the family's order, and the ids of rows that are duplicates."""
    found = import_causal(folder)
    order = found.vocabulary.order
    with torch.inference_mode():
        ours = found.model(
            pad_sequence([torch.tensor(found.vocabulary.to_headway_ids(row)) for row in sequences], batch_first=True)
        )
    own = [new for new in range(len(order)) if new not in found.vocabulary.duplicates]
    theirs = torch.empty(*ours.shape[:2], V)
    theirs[..., [order[new] for new in own]] = ours[..., own]
    assert (ours[..., list(found.vocabulary.duplicates)] < -9000).all()
    return theirs, found.vocabulary.duplicates


def assert_same_logits(model: Any, folder: Path) -> None:
    sequences = rows()
    ids = pad_sequence([torch.tensor(row) for row in sequences], batch_first=True)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in sequences], batch_first=True)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask).logits
    found, _ = logits_of(folder, sequences)
    assert (found - expected)[mask.bool()].abs().max() <= 1e-4
    assert expected.abs().max() > 1


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
@pytest.mark.slow
def test_the_command_stores_whether_the_model_may_generate_in_int8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published("gpt2", tmp_path / "hf")
    import_(f"huggingface:{tmp_path / 'hf'}", tmp_path / "model")
    check = read_int8_check(tmp_path / "model")
    assert check is not None
    expected = load_language_model(tmp_path / "model")
    assert f"on a CPU it generates in {expected.precision} by default: {check.describe()}\n" in capsys.readouterr().out
    (tmp_path / "model" / INT8_CHECK_FILE).unlink()
    assert load_language_model(tmp_path / "model").int8_check == check


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_the_same(name: str, tmp_path: Path) -> None:
    family, options = VARIANTS[name]
    model = drawn(config(family, **{**IDS, **options}))
    assert_same_logits(model, saved(model, tmp_path))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_several_files_of_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = drawn(config("qwen3", **IDS)).to(dtype)
    saved(model, tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same_logits(again.eval(), tmp_path)


def rewritten(folder: Path, drop: tuple[str, ...], **changes: Any) -> None:
    path = folder / "config.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    path.write_text(json.dumps({**content, **changes}))


def test_folders_of_older_versions(tmp_path: Path) -> None:
    """Settings of rotary positions were separate keys, files of GPT-2 lacked a prefix, and buffers were stored."""
    model = drawn(config("llama", **IDS, rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}))
    folder = saved(model, tmp_path / "llama")
    old = {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "float32"}
    rewritten(folder, ("rope_parameters", "dtype", "head_dim"), **old)
    assert_same_logits(model, folder)

    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}
    model = drawn(config("gpt_neox", **IDS, rope_parameters=rope))
    folder = saved(model, tmp_path / "neox")
    rewritten(folder, ("rope_parameters",), rotary_emb_base=300, rotary_pct=0.5)
    assert_same_logits(model, folder)

    model = drawn(config("gpt2", **IDS))
    folder = saved(model, tmp_path / "gpt2")
    weights = {name.removeprefix("transformer."): weight for name, weight in model.transformer.state_dict().items()}
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "h.0.attn.bias": torch.ones(1, 1, 8, 8)}, folder / "pytorch_model.bin")
    rewritten(folder, (), n_ctx=160)
    assert_same_logits(model, folder)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox"])
def test_rope_scaling_replaces_rope_parameters(family: str, tmp_path: Path) -> None:
    """As in a folder of `transformers` 5, to which its user has added the scaling that model cards recommend."""
    rope = {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}
    saved(drawn(config(family, **IDS, rope_parameters=rope)), tmp_path)
    change(tmp_path / "config.json", rope_scaling={key: YARN[key] for key in YARN if key != "rope_theta"})
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.rope_parameters["rope_type"] == "yarn"
    assert_same_logits(model.eval(), tmp_path)


class EndAtLimit(transformers.LogitsProcessor):  # type: ignore[misc]
    """Headway's rule for hypotheses at the limit: they end with the end symbol, whose probability counts."""

    def __init__(self, end: int, length: int) -> None:
        self.end, self.length = end, length

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if ids.size(1) < self.length:
            return scores
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = scores[:, self.end]
        return only


def generated(model: Any, prompts: list[list[int]], never: set[int], end: int, beams: int) -> list[list[int]]:
    """Return the tokens of prompts and continuations that generate() finds, in one batch with padding on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[end] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    found = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        num_beams=beams,
        length_penalty=0.0,
        early_stopping=False if beams > 1 else None,
        max_new_tokens=LIMIT + 1,
        pad_token_id=end,
        suppress_tokens=sorted(never) or None,
        logits_processor=transformers.LogitsProcessorList([EndAtLimit(end, width + LIMIT)]),
    )
    rows = [row[width - len(prompt) :] for row, prompt in zip(found.tolist(), prompts, strict=True)]
    return [row[: row.index(end, len(prompt))] for row, prompt in zip(rows, prompts, strict=True)]


PROMPTS = [
    "der kleine Frosch",
    "wir",
    "the big dog runs over the house! the small tree sleeps under the dog and der Hund läuft über die Straße und  wir",
    "Привет, 😀 naïve",
    "ein Haus ",
]


@pytest.mark.slow_but_every(3)
@pytest.mark.filterwarnings("ignore:.*generation flags.*")
@pytest.mark.parametrize("form", ["gpt2", "gpt_neox", "llama2", "llama3", "mistral", "qwen2", "qwen3"])
def test_greedy_and_beam_text_are_the_same(form: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"mistral": {"sliding_window": 5}, "qwen3": {"head_dim": 12}}.get(form, {})
    model, encoder = published(form, tmp_path / "hf", **changes)
    bundle = import_language_model(tmp_path / "hf").bundle
    bundle.save(tmp_path / "ours", "card")
    ours = load_language_model(tmp_path / "ours", precision="float32")
    prompts = [encoder(text).input_ids for text in PROMPTS]
    texts = [[*bundle.prompt_prefix, *bundle.tokenizer.encode(text)] for text in PROMPTS]
    assert isinstance(bundle.tokenizer, FastTokenizer)
    order = bundle.tokenizer.library_ids
    assert [[order[token] for token in text] for text in texts] == prompts
    never = {order[new] for new in (PAD, BOS, UNK)} - {order[EOS]}
    lengths = set()
    for beams in (1, 4):
        expected = generated(model, prompts, never, encoder.eos_token_id, beams)
        found = ours.generate(PROMPTS, temperature=0, beam_size=beams, max_new_tokens=LIMIT)
        for prompt, row, (best,) in zip(prompts, expected, found, strict=True):
            before = encoder.decode(prompt, skip_special_tokens=True)
            whole = encoder.decode(row, skip_special_tokens=True)
            assert whole.startswith(before)
            assert best.text == whole[len(before) :]
            lengths.add(len(row) - len(prompt))
            assert best.finish_reason == "end" or len(row) - len(prompt) == LIMIT
    assert len(lengths) > 1


def test_streamed_and_scored_texts(tmp_path: Path) -> None:
    model, encoder = published("llama2", tmp_path / "hf")
    ours = LanguageModel(import_language_model(tmp_path / "hf").bundle)
    whole = [ours.generate(prompt, temperature=0, max_new_tokens=LIMIT)[0].text for prompt in PROMPTS]
    assert ours.bundle.tokenizer.decode_continuation(ours.bundle.tokenizer.encode("wir")) == " wir"
    assert ["".join(ours.stream(prompt, temperature=0, max_new_tokens=LIMIT)) for prompt in PROMPTS] == whole
    text = "wir sehen den Hund"
    ids = torch.tensor([[*encoder(text).input_ids, encoder.eos_token_id]])
    with torch.inference_mode():
        log_probs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
    assert ours.score([text])[0].log_probability == pytest.approx(float(log_probs.sum()), abs=1e-3)


@pytest.mark.slow
@torch.inference_mode()
def test_answers_to_questions_are_scored_as_by_transformers(tmp_path: Path) -> None:
    """A GPT-2 with random weights: the sum and the mean over each answer's tokens, after an example."""
    encoder = tokenizer("gpt2")
    end = encoder.eos_token_id
    model = drawn(config("gpt2", vocab_size=len(encoder), bos_token_id=end, eos_token_id=end))
    encoder.save_pretrained(saved(model, tmp_path / "hf"))
    ours = LanguageModel(import_language_model(tmp_path / "hf").bundle)
    questions = [
        Question("der Hund ist", (" groß", " ein kleiner Frosch", " alt"), 0, 1),
        Question("wir sehen", (" den Baum", " die Katze und den Hund"), 1, 2),
        Question("die Katze\nund", (" der Hund", " du", " er", " sie alle"), 2, 3),
    ]
    prompts = few_shot_prompts(questions, 1)
    found = score_answers(ours, prompts, [question.answers for question in questions])
    for prompt, question, answers in zip(prompts, questions, found, strict=True):
        assert not isinstance(answers, LengthError)
        before = len(encoder(prompt).input_ids)
        for answer, values in zip(question.answers, answers, strict=True):
            ids = torch.tensor([[encoder.bos_token_id, *encoder(prompt + answer).input_ids]])
            log_probs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[before:, 0]
            assert values == pytest.approx(log_probs.tolist(), abs=1e-3)
            assert sum(values) == pytest.approx(float(log_probs.sum()), abs=1e-3)


@pytest.mark.parametrize("form", ["sentencepiece", "llama2", "gpt2"])
@pytest.mark.slow
def test_streams_of_random_tokens_join_to_the_text_of_generate(form: str, tmp_path: Path) -> None:
    if form == "sentencepiece":
        sentencepiece_folder(tmp_path)
    else:
        encoder = tokenizer(form)
        ids = {"bos_token_id": encoder.bos_token_id, "eos_token_id": encoder.eos_token_id}
        saved(drawn(config({"llama2": "llama"}.get(form, form), vocab_size=len(encoder), **ids)), tmp_path)
        encoder.save_pretrained(tmp_path)
    ours = LanguageModel(import_language_model(tmp_path).bundle)
    decode, incomplete = ours.bundle.tokenizer.decode, 0
    for seed in range(12):
        options: dict[str, Any] = {"temperature": 200, "seed": seed, "max_new_tokens": 3 + seed, "stop": ("q", "qu")}
        (whole,) = ours.generate("ein", **options)
        assert "".join(ours.stream("ein", **options)) == whole.text
        incomplete += decode(whole.ids).endswith("�") and not whole.text.endswith("�")
    assert incomplete > 0


def test_what_comes_before_a_prompt(tmp_path: Path) -> None:
    published("gpt2", tmp_path / "gpt2")
    bundle = import_language_model(tmp_path / "gpt2").bundle
    assert bundle.prompt_prefix == ()
    first = LanguageModel(bundle).generate(temperature=0, max_new_tokens=3)[0]  # begins with <|endoftext|>
    with torch.inference_mode():
        assert (
            first.tokens[0]
            == bundle.tokenizer.display(bundle.model(torch.tensor([[EOS]]))[0, -1:].argmax(-1).tolist())[0]
        )
    published("llama3", tmp_path / "llama3")
    assert import_language_model(tmp_path / "llama3").bundle.prompt_prefix == (BOS,)
    published("qwen2", tmp_path / "qwen2")
    bundle = import_language_model(tmp_path / "qwen2").bundle
    bundle.save(tmp_path / "ours", "card")
    assert LanguageModelBundle.load(tmp_path / "ours").prompt_prefix == ()


def folder_with_tokenizer(form: str, folder: Path, **changes: Any) -> Path:
    """Write the folder of a small random model, and change keys of tokenizer_config.json."""
    encoder = tokenizer(form)
    ids = {"bos_token_id": encoder.bos_token_id, "eos_token_id": encoder.eos_token_id}
    family = {"llama2": "llama", "llama3": "llama"}.get(form, form)
    saved(drawn(config(family, vocab_size=len(encoder), **ids)), folder)
    encoder.save_pretrained(folder)
    change(folder / "tokenizer_config.json", **changes)
    return folder


def assert_same_ids(folder: Path) -> None:
    """Compare what is before a text, and its tokens, with the tokenizer that `transformers` loads."""
    encoder, bundle = transformers.AutoTokenizer.from_pretrained(folder), import_language_model(folder).bundle
    assert isinstance(bundle.tokenizer, FastTokenizer)
    order = bundle.tokenizer.library_ids
    for text in PROMPTS:
        found = [*bundle.prompt_prefix, *bundle.tokenizer.encode(text)]
        assert [order[token] for token in found] == encoder(text).input_ids


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("gpt2", {"add_bos_token": True}),
        ("gpt2", {"add_eos_token": True, "tokenizer_class": "GPT2Tokenizer"}),
        ("gpt_neox", {"add_bos_token": True, "tokenizer_class": "GPTNeoXTokenizer"}),
        ("llama2", {"add_bos_token": False}),
        ("llama2", {"add_eos_token": True}),
        ("llama3", {"add_bos_token": False}),
        ("mistral", {"add_bos_token": True}),
    ],
)
def test_only_the_template_puts_tokens_before_a_text(form: str, changes: dict[str, Any], tmp_path: Path) -> None:
    assert_same_ids(folder_with_tokenizer(form, tmp_path, **changes))


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("gpt2", {"add_prefix_space": True, "tokenizer_class": "GPT2TokenizerFast"}),
        ("gpt2", {"add_prefix_space": True, "tokenizer_class": None}),
        ("gpt2", {"add_prefix_space": True, "tokenizer_class": "PreTrainedTokenizerFast"}),
        ("gpt_neox", {"add_prefix_space": True, "tokenizer_class": "GPTNeoXTokenizer"}),
        ("qwen2", {"add_prefix_space": True, "tokenizer_class": "PreTrainedTokenizerFast"}),
        ("qwen3", {"add_prefix_space": True, "tokenizer_class": "Qwen2Tokenizer"}),
        ("llama2", {"add_prefix_space": True}),
        ("llama3", {"add_prefix_space": False, "tokenizer_class": "LlamaTokenizer"}),
        ("mistral", {"add_prefix_space": True, "tokenizer_class": "LlamaTokenizer"}),
    ],
)
def test_the_tokenizer_class_decides_about_a_space_before_a_text(
    form: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert_same_ids(folder_with_tokenizer(form, tmp_path, **changes))


@pytest.mark.parametrize("name", ["GPTNeoXTokenizer", "PreTrainedTokenizerFast"])
def test_gpt_neox_drops_the_template(name: str, tmp_path: Path) -> None:
    folder_with_tokenizer("gpt_neox", tmp_path, tokenizer_class=name)
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    (begin,) = (token["id"] for token in added if token["content"] == "<|endoftext|>")
    template = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", begin)])
    change(tmp_path / "tokenizer.json", post_processor=json.loads(template.__getstate__()))
    assert_same_ids(tmp_path)


def test_a_sentencepiece_model(tmp_path: Path) -> None:
    model, proto = sentencepiece_folder(tmp_path)
    found = import_language_model(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    text = "der kleine Frosch 漢"
    ids = [processor.bos_id(), *processor.encode(text)]
    found.bundle.save(tmp_path / "ours", found.card)
    ours = load_language_model(tmp_path / "ours", precision="float32")
    (row,) = generated(model, [ids], {0, 1}, 2, 1)
    best = ours.generate(text, temperature=0, max_new_tokens=LIMIT)[0]
    assert text + best.text == processor.decode(row)


def test_gpt2_files_of_the_first_form(tmp_path: Path) -> None:
    _, encoder = published("gpt2", tmp_path)
    learned = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    vocabulary = {**learned["vocab"], encoder.eos_token: encoder.eos_token_id}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in learned["merges"]))
    expected = import_language_model(tmp_path).bundle.tokenizer
    (tmp_path / "tokenizer.json").unlink()
    found = import_language_model(tmp_path).bundle.tokenizer
    for text in (*PROMPTS, encoder.eos_token):
        assert found.encode(text) == expected.encode(text)
        assert found.decode(found.encode(text)) == text
        assert EOS not in found.encode(text)
    for adds_begin in (True, False):
        change(tmp_path / "tokenizer_config.json", add_bos_token=adds_begin, tokenizer_class="GPT2Tokenizer")
        assert_same_ids(tmp_path)
    change(tmp_path / "tokenizer_config.json", add_eos_token=True)
    with pytest.raises(BundleError, match="add_eos_token = true is not supported"):
        import_language_model(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published("llama2", tmp_path / "hf")
    source = f"huggingface:{tmp_path / 'hf'}"
    import_(source, tmp_path / "ours")
    assert re.search(r"ours: \d+ tokens, from huggingface:", capsys.readouterr().out)
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "A Llama model with" in card
    assert "Special tokens before a prompt: <s>" in card
    assert isinstance(headway.load(tmp_path / "ours"), LanguageModel)
    with pytest.raises(ConfigError, match="a language model has no languages to choose"):
        import_from(source, target_language="de")


def test_several_tokens_may_end_a_text(tmp_path: Path) -> None:
    """As in chat models: the search stops at each of them."""
    model, encoder = published("qwen2", tmp_path / "hf")
    alone = LanguageModel(import_language_model(tmp_path / "hf").bundle).generate(
        PROMPTS[0], temperature=0, max_new_tokens=LIMIT
    )[0]
    other = encoder.convert_tokens_to_ids(encoder.tokenize(alone.text))[2]  # a token that it generates
    change(tmp_path / "hf" / "generation_config.json", eos_token_id=[encoder.eos_token_id, other])
    bundle = import_language_model(tmp_path / "hf").bundle
    bundle.save(tmp_path / "ours", "card")
    ours = load_language_model(tmp_path / "ours", precision="float32")
    for beams in (1, 4):
        expected = model.generate(
            **encoder(PROMPTS[0], return_tensors="pt"),
            do_sample=False,
            num_beams=beams,
            length_penalty=0.0,
            eos_token_id=[encoder.eos_token_id, other],
            pad_token_id=encoder.eos_token_id,
            max_new_tokens=LIMIT,
        )[0]
        found = ours.generate(PROMPTS[0], temperature=0, beam_size=beams, max_new_tokens=LIMIT)[0]
        kept = [token for token in expected.tolist() if token not in (encoder.eos_token_id, other)]
        assert PROMPTS[0] + found.text == encoder.decode(kept)
        assert found.finish_reason == "end"
    export_to("huggingface", ours.bundle, tmp_path / "back")
    assert len(transformers.GenerationConfig.from_pretrained(tmp_path / "back").eos_token_id) == 2


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
MIXED = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "layer_types": None}
PHI = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true is not supported"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention = true is not supported; expected false"),
        ("gpt2", {"activation_function": "mish"}, "activation_function = 'mish' is not supported; supported: gelu_new"),
        ("gpt2", {"n_embd": 0}, "n_embd = 0: expected a whole number of at least 1"),
        ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "expected GPT2LMHeadModel for GPT-2"),
        ("gpt_neox", {"attention_bias": False}, "attention_bias = false is not supported; expected true for GPT-NeoX"),
        ("llama", {"rope_parameters": None, "rope_scaling": DYNAMIC}, "rope_type = 'dynamic' is not supported; supp"),
        ("llama", {"rope_parameters": PHI}, "rope_type = 'longrope' is not supported; supported: default, linear"),
        ("llama", {"rope_parameters": {**YARN, "mscale": 1.0}}, "mscale = 1.0 in rope_parameters of type 'yarn'"),
        ("llama", {"rope_parameters": {**YARN, "truncate": False}}, "truncate = false in yarn scaling"),
        ("llama", {"rope_parameters": {**LLAMA3, "factor": 0.5}}, "factor.*greater than or equal to 1"),
        ("llama", {"attention_bias": True}, "attention_bias = True and mlp_bias = False: Headway needs the same"),
        ("llama", {"num_key_value_heads": 3}, "num_kv_heads = 3 does not divide num_heads = 4"),
        ("llama", {"eos_token_id": ["</s>"]}, r"eos_token_id = \['</s>'\]: expected the id of one token, or several"),
        ("llama", {"bos_token_id": 99}, "the start token's id 99 is not in the vocabulary, which has 90 tokens"),
        ("llama", {"sliding_window": 8}, "sliding_window = 8 is not supported for Llama"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4} is not supported for Llama"),
        ("llama", {"intermediate_size": 40}, "shape \\[48, 32\\]; config.json requires \\[40, 32\\]"),
        ("llama", {"num_hidden_layers": 1}, r"unknown tensor 'model\.layers\.1\.input_layernorm"),
        ("llama", {"num_hidden_layers": 3}, r"tensor 'model\.layers\.2\.input_layernorm.weight' is missing \(9 in"),
        ("llama", {"vocab_size": 91}, "shape \\[90, 32\\]; config.json requires \\[91, 32\\]"),
        ("qwen2", MIXED, "layer_types .* has the values full_attention, sliding_att"),
        ("qwen3", {"attention_bias": True}, "attention_bias = true is not supported"),
        ("qwen3", {"model_type": "gemma3"}, "model_type = 'gemma3' is not supported; supported: gpt2"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(drawn(config(family, **IDS)), tmp_path)
    (tmp_path / "generation_config.json").unlink()
    change(tmp_path / "config.json", **changes)
    with pytest.raises((BundleError, ConfigError), match=message) as caught:
        import_causal(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "expected for llama: tokenizer.json, or tokenizer.model"),
        (
            lambda f: change(f / "tokenizer_config.json", add_prefix_space=False),
            r"add_prefix_space = false contradicts tokenizer\.json; set it to true to use tokenizer\.json as it is",
        ),
        (
            lambda f: change(f / "tokenizer.json", pre_tokenizer=None),
            r"add_prefix_space = null contradicts tokenizer\.json; set it to false to use tokenizer\.json as it is",
        ),
        (
            lambda f: change(f / "tokenizer_config.json", add_prefix_space=True, tokenizer_class="Qwen2Tokenizer"),
            r"add_prefix_space = true is not supported, because tokenizer\.json has no ByteLevel pre_tokenizer",
        ),
        (
            lambda f: change(f / "tokenizer.json", post_processor={"type": "BertProcessing"}),
            "a post_processor of type BertProcessing that puts tokens after a text is not supported",
        ),
    ],
)
def test_a_tokenizer_that_is_not_supported_is_named(
    damage: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    published("llama2", tmp_path)
    damage(tmp_path)
    with pytest.raises(BundleError, match=message):
        import_language_model(tmp_path)


def test_a_tokenizer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    saved(drawn(config("qwen2", **IDS)), tmp_path)
    tokenizer("qwen2").save_pretrained(tmp_path)
    with pytest.raises(BundleError, match=r"token '.*' has the id 332, but vocab_size in config\.json is 90"):
        import_language_model(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_peak_memory_is_little_more_than_the_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "vocab_size": 8000}
    model = transformers.AutoModelForCausalLM.from_config(config("llama", **{**IDS, **sizes}))
    saved(model.to(dtype), tmp_path, max_shard_size="50MB")
    code = """
import re, sys
from pathlib import Path
import torch
from headway.interop.exporting import export_to
from headway.interop.huggingface.causal_importing import import_causal

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

before = peak()
model = import_causal(Path(sys.argv[1])).model
print((peak() - before) / sum(weight.numel() * 4 for weight in model.parameters()))
"""
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 1.2
