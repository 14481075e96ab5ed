"""Paragraphs of Office Open XML: WordprocessingML (Word) and DrawingML (PowerPoint, and drawings in Word documents).

A paragraph consists of runs, each with its formatting. Adjacent runs with the same formatting are joined, because
spelling checks and editing sessions split runs arbitrarily. The most common formatting in a text gets no tag, so most
texts have no tags. Spaces between words with different formatting also get no tags
(:mod:`headway.documents.office_spaces`). But a run that consists of several spaces, such as a blank to fill in, is an
object that a reader sees as white space. Objects, fields and tracked deletions are kept. Tabs and line breaks separate
texts. Hyperlinks, tracked insertions and similar elements enclose the translations of their words.
"""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from headway.documents.inline_spaces import InlinePart
from headway.documents.inline_tags import InlineText
from headway.documents.mixed_content import match_range_ends
from headway.documents.office_spaces import FixedObject, FormattedText, SpaceFormats
from headway.documents.safe_xml import local_name, remove_invalid_characters

if TYPE_CHECKING:
    from lxml.etree import _Element

WORD_NAMESPACE = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
DRAWING_NAMESPACE = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_CONTAINERS = {"hyperlink", "ins", "moveTo", "smartTag", "customXml", "dir", "bdo", "sdt", "fldSimple"}
_BREAKS = {"tab", "br", "cr", "ptab"}
_DROPPED = {"proofErr", "lastRenderedPageBreak"}  # results of proofing and layout, which Word recomputes
_CHARACTERS = {"noBreakHyphen": "\u2011", "softHyphen": "\u00ad"}
_PROPERTIES = {"sdtPr", "sdtEndPr", "smartTagPr", "customXmlPr", "rPr", "pPr"}
# Content controls whose text is selected, not typed.
_CONTROLS = {"date", "dropDownList", "comboBox", "checkbox", "picture"}
_NO_FORMATTING = {"lang", "noProof"}
_NO_FORMATTING_ATTRIBUTES = {"lang", "altLang", "dirty", "err", "noProof", "smtClean", "bmk"}
_TRANSLATED_FIELD = re.compile(r"\s*(?:HYPERLINK|TOC)\b", re.IGNORECASE)
_MANY_SPACES = 2  # a run that consists of at least this many spaces is layout, not text


@dataclass(frozen=True)
class _RunContent:
    """Content of a run other than text. The document is not changed until the run is written.

    Attributes:
        run: The run that contains the child.
        content: The child of the run that is kept.
        is_only: Whether the run has no other children, so that the run itself can be kept.
    """

    run: _Element
    content: _Element
    is_only: bool

    def to_element(self) -> _Element:
        """Return a run that contains only this content."""
        if self.is_only:
            return self.run
        run: _Element = self.run.makeelement(self.run.tag, dict(self.run.attrib), self.run.nsmap)
        run.extend(copy.deepcopy(child) for child in self.run if local_name(child) == "rPr")
        run.append(self.content)
        return run


@dataclass
class _Part:
    """A part of a paragraph.

    Attributes:
        kind: "text"; "object", which is kept; "space", an object that a reader sees as white space; "break", which
            separates texts; "start" or "end" of a range; "container", which encloses other parts.
        elements: The elements to keep.
        text: The text, or the text that an object displays.
        format: Identifies the formatting of a text: equal for equal formatting.
        properties: The run's ``rPr`` element (its formatting), or None if it has none.
        key: Identifies the range that the part starts or ends.
        children: The parts inside a container.
        field: The role of the part in a field, such as "separate". Empty outside fields.
    """

    kind: Literal["text", "object", "space", "break", "start", "end", "container"]
    elements: list[_Element | _RunContent] = field(default_factory=list)
    text: str = ""
    format: bytes = b""
    properties: _Element | None = None
    key: Any = None
    children: list[_Part] = field(default_factory=list)
    field: str = ""

    @functools.cached_property
    def has_break(self) -> bool:
        """Whether a child is a break or contains one."""
        return any(child.kind == "break" or child.has_break for child in self.children)


_Siblings = defaultdict[Any, list[FormattedText | FixedObject]]  # the new children of each element


@dataclass(frozen=True)
class _ParagraphText:
    """A text in a paragraph.

    Attributes:
        inline: The text to translate.
        base: A part with the formatting of untagged text. None if there is no text.
        spaces: The formatting of the spaces between the words.
    """

    inline: InlineText
    base: _Part | None
    spaces: SpaceFormats


class OfficeParagraph:
    """A paragraph whose texts can be read and replaced with translations."""

    def __init__(self, element: _Element) -> None:
        self._element = element
        self._namespace = str(element.tag).rpartition("}")[0] + "}"
        self._pieces: list[_ParagraphText | InlinePart] = []
        self._add(element, self._merged_fields(list(self._parts(element))))

    @property
    def texts(self) -> list[InlineText]:
        """The texts that contain something to translate."""
        inlines = [piece.inline for piece in self._pieces if isinstance(piece, _ParagraphText)]
        return [inline for inline in inlines if inline.is_translatable]

    def fill(self, translations: Iterator[str]) -> None:
        """Replace the texts with translations. Objects are moved, so that text inside them can also be translated."""
        if not self.texts:
            return
        element, last = self._element, list[Any]()
        for child in list(element):
            if local_name(child) == "endParaRPr":
                last.append(child)
            if local_name(child) != "pPr":
                element.remove(child)
        stack: list[tuple[Any, _Part | None]] = [(element, None)]
        for piece in self._pieces:
            siblings: _Siblings = defaultdict(list)
            if isinstance(piece, InlinePart):
                self._append(siblings, stack, piece)
                self._write(siblings, SpaceFormats())
                continue
            inline = piece.inline
            stack[-1] = stack[-1][0], piece.base
            for part in inline.parse_translation(next(translations) if inline.is_translatable else inline.source.text):
                self._append(siblings, stack, part)
            self._write(siblings, piece.spaces)
        element.extend(last)

    # Reading.

    def _parts(self, parent: _Element) -> Iterator[_Part]:
        for child in parent:
            name = local_name(child)
            if name in _PROPERTIES or name in _DROPPED or name == "endParaRPr":
                continue
            if name == "r":
                yield from self._run_parts(child)
            elif name in _CONTAINERS and self._is_translated(child):
                content = _content(child)
                yield _Part("container", [child], children=self._merged_fields(list(self._parts(content))))
            elif name in _BREAKS:  # a break in DrawingML, which is outside runs
                yield _Part("break", [child])
            elif name.endswith(("Start", "End")):
                kind = name.removesuffix("Start").removesuffix("End")
                yield _Part(
                    "start" if name.endswith("Start") else "end", [child], key=(kind, child.get(WORD_NAMESPACE + "id"))
                )
            else:
                yield _Part("object", [child], "".join(self._visible(child)))

    def _run_parts(self, run: _Element) -> Iterator[_Part]:
        properties = next((child for child in run if local_name(child) == "rPr"), None)
        own_format = _format(properties)
        contents = [child for child in run if local_name(child) != "rPr" and local_name(child) not in _DROPPED]
        for child in contents:
            name = local_name(child)
            # Some programs nest runs inside the text of a run.
            text = "".join(child.itertext()) if name == "t" else _CHARACTERS.get(name)
            is_layout = text is not None and len(text) >= _MANY_SPACES and not text.strip(" ")
            if text is not None and not is_layout:
                for number, piece in enumerate(text.split("\t")):  # PowerPoint stores tabs as characters
                    if number:
                        yield _Part("break", [self._run("\t", properties)])
                    if piece:
                        yield _Part("text", text=piece, format=own_format, properties=properties)
                continue
            kept = _RunContent(run, child, is_only=len(contents) == 1)
            if name in ("fldChar", "instrText"):
                kind = child.get(WORD_NAMESPACE + "fldCharType") if name == "fldChar" else None
                yield _Part("break", [kept], child.text or "", field=kind or "instruction")
            else:
                yield _Part("space" if is_layout else "break" if name in _BREAKS else "object", [kept])

    def _visible(self, element: _Element) -> Iterator[str]:
        if local_name(element) in ("fld", "fldSimple", "sdt", "ruby"):
            yield from (text_element.text or "" for text_element in element.iter(self._namespace + "t"))

    def _is_translated(self, container: _Element) -> bool:
        if local_name(container) == "fldSimple":
            return bool(_TRANSLATED_FIELD.match(container.get(WORD_NAMESPACE + "instr", "")))
        if local_name(container) == "sdt":
            return not _has_fixed_choices(container)
        return True

    def _merged_fields(self, parts: Sequence[_Part]) -> list[_Part]:
        """Join the parts of each field, such as a page number, into one object that is not translated.

        Links and tables of contents are also fields, but their texts are translated. A field that continues in another
        paragraph is kept and separates texts.
        """
        fields = _fields(parts)

        def merge(start: int, stop: int) -> list[_Part]:
            merged: list[_Part] = []
            index = start
            while index < stop:
                if index not in fields:
                    merged.append(parts[index])
                    index += 1
                    continue
                divider, end = fields[index]
                instruction = "".join(part.text for part in parts[index:divider] if part.field == "instruction")
                if _TRANSLATED_FIELD.match(instruction) and divider < end:
                    key = id(parts[index]), "field"
                    merged.append(_Part("start", self._field_elements(parts[index : divider + 1]), key=key))
                    merged += merge(divider + 1, end)
                    merged.append(_Part("end", self._field_elements([parts[end]]), key=key))
                else:
                    visible = "".join(part.text for part in parts[divider + 1 : end + 1] if part.kind == "text")
                    merged.append(_Part("object", self._field_elements(parts[index : end + 1]), visible))
                index = end + 1
            return merged

        return merge(0, len(parts))

    def _field_elements(self, parts: Sequence[_Part]) -> list[_Element | _RunContent]:
        """Return the elements of a field's parts."""
        return [
            element
            for part in parts
            for element in ([self._run(part.text, part.properties)] if part.kind == "text" else part.elements)
        ]

    def _add(self, parent: _Element, parts: Sequence[_Part]) -> None:
        """Add the texts between the breaks among ``parts``."""
        start = 0
        for index, part in enumerate([*parts, _Part("break")]):
            if part.kind == "break" or (part.kind == "container" and part.has_break):
                self._add_text(parent, parts[start:index])
                start = index + 1
            if part.kind == "break":
                self._pieces += [InlinePart("object", payload=part)] if part.elements else []
            elif part.kind == "container" and part.has_break:
                self._pieces.append(InlinePart("open", payload=part))
                self._add(_content(part.elements[0]), part.children)
                self._pieces.append(InlinePart("close", payload=part))

    def _add_text(self, parent: _Element, parts: Sequence[_Part]) -> None:
        inline, spaces = InlineText(has_layout=True), SpaceFormats()
        base = self._add_inline(inline, spaces, parent, parts)
        self._pieces.append(_ParagraphText(inline, base, spaces))

    def _add_inline(
        self, inline: InlineText, spaces: SpaceFormats, parent: _Element, parts: Sequence[_Part]
    ) -> _Part | None:
        """Add parts to a text, and return a part with the formatting of untagged text."""
        spaces.record(map(_text_or_object, parts), parent)
        sizes: Counter[bytes] = Counter()
        for part in parts:
            if part.kind == "text":
                sizes[part.format] += sum(not character.isspace() for character in part.text)
        base = max(sizes, key=lambda text_format: sizes[text_format], default=None)
        base_part = next((part for part in parts if part.kind == "text" and part.format == base), None)
        ranges = match_range_ends([(part.kind, part.key) for part in parts])
        ends = {end: start for start, end in ranges.items()}
        opened: _Part | None = None
        for index, part in enumerate(parts):
            changes = part.kind != "text" or (
                part.format != (base if opened is None else opened.format) and not (part.text.isspace() and index)
            )
            if changes and opened is not None:
                inline.add_closing_tag()
                opened = None
            if part.kind == "text":
                if changes and part.format != base:
                    inline.add_opening_tag(part)
                    opened = part
                inline.add_text(part.text)
            elif part.kind == "container":
                payload = _Container(part)
                inline.add_opening_tag(payload)
                content = _content(part.elements[0])
                payload.base = self._add_inline(inline, spaces, content, part.children) or base_part
                inline.add_closing_tag()
            elif index in ranges:
                inline.add_opening_tag(_PartRange(part, parts[ranges[index]]))
            elif index in ends:
                inline.add_closing_tag()
            elif part.kind == "space":
                inline.add_space(part)
            else:  # an object, or an end of a range that overlaps with another range or continues in another text
                inline.add_object(part, part.text if part.kind == "object" else "")
        if opened is not None:
            inline.add_closing_tag()
        return base_part

    # Writing.

    def _append(self, siblings: _Siblings, stack: list[tuple[Any, _Part | None]], part: InlinePart) -> None:
        """Append a part of a translation.

        ``stack`` contains the open elements, each with the formatting of its untagged text.
        """
        parent, base = stack[-1]
        match part.kind, part.payload:
            case "text", _:
                if part.text:
                    text = " ".join(re.split("[\t\r\n]", remove_invalid_characters(part.text)))
                    siblings[parent].append(_text_or_object(replace(base or _Part("text"), text=text)))
            case "object", _Part() as payload:
                siblings[parent].append(_text_or_object(payload))
            case "open", _PartRange() as payload:
                siblings[parent].append(_text_or_object(payload.start))
                stack.append((parent, base))
            case "close", _PartRange() as payload:
                siblings[parent].append(_text_or_object(payload.end))
                stack.pop()
            case "open", (_Container() | _Part()) as payload:
                container = payload.part if isinstance(payload, _Container) else payload
                if container.kind == "text":
                    stack.append((parent, container))
                    return
                (element,) = _elements(container)
                content = _content(element)
                for child in list(content):
                    if local_name(child) not in _PROPERTIES:
                        content.remove(child)
                siblings[parent].append(_text_or_object(container))
                stack.append((content, payload.base if isinstance(payload, _Container) else base))
            case _:
                stack.pop()

    def _write(self, siblings: _Siblings, spaces: SpaceFormats) -> None:
        """Append the runs and objects of a text to their parent elements."""
        for parent, children in siblings.items():
            for child in spaces.apply(children, parent):
                if isinstance(child, FormattedText):
                    parent.append(self._run(child.text, child.properties))
                else:
                    parent.extend(_elements(child.payload))

    def _run(self, text: str, properties: _Element | None) -> _Element:
        run: _Element = self._element.makeelement(self._namespace + "r", None, None)
        if properties is not None:
            run.append(copy.deepcopy(properties))
        content = run.makeelement(self._namespace + "t", None, None)
        content.text = text
        if self._namespace == WORD_NAMESPACE:
            content.set(_SPACE, "preserve")
        run.append(content)
        return run


@dataclass
class _Container:
    """A container inside a text, and the formatting of its untagged text."""

    part: _Part
    base: _Part | None = None


@dataclass(frozen=True)
class _PartRange:
    """The two parts that mark the ends of a range."""

    start: _Part
    end: _Part


def office_paragraphs(root: _Element) -> Iterator[OfficeParagraph]:
    """Yield the paragraphs in a file, including paragraphs inside objects of other paragraphs.

    Content controls with typed text are disconnected from the document's properties, from which Word would otherwise
    restore the source text.
    """
    for control in root.iter(WORD_NAMESPACE + "sdt"):
        for properties in control[:1]:
            for binding in [] if _has_fixed_choices(control) else properties.findall(WORD_NAMESPACE + "dataBinding"):
                properties.remove(binding)
    for element in root.iter(WORD_NAMESPACE + "p", DRAWING_NAMESPACE + "p"):
        if not any(map(_has_fixed_choices, element.iterancestors(WORD_NAMESPACE + "sdt"))):
            yield OfficeParagraph(element)


def _has_fixed_choices(control: _Element) -> bool:
    """Return whether the text of a content control is selected from a list or a calendar."""
    return any(local_name(setting) in _CONTROLS for properties in control[:1] for setting in properties)


def _content(container: _Element) -> _Element:
    """Return the element inside a container that holds its runs, which may be the container itself."""
    return next((child for child in container if local_name(child) == "sdtContent"), container)


def _text_or_object(part: _Part) -> FormattedText | FixedObject:
    return FormattedText(part.text, part.format, part.properties) if part.kind == "text" else FixedObject(part)


def _elements(part: _Part) -> list[_Element]:
    """Return the kept content of a part as child elements of the paragraph."""
    return [element.to_element() if isinstance(element, _RunContent) else element for element in part.elements]


def _fields(parts: Sequence[_Part]) -> dict[int, tuple[int, int]]:
    """Map the start of each field that ends among ``parts`` to the indices of its separator and its end.

    For a field without a separator, the index of its end is used as both.
    """
    fields: dict[int, tuple[int, int]] = {}
    opened: list[tuple[int, int | None]] = []  # the beginnings of the enclosing fields, and their separators
    for index, part in enumerate(parts):
        if part.field == "begin":
            opened.append((index, None))
        elif opened and part.field == "separate" and opened[-1][1] is None:
            opened[-1] = opened[-1][0], index
        elif opened and part.field == "end":
            begin, divider = opened.pop()
            fields[begin] = index if divider is None else divider, index
    return fields


def _format(properties: _Element | None) -> bytes:
    """Return bytes that identify the formatting: equal for equal formatting."""
    if properties is None:
        return b""
    from lxml import etree

    formatting = copy.deepcopy(properties)
    formatting.tail = None
    for child in list(formatting):
        if local_name(child) in _NO_FORMATTING:
            formatting.remove(child)
    for name in _NO_FORMATTING_ATTRIBUTES:
        formatting.attrib.pop(name, None)
    if not len(formatting) and not formatting.attrib:
        return b""
    canonical: bytes = etree.tostring(formatting, method="c14n")
    return canonical
