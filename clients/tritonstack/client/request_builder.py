"""From a caller's arrays and options to a validated request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from tritonstack.client.model import ModelMetadata
from tritonstack.client.request import (
    InferRequest,
    OutputSlot,
    Parameter,
    RequestedOutput,
    SharedTensor,
    Span,
    request_parameters,
)
from tritonstack.errors import InputError, TensorError, UsageError
from tritonstack.shared_memory import SharedMemorySlot
from tritonstack.tensor.conform import WireTensor, check_batch, check_names, check_shape, conform, nearest
from tritonstack.tensor.tensor_spec import TensorSpec

Outputs = Sequence[str] | Mapping[str, int | SharedMemorySlot]


class InferOptions(TypedDict, total=False):
    """Keyword arguments of `infer` and `prepare`.

    - `outputs`: names to return (all when left out), or a mapping from name to the number k of best classes, or to the
      shared-memory slot to write to: k above 0 asks for Triton's classification strings ``score:index:label`` instead
      of the tensor.
    - `version`: the model version; the server's choice when empty.
    - `request_id`: echoed by the server and written to its log.
    - `queue_timeout_us`: how long the request may wait in the server's queue, in microseconds, where the model's queue
      policy allows it; the client's own deadline is `timeout_s`.
    - `priority`: 1 is the highest; 0 leaves it to the model.
    - `parameters`: custom request parameters.
    - `sequence_id`, `sequence_start`, `sequence_end`: for stateful models.
    - `cast`: convert to the model's data types, refusing values that would not survive: True for every input, or the
      names of those to convert.
    """

    outputs: Outputs | None
    version: str
    request_id: str
    queue_timeout_us: int | None
    priority: int
    parameters: Mapping[str, Parameter]
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    cast: bool | Collection[str]


@dataclass(frozen=True)
class Regions:
    """Names of the shared-memory regions a client has registered, and of those it sends inline instead."""

    shared: set[str] = field(default_factory=set)
    inline: set[str] = field(default_factory=set)

    def is_inline(self, slot: SharedMemorySlot) -> bool:
        """Whether the slot's bytes go on the wire. InputError for a region this client does not know."""
        slot.region.check()
        if slot.region.name in self.shared:
            return False
        if slot.region.name in self.inline:
            return True
        raise InputError(
            f"the shared-memory region {slot.region.name} is not registered with this client",
            next_step="call client.register(region) first",
        )


def check_options(options: InferOptions) -> None:
    """TypeError for a keyword that InferOptions does not have, as for any other unknown argument."""
    known = [*InferOptions.__annotations__]
    for name in options:
        if name not in known:
            raise TypeError(f"unknown argument {name!r}; {nearest(name, known)}")


def build_request(
    metadata: ModelMetadata, inputs: Mapping[str, object], options: InferOptions, regions: Regions
) -> tuple[InferRequest, Mapping[str, OutputSlot]]:
    """The validated request and the slots its outputs go to; TensorError or UsageError when it does not fit."""
    check_names(inputs, metadata.inputs, model=metadata.name)
    cast = options.get("cast", False)
    if not isinstance(cast, bool):
        for name in cast:
            if name not in inputs:
                raise UsageError(f"cast names {name!r}, which is not among the inputs")
    tensors = tuple(
        _tensor(
            spec,
            inputs[spec.name],
            max_batch_size=metadata.max_batch_size,
            cast=cast if isinstance(cast, bool) else spec.name in cast,
            regions=regions,
        )
        for spec in metadata.inputs
        if spec.name in inputs
    )
    if metadata.max_batch_size > 0:
        check_batch([(tensor.name, tensor.shape) for tensor in tensors], model=metadata.name)
    outputs, slots = _outputs(options.get("outputs"), metadata, regions)
    request = InferRequest(
        model=metadata.name,
        version=options.get("version", ""),
        request_id=options.get("request_id", ""),
        inputs=tensors,
        outputs=outputs,
        parameters=request_parameters(
            options.get("parameters", {}),
            priority=options.get("priority", 0),
            queue_timeout_us=options.get("queue_timeout_us"),
            sequence_id=options.get("sequence_id", 0),
            sequence_start=options.get("sequence_start", False),
            sequence_end=options.get("sequence_end", False),
        ),
    )
    return request, slots


def _tensor(
    spec: TensorSpec, value: object, *, max_batch_size: int, cast: bool, regions: Regions
) -> WireTensor | SharedTensor:
    if not isinstance(value, SharedMemorySlot):
        return conform(spec, value, max_batch_size=max_batch_size, cast=cast)
    check_shape(spec, value.shape, value.datatype, max_batch_size=max_batch_size)
    if value.datatype != spec.datatype:
        raise TensorError(
            f"input {spec.name!r} has the wrong data type",
            given=f"a shared-memory slot of {value.datatype} {list(value.shape)}",
            expected=spec.describe(max_batch_size),
        )
    if regions.is_inline(value):
        return WireTensor(spec.name, spec.datatype, value.shape, bytes(value.view()[: value.used_bytes]))
    return SharedTensor(spec.name, spec.datatype, value.shape, Span(value.region.name, value.offset, value.used_bytes))


def _outputs(
    outputs: Outputs | None, metadata: ModelMetadata, regions: Regions
) -> tuple[tuple[RequestedOutput, ...], Mapping[str, OutputSlot]]:
    if outputs is None:
        return (), {}
    if isinstance(outputs, str):
        raise UsageError("outputs is a single text", given=repr(outputs), expected=f"a list: [{outputs!r}]")
    known = {spec.name: spec for spec in metadata.outputs}
    wanted: list[RequestedOutput] = []
    slots: dict[str, OutputSlot] = {}
    for name in outputs:
        if name not in known:
            raise TensorError(f"model {metadata.name!r} has no output {name!r}", next_step=nearest(name, [*known]))
        choice = outputs[name] if isinstance(outputs, Mapping) else 0
        if isinstance(choice, SharedMemorySlot):
            if choice.datatype != known[name].datatype:
                raise TensorError(
                    f"output {name!r} does not fit its shared-memory slot",
                    given=f"a slot of {choice.datatype}",
                    expected=known[name].datatype,
                )
            inline = regions.is_inline(choice)
            slots[name] = OutputSlot(choice, inline)
            span = None if inline else Span(choice.region.name, choice.offset, choice.byte_size)
            wanted.append(RequestedOutput(name, span=span))
        elif isinstance(choice, int) and not isinstance(choice, bool) and 0 <= choice < 2**31:
            wanted.append(RequestedOutput(name, choice))
        else:
            raise UsageError(
                f"bad choice for output {name!r}",
                given=repr(choice),
                expected="0 for the tensor, a number of classes, or a shared-memory slot",
            )
    return tuple(wanted), slots
