"""Constants that only push scores below all others before a Softmax, such as -1e9 or the lowest float.

FP16 ends at -65504, so such a constant, or its sum with a score, becomes -inf there, and a row that is masked wholly
becomes NaN. -10000 has the same effect in every precision: exp(-10000) is 0. The same goes for +1e9 in
`(mask - 1) * 1e9`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonstack_export.precision.graph_types import FLOAT
from tritonstack_export.precision.value_ranges import FP16_MAX

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

MASK = 10000.0
_LARGE = 65504 / 4
_CARRIES_MASK = frozenset(
    {
        "Add", "Cast", "Concat", "Expand", "Gather", "Identity", "Max", "Mul", "Reshape", "Slice", "Split", "Squeeze",
        "Tile", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip


def soften_masks(model: ModelProto) -> list[str]:
    """Bring constants beyond ±65504/4 to ±10000 where every path from them ends in a Softmax. Returns their names.

    Only tensors inside the file are looked at; `model` is changed.
    """
    consumers: dict[str, list[NodeProto]] = {}
    inner: set[str] = set()
    for node in model.graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner.update(name for each in attribute.g.node for name in each.input)
    published = {value.name for value in model.graph.output} | inner
    softened = []
    for name, tensor in _constants(model):
        if _holds_mask(tensor) and _ends_in_softmax(name, consumers, published):
            _limit(tensor)
            softened.append(name)
    return softened


def keep_infinities(model: ModelProto) -> None:
    """Store FP32 weights that hold infinities as FP16, with a Cast to FP32 behind them.

    -inf masks exactly in FP16 too, and a row that is masked wholly gives NaN, which the graph may look for. AutoCast
    would make -65504 of it, but takes what is FP16 already as it is, and removes the Cast. `model` is changed.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != FLOAT or tensor.data_location == TensorProto.EXTERNAL:
            continue
        values = numpy_helper.to_array(tensor)
        if not np.isinf(values).any() or (np.abs(values[np.isfinite(values)]) > FP16_MAX).any():
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}__fp16"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], to=FLOAT, name=f"{name}__infinite"))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _constants(model: ModelProto) -> list[tuple[str, TensorProto]]:
    found = [(tensor.name, tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type in ("Constant", "ConstantOfShape"):
            found.extend((node.output[0], attribute.t) for attribute in node.attribute if attribute.HasField("t"))
    return found


def _holds_mask(tensor: TensorProto) -> bool:
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != FLOAT or tensor.data_location == TensorProto.EXTERNAL:
        return False
    values = numpy_helper.to_array(tensor)
    if not values.size:
        return False
    masked = np.isfinite(values) & (np.abs(values) > _LARGE)
    # Everything else has to be 0: a weight that happens to be large is no mask.
    return bool(masked.any() and (masked | (values == 0)).all())


def _limit(tensor: TensorProto) -> None:
    import numpy as np
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    limited = np.where(np.isfinite(values), np.clip(values, -MASK, MASK), values).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(limited, tensor.name))


def _ends_in_softmax(name: str, consumers: dict[str, list[NodeProto]], published: set[str]) -> bool:
    waiting, seen = [name], {name}
    reached = False
    while waiting:
        current = waiting.pop()
        if current in published:
            return False
        for node in consumers.get(current, []):
            if node.op_type == "Softmax":
                reached = True
            elif node.op_type in _CARRIES_MASK:
                for output in node.output:
                    if output not in seen:
                        seen.add(output)
                        waiting.append(output)
            else:
                return False
    return reached
