"""YAML text of a model spec -> plain values, with the position of every key and value kept for error messages.

The YAML 1.2 core rules are used rather than PyYAML's YAML 1.1: ``no``, ``on`` and ``1:30`` stay text, ``1e-4`` is a
number. A key given twice is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tritonstack.errors import UsageError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class SpecText:
    """The values of a YAML file and where they stand: key path -> (line, column), both counted from 1."""

    path: Path
    values: dict[str, Any]
    positions: dict[KeyPath, tuple[int, int]]

    def where(self, key_path: KeyPath) -> str:
        """``file:line:column`` of the key, or of its nearest enclosing key that stands in the file."""
        while key_path and key_path not in self.positions:
            key_path = key_path[:-1]
        line, column = self.positions.get(key_path, (1, 1))
        return f"{self.path}:{line}:{column}"


class _CoreLoader(yaml.SafeLoader):
    """SafeLoader with the YAML 1.2 core resolvers."""


_CoreLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text.lower().startswith(("0x", "0o")) else int(text)


_CoreLoader.add_constructor("tag:yaml.org,2002:int", _int)


def read_spec_text(path: Path) -> SpecText:
    """Read and parse `path`. Raises UsageError with file:line:column for anything that is not a YAML mapping."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such spec file: {path}", next_step="give the path of a YAML model spec") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory", expected="a YAML model spec") from None
    except OSError as error:
        raise UsageError(f"cannot read the spec {path}: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: the spec is not UTF-8 text (byte {error.start})") from None
    loader = _CoreLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise UsageError(f"{path}: the spec is empty", expected="at least `name` and `model`")
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path}:1:1: the spec is not a mapping", expected="keys such as `name:` and `model:`")
        positions: dict[KeyPath, tuple[int, int]] = {}
        _walk(node, (), positions, path)
        values = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        raise UsageError(f"{at}: not valid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise UsageError(f"{path}:{line}: not valid YAML: {error.reason}") from None
    except RecursionError:
        raise UsageError(f"{path}: the spec refers to itself through an alias") from None
    finally:
        loader.dispose()
    return SpecText(path, values, positions)


def _walk(node: yaml.Node, at: KeyPath, positions: dict[KeyPath, tuple[int, int]], path: Path) -> None:
    positions.setdefault(at, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            mark = key.start_mark
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{path}:{mark.line + 1}:{mark.column + 1}: a key has to be plain text")
            if key.value in seen:
                raise UsageError(f"{path}:{mark.line + 1}:{mark.column + 1}: the key {key.value!r} is given twice")
            seen.add(key.value)
            positions[(*at, key.value)] = (mark.line + 1, mark.column + 1)
            _walk(value, (*at, key.value), positions, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*at, index), positions, path)
