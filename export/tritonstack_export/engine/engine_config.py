"""config.pbtxt of an entry that an engine serves, made from the one that ONNX Runtime serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritonstack.errors import RepositoryError
from tritonstack_export.check.parameter_rules import is_session_option
from tritonstack_export.engine.build import EngineTensor

if TYPE_CHECKING:
    from tritonstack_export.repository import ModelConfig

TRITON_TYPES = {
    "FLOAT": "TYPE_FP32",
    "HALF": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "INT8": "TYPE_INT8",
    "UINT8": "TYPE_UINT8",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "BOOL": "TYPE_BOOL",
}
"""TensorRT's dtype words -> Triton's; FP8 and the 4-bit types have none."""


@dataclass(frozen=True)
class EngineInterface:
    """What an engine takes and gives. `batches`: the largest batch of each optimisation profile, None where axis 0 of
    every input is fixed; () for an engine of fixed shapes."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    batches: tuple[int | None, ...]


def is_onnxruntime(config: ModelConfig) -> bool:
    """Whether ONNX Runtime serves the entry."""
    return config.backend == "onnxruntime" or (not config.backend and config.platform == "onnxruntime_onnx")


def is_tensorrt(config: ModelConfig) -> bool:
    """Whether an engine serves the entry."""
    return config.backend == "tensorrt" or (not config.backend and config.platform == "tensorrt_plan")


def kind_without_engines(config: ModelConfig) -> str | None:
    """The kind of an instance group that Triton's tensorrt backend refuses; None where all are for GPUs."""
    for group in config.instance_group:
        if group.kind not in (group.KIND_AUTO, group.KIND_GPU):
            return str(type(group).Kind.Name(group.kind))
    return None


def engine_config(config: ModelConfig, *, profiles: int) -> tuple[ModelConfig, tuple[str, ...]]:
    """The config for an engine with so many profiles, and what it leaves out. `config` stays as it is.

    Tensors, batching, warm-up, labels, version policy and parameters of clients stay; what ONNX Runtime alone reads
    goes.
    """
    switched = type(config)()
    switched.CopyFrom(config)
    switched.backend, switched.platform = "tensorrt", "tensorrt_plan"
    # Both name ONNX files; the engine is model.plan, the backend's own default.
    switched.ClearField("default_model_filename")
    switched.ClearField("cc_model_filenames")
    dropped = sorted(name for name in config.parameters if is_session_option(name))
    for name in dropped:
        del switched.parameters[name]
    if config.optimization.HasField("graph"):
        switched.optimization.ClearField("graph")
        dropped.append("optimization.graph")
    if config.optimization.HasField("execution_accelerators"):
        switched.optimization.ClearField("execution_accelerators")
        dropped.append("optimization.execution_accelerators")
    if config.HasField("optimization") and not switched.optimization.ByteSize():
        switched.ClearField("optimization")
    for group in switched.instance_group:
        # Triton uses the first profile only, unless an instance group names them.
        if profiles > 1 and not group.profile:
            group.profile.extend(str(number) for number in range(profiles))
    if profiles > 1 and not switched.instance_group:
        switched.instance_group.add(profile=[str(number) for number in range(profiles)])
    return switched, tuple(f"{name} is for ONNX Runtime alone and was left out of config.pbtxt" for name in dropped)


def require_fit(config: ModelConfig, engine: EngineInterface, *, model: str) -> None:
    """Compare config and engine as Triton will. Raises RepositoryError with everything that does not fit."""
    problems = problems_of_fit(config, engine)
    if problems:
        raise RepositoryError(
            f"the engine of {model!r} does not fit its config.pbtxt: {'; '.join(problems)}",
            next_step="mend config.pbtxt, or the profiles in the spec's `engine`",
        )


def problems_of_fit(config: ModelConfig, engine: EngineInterface) -> list[str]:
    """What does not fit, one sentence each; [] where Triton will load the engine with this config."""
    batched = config.max_batch_size > 0
    problems = _profile_problems(config, engine)
    if batched and not problems:
        problems += _batch_problems(config, engine)
    for kind, wanted, given in (("input", config.input, engine.inputs), ("output", config.output, engine.outputs)):
        found = {tensor.name: tensor for tensor in given}
        for entry in wanted:
            if entry.name not in found:
                problems.append(f"the engine has no {kind} {entry.name!r} (it has {', '.join(found) or 'none'})")
            else:
                problems += _tensor_problems(kind, entry, found[entry.name], batched=batched)
        named = {entry.name for entry in wanted}
        # Outputs may be left out of a config, inputs may not.
        if kind == "input":
            problems += [f"the config does not name the input {name!r} of the engine" for name in found.keys() - named]
    return sorted(problems)


def _named_profiles(config: ModelConfig) -> list[str]:
    return list(dict.fromkeys(name for group in config.instance_group for name in group.profile))


def _profile_problems(config: ModelConfig, engine: EngineInterface) -> list[str]:
    """Triton loads no engine when an instance group names a profile that it lacks. One of fixed shapes has one."""
    count = max(1, len(engine.batches))
    return [
        f"instance_group names the profile {name!r}, and the engine has {count} (counted from 0)"
        for name in _named_profiles(config)
        if not (name.isascii() and name.isdigit() and int(name) < count)
    ]


def _batch_problems(config: ModelConfig, engine: EngineInterface) -> list[str]:
    fixed = [t for t in engine.inputs if t.shape and t.shape[0] >= 0]
    if fixed:
        tensor = fixed[0]
        return [
            f"max_batch_size is {config.max_batch_size}, but axis 0 of {tensor.name!r} is fixed at "
            f"{tensor.shape[0] if tensor.shape else '?'} in the engine"
        ]
    # Triton takes the largest over all profiles that instance groups name, and the first where none does.
    used = [int(name) for name in _named_profiles(config)] or [0]
    largest = max((size for size in (engine.batches[number] for number in used) if size is not None), default=None)
    if largest is None or config.max_batch_size <= largest:
        return []
    if len(used) == len(engine.batches):
        return [f"max_batch_size is {config.max_batch_size}, the profiles of the engine take up to {largest}"]
    return [
        f"max_batch_size is {config.max_batch_size}, and of the {len(engine.batches)} profiles instance_group uses "
        f"{', '.join(map(str, used))}, up to {largest}"
    ]


def _tensor_problems(kind: str, entry: Any, tensor: EngineTensor, *, batched: bool) -> list[str]:
    from tritonclient.grpc import model_config_pb2 as pb

    problems = []
    given = pb.DataType.Name(entry.data_type)
    wanted = TRITON_TYPES.get(tensor.dtype)
    if wanted is None:
        problems.append(f"{kind} {entry.name!r} is {tensor.dtype} in the engine, which Triton does not know")
    elif wanted != given:
        problems.append(f"{kind} {entry.name!r} is {wanted} in the engine, {given} in the config")
    dims = list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)
    if tensor.shape is not None:
        shape = list(tensor.shape[1 if batched else 0 :])
        if not _dims_fit(dims, shape):
            problems.append(f"{kind} {entry.name!r} has the dims {shape} in the engine, {dims} in the config")
    return problems


def _dims_fit(dims: Sequence[int], shape: Sequence[int]) -> bool:
    """A dynamic axis of the engine takes any size; a fixed one needs the same size in the config."""
    return len(dims) == len(shape) and all(b < 0 or a == b for a, b in zip(dims, shape, strict=True))
