"""Translation memories: the texts of all versions, and files that are broken or hostile."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from headway.data import tmx
from headway.data.bad_lines import BadLines, LineProblem
from headway.data.readers import Corpus, read_examples
from headway.data.tmx import read_tmx
from headway.errors import ConfigError, DataError
from headway.tasks import parse_recipe

MEMORY = Path("memory.tmx")
START = '<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/>\n<body>\n'
END = "</body></tmx>\n"
HELLO = '<tu><tuv xml:lang="de"><seg>Hallo</seg></tuv><tuv xml:lang="en"><seg>Hello</seg></tuv></tu>\n'


def texts_of(content: str | bytes, *languages: str) -> list[tuple[str, ...] | LineProblem]:
    data = content.encode() if isinstance(content, str) else content
    return list(read_tmx([data], MEMORY, languages or ("de", "en")))


def unit(**texts: str) -> str:
    return "<tu>" + "".join(f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in texts.items()) + "</tu>"


def memory(*units: str) -> str:
    return START + "\n".join(units) + END


class TestTexts:
    @pytest.mark.parametrize(
        ("segment", "text"),
        [
            ("a &amp; b &lt;c&gt; &#233;", "a & b <c> é"),
            ("<![CDATA[a < b]]>", "a < b"),
            ('Guten <bpt i="1">&lt;b&gt;</bpt>Tag<ept i="1">&lt;/b&gt;</ept>!', "Guten Tag!"),
            ('a<ph x="1">{0}</ph>b<it pos="begin">i</it>c<ut>u</ut>d', "abcd"),
            ('<ph>image <sub type="alt">a <hi>sun</hi></sub></ph>rises', "rises"),
            ('see <hi type="bold">this <ph/>word</hi> again', "see this word again"),
            ("\n    one\n    two  three\r\n  ", "one two  three"),
            ("  spaces ", "  spaces "),
            ("", ""),
        ],
    )
    def test_a_segment_is_its_text_without_inline_codes_and_line_ends(self, segment: str, text: str) -> None:
        assert texts_of(memory(unit(de=segment, en="x"))) == [(text, "x")]

    def test_old_versions_other_encodings_and_a_document_type_are_read(self) -> None:
        old = (
            '<?xml version="1.0" encoding="{}"?><!DOCTYPE tmx SYSTEM "tmx11.dtd">\n<tmx version="1.1"><body>'
            '<tu><tuv lang="DE-DE"><seg>über</seg></tuv><tuv lang="EN-US"><seg>over</seg></tuv></tu></body></tmx>'
        )
        for encoding in ("utf-8", "utf-16", "iso-8859-1", "windows-1252"):
            assert texts_of(old.format(encoding).encode(encoding)) == [("über", "over")]

    def test_blocks_may_end_anywhere(self) -> None:
        data = memory(unit(de="Grüße\nan alle", en="a &amp; b"), HELLO).encode()
        one_by_one = read_tmx((data[n : n + 1] for n in range(len(data))), MEMORY, ("de", "en"))
        assert list(one_by_one) == texts_of(data) == [("Grüße an alle", "a & b"), ("Hallo", "Hello")]


class TestLanguages:
    @pytest.mark.parametrize(
        ("wanted", "text"),
        [
            ("de", "plain"),
            ("DE", "plain"),
            ("de-AT", "Austria"),
            ("de_at", "Austria"),
            ("zh", "Taiwan"),
            ("en", "first"),
        ],
    )
    def test_a_language_stands_for_its_regions_and_an_exact_match_comes_first(self, wanted: str, text: str) -> None:
        variants = {"de-AT": "Austria", "de": "plain", "zh-Hant-TW": "Taiwan", "en-US": "first", "en-GB": "second"}
        assert texts_of(memory(unit(**variants)), wanted) == [(text,)]

    def test_a_unit_without_one_of_the_languages_is_left_out(self) -> None:
        assert texts_of(memory(unit(de="a", fr="b"), HELLO, unit(den="x", en="y"))) == [("Hallo", "Hello")]

    def test_languages_that_no_unit_has_are_an_error_that_lists_those_of_the_file(self) -> None:
        with pytest.raises(
            DataError, match=r"memory.tmx: no translation unit has a text in each .* fr, en; the file .* de"
        ):
            texts_of(memory(HELLO), "fr", "en")
        with pytest.raises(DataError, match="contains no translation unit"):
            texts_of(memory())

    def test_a_variant_without_a_language_is_the_problem_of_its_line(self) -> None:
        bad = HELLO.replace(' xml:lang="en"', "")
        problem, good = texts_of(memory(HELLO, bad, HELLO))[1:]
        assert str(problem) == "memory.tmx, line 6: a <tuv> without a language; expected the attribute xml:lang"
        assert good == ("Hallo", "Hello")


def endless_text() -> Iterable[bytes]:
    yield (START + '<tu><tuv xml:lang="de"><seg>').encode()
    while True:
        yield b"x" * 1000


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (memory("<tu>") , r"line 4, column \d+: not valid XML \(mismatched tag\)"),
            (START + HELLO + "\n&nbsp;", r"line 6, column 1: not valid XML \(undefined entity\)"),
            (memory(unit(de="a &#x1F; b", en="x")), "line 4, column .*: not valid XML"),
            (START + HELLO, "line 5: the file is incomplete"),
            (START + HELLO + "<tu", "line 5: the file is incomplete"),
            ("", "line 1: the file contains no XML"),
            ("plain text\n", "line 1, column 1: not valid XML"),
            ("<html></html>", "line 1: the XML is <html>, not <tmx>"),
            (START + "<a>" * 200, "line 4: more than 100 nested elements"),
            (f'<!DOCTYPE tmx [\n<!ENTITY a "ha">\n<!ENTITY b "&a;&a;">]>{HELLO}', "line 2: declares the entity 'a'"),
            (f'<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>{HELLO}', "line 1: declares the entity 'a'"),
            (
                '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><body>\n' + unit(de="a&nbsp;b", en="x"),
                "line 2: the entity &nbsp; is unknown",
            ),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named_with_its_line(self, content: str, message: str) -> None:
        with pytest.raises(DataError, match=f"^memory.tmx, {message}"):
            texts_of(content)

    def test_a_unit_or_a_tag_that_does_not_end_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tmx, "_MAX_UNIT", 10_000)
        monkeypatch.setattr(tmx, "_MAX_TAG", 10_000)
        with pytest.raises(DataError, match="line 4: a translation unit of more than 10,000 characters"):
            list(read_tmx(endless_text(), MEMORY, ("de", "en")))
        for tag in (b"<!-- ", b"<tu a='"):
            blocks = (START.encode() if number == 0 else tag + b"x" * 1000 for number in range(1000))
            with pytest.raises(DataError, match=r"line 4: a tag or comment|not valid XML"):
                list(read_tmx(blocks, MEMORY, ("de", "en")))

    def test_memory_does_not_grow_with_the_file(self) -> None:
        def peak(units: int) -> int:
            blocks = (START.encode() if number == 0 else HELLO.encode() * 100 for number in range(units // 100))
            tracemalloc.start()
            with pytest.raises(DataError, match="incomplete"):
                for _ in read_tmx(blocks, MEMORY, ("de", "en")):
                    pass
            size = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return size

        peak(1_000)
        assert peak(8_000) < peak(1_000) + 2_000 * len(HELLO.encode())  # the file has 7,000 units more


class TestCorpus:
    def test_a_corpus_may_be_a_compressed_memory(self, tmp_path: Path) -> None:
        (tmp_path / "m.tmx.gz").write_bytes(gzip.compress(memory(HELLO * 3).encode()))
        corpus = Corpus.parse({"files": ["m.tmx.gz"], "fields": ["en", "de"]}, "recipe")
        assert corpus.size(tmp_path).lines == 3
        assert list(read_examples(corpus, tmp_path)) == [("Hello", "Hallo")] * 3

    def test_units_are_counted_in_every_encoding(self, tmp_path: Path) -> None:
        for encoding in ("utf-8", "utf-16"):
            (tmp_path / "m.tmx").write_bytes(memory(HELLO.strip() * 5).encode(encoding))
            assert Corpus(files=("m.tmx",)).size(tmp_path).lines == 5

    def test_problems_of_units_may_be_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "m.tmx").write_text(memory(HELLO, HELLO.replace(' xml:lang="de"', "")))
        corpus, bad_lines = Corpus(files=("m.tmx",), fields=("de", "en")), BadLines("skip")
        assert list(read_examples(corpus, tmp_path, bad_lines=bad_lines)) == [("Hallo", "Hello")]
        assert bad_lines.count == 1

    def test_languages_must_be_named_and_are_those_of_the_task_by_default(self, tmp_path: Path) -> None:
        (tmp_path / "m.tmx").write_text(memory(HELLO))
        with pytest.raises(ConfigError, match=r"m\.tmx is a translation memory; specify the languages"):
            list(read_examples(Corpus(files=("m.tmx",)), tmp_path))
        with pytest.raises(ConfigError, match="fields: 'de,en' is not a language"):
            Corpus.parse({"files": ["m.tmx"], "fields": ["de,en", "fr"]}, "recipe")
        recipe: dict[str, dict[str, object]] = {
            "task": {"source_language": "en", "target_language": "de"},
            "data": {"train": [{"files": ["m.tmx"]}, {"files": ["m.tmx"], "fields": ["en-GB", "de"]}]},
        }
        train = parse_recipe(recipe, "recipe").with_resolved_options(None).data.train
        assert [corpus.fields for corpus in train] == [("en", "de"), ("en-GB", "de")]
        recipe["task"] = {}
        assert parse_recipe(recipe, "recipe").with_resolved_options(None).data.train[0].fields is None
