"""Class labels: read from where the spec says, checked, and written one per line as Triton reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tritonstack.errors import InputError, UsageError
from tritonstack_export.checkpoint import resolve_resource
from tritonstack_export.factory import import_attribute
from tritonstack_export.spec import Labels


def read_labels(labels: Labels, *, folder: Path) -> tuple[str, ...]:
    """The labels in the order of the classes. Raises UsageError or InputError for text that cannot be a label file."""
    if labels.values is not None:
        found: Sequence[Any] = labels.values
    elif labels.file is not None:
        found = _from_file(resolve_resource(labels.file, folder=folder, key="labels.file"))
    else:
        value = import_attribute(labels.package or "", folder=folder, key="labels.package")
        if callable(value):
            try:
                value = value()
            except Exception as error:
                raise InputError(f"labels.package: {labels.package!r} failed: {error}") from error
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            raise InputError(
                f"labels.package: {labels.package!r} gives {type(value).__name__}", expected="a list of str"
            )
        found = list(value)
    for index, label in enumerate(found):
        if not isinstance(label, str) or not label.strip() or any(c in label for c in "\n\r\0"):
            raise InputError(f"labels: entry {index} cannot be a label", given=repr(label), expected="one line of text")
    if not found:
        raise InputError("labels: there are none", expected="one per class")
    return tuple(found)


def _from_file(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"labels.file: {path.name} is not UTF-8 text (byte {error.start})") from None
    lines = text.replace("\r\n", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return lines


def render_labels(labels: Sequence[str]) -> str:
    """The text of labels.txt."""
    return "".join(f"{label}\n" for label in labels)


def require_label_count(labels: Sequence[str], output: str, shape: Sequence[int | str | None]) -> str | None:
    """Compare with the last dimension of the output. Returns a note where that dimension is not fixed."""
    classes = shape[-1] if shape else None
    if not isinstance(classes, int):
        return f"the last dimension of {output!r} is not fixed, so the number of labels cannot be checked"
    if classes != len(labels):
        raise InputError(
            f"labels: {len(labels)} labels for the {classes} classes of {output!r}",
            expected=f"{classes} labels, in the order of the classes",
        )
    return None
