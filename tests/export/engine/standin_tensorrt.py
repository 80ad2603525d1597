"""Stands in for TensorRT 11 on a machine with a GPU, which the tests do not have: real names, no kernels.

There is no FP16, INT8 or EXPLICIT_BATCH flag here, as in the real one. The network is read with onnx, the plan is a
header, and the inspector gives what INSPECTION says. That the names are the real ones, test_engine_bindings proves.
"""

from __future__ import annotations

import enum
import json
import os
from typing import Any

__version__ = "11.2.1.2"
_TYPES = {1: "FLOAT", 10: "HALF", 16: "BF16", 3: "INT8", 7: "INT64", 6: "INT32", 2: "UINT8", 9: "BOOL"}
DataType = enum.Enum("DataType", list(_TYPES.values()))
BuilderFlag = enum.Enum("BuilderFlag", "TF32 REFIT VERSION_COMPATIBLE STRIP_PLAN REFIT_IDENTICAL SPARSE_WEIGHTS")
NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 0})
HardwareCompatibilityLevel = enum.Enum("HardwareCompatibilityLevel", "NONE AMPERE_PLUS SAME_COMPUTE_CAPABILITY")
MemoryPoolType = enum.Enum("MemoryPoolType", "WORKSPACE")
ProfilingVerbosity = enum.Enum("ProfilingVerbosity", "DETAILED")
LayerInformationFormat = enum.Enum("LayerInformationFormat", "JSON")
TensorIOMode = enum.Enum("TensorIOMode", "INPUT OUTPUT")
LayerType = enum.Enum("LayerType", "CONVOLUTION QUANTIZE DEQUANTIZE CAST CONSTANT")


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)

    def log(self, severity: int, text: str) -> None: ...


class IProgressMonitor:
    pass


class Tensor:
    is_shape_tensor = False

    def __init__(self, name: str, kind: int, shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, DataType[_TYPES[kind]], shape


class Layer:
    num_outputs = 1

    def __init__(self, kind: LayerType, dtype: int) -> None:
        self.type, self._tensor = kind, Tensor("", dtype, ())

    def get_output(self, index: int) -> Tensor:
        return self._tensor


class Network:
    def __init__(self, flags: int) -> None:
        assert flags == 1
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.layers: list[Layer] = []

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))
    num_layers = property(lambda self: len(self.layers))

    def get_input(self, index: int) -> Tensor:
        return self.inputs[index]

    def get_output(self, index: int) -> Tensor:
        return self.outputs[index]

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]


class OnnxParser:
    num_errors = 0

    def __init__(self, network: Network, logger: ILogger) -> None:
        self.network = network

    def parse_from_file(self, path: str) -> bool:
        import onnx

        graph = onnx.load(path).graph
        for values, target in ((graph.input, self.network.inputs), (graph.output, self.network.outputs)):
            for value in values:
                dims = tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim)
                target.append(Tensor(value.name, value.type.tensor_type.elem_type, dims))
        weights = {tensor.data_type for tensor in graph.initializer}
        words = {"Conv": LayerType.CONVOLUTION, "QuantizeLinear": LayerType.QUANTIZE, "Cast": LayerType.CAST}
        for node in graph.node:
            kind = 3 if node.op_type == "QuantizeLinear" else 10 if 10 in weights else 1
            self.network.layers.append(Layer(words.get(node.op_type, LayerType.DEQUANTIZE), kind))
        return True


class TimingCache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content or b"timings"

    def combine(self, other: TimingCache, ignore_mismatch: bool) -> bool:
        return True


class Config:
    builder_optimization_level = 3
    profiling_verbosity = hardware_compatibility_level = progress_monitor = None

    def __init__(self) -> None:
        self.flags: set[BuilderFlag] = {BuilderFlag.TF32}
        self.profiles: list[Any] = []
        self.timing: TimingCache | None = None

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.flags.discard(flag)

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        assert size > 1 << 20

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content: bytes) -> TimingCache:
        return TimingCache(content)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        self.timing = cache
        return True

    def get_timing_cache(self) -> TimingCache | None:
        return self.timing


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, Any] = {}

    def set_shape(self, name: str, *bounds: list[int]) -> None:
        self.shapes[name] = bounds


class Plan(bytes):
    nbytes = property(len)
    network: Network
    profiles: list[Profile]


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> Network:
        return Network(flags)

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> Plan:
        monitor: Any = config.progress_monitor
        monitor.phase_start("Building", None, 2)
        monitor.phase_start("Timing", "Building", 1)
        assert monitor.step_complete("Timing", 0) and monitor.step_complete("Building", 0)
        monitor.phase_finish("Timing")
        monitor.phase_finish("Building")
        self.logger.log(ILogger.WARNING, "a warning of the builder")
        self.logger.log(ILogger.INFO, "chatter")
        plan = Plan(b"ftrt" + bytes(20) + bytes([11, 2, 1, 2]) + bytes(4) + b"kernels" * 64)
        plan.network, plan.profiles = network, config.profiles
        return plan


class Runtime:
    engine_host_code_allowed = False

    def __init__(self, logger: ILogger) -> None: ...

    def deserialize_cuda_engine(self, plan: Plan) -> Engine | None:
        if os.environ.get("STANDIN") == "closed":
            return None
        if os.environ.get("STANDIN") == "broken":
            raise RuntimeError("CUDA error")
        return Engine(plan)


class Engine:
    def __init__(self, plan: Plan) -> None:
        self.inputs, self.outputs, self.profiles = plan.network.inputs, plan.network.outputs, plan.profiles
        self.tensors = {t.name: t for t in (*self.inputs, *self.outputs)}

    num_io_tensors = property(lambda self: len(self.tensors))
    num_optimization_profiles = property(lambda self: len(self.profiles))

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in {t.name for t in self.inputs} else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name].dtype

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def get_tensor_profile_shape(self, name: str, number: int) -> list[Any]:
        return list(self.profiles[number].shapes[name])

    def create_engine_inspector(self) -> Inspector:
        return Inspector()


class Inspector:
    def get_engine_information(self, form: LayerInformationFormat) -> str:
        conv = {
            "Name": "conv", "LayerType": "conv", "Inputs": [{"Name": "x", "Format": "Linear", "Datatype": "Half"}],
            "Outputs": [{"Name": "y", "Format": "Linear", "Datatype": "Half"}],
        }  # fmt: skip
        return json.dumps({"Layers": [conv], "I/O Tensors": [{"Name": "x"}, {"Name": "y"}]})
