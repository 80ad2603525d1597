"""TensorRT's refusals in words: which node, which operator, and what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonstack_export.engine.engine_error import EngineError

# What TensorRT appends to every message when no CUDA driver is there, whatever the message was about.
_CUDA_NOISE = re.compile(r"\[?\[?checkMacros\.cpp.*|\bcudaError(?:_t)? \d+.*|Cuda failure.*", re.DOTALL)
_PLACE = re.compile(r"^\[\w+\]\s*|\bIn (?:node|function) [-\w]+ with name: .*? and operator: \w+ \(\w+\):\s*")
# How TensorRT names a layer in its own words: `{ForeignNode[...]}`, `(Conv_12)`, or a bare name.
_LAYER_NAMES = (
    re.compile(r"(\S+) has no runners that implement it"),
    re.compile(r"(?:node|layer|for) \{?(?:ForeignNode\[)?([^\s{}\[\]]+)"),
)
_LENGTH = 300


@dataclass(frozen=True)
class Remedy:
    """A refusal that is known: how it reads, what it means, what to change."""

    pattern: re.Pattern[str]
    meaning: str
    fix: str


def _remedy(pattern: str, meaning: str, fix: str) -> Remedy:
    return Remedy(re.compile(pattern, re.IGNORECASE | re.DOTALL), meaning, fix)


# The first that matches wins, so the special ones come first.
REMEDIES = (
    _remedy(
        r"input has type Int32 but must have type",
        "a bias was quantized to INT32, which TensorRT does not dequantize",
        "quantize again without biases (QuantizeBias: False)",
    ),
    _remedy(
        r"shiftIsAllZeros|non-?zero zero.?point",
        "a zero point is not 0: TensorRT takes symmetric quantization only",
        "quantize again with symmetric activations and weights",
    ),
    _remedy(
        r"scale coefficients must all be positive|scale.*must.*positive",
        "a quantization scale is zero or negative",
        "calibrate with inputs that make this tensor vary, or exclude the layer",
    ),
    _remedy(
        r"must have same input types|types? .* and .*(?:mismatch|differ)|same type",
        "the inputs of an operation have different types, and a strongly typed network converts nothing by itself",
        "put a Cast before it, or convert the model to FP16 with `tritonstack export --precision fp16`",
    ),
    _remedy(
        r"plugin not found",
        "this operator is neither ONNX nor a plugin that was loaded",
        "name the plugin's library under `plugins` in the spec's `engine`, or replace the operator",
    ),
    _remedy(
        r"failed to open file|external (?:data|weights)|unable to open .*\.data|importExternalWeights",
        "the file with the external weights is missing",
        "put it beside the .onnx file: a model with external data is two files",
    ),
    _remedy(
        r"convertDtype|convertOnnxDataType|UINT32|uint64|unsupported (?:ONNX )?data ?type|unsupported type",
        "a tensor has a type that TensorRT does not know (such as uint32 or string)",
        "cast it to int32 or int64 in the model",
    ),
    _remedy(
        r"no importer registered|unsupported operator|not supported by the parser|UNSUPPORTED_NODE",
        "TensorRT has no such operator",
        "replace the operator in the model, or supply a plugin for it",
    ),
    _remedy(
        r"double|float64",
        "a tensor is float64, which TensorRT does not compute in",
        "export the model in float32",
    ),
    _remedy(
        r"no low-precision conv kernel",
        "this TensorRT has no FP16 kernel for a grouped convolution (NVIDIA/TensorRT#4838)",
        "keep the layer in FP32 (`keep_fp32`), or use another TensorRT version",
    ),
    _remedy(
        r"libnvinfer_lean",
        "version_compatible needs the library libnvinfer_lean, which is not there",
        "install it, or leave version_compatible out",
    ),
    _remedy(
        r"graph_jit\.cpp.*CUDA_SUCCESS",
        "TensorRT-RTX makes refittable and stripped engines on a GPU only",
        "build with weights: fixed here",
    ),
    _remedy(
        r"missing dimensions in profile",
        "a profile does not bound every dynamic input",
        "name each dynamic input in every profile",
    ),
    _remedy(
        r"dimension mismatch for tensor|static dimensions that don't match|kMIN|kOPT|kMAX",
        "a profile contradicts a fixed dimension of the model",
        "export the model with that dimension dynamic, or give the profile its fixed size",
    ),
    _remedy(
        r"no optimization profile has been defined",
        "the model has dynamic dimensions and no profile",
        "give their bounds (`batch`, `dimensions` or `engine.profiles` in the spec)",
    ),
    _remedy(
        r"has no runners that implement it",
        "no kernel implements this layer",
        "replace the operator in the model; TensorRT for RTX lacks some, such as NonMaxSuppression, that TensorRT has",
    ),
    _remedy(
        r"out of memory|insufficient workspace|could not find any implementation|CUDA_ERROR_OUT_OF_MEMORY",
        "no kernel fitted into the memory allowed",
        "raise workspace_mb in the spec's `engine`, or free memory on the GPU",
    ),
    _remedy(
        r"deserialize|MODEL_DESERIALIZE_FAILED|Failed to parse the onnx",
        "the file is no ONNX model, or it was cut short",
        "copy or export the model again",
    ),
)

_NO_GPU = "TensorRT found no usable GPU here (no NVIDIA driver, or no GPU is visible)"


def engine_error(failed: dict[str, Any], *, onnx: Path | None, rtx: bool) -> EngineError:
    """The worker's `failed` event as an error. `onnx` names the model in the messages."""
    name = onnx.name if onnx is not None else "the model"
    kind, text = str(failed["kind"]), clean(str(failed["text"]))
    log = tuple(dict.fromkeys(clean(line) for line in failed.get("log", ()) if clean(line)))
    product = "TensorRT-RTX" if rtx else "TensorRT"
    if kind == "import":
        return EngineError(
            f"{product} cannot be loaded: {text}",
            kind=kind,
            next_step="run this inside NVIDIA's Triton image, or install TensorRT of the server's version",
        )
    if kind == "gpu" or (kind != "parse" and "factory function returned nullptr" in text):
        return EngineError(
            _NO_GPU, kind="gpu", next_step="run it where the GPU is, such as in a container started with --gpus"
        )
    if kind == "old":
        return EngineError(
            text, kind=kind, expected="TensorRT 10 or newer", next_step="run this in a newer image of NVIDIA's Triton"
        )
    if kind == "empty":
        return EngineError(f"{name} holds no network: {text}", kind=kind, expected="an ONNX model with nodes")
    if kind == "precision":
        wanted, found = failed["wanted"], ", ".join(f"{count} {word}" for word, count in failed["found"].items())
        return EngineError(
            f"{name} was to be built in {wanted}, but its graph holds none: TensorRT would run it in FP32",
            kind=kind,
            given=f"layers by type: {found}",
            expected={"int8": "Quantize/Dequantize nodes"}.get(wanted, f"{wanted} weights or casts"),
            next_step=f"export it with `tritonstack export --precision {wanted}`",
        )
    if kind == "unsupported":
        known = failed.get("known")
        return EngineError(
            text,
            kind=kind,
            expected=f"one of {', '.join(known)}" if known else None,
            next_step=None if known else f"change `{failed['policy'].partition(':')[0]}` in the spec's `engine`",
        )
    if kind == "plugin":
        return EngineError(
            f"the plugin library cannot be loaded: {text}",
            kind=kind,
            next_step="check its path under `plugins` in the spec's `engine`",
        )
    if kind == "write":
        return EngineError(
            f"the engine cannot be written: {text}", kind=kind, next_step="free some space there, or write elsewhere"
        )
    if kind == "memory":
        return EngineError("the build ran out of memory", kind=kind, next_step="give it more memory")
    if kind == "profile":
        return EngineError(
            f"{name}: {text}",
            kind=kind,
            next_step="export the sizes as an input of known shape: values of inputs cannot be bounded here"
            if failed.get("reason") == "shape values"
            else "compare `engine.profiles` with the inputs of the model",
        )
    if kind == "parse":
        return _parse_error(failed.get("problems", []), log, name)
    return _build_error(text, log, name)


def _parse_error(problems: list[dict[str, Any]], log: tuple[str, ...], name: str) -> EngineError:
    if not problems:
        return _build_error("the parser refused the model", log, name)
    # Errors inside of a subgraph come first, each outer node repeats them.
    first = problems[0]
    text = clean(f"{first['text']}")
    remedy = _find(f"{first['code']} {text} {' '.join(log)}")
    node, operator = first["node"] or None, first["operator"] or None
    place = f"node {node!r} ({operator})" if node and operator else f"operator {operator}" if operator else name
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    meaning = f": {remedy.meaning}" if remedy else ""
    return EngineError(
        f"TensorRT refuses {place}{meaning}{more}",
        kind="parse",
        node=node,
        operator=operator,
        log=log,
        given=text[:_LENGTH] or None,
        next_step=remedy.fix if remedy else "replace the operator in the model, or report the message to NVIDIA",
    )


def _build_error(text: str, log: tuple[str, ...], name: str) -> EngineError:
    said = " | ".join(log) or text
    remedy = _find(said)
    node = next((match for pattern in _LAYER_NAMES if (match := pattern.search(said))), None)
    return EngineError(
        f"TensorRT built no engine of {name}" + (f": {remedy.meaning}" if remedy else ""),
        kind="build",
        node=node.group(1).rstrip(".,:") if node else None,
        log=log,
        given=(log[-1] if log else text)[:_LENGTH],
        next_step=remedy.fix if remedy else "look up the message; a lower optimization_level may get around it",
    )


def _find(text: str) -> Remedy | None:
    return next((remedy for remedy in REMEDIES if remedy.pattern.search(text)), None)


def clean(text: str) -> str:
    """A message of TensorRT on one line, without the CUDA errors that it appends when no driver is there."""
    return " ".join(_PLACE.sub("", _CUDA_NOISE.sub("", text)).split()).rstrip(" [").lstrip()
