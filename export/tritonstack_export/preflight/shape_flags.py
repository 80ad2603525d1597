"""`--min-shapes`, `--opt-shapes` and `--max-shapes` in trtexec's words: ``input:1x3x224x224,mask:1x128``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonstack.errors import UsageError

if TYPE_CHECKING:
    from tritonstack_export.engine.profile import InputShape
    from tritonstack_export.engine.settings import Profile

Shapes = Mapping[str, tuple[int, ...]]

_EXAMPLE = "NAME:SIZExSIZE…, as in input:1x3x224x224; several inputs with commas between"
_INT32_MAX = 2**31 - 1


def parse_shapes(flag: str, text: str) -> dict[str, tuple[int, ...]]:
    """Input name -> shape. Raises UsageError naming `flag` and the part that is wrong."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        # The name may hold colons itself (`input:0`), the shape never does.
        name, colon, sizes = part.strip().rpartition(":")
        if not colon or not name or not re.fullmatch(r"[0-9]+(?:x[0-9]+)*", sizes):
            raise UsageError(f"argument {flag}: not the shape of an input", given=repr(part.strip()), expected=_EXAMPLE)
        if name in shapes:
            raise UsageError(
                f"argument {flag}: the input {name!r} is given twice", given=repr(text), expected="one shape per input"
            )
        shape = tuple(int(size) for size in sizes.split("x"))
        if max(shape) > _INT32_MAX:
            raise UsageError(
                f"argument {flag}: a size is too large", given=repr(part.strip()), expected=f"at most {_INT32_MAX}"
            )
        shapes[name] = shape
    return shapes


@dataclass(frozen=True)
class ShapeFlags:
    """The three flags. What is not given for an input is taken from `opt`, and `opt` from `max`."""

    min: Shapes
    opt: Shapes
    max: Shapes

    @classmethod
    def parse(cls, *, least: str | None, best: str | None, most: str | None) -> ShapeFlags | None:
        """None when no flag is given. Raises UsageError for shapes that are none or contradict each other."""
        if least is None and best is None and most is None:
            return None
        given = {
            flag: parse_shapes(flag, text) if text is not None else {}
            for flag, text in (("--min-shapes", least), ("--opt-shapes", best), ("--max-shapes", most))
        }
        flags = cls(*given.values())
        for name in flags.names():
            flags._require_order(name)
        return flags

    def names(self) -> list[str]:
        """The inputs that any flag names, in order."""
        return list(dict.fromkeys([*self.min, *self.opt, *self.max]))

    def bounds(self, name: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(flag that said it, shape) for min, opt and max of an input."""
        said = {
            "--min-shapes": self.min.get(name),
            "--opt-shapes": self.opt.get(name),
            "--max-shapes": self.max.get(name),
        }
        order = {
            "--min-shapes": ("--min-shapes", "--opt-shapes", "--max-shapes"),
            "--opt-shapes": ("--opt-shapes", "--max-shapes", "--min-shapes"),
            "--max-shapes": ("--max-shapes", "--opt-shapes", "--min-shapes"),
        }
        found = []
        for candidates in order.values():
            flag, shape = next((flag, said[flag]) for flag in candidates if said[flag] is not None)
            found.append((flag, shape or ()))
        return tuple(found)

    def _require_order(self, name: str) -> None:
        bounds = self.bounds(name)
        for (low_flag, low), (high_flag, high) in ((bounds[0], bounds[1]), (bounds[1], bounds[2])):
            if len(low) != len(high):
                raise UsageError(
                    f"argument {high_flag}: {name!r} has {len(high)} dimensions, but {len(low)} in {low_flag}",
                    given=repr(_text(name, high)),
                    expected="the same number of dimensions",
                )
            for axis, (a, b) in enumerate(zip(low, high, strict=True)):
                if a > b:
                    raise UsageError(
                        f"argument {high_flag}: axis {axis} of {name!r} is {b}, below {a} in {low_flag}",
                        given=repr(_text(name, high)),
                        expected="min <= opt <= max on every axis",
                    )

    def profile(self, inputs: Sequence[InputShape]) -> Profile:
        """The one profile that the flags describe for a graph with `inputs`.

        Raises UsageError naming the flag for inputs that the graph does not have, dynamic ones that no flag names,
        another number of dimensions, and another size on a fixed axis.
        """
        from tritonstack_export.engine.settings import Bounds

        known = {tensor.name: tensor for tensor in inputs}
        profile: dict[str, Bounds] = {}
        for name in self.names():
            bounds = self.bounds(name)
            if name not in known:
                raise UsageError(
                    f"argument {bounds[0][0]}: the model has no input {name!r}",
                    given=repr(_text(name, bounds[0][1])),
                    expected=f"one of {', '.join(known)}",
                )
            for flag, shape in bounds:
                _require_fit(flag, known[name], shape)
            if known[name].is_dynamic:
                profile[name] = Bounds(*(shape for _, shape in bounds))
        for tensor in inputs:
            if tensor.is_dynamic and tensor.name not in profile:
                raise UsageError(
                    f"argument --opt-shapes: the input {tensor.name!r} has dynamic dimensions and no shape",
                    given=", ".join(self.names()),
                    expected=f"{tensor.name}:{'x'.join(map(str, tensor.shape))} with sizes for the names",
                )
        return profile


def _require_fit(flag: str, tensor: InputShape, shape: tuple[int, ...]) -> None:
    wanted = "x".join(map(str, tensor.shape))
    if len(shape) != len(tensor.shape):
        raise UsageError(
            f"argument {flag}: {tensor.name!r} has {len(tensor.shape)} dimensions",
            given=repr(_text(tensor.name, shape)),
            expected=wanted,
        )
    for axis, (size, fixed) in enumerate(zip(shape, tensor.shape, strict=True)):
        if isinstance(fixed, int) and size != fixed:
            raise UsageError(
                f"argument {flag}: axis {axis} of {tensor.name!r} is fixed at {fixed}",
                given=repr(_text(tensor.name, shape)),
                expected=wanted,
            )
        if isinstance(fixed, str) and size == 0:
            raise UsageError(
                f"argument {flag}: axis {axis} of {tensor.name!r} is 0",
                given=repr(_text(tensor.name, shape)),
                expected="sizes of at least 1",
            )


def _text(name: str, shape: Sequence[int]) -> str:
    return f"{name}:{'x'.join(map(str, shape))}"
