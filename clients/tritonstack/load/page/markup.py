"""The elements of the page; control characters are shown as U+FFFD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tritonstack.page.elements import Child, Elements, Markup

__all__ = ["Child", "Markup", "escaped", "facts", "grid", "joined", "page", "tag"]

_ELEMENTS = Elements(lambda code: "\ufffd")
escaped, tag, joined, facts, page = (
    _ELEMENTS.escaped,
    _ELEMENTS.tag,
    _ELEMENTS.joined,
    _ELEMENTS.facts,
    _ELEMENTS.page,
)


def grid(caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]], *, words: int = 1) -> Markup:
    """A table whose columns from `words` on hold numbers, set flush right."""
    return _ELEMENTS.table(caption, header, rows, numbers=range(words, len(header)))
