"""Small decoder-only models of `transformers`, with tokenizers in the forms in which the families publish them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from foreign import corpus, pieces, saved, spm, transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn.utils.rnn import pad_sequence

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
END = "<|endoftext|>"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def config(family: str, **changes: Any) -> Any:
    """Return the configuration of a small model."""
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 160, **changes}
        return transformers.GPT2Config(**sizes)
    name = {"gpt_neox": "GPTNeoX"}.get(family, family.capitalize())
    sizes = SMALL if family == "gpt_neox" else GROUPED
    return getattr(transformers, f"{name}Config")(**{**sizes, **changes})


def drawn(chosen: Any, seed: int = 0) -> Any:
    """Return a model with random weights, so large that every part affects the logits."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(chosen).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_norm = weight.dim() == 1 and name.endswith("weight")
            weight.copy_(torch.randn_like(weight) * 0.3 + is_norm)
    return model


@cache
def byte_level(regex: str | None = None) -> str:
    """Learn byte-level byte-pair encoding; return the library's JSON."""
    library = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    split = [] if regex is None else [pre_tokenizers.Split(Regex(regex), "isolated")]
    library.pre_tokenizer = pre_tokenizers.Sequence([*split, words])
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    )
    return str(library.to_str())


def tokenizer(family: str) -> Any:
    """Return a tokenizer in the published form of a family; "llama2" and "llama3" are two forms of Llama's."""
    if family == "llama2":
        learned = json.loads(_sentencepiece_like())["model"]
        return transformers.LlamaTokenizer(
            vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]], add_bos_token=True
        )
    library = tokenizers.Tokenizer.from_str(byte_level(_QWEN_WORDS if family in ("llama3", "qwen2", "qwen3") else None))
    if family == "gpt_neox":
        library.add_special_tokens([AddedToken(END, special=True), AddedToken("<|padding|>", special=True)])
        library.add_tokens([AddedToken(" " * size, normalized=True) for size in (3, 2)])
        names = {"bos_token": END, "eos_token": END, "unk_token": END}
    elif family == "llama3":
        library.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
        begin = library.token_to_id("<|begin_of_text|>")
        template = processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[("<|begin_of_text|>", begin)]
        )
        library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    elif family in ("qwen2", "qwen3"):
        library.normalizer = normalizers.NFC()
        library.add_special_tokens([END, "<|im_start|>", "<|im_end|>"])
        names = {"eos_token": END, "pad_token": END}
    else:
        library.add_special_tokens([END])
        names = {"bos_token": END, "eos_token": END, "unk_token": END}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)


@cache
def _sentencepiece_like() -> str:
    """Learn byte-pair encoding of words that begin with a bar, with bytes for unknown characters, as Llama 2's."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=420, limit_alphabet=45, special_tokens=special, max_token_length=8, show_progress=False
    )
    library.train_from_iterator(corpus(), trainer)
    return str(library.to_str())


def taught(model: Any, tokenizer: Any, seed: int = 0, steps: int = 60) -> Any:
    """Train ``model`` for some steps on sentences with an end: a random model would repeat itself and never end."""
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    draw, end = random.Random(seed), tokenizer.eos_token_id
    model.train()
    for _ in range(steps):
        rows = [torch.tensor([*tokenizer(text).input_ids, end]) for text in draw.sample(corpus(), 8)]
        labels = pad_sequence(rows, batch_first=True, padding_value=-100)
        loss = model(input_ids=labels.clamp(min=0), attention_mask=(labels >= 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def published(form: str, folder: Path, **changes: Any) -> tuple[Any, Any]:
    """Write the folder of a trained model, and return the model and its tokenizer."""
    family = {"llama2": "llama", "llama3": "llama"}.get(form, form)
    encoder = tokenizer(form)
    ids = {"bos_token_id": encoder.bos_token_id, "eos_token_id": encoder.eos_token_id}
    chosen = config(family, vocab_size=len(encoder) + 3, **{**ids, **changes})
    model = taught(transformers.AutoModelForCausalLM.from_config(chosen), encoder)
    saved(model, encoder, folder)
    return model, encoder


def sentencepiece_folder(folder: Path) -> tuple[Any, bytes]:
    """Write a Llama folder with SentencePiece's own file, as the first Llama had; return the model and the file."""
    proto = spm("bpe", byte_fallback=True)
    torch.manual_seed(0)
    chosen = config("llama", vocab_size=len(pieces(proto)), bos_token_id=1, eos_token_id=2)
    model = drawn(chosen)
    model.save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(proto)
    return model, proto
