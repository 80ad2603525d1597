"""Find the user's line behind an operator, for messages that have to name it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tritonstack_export import source_location
from tritonstack_export.samples import Array

if TYPE_CHECKING:
    from tritonstack_export.reference import Reference


def random_operators(reference: Reference, inputs: Mapping[str, Array]) -> list[str]:
    """Where a forward pass draws random numbers: ``dropout at model.py:13``."""
    return _watch(reference, inputs, lambda name, tags: "nondeterministic_seeded" in tags)


def squeezes(reference: Reference, inputs: Mapping[str, Array]) -> list[str]:
    """Where a forward pass squeezes without naming a dimension: ``squeeze at model.py:15``."""
    return _watch(reference, inputs, lambda name, tags: name in ("aten::squeeze", "aten::squeeze_"), overload="")


def _watch(
    reference: Reference,
    inputs: Mapping[str, Array],
    wanted: Callable[[str, set[str]], bool],
    *,
    overload: str | None = None,
) -> list[str]:
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[str] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            name, variant = func._schema.name, func._schema.overload_name
            if (overload is None or variant == overload) and wanted(name, {tag.name for tag in func.tags}):
                found.append(_describe(name.split("::")[-1].strip("_")))
            return func(*args, **(kwargs or {}))

    with Watch():  # type: ignore[no-untyped-call]
        reference.tree(inputs)
    return list(dict.fromkeys(found))


def _describe(operator: str) -> str:
    """Name the function that the user called rather than the operator it came down to, and the line of the call."""
    frame = sys._getframe(2)
    name = operator
    while frame is not None and not source_location.is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith("torch/nn/functional.py"):
            name = frame.f_code.co_name
        if frame.f_back is None:
            return name
        frame = frame.f_back
    return f"{name} at {source_location.short(frame.f_code.co_filename, frame.f_lineno)}"
