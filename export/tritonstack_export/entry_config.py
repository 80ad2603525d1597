"""config.pbtxt of an exported model, built as a protobuf message from the graph and the spec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tritonstack.errors import InputError, UsageError
from tritonstack_export.onnx_graph import GraphTensor
from tritonstack_export.repository.layout import LABELS_NAME
from tritonstack_export.signature import Signature
from tritonstack_export.spec import BATCH, LatestVersions, ModelSpec, SpecificVersions

if TYPE_CHECKING:
    from tritonstack.image import ImagePreprocessing
    from tritonstack_export.repository import ModelConfig

TRITON_DTYPES = {
    "bool": "TYPE_BOOL", "uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64", "int8": "TYPE_INT8", "int16": "TYPE_INT16", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16", "string": "TYPE_STRING",
}  # fmt: skip
"""numpy dtype name -> Triton's. uint8 is never TYPE_INT8, int64 never TYPE_INT32."""


@dataclass(frozen=True)
class EntryTensors:
    """The tensors of the entry as the graph has them, the batch included."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


@dataclass(frozen=True)
class ServingExtras:
    """What a variant's config says besides the spec, because its graph needs it.

    `parameters`: session options under the official backend's names; the spec's own win. `graph_level`: of
    `optimization { graph }`, None for the default. `gpu_only`: ONNX Runtime cannot run the graph on a CPU.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int | None = None
    gpu_only: bool = False


def build_config(
    spec: ModelSpec,
    signature: Signature,
    tensors: EntryTensors,
    *,
    has_labels: bool,
    name: str | None = None,
    extras: ServingExtras = ServingExtras(),
) -> ModelConfig:
    """The whole config, of the model `name` (default: the spec's).

    Raises UsageError when spec keys name outputs or inputs that the graph lacks.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    batch = signature.dimensions[BATCH] if signature.batched else None
    config = pb.ModelConfig(name=name or spec.name, backend="onnxruntime", max_batch_size=batch.max if batch else 0)
    for tensor in tensors.inputs:
        _set_tensor(config.input.add(), tensor, batched=signature.batched)
    for tensor in tensors.outputs:
        entry = config.output.add()
        _set_tensor(entry, tensor, batched=signature.batched)
        if has_labels and spec.labels is not None and spec.labels.output == tensor.name:
            entry.label_filename = LABELS_NAME
    _set_instances(config, spec, gpu_only=extras.gpu_only)
    _set_batching(config, spec, signature)
    set_versions(config, spec)
    if spec.serving.warmup:
        _add_warmup(config, signature, tensors)
    if spec.serving.response_cache:
        config.response_cache.enable = True
    if extras.graph_level is not None:
        config.optimization.graph.level = extras.graph_level
    for key, value in {**extras.parameters, **_parameters(spec, tensors)}.items():
        config.parameters[key].string_value = value
    return config


def _set_tensor(entry: Any, tensor: GraphTensor, *, batched: bool) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    entry.name = tensor.name
    entry.data_type = pb.DataType.Value(TRITON_DTYPES[tensor.dtype])
    dims = [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batched else 0 :]]
    if dims:
        entry.dims.extend(dims)
    elif batched:
        # One value per sample: Triton needs a dimension, the graph has none beside the batch.
        entry.dims.append(1)
        entry.reshape.SetInParent()
    else:
        raise InputError(
            f"the input {tensor.name!r} is a scalar, which Triton cannot describe",
            next_step="give it the shape [1] in the model",
        )


def _set_instances(config: ModelConfig, spec: ModelSpec, *, gpu_only: bool) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    wanted = spec.serving.instance_group
    group = config.instance_group.add()
    group.count = wanted.count
    # KIND_AUTO: the same entry is served on a GPU where there is one and on the CPU elsewhere.
    kind = "gpu" if gpu_only and wanted.kind == "auto" else wanted.kind
    group.kind = pb.ModelInstanceGroup.Kind.Value(f"KIND_{kind.upper()}")
    group.gpus.extend(wanted.gpus)


def _set_batching(config: ModelConfig, spec: ModelSpec, signature: Signature) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    wanted = spec.serving.dynamic_batching
    if wanted is False or not signature.batched:
        return
    batch = signature.dimensions[BATCH]
    if batch.max == 1:
        return
    batching = config.dynamic_batching
    batching.SetInParent()
    # Batches form up to the size to optimise for; a larger preferred size would have Triton copy queued requests
    # together that are big enough already (a tenth of the throughput of EfficientNet-Lite0 on two cores).
    preferred = wanted.preferred if wanted.preferred is not None else [batch.opt] if batch.opt > 1 else []
    batching.preferred_batch_size.extend(sorted(set(preferred)))
    batching.max_queue_delay_microseconds = wanted.max_queue_delay_us
    batching.preserve_ordering = wanted.preserve_ordering
    if wanted.queue_policy is not None:
        policy = batching.default_queue_policy
        policy.timeout_action = pb.ModelQueuePolicy.TimeoutAction.Value(wanted.queue_policy.timeout_action.upper())
        policy.default_timeout_microseconds = wanted.queue_policy.default_timeout_us
        policy.allow_timeout_override = wanted.queue_policy.allow_timeout_override
        policy.max_queue_size = wanted.queue_policy.max_queue_size


def set_versions(config: ModelConfig, spec: ModelSpec) -> None:
    """The version policy of the spec, the same for every entry that one export publishes."""
    policy = spec.serving.version_policy
    if isinstance(policy, LatestVersions):
        config.version_policy.latest.num_versions = policy.latest
    elif isinstance(policy, SpecificVersions):
        config.version_policy.specific.versions.extend(sorted(set(policy.specific)))
    else:
        config.version_policy.all.SetInParent()


def _add_warmup(config: ModelConfig, signature: Signature, tensors: EntryTensors) -> None:
    """Warm up at the smallest and the optimal batch (1 without a batch), with zeros.

    Triton's random data are random bytes: NaN as floats, and indices out of any range as integers.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    batch = signature.dimensions[BATCH] if signature.batched else None
    shapes = {tensor.name: signature.shape(tensor, signature.sizes()) for tensor in signature.inputs}
    if any(0 in shape for shape in shapes.values()):
        return
    for size in sorted({batch.min, batch.opt}) if batch else [1]:
        warmup = config.model_warmup.add(name=f"batch_{size}" if batch else "zeros", batch_size=size)
        for tensor in tensors.inputs:
            dims = list(shapes[tensor.name][1:] if batch else shapes[tensor.name])
            entry = warmup.inputs[tensor.name]
            entry.data_type = pb.DataType.Value(TRITON_DTYPES[tensor.dtype])
            entry.dims.extend(dims or [1])
            entry.zero_data = True


def _parameters(spec: ModelSpec, tensors: EntryTensors) -> dict[str, str]:
    parameters = dict(spec.serving.parameters)
    outputs = [tensor.name for tensor in tensors.outputs]
    for key, wanted in (("labels", spec.labels), ("classification", spec.classification)):
        if wanted is not None and wanted.output not in outputs:
            raise UsageError(f"{key}.output: the model has no output {wanted.output!r}", expected=_one_of(outputs))
    if spec.classification is not None:
        parameters["tritonstack.classification"] = json.dumps(
            {"output": spec.classification.output, "activation": spec.classification.activation}
        )
    if spec.preprocess.image is not None:
        image = image_preprocessing(spec.preprocess.image, tensors, batched=spec.batch is not False)
        parameters["tritonstack.image"] = image.to_json()
    return parameters


def image_preprocessing(fields: dict[str, Any], tensors: EntryTensors, *, batched: bool) -> ImagePreprocessing:
    """The preprocessing of `fields` (the spec's ``preprocess.image``) for the input that takes the picture.

    Raises UsageError where it does not fit that input.
    """
    from tritonstack.image import ImagePreprocessing

    try:
        preprocessing = ImagePreprocessing.from_json(json.dumps(fields))
    except InputError as error:
        raise UsageError(
            f"preprocess.image: {error.summary}", given=error.given, expected=error.expected, next_step=error.next_step
        ) from error
    inputs = [tensor.name for tensor in tensors.inputs]
    if preprocessing.input is not None and preprocessing.input not in inputs:
        raise UsageError(
            f"preprocess.image.input: the model has no input {preprocessing.input!r}", expected=_one_of(inputs)
        )
    if preprocessing.input is None and len(inputs) > 1:
        raise UsageError("preprocess.image.input: the model has several inputs", expected=_one_of(inputs))
    tensor = next(t for t in tensors.inputs if preprocessing.input in (None, t.name))
    if tensor.dtype == "float16" and preprocessing.dtype == "FP32":
        # A variant whose inputs were converted with it (keep_io_types: false).
        preprocessing = replace(preprocessing, dtype="FP16")
    size = preprocessing.output_size or (None, None)
    sample = (3, *size) if preprocessing.layout == "NCHW" else (*size, 3)
    # A model without batching may have a leading dimension of its own; clients send one sample then.
    leading = batched or (len(tensor.shape) == 4 and tensor.shape[0] == 1)
    wanted = tensor.shape[1:] if leading else tensor.shape
    fits = len(wanted) == len(sample) and all(
        not isinstance(a, int) or b is None or a == b for a, b in zip(wanted, sample, strict=True)
    )
    if not fits or TRITON_DTYPES[tensor.dtype] != f"TYPE_{preprocessing.dtype}":
        raise UsageError(
            f"preprocess.image does not fit the input {tensor.name!r}",
            given=f"{preprocessing.dtype} {preprocessing.layout} {_dims_text(sample)}",
            expected=f"{TRITON_DTYPES[tensor.dtype].removeprefix('TYPE_')} {_dims_text(wanted)}",
        )
    return preprocessing


def _dims_text(dims: Sequence[object]) -> str:
    return f"[{', '.join('?' if d is None else str(d) for d in dims)}]"


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}"
