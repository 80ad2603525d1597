"""What a server tells about itself and its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonstack.tensor.tensor_spec import TensorSpec


@dataclass(frozen=True)
class ServerMetadata:
    """Name, version and protocol extensions of a server."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True)
class RepositoryModel:
    """One version of a model in the server's repository; `state` is ``READY``, ``UNAVAILABLE``, …, empty if unknown."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class ModelMetadata:
    """Inputs and outputs of a model. Shapes include the batch dimension where `max_batch_size` is above 0."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int

    def input(self, name: str) -> TensorSpec:
        """The input called `name`; KeyError lists the names."""
        return _named(self.inputs, name, f"model {self.name!r} has no input")

    def output(self, name: str) -> TensorSpec:
        """The output called `name`; KeyError lists the names."""
        return _named(self.outputs, name, f"model {self.name!r} has no output")


def _named(specs: tuple[TensorSpec, ...], name: str, problem: str) -> TensorSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    raise KeyError(f"{problem} {name!r}; it has {', '.join(repr(spec.name) for spec in specs)}")


@dataclass(frozen=True)
class EnsembleStep:
    """One step of an ensemble: the model it calls and how tensors map into and out of it (inner name → outer name)."""

    model: str
    version: int
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True)
class ModelConfigView:
    """The parts of a served config.pbtxt that clients use.

    `optional_inputs` names the inputs that may be left out; `label_files` maps output names to their label file;
    `preferred_batch_sizes` and `max_queue_delay_us` are those of dynamic batching, which `dynamic_batching` says is on.
    """

    name: str
    platform: str
    backend: str
    max_batch_size: int
    parameters: Mapping[str, str]
    optional_inputs: tuple[str, ...]
    label_files: Mapping[str, str]
    dynamic_batching: bool
    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int
    instance_count: int
    response_cache: bool
    decoupled: bool
    steps: tuple[EnsembleStep, ...]


@dataclass(frozen=True)
class DurationTotal:
    """How often something happened and how long it took in all, in nanoseconds."""

    count: int = 0
    total_ns: int = 0

    def __sub__(self, earlier: DurationTotal) -> DurationTotal:
        return DurationTotal(self.count - earlier.count, self.total_ns - earlier.total_ns)

    @property
    def mean_us(self) -> float:
        """Mean duration in microseconds; 0 when nothing happened."""
        return self.total_ns / self.count / 1e3 if self.count else 0.0


@dataclass(frozen=True)
class BatchSizeStatistics:
    """Executions at one batch size."""

    batch_size: int
    compute_input: DurationTotal
    compute_infer: DurationTotal
    compute_output: DurationTotal


@dataclass(frozen=True)
class ModelStatistics:
    """Triton's cumulative counters of one model version since it was loaded.

    `inference_count` counts samples, `execution_count` runs of the model (a batch is one), `success` and `fail`
    requests. `last_inference_ms` is Unix time in milliseconds.
    """

    name: str
    version: str
    last_inference_ms: int
    inference_count: int
    execution_count: int
    success: DurationTotal
    fail: DurationTotal
    queue: DurationTotal
    compute_input: DurationTotal
    compute_infer: DurationTotal
    compute_output: DurationTotal
    cache_hit: DurationTotal
    cache_miss: DurationTotal
    batches: tuple[BatchSizeStatistics, ...]
