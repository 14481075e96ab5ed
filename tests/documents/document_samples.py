"""Documents of every format, as people write them, made at random.

Words to translate begin with "tra", and words to keep with "kee". Each occurs once in a document, so that a test sees
whether each text was translated exactly once and nothing was lost.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Words:
    """Makes words that occur only once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.translated: list[str] = []
        self.kept: list[str] = []
        self._letters = ("".join(each) for each in itertools.product("bcdfghjklm", repeat=4))

    def word(self) -> str:
        """Return a word to translate."""
        self.translated.append(f"tra{next(self._letters)}")
        return self.translated[-1]

    def keep(self) -> str:
        """Return a word that stays as it is."""
        self.kept.append(f"kee{next(self._letters)}")
        return self.kept[-1]

    def sentence(self, most: int = 12) -> str:
        """Return a few words with a full stop."""
        return " ".join(self.word() for _ in range(self.random.randint(2, most))) + self.random.choice(".?!")

    def paragraph(self) -> str:
        """Return a few sentences."""
        return " ".join(self.sentence() for _ in range(self.random.randint(1, 5)))

    def tagged(self, start: str, end: str) -> str:
        """Return words with a pair of tags, inside or outside of which are the spaces beside them."""
        form = self.random.choice(["{} [{}] {}", "{}[ {}] {}", "{} [{} ]{}", "{}[ {} ]{}"])
        return form.format(self.word(), self.word(), self.word()).replace("[", start).replace("]", end)

    def chance(self, probability: float = 0.5) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability


def make_txt(words: Words, path: Path) -> None:
    parts = []
    for _ in range(words.random.randint(3, 12)):
        kind = words.random.randrange(5)
        if kind == 0:
            title = words.sentence(4)
            parts.append(f"{title}\n{'=' * len(title)}")
        elif kind == 1:
            width = words.random.choice((60, 72, 80))
            parts.append(textwrap.fill(words.paragraph(), width, break_on_hyphens=False))
        elif kind == 2:
            item = {"initial_indent": "  - ", "subsequent_indent": "    "}
            parts.append("\n".join(textwrap.fill(words.paragraph(), 70, **item) for _ in range(3)))  # type: ignore[arg-type]
        elif kind == 3:
            parts.append(f"{words.sentence()} https://{words.keep()}.org/{words.keep()}")
        else:
            parts.append("\n".join(f"    {words.word()}:\t{words.word()}" for _ in range(3)))
    text = "\n\n".join(parts) + "\n"
    path.write_bytes(text.replace("\n", "\r\n" if words.chance(0.2) else "\n").encode())


def make_html(words: Words, path: Path) -> None:
    body = []
    for _ in range(words.random.randint(3, 10)):
        kind = words.random.randrange(7)
        if kind == 0:
            body.append(f'<h2 id="{words.keep()}">{words.sentence(4)}</h2>')
        elif kind == 1:
            link = f'<a href="{words.keep()}.html" title="{words.word()}">{words.word()} {words.word()}</a>'
            body.append(
                f"<p>{words.sentence()} {link} <em>{words.word()}</em>, {words.sentence()}\n<br>{words.sentence()}</p>"
            )
        elif kind == 2:
            rows = "".join(f"<tr><th>{words.word()}</th><td>{words.sentence()}</td></tr>\n" for _ in range(3))
            body.append(f'<table class="{words.keep()}">\n{rows}</table>')
        elif kind == 3:
            body.append(f"<pre><code>{words.keep()} &lt;{words.keep()}&gt;</code></pre><!-- {words.keep()} -->")
        elif kind == 4:
            body.append(
                f'<p>{words.word()} <span translate="no">{words.keep()}</span> {words.word()} '
                f"<code>{words.keep()}</code></p>"
            )
        elif kind == 5:
            body.append(f"<p>{words.tagged('<b>', '</b>')} {words.tagged('<i><u>', '</u></i>')}.</p>")
        else:
            body.append(
                f"<ul>{''.join(f'<li>{words.sentence()}' for _ in range(3))}</ul>"
                f'<img src="{words.keep()}.png" alt="{words.word()}">'
            )
    script = f"<script>if (1 < 2) document.write('<p>{words.keep()}</p>')</script>"
    head = f"<!DOCTYPE html>\n<html>\n<head><meta charset=utf-8><title>{words.sentence()}</title>{script}</head>\n"
    path.write_text(head + "<body>\n" + "\n".join(body) + "\n</body></html>\n")


def make_md(words: Words, path: Path) -> None:
    parts = [f"---\nid: {words.keep()}\n---"] if words.chance() else []
    for _ in range(words.random.randint(3, 10)):
        kind = words.random.randrange(8)
        if kind == 0:
            parts.append(f"{'#' * words.random.randint(1, 4)} {words.sentence(4)}")
        elif kind == 1:
            text = (
                f"{words.paragraph()} **{words.word()} {words.word()}** {words.word()} `{words.keep()}`, "
                f"[{words.word()}]({words.keep()}.md) {words.paragraph()}"
            )
            parts.append(textwrap.fill(text, 78, break_on_hyphens=False) if words.chance() else text)
        elif kind == 2:
            parts.append("\n".join(f"{mark} {words.sentence()}" for mark in ("-", "-", "  1.", "  2.")))
        elif kind == 3:
            parts.append(f"```sh\n{words.keep()} --{words.keep()}\n```")
        elif kind == 4:
            rows = [f"| {words.word()} | *{words.word()}* |", "|---|:-:|", f"| {words.sentence()} | `{words.keep()}` |"]
            parts.append("\n".join(rows))
        elif kind == 5:
            parts.append("\n".join(f"> {words.sentence()}" for _ in range(2)))
        elif kind == 6:
            parts.append(f"{words.sentence()} [{words.word()}][x]\n\n[x]: https://{words.keep()}.org")
        else:
            parts.append(f'<div class="{words.keep()}">\n<p>{words.sentence()}</p>\n</div>')
    path.write_text("\n\n".join(parts) + "\n")


def _cues(words: Words, separator: str, tag: str) -> list[str]:
    cues = []
    for number in range(words.random.randint(4, 12)):
        start = f"00:{number:02}:01{separator}000 --> 00:{number:02}:04{separator}500"
        text = words.random.choice(
            [
                words.sentence(5),
                f"{words.sentence(5)}\n{words.sentence(6)}",
                f"<i>{words.sentence(4)}</i>",
                f"- {words.sentence(4)}\n- {words.sentence(4)}",
                f"{tag}{words.word()} {words.word()}",
                words.tagged("<i>", "</i>"),
            ]
        )
        cues.append(f"{start}\n{text}")
    used = "\n".join(cues)
    words.translated[:] = [word for word in words.translated if word in used]  # choice made some in vain
    return cues


def make_srt(words: Words, path: Path) -> None:
    cues = _cues(words, ",", "{\\an8}")
    path.write_bytes(
        "\r\n\r\n".join(
            f"{number}\r\n{cue}".replace("\n", "\r\n").replace("\r\r", "\r") for number, cue in enumerate(cues, 1)
        ).encode()
    )


def make_vtt(words: Words, path: Path) -> None:
    cues = _cues(words, ".", "<v Mary>")
    start = f"WEBVTT - {words.keep()}\n\nNOTE {words.keep()}\n\nSTYLE\n::cue {{ color: {words.keep()} }}\n\n"
    path.write_text(start + "\n\n".join(f"{words.keep()}\n{cue}" for cue in cues) + "\n")


def make_po(words: Words, path: Path) -> None:
    header = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
    )
    entries = [header]
    for _ in range(words.random.randint(3, 10)):
        kind = words.random.randrange(5)
        if kind == 0:
            entries.append(
                f'#: {words.keep()}.c:12\n#, c-format\nmsgid "{words.word()} %s {words.word()}\\n"\nmsgstr ""'
            )
        elif kind == 1:
            entries.append(f'#. {words.keep()}\nmsgctxt "{words.keep()}"\nmsgid "{words.word()}"\nmsgstr ""')
        elif kind == 2:
            entries.append(f'msgid "%d {words.word()}"\nmsgid_plural "%d {words.word()}"\nmsgstr[0] ""\nmsgstr[1] ""')
        elif kind == 3:
            entries.append(f'# {words.keep()}\nmsgid "{words.keep()}"\nmsgstr "{words.keep()}"')
        else:
            entries.append(f'#~ msgid "{words.keep()}"\n#~ msgstr "{words.keep()}"')
    path.write_text("\n\n".join(entries) + "\n")


def make_xliff(words: Words, path: Path) -> None:
    g, pc = ('<g id="1">', "</g>"), ('<pc id="1">', "</pc>")
    if words.chance():
        units = "".join(
            f'<trans-unit id="{words.keep()}"><source>{words.tagged(*g)}<x id="2"/></source>'
            f'<note>{words.keep()}</note></trans-unit>\n<trans-unit id="{words.keep()}" translate="no">'
            f"<source>{words.keep()}</source></trans-unit>\n"
            for _ in range(5)
        )
        path.write_text(
            f'<?xml version="1.0"?>\n<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">\n'
            f'<file original="{words.keep()}" '
            f'source-language="en" target-language="de" datatype="plaintext"><body>\n{units}</body></file>\n</xliff>\n'
        )
    else:
        units = "".join(
            f'<unit id="{words.keep()}"><notes><note>{words.keep()}</note></notes><segment>'
            f"<source>{words.tagged(*pc)} "
            f'<mrk id="m" translate="no">{words.keep()}</mrk></source></segment></unit>\n'
            for _ in range(5)
        )
        path.write_text(
            f'<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">\n'
            f'<file id="{words.keep()}">\n{units}</file></xliff>'
        )


def make_json(words: Words, path: Path) -> None:
    def value(depth: int) -> Any:
        kind = words.random.randrange(6 if depth else 3)
        if kind == 0:
            return {words.keep(): value(depth - 1) for _ in range(3)} if depth else words.sentence()
        if kind == 1:
            return f"{words.word()} {{{{name}}}} „{words.word()}“\n{words.word()}"
        if kind == 2:
            return words.random.choice([12, 1.5, True, None, "", "12:30"])
        if kind == 3:
            return [value(depth - 1) for _ in range(2)]
        return words.sentence()

    data = {words.keep(): value(3) for _ in range(4)}
    indent = words.random.choice([None, 2, "\t"])
    path.write_text(json.dumps(data, indent=indent, ensure_ascii=words.chance(0.2)))


def make_docx(words: Words, path: Path) -> None:
    import docx
    from docx.oxml import parse_xml

    name = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    document = docx.Document()
    document.add_heading(words.sentence(4), 1)
    for _ in range(words.random.randint(3, 8)):
        kind = words.random.randrange(6)
        paragraph = document.add_paragraph(style=words.random.choice(["Normal", "List Bullet", "Quote"]))
        paragraph.add_run(words.sentence() + " ")
        if kind == 0:
            space = words.random.randrange(3)  # the run that has it: the bold one, one of its own, or the italic one
            bold, between, start = (" " * (space == number) for number in range(3))
            paragraph.add_run(f"{words.word()} {words.word()}{bold}").bold = True
            paragraph.add_run(between)
            for part in re.split("(?<=tra)", start + words.sentence()):
                paragraph.add_run(part).italic = True
        elif kind == 1:
            paragraph.add_run().add_tab()
            paragraph.add_run(words.word()).add_break()
            paragraph.add_run(words.word())
        elif kind == 2:
            table = document.add_table(2, 2)
            for cell in table._cells:
                cell.text = words.sentence(4)
        elif kind == 3:
            document.add_comment(paragraph.runs, words.sentence(), author=words.keep())
        elif kind == 4:
            p = paragraph._p
            p.append(
                parse_xml(
                    f'<w:ins {name} w:id="7" w:author="{words.keep()}"><w:r><w:t>{words.word()}</w:t></w:r></w:ins>'
                )
            )
            p.append(
                parse_xml(
                    f'<w:del {name} w:id="8" w:author="{words.keep()}"><w:r><w:delText>{words.keep()}</w:delText></w:r>'
                    "</w:del>"
                )
            )
        else:
            p = paragraph._p
            for own in (
                '<w:fldChar w:fldCharType="begin"/>',
                f'<w:instrText xml:space="preserve"> REF {words.keep()} </w:instrText>',
                '<w:fldChar w:fldCharType="separate"/>',
                f"<w:t>{words.keep()}</w:t>",
                '<w:fldChar w:fldCharType="end"/>',
            ):
                p.append(parse_xml(f"<w:r {name}>{own}</w:r>"))
            paragraph.add_run(" " + words.sentence())
    section = document.sections[0]
    section.header.paragraphs[0].text, section.footer.paragraphs[0].text = words.sentence(), words.sentence()
    document.save(str(path))


def make_pptx(words: Words, path: Path) -> None:
    import pptx

    presentation = pptx.Presentation()
    for _ in range(words.random.randint(1, 4)):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = words.sentence(4)
        frame = slide.placeholders[1].text_frame
        frame.text = words.sentence()
        paragraph = frame.add_paragraph()
        paragraph.level = 1
        for bold, form in ((False, "{} "), (True, "{}"), (True, " {}"), (False, " {}")):
            run = paragraph.add_run()
            run.text = form.format(words.word())
            run.font.bold = bold
        paragraph.add_line_break()
        paragraph.add_run()
        paragraph.runs[-1]._r.t.text = f"{words.word()}\t{words.word()}"
        if words.chance():
            table = slide.shapes.add_table(2, 2, 0, 0, 100000, 100000).table
            for cell in table.iter_cells():
                cell.text = words.sentence(3)
        if words.chance():
            slide.notes_slide.notes_text_frame.text = words.paragraph()
    presentation.save(str(path))


def make_odt(words: Words, path: Path) -> None:
    from odf import office, style, table, text
    from odf.opendocument import OpenDocumentText

    document = OpenDocumentText()
    bold = style.Style(name="Bold", family="text")
    bold.addElement(style.TextProperties(fontweight="bold"))
    document.automaticstyles.addElement(bold)
    layout = style.PageLayout(name="pl")
    document.automaticstyles.addElement(layout)
    page = style.MasterPage(name="Standard", pagelayoutname=layout)
    header = style.Header()
    header.addElement(text.P(text=words.sentence()))
    page.addElement(header)
    document.masterstyles.addElement(page)
    body = document.text
    body.addElement(text.H(outlinelevel=1, text=words.sentence(4)))
    for number in range(words.random.randint(3, 8)):
        kind = words.random.randrange(5)
        paragraph = text.P(text=words.sentence() + " ")
        body.addElement(paragraph)
        if kind == 0:
            before, _, rest = words.tagged("<", ">").partition("<")
            inside, _, after = rest.partition(">")
            paragraph.addText(before)
            paragraph.addElement(text.Span(stylename=bold, text=inside))
            paragraph.addText(f"{after} {words.sentence()}")
        elif kind == 1:
            paragraph.addElement(text.LineBreak())
            paragraph.addText(words.word() + " ")
            paragraph.addElement(text.A(href=f"https://{words.keep()}.org", text=words.word()))
        elif kind == 2:
            note = text.Note(noteclass="footnote", id=f"ftn{number}")
            note.addElement(text.NoteCitation(text="1"))
            note_body = text.NoteBody()
            note_body.addElement(text.P(text=words.sentence()))
            note.addElement(note_body)
            paragraph.addElement(note)
            paragraph.addText(words.word())
        elif kind == 3:
            annotation = office.Annotation(name=words.keep())
            annotation.addElement(text.P(text=words.sentence()))
            paragraph.addElement(annotation)
            paragraph.addText(words.word())
        else:
            rows = table.Table(name=words.keep())
            rows.addElement(table.TableColumn(numbercolumnsrepeated=2))
            for _ in range(2):
                row = table.TableRow()
                rows.addElement(row)
                for _ in range(2):
                    cell = table.TableCell()
                    cell.addElement(text.P(text=words.sentence(3)))
                    row.addElement(cell)
            body.addElement(rows)
    document.save(str(path))


MAKERS: dict[str, Callable[[Words, Path], None]] = {
    "txt": make_txt,
    "html": make_html,
    "md": make_md,
    "srt": make_srt,
    "vtt": make_vtt,
    "po": make_po,
    "xliff": make_xliff,
    "json": make_json,
    "docx": make_docx,
    "odt": make_odt,
    "pptx": make_pptx,
}
OFFICE = ("docx", "odt", "pptx")


def all_text(path: Path) -> str:
    """Return everything in a document that may be text: the file, or all XML files of a package."""
    if path.suffix[1:] not in OFFICE:
        return path.read_bytes().decode()
    with zipfile.ZipFile(path) as archive:
        return "\n".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".xml"))
