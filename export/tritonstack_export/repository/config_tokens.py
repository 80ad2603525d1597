"""The words of a config.pbtxt with their positions.

Triton reads the file with protobuf's C++ text parser, which is stricter than the Python one about what may stand
outside of strings (ASCII only, no ``1_000``, no ``+5``). The tokens here follow the C++ rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["word", "number", "string", "mark"]

_SKIP = re.compile(r"(?:[ \t\r\n\v\f]+|#[^\n]*)+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9.][0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9A-Za-z_.]*)?")
_STRING = re.compile(r"\"(?:[^\"\\\n]|\\[^\n])*\"|'(?:[^'\\\n]|\\[^\n])*'")
# Group 1 catches what is no escape of the C++ parser; known ones match without it.
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\?'\"]|[0-7]{1,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})"
    r"|(\\.)"
)
_STRICT_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?"
)
_PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}|\$[A-Za-z_]\w*|\{\{[^}\n]*\}\}|<%[^\n]*?%>")
_ASCII_LOOKALIKES = {
    "\u201c": '"',
    "\u201d": '"',
    "\u2018": "'",
    "\u2019": "'",
    "\u00a0": "a plain space",
    "\u2013": "-",
    "\u2212": "-",
}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a text file; both numbers start at 1, columns count characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    offset: int


class TokenProblem(Exception):
    """Text that is no token: `offset` is its place, `problem` what is wrong and `fix` what mends it."""

    def __init__(self, problem: str, *, offset: int, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset
        self.fix = fix


class LineIndex:
    """Turns character offsets of one text into lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def position(self, offset: int) -> Position:
        from bisect import bisect_right

        line = bisect_right(self._starts, offset)
        return Position(line, offset - self._starts[line - 1] + 1)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text` in order.

    Raises TokenProblem at the first character that Triton's parser refuses whatever the schema says.
    """
    offset, end = 0, len(text)
    while True:
        skipped = _SKIP.match(text, offset)
        if skipped:
            offset = skipped.end()
        if offset >= end:
            return
        token = _token_at(text, offset)
        yield token
        offset += len(token.text)


def _token_at(text: str, offset: int) -> Token:
    char = text[offset]
    placeholder = _PLACEHOLDER.match(text, offset)
    if placeholder:
        raise TokenProblem(
            f"unresolved placeholder {placeholder.group()}",
            offset=offset,
            fix="fill the template in before it becomes a config.pbtxt",
        )
    if char in "\"'":
        string = _STRING.match(text, offset)
        if string is None:
            raise TokenProblem(
                "the string has no closing quote on its line", offset=offset, fix=f"close it with {char}"
            )
        escape = _ESCAPE.search(string.group())
        while escape and not escape.group(1):
            escape = _ESCAPE.search(string.group(), escape.end())
        if escape:
            raise TokenProblem(
                f"the string holds the unknown escape {escape.group(1)}",
                offset=offset + escape.start(),
                fix=f"write a backslash itself as two: \\{escape.group(1)}",
            )
        return Token("string", string.group(), offset)
    word = _WORD.match(text, offset)
    if word:
        return Token("word", word.group(), offset)
    number = _NUMBER.match(text, offset) if char.isascii() and (char.isdigit() or char == ".") else None
    if number and number.group() != ".":
        if not _STRICT_NUMBER.fullmatch(number.group()):
            raise TokenProblem(
                f"{number.group()!r} is no number", offset=offset, fix="write plain digits, such as 1000"
            )
        return Token("number", number.group(), offset)
    if char == "+":
        raise TokenProblem("a number takes no plus sign", offset=offset, fix="drop the +")
    if not char.isascii():
        likely = _ASCII_LOOKALIKES.get(char)
        raise TokenProblem(
            f"the character {char!r} (U+{ord(char):04X}) stands outside of quotes, where only ASCII is allowed",
            offset=offset,
            fix=f"replace it with {likely}" if likely else "remove it, or put it inside a quoted string",
        )
    if not char.isprintable():
        raise TokenProblem(
            f"control character U+{ord(char):04X} in the text", offset=offset, fix="remove it; is this a text file?"
        )
    return Token("mark", char, offset)
