"""Readers: every line is read as it was written, and every error names its position."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.config import Config
from headway.data import readers
from headway.data.bad_lines import BadLines
from headway.data.readers import Corpus, TextSize, read_examples, read_lines, text_size
from headway.errors import ConfigError, DataError


def write(path: Path, content: str | bytes) -> Path:
    """Write ``content``, compressed as the file name says."""
    data = content.encode() if isinstance(content, str) else content
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def lines_of(path: Path) -> list[str]:
    return list(read_lines(path))


def examples(folder: Path, names: tuple[str, ...] = ("source", "target"), **keys: object) -> list[tuple[str, ...]]:
    return list(read_examples(Corpus.parse(keys, "recipe"), folder, names))


class TestLines:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"a\nb\n", ["a", "b"]),
            (b"a\nb", ["a", "b"]),
            (b"\n", [""]),
            (b"a\n\n\nb\n\n", ["a", "", "", "b", ""]),
            (b"a\r\nb\r\n", ["a", "b"]),
            (b"a\r\nb\r", ["a", "b"]),
            (b"a\rb\r\r\n", ["a\rb\r"]),
            (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
            ("a\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
            ("a\x85b\xa0c\x0bd\x0ce\x1cf\u2028g\u2029h\n".encode(), ["a\x85b\xa0c\x0bd\x0ce\x1cf\u2028g\u2029h"]),
            (b"  spaces \t\n", ["  spaces \t"]),
        ],
    )
    @pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
    def test_only_newline_ends_a_line(self, tmp_path: Path, content: bytes, expected: list[str], suffix: str) -> None:
        assert lines_of(write(tmp_path / f"corpus.txt{suffix}", content)) == expected

    @pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 1 << 18])
    @pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
    def test_block_boundaries_change_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, suffix: str
    ) -> None:
        monkeypatch.setattr(readers, "_BLOCK_BYTES", block_bytes)
        path = write(tmp_path / f"corpus.txt{suffix}", "\ufeffüber\r\n\r\n日本語 🙂\r\nno end".encode())
        # A one-byte block contains no whole byte order mark, but a block of whole lines does.
        assert lines_of(path) == ["über", "", "日本語 🙂", "no end"]

    @given(
        texts=st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0")).filter(
                lambda text: not text.endswith("\r")
            ),
            min_size=1,
        ).filter(lambda texts: not texts[0].startswith("\ufeff")),
        suffix=st.sampled_from(["", ".gz", ".zst"]),
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
    def test_lines_survive_the_file(self, tmp_path: Path, texts: list[str], suffix: str) -> None:
        path = write(tmp_path / f"corpus.txt{suffix}", "".join(text + "\n" for text in texts))
        assert lines_of(path) == texts

    def test_joined_members_are_one_file(self, tmp_path: Path) -> None:
        gz, zst = tmp_path / "a.txt.gz", tmp_path / "a.txt.zst"
        gz.write_bytes(gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree\n"))
        frame = zstandard.ZstdCompressor().compress
        zst.write_bytes(frame(b"one\ntw") + frame(b"o\nthree\n"))
        assert lines_of(gz) == lines_of(zst) == ["one", "two", "three"]

    def test_memory_stays_flat(self, tmp_path: Path) -> None:
        line = "A sentence of ordinary length, as corpora hold them by the million.\n"
        path = write(tmp_path / "short.txt", line * 100_000)  # 7 MB, as strings 12 MB
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_lines(path)) == 100_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'no.txt'}: no such file; expected UTF-8 text")):
            lines_of(tmp_path / "no.txt")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=re.escape(f"{tmp_path}: is a folder; expected a UTF-8 text file")):
            lines_of(tmp_path)

    def test_other_failures_of_the_system(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.txt", "a\n")
        with pytest.raises(DataError, match=r"a\.txt/b: cannot be read after line 0 \(Not a directory\)"):
            lines_of(path / "b")

    @pytest.mark.parametrize("name", ["empty.txt", "empty.txt.gz", "empty.txt.zst"])
    def test_empty(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=re.escape(f"{name}: is empty; expected at least one line")):
            lines_of(write(tmp_path / name, ""))
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match="is empty"):
            lines_of(tmp_path / name)

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = write(tmp_path / "latin.txt", b"a\nb\nna\xefve\n")
        with pytest.raises(
            DataError, match=r"latin\.txt, line 3: byte 3 of the line \(0xEF\) is not UTF-8; expected UTF-8 text"
        ):
            lines_of(path)

    def test_not_utf8_far_into_a_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "long.txt", b"x" * 99 + b"\n" + b"y\n" * 300_000 + b"\xff\n")
        with pytest.raises(DataError, match=r"line 300002: byte 1 of the line \(0xFF\)"):
            lines_of(path)

    def test_half_a_character_at_the_end(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"line 2: byte 2 of the line \(0xC3\)"):
            lines_of(write(tmp_path / "cut.txt", b"ok\na\xc3"))

    @pytest.mark.parametrize("content", [b"a\nb\0c\n", "ab\nb\n".encode("utf-16"), b"ok\nb\0\xff"])
    def test_binary(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(
            DataError, match=r"photo\.txt, line [12]: looks binary \(byte \d of the line is NUL\); expected UTF-8"
        ):
            lines_of(write(tmp_path / "photo.txt", content))

    @pytest.mark.parametrize("suffix", [".gz", ".zst"])
    def test_cut_short(self, tmp_path: Path, suffix: str) -> None:
        lines = [f"{number}: {number * 7919 % 10007}" for number in range(200_000)]
        path = write(tmp_path / f"corpus.txt{suffix}", "\n".join(lines))
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        seen: list[str] = []
        with pytest.raises(DataError, match=re.escape(f"{path}: damaged or incomplete after line")) as caught:
            seen.extend(read_lines(path))
        assert f"after line {len(seen):,} (the compressed stream ends too early)" in str(caught.value)
        assert 10_000 < len(seen) < 200_000
        assert seen == lines[: len(seen)]

    @pytest.mark.parametrize("suffix", [".gz", ".zst"])
    def test_not_compressed_after_all(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"corpus.txt{suffix}"
        path.write_bytes(b"plain text\n")
        with pytest.raises(DataError, match=rf"not compressed, although its name ends in \{suffix}"):
            lines_of(path)

    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            (
                "a.txt",
                gzip.compress(b"text\n", mtime=0),
                r"compressed with gzip; rename it so that its name ends in \.gz",
            ),
            ("a.gz", zstandard.compress(b"text\n"), r"compressed with Zstandard; rename it .* in \.zst"),
            ("a.txt.xz", lzma.compress(b"text\n"), "compressed with xz; decompress it, or use gzip or zstd"),
            ("a.txt", bz2.compress(b"text\n"), "compressed with bzip2; decompress it"),
            ("a.gz", b"PK\x03\x04" + bytes(30), "compressed with zip; decompress it"),
        ],
    )
    def test_another_compression_than_the_name_says(self, tmp_path: Path, name: str, data: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=message):
            lines_of(tmp_path / name)

    @pytest.mark.parametrize("zeros", [1, 10_240, 3 << 20])
    def test_zeros_after_the_end_of_gzip(self, tmp_path: Path, zeros: int) -> None:
        """As tapes and some programs write it."""
        path = tmp_path / "a.txt.gz"
        path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(zeros))
        assert lines_of(path) == ["one", "two"]

    def test_damaged_gzip(self, tmp_path: Path) -> None:
        path = write(tmp_path / "corpus.txt.gz", "text\n" * 100)
        data = bytearray(path.read_bytes())
        data[-5] ^= 0xFF  # the file ends before the last four bytes of the checksum
        path.write_bytes(bytes(data))
        with pytest.raises(DataError, match="incorrect data check"):
            lines_of(path)


class TestCorpus:
    @pytest.mark.parametrize(
        ("files", "form"),
        [
            (["a.tsv"], "tsv"),
            (["a.tsv.gz"], "tsv"),
            (["sub/a.b.jsonl.zst"], "jsonl"),
            (["a.json"], "jsonl"),
            (["a.de", "a.en"], "text"),
            (["a.de.gz", "a.en"], "text"),
        ],
    )
    def test_format_follows_the_extension(self, files: list[str], form: str) -> None:
        assert Corpus.parse({"files": files}, "recipe").format == form

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"files": []}, "files: expected one .tsv, .csv, .jsonl or .tmx file, or two plain text files; got none"),
            ({"files": ["a", "b", "c"]}, "got 'a', 'b', 'c'"),
            ({"files": ["a", ""]}, "got 'a', ''"),
            ({"files": ["a.txt"]}, "files: 'a.txt' alone is neither .tsv, .csv, .jsonl nor .tmx"),
            ({"files": ["a.xml"]}, "files: 'a.xml' alone is neither .tsv, .csv, .jsonl nor .tmx"),
            ({"files": ["a.tsv", "b.txt.gz"]}, "two files are read as plain text, but got 'a.tsv', 'b.txt.gz'"),
            ({"files": "a.tsv"}, 'expected a list of one or two files, for example ["a.tsv"]'),
            ({"files": ["a", "b"], "fields": ["1", "2"]}, "fields: plain text files have no fields"),
            ({"files": ["a.tsv"], "fields": []}, "fields: empty"),
            ({"files": ["a.tsv"], "fields": ["0", "1"]}, "fields: '0' is not a column number"),
            ({"files": ["a.tsv"], "fields": ["source"]}, "fields: 'source' is not a column number"),
            ({"files": ["a.tsv"], "weight": 0}, "weight = 0: input should be greater than 0"),
            ({"file": ["a.tsv"]}, "unknown key 'file'; did you mean 'files'?"),
        ],
    )
    def test_refused(self, keys: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(message)):
            Corpus.parse(keys, "recipe.toml")

    def test_column_numbers_may_be_numbers(self) -> None:
        assert Corpus.parse({"files": ["a.tsv"], "fields": [3, "1"]}, "recipe").fields == ("3", "1")

    def test_every_field_is_described(self) -> None:
        assert issubclass(Corpus, Config)
        assert all(field.description for field in Corpus.model_fields.values())


class TestExamples:
    EXPECTED = (("ein Haus", "a house"), ("", "empty"), ("zwei", "two"))

    @pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
    def test_the_formats_agree(self, tmp_path: Path, suffix: str) -> None:
        write(tmp_path / f"c.de{suffix}", "".join(f"{source}\n" for source, _ in self.EXPECTED))
        write(tmp_path / f"c.en{suffix}", "".join(f"{target}\r\n" for _, target in self.EXPECTED))
        write(tmp_path / f"c.tsv{suffix}", "".join(f"{source}\t{target}\n" for source, target in self.EXPECTED))
        records = [json.dumps({"target": target, "source": source}) for source, target in self.EXPECTED]
        write(tmp_path / f"c.jsonl{suffix}", "\n".join(records))
        for files in ([f"c.de{suffix}", f"c.en{suffix}"], [f"c.tsv{suffix}"], [f"c.jsonl{suffix}"]):
            assert examples(tmp_path, files=files) == list(self.EXPECTED)

    def test_absolute_names_ignore_the_folder(self, tmp_path: Path) -> None:
        path = write(tmp_path / "c.tsv", "a\tb\n")
        assert examples(Path("/nowhere"), files=[str(path)]) == [("a", "b")]

    def test_fields_select_and_order(self, tmp_path: Path) -> None:
        write(tmp_path / "c.tsv", "id\ta\tb\textra\n")
        write(tmp_path / "c.jsonl", '{"en": "b", "de": "a", "n": 1}\n')
        assert examples(tmp_path, files=["c.tsv"], fields=["3", "2"]) == [("b", "a")]
        assert examples(tmp_path, files=["c.jsonl"], fields=["de", "en"]) == [("a", "b")]
        assert examples(tmp_path, ("id", "source", "target"), files=["c.tsv"]) == [("id", "a", "b")]
        assert examples(tmp_path, ("text",), files=["c.tsv"], fields=[2]) == [("a",)]

    def test_json_text_may_hold_any_character(self, tmp_path: Path) -> None:
        pair = ("two\nlines\tand\0a\u2028b", "smile \U0001f642")
        write(tmp_path / "c.jsonl", json.dumps(dict(zip(("source", "target"), pair, strict=True))))
        assert examples(tmp_path, files=["c.jsonl"]) == [pair]

    @pytest.mark.parametrize(("sources", "targets", "longest"), [(3, 5, "c.en"), (5, 3, "c.de")])
    def test_different_lengths(self, tmp_path: Path, sources: int, targets: int, longest: str) -> None:
        write(tmp_path / "c.de", "a\n" * sources)
        write(tmp_path / "c.en", "a\n" * targets)
        corpus = Corpus(files=("c.de", "c.en"))
        seen: list[tuple[str, ...]] = []
        with pytest.raises(DataError) as caught:
            seen.extend(read_examples(corpus, tmp_path))
        assert len(seen) == 3
        assert str(caught.value).startswith(
            f"{tmp_path / 'c.de'} has {sources} lines but {tmp_path / 'c.en'} has {targets} lines: "
            f"line 4 of {tmp_path / longest} has no counterpart; "
        )
        assert "remove lines only in pairs" in str(caught.value)

    def test_too_few_columns(self, tmp_path: Path) -> None:
        write(tmp_path / "c.tsv", "a\tb\nonly one\n")
        with pytest.raises(
            DataError, match=r"c\.tsv, line 2: 1 column, but 2 columns needed; columns are separated by one tab"
        ):
            examples(tmp_path, files=["c.tsv"])
        with pytest.raises(DataError, match=r"c\.tsv, line 1: 2 columns, but 4 columns needed"):
            examples(tmp_path, files=["c.tsv"], fields=[4, 1])

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", r"not valid JSON \(Expecting .*\); expected one JSON object"),
            ("[" * 100_000, "not valid JSON"),
            ("", "blank; expected one JSON object on every line"),
            ('["a", "b"]', 'JSON, but not an object; expected for example {"source"'),
            ('{"source": "a", "traget": "b"}', "field 'target' is missing; did you mean 'traget'"),
            ('{"source": "a", "target": 0.3}', "field 'target' is 0.3; expected a string"),
            ('{"source": null, "target": ""}', "field 'source' is null; expected a string"),
            (r'{"source": "\ud83d", "target": ""}', r"a \\u escape is half of a surrogate pair"),
        ],
    )
    def test_bad_json(self, tmp_path: Path, line: str, message: str) -> None:
        write(tmp_path / "c.jsonl", '{"source": "a", "target": "b"}\n' + line + "\n")
        with pytest.raises(DataError, match=r"c\.jsonl, line 2: " + message):
            examples(tmp_path, files=["c.jsonl"])

    def test_fields_must_fit_the_task(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="fields: '1', '2', '3' selects 3 texts, but an example has 2 here"):
            examples(tmp_path, files=["c.tsv"], fields=[1, 2, 3])
        with pytest.raises(ConfigError, match=r"'source', 'target' selects 2 texts, .* name 1 in fields \(c\.jsonl\)"):
            examples(tmp_path, ("text",), files=["c.jsonl"], fields=["source", "target"])
        with pytest.raises(ConfigError, match="files: 2 plain text files, but an example has 1 text"):
            examples(tmp_path, ("text",), files=["c.de", "c.en"])


@pytest.mark.parametrize("content", ["a\n", "a", "a\nb", "a\n\n", "\n", "a\r\nb\u2028c\n", "x\n" * 200_000])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_text_is_measured_as_it_is_read(tmp_path: Path, content: str, suffix: str) -> None:
    data = content.encode()
    packed = {"": data, ".gz": gzip.compress(data), ".zst": zstandard.compress(data)}[suffix]
    path = tmp_path / f"text{suffix}"
    path.write_bytes(packed)
    lines = len(list(read_lines(path)))
    assert text_size(path) == TextSize(lines, len(data) + (not data.endswith(b"\n")))
    path.write_bytes(packed[: len(packed) // 2] if suffix else b"")
    assert text_size(path) == TextSize(0, 0)  # reading the file reports what is wrong


class TestBadLines:
    LINES = (b"good\ta", b"n\0l\tb", b"\xff\tc", b"re\rturn\td", b"fine\te")

    @pytest.mark.parametrize("suffix", ["tsv", "txt", "csv"])
    def test_all_are_listed_or_skipped_on_both_sides(self, tmp_path: Path, suffix: str) -> None:
        sides = [b"\n".join(line.split(b"\t")[side] for line in self.LINES) + b"\n" for side in (0, 1)]
        files = ["s.txt", "t.txt"] if suffix == "txt" else [f"a.{suffix}"]
        rows = b"\n".join(self.LINES) + b"\n"
        contents = sides if suffix == "txt" else [rows.replace(b"\t", b",") if suffix == "csv" else rows]
        for name, content in zip(files, contents, strict=True):
            (tmp_path / name).write_bytes(content)
        fields = {"fields": ["1", "2"]} if suffix == "csv" else {}
        corpus = Corpus.parse({"files": files, **fields}, "recipe")
        bad = (2, 3) if suffix == "csv" else (2, 3, 4)
        if suffix == "csv":  # a carriage return outside of quotes ends the reading
            (tmp_path / files[0]).write_bytes(contents[0].replace(b"re\rturn", b'"re\rturn"'))
        with pytest.raises(DataError, match=f"^{len(bad)} lines cannot be read:") as caught:
            list(read_examples(corpus, tmp_path))
        assert all(f"{files[0]}, line {number}: " in str(caught.value) for number in bad)
        bad_lines = BadLines("skip")
        targets = [target for _, target in read_examples(corpus, tmp_path, bad_lines=bad_lines)]
        assert targets == [letter for number, letter in enumerate("abcde", start=1) if number not in bad]
        assert bad_lines.count == len(bad)

    def test_twenty_are_listed_and_all_are_counted(self, tmp_path: Path) -> None:
        write(tmp_path / "a.jsonl", "{}\n" * 30)
        with pytest.raises(DataError, match="30 lines cannot be read") as caught:
            examples(tmp_path, files=["a.jsonl"])
        assert len(re.findall("line [0-9]+:", str(caught.value))) == 20
        assert "and 10 more" in str(caught.value)
