"""HTML and SVG by plain functions: every text and attribute is escaped, so that no name can become markup."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

_VOID = frozenset({"meta", "br", "hr", "link", "input"})
_NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'"


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


class Elements:
    """The elements of one kind of page.

    `control` shows a control character below U+0020 by its code. What else is no visible text (halves of a pair, other
    control characters, marks that turn the direction) becomes U+FFFD.
    """

    def __init__(self, control: Callable[[int], str]) -> None:
        self._control = control

    def escaped(self, value: object) -> Markup:
        """Text as markup."""
        if isinstance(value, Markup):
            return value
        return Markup(html.escape("".join(map(self._visible, str(value))), quote=True))

    def tag(self, name: str, /, *children: Child, **attributes: object) -> Markup:
        """One element. Underscores of attribute names become hyphens (a last one is dropped: ``class_``); None and
        False leave an attribute out, True writes it bare."""
        written = "".join(
            f" {_name(key)}" if value is True else f' {_name(key)}="{self.escaped(value)}"'
            for key, value in attributes.items()
            if value is not None and value is not False
        )
        inner = "" if name in _VOID else f"{self.joined(children)}</{name}>"
        return Markup(f"<{name}{written}>{inner}")

    def joined(self, children: Child) -> Markup:
        """Children one after the other; None is nothing."""
        if children is None:
            return Markup()
        if isinstance(children, str | int | float):
            return self.escaped(children)
        return Markup("".join(self.joined(child) for child in children))

    def table(
        self, caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]], *, numbers: Iterable[int] = ()
    ) -> Markup:
        """A table with the first cell of each row as the row's heading. `numbers`: columns set flush right.

        It scrolls sideways by itself on narrow screens, also by keyboard.
        """
        tag = self.tag
        right = set(numbers)

        def css(column: int) -> str | None:
            return "n" if column in right else None

        head = tag("tr", [tag("th", name, scope="col", class_=css(i)) for i, name in enumerate(header)])
        body = [
            tag(
                "tr",
                [
                    tag("td", cell, class_=css(i)) if i else tag("th", cell, scope="row", class_=css(i))
                    for i, cell in enumerate(row)
                ],
            )
            for row in rows
        ]
        whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
        return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)

    def facts(self, pairs: Iterable[tuple[str, Child]]) -> Markup:
        """A list of terms; pairs without a value are left out."""
        tag = self.tag
        return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs if value not in ("", None)])

    def page(self, title: str, style: str, main: Child) -> str:
        """The whole document, which may load nothing and run no script."""
        tag = self.tag
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_NOTHING_LOADED),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
            tag("style", Markup(style)),
        )
        return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', main)), lang='en')}\n"

    def _visible(self, character: str) -> str:
        code = ord(character)
        if character in "\n\t" or 0x20 <= code < 0x7F or (code >= 0xA0 and not _unsafe(code)):
            return character
        return self._control(code) if code < 0x20 else "\ufffd"


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _unsafe(code: int) -> bool:
    """Halves of a surrogate pair, and the marks that turn the direction of the text around them."""
    return 0xD800 <= code <= 0xDFFF or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
