"""HTML and SVG by plain functions: every text and attribute is escaped, so no name can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_VOID = {"meta", "br", "hr", "link", "input"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | Markup | int | float | None | Iterable["Child"]


def escape(value: object) -> Markup:
    """Text as markup. Characters that are no text (control characters, halves of a pair) become visible or U+FFFD."""
    if isinstance(value, Markup):
        return value
    clean = "".join(_visible(character) for character in str(value))
    return Markup(html.escape(clean, quote=True))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or 0x20 <= code < 0x7F or (code >= 0xA0 and not _unsafe(code)):
        return character
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def _unsafe(code: int) -> bool:
    """Halves of a surrogate pair, and the marks that turn the direction of the text around them."""
    return 0xD800 <= code <= 0xDFFF or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element. Underscores of attribute names become hyphens (a last one is dropped: ``class_``); None and False
    leave an attribute out, True writes it bare."""
    written = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Children one after the other; None is nothing."""
    if children is None:
        return Markup()
    if isinstance(children, str | int | float):
        return escape(children)
    return Markup("".join(join(child) for child in children))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def data_table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]], *, numbers: Iterable[int] = ()
) -> Markup:
    """A table with its first cell of each row as the row's heading. `numbers`: columns set flush right.

    It scrolls sideways by itself on narrow screens, also by keyboard.
    """
    right = set(numbers)

    def css(column: int) -> str | None:
        return "n" if column in right else None

    head = tag("tr", [tag("th", name, scope="col", class_=css(i)) for i, name in enumerate(header)])
    body = [
        tag(
            "tr",
            [
                tag("th", cell, scope="row", class_=css(i)) if i == 0 else tag("td", cell, class_=css(i))
                for i, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)
