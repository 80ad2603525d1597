"""Whether an ONNX graph is well formed.

The ONNX checker is stricter than onnxruntime in places (an output without shape, an operator set that is not
declared), so onnxruntime has the last word on what the checker objects to.
"""

from __future__ import annotations

import os
from pathlib import Path

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.onnx_signature import GraphSignature

# Checker and onnxruntime read the whole file; beyond this size their memory is not worth what they find.
_MAX_BYTES = 512 * 1024 * 1024


def check_structure(path: Path, signature: GraphSignature, findings: FindingList) -> None:
    """Run the ONNX checker on a file whose external weights are all there. Files above 512 MiB are left alone."""
    import onnx

    if signature.opset is None or signature.opset > onnx.defs.onnx_opset_version():
        return
    if signature.ir_version > onnx.IR_VERSION or path.stat().st_size > _MAX_BYTES:
        return
    real = Path(os.path.realpath(path))
    data_files = {real.parent / tensor.location for tensor in signature.external}
    # The checker takes no data file that is a link or has a second name; onnxruntime takes both.
    if any(file.is_symlink() or file.stat().st_nlink > 1 for file in data_files):
        return
    try:
        onnx.checker.check_model(str(real))
    # The checker lets errors of its C++ side through, and stumbles over names that are not UTF-8.
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        objection = _first_line(error)
    else:
        return
    small = sum(file.stat().st_size for file in data_files) <= _MAX_BYTES
    refusal = _refusal_of_onnxruntime(real) if small else None
    if refusal == "":
        findings.warning(
            "onnx-structure",
            f"{short_name(path)}: the ONNX checker objects, though onnxruntime loads it: {objection}",
            fix="export the model again where another runtime or TensorRT shall read it",
            path=path,
        )
        return
    findings.error(
        "onnx-structure",
        f"{short_name(path)} is no valid ONNX model: {refusal or objection}",
        fix="export the model again; `python -m onnx.checker` shows the details",
        path=path,
    )


def short_name(path: Path) -> str:
    """``1/model.onnx``: the part of the path that tells versions apart."""
    return printable("/".join(path.parts[-2:])) if path.suffix else printable(path.name)


def _refusal_of_onnxruntime(path: Path) -> str | None:
    """Why onnxruntime does not load the file, empty when it does, None where it cannot be asked."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        # With its fallback on, onnxruntime prints on stdout and tries a second time.
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    # onnxruntime's own exceptions derive from Exception alone, one class per status code.
    except Exception as error:
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "invalid model")
    return printable(first)[:300]
