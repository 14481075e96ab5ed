"""The token store: examples are read as they were written, and stale or unfinished stores are never used."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.data import store_builder
from headway.data.encoding import EncodingSpec, SideSpec
from headway.data.store import FilterConfig, FilterCounts, TokenStore
from headway.data.store_builder import open_or_build_store
from headway.errors import DataError, OutputError
from headway.text.corpus_encoder import PackedIds, ids_to_bytes, pack_id_bytes

END = 2


class Numbers:
    """Reads "5 7 9" as the tokens 5, 7, 9."""

    def __init__(self, vocab_size: int = 100) -> None:
        self.vocab_size = vocab_size

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return pack_id_bytes([ids_to_bytes([int(word) for word in text.split()]) for text in texts])


class Reversing(Numbers):
    """Two segmentations: the text as it is, and reversed."""

    num_segmentations = 2

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return super().encode([way for text in texts for way in (text, " ".join(reversed(text.split())))])


def work(*vocab_sizes: int, filters: FilterConfig | None = None) -> EncodingSpec:
    source, target = vocab_sizes or (100, 100)
    return EncodingSpec(
        (SideSpec(Numbers(source), suffix_ids=(END,)), SideSpec(Numbers(target), suffix_ids=(END,))), filters
    )


def built(folder: Path, key: str, examples: Callable[[], Iterator[tuple[str, ...]]], work: EncodingSpec) -> TokenStore:
    store = open_or_build_store(folder, key, examples, work)
    assert store is not None
    return store


def build(
    folder: Path,
    examples: Sequence[tuple[str, ...]],
    key: str = "key",
    filters: FilterConfig | None = None,
    vocab_size: int = 100,
) -> TokenStore:
    return built(folder, key, lambda: iter(examples), work(vocab_size, vocab_size, filters=filters))


def rows(store: TokenStore, side: str) -> list[list[int]]:
    """Return every example's tokens, read one by one."""
    return [store.read_padded(side, np.array([index]))[0].tolist() for index in range(len(store))]


def never() -> Iterator[tuple[str, ...]]:
    raise AssertionError("the examples were read again")


def words(length: int) -> str:
    return " ".join(["7"] * length)


@contextmanager
def disk_full(limit: int = 4096) -> Iterator[None]:
    """The operating system refuses to let any file grow past ``limit`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestRoundTrip:
    @pytest.mark.parametrize(("vocab_size", "item_bytes"), [(1 << 16, 2), ((1 << 16) + 1, 4)])
    def test_both_sides_come_back_with_their_end(self, tmp_path: Path, vocab_size: int, item_bytes: int) -> None:
        top = vocab_size - 1
        store = build(tmp_path / "s", [(f"5 {top} 9", "8"), ("", "4 4"), ("3", f"{top}")], vocab_size=vocab_size)
        assert len(store) == 3
        assert rows(store, "source") == [[5, top, 9, END], [END], [3, END]]
        assert rows(store, "target") == [[8, END], [4, 4, END], [top, END]]
        assert store.lengths("source").tolist() == [4, 1, 2]
        assert store.lengths("target").tolist() == [2, 3, 2]
        assert (tmp_path / "s" / "source.tokens").stat().st_size == 7 * item_bytes

    def test_the_wider_vocabulary_decides_for_both_sides(self, tmp_path: Path) -> None:
        store = built(tmp_path / "s", "key", lambda: iter([("1", "70000")]), work(10, 1 << 17))
        assert rows(store, "target") == [[70000, END]]

    def test_rows_are_padded_at_the_end_in_the_order_asked_for(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s", [("5 6 7", "1"), ("8", "1"), ("9 9", "1")])
        assert store.read_padded("source", np.array([1, 0, 1])).tolist() == [[8, 2, 0, 0], [5, 6, 7, 2], [8, 2, 0, 0]]
        assert store.read_padded("source", np.array([2, 1]), pad_id=77).tolist() == [[9, 9, 2], [8, 2, 77]]
        assert store.read_padded("source", np.array([2])).dtype == np.int64

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
    @given(
        texts=st.lists(st.tuples(*[st.lists(st.integers(3, 99), max_size=6)] * 2), max_size=12),
        chunk=st.integers(1, 5),
    )
    def test_any_examples_come_back_however_they_are_cut_into_chunks(
        self, tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[list[int], list[int]]], chunk: int
    ) -> None:
        folder = tmp_path_factory.mktemp("store") / "s"
        examples: list[tuple[str, ...]] = [tuple(" ".join(map(str, side)) for side in pair) for pair in texts]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_builder, "_CHUNK_EXAMPLES", chunk)
            patch.setattr(store_builder, "num_cores", lambda: 1)
            store = build(folder, examples)
        assert rows(store, "source") == [[*source, END] for source, _ in texts]
        assert rows(store, "target") == [[*target, END] for _, target in texts]

    def test_progress_hears_how_many_were_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_builder, "_CHUNK_EXAMPLES", 2)
        monkeypatch.setattr(store_builder, "num_cores", lambda: 1)
        heard: list[int] = []
        examples = [("1", "1")] * 5
        open_or_build_store(tmp_path / "s", "key", lambda: iter(examples), work(), progress=heard.append)
        assert heard == [2, 4, 5]

    def test_a_corpus_without_examples_is_an_empty_store(self, tmp_path: Path) -> None:
        for _ in range(2):  # built, then opened
            store = build(tmp_path / "s", [])
            assert len(store) == 0
            assert store.lengths("target").tolist() == []
            assert store.filter_counts == FilterCounts(0, 0, 0, 0)


class TestReuse:
    def test_the_second_opening_reads_nothing(self, tmp_path: Path) -> None:
        first = build(tmp_path / "s", [("5 6", "7")])
        again = built(tmp_path / "s", "key", never, work())
        assert rows(again, "source") == rows(first, "source") == [[5, 6, END]]
        assert again.filter_counts == first.filter_counts

    def test_a_different_key_builds_the_store_again(self, tmp_path: Path) -> None:
        build(tmp_path / "s", [("5 6", "7")])
        assert rows(build(tmp_path / "s", [("8", "9")], key="other"), "source") == [[8, END]]

    @pytest.mark.parametrize("damage", ["no header", "torn header", "short tokens", "short offsets", "newer format"])
    def test_an_unfinished_or_damaged_store_is_built_again(self, tmp_path: Path, damage: str) -> None:
        folder = tmp_path / "s"
        build(folder, [("5 6", "7"), ("8", "9")])
        header = folder / "store.json"
        match damage:
            case "no header":
                header.unlink()
            case "torn header":
                header.write_bytes(header.read_bytes()[:20])
            case "newer format":
                header.write_text(json.dumps(json.loads(header.read_text()) | {"format": 99}))
            case _:
                file = folder / f"target.{damage.split()[1]}"
                file.write_bytes(file.read_bytes()[:-2])
        assert rows(build(folder, [("4", "3")]), "source") == [[4, END]]

    def test_files_are_closed_with_the_store(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s", [("5 6", "7")])
        files = [array._file for array in store._offsets.values()]
        assert all(os.fstat(file) for file in files)
        del store
        for file in files:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(file)


class TestFilters:
    def test_counts_by_hand(self, tmp_path: Path) -> None:
        """At most 30 tokens, and the longer side at most 2 x the shorter + 10."""
        filters = FilterConfig(max_length=30, max_length_ratio=2.0)
        examples = [
            ("", words(3)),  # empty
            (words(3), ""),  # empty
            ("", ""),  # empty
            (words(2), words(14)),  # 14 = 2 x 2 + 10: kept
            (words(15), words(2)),  # 15 > 14: by ratio
            (words(30), words(30)),  # kept
            (words(31), words(30)),  # too long
            (words(1), words(40)),  # too long, and by ratio: counted once
            (words(30), words(10)),  # 30 = 2 x 10 + 10: kept
        ]
        store = build(tmp_path / "s", examples, filters=filters)
        assert store.filter_counts == FilterCounts(read=9, empty=3, too_long=2, ratio=1)
        assert store.filter_counts.kept == len(store) == 3
        assert store.lengths("source").tolist() == [3, 31, 31]  # with the end symbol
        assert str(store.filter_counts) == (
            "3 of 9 examples kept (removed: 3 with an empty side, 2 too long, 1 by length ratio)"
        )

    def test_without_filters_all_stay(self, tmp_path: Path) -> None:
        store = build(tmp_path / "s", [("", words(500)), ("", "")])
        assert store.filter_counts == FilterCounts(2, 0, 0, 0)
        assert store.lengths("target").tolist() == [501, 1]


class TestFailures:
    # A zip file that could not be written raises again when NumPy 1.26 discards it.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_full_disk_is_reported_and_leaves_no_files(self, tmp_path: Path) -> None:
        with disk_full(), pytest.raises(OutputError, match=r"cannot be written \(File too large\)"):
            build(tmp_path / "s", [(words(4000), "1")])
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert len(build(tmp_path / "s", [(words(4000), "1")])) == 1

    @pytest.mark.parametrize("error", [DataError("line 2 is bad"), KeyboardInterrupt()])
    def test_a_corpus_that_breaks_off_leaves_nothing(self, tmp_path: Path, error: BaseException) -> None:
        def examples() -> Iterator[tuple[str, ...]]:
            yield "1", "1"
            raise error

        reader: Callable[[], Iterator[tuple[str, ...]]] = examples
        with pytest.raises(type(error)):
            open_or_build_store(tmp_path / "s", "key", reader, work())
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class Characters:
    """Every character is a token, including spaces."""

    vocab_size = 1 << 16

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return pack_id_bytes([ids_to_bytes([ord(character) for character in text]) for text in texts])


def test_a_side_of_nothing_but_spaces_is_empty(tmp_path: Path) -> None:
    examples = [("ab", "c"), ("  ", "c"), ("ab", "\t"), ("ab", "")]
    side = SideSpec(Characters(), suffix_ids=(END,))
    store = built(tmp_path / "s", "key", lambda: iter(examples), EncodingSpec((side, side), FilterConfig()))
    assert store.filter_counts == FilterCounts(read=4, empty=3, too_long=0, ratio=0)


def test_tags_stand_before_each_source_and_do_not_count_for_filters(tmp_path: Path) -> None:
    filters = FilterConfig(max_length=2)
    tagged = EncodingSpec(
        (SideSpec(Numbers(), prefix_ids=(90, 91), suffix_ids=(END,)), SideSpec(Numbers(), suffix_ids=(END,))), filters
    )
    examples = [("5 6", "7"), ("5 6 7", "7"), ("8", "9 9")]
    store = built(tmp_path / "s", "key", lambda: iter(examples), tagged)
    assert rows(store, "source") == [[90, 91, 5, 6, END], [90, 91, 8, END]]
    assert rows(store, "target") == [[7, END], [9, 9, END]]


def test_stores_with_the_former_name_of_a_count_stay_readable(tmp_path: Path) -> None:
    store = built(tmp_path / "s", "key", lambda: iter([("5 6 7", "7")]), work(100, 100))
    header = tmp_path / "s" / "store.json"
    text = header.read_text(encoding="utf-8")
    assert text.count('"truncated"') == 1
    header.write_text(text.replace('"truncated": 0', '"cut": 3'), encoding="utf-8")
    again = built(tmp_path / "s", "key", never, work(100, 100))
    assert (again.filter_counts.kept, again.filter_counts.truncated) == (store.filter_counts.kept, 3)


def test_segmentations_lie_beside_each_other(tmp_path: Path) -> None:
    """Counted over the kept examples; the filters use the encoder's regular segmentation."""
    side = SideSpec(Numbers(), Reversing(), suffix_ids=(END,))
    examples = [("5 6", "7"), ("1 2 3", "4"), ("8", "9 4")]
    store = built(tmp_path / "s", "key", lambda: iter(examples), EncodingSpec((side, side), FilterConfig(max_length=2)))
    assert len(store) == store.filter_counts.kept == 2
    assert store.num_segmentations == 2
    found = [store.read_padded("source", np.array([row]))[0].tolist() for row in range(4)]
    assert found == [[5, 6, END], [6, 5, END], [8, END], [8, END]]
    assert store.read_padded("target", np.array([3])).tolist() == [[4, 9, END]]
    assert store.lengths("target", 1).tolist() == [2, 3]
    assert store.num_tokens("source") == 3 + 3 + 2 + 2
