"""``headway translate`` with whole documents, and docs/documents.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import docx
import pytest
from command_line import assert_refused, run

from headway.documents import translate_document
from headway.documents.formats import FORMATS
from headway.predict import Translator, load_translator

GUIDE = (Path(__file__).parents[2] / "docs" / "documents.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def home(make_translator: Callable[..., Translator], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("documents")
    make_translator("bpe").bundle.save(home / "MODEL", "# Card")
    document = docx.Document()
    paragraph = document.add_paragraph("das rote ")
    paragraph.add_run("Haus").bold = True
    document.save(str(home / "report.docx"))
    (home / "page.html").write_text("<p>das <b>rote</b> Haus</p>\n")
    (home / "latin.md").write_bytes("das rote Haus, größe\n".encode("latin-1"))
    (home / "notes.txt").write_text("das rote Haus\n\nein Baum\n")
    return home


def test_the_examples_of_the_guide_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    commands = re.findall(r"^    (headway .*)$", GUIDE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        result = run(*shlex.split(command)[1:])
        assert (result.code, result.out, result.err) == (0, "", "")
    written = (home / "report.en.docx").read_bytes()
    (home / "report.en.docx").unlink()
    scope: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(example, scope)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "1 ()"
    assert re.fullmatch(r"report.docx: the file has [\d,]+ bytes; expected at most 1,000", second)
    assert (home / "report.en.docx").read_bytes() == written


def test_the_guide_lists_every_extension() -> None:
    for each in FORMATS.values():
        assert " ".join(f"`{extension[1:]}`" for extension in each.extensions) in GUIDE or each.name in ("srt", "vtt")


def test_options_of_the_search_apply(home: Path, tmp_path: Path) -> None:
    result = run("translate", home / "MODEL", "-i", home / "page.html", "-o", tmp_path / "b.html", "--max-length", 3)
    assert result.code == 0
    from headway.decode import DecodingOptions

    translate_document(
        load_translator(home / "MODEL"), home / "page.html", tmp_path / "c.html", DecodingOptions(max_length=3)
    )
    assert (tmp_path / "b.html").read_text() == (tmp_path / "c.html").read_text()


def test_a_glossary_applies_and_its_terms_are_counted(home: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("Haus\thound\nBaum\ttree\n")
    words = ("translate", home / "MODEL", "-i", home / "report.docx", "--glossary", tmp_path / "terms.tsv")
    result = run(*words, "-o", tmp_path / "b.docx")
    assert (result.code, result.err) == (0, "headway: glossary terms met: 1 of 1\n")
    assert "hound" in docx.Document(str(tmp_path / "b.docx")).paragraphs[0].text.lower()


def test_text_files_are_lines_unless_the_option_says_otherwise(home: Path, tmp_path: Path) -> None:
    words = ("translate", home / "MODEL", "-i", home / "notes.txt")
    lines = run(*words).out
    assert lines.count("\n") == 3
    run(*words, "-o", tmp_path / "notes.txt", "--document-format", "txt")
    assert (tmp_path / "notes.txt").read_text() == lines
    page = run("translate", home / "MODEL", "-i", home / "page.html", "--document-format", "lines", "--no-protect")
    assert page.out.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-i", "report.docx"], "a document needs --input and --output; add -o report.out.docx$"),
        (["-i", "page.html"], "add -o page.out.html; --document-format lines translates each line of the input"),
        (["-i", "report.docx", "-o", "b.docx", "--n-best", "2"], "does not apply to a document; leave it out$"),
        (["-i", "page.html", "-o", "b.html", "--format", "json"], "leave it out, or add --document-format lines"),
        (["-i", "report.docx", "-o", "b.pdf"], "documents are not converted; expected b.docx"),
        (["-i", "page.html", "-o", "b.pdf"], "expected b.html or b.htm or b.xhtml"),
        (["-i", "page.html", "-o", "b.html", "--encoding", "latin-99"], "unknown encoding 'latin-99'"),
        (
            ["-i", "latin.md", "-o", "b.md"],
            "it may be windows-1252 .*; convert it to UTF-8, or .*: --encoding windows-12",
        ),
        (["-i", "notes.txt", "--encoding", "latin-1"], "--encoding applies to documents only"),
        (
            ["-i", "report.docx", "-o", "b.docx", "--document-format", "doc"],
            "'doc' is unknown; expected auto, lines, txt",
        ),
        (["-i", "report.docx", "-o", "b.pptx", "--document-format", "pptx"], "is not a PowerPoint presentation"),
        (["-i", "report.docx", "-o", "b.odt"], "documents are not converted"),
        (["-i", "none.docx", "-o", "b.docx"], "none.docx: there is no such file"),
        (["-i", "report.docx", "-o", "report.docx"], "the same file"),
    ],
)
def test_what_is_refused(words: list[str], message: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert_refused(run("translate", "MODEL", *words), message)
    assert not (home / "b.docx").exists()
