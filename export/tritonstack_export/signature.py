"""What goes into a model: its inputs with named dimensions, and the bounds of those dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tritonstack.errors import InputError, InternalError, UsageError
from tritonstack_export.spec import BATCH, DTYPES, InputSpec, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Dimension:
    """A dynamic dimension and its bounds, both included. `opt` is the size to optimise for."""

    name: str
    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class ModelInput:
    """One input: numpy dtype name, and per axis a fixed size or the name of a dynamic dimension.

    `parameter`: the parameter of `forward` it is passed to by keyword; None: by position.
    `low`, `high`: bounds of random data, both included; None: the dtype's default.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None
    parameter: str | None = None


@dataclass(frozen=True)
class Signature:
    """All inputs, all dynamic dimensions by name, and whether axis 0 of every tensor is the batch."""

    inputs: tuple[ModelInput, ...]
    dimensions: Mapping[str, Dimension]
    batched: bool

    def sizes(self, **chosen: int) -> dict[str, int]:
        """A size for each dimension: `chosen`, else `opt`."""
        return {name: chosen.get(name, dimension.opt) for name, dimension in self.dimensions.items()}

    def shape(self, tensor: ModelInput, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one input at the given sizes."""
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in tensor.shape)


@dataclass(frozen=True)
class AxisFlag:
    """``--dynamic NAME:AXIS=DIMENSION``; `dimension` None: not given, and no default for that axis."""

    text: str
    tensor: str
    axis: int
    dimension: str | None


def torch_dtype_name(tensor: Tensor) -> str:
    """The numpy name of a tensor's dtype. Raises InputError for dtypes Triton or numpy does not know."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"an example input has the dtype {name}", expected=f"one of {', '.join(DTYPES)}")
    return name


def read_signature(
    module: nn.Module,
    examples: Sequence[tuple[str | None, Tensor]],
    spec: ModelSpec,
    *,
    input_names: Sequence[str] | None = None,
    dynamic: Sequence[AxisFlag] = (),
) -> Signature:
    """The signature from the spec's inputs, or else from the factory's example inputs.

    `input_names` renames the inputs in order (``--input-names``). Raises UsageError for flags and keys that fit
    nothing, InputError when neither spec nor factory says what the inputs are.
    """
    parameters = _parameters(module)
    if spec.inputs is not None:
        tensors = [_from_spec(entry, index, examples) for index, entry in enumerate(spec.inputs)]
        names = [tensor.name for tensor in tensors]
        if all(name in parameters for name in names):
            tensors = [replace(tensor, parameter=tensor.name) for tensor in tensors]
        elif len(names) > len(parameters) and not _variadic(module):
            raise UsageError(
                f"inputs: {len(names)} are given, but forward takes {', '.join(parameters) or 'none'}",
                given=", ".join(names),
            )
    elif examples:
        tensors = _from_examples(examples, parameters, batched=spec.batch is not False)
    else:
        raise InputError(
            "nothing says what the inputs of the model are",
            expected="`inputs` in the spec, or a factory that returns (module, example inputs)",
        )
    if input_names is not None:
        if len(input_names) != len(tensors):
            raise UsageError(
                f"--input-names: {len(input_names)} names for {len(tensors)} inputs",
                given=", ".join(input_names),
                expected=f"{len(tensors)} different names, for {', '.join(t.name for t in tensors)}",
            )
        tensors = [replace(tensor, name=name) for tensor, name in zip(tensors, input_names, strict=True)]
    for flag in dynamic:
        tensors = _set_dynamic(tensors, flag)
    return make_signature(tensors, spec)


def make_signature(tensors: Sequence[ModelInput], spec: ModelSpec) -> Signature:
    """Give every named dimension its bounds from the spec, and check that the batch is where it has to be."""
    batched = spec.batch is not False
    dimensions: dict[str, Dimension] = {}
    for tensor in tensors:
        for position, axis in enumerate(tensor.shape):
            if not isinstance(axis, str):
                continue
            if axis == BATCH and batched:
                if position != 0:
                    raise UsageError(f"input {tensor.name!r} has the batch on axis {position}", expected="axis 0")
                continue
            bounds = spec.dimensions.get(axis)
            if bounds is None:
                raise UsageError(
                    f"the dimension {axis!r} of input {tensor.name!r} has no bounds",
                    expected=f"dimensions: {{{axis}: {{min: …, opt: …, max: …}}}} in the spec",
                )
            dimensions[axis] = Dimension(axis, bounds.min, bounds.optimum, bounds.max)
    unused = sorted(set(spec.dimensions) - set(dimensions))
    if unused:
        raise UsageError(f"dimensions: no input has a dimension {unused[0]!r}", expected=_dims_text(tensors))
    if spec.batch is not False:
        bare = [tensor.name for tensor in tensors if not tensor.shape or tensor.shape[0] != BATCH]
        if bare:
            raise InputError(
                f"the input {bare[0]!r} has no batch dimension, but the model is to be batched",
                given=_dims_text(tensors),
                expected=f"{BATCH!r} as the first dimension of every input",
                next_step="set `batch: false` in the spec (or pass --no-batch) to serve it with max_batch_size 0",
            )
        dimensions = {
            BATCH: Dimension(BATCH, spec.batch.min, spec.batch.optimum, spec.batch.max),
            **dimensions,
        }
    return Signature(tuple(tensors), dimensions, batched)


def _dims_text(tensors: Sequence[ModelInput]) -> str:
    return ", ".join(f"{t.name} [{', '.join(map(str, t.shape))}]" for t in tensors)


def _parameters(module: nn.Module) -> list[str]:
    """Names of the parameters of `forward` that can be passed by keyword."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _variadic(module: nn.Module) -> bool:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind == p.VAR_POSITIONAL for p in parameters)


def _from_spec(entry: InputSpec, index: int, examples: Sequence[tuple[str | None, Tensor]]) -> ModelInput:
    by_name = {name: tensor for name, tensor in examples if name is not None}
    example = by_name.get(entry.name)
    if example is None and not by_name and index < len(examples):
        example = examples[index][1]
    if example is None and (entry.dtype is None or entry.shape is None):
        raise UsageError(
            f"inputs.{index}: {entry.name!r} lacks its {'dtype' if entry.dtype is None else 'shape'}",
            expected="dtype and shape, unless the factory returns example inputs",
        )
    dtype = entry.dtype
    shape: tuple[int | str, ...] | None = tuple(entry.shape) if entry.shape is not None else None
    if example is not None:
        dtype = dtype or torch_dtype_name(example)
        shape = shape if shape is not None else (BATCH, *tuple(example.shape)[1:])
    if dtype is None or shape is None:
        raise InternalError("an input without dtype or shape passed the spec")
    low, high = entry.range if entry.range is not None else (None, None)
    if entry.range is None and example is not None:
        low, high = _example_range(example)
    return ModelInput(entry.name, dtype, shape, low, high)


def _example_range(example: Tensor) -> tuple[float | None, float | None]:
    """Bounds of an integer example: ids outside of what the model knows would make it fail. uint8 and floats: open."""
    import torch

    if example.dtype in (torch.int16, torch.int32, torch.int64) and example.numel():
        return int(example.min()), int(example.max())
    return None, None


def _from_examples(
    examples: Sequence[tuple[str | None, Tensor]], parameters: Sequence[str], *, batched: bool
) -> list[ModelInput]:
    names = [
        given or (parameters[index] if index < len(parameters) else f"input_{index}")
        for index, (given, _) in enumerate(examples)
    ]
    firsts = {
        name: (tensor.shape[0] if tensor.ndim else None) for name, (_, tensor) in zip(names, examples, strict=True)
    }
    if batched and len(set(firsts.values())) > 1:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, (_, t) in zip(names, examples, strict=True))
        raise InputError(
            "the example inputs do not share a batch dimension: their first dimensions differ",
            given=shapes,
            expected="the batch as the first dimension of every input",
            next_step="describe `inputs` in the spec, with `batch: false` for a model without a batch",
        )
    tensors = []
    for name, (given, tensor) in zip(names, examples, strict=True):
        low, high = _example_range(tensor)
        shape: tuple[int | str, ...] = tuple(tensor.shape)
        if batched and shape:
            shape = (BATCH, *shape[1:])
        tensors.append(ModelInput(name, torch_dtype_name(tensor), shape, low, high, given))
    return tensors


def _set_dynamic(tensors: Sequence[ModelInput], flag: AxisFlag) -> list[ModelInput]:
    names = [tensor.name for tensor in tensors]
    if flag.tensor not in names:
        raise UsageError(
            f"--dynamic {flag.text}: the model has no input {flag.tensor!r}", expected=f"one of {', '.join(names)}"
        )
    changed = []
    for tensor in tensors:
        if tensor.name == flag.tensor:
            rank = len(tensor.shape)
            if not 0 <= flag.axis < rank:
                raise UsageError(
                    f"--dynamic {flag.text}: input {tensor.name!r} has no axis {flag.axis}",
                    expected=f"an axis from 0 to {rank - 1}" if rank else "nothing: it is a scalar",
                )
            if flag.dimension is None:
                raise UsageError(
                    f"--dynamic {flag.text}: the dimension has no name",
                    expected=f"{flag.text}=DIMENSION, with bounds under `dimensions` in the spec",
                )
            shape = (*tensor.shape[: flag.axis], flag.dimension, *tensor.shape[flag.axis + 1 :])
            tensor = replace(tensor, shape=shape)
        changed.append(tensor)
    return changed
