"""values.yaml read with its comments, which are the documentation of its keys.

A comment stands directly above its key. Its last lines may begin with `@`, followed by a JSON Schema fragment in YAML
flow style that is added to what the default value says by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonstack.errors import UsageError

_KEY = re.compile(r"^(?P<indent> *)(?P<item>- )?(?P<key>[A-Za-z][A-Za-z0-9]*):(?: (?P<rest>.*))?$")


@dataclass(frozen=True)
class Entry:
    """One key. `path` names it from the root, with "[]" for an item of a list."""

    path: tuple[str, ...]
    default: Any
    prose: str
    rules: Mapping[str, Any]
    children: tuple[Entry, ...] = field(default=())

    @property
    def name(self) -> str:
        """The path as the README shows it: `models[].target.busy`."""
        return ".".join(self.path).replace(".[]", "[]")

    def walk(self) -> Iterator[Entry]:
        """This entry and all below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_values(text: str) -> tuple[Entry, ...]:
    """Return the file's top-level entries.

    Raises UsageError where a line is no comment, key or item, or a key has no comment and is no map.
    """
    import yaml

    defaults = yaml.safe_load(text)
    comments, order = _comments(text)
    return _entries((), defaults, comments, order)


def _comments(text: str) -> tuple[dict[tuple[str, ...], list[str]], list[tuple[str, ...]]]:
    """Comment lines by path, and all paths in order."""
    comments: dict[tuple[str, ...], list[str]] = {}
    order: list[tuple[str, ...]] = []
    pending: list[str] = []
    stack: list[tuple[int, str]] = []  # indentation and key of the maps that are open
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            pending = []
        elif line.lstrip().startswith("#"):
            pending.append(line.lstrip()[1:].strip())
        elif match := _KEY.match(line):
            indent = len(match["indent"])
            while stack and stack[-1][0] >= indent + (2 if match["item"] else 0):
                stack.pop()
            if match["item"]:
                stack.append((indent, "[]"))
                indent += 2
            path = (*(key for _, key in stack), match["key"])
            order.append(path)
            comments[path] = pending
            pending = []
            stack.append((indent, match["key"]))
        elif not line.lstrip().startswith("- "):
            raise UsageError(
                f"line {number} of values.yaml is no comment, key or item",
                given=line.strip(),
                next_step="write block style: one key a line, its comment above",
            )
    return comments, order


def _entries(
    prefix: tuple[str, ...],
    values: Mapping[str, Any],
    comments: Mapping[tuple[str, ...], list[str]],
    order: list[tuple[str, ...]],
) -> tuple[Entry, ...]:
    import yaml

    entries = []
    for key, default in values.items():
        path = (*prefix, key)
        lines = comments.get(path, [])
        prose = " ".join(line for line in lines if not line.startswith("@"))
        rules: dict[str, Any] = {}
        for line in lines:
            if line.startswith("@"):
                rules |= yaml.safe_load(line[1:])
        children: tuple[Entry, ...] = ()
        below = [known for known in order if len(known) > len(path) and known[: len(path)] == path]
        if isinstance(default, dict) and below:
            children = _entries(path, default, comments, order)
        elif isinstance(default, list) and default and isinstance(default[0], dict):
            # Only items whose keys are written out with comments are documented one by one.
            children = _entries((*path, "[]"), default[0], comments, order) if any(comments[p] for p in below) else ()
        entries.append(Entry(path, default, prose, rules, children))
    return tuple(entries)
