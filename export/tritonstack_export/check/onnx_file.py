"""An ONNX file on disk: readable, complete with its external weights, structurally valid, not too new."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.onnx_signature import GraphSignature, UnreadableModel, read_signature
from tritonstack_export.check.onnx_structure import check_structure, short_name

# The newest opset and IR version each onnxruntime release loads, newest release first
# (1.24.4 measured: opset 25 and IR 13 load, opset 26 and IR 14 are refused).
_ONNXRUNTIME_LIMITS = (((1, 24), 25, 13), ((1, 23), 23, 11), ((1, 22), 23, 11), ((1, 20), 21, 10))


def check_onnx_file(path: Path, findings: FindingList) -> GraphSignature | None:
    """Report what is wrong with the file itself; the signature when it could be read."""
    try:
        signature = read_signature(path)
    except UnreadableModel as error:
        findings.error(
            "model-file",
            f"{short_name(path)} cannot be read as ONNX: {error}",
            fix="copy or export the model again; compare its size and digest with the source",
            path=path,
        )
        return None
    except OSError as error:
        findings.error(
            "unreadable", f"{short_name(path)} cannot be read: {error.strerror}", fix="check its permissions", path=path
        )
        return None
    complete = _check_external(path, signature, findings)
    if complete:
        check_structure(path, signature, findings)
    _check_age(path, signature, findings)
    return signature


def _check_external(path: Path, signature: GraphSignature, findings: FindingList) -> bool:
    """Whether all external weights are there in full. One finding per data file, whatever the number of tensors."""
    complete = True
    needed: dict[str, int] = {}
    for tensor in signature.external:
        if tensor.problem is not None:
            complete = False
            findings.error(
                "external-data",
                f"the weights of {printable(tensor.tensor)!r} in {short_name(path)} have {tensor.problem}: onnxruntime "
                "refuses them",
                fix="export the model again",
                path=path,
            )
            continue
        end = tensor.offset + (tensor.length or 0)
        needed[tensor.location] = max(needed.get(tensor.location, 0), end)
    for location, size in sorted(needed.items()):
        shown = printable(location)
        if not location:
            complete = False
            findings.error(
                "external-data",
                f"{short_name(path)} has weights outside the file without saying where",
                fix="export the model again",
                path=path,
            )
        elif _leaves_folder(location):
            complete = False
            findings.error(
                "external-data",
                f"{short_name(path)} takes weights from {shown!r}, outside its own folder",
                fix="save the model with its data file beside it and a plain file name as location",
                path=path,
            )
        else:
            complete = _check_data_file(path, location, size, findings) and complete
    return complete


def _leaves_folder(location: str) -> bool:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    return posix.is_absolute() or bool(windows.drive or windows.root) or ".." in posix.parts or ".." in windows.parts


def _check_data_file(path: Path, location: str, size: int, findings: FindingList) -> bool:
    data, shown = path.parent / location, printable(location)
    try:
        present = data.stat().st_size if data.is_file() else None
    except OSError:
        present = None
    if present is None:
        others = [child.name for child in path.parent.iterdir() if child.name.endswith((".data", "_data", ".weights"))]
        hint = f" ({printable(others[0])} is there, but the name must be exactly {shown})" if others else ""
        findings.error(
            "external-data",
            f"{short_name(path)} takes weights from {shown!r}, which is not there{hint}",
            fix=f"copy {shown} into {short_name(path.parent)}/, or save the model with its weights inside",
            path=data,
        )
        return False
    if present < size:
        findings.error(
            "external-data",
            f"{shown} has {present} bytes, {short_name(path)} needs {size} of it",
            fix="copy it again: it was cut short",
            path=data,
        )
        return False
    homes = {os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))}  # noqa: PTH120
    if not any(Path(os.path.realpath(data)).is_relative_to(home) for home in homes):
        findings.error(
            "external-data",
            f"{shown} is a link to {printable(os.path.realpath(data))}, outside the model's folder: onnxruntime "
            "refuses it",
            fix="copy the data file itself there",
            path=data,
        )
        return False
    if not os.access(data, os.R_OK):
        findings.error("unreadable", f"{shown} cannot be read", fix="check its permissions", path=data)
        return False
    return True


def _check_age(path: Path, signature: GraphSignature, findings: FindingList) -> None:
    version, opset, ir_version = _served_limits()
    for what, has, most in (("opset", signature.opset, opset), ("IR version", signature.ir_version, ir_version)):
        if has is not None and has > most:
            findings.warning(
                "onnx-too-new",
                f"{short_name(path)} uses {what} {has}; onnxruntime {version} loads up to {most}",
                fix=f"export with a lower {what}, or serve with a newer onnxruntime",
                path=path,
            )


def _served_limits() -> tuple[str, int, int]:
    """The onnxruntime installed here, else the oldest one a current Triton image has, with its limits."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
        for release, opset, ir_version in _ONNXRUNTIME_LIMITS:
            if numbers >= release:
                # A release newer than the table loads at least what the newest known one does.
                return found, opset, ir_version
    release, opset, ir_version = _ONNXRUNTIME_LIMITS[-1]
    return ".".join(map(str, release)), opset, ir_version
