"""A model in NLLB's form with 256,000 tokens, cut to German and English text.

The weights are random. The tokenizer has learned 24,000 tokens from German and English text; its other tokens are
merges in other scripts, and of Latin letters that these languages do not have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import saved
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from headway.bundle import Bundle
from headway.decode import DecodingOptions, Request, SearchVocabulary, search
from headway.interop.importing import import_huggingface
from headway.interop.vocabulary_cut import VocabularyCut, choose_tokens, cut_vocabulary
from headway.text.base import BOS, EOS, PAD, UNK
from headway.weights import named_weights

DATA = Path(__file__).parents[3] / "shared/data/tatoeba-de-en"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"the corpora are not in {DATA}"),
]
transformers: Any = pytest.importorskip("transformers")

TOKENS, LEARNED = 256_000, 24_000
SCRIPTS = (
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "कखगघचछजझटठडढतथदधनपफबभमयरलवशषसह",
    "กขคงจฉชซญดตถทธนบปผพฟมยรลวสหอ",
    "가나다라마바사아자차카타파하",
    "ąčďęěğłńňőřśşšťůűźžđ",
)
LINES, SEARCHED, LIMIT = 10_000, 300, 8


@cache
def texts() -> tuple[str, ...]:
    """German lines and English lines, in turn."""
    sides = [(DATA / f"train.{side}").read_text(encoding="utf-8").split("\n")[: LINES // 2] for side in ("de", "en")]
    return tuple(line for pair in zip(*sides, strict=True) for line in pair)


def merges_of(alphabet: str, count: int, draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield pairs of symbols, each of which earlier pairs make, and no two of which make the same symbol."""
    made = list(alphabet)
    known = set(made)
    while count:
        pair = draw.choice(made), draw.choice(made)
        joined = "".join(pair)
        if joined not in known and len(joined) <= 12:
            known.add(joined)
            made.append(joined)
            count -= 1
            yield pair


def nllb_folder(folder: Path) -> Path:
    """Write a folder in NLLB's form with 256,000 tokens."""
    library = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    library.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=LEARNED, special_tokens=special, show_progress=False)
    )
    learned = json.loads(library.to_str())["model"]
    vocabulary, merges = dict(learned["vocab"]), [tuple(pair) for pair in learned["merges"]]
    draw = random.Random(0)
    each = (TOKENS - len(vocabulary)) // len(SCRIPTS) - max(map(len, SCRIPTS))
    for script in SCRIPTS:
        for letter in script:
            vocabulary.setdefault(letter, len(vocabulary))
        pairs = [pair for pair in merges_of(script, each, draw) if "".join(pair) not in vocabulary]
        vocabulary |= {"".join(pair): number for number, pair in enumerate(pairs, len(vocabulary))}
        merges += pairs
    tokenizer = transformers.NllbTokenizer(
        vocab=vocabulary,
        merges=merges,
        extra_special_tokens=["deu_Latn", "eng_Latn", "rus_Cyrl"],
        src_lang="deu_Latn",
        tgt_lang="eng_Latn",
    )
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _SIDE.items()}
    config = transformers.M2M100Config(**sizes, d_model=32, vocab_size=TOKENS, decoder_start_token_id=2)
    assert len(tokenizer) <= TOKENS
    torch.manual_seed(0)
    model = transformers.M2M100ForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:  # so large that different texts have different translations
            torch.nn.init.normal_(parameter, std=1.5 if "encoder_attn" in name else 0.3)
    return saved(model.eval(), tokenizer, folder)


_SIDE = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}


@pytest.fixture(scope="module")
def cut_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle, VocabularyCut]:
    """The model, the model with the smaller vocabulary, and what was kept."""
    bundle = import_huggingface(nllb_folder(tmp_path_factory.mktemp("nllb") / "model")).bundle
    cut = choose_tokens(bundle, texts=texts())
    return bundle, cut_vocabulary(bundle, cut), cut


def special_tokens(bundle: Bundle) -> Any:
    return bundle.token_template.fill(source_language="deu_Latn", target_language="eng_Latn")


def test_at_least_60_percent_of_the_embeddings_are_saved(cut_model: tuple[Bundle, Bundle, VocabularyCut]) -> None:
    whole, small, cut = cut_model
    before, after = (named_weights(bundle.model)["source_embedding.weight"].numel() for bundle in (whole, small))
    assert whole.source_tokenizer.vocab_size >= TOKENS
    assert after <= 0.4 * before
    assert after == len(cut.kept_ids["source"]) * 32
    assert cut.unknown_characters == ()


def test_the_ids_of_10000_lines_map_one_to_one(cut_model: tuple[Bundle, Bundle, VocabularyCut]) -> None:
    whole, small, cut = cut_model
    new_ids = {old: new for new, old in enumerate(cut.kept_ids["source"])}
    before, after = (special_tokens(bundle) for bundle in (whole, small))
    pairs = zip(*(bundle.source_tokenizer.encode_batch(list(texts())) for bundle in (whole, small)), strict=True)
    for old, new in pairs:
        assert [new_ids[index] for index in before.add_to_source(old)] == after.add_to_source(new)
    assert len(texts()) == LINES
    assert len(set(new_ids.values())) == len(new_ids)


def test_logits_and_greedy_texts_of_300_lines_stay(cut_model: tuple[Bundle, Bundle, VocabularyCut]) -> None:
    whole, small, cut = cut_model
    kept = cut.kept_ids["target"]
    removed = sorted(set(range(TOKENS)) - set(kept))
    chosen = texts()[: 2 * SEARCHED : 2]  # in German
    rows, logits, found = [], [], []
    for bundle, banned in ((whole, removed), (small, [])):
        special = special_tokens(bundle)
        sources = [special.add_to_source(ids) for ids in bundle.source_tokenizer.encode_batch(list(chosen))]
        requests = [Request(source=tuple(ids), limit=LIMIT, prefix=tuple(special.target_prefix)) for ids in sources]
        vocabulary = SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK, *banned))
        results = search(bundle.model, requests, DecodingOptions(beam_size=1), vocabulary)
        rows.append([hypotheses[0].tokens for hypotheses in results])
        found.append([bundle.target_tokenizer.decode(row) for row in rows[-1]])
    new_ids = {old: new for new, old in enumerate(kept)}
    assert [tuple(new_ids[index] for index in row) for row in rows[0]] == rows[1]
    assert found[0] == found[1]
    assert len({*found[0]}) > SEARCHED / 2
    with torch.inference_mode():
        for text, old_row, new_row in zip(chosen, *rows, strict=True):
            logits = [
                bundle.model(
                    torch.tensor([special_tokens(bundle).add_to_source(bundle.source_tokenizer.encode(text))]),
                    torch.tensor([[BOS, *row]]),
                )
                for bundle, row in ((whole, old_row), (small, new_row))
            ]
            torch.testing.assert_close(logits[1], logits[0][..., kept], atol=1e-4, rtol=0.0)
