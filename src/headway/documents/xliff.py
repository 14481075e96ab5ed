"""XLIFF 1.2 and 2.x. Sources without a translation are translated.

Existing translations are kept, unless their state marks them as needing translation. Ids, notes, inline codes, and
elements with ``translate="no"`` are also kept. New translations are marked with ``state="translated"`` and, in XLIFF
1.2, also with ``state-qualifier="mt-suggestion"``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headway.documents.content import DocumentContent, DocumentError, DocumentText, ReadingOptions
from headway.documents.html_in_xliff import (
    HtmlTarget,
    contains_cdata,
    elements_to_tags,
    make_html_detector,
    role_of_tag,
    tags_to_elements,
    write_as_cdata,
)
from headway.documents.mixed_content import InlineElement, MixedContent
from headway.documents.safe_xml import local_name, parse_xml
from headway.predict.markup.icu_messages import may_have_branches

if TYPE_CHECKING:
    from lxml.etree import _Element

_UNTRANSLATED = ("new", "needs-translation", "initial")
_LINE_BREAK_NAMES = frozenset({"lb", "x-html-br", "xlf:lb", "LINE_BREAK"})
_LINE_BREAK = re.compile(r"\s*<br\s*/?>\s*|[ \t]*(?:\\r)?(?:\\n|[\r\n])\s*", re.IGNORECASE)
_SPACE = re.compile(r"(?:\s|&nbsp;|&#160;|\\t)+")
_XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_UNIT_1, _UNIT_2 = "trans-unit", "segment"


def read_xliff(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read an XLIFF file.

    Raises:
        DocumentError: The file is not valid, or its version is unknown.
        MissingPackageError: lxml is not installed.
    """
    data = path.read_bytes()
    file, has_cdata = parse_xml(data, options.limits), b"<![CDATA[" in data
    root = file.root
    version = root.get("version", "")
    if local_name(root) != "xliff" or version.partition(".")[0] not in ("1", "2"):
        raise DocumentError(
            f"the file is not XLIFF (element {local_name(root)}, version {version!r})", accepted="1.2 or 2"
        )
    units = list(_units(root, _UNIT_1 if version.startswith("1") else _UNIT_2))
    has_html = make_html_detector(root, options.text_syntax)
    targets: list[tuple[_Element, _Element]] = []
    contents: list[MixedContent | HtmlTarget] = []
    cdata: list[_Element] = []
    for unit, keeps_space in units:
        target = _target(unit)
        targets.append((unit, target))
        if has_cdata and contains_cdata(target):
            cdata.append(target)
        if not has_html(unit, target):
            contents += _contents(unit, target, keeps_space)
        elif len(target):
            tags_to_elements(target)
            contents += _contents(unit, target, keeps_space)
        else:
            contents.append(HtmlTarget(target, keeps_space=_keeps_space(target, keeps_space)))

    def write(translations: Sequence[str], target_path: Path) -> None:
        remaining = iter(translations)
        for content in contents:
            content.fill(remaining)
        for target in cdata:
            write_as_cdata(target)
        for unit, target in targets:
            elements_to_tags(target)
            _set_target(unit, target)
        target_path.write_bytes(file.to_bytes())

    texts: list[DocumentText] = []
    for content in contents:
        texts += content.texts if isinstance(content, HtmlTarget) else [text.source for text in content.texts]
    return DocumentContent(texts, write)


def _units(element: _Element, name: str) -> Iterator[tuple[_Element, bool]]:
    """Yield each unit that needs a translation, and whether its white space is kept.

    Elements with ``translate="no"`` are skipped with all their content.
    """
    inherited = [(element, True, False)]
    while inherited:
        node, is_translated, keeps_space = inherited.pop()
        is_translated = {"no": False, "yes": True}.get(node.get("translate", ""), is_translated)
        keeps_space = _keeps_space(node, keeps_space)
        if local_name(node) != name:
            inherited += [
                (child, is_translated, keeps_space) for child in reversed(node) if local_name(child) != "alt-trans"
            ]
        elif is_translated and _needs_translation(node):
            yield node, keeps_space


def _keeps_space(element: _Element, inherited: bool) -> bool:
    """Return whether the white space of an element is kept (``xml:space``)."""
    return {"preserve": True, "default": False}.get(element.get(_XML_SPACE, ""), inherited)


def _child(unit: _Element, name: str) -> _Element | None:
    return next((child for child in unit if local_name(child) == name), None)


def _needs_translation(unit: _Element) -> bool:
    target = _child(unit, "target")
    if _child(unit, "source") is None or unit.get("approved") == "yes":
        return False
    state = None if target is None else target.get("state", unit.get("state"))
    return target is None or state in _UNTRANSLATED or not "".join(target.itertext()).strip()


def _target(unit: _Element) -> _Element:
    """Return a new target with the content of the source, divided into segments if the source is segmented."""
    source = _child(unit, "seg-source")
    if source is None:
        source = _child(unit, "source")
    assert source is not None
    target = copy.deepcopy(source)
    target.tag = str(source.tag).replace("seg-source", "target").replace("source", "target")
    old = _child(unit, "target")
    attributes = {} if old is None else dict(old.attrib)
    spaces = {name: value for name, value in source.attrib.items() if name == _XML_SPACE}
    target.attrib.clear()
    target.attrib.update(spaces | attributes)
    return target


def _contents(unit: _Element, target: _Element, keeps_space: bool) -> Iterator[MixedContent]:
    parent = unit.getparent()
    data = () if parent is None else parent.iterfind("{*}originalData/{*}data")
    native_codes = {entry.get("id", ""): entry.text or "" for entry in data}
    segments = [mark for mark in target.iter() if local_name(mark) == "mrk" and mark.get("mtype") == "seg"]
    classify, keeps_space = partial(_classify, native_codes=native_codes), _keeps_space(target, keeps_space)
    for element in segments or [target]:
        # Line breaks in an ICU message do not separate texts.
        is_message = may_have_branches("".join(element.itertext()))
        yield MixedContent(
            element,
            (lambda child: _without_break(classify(child))) if is_message else classify,
            has_lines=keeps_space and not is_message,
        )


def _classify(element: _Element, native_codes: Mapping[str, str]) -> InlineElement:
    """Return the role of an inline element. ``native_codes`` maps ids to the native codes that the unit stores."""
    if tag := role_of_tag(element):
        return tag
    match local_name(element):
        case "g" | "pc":
            return InlineElement("pair")
        case "mrk":
            is_kept = element.get("mtype") == "protected" or element.get("translate") == "no"
            return InlineElement("keep" if is_kept else "pair")
        case "bpt" | "bx":
            return InlineElement("start", element.get("rid", element.get("id")))
        case "ept" | "ex":
            return InlineElement("end", element.get("rid", element.get("id")))
        case "sc":
            return InlineElement("start", element.get("id"))
        case "ec":
            return InlineElement("end", element.get("startRef"))
        case "x" | "ph" | "it":
            return _classify_code(element, native_codes)
        case _:
            return InlineElement("object")


def _classify_code(code: _Element, native_codes: Mapping[str, str]) -> InlineElement:
    """Return the role of an inline code without content, from its names and the native code that it represents."""
    names = [code.get(name, "") for name in ("ctype", "subType", "equiv", "id")]
    native = native_codes.get(code.get("dataRef", ""))
    shown = [text for text in (code.get("equiv-text"), code.get("disp"), code.text, native) if text]
    if not _LINE_BREAK_NAMES.isdisjoint(names) or any(map(_LINE_BREAK.fullmatch, shown)):
        return InlineElement("break")
    return InlineElement("space" if any(map(_SPACE.fullmatch, shown)) else "object")


def _without_break(inline: InlineElement) -> InlineElement:
    """Return the role of an inline element in a text that is not split at breaks."""
    return InlineElement("space") if inline.role == "break" else inline


def _set_target(unit: _Element, target: _Element) -> None:
    """Insert a target into its unit, and set the unit's state."""
    old = _child(unit, "target")
    if local_name(unit) == _UNIT_1:
        target.set("state", "translated")
        target.set("state-qualifier", "mt-suggestion")
    else:
        unit.set("state", "translated")
    if old is not None:
        target.tail = old.tail
        unit.replace(old, target)
        return
    before = _child(unit, "seg-source")
    if before is None:
        before = _child(unit, "source")
    assert before is not None
    target.tail = before.tail
    before.addnext(target)
