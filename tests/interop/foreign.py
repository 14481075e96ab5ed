"""Small models of Hugging Face families, with tokenizers trained on the fly, for the tests of this folder.

Weights are so large that every choice is clear and different sentences have different results.
"""

from __future__ import annotations

import importlib
import io
import json
import random
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sacremoses
import sentencepiece
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of transformers and its dependencies
    transformers: Any = importlib.import_module("transformers")

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

WORDS = (
    "der die das ein kleine große Frosch Hund Haus Baum läuft schläft über unter und nicht wir sehen hören gehen the a "
    "small big frog dog house tree runs sleeps over under and not we see hear go naïve café größer Straße 12 2024 3,5 "
    "Привет мир собака дом 😀 ﬁn"
)


@cache
def corpus(lines: int = 400) -> tuple[str, ...]:
    draw, words = random.Random(0), WORDS.split()
    return tuple(" ".join(draw.choices(words, k=draw.randint(3, 9))) + draw.choice(".!?") for _ in range(lines))


SENTENCES = [
    "der kleine Frosch schläft.",
    "the big dog runs over the house!",
    "wir sehen 2024 eine naïve Straße",
    "Привет, мир! 😀",
    "  two  spaces\tand a tab  ",
    "a",
    "und nicht und nicht und nicht",
    "ﬁn ½ Ａ é x\u0308 \u200b zero width",
]


T5_IDS = (("pad_id", 0), ("eos_id", 1), ("unk_id", 2), ("bos_id", -1))


@cache
def spm(
    model_type: str = "unigram",
    seed: int = 0,
    *,
    byte_fallback: bool = False,
    vocab_size: int = 220,
    options: tuple[tuple[str, Any], ...] = (),
) -> bytes:
    """Train a SentencePiece model with the default normalization (nmt_nfkc), and further ``options`` of the trainer."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()[seed * 100 :]),
        model_writer=written,
        model_type=model_type,
        vocab_size=vocab_size + 256 * byte_fallback,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
        **dict(options),
    )
    return written.getvalue()


def pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}


def taught(model: Any, tokenizer: Any, seed: int, steps: int = 30, prompts: Sequence[str] = ("",)) -> Any:
    """Train ``model`` for some steps to copy a text after a prompt: a random one would repeat itself and never end."""
    torch.manual_seed(seed)
    model.apply(lambda layer: _redraw(layer, 0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    draw = random.Random(seed)
    model.train()
    for _ in range(steps):
        lines = draw.sample(corpus(), 8)
        sources = [prompts[number % len(prompts)] + line for number, line in enumerate(lines)]
        batch, targets = (tokenizer(texts, return_tensors="pt", padding=True) for texts in (sources, lines))
        labels = targets.input_ids.masked_fill(targets.attention_mask == 0, -100)
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def _redraw(layer: torch.nn.Module, spread: float) -> None:
    if isinstance(layer, torch.nn.Linear | torch.nn.Embedding) and layer.weight.requires_grad:
        torch.nn.init.normal_(layer.weight, std=spread)


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Save model and tokenizer in one folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def marian(folder: Path, seed: int = 0, *, languages: Sequence[str] = (), **changes: Any) -> Path:
    """Write an OPUS-MT folder: two SentencePiece models, and one vocabulary that ends with <pad>."""
    folder.mkdir(parents=True)
    vocabulary = {"</s>": 0, "<unk>": 1}
    source, target = spm("unigram", 0), spm("unigram", 1)
    for piece in (*(f">>{language}<<" for language in languages), *pieces(source)[3:], *pieces(target)[3:]):
        vocabulary.setdefault(piece, len(vocabulary))
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.MarianTokenizer(
            *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")),
            source_lang="de",
            target_lang="en",
        )
    pad = vocabulary["<pad>"]
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": 0}
    options = {"vocab_size": len(vocabulary), **special, "forced_eos_token_id": 0, "activation_function": "swish"}
    config = transformers.MarianConfig(**{**SIZES, **options, "scale_embedding": True, **changes})
    return saved(taught(transformers.MarianMTModel(config), tokenizer, seed), tokenizer, folder)


def m2m(folder: Path, seed: int = 0) -> Path:
    """Write an M2M-100 folder: one SentencePiece model, its pieces numbered by vocab.json, and 100 languages."""
    folder.mkdir(parents=True)
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {piece: index + 1 for index, piece in enumerate(pieces(spm("bpe"))) if index >= 3}
    (folder / "sentencepiece.bpe.model").write_bytes(spm("bpe"))
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    tokenizer = transformers.M2M100Tokenizer(
        str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), src_lang="de", tgt_lang="en"
    )
    config = transformers.M2M100Config(**SIZES, vocab_size=len(vocabulary) + 108, decoder_start_token_id=2)
    return saved(taught(transformers.M2M100ForConditionalGeneration(config), tokenizer, seed), tokenizer, folder)


NLLB_LANGUAGES = ["deu_Latn", "eng_Latn", "rus_Cyrl"]


def nllb(folder: Path, seed: int = 0) -> Path:
    """Write an NLLB folder: tokenizer.json with byte-pair encoding of words that begin with a bar, and languages."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=220, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    learned = json.loads(library.to_str())["model"]
    tokenizer = transformers.NllbTokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        extra_special_tokens=NLLB_LANGUAGES,
        src_lang="deu_Latn",
        tgt_lang="eng_Latn",
    )
    config = transformers.M2M100Config(**SIZES, vocab_size=len(tokenizer) + 5, decoder_start_token_id=2)
    return saved(taught(transformers.M2M100ForConditionalGeneration(config), tokenizer, seed), tokenizer, folder)


def bart(folder: Path, seed: int = 0) -> Path:
    """Write a BART folder: tokenizer.json with byte-level byte-pair encoding."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(corpus(), trainer)
    learned = json.loads(library.to_str())["model"]
    tokenizer = transformers.BartTokenizer(vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]])
    config = transformers.BartConfig(**SIZES, vocab_size=len(tokenizer), forced_bos_token_id=0)
    return saved(taught(transformers.BartForConditionalGeneration(config), tokenizer, seed), tokenizer, folder)


MOSES_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@cache
def moses() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Learn pieces and merges in fairseq's form from words that Moses's rules split; omit a few pieces."""
    library = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rules = sacremoses.MosesTokenizer(lang="de")
    texts = [rules.tokenize(text, return_str=True, aggressive_dash_splits=True) for text in corpus()]
    library.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, end_of_word_suffix="</w>", show_progress=False)
    )
    learned = json.loads(library.to_str())["model"]
    return tuple(sorted(learned["vocab"]))[:-5], tuple((left, right) for left, right in learned["merges"])


def fsmt_tokenizer(folder: Path, **changes: Any) -> Any:
    """Write the files of an FSMT tokenizer, German to English: a vocabulary for each side, in different orders."""
    folder.mkdir(parents=True, exist_ok=True)
    known, merges = moses()
    for name, tokens in (("src", known), ("tgt", known[::-1])):
        numbered = {token: index for index, token in enumerate((*MOSES_SPECIAL, *tokens))}
        (folder / f"vocab-{name}.json").write_text(json.dumps(numbered), encoding="utf-8")
    (folder / "merges.txt").write_text("".join(f"{left} {right} 1\n" for left, right in merges), encoding="utf-8")
    names = ("vocab-src.json", "vocab-tgt.json", "merges.txt")
    return transformers.FSMTTokenizer(["de", "en"], *(str(folder / name) for name in names), **changes)


def fsmt(folder: Path, seed: int = 0) -> Path:
    """Write an FSMT folder like those on the Hub."""
    tokenizer = fsmt_tokenizer(folder)
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    config = transformers.FSMTConfig(**SIZES, **sizes, langs=["de", "en"], decoder_start_token_id=2)
    model = transformers.FSMTForConditionalGeneration(config)
    for layer in model.modules():
        if type(layer).__name__ == "SinusoidalPositionalEmbedding":
            layer.weight.requires_grad_(False)  # so that they stay sinusoids
    return saved(taught(model, tokenizer, seed, steps=200), tokenizer, folder)


MBART_LANGUAGES = ["de_DE", "en_XX", "ru_RU"]


def mbart50(folder: Path, languages: Sequence[str] = MBART_LANGUAGES) -> Path:
    """Write an mBART-50 folder like those on the Hub: SentencePiece numbered as in fairseq, without tokenizer.json."""
    folder.mkdir(parents=True)
    (folder / "sentencepiece.bpe.model").write_bytes(spm())
    settings = {"additional_special_tokens": [*languages], "src_lang": "de_DE", "tgt_lang": "en_XX"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MBart50Tokenizer", **settings}))
    size = len(pieces(spm())) + 1 + len(languages) + 1
    config = transformers.MBartConfig(**SIZES, vocab_size=size, decoder_start_token_id=2)
    transformers.MBartForConditionalGeneration(config).save_pretrained(folder)
    return folder


def mbart(folder: Path, seed: int = 0) -> Path:
    """Write the same folder with trained weights and all languages, which its tokenizer requires."""
    languages = importlib.import_module("transformers.models.mbart50.tokenization_mbart50").FAIRSEQ_LANGUAGE_CODES
    mbart50(folder, languages)
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(folder)
    model = transformers.MBartForConditionalGeneration.from_pretrained(folder)
    taught(model, tokenizer, seed).save_pretrained(folder)
    return folder


def pegasus(folder: Path, seed: int = 0) -> Path:
    """Write a Pegasus folder: tokenizer.json with SentencePiece's pieces after 106 special tokens."""
    folder.mkdir(parents=True)
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm())
    special = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103)), "<unk>"]
    vocabulary = [(name, 0.0) for name in special]
    vocabulary += [(piece, processor.get_score(index)) for index, piece in enumerate(pieces(spm())) if index >= 3]
    tokenizer = transformers.PegasusTokenizer(vocab=vocabulary)
    config = transformers.PegasusConfig(**SIZES, vocab_size=len(tokenizer))
    model = taught(transformers.PegasusForConditionalGeneration(config), tokenizer, seed, steps=100)
    return saved(model, tokenizer, folder)


T5_SIZES: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,  # generate() of transformers needs the same number in the decoder
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}


def untied(model: Any) -> Any:
    """Give a model an output projection of its own: new models of `transformers` 5 have a tied one."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def t5(folder: Path, seed: int = 0) -> Path:
    """Write a folder like those of T5 v1.1: tokenizer.json with SentencePiece's pieces, <extra_id_0> and so on."""
    folder.mkdir(parents=True)
    (folder / "spiece.model").write_bytes(spm(options=T5_IDS))
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder)
    config = transformers.T5Config(vocab_size=len(tokenizer) + 28, **T5_SIZES)
    model = untied(transformers.T5ForConditionalGeneration(config))
    return saved(taught(model, tokenizer, seed, steps=40), tokenizer, folder)


def mt5(folder: Path, seed: int = 0) -> Path:
    """Write a folder like those of mT5: only the SentencePiece model, which contains all tokens."""
    folder.mkdir(parents=True)
    (folder / "spiece.model").write_bytes(spm(options=T5_IDS))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "additional_special_tokens": []})
    )
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder, extra_ids=0, additional_special_tokens=[])
    config = transformers.MT5Config(vocab_size=len(pieces(spm(options=T5_IDS))) + 12, **T5_SIZES)
    model = untied(transformers.MT5ForConditionalGeneration(config))
    taught(model, tokenizer, seed, steps=30).save_pretrained(folder)
    return folder


MADLAD_LANGUAGES = ["de", "en", "zh_Latn"]


def madlad(folder: Path, seed: int = 0) -> Path:
    """Write a folder like those of MADLAD-400: SentencePiece's own ids, and a token for each target language.
    The model copies a text with the token before it.
    """
    folder.mkdir(parents=True)
    symbols = [*(f"<2{language}>" for language in MADLAD_LANGUAGES), "<2translate>"]
    model_proto = spm(options=(("user_defined_symbols", ",".join(symbols)),))
    (folder / "spiece.model").write_bytes(model_proto)
    settings = {"tokenizer_class": "T5Tokenizer", "pad_token": "<s>", "extra_ids": 0, "additional_special_tokens": []}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder)
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = transformers.T5Config(**{**T5_SIZES, **special, "vocab_size": len(tokenizer)})
    model = untied(transformers.T5ForConditionalGeneration(config))
    prompts = [f"<2{language}> " for language in MADLAD_LANGUAGES]
    return saved(taught(model, tokenizer, seed, steps=40, prompts=prompts), tokenizer, folder)


def byt5(folder: Path, seed: int = 0) -> Path:
    """Write a folder like those of ByT5, which contains no vocabulary."""
    tokenizer = transformers.ByT5Tokenizer()
    config = transformers.T5Config(vocab_size=384, **T5_SIZES, tokenizer_class="ByT5Tokenizer")
    model = untied(transformers.T5ForConditionalGeneration(config))
    return saved(taught(model, tokenizer, seed, steps=30), tokenizer, folder)
