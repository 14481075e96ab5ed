r"""Find the branches in ICU messages, such as ``{count, plural, one {# file} other {# files}}``.

An argument of the type ``plural``, ``select``, ``selectordinal`` or ``choice`` contains branches, which are messages
themselves. Branches are translated as separate texts. The rest of the argument, its *skeleton*, is kept.

The syntax follows ICU's MessageFormat with the apostrophe mode ``DOUBLE_OPTIONAL``: ``''`` is an apostrophe, and an
apostrophe before a syntax character quotes the text up to the next apostrophe. ``{{...}}`` is accepted as an argument
without branches, because Angular's templates contain it in branches. Arguments with invalid syntax or more than 16
nested levels are ignored. The running time is proportional to the length of the text.

https://unicode-org.github.io/icu/userguide/format_parse/messages/
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from headway.predict.markup.document import STAND_IN_PATTERN, DocumentBuilder, Item, Pieces

_MAX_DEPTH = 16
_HEADER = (
    r"\{\s*+(?P<name>[^\s{},](?:[^{},\n]{0,98}[^\s{},])?)\s*+,\s*+"
    r"(?P<type>plural|selectordinal|select|choice)\s*+,\s*+"
)
_OFFSET = re.compile(r"offset\s*+:\s*+\d++\s*+")
_SELECTOR = re.compile(r"\s*+(?:=\s*+\d++|[^\s{}=,'<>|]++)\s*+\{")
_LIMIT = re.compile(
    r"\s*+-?(?:\d+(?:\.\d+)?|∞)\s*(?:[#<≤]|&lt;)"
)  # limit before a branch of an argument of type "choice"
_ARGUMENT_END = re.compile(r"\s*\}")
_SIMPLE = r"[$%]?\{\{[^{}]*+\}\}|[$%]?\{[^{}]*+\}"
_QUOTED = r"'(?=[{}#|])(?P<quoted>(?:[^']++|'')*+)'"
_TOKEN = re.compile(rf"(?P<header>{_HEADER})|(?P<simple>{_SIMPLE})|''|{_QUOTED}|[{{}}|]")
_LITERAL = re.compile(rf"(?P<simple>{_SIMPLE})|(?P<apostrophe>'')|{_QUOTED}|(?P<number>(?<!&)#)")
_BRACES = re.compile(r"\{[^{}]*\}|[{}#|]")
_START = re.compile(_HEADER)


@dataclass(frozen=True)
class Branch:
    """The message for one case of an argument.

    Attributes:
        start: Start of the message, after the opening brace.
        end: End of the message.
        special: Characters besides braces that have a special meaning in the message: ``#`` in plurals, ``|`` in
            choices.
        arguments: The arguments in the message that contain branches.
    """

    start: int
    end: int
    special: str
    arguments: tuple[BranchingArgument, ...]


@dataclass(frozen=True)
class BranchingArgument:
    """An argument that contains branches, and its position in the text."""

    start: int
    end: int
    name: str
    branches: tuple[Branch, ...]


def find_branching_arguments(text: str) -> tuple[BranchingArgument, ...]:
    """Return the outermost arguments with branches in a text, from left to right.

    Tags in the text must have been replaced by characters that have no special meaning in messages.
    """
    arguments: list[BranchingArgument] = []
    position = 0
    while token := _TOKEN.search(text, position):
        position = token.end()
        if token["header"]:
            argument = _argument(text, token, "", _MAX_DEPTH)
            position = token.start() + 1 if argument is None else argument.end
            arguments += [] if argument is None else [argument]
    return tuple(arguments)


def _argument(text: str, header: re.Match[str], special: str, depth: int) -> BranchingArgument | None:
    """Return the argument that begins with a header, or None if its syntax is invalid."""
    position = header.end()
    is_choice = header["type"] == "choice"
    if header["type"] in ("plural", "selectordinal"):
        special += "#"
        if offset := _OFFSET.match(text, position):
            position = offset.end()
    elif is_choice:
        special += "|"
    branches: list[Branch] = []
    while start := (_LIMIT if is_choice else _SELECTOR).match(text, position):
        branch = _branch(text, start.end(), special, "|}" if is_choice else "}", depth - 1)
        if branch is None:
            return None
        branches.append(branch)
        position = branch.end + 1
        if is_choice and text[branch.end] == "}":
            position = branch.end  # the brace ends the argument
            break
    end = _ARGUMENT_END.match(text, position)
    return BranchingArgument(header.start(), end.end(), header["name"], tuple(branches)) if branches and end else None


def _branch(text: str, start: int, special: str, ends: str, depth: int) -> Branch | None:
    """Return the branch that begins at ``start`` and ends before one of the characters ``ends``."""
    arguments: list[BranchingArgument] = []
    position = start
    while depth >= 0 and (token := _TOKEN.search(text, position)):
        if token.group() in ends:
            return Branch(start, token.start(), special, tuple(arguments))
        position = token.end()
        if token["header"]:
            argument = _argument(text, token, special, depth)
            if argument is None:
                return None
            arguments.append(argument)
            position = argument.end
        elif token.group() in "{}":
            return None
    return None


class MessageReader:
    """Parses a text that contains arguments with branches. Each branch is parsed as a separate text.

    While the text is parsed, each argument, each ``#`` and each quoted brace is replaced by a stand-in.

    Args:
        text: The text with arguments.
        parse: Parses a text without arguments. It returns the pieces, and adds segments to the given builder.
        hide_tags: Replaces the tags in a text with other characters, so that no tag looks like a part of a message.
        is_message: Whether the text outside arguments is also a message, so that apostrophes may quote.
    """

    def __init__(
        self,
        text: str,
        parse: Callable[[str, DocumentBuilder], Pieces],
        *,
        hide_tags: Callable[[str], str] = str,
        is_message: bool = True,
    ) -> None:
        self._text, self._parse, self._is_message = text, parse, is_message
        self._hidden = hide_tags(text) if may_have_branches(text) else ""
        self._doubles = "''" in self._hidden
        self._arguments = () if STAND_IN_PATTERN.search(text) else find_branching_arguments(self._hidden)

    def pieces(self, builder: DocumentBuilder) -> Pieces:
        """Return the pieces of the text."""
        if not self._arguments:
            return self._parse(self._text, builder)
        whole = Branch(0, len(self._text), "", self._arguments)
        if self._is_message:
            return self._message(whole, builder)
        inner_builder = builder.nested(str)
        return inner_builder.restore(
            self._parse(self._replace_arguments(whole, inner_builder, self._source), inner_builder)
        )

    def _source(self, start: int, end: int, _: DocumentBuilder) -> str:
        return self._text[start:end]

    def _message(self, branch: Branch, builder: DocumentBuilder) -> Pieces:
        """Return the pieces of a message."""
        inner_builder = builder.nested(make_literal_writer(branch.special, doubles=self._doubles))

        def unquote(start: int, end: int, inner_builder: DocumentBuilder) -> str:
            return self._unquoted(start, end, inner_builder, "#" in branch.special)

        return inner_builder.restore(
            self._parse(self._replace_arguments(branch, inner_builder, unquote), inner_builder)
        )

    def _replace_arguments(
        self, branch: Branch, inner_builder: DocumentBuilder, read: Callable[[int, int, DocumentBuilder], str]
    ) -> str:
        out: list[str] = []
        position = branch.start
        for argument in branch.arguments:
            out.append(read(position, argument.start, inner_builder))
            position = argument.end
            if inner_builder.keeps_icu_messages:
                source = self._text[argument.start : argument.end]
                out.append(inner_builder.add_stand_in(Item("text", (source,), source)))
            else:
                out.append(
                    inner_builder.add_stand_in(
                        Item("placeholder", self._argument(argument, inner_builder), f"{{{argument.name}}}")
                    )
                )
        return "".join([*out, read(position, branch.end, inner_builder)])

    def _argument(self, argument: BranchingArgument, builder: DocumentBuilder) -> Pieces:
        pieces: list[str | int] = []
        position = argument.start
        for branch in argument.branches:
            pieces += (self._text[position : branch.start], *self._message(branch, builder))
            position = branch.end
        return (*pieces, self._text[position : argument.end])

    def _unquoted(self, start: int, end: int, inner_builder: DocumentBuilder, in_plural: bool) -> str:
        """Return a part of a message that contains no arguments with branches, as it is displayed."""
        out: list[str] = []
        position = start
        for match in _LITERAL.finditer(self._hidden, start, end):
            if match["simple"] or (match["number"] and not in_plural):
                continue
            out.append(self._text[position : match.start()])
            position = match.end()
            if match["apostrophe"]:
                out.append("'")
            elif match["number"]:
                out.append(inner_builder.add_stand_in(Item("placeholder", ("#",), "#")))
            else:
                quoted = self._text[match.start("quoted") : match.end("quoted")].replace("''", "'")
                out.append(_BRACES.sub(lambda braces: inner_builder.add_stand_in(_quoted_item(braces.group())), quoted))
        return "".join([*out, self._text[position:end]])


def may_have_branches(text: str) -> bool:
    """Return whether a text contains the start of an argument with branches."""
    return _START.search(text) is not None


def _quoted_item(braces: str) -> Item:
    return Item("placeholder", (f"'{braces}'",), braces)


def make_literal_writer(special: str, *, doubles: bool) -> Callable[[str], str]:
    """Return a function that escapes text for a message.

    Args:
        special: See :class:`Branch`.
        doubles: Whether every apostrophe is doubled. Otherwise, only apostrophes that would quote the text after them
            are doubled.
    """
    syntax = rf"{{}}{special}"
    pattern = re.compile(rf"(?<!&)[{syntax}](?:['{syntax}])*|'" + ("" if doubles else r"(?=['{}#|]|\Z)"))

    def write(text: str) -> str:
        return pattern.sub(
            lambda match: "''" if match.group() == "'" else "'" + match.group().replace("'", "''") + "'", text
        )

    return write
