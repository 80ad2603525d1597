"""Elements by plain functions: every text and attribute is escaped, so that no name can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_VOID = frozenset({"meta", "br"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def escaped(value: object) -> Markup:
    """Text as markup; what is no visible text (control characters, halves of a pair, marks that turn the direction)
    becomes U+FFFD."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape("".join(c if _is_text(ord(c)) else "\ufffd" for c in str(value)), quote=True))


def _is_text(code: int) -> bool:
    if code < 0x20:
        return code in (0x09, 0x0A)
    return not (0x7F <= code < 0xA0 or 0xD800 <= code <= 0xDFFF or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069)


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """One element. ``class_`` is written class, underscores inside names become hyphens; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "" if name in _VOID else f"{joined(children)}</{name}>"
    return Markup(f"<{name}{written}>{inner}")


def joined(children: Child) -> Markup:
    """Children one after the other; None is nothing."""
    if children is None:
        return Markup()
    if isinstance(children, str | int | float):
        return escaped(children)
    return Markup("".join(joined(child) for child in children))


def grid(caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]], *, words: int = 1) -> Markup:
    """A table. The first cell of a row is its heading; columns from `words` on hold numbers, set flush right. It
    scrolls sideways by itself, also by keyboard."""

    def css(column: int) -> str | None:
        return "n" if column >= words else None

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
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """A list of terms; pairs without a value are left out."""
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs if value not in ("", None)])
