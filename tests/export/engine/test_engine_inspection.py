"""The engine inspector's JSON, in both shapes.

No engine can be opened on a machine without a GPU, so these documents were not taken from a real engine: they were
written after the documented format of TensorRT 10 (`Bindings`, one text per tensor) and 11 (`I/O Tensors`, split).
"""

from __future__ import annotations

from typing import Any

import pytest

from tritonstack_export.engine.inspection import precision_warnings, summarise


def tensor10(name: str, text: str) -> dict[str, Any]:
    return {"Name": name, "Location": "Device", "Dimensions": [8, 3, 8, 8], "Format/Datatype": text}


def tensor11(name: str, kind: str) -> dict[str, Any]:
    return {"Name": name, "Location": "Device", "Dimensions": [8, 3, 8, 8], "Format": "Linear", "Datatype": kind}


def layer(name: str, kind: str, inputs: list[Any], outputs: list[Any], metadata: str = "") -> dict[str, Any]:
    return {
        "Name": name, "LayerType": kind, "Inputs": inputs, "Outputs": outputs, "TacticName": "sm80_xmma",
        "StreamId": 0, "Metadata": metadata,
    }  # fmt: skip


INT8_10 = "Thirty-two wide channel vectorized row major Int8 format"
HALF_10 = "Channel major FP16 format where channel % 8 == 0"
FLOAT_10 = "Row major linear FP32"
TEN = {
    "Layers": [
        layer(
            "Reformatting CopyNode for Input Tensor 0", "Reformat", [tensor10("x", FLOAT_10)], [tensor10("a", INT8_10)]
        ),
        layer("stem/Conv + Relu", "CaskConvolution", [tensor10("a", INT8_10)], [tensor10("b", INT8_10)]),
        layer("block/Conv + Add", "CaskConvolution", [tensor10("b", INT8_10)], [tensor10("c", FLOAT_10)]),
        layer("head/Conv", "CaskConvolution", [tensor10("c", HALF_10)], [tensor10("d", HALF_10)]),
        layer("pool", "CaskPooling", [tensor10("d", HALF_10)], [tensor10("e", HALF_10)]),
        layer("{ForeignNode[/fc/Gemm]}", "Myelin", [tensor10("e", FLOAT_10)], [tensor10("y", FLOAT_10)]),
    ],
    "Bindings": ["x", "y"],
}
ELEVEN = {
    "Layers": [
        layer("q", "Quantize", [tensor11("x", "Float")], [tensor11("a", "Int8")]),
        layer("conv_a", "conv", [tensor11("a", "Int8"), tensor11("w", "Int8")], [tensor11("b", "Half")]),
        layer("kgen_1", "kgen", [tensor11("b", "Half")], [tensor11("c", "Half")], "[ONNX Layer: /act/Clip]"),
        layer("fused_2", "kgen", [tensor11("c", "Half")], [tensor11("y", "Float")], "[ONNX Layer: /fc/MatMul]"),
    ],
    "I/O Tensors": [
        {"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [-1, 3, 8, 8], "Profile": 0},
        {"Name": "y", "IOMode": "Output", "DataType": "Float", "Dimensions": [-1, 10], "Profile": 0},
    ],
}


def test_the_shape_of_tensorrt_10() -> None:
    summary = summarise(TEN)
    assert summary.names == ("x", "y")
    assert summary.layers == 6
    assert dict(summary.by_precision) == {"int8": 2, "fp16": 2, "fp32": 1}
    assert summary.compute == {
        "int8": ("stem/Conv + Relu", "block/Conv + Add"),
        "fp16": ("head/Conv",),
        "fp32": ("{ForeignNode[/fc/Gemm]}",),
    }
    assert (summary.executed, summary.detailed) == ("int8", True)


def test_the_shape_of_tensorrt_11() -> None:
    summary = summarise(ELEVEN)
    assert summary.names == ("x", "y")
    assert summary.compute == {"int8": ("conv_a",), "fp16": ("fused_2",)}
    assert dict(summary.by_precision) == {"int8": 1, "fp16": 2}
    assert summary.as_dict()["compute_layers"] == {"fp16": 1, "int8": 1}


def test_int8_asked_and_fp16_run_is_seen() -> None:
    warnings = precision_warnings("int8", summarise(TEN), {})
    assert warnings == (
        "INT8 was asked for, but 1 of 4 convolutions and matrix products run in FP16: head/Conv",
        "INT8 was asked for, but 1 of 4 convolutions and matrix products run in FP32: {ForeignNode[/fc/Gemm]}",
    )
    assert precision_warnings("fp16", summarise(ELEVEN), {}) == ()
    assert len(precision_warnings("fp16", summarise(TEN), {})) == 1
    assert precision_warnings("fp32", summarise(TEN), {}) == precision_warnings(None, summarise(TEN), {}) == ()


def test_many_layers_are_not_all_named() -> None:
    layers = [layer(f"conv_{i}", "conv", [tensor11("a", "Half")], []) for i in range(9)]
    (warning,) = precision_warnings("int8", summarise({"Layers": layers}), {})
    assert "9 of 9" in warning and "conv_4 …" in warning and "conv_5" not in warning


@pytest.mark.parametrize(
    "document", [None, [], {}, {"Layers": ["conv_a", "conv_b"], "Bindings": ["x"]}, {"Layers": [{}, 3]}, {"Layers": []}]
)
def test_documents_without_details(document: Any) -> None:
    """Engines built with layer names only, and whatever a later version may bring."""
    summary = summarise(document)
    assert (summary.executed, summary.compute_layers) == (None, 0)


def test_without_an_inspector_the_network_is_judged() -> None:
    (warning,) = precision_warnings("fp16", None, {"FLOAT": 9, "HALF": 1})
    assert "9 of 10 layers of the network are FP32" in warning
    assert precision_warnings("fp16", None, {"FLOAT": 1, "HALF": 9}) == ()
