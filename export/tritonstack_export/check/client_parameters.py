"""The parameters that clients of ours read from a served model's config: ``tritonstack.image`` and the like."""

from __future__ import annotations

import json

from tritonstack.errors import UsageError
from tritonstack.image import ImagePreprocessing
from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.repository.config_text import ModelConfig

IMAGE = "tritonstack.image"
IMAGE_BYTES = "tritonstack.image_bytes"
CLASSIFICATION = "tritonstack.classification"
_KNOWN = (IMAGE, IMAGE_BYTES, CLASSIFICATION)


def check_client_parameter(
    name: str, value: str, at: tuple[str | int, ...], config: ModelConfig, findings: FindingList
) -> None:
    """One parameter called ``tritonstack.<something>`` against the tensors it speaks of."""
    if name == IMAGE:
        problem, fix = _image_problem(value, config)
    elif name == IMAGE_BYTES:
        problem, fix = _image_bytes_problem(value, config)
    elif name == CLASSIFICATION:
        problem, fix = _classification_problem(value, config)
    else:
        findings.warning(
            "parameter",
            f"no client reads the parameter {printable(name)!r}",
            fix=did_you_mean(name, _KNOWN) or f"known ones are {', '.join(_KNOWN)}",
            at=at,
        )
        return
    if problem:
        findings.error("parameter", f"parameter {name!r}: {problem}", fix=fix, at=at)


def _image_problem(value: str, config: ModelConfig) -> tuple[str, str]:
    """The problem and its fix, both empty when there is none."""
    try:
        image = ImagePreprocessing.from_json(value)
    except UsageError as error:
        return printable(str(error)), "export the model again, or mend the JSON"
    inputs = {tensor.name: tensor for tensor in config.input}
    if image.input is None and len(inputs) != 1:
        return f"it names no input, the model has {len(inputs)}", "name the input that takes the picture"
    wanted = image.input if image.input is not None else next(iter(inputs))
    if wanted not in inputs:
        return f"the model has no input {printable(wanted)!r}", did_you_mean(wanted, inputs) or "name one of its inputs"
    tensor = inputs[wanted]
    words = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    data_type = words[tensor.data_type].name if tensor.data_type in words else "TYPE_INVALID"
    if data_type != f"TYPE_{image.dtype}":
        return (
            f"pictures become {image.dtype}, input {printable(wanted)!r} is {data_type}",
            f"set its dtype to {data_type.removeprefix('TYPE_')}",
        )
    height, width = image.output_size or (-1, -1)
    made = [3, height, width] if image.layout == "NCHW" else [height, width, 3]
    dims = list(tensor.dims)
    if config.max_batch_size == 0 and len(dims) == 4 and dims[0] in (1, -1):
        # A model without batching may have a leading dimension of its own; clients send one sample then.
        del dims[0]
    if len(dims) != 3 or any(-1 not in (has, takes) and has != takes for has, takes in zip(made, dims, strict=True)):
        return (
            f"pictures become {made} ({image.layout}), input {printable(wanted)!r} takes {dims}",
            "mend resize, center_crop or layout",
        )
    return "", ""


def _image_bytes_problem(value: str, config: ModelConfig) -> tuple[str, str]:
    """The problem of the input that takes encoded pictures, and its fix."""
    fix = 'write {"input": "<input name>"}'
    try:
        fields = json.loads(value)
    except ValueError as error:
        return f"it is no JSON: {error}", fix
    wanted = fields.get("input") if isinstance(fields, dict) else None
    if not isinstance(wanted, str):
        return "it names no input", fix
    tensors = {tensor.name: tensor for tensor in config.input}
    if wanted not in tensors:
        return f"the model has no input {printable(wanted)!r}", did_you_mean(wanted, tensors) or fix
    tensor = tensors[wanted]
    words = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name
    if tensor.data_type != words["TYPE_STRING"].number or list(tensor.dims) != [1]:
        return f"the input {printable(wanted)!r} takes no encoded pictures", "declare it TYPE_STRING with dims: [ 1 ]"
    return "", ""


def _classification_problem(value: str, config: ModelConfig) -> tuple[str, str]:
    fix = 'write {"output": "<output name>", "activation": "softmax" or "none"}'
    try:
        fields = json.loads(value)
    except ValueError as error:
        return f"it is no JSON: {error}", fix
    if not isinstance(fields, dict):
        return "it is no JSON object", fix
    output, activation = fields.get("output"), fields.get("activation")
    outputs = [tensor.name for tensor in config.output]
    if not isinstance(output, str):
        return "it names no output", fix
    if output not in outputs:
        return f"the model has no output {printable(output)!r}", did_you_mean(output, outputs) or fix
    if activation not in ("softmax", "none"):
        return f"activation is {activation!r}", fix
    return "", ""
