"""Packages of Argos Translate made from small models of Headway's, and what argostranslate translates with them.

    .venv/bin/python tests/interop/argos_packages.py build
    python3 -m venv /tmp/argos && /tmp/argos/bin/pip install argostranslate==1.11.0
    /tmp/argos/bin/python tests/interop/argos_packages.py record

The first command trains the models to copy their source, and writes ``recorded/argos-*.argosmodel``; the last
writes argostranslate's texts to ``recorded/argos_translations.json``. Argos downloads a model that splits texts
into sentences; the script replaces it by a function that returns the whole text.
"""

# mypy: ignore-errors
# Half of it runs without Headway, and the other half without argostranslate.

from __future__ import annotations

import io
import json
import os
import random
import sys
import tempfile
import types
import zipfile
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded")
TRANSLATIONS = RECORDED / "argos_translations.json"
WORDS = "der die das kleine große Frosch Hund Haus schläft läuft nicht wir sehen the small big frog dog house we see"
PREFIX = ">>en<<"
FORMS = ("sentencepiece", "prefix", "bpe")


def corpus() -> list[str]:
    draw, words = random.Random(0), WORDS.split()
    return [" ".join(draw.choices(words, k=draw.randint(1, 8))) + draw.choice(".!?") for _ in range(600)]


TEXTS = [
    *("der kleine Frosch schläft.", "we see the big dog!", "Haus & Hund", "nicht", 'Ist das "das" Haus?', "a-b  c"),
    *("ein Frosch, zwei Hunde", "the dog's house", "wir_sehen", "große große große große Häuser!", "Ｆｒｏｓｃｈ ½"),
    *corpus()[:12],
]


def packed(form: str) -> Path:
    return RECORDED / f"argos-{form}.argosmodel"


def merges() -> list[tuple[str, str]]:
    """Return merges in the form of subword-nmt: of every second word, from left to right."""
    pairs: dict[tuple[str, str], None] = {}
    for word in WORDS.split()[::2]:
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        for end in range(2, len(symbols) + 1):
            pairs.setdefault(("".join(symbols[: end - 1]), symbols[end - 1]))
    return list(pairs)


def sentencepiece_model() -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=written, vocab_size=90, hard_vocab_limit=False, minloglevel=2
    )
    return written.getvalue()


def build(form: str) -> None:
    """Train a model to copy its source, and write its package."""
    import torch
    from torch.nn import functional as F

    from headway.bundle import Bundle, TaskConfig
    from headway.interop.ctranslate2 import write_ctranslate2
    from headway.interop.tokenizer_exporting import unique_token_names
    from headway.models.registry import build_model
    from headway.models.transformer import TransformerConfig
    from headway.text.moses import MosesTokenizer
    from headway.text.sentencepiece import SentencePieceTokenizer, sentencepiece_pieces
    from headway.text.special_tokens import SpecialTokenTemplate

    special = ["<blank>", "<s>", "</s>", "<unk>", PREFIX]
    if form == "bpe":
        file, data = "bpe.model", "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges())
        letters = sorted({*"".join(corpus()), *"\"'&;,-abcdefghijklmnopqrstuvwxyzIH@"} - {" "})
        parts = [*letters, *(f"{letter}</w>" for letter in letters), *(left + right for left, right in merges())]
        tokenizer = MosesTokenizer("de", merges(), [*special, *parts], [4], rules="argos")
        content = data.encode()
        names = [part.removesuffix("</w>") if part.endswith("</w>") else f"{part}@@" for part in parts]
    else:
        file, content = "sentencepiece.model", sentencepiece_model()
        names = [piece for piece in sentencepiece_pieces(content, file) if piece not in special]
        tokenizer = SentencePieceTokenizer(content, [*special, *names], [4])
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    config = TransformerConfig.parse({**sizes, "norm": "pre"}, "script")
    torch.manual_seed(0)
    model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
    optimizer, draw = torch.optim.Adam(model.parameters(), lr=0.003), random.Random(1)
    encoded = [ids for ids in tokenizer.encode_batch(corpus()) if 3 not in ids]
    for _ in range(1500):
        rows = draw.sample(encoded, 32)
        before = [1, 4] if form == "prefix" else [1]
        sources = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in rows], batch_first=True)
        targets = [torch.tensor([*before, *ids, 2]) for ids in rows]
        target = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True)
        logits = model(sources, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(form, loss.item())
    template = SpecialTokenTemplate(source_suffix=())
    bundle = Bundle(
        TaskConfig(source_language="de", target_language="en"), model.eval(), tokenizer, tokenizer, template
    )
    metadata = {"package_version": "1.0", "argos_version": "1.11", "from_code": "de", "to_code": "en"}
    metadata |= {"from_name": "German", "to_name": "English"} | ({"target_prefix": PREFIX} if form == "prefix" else {})
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(packed(form), "w", zipfile.ZIP_DEFLATED) as archive:
        write_ctranslate2(bundle, Path(folder), max_positions=256)
        config_file = Path(folder) / "config.json"
        settings = json.loads(config_file.read_text())
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "decoder_start_token": "<s>"}
        config_file.write_text(json.dumps(settings | tokens))
        assert len(unique_token_names(tokenizer)) == len(special) + len(names)
        vocabulary = json.dumps([*special, *names], ensure_ascii=False)
        (Path(folder) / "shared_vocabulary.json").write_text(vocabulary, encoding="utf-8")
        for path in sorted(Path(folder).iterdir()):
            archive.writestr(f"translate-de_en-1_0/model/{path.name}", path.read_bytes())
        archive.writestr(f"translate-de_en-1_0/{file}", content)
        archive.writestr("translate-de_en-1_0/metadata.json", json.dumps(metadata))


def record() -> None:
    """Translate with argostranslate, and write its texts."""
    with tempfile.TemporaryDirectory() as home:
        os.environ |= dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), home)
        os.environ["ARGOS_COMPUTE_TYPE"] = "float32"  # by default, it chooses the fastest type of the processor
        from importlib.metadata import version

        import argostranslate.package
        import argostranslate.translate

        texts = {}
        for form in FORMS:
            argostranslate.package.install_from_path(packed(form))
            (installed,) = argostranslate.package.get_installed_packages()
            translation = argostranslate.translate.PackageTranslation(None, None, installed)
            translation.sentencizer = types.SimpleNamespace(split_sentences=lambda text: [text])
            texts[form] = [translation.translate(text) for text in TEXTS]
            argostranslate.package.uninstall(installed)
    recorded = {"argostranslate": version("argostranslate"), "sources": TEXTS, **texts}
    TRANSLATIONS.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    if sys.argv[1:] == ["build"]:
        for name in FORMS:
            build(name)
    elif sys.argv[1:] == ["record"]:
        record()
    else:
        sys.exit(__doc__)
