"""The elements of the report; control characters are shown by their pictures (U+2400 and above)."""

from __future__ import annotations

from tritonstack.page.elements import Child, Elements, Markup

__all__ = ["Child", "Markup", "data_table", "escape", "facts", "join", "page", "tag"]

_ELEMENTS = Elements(lambda code: chr(0x2400 + code))
escape, tag, join, facts, page, data_table = (
    _ELEMENTS.escaped,
    _ELEMENTS.tag,
    _ELEMENTS.joined,
    _ELEMENTS.facts,
    _ELEMENTS.page,
    _ELEMENTS.table,
)
