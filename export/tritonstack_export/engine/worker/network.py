"""From an ONNX file to a TensorRT network: always strongly typed, with every complaint of the parser kept."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tritonstack_export.engine.worker.events import Events, WorkerFailure


def make_logger(trt: ModuleType, events: Events) -> Any:
    """A logger that sends what TensorRT says, from warnings upwards, and keeps the errors in `logger.errors`.

    The first logger of a process wins in TensorRT, so there is one per worker.
    """
    worst = {trt.ILogger.INTERNAL_ERROR: "error", trt.ILogger.ERROR: "error", trt.ILogger.WARNING: "warning"}

    class Listener(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            level = worst.get(severity)
            if level is None:
                return
            if level == "error":
                self.errors.append(text)
            events.send("message", level=level, text=text)

    return Listener()


def make_builder(trt: ModuleType, logger: Any) -> Any:
    """A builder. Raises WorkerFailure (gpu): TensorRT makes none without a usable GPU and driver."""
    try:
        builder = trt.Builder(logger)
    except TypeError as error:
        raise WorkerFailure("gpu", str(error)) from None
    if builder is None:
        raise WorkerFailure("gpu", "no builder was made")
    return builder


def parse(trt: ModuleType, builder: Any, logger: Any, path: str) -> tuple[Any, Any]:
    """(network, parser) of an ONNX file, read by its path so that external weights are found.

    The parser owns memory that the network uses: keep it as long as the network. Raises WorkerFailure (parse, empty).
    """
    flags = 0
    # TensorRT 10 needs the flag, 11 always types strongly and calls it deprecated.
    if hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"):
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        raise WorkerFailure("parse", "the parser refused the model", problems=_problems(parser), log=logger.errors)
    # The parser accepts files that hold nothing: protobuf reads almost any short text as an empty message.
    if network.num_inputs == 0 or network.num_outputs == 0 or network.num_layers == 0:
        raise WorkerFailure(
            "empty",
            f"the network has {network.num_inputs} inputs, {network.num_outputs} outputs, {network.num_layers} layers",
        )
    return network, parser


def _problems(parser: Any) -> list[dict[str, Any]]:
    found = []
    for index in range(parser.num_errors):
        problem = parser.get_error(index)
        found.append(
            {
                "code": str(problem.code()).rpartition(".")[2],
                "node": problem.node_name(),
                "operator": problem.node_operator(),
                "text": problem.desc(),
            }
        )
    return found


def described(tensor: Any) -> dict[str, Any]:
    """Name, dtype (TensorRT's word) and shape (-1: dynamic) of a tensor of the network."""
    return {"name": tensor.name, "dtype": dtype_word(tensor.dtype), "shape": shape_of(tensor.shape)}


def shape_of(dims: Any) -> list[int] | None:
    """A shape as a list; None while its rank is unknown."""
    try:
        return [int(size) for size in dims]
    except ValueError:
        return None


def dtype_word(dtype: Any) -> str:
    """`HALF` for trt.DataType.HALF."""
    return str(dtype).rpartition(".")[2]


def type_counts(network: Any) -> dict[str, Any]:
    """How many layers compute in each dtype, and how many quantize: in a strongly typed network this is what holds.

    Keys: `outputs` (dtype word -> layers whose first output has it) and `layers` (layer type -> count).
    """
    outputs: dict[str, int] = {}
    layers: dict[str, int] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = str(layer.type).rpartition(".")[2]
        layers[kind] = layers.get(kind, 0) + 1
        if layer.num_outputs:
            word = dtype_word(layer.get_output(0).dtype)
            outputs[word] = outputs.get(word, 0) + 1
    return {"outputs": outputs, "layers": layers}
