"""Rules on model_warmup.

A warm-up that does not fit its model makes the model unavailable at start; with python-based backends Triton 2.51
often ends with SIGSEGV on it, taking every other model along.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.repository.config_text import ModelConfig

# Bytes per element by the number of inference.DataType; TYPE_STRING (13) has no fixed size.
_TYPE_STRING = 13
ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 14: 2}


def check_warmup(entry: ModelEntry, config: ModelConfig) -> None:
    inputs = {tensor.name: tensor for tensor in config.input}
    if entry.is_ensemble and config.model_warmup:
        entry.findings.error(
            "warmup",
            "an ensemble takes no model_warmup",
            fix="remove it; warm up the models that the steps name",
            at=("model_warmup",),
        )
        return
    for index, sample in enumerate(config.model_warmup):
        _check_sample(sample, index, inputs, entry, config)


def _check_sample(sample: Any, index: int, inputs: dict[str, Any], entry: ModelEntry, config: ModelConfig) -> None:
    findings = entry.findings
    at: tuple[str | int, ...] = ("model_warmup", index)
    title = f"warm-up {printable(sample.name)!r}" if sample.name else f"warm-up {index + 1}"
    if config.max_batch_size > 0 and sample.batch_size == 0:
        findings.error(
            "warmup-batch",
            f"{title} has batch_size 0: nothing would be warmed up",
            fix=f"use a batch_size from 1 to {config.max_batch_size}",
            at=(*at, "batch_size"),
        )
    elif sample.batch_size > max(config.max_batch_size, 1):
        findings.error(
            "warmup-batch",
            f"{title} has batch_size {sample.batch_size}, max_batch_size is {config.max_batch_size}",
            fix=f"use a batch_size up to {max(config.max_batch_size, 1)}",
            at=(*at, "batch_size"),
        )
    for name in sorted(sample.inputs):
        place = findings.positions.map_entry((*at, "inputs"), name) if findings.positions else at
        if name not in inputs:
            findings.error(
                "warmup-input",
                f"{title} feeds the input {printable(name)!r}, which the model does not have",
                fix=did_you_mean(name, inputs) or f"the inputs are {', '.join(map(repr, inputs))}",
                at=place,
            )
        else:
            _check_input(sample.inputs[name], inputs[name], title, place, entry.path, findings)
    missing = [name for name, tensor in inputs.items() if name not in sample.inputs and not tensor.optional]
    if missing:
        findings.error(
            "warmup-input",
            f"{title} does not feed the input{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}",
            fix="a warm-up needs data for every input",
            at=at,
        )


def _check_input(
    data: Any,
    tensor: Any,
    title: str,
    at: tuple[str | int, ...],
    folder: Path,
    findings: FindingList,
) -> None:
    name = printable(tensor.name)
    at = (*at, "value")
    words = {value.number: value.name for value in data.DESCRIPTOR.fields_by_name["data_type"].enum_type.values}
    if data.data_type != tensor.data_type:
        findings.error(
            "warmup-dtype",
            f"{title}: input {name!r} is {words.get(tensor.data_type)}, the warm-up feeds {words.get(data.data_type)}",
            fix=f"write data_type: {words.get(tensor.data_type)}",
            at=(*at, "data_type"),
        )
    dims, wanted = list(data.dims), list(tensor.dims)
    if any(size < 1 for size in dims) or len(dims) != len(wanted):
        fits = False
    else:
        fits = all(want in (-1, size) for size, want in zip(dims, wanted, strict=True))
    if not fits:
        findings.error(
            "warmup-dims",
            f"{title}: input {name!r} has dims {wanted}, the warm-up feeds {dims}",
            fix="give the dims of the input, without the batch, with a fixed number for each -1",
            at=(*at, "dims"),
        )
    source = data.WhichOneof("input_data_type")
    if source is None:
        findings.error(
            "warmup-data",
            f"{title}: input {name!r} has no data",
            fix="add zero_data: true, random_data: true or input_data_file",
            at=at,
        )
    elif source == "input_data_file":
        _check_file(data, title, name, at, folder, findings)


def _check_file(
    data: Any, title: str, name: str, at: tuple[str | int, ...], folder: Path, findings: FindingList
) -> None:
    path = folder / "warmup" / data.input_data_file
    place = (*at, "input_data_file")
    try:
        size = path.stat().st_size
    except OSError as error:
        findings.error(
            "warmup-data",
            f"{title}: input {name!r} reads warmup/{printable(data.input_data_file)}: {error.strerror}",
            fix="put the raw bytes of the tensor there",
            at=place,
        )
        return
    if data.data_type == _TYPE_STRING:
        _check_strings(path, math.prod(data.dims), title, name, place, findings)
        return
    element = ELEMENT_BYTES.get(data.data_type)
    if element is None or any(dim < 1 for dim in data.dims):
        return
    # Triton reads one sample and repeats it for the batch, or takes a file that holds the whole batch.
    one = element * math.prod(data.dims)
    if size < one:
        findings.error(
            "warmup-data",
            f"{title}: warmup/{printable(data.input_data_file)} has {size} bytes, input {name!r} needs {one}",
            fix="write the tensor in full, little-endian, without a header",
            at=place,
        )


def _check_strings(
    path: Path, wanted: int, title: str, name: str, place: tuple[str | int, ...], findings: FindingList
) -> None:
    """Elements are a length of four bytes and as many bytes. Triton 2.51 dies of a file that is cut otherwise."""
    found, at, size = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while at + 4 <= size:
            file.seek(at)
            at += 4 + int.from_bytes(file.read(4), "little")
            found += 1
    if at == size and found == wanted:
        return
    findings.error(
        "warmup-data",
        f"{title}: input {name!r} needs {wanted} string{'s' if wanted != 1 else ''}, warmup/{printable(path.name)} "
        + (f"has {found}" if at == size else "is not cut into strings"),
        fix="write each string as its length in four bytes, little-endian, and its bytes",
        at=place,
    )
