"""Optimisation profiles: made from the bounds of the spec, and validated here, since TensorRT says -1 or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import TYPE_CHECKING

from tritonstack.errors import UsageError
from tritonstack_export.engine.settings import Bounds, Profile

if TYPE_CHECKING:
    from tritonstack_export.spec_precision import EngineSpec, ProfileBounds

BATCH = "batch"


@dataclass(frozen=True)
class Extent:
    """Bounds of one dynamic dimension, all included; `opt` is the size to optimise for."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class InputShape:
    """An input of the graph: per axis a fixed size, or the name of a dynamic dimension."""

    name: str
    shape: tuple[int | str, ...]

    @property
    def is_dynamic(self) -> bool:
        return any(isinstance(axis, str) for axis in self.shape)


def profiles_from_spec(
    engine: EngineSpec, inputs: Sequence[InputShape], dimensions: Mapping[str, Extent]
) -> tuple[Profile, ...]:
    """The profiles of `engine.profiles`, or one made from the bounds of `dimensions`; () for a model of fixed shapes.

    Raises UsageError for unknown dimensions, bounds outside of those of the spec, sizes that no profile covers, and
    duplicates.
    """
    named = [_complete(number, given, dimensions) for number, given in enumerate(engine.profiles)]
    _require_cover(named, dimensions)
    extents = named or [dict(dimensions)]
    profiles = [_profile(inputs, extent) for extent in extents]
    if not profiles[0]:
        if named:
            raise UsageError(
                "engine.profiles: every dimension of the model is fixed, so there is nothing to bound",
                next_step="leave engine.profiles out",
            )
        return ()
    validate_profiles(profiles, inputs)
    return tuple(profiles)


def profiles_for_graph(
    inputs: Sequence[InputShape], *, max_batch_size: int, bounds: Mapping[str, Extent] = {}
) -> tuple[Profile, ...]:
    """One profile for an ONNX file that no spec describes; () where all its shapes are fixed.

    The first axis is the batch when `max_batch_size` (as config.pbtxt has it) is above 0: 1 to that, best at 8 or
    below. Raises UsageError for any other dynamic dimension that `bounds` does not name.
    """
    extents = dict(bounds)
    for tensor in inputs:
        for position, axis in enumerate(tensor.shape):
            if isinstance(axis, str) and position == 0 and max_batch_size > 0:
                extents.setdefault(axis, Extent(1, min(8, max_batch_size), max_batch_size))
    profile = _profile(inputs, extents)
    if not profile:
        return ()
    validate_profiles([profile], inputs)
    return (profile,)


def _complete(number: int, given: Mapping[str, ProfileBounds], dimensions: Mapping[str, Extent]) -> dict[str, Extent]:
    where = f"engine.profiles.{number}"
    for name, bounds in given.items():
        if name not in dimensions:
            close = get_close_matches(name, dimensions, n=1)
            raise UsageError(
                f"{where}: the model has no dimension {name!r}",
                expected=f"one of {', '.join(dimensions)}" if dimensions else "nothing: every dimension is fixed",
                next_step=f"did you mean {close[0]!r}?" if close else None,
            )
        limit = dimensions[name]
        if bounds.min < limit.min or bounds.max > limit.max:
            raise UsageError(
                f"{where}.{name}: outside of the bounds that the spec gives the dimension",
                given=f"{bounds.min}..{bounds.max}",
                expected=f"within {limit.min}..{limit.max}",
                next_step=f"change the profile, or the bounds of {name}",
            )
    return {
        name: Extent(given[name].min, given[name].opt, given[name].max) if name in given else extent
        for name, extent in dimensions.items()
    }


def _require_cover(profiles: Sequence[Mapping[str, Extent]], dimensions: Mapping[str, Extent]) -> None:
    """Each size that the spec allows has to fall into some profile, or requests of that size would fail."""
    for first, second in combinations(range(len(profiles)), 2):
        if profiles[first] == profiles[second]:
            raise UsageError(
                f"engine.profiles: profiles {first} and {second} are the same", next_step="remove one of them"
            )
    for name, limit in dimensions.items():
        covered = limit.min - 1
        for extent in sorted((profile[name] for profile in profiles), key=lambda extent: extent.min):
            if extent.min > covered + 1:
                break
            covered = max(covered, extent.max)
        if profiles and covered < limit.max:
            raise UsageError(
                f"engine.profiles: no profile takes {name} {covered + 1}",
                given=", ".join(f"{profile[name].min}..{profile[name].max}" for profile in profiles),
                expected=f"profiles that cover {limit.min}..{limit.max}, the bounds of {name}",
                next_step=f"widen a profile, or narrow the bounds of {name}",
            )


def _profile(inputs: Sequence[InputShape], extents: Mapping[str, Extent]) -> dict[str, Bounds]:
    profile = {}
    for tensor in inputs:
        if not tensor.is_dynamic:
            continue
        for axis in tensor.shape:
            if isinstance(axis, str) and axis not in extents:
                raise UsageError(
                    f"the dimension {axis!r} of input {tensor.name!r} has no bounds",
                    given=f"shape [{', '.join(map(str, tensor.shape))}]",
                    next_step=f"give them in the spec: dimensions: {{{axis}: {{min: …, opt: …, max: …}}}}",
                )
        shapes = (
            tuple(getattr(extents[axis], bound) if isinstance(axis, str) else axis for axis in tensor.shape)
            for bound in ("min", "opt", "max")
        )
        profile[tensor.name] = Bounds(*shapes)
    return profile


def validate_profiles(profiles: Sequence[Profile], inputs: Sequence[InputShape]) -> None:
    """Compare profiles with the graph and with each other. Raises UsageError naming profile, input and axis."""
    known = {tensor.name: tensor for tensor in inputs}
    for number, profile in enumerate(profiles):
        where = f"profile {number}"
        for name, bounds in profile.items():
            if name not in known:
                close = get_close_matches(name, known, n=1)
                raise UsageError(
                    f"{where}: the model has no input {name!r}",
                    expected=f"one of {', '.join(known)}",
                    next_step=f"did you mean {close[0]!r}?" if close else None,
                )
            _validate_bounds(where, known[name], bounds)
        for tensor in inputs:
            if tensor.is_dynamic and tensor.name not in profile:
                raise UsageError(
                    f"{where}: the dynamic input {tensor.name!r} has no bounds",
                    given=", ".join(profile) or "no input",
                    expected=f"bounds of {', '.join(t.name for t in inputs if t.is_dynamic)}",
                )
        _require_one_size(where, profile, known)
    for first, second in combinations(range(len(profiles)), 2):
        if dict(profiles[first]) == dict(profiles[second]):
            raise UsageError(f"profiles {first} and {second} are the same", next_step="remove one of them")


def _validate_bounds(where: str, tensor: InputShape, bounds: Bounds) -> None:
    shape = f"[{', '.join(map(str, tensor.shape))}]"
    for word, sizes in (("min", bounds.min), ("opt", bounds.opt), ("max", bounds.max)):
        if len(sizes) != len(tensor.shape):
            raise UsageError(
                f"{where}: {word} of input {tensor.name!r} has rank {len(sizes)}",
                given=str(list(sizes)),
                expected=f"rank {len(tensor.shape)}, as {shape}",
            )
    for position, axis in enumerate(tensor.shape):
        least, best, most = bounds.min[position], bounds.opt[position], bounds.max[position]
        if isinstance(axis, int) and (least, best, most) != (axis, axis, axis):
            raise UsageError(
                f"{where}: axis {position} of input {tensor.name!r} is fixed at {axis} in the graph",
                given=f"min {least}, opt {best}, max {most}",
                expected=str(axis),
                next_step="export the model with that dimension dynamic, or give the profile its fixed size",
            )
        if not 0 <= least <= best <= most or most == 0 or (axis == BATCH and least == 0):
            raise UsageError(
                f"{where}: axis {position} of input {tensor.name!r} is not bounded in order",
                given=f"min {least}, opt {best}, max {most}",
                expected=f"{1 if axis == BATCH else 0} <= min <= opt <= max, max above 0",
            )


def _require_one_size(where: str, profile: Profile, known: Mapping[str, InputShape]) -> None:
    """A named dimension has one size at a time, so all inputs that have it need the same bounds."""
    seen: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for name, bounds in profile.items():
        for position, axis in enumerate(known[name].shape):
            if not isinstance(axis, str):
                continue
            sizes = (bounds.min[position], bounds.opt[position], bounds.max[position])
            other, first = seen.setdefault(axis, (name, sizes))
            if first != sizes:
                raise UsageError(
                    f"{where}: the dimension {axis!r} has other bounds in input {name!r} than in {other!r}",
                    given=f"{sizes[0]}..{sizes[2]} (best {sizes[1]})",
                    expected=f"{first[0]}..{first[2]} (best {first[1]})",
                )


def overlap_notes(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """What is odd about several profiles without being wrong: one within another, with the same best size."""
    notes = []
    for first, second in combinations(range(len(profiles)), 2):
        for inner, outer in ((first, second), (second, first)):
            if _within(profiles[inner], profiles[outer]):
                notes.append(
                    f"profile {inner} lies within profile {outer} and is best at the same sizes: it adds nothing"
                )
    return tuple(notes)


def _within(inner: Profile, outer: Profile) -> bool:
    return all(
        bounds.opt == outer[name].opt
        and all(a <= b for a, b in zip(outer[name].min, bounds.min, strict=True))
        and all(a <= b for a, b in zip(bounds.max, outer[name].max, strict=True))
        for name, bounds in inner.items()
    )
