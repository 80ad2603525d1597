"""The model spec: the one input of `tritonstack export`, as pydantic models that refuse unknown keys."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from tritonstack_export.spec_base import Count, Size, Strict, no_bool
from tritonstack_export.spec_precision import Calibration, EngineSpec, Evaluation, Precision

BATCH = "batch"
"""The name of the batch dimension in shapes."""

DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
_INTEGER_BOUNDS = {
    "bool": (0, 1),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
OPSETS = range(16, 24)
"""Opsets the exporter and the served ONNX Runtime both know; the written file is read back and has to agree."""

NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
DIMENSION_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"


TensorName = Annotated[str, StringConstraints(min_length=1)]


class Checkpoint(Strict):
    """Weights to load into the module that the factory built.

    `path`: relative to the spec's folder, or ``package:NAME/relative/path`` for a file inside an installed package.
    """

    path: str
    sha256: str | None = None
    format: Literal["safetensors", "state_dict"] | None = None
    key: str | None = None
    strict: bool = True

    @field_validator("sha256")
    @classmethod
    def _hex(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", value):
            raise ValueError("expected 64 hexadecimal digits")
        return value.lower() if value else value


class ModelSource(Strict):
    """Where the model comes from: a factory of a torch module, or a ready ONNX file."""

    factory: str | None = None
    onnx: str | None = None
    arguments: dict[str, Any] = {}
    checkpoint: Checkpoint | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelSource:
        if (self.factory is None) == (self.onnx is None):
            raise ValueError("expected exactly one of `factory` and `onnx`")
        if self.onnx is not None and (self.arguments or self.checkpoint):
            raise ValueError("`arguments` and `checkpoint` belong to `factory`, not to `onnx`")
        if self.factory is not None and not re.fullmatch(r".+:[A-Za-z_][A-Za-z0-9_.]*", self.factory):
            raise ValueError("expected `file.py:callable` or `package.module:callable`")
        return self


class InputSpec(Strict):
    """One input: named dimensions are dynamic, numbers are fixed. `range` bounds the random data of the gates."""

    name: TensorName
    dtype: Literal[DTYPES] | None = None  # type: ignore[valid-type]
    shape: list[Size | Annotated[str, StringConstraints(pattern=f"^{DIMENSION_PATTERN}$")]] | None = None
    range: tuple[float | int, float | int] | None = None

    @field_validator("range")
    @classmethod
    def _ordered(cls, value: tuple[float | int, float | int] | None) -> tuple[float | int, float | int] | None:
        if value is not None and not all(math.isfinite(bound) for bound in value):
            raise ValueError("expected finite numbers")
        if value is not None and not value[0] <= value[1]:
            raise ValueError("expected [low, high] with low <= high")
        return value

    @model_validator(mode="after")
    def _range_fits_dtype(self) -> InputSpec:
        bounds = _INTEGER_BOUNDS.get(self.dtype or "")
        if self.range is None or bounds is None:
            return self
        if any(value != int(value) or not bounds[0] <= value <= bounds[1] for value in self.range):
            raise ValueError(f"range {list(self.range)} does not fit {self.dtype} ({bounds[0]} to {bounds[1]})")
        return self


class OutputSpec(Strict):
    """One output. `key`: its key in the model's dict output (default: the name itself)."""

    name: TensorName
    key: str | None = None


class SizeRange(Strict):
    """Bounds of a named dimension other than the batch; `opt` is the size to optimise for."""

    min: Size = 1
    opt: Size | None = None
    max: Count

    @model_validator(mode="after")
    def _ordered(self) -> SizeRange:
        if not self.min <= self.optimum <= self.max:
            raise ValueError(f"expected min <= opt <= max, not {self.min}, {self.opt}, {self.max}")
        return self

    @property
    def optimum(self) -> int:
        """`opt`, or where it is not given the smaller of `max` and 8 within the bounds."""
        return self.opt if self.opt is not None else max(self.min, min(8, self.max))


class BatchRange(SizeRange):
    """Bounds of the batch dimension."""

    min: Count = 1
    max: Count = 32


class Labels(Strict):
    """Class labels of an output, from a file, a callable or the spec itself, one per value of its last dimension."""

    output: str
    file: str | None = None
    package: str | None = None
    values: list[str] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Labels:
        if sum(source is not None for source in (self.file, self.package, self.values)) != 1:
            raise ValueError("expected exactly one of `file`, `package` and `values`")
        return self


class Classification(Strict):
    """Which output holds class scores and what turns them into probabilities."""

    output: str
    activation: Literal["softmax", "none"] = "softmax"


class Preprocess(Strict):
    """How raw data becomes inputs. `image`: the fields of tritonstack.image.ImagePreprocessing, which clients follow.

    `serve`: also publish entries that take encoded pictures, preprocessed by the server.
    """

    image: dict[str, Any] | None = None
    serve: bool = False

    @model_validator(mode="after")
    def _something_to_serve(self) -> Preprocess:
        if self.serve and self.image is None:
            raise ValueError("`serve` needs `image`: how a picture becomes the model's input")
        return self


class InstanceGroup(Strict):
    """How many instances serve the model, and on what."""

    count: Count = 1
    kind: Literal["auto", "cpu", "gpu"] = "auto"
    gpus: list[Size] = []

    @model_validator(mode="after")
    def _gpus_need_gpu(self) -> InstanceGroup:
        if self.gpus and self.kind == "cpu":
            raise ValueError("`gpus` cannot be given with kind cpu")
        return self


class QueuePolicy(Strict):
    """Triton's default queue policy."""

    timeout_action: Literal["reject", "delay"] = "reject"
    default_timeout_us: Size = 0
    allow_timeout_override: bool = False
    max_queue_size: Size = 0


class DynamicBatching(Strict):
    """Triton's dynamic batcher. `preferred`: batch sizes worth waiting for (default: batch opt)."""

    preferred: list[Count] | None = None
    max_queue_delay_us: Size = 0
    preserve_ordering: bool = False
    queue_policy: QueuePolicy | None = None


class LatestVersions(Strict):
    """Serve the `latest` N versions."""

    latest: Count


class SpecificVersions(Strict):
    """Serve just these versions."""

    specific: Annotated[list[Count], Field(min_length=1)]


class Serving(Strict):
    """What config.pbtxt says besides the tensors."""

    instance_group: InstanceGroup = InstanceGroup()
    dynamic_batching: DynamicBatching | Literal[False] = DynamicBatching()
    version_policy: LatestVersions | SpecificVersions | Literal["all"] = LatestVersions(latest=1)
    warmup: bool = True
    response_cache: bool = False
    parameters: dict[str, str] = {}

    @field_validator("parameters", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        if isinstance(value, dict):
            return {k: str(int(v)) if isinstance(v, bool) else v if isinstance(v, dict | list) else str(v)
                    for k, v in value.items()}  # fmt: skip
        return value

    @field_validator("parameters")
    @classmethod
    def _not_ours(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.startswith("tritonstack."):
                raise ValueError(f"{name!r} is written by export itself (see `preprocess` and `classification`)")
        return value


class Parity(Strict):
    """Tolerances of the comparison with PyTorch, and what is compared.

    An element passes when |onnx - torch| <= atol + rtol * (largest |torch| of that output); None: by dtype.
    """

    atol: Annotated[float, Field(ge=0)] | None = None
    rtol: Annotated[float, Field(ge=0)] | None = None
    cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    batches: Annotated[list[Count], Field(min_length=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class ModelSpec(Strict):
    """A whole spec."""

    name: Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$", max_length=200)]
    model: ModelSource
    inputs: Annotated[list[InputSpec], Field(min_length=1)] | None = None
    outputs: Annotated[list[OutputSpec], Field(min_length=1)] | None = None
    dimensions: dict[Annotated[str, StringConstraints(pattern=f"^{DIMENSION_PATTERN}$")], SizeRange] = {}
    batch: BatchRange | Literal[False] = BatchRange()
    opset: Annotated[int, BeforeValidator(no_bool), Field(ge=OPSETS.start, le=OPSETS.stop - 1)] | None = None
    labels: Labels | None = None
    classification: Classification | None = None
    preprocess: Preprocess = Preprocess()
    serving: Serving = Serving()
    parity: Parity = Parity()
    precision: Precision = Precision()
    calibration: Calibration | None = None
    evaluation: Evaluation | None = None
    engine: EngineSpec = EngineSpec()

    @field_validator("inputs", "outputs")
    @classmethod
    def _distinct(cls, value: list[Any] | None) -> list[Any] | None:
        names = [entry.name for entry in value or []]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {name!r} is given twice")
        return value

    @field_validator("batch", mode="before")
    @classmethod
    def _batch_not_true(cls, value: object) -> object:
        if value is True:
            raise ValueError("expected false or {min, opt, max}")
        return value

    @model_validator(mode="after")
    def _dimensions_known(self) -> ModelSpec:
        if BATCH in self.dimensions and self.batch is not False:
            raise ValueError("the bounds of `batch` belong under the key `batch`, not under `dimensions`")
        if self.batch is not False:
            preferred = self.serving.dynamic_batching.preferred if self.serving.dynamic_batching else None
            for size in preferred or []:
                if size > self.batch.max:
                    raise ValueError(f"preferred batch size {size} is above batch.max {self.batch.max}")
            for size in self.parity.batches or []:
                if not self.batch.min <= size <= self.batch.max:
                    raise ValueError(f"parity batch {size} is outside batch {self.batch.min}..{self.batch.max}")
        if self.model.onnx is not None and self.opset is not None:
            raise ValueError("`opset` belongs to `factory`: a ready ONNX file keeps its own")
        return self
