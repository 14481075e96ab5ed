import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from headway.errors import BundleError, ConfigError, DataError, OutputError
from headway.text.base import BOS, EOS, NUM_SPECIAL, PAD, UNK, MergeStep, TextTokenizer
from headway.text.loading import load_tokenizer
from headway.text.tokenizer import Tokenizer, TokenizerConfig, TokenizerKind

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "the slow red fox sleeps under the old tree",
    "Die Füchse schlafen, die Hunde nicht; 2024 war's ruhig.",
    "Привет, мир! привет, мир!",
    "😀 😀 🙂 🙂 naïve café naïve café aaaaaaaaaaaaaaaa ababababab",
    "<eos> </s> <pad> <eos> </s> <pad>",
]
# Sennrich et al. (2016), section 3.2, with the frequencies of their example.
SENNRICH = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
FORGERIES = ["<pad>", "<bos>", "<eos>", "<unk>", "</s>", "<s>", "<2en>", "[PAD]", "<|endoftext|>", "a <eos> b"]
# Without surrogates, which no UTF-8 file can hold; drawn from the corpus half of the time, so that merges apply.
TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text(st.sampled_from(" \nabeftho😀🙂éприве'"))
    | st.lists(st.sampled_from([*FORGERIES, *" ".join(CORPUS).split(" ")])).map(" ".join)
)


def train(texts: list[str], vocab_size: int = 400, **options: object) -> Tokenizer:
    return Tokenizer.train(texts, TokenizerConfig.model_validate({"vocab_size": vocab_size, **options}))


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train(CORPUS)


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return train(["hello wörld 😀"], kind="characters")


@pytest.fixture(scope="module")
def whitespace() -> Tokenizer:
    return train(["HH AH0 L OW1", "W ER1 L D"], kind="whitespace")


WORDS = [*CORPUS, "two  spaces, a\ttab\nand\u00a0more;  \r\n\n"]


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train(WORDS, kind="words")


# Worked out by hand.


def test_sennrichs_example_learns_the_merges_worked_by_hand() -> None:
    # 300 ids are 4 special tokens, 256 bytes and up to 40 merges: all pairs that occur twice. Of equally frequent ones,
    # the one with lower ids comes first; bytes are in the order of ASCII and before all merges.
    #   es 9 (st also); est 9; lo 7 (ow also); low 7; then n e w est 6, e+w first; new; newest; then w i d est 3, d+est
    #   first, i+dest before w+i; widest; then low e r 2, e+r before low+e; lower.
    expected = ["e s", "es t", "l o", "lo w", "e w", "n ew", "new est", "d est", "i dest", "w idest", "e r", "low er"]
    tokenizer = train(SENNRICH, vocab_size=300)
    assert tokenizer.vocab_size == 4 + 256 + len(expected)
    assert tokenizer.tokens("lowest") == ["low", "est"]  # the paper's example: an unseen word from known pieces
    assert tokenizer.tokens("lower wider") == ["lower", " ", "w", "i", "d", "er"]
    assert tokenizer.merge_steps("lowest") == [
        MergeStep(0, 0, "e", "s", "es", ("l", "o", "w", "es", "t")),
        MergeStep(0, 1, "es", "t", "est", ("l", "o", "w", "est")),
        MergeStep(0, 2, "l", "o", "lo", ("lo", "w", "est")),
        MergeStep(0, 3, "lo", "w", "low", ("low", "est")),
    ]
    learnt = {(step.rank, f"{step.left} {step.right}") for w in set(SENNRICH) for step in tokenizer.merge_steps(w)}
    assert sorted(learnt) == list(enumerate(expected))
    # The new ids follow the bytes in the order of learning, above the special ids.
    assert tokenizer.encode("es") == [NUM_SPECIAL + 256]
    assert tokenizer.encode("lower") == [tokenizer.vocab_size - 1]
    assert tokenizer.encode("!") == [NUM_SPECIAL]  # "!" is the first of the byte alphabet


def test_min_frequency_and_vocab_size_bound_the_merges() -> None:
    seven = train(SENNRICH, 300, min_frequency=7)
    assert seven.vocab_size == 4 + 256 + 4  # es, est, lo, low occur 7 times or more
    assert seven.tokens("lowest new") == ["low", "est", " ", "n", "e", "w"]
    many = train([chr(97 + i) + chr(97 + j) for i in range(26) for j in range(26)] * 2, 300)
    assert many.vocab_size == 300


def test_a_merge_applies_at_its_leftmost_place_first() -> None:
    tokenizer = train(["aa"] * 2, 300)
    assert tokenizer.tokens("aaa") == ["aa", "a"]
    assert [step.segmentation for step in tokenizer.merge_steps("aaaa")] == [("aa", "a", "a"), ("aa", "aa")]


def test_display_shows_text_specials_and_shared_characters() -> None:
    tokenizer = train(["ab"] * 2, 300)
    assert tokenizer.tokens("ab é") == ["ab", " ", "<0xC3>", "<0xA9>"]
    assert tokenizer.display([PAD, BOS, *tokenizer.encode("ab"), EOS, UNK]) == [
        "<pad>",
        "<bos>",
        "ab",
        "<eos>",
        "<unk>",
    ]
    # 😀 is F0 9F 98 80 and 🙂 is F0 9F 99 82: their common bytes after a space are one token, of text and bytes.
    smileys = train(["x 😀", "x 🙂", "x 😎 "], 300, min_frequency=3)
    assert smileys.tokens("x 😀") == ["x", " <0xF0><0x9F>", "<0x98>", "<0x80>"]


# Properties.


@given(TEXTS)
@example("")
@example(" ")
@example("   \t\n\r\n  ")
@example("\x00\x01\x7f\x85\u2028\u2029\ufeff\ufffd")
@example("👩‍👩‍👧‍👦 🇩🇪 ✌🏽")
@example("שלום עולם \u202eabc\u202c مرحبا")
@example("e\u0301 \u1ebf é ﬁ Ａ")  # nothing is normalized
@example("\U0010ffff\ue000\ufdd0")
def test_every_string_survives(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


@given(st.lists(TEXTS, max_size=4))
def test_a_batch_is_its_texts_one_by_one(bpe: Tokenizer, texts: list[str]) -> None:
    assert bpe.encode_batch(texts) == [bpe.encode(text) for text in texts]


@given(TEXTS)
def test_whole_pieces_join_to_the_text(bpe: Tokenizer, text: str) -> None:
    pieces = bpe.tokens(text)
    assert len(pieces) == len(bpe.encode(text))
    if "<0x" not in "".join(pieces):
        assert "".join(pieces) == text


@given(TEXTS)
@example("".join(CORPUS))
@example("a" * 41 + " ababababa")
def test_merge_steps_end_in_the_real_segmentation(bpe: Tokenizer, text: str) -> None:
    words = [word for word, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]
    decoder = decoders.ByteLevel()
    single = train(["b"], 300)  # no merges: its pieces are the bytes
    segmentation = [single.tokens(decoder.decode([word])) for word in words]
    for step in bpe.merge_steps(text):
        assert len(step.segmentation) == len(segmentation[step.word_index]) - 1
        assert step.merged in step.segmentation
        segmentation[step.word_index] = list(step.segmentation)
    assert [piece for word in segmentation for piece in word] == bpe.tokens(text)


@given(st.lists(st.sampled_from([*"abc "]), min_size=1, max_size=60).map("".join), st.integers(0, 5))
def test_merge_steps_agree_for_any_learnt_vocabulary(text: str, seed: int) -> None:
    corpus = [text, text[seed:] + "x", "abcabcaabbcc aabcbcab"]
    tokenizer = train(corpus, 330, min_frequency=1)
    last = {step.word_index: step.segmentation for step in tokenizer.merge_steps(text)}
    words = [word for word, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]
    pieces = [last.get(index, [word.replace("Ġ", " ")]) for index, word in enumerate(words)]
    assert [piece for word in pieces for piece in word] == tokenizer.tokens(text)


@given(st.lists(st.integers(0, 299)))
def test_any_ids_decode_without_an_error(ids: list[int]) -> None:
    tokenizer = BYTES
    ids = [index % tokenizer.vocab_size for index in ids]
    real = [index for index in ids if index >= NUM_SPECIAL]
    assert tokenizer.decode(ids) == tokenizer.decode(real)
    assert len(tokenizer.display(ids)) == len(ids)


BYTES = train(["b"], 300)


def test_broken_bytes_become_replacement_characters() -> None:
    first, *_, last = BYTES.encode("😀")
    assert BYTES.decode([first, *BYTES.encode("a"), last]) == "\ufffda\ufffd"


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
@pytest.mark.parametrize("saved", [False, True])
def test_text_cannot_forge_special_ids(tmp_path: Path, kind: str, saved: bool) -> None:
    texts = [*CORPUS, *FORGERIES, " ".join(FORGERIES)]
    tokenizer: TextTokenizer = Tokenizer.train(
        texts, TokenizerConfig.model_validate({"kind": kind, "vocab_size": 600}), tags=("<2en>", "<2de>")
    )
    if saved:
        tokenizer.save(tmp_path, "source")
        tokenizer = load_tokenizer(tmp_path, "source")
    for text in texts:
        ids = tokenizer.encode(text)
        assert min(ids) >= NUM_SPECIAL + 2
        assert tokenizer.decode([BOS, tokenizer.tag_id("<2en>"), *ids, EOS, PAD]) == text


def test_training_is_deterministic_also_in_another_process(bpe: Tokenizer) -> None:
    assert train(CORPUS).fingerprint == bpe.fingerprint
    program = (
        "import sys, json; from headway.text.tokenizer import *; texts, size = json.load(sys.stdin);"
        "print(Tokenizer.train(iter(texts), TokenizerConfig(vocab_size=size)).fingerprint)"
        "; assert 'torch' not in sys.modules, 'the tokenizer must not load torch'"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps([CORPUS, 400]), capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == bpe.fingerprint


def test_training_reads_lazily() -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for _ in range(100_000):
            taken += 1
            yield "ab \ud800" if taken == 1000 else "ab"

    with pytest.raises(DataError, match=r"^text 1000,"):
        Tokenizer.train(texts(), TokenizerConfig())
    assert taken == 1000


# The other kinds.


def test_characters(characters: Tokenizer) -> None:
    assert characters.vocab_size == NUM_SPECIAL + len(set("hello wörld 😀"))
    assert characters.encode(" d") == [NUM_SPECIAL, NUM_SPECIAL + 1]  # sorted by code point
    assert characters.tokens("wörld😀") == [*"wörld😀"]
    assert characters.decode(characters.encode("drew")) == "drew"
    assert characters.encode("x") == [UNK]
    assert characters.decode([BOS, *characters.encode("hex"), EOS, PAD]) == "he\ufffd"
    assert characters.tokens("hex") == ["h", "e", "<unk>"]
    assert characters.merge_steps("hello") == []


@given(st.text(st.sampled_from("hello wörld 😀")))
def test_seen_characters_survive(characters: Tokenizer, text: str) -> None:
    assert characters.decode(characters.encode(text)) == text


def test_whitespace(whitespace: Tokenizer) -> None:
    assert whitespace.vocab_size == NUM_SPECIAL + len({"HH", "AH0", "L", "OW1", "W", "ER1", "D"})
    assert whitespace.tokens("HH ER1 D") == ["HH", "ER1", "D"]
    assert whitespace.decode([BOS, *whitespace.encode("HH ER1 D"), EOS, PAD]) == "HH ER1 D"
    assert whitespace.decode(whitespace.encode("  HH   ER1 ")) == "HH ER1"
    assert whitespace.encode("ZH HH")[0] == UNK
    assert whitespace.decode(whitespace.encode("ZH HH")) == "\ufffd HH"
    assert whitespace.encode("") == []
    assert whitespace.decode([]) == ""


def test_words_are_the_units_that_merges_never_cross(words: Tokenizer, bpe: Tokenizer) -> None:
    assert words.tokens("the  old fox's tree, 2024!") == ["the", " ", " old", " fox", "'s", " tree", ",", " 2024", "!"]
    assert train(["12 34"], kind="words", split_digits=True).tokens("12 34") == ["1", "2", " ", "3", "4"]
    for text in WORDS:
        units = words.tokens(text)
        assert "".join(units) == text
        assert [piece for unit in units for piece in bpe.tokens(unit)] == bpe.tokens(text)
        assert words.decode(words.encode(text)) == text
    assert words.merge_steps("the fox") == []


def test_the_most_frequent_words_are_kept_and_all_white_space() -> None:
    names = ["".join(pair) for pair in itertools.product(ascii_lowercase, repeat=2)][:400]
    tokenizer = train([*names[:100] * 3, *names[100:], "a\tb\u00a0c"], 300, kind="words")
    # 4 special tokens, 3 kinds of white space, the 100 words that occur three times, and the first 193 of the others in
    # the order of code points: a, b, c, then 190 of the names.
    assert tokenizer.vocab_size == 300
    assert [UNK not in tokenizer.encode(name) for name in names] == [True] * 290 + [False] * 110
    assert tokenizer.tokens("a \tb\u00a0") == ["a", " ", "\t", "b", "\u00a0"]
    assert tokenizer.decode(tokenizer.encode("zz  aa\taa")) == "\ufffd  \ufffd\taa"  # "aa" never follows a space


def test_only_the_inside_of_an_unknown_word_is_lost(words: Tokenizer) -> None:
    text = "the  cat,\tthe   dog\n zebra\u00a0!"
    assert words.tokens(text) == [
        *("the", " ", " ", "<unk>", ",", "\t", "the", " ", " ", " dog", "\n", " ", "<unk>", "\u00a0", "!")
    ]
    assert words.decode(words.encode(text)) == "the  \ufffd,\tthe   dog\n \ufffd\u00a0!"


@given(TEXTS)
@example("   \t\n\r\n  ")
@example("a\u3000b\x1c c\u2028\u0085")
@settings(max_examples=30)
def test_words_keep_the_white_space_that_they_know(words: Tokenizer, text: str) -> None:
    """Without unknown words nothing changes. Otherwise the spaces, tabs and line breaks stay."""
    kept = words.decode(words.encode(text))
    assert UNK in words.encode(text) or kept == text
    for space in " \t\n":
        assert kept.count(space) == text.count(space)


# Tags.


def test_tags_have_ids_between_the_specials_and_the_vocabulary() -> None:
    config = TokenizerConfig(vocab_size=300)
    tokenizer = Tokenizer.train(SENNRICH, config, tags=("<2en>", "<2de>"))
    assert [tokenizer.tag_id("<2en>"), tokenizer.tag_id("<2de>")] == [4, 5]
    assert tokenizer.encode("!") == [6]
    assert tokenizer.display([5, 6]) == ["<2de>", "!"]
    assert tokenizer.vocab_size == 6 + 256 + 12


def test_tag_errors(bpe: Tokenizer) -> None:
    config = TokenizerConfig(vocab_size=300)
    with pytest.raises(ConfigError, match="unknown tag '<2en>'; this vocabulary has no tags"):
        bpe.tag_id("<2en>")
    with pytest.raises(ConfigError, match=r"unknown tag '<2em>'; did you mean '<2en>'\?"):
        Tokenizer.train(SENNRICH, config, tags=("<2en>",)).tag_id("<2em>")
    with pytest.raises(ConfigError, match="tag '<eos>' is a duplicate or the name of a special token"):
        Tokenizer.train(SENNRICH, config, tags=("<eos>",))
    with pytest.raises(ConfigError, match=r"vocab_size = 300: 41 tags leave room for 255 .* expected at least 301"):
        Tokenizer.train(SENNRICH, config, tags=tuple(f"<2x{number}>" for number in range(41)))
    few = TokenizerConfig(kind="words", vocab_size=300)
    with pytest.raises(ConfigError, match=r"vocab_size = 300: .* leave no room for words; expected at least 302"):
        Tokenizer.train(SENNRICH, few, tags=tuple(f"<2x{number}>" for number in range(296)))


# Wrong input.


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
@pytest.mark.parametrize("texts", [[], ["", " \n"]])
def test_nothing_to_learn_from(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="there is no text from which to learn a vocabulary"):
        train(texts, kind=kind)


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
def test_lone_surrogates_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"text 2, character 3: lone surrogate U\+D83D"):
        train(["ok", "ab\ud83d"], kind=kind)
    tokenizer = train(["ok"], kind=kind)
    with pytest.raises(DataError, match=r"text 1, character 1: lone surrogate U\+DC00"):
        tokenizer.encode("\udc00")
    with pytest.raises(DataError, match=r"text 2, character 2: lone surrogate"):
        tokenizer.encode_batch(["a", "b\ud800"])
    with pytest.raises(DataError, match=r"lone surrogate"):
        tokenizer.merge_steps("\ud800")


@pytest.mark.parametrize("index", [-1, 264])
def test_ids_outside_of_the_vocabulary_are_refused(index: int) -> None:
    tokenizer = train(["b"], 300)
    with pytest.raises(ConfigError, match=f"id {index} is not in this vocabulary, whose ids are 0 to 259"):
        tokenizer.decode([5, index])
    with pytest.raises(ConfigError, match=f"id {index} is not in"):
        tokenizer.display([index])


def test_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"recipe: vocab_size = 299: .* greater than or equal to 300"):
        TokenizerConfig.parse({"vocab_size": 299}, "recipe")
    with pytest.raises(ConfigError, match=r"recipe: min_frequency = 0"):
        TokenizerConfig.parse({"min_frequency": 0}, "recipe")
    assert all(field.description for field in TokenizerConfig.model_fields.values())


# Files.


@pytest.mark.parametrize("name", get_args(TokenizerKind))
def test_saved_and_loaded_is_the_same(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    tokenizer.save(tmp_path / "new", "target")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["target.json"]
    loaded = load_tokenizer(tmp_path / "new", "target")
    assert (loaded.kind, loaded.vocab_size, loaded.fingerprint) == (name, tokenizer.vocab_size, tokenizer.fingerprint)
    text = "hello the wörld HH AH0 😀"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.merge_steps(text) == tokenizer.merge_steps(text)


def test_fingerprints_differ_where_anything_does(bpe: Tokenizer) -> None:
    others = [train(CORPUS, 300), train(CORPUS[:-1]), train(CORPUS, kind="characters")]
    others.append(Tokenizer.train(CORPUS, TokenizerConfig(vocab_size=401), tags=("<2en>",)))
    assert len({tokenizer.fingerprint for tokenizer in [bpe, *others]}) == 5
    assert len(bpe.fingerprint) == 64


def test_unreadable_files_are_refused(tmp_path: Path, bpe: Tokenizer) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(BundleError, match=r"t\.json: no such file"):
        load_tokenizer(tmp_path, "t")
    bpe.save(tmp_path, "t")
    content = path.read_bytes()
    for damaged in [content[: len(content) // 2], b"", b"\xff\xfe", b"[" * 100_000]:
        path.write_bytes(damaged)
        with pytest.raises(BundleError, match=r"t\.json: not valid JSON; the file is truncated or damaged"):
            load_tokenizer(tmp_path, "t")
    for foreign in [b"[1]", b"{}", b'{"model": {"type": "BPE"}}']:
        path.write_bytes(foreign)
        with pytest.raises(BundleError, match=r"t\.json: not a tokenizer saved by Headway"):
            load_tokenizer(tmp_path, "t")
    path.unlink()
    path.mkdir()
    with pytest.raises(BundleError, match=r"t\.json: cannot be read"):
        load_tokenizer(tmp_path, "t")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "kind 'bpe' is unknown; install a newer version of Headway"),
        ({"version": 3}, r"version 3 is unknown \(known: 1, 2\); install a newer version of Headway"),
        ({"kind": "syllables"}, "kind = 'syllables'"),
        ({"tokens": "abc"}, "tokens = 'abc'"),
        ({"tokens": ["\ud800"]}, "a token contains a lone surrogate"),
        ({"tokens": ["a"], "merges": []}, "255 of the 256 bytes have no token"),
        ({"tokens": ["a", "a"]}, "a token is listed twice"),
        ({"merges": [["a", "b"]]}, "a merge joins or produces something that is not a token"),
        ({"merges": [["", ""]]}, "a merge joins or produces something that is not a token"),
        ({"+tokens": [" "]}, "a token is not spelled in the byte alphabet"),
        ({"+tokens": [""]}, "a token is not spelled in the byte alphabet"),
        ({"tags": ["<eos>"]}, "tag '<eos>' is a duplicate or the name of a special token"),
        ({"added": 1}, "unknown key 'added'"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    BYTES.save(tmp_path, "t")
    path = tmp_path / "t.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    for key, value in change.items():
        data[key.removeprefix("+")] = data["tokens"] + value if key.startswith("+") else value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(BundleError, match=rf"t\.json: .*{message}"):
        load_tokenizer(tmp_path, "t")


def test_what_cannot_be_written_is_an_output_error(tmp_path: Path, bpe: Tokenizer) -> None:
    (tmp_path / "file").write_text("here first", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be written"):
        bpe.save(tmp_path / "file", "t")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "here first"


def test_split_digits_makes_each_digit_a_token_and_still_loses_nothing(tmp_path: Path) -> None:
    texts = ["on 2025-03-14 and 2025-03-15", "in 2025 and 2025"] * 5
    tokenizer = Tokenizer.train(texts, TokenizerConfig(vocab_size=300, split_digits=True))
    tokenizer.save(tmp_path, "tokenizer")
    loaded = load_tokenizer(tmp_path, "tokenizer")
    for each in (tokenizer, loaded):
        assert [token for token in each.tokens("in 2025") if token.isdigit()] == ["2", "0", "2", "5"]
        assert each.decode(each.encode(" 20 25  7")) == " 20 25  7"
    assert loaded.fingerprint == tokenizer.fingerprint


# Real corpora.


@pytest.mark.slow
def test_words_of_all_corpora_are_text_again() -> None:
    """Words that the vocabulary has stay as they are. Of the others only the inside is lost, and no space."""
    folders = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
    endings = ("txt", "tsv", "de", "en", "fr", "g", "p")
    files = [file for folder in folders for ending in endings for file in sorted(folder.glob(f"*/*.{ending}"))]
    if not files:
        pytest.skip("no shared/data beside the repository")
    for file in files:
        with file.open(encoding="utf-8", newline="\n") as lines:
            texts = [line.removesuffix("\n") for line in itertools.islice(lines, 500)]
        whole, few = (train(texts, size, kind="words") for size in (1_000_000, 1000))
        assert whole.vocab_size < 1_000_000
        for text, ids, some in zip(texts, whole.encode_batch(texts), few.encode_batch(texts), strict=True):
            assert UNK not in ids
            assert whole.decode(ids) == text, file
            known = set(few.vocabulary)
            expected = [word if word in known else re.sub(r"\S+", "\ufffd", word) for word in whole.display(ids)]
            assert few.decode(some) == "".join(expected), file
