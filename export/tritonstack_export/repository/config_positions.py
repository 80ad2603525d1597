"""Where each field of a config.pbtxt stands, so that a finding can point at its line.

Protobuf's parser forgets positions; this scanner walks the tokens of a text that already parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tritonstack_export.repository.config_tokens import LineIndex, Position, Token, TokenProblem, tokens

_CLOSING = {"{": "}", "<": ">"}


@dataclass
class _Node:
    """One occurrence of a field: where its value starts, its word when it is a scalar, its children by name."""

    offset: int
    scalar: str | None = None
    children: dict[str, list[_Node]] = field(default_factory=dict)


class ConfigPositions:
    """Positions by path: ``at("input", 0, "dims", 1)`` is the second dim of the first input.

    A name that no index follows means its first occurrence. A path that does not exist answers with its nearest
    existing parent, and None when there is none at all.
    """

    def __init__(self, text: str) -> None:
        self._lines = LineIndex(text)
        try:
            self._root = _Scanner(list(tokens(text))).message()
        except TokenProblem:
            self._root = _Node(0)

    def at(self, *path: str | int) -> Position | None:
        node, depth = self._walk(path)
        return self._lines.position(node.offset) if depth else None

    def has(self, *path: str | int) -> bool:
        """Whether the text writes the field at `path` itself."""
        _, depth = self._walk(path)
        return depth == sum(isinstance(part, str) for part in path)

    def map_entry(self, path: tuple[str | int, ...], key: str) -> tuple[str | int, ...]:
        """The path of the entry of the map at `path` whose key is `key` (the last one: that one counts)."""
        *parent, name = path
        node, _ = self._walk(tuple(parent))
        entries = node.children.get(str(name), [])
        for index in range(len(entries) - 1, -1, -1):
            keys = entries[index].children.get("key", [])
            if keys and keys[0].scalar == key:
                return (*path, index)
        return path

    def repeated_keys(self, *path: str | int) -> list[str]:
        """Keys of the map at `path` that are written more than once; protobuf silently keeps the last."""
        *parent, name = path
        node, _ = self._walk(tuple(parent))
        keys = [
            entry.children["key"][0].scalar or ""
            for entry in node.children.get(str(name), [])
            if "key" in entry.children
        ]
        return sorted({key for key in keys if keys.count(key) > 1})

    def _walk(self, path: tuple[str | int, ...]) -> tuple[_Node, int]:
        node, depth, rest = self._root, 0, list(path)
        while rest:
            name = str(rest.pop(0))
            index = int(rest.pop(0)) if rest and isinstance(rest[0], int) else 0
            occurrences = node.children.get(name, [])
            if index >= len(occurrences):
                # `dims: []` has no first element to point at, but the field itself may stand there.
                return node, depth
            node = occurrences[index]
            depth += 1
        return node, depth


class _Scanner:
    """A recursive walk over tokens known to parse; lists of messages and scalars become occurrences in order."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._next = 0

    def message(self, closing: str | None = None) -> _Node:
        first = self._peek()
        node = _Node(first.offset if first else 0)
        while (token := self._peek()) is not None and token.text != closing:
            self._next += 1
            if token.kind in ("word", "number"):
                node.children.setdefault(token.text, []).extend(self._values(token))
        self._next += 1
        return node

    def _values(self, name: Token) -> list[_Node]:
        token = self._peek()
        if token is not None and token.text == ":":
            self._next += 1
            token = self._peek()
        if token is None:
            return []
        if token.text != "[":
            return [self._value(name.offset)]
        self._next += 1
        values: list[_Node] = []
        while (token := self._peek()) is not None and token.text != "]":
            if token.text == ",":
                self._next += 1
            else:
                values.append(self._value(token.offset))
        self._next += 1
        return values

    def _value(self, offset: int) -> _Node:
        token = self._peek()
        if token is None:
            return _Node(offset)
        self._next += 1
        if token.text in _CLOSING and token.kind == "mark":
            node = self.message(_CLOSING[token.text])
            node.offset = offset
            return node
        text = token.text
        if text == "-" and (number := self._peek()) is not None:
            self._next += 1
            return _Node(offset, text + number.text)
        if token.kind == "string":
            return _Node(offset, self._strings(token))
        return _Node(offset, text)

    def _strings(self, first: Token) -> str:
        """The decoded value of adjacent string tokens, which the format joins."""
        from google.protobuf import text_encoding

        parts = [first.text[1:-1]]
        while (token := self._peek()) is not None and token.kind == "string":
            parts.append(token.text[1:-1])
            self._next += 1
        return text_encoding.CUnescape("".join(parts)).decode("utf-8", errors="replace")

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None
