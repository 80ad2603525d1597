"""What an engine says about itself once it is built: its tensors, profiles and layers."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from tritonstack_export.engine.worker.network import dtype_word, shape_of


def read_engine(trt: ModuleType, logger: Any, plan: Any, *, version_compatible: bool) -> dict[str, Any] | None:
    """Deserialise `plan` and describe it; None where this machine cannot (no GPU, or another one).

    Keys: `inputs`, `outputs` (name, dtype, shape with -1), `profiles` (per profile: input -> min, opt, max shapes) and
    `inspection` (TensorRT's own JSON, None where it gives none).
    """
    runtime = trt.Runtime(logger)
    if version_compatible and hasattr(runtime, "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return None
    tensors: dict[str, list[dict[str, Any]]] = {"inputs": [], "outputs": []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        kind = "inputs" if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else "outputs"
        tensors[kind].append(
            {
                "name": name,
                "dtype": dtype_word(engine.get_tensor_dtype(name)),
                "shape": shape_of(engine.get_tensor_shape(name)),
            }
        )
    profiles = [
        {
            tensor["name"]: [shape_of(dims) for dims in engine.get_tensor_profile_shape(tensor["name"], number)]
            for tensor in tensors["inputs"]
        }
        for number in range(engine.num_optimization_profiles)
    ]
    return {**tensors, "profiles": profiles, "inspection": _inspect(trt, engine)}


def _inspect(trt: ModuleType, engine: Any) -> Any:
    inspector = engine.create_engine_inspector()
    if inspector is None:
        return None
    try:
        return json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    except ValueError:
        return None
