"""TensorRT's own account of an engine, summarised: how many layers run in which precision, and which.

TensorRT 10 lists `Bindings` and one text `Format/Datatype` per tensor; 11 lists `I/O Tensors` and splits the text into
`Format` and `Datatype`. Engines built without detailed verbosity list bare names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PRECISIONS = (
    ("int8", re.compile(r"\bu?int8\b", re.IGNORECASE)),
    ("fp8", re.compile(r"\bfp8|\bfloat8|e4m3", re.IGNORECASE)),
    ("int4", re.compile(r"\bint4\b", re.IGNORECASE)),
    ("fp4", re.compile(r"\bfp4|e2m1", re.IGNORECASE)),
    ("fp16", re.compile(r"\bhalf\b|\bfp16\b|\bfloat16\b", re.IGNORECASE)),
    ("bf16", re.compile(r"\bbf16\b|\bbfloat16\b|\bbfloat\b", re.IGNORECASE)),
    ("fp32", re.compile(r"\bfloat\b|\bfp32\b|\bfloat32\b|\btf32\b", re.IGNORECASE)),
)
_NARROW = ("fp4", "int4", "fp8", "int8", "bf16", "fp16", "fp32")
"""The narrowest input of a layer is what its arithmetic runs in: an INT8 convolution may well have an FP32 output."""
_COMPUTE_TYPE = re.compile(r"conv|gemm|matrix|matmul|correlation|fullyconnected", re.IGNORECASE)
_COMPUTE_NAME = re.compile(r"conv|gemm|matmul|fc\b|linear", re.IGNORECASE)
_FUSED_TYPES = re.compile(r"kgen|myelin|fusion|foreign", re.IGNORECASE)
_CONVERSIONS = re.compile(r"reformat|noop|constant|quantize|cast|shuffle", re.IGNORECASE)
_SHOWN = 5


@dataclass(frozen=True)
class LayerSummary:
    """What an engine runs.

    `layers`: all of them, conversions included. `by_precision`: precision -> layers that are no mere conversions.
    `compute`: precision -> names of the convolutions and matrix products. `names`: inputs and outputs.
    `detailed`: false when the engine names its layers only, so that the precisions are unknown.
    """

    layers: int
    by_precision: Mapping[str, int]
    compute: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...]
    detailed: bool

    @property
    def compute_layers(self) -> int:
        return sum(map(len, self.compute.values()))

    @property
    def executed(self) -> str | None:
        """The precision that most convolutions and matrix products run in (most layers, where there are none)."""
        counts = {name: len(layers) for name, layers in self.compute.items()} or dict(self.by_precision)
        return max(sorted(counts), key=lambda name: counts[name]) if counts else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "by_precision": dict(sorted(self.by_precision.items())),
            "compute_layers": {name: len(layers) for name, layers in sorted(self.compute.items())},
            "executed": self.executed,
        }


def summarise(inspection: Any) -> LayerSummary:
    """The summary of the JSON that `get_engine_information` gives, in either shape; unknown parts are left out."""
    document = inspection if isinstance(inspection, dict) else {}
    layers = document.get("Layers", [])
    counts: Counter[str] = Counter()
    compute: dict[str, list[str]] = {}
    detailed = False
    for layer in layers:
        if not isinstance(layer, dict):
            continue
        detailed = True
        name, kind = str(layer.get("Name", "?")), str(layer.get("LayerType", ""))
        if _CONVERSIONS.search(kind):
            continue
        precision = _precision(layer)
        if precision is None:
            continue
        counts[precision] += 1
        label = f"{name} {layer.get('Metadata', '')}"
        if _COMPUTE_TYPE.search(kind) or (_FUSED_TYPES.search(kind) and _COMPUTE_NAME.search(label)):
            compute.setdefault(precision, []).append(name)
    return LayerSummary(
        layers=len(layers),
        by_precision=dict(counts),
        compute={name: tuple(found) for name, found in compute.items()},
        names=_tensor_names(document),
        detailed=detailed,
    )


def _precision(layer: Mapping[str, Any]) -> str | None:
    """The narrowest type among the inputs, else among the outputs; None where nothing is a number of a known type."""
    for key in ("Inputs", "Outputs"):
        found = {word for tensor in layer.get(key, []) if (word := _type_of(tensor)) is not None}
        for name in _NARROW:
            if name in found:
                return name
    return None


def _type_of(tensor: Any) -> str | None:
    if not isinstance(tensor, dict):
        return None
    for key in ("Datatype", "DataType", "Format/Datatype"):
        text = tensor.get(key)
        if isinstance(text, str):
            return next((name for name, pattern in _PRECISIONS if pattern.search(text)), None)
    return None


def _tensor_names(document: Mapping[str, Any]) -> tuple[str, ...]:
    if "Bindings" in document:
        return tuple(map(str, document["Bindings"]))
    return tuple(str(tensor.get("Name", tensor.get("name"))) for tensor in document.get("I/O Tensors", []) if tensor)


def precision_warnings(wanted: str | None, summary: LayerSummary | None, types: Mapping[str, int]) -> tuple[str, ...]:
    """What to say when the engine does not run in the precision that was asked for.

    `types`: dtype word -> layers of the network, which is all there is to judge by without a `summary`.
    """
    if wanted is None or wanted == "fp32":
        return ()
    if summary is None or not summary.detailed:
        floats = types.get("FLOAT", 0)
        if wanted in ("fp16", "bf16") and floats > sum(types.values()) / 2:
            return (f"{wanted} was asked for, but {floats} of {sum(types.values())} layers of the network are FP32",)
        return ()
    warnings = []
    for precision, names in sorted(summary.compute.items()):
        if _NARROW.index(precision) <= _NARROW.index(wanted):
            continue
        shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
        warnings.append(
            f"{wanted.upper()} was asked for, but {len(names)} of {summary.compute_layers} convolutions and matrix "
            f"products run in {precision.upper()}: {shown}"
        )
    return tuple(warnings)
