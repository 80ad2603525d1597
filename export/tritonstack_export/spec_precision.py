"""The part of the model spec about precision: variants, calibration and evaluation data, gates, engines."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from tritonstack_export.precision_names import PRECISIONS
from tritonstack_export.spec_base import Count, NotNegative, Number, Positive, Share, Size, Strict

PrecisionName = Literal["fp32", "fp16", "bf16", "int8"]
_CALLABLE = re.compile(r".+:[A-Za-z_][A-Za-z0-9_.]*")
NodeName = Annotated[str, StringConstraints(min_length=1)]


def _callable(value: str | None) -> str | None:
    if value is not None and not _CALLABLE.fullmatch(value):
        raise ValueError("expected `file.py:callable` or `package.module:callable`")
    return value


class Gates(Strict):
    """What an output of a variant has to reach against FP32, on real inputs. None: by precision; see docs/precision.md.

    `snr_db`: signal-to-noise ratio in dB, the signal being the spread of the output over the samples.
    `max_rel`: largest difference divided by that spread (half of largest minus smallest). `max_abs`: the largest
    difference itself.
    `cosine`: smallest cosine of a sample's output with the reference's. `equal`: share of equal values of an output of
    whole numbers or booleans, which has none of the other measures. `channel_db`: the SNR of the worst channel,
    which is a slice of the output along any axis.
    """

    snr_db: Number | None = None
    cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    max_rel: Positive | None = None
    max_abs: Positive | None = None
    equal: Share | None = None
    channel_db: Number | None = None


class VariantGates(Gates):
    """Gates of all outputs, and of single ones under `outputs`, which win."""

    outputs: dict[str, Gates] = {}


class FloatSettings(Strict):
    """FP16 or BF16. `keep_fp32`: nodes kept in FP32, by name or by operator type, besides those the ranges demand."""

    keep_io_types: bool = True
    keep_fp32: list[NodeName] = []
    gates: VariantGates = VariantGates()


class Fallback(Strict):
    """Automatic fallback of sensitive layers. `max_share`: at most this share of the quantized layers is given back."""

    max_share: Share = 0.5
    samples: Count = 32


class Int8Settings(Strict):
    """INT8 by Q/DQ nodes: symmetric, per-channel weights, per-tensor activations.

    `method`: how an activation's scale is chosen from its values. `rest`: precision of what is not quantized.
    `exclude`: layers never quantized, by node name. `fallback`: false keeps every layer quantized whatever it costs.
    """

    method: Literal["max", "percentile", "entropy"] = "percentile"
    percentile: Annotated[float, Field(gt=50, le=100)] = 99.99
    op_types: Annotated[list[Literal["Conv", "ConvTranspose", "Gemm", "MatMul"]], Field(min_length=1)] = [
        "Conv",
        "Gemm",
        "MatMul",
    ]
    rest: Literal["fp32", "fp16"] = "fp32"
    exclude: list[NodeName] = []
    fallback: Fallback | Literal[False] = Fallback()
    gates: VariantGates = VariantGates()


class DataSource(Strict):
    """Samples from one of: a folder of pictures (through `preprocess.image`), an .npz, or a Python iterator.

    Paths are relative to the spec. `limit`: at most this many samples, spread evenly over pictures and arrays; of an
    iterator, whose length is not known, the first ones. It yields a dict, a tuple or one array, in batches of any size.
    """

    images: str | None = None
    npz: str | None = None
    python: str | None = None
    arguments: dict[str, Any] = {}
    limit: Count | None = None

    _check_callable = field_validator("python")(_callable)

    @model_validator(mode="after")
    def _one_source(self) -> DataSource:
        if sum(source is not None for source in (self.images, self.npz, self.python)) != 1:
            raise ValueError("expected exactly one of `images`, `npz` and `python`")
        if self.arguments and self.python is None:
            raise ValueError("`arguments` belong to `python`")
        return self


class Calibration(DataSource):
    """The inputs that ranges are observed on. `min_samples`: fewer are refused."""

    limit: Count | None = 256
    min_samples: Count = 16


class Evaluation(DataSource):
    """Labelled samples, and what is counted on them.

    `labels`: for pictures, a JSON file {picture: accepted class index or indices}; without it the folder has one
    sub-folder per class, named by the index or the label. For .npz, the name of the array that holds the labels. A
    Python iterator yields (inputs, label).
    `metric`: top1, top5, or a callable (outputs of all samples, labels) -> number, higher is better, which counts as a
    share: 0.75 is 75 points. `output`: the output it is computed on (default: `classification.output` or the only one).
    `max_drop`: points a precision may lose against FP32.
    """

    labels: str | None = None
    metric: str = "top1"
    output: str | None = None
    max_drop: dict[PrecisionName, NotNegative] = {"fp16": 0.1, "bf16": 0.5, "int8": 1.0}

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        if value not in ("top1", "top5") and not _CALLABLE.fullmatch(value):
            raise ValueError("expected top1, top5 or `file.py:callable`")
        return value

    @field_validator("max_drop", mode="before")
    @classmethod
    def _over_defaults(cls, value: object) -> object:
        if isinstance(value, dict):
            return {"fp16": 0.1, "bf16": 0.5, "int8": 1.0, **value}
        return value


class Precision(Strict):
    """Which variants one spec gives.

    `default`: the one that bears the model's bare name, whether or not it is made this time (None: FP32 where it is
    made, else the first one). The others are called ``<name>_<precision>``.
    """

    variants: Annotated[list[PrecisionName], Field(min_length=1)] = ["fp32"]
    default: PrecisionName | None = None
    fp16: FloatSettings = FloatSettings()
    bf16: FloatSettings = FloatSettings()
    int8: Int8Settings = Int8Settings()

    @model_validator(mode="before")
    @classmethod
    def _list_of_variants(cls, value: object) -> object:
        if isinstance(value, str):
            value = [value]
        return {"variants": value} if isinstance(value, list) else value

    @field_validator("variants")
    @classmethod
    def _distinct(cls, value: list[PrecisionName]) -> list[PrecisionName]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"{name} is given twice")
        return sorted(value, key=PRECISIONS.index)

    @property
    def bare(self) -> PrecisionName:
        """The precision that bears the bare name."""
        return self.default or self.variants[0]

    def model_name(self, name: str, precision: PrecisionName) -> str:
        """What the variant of the model `name` is called in the repository."""
        return name if precision == self.bare else f"{name}_{precision}"


class ProfileBounds(Strict):
    """Bounds of one dimension within one optimisation profile."""

    min: Size
    opt: Size
    max: Count

    @model_validator(mode="after")
    def _ordered(self) -> ProfileBounds:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"expected min <= opt <= max, not {self.min}, {self.opt}, {self.max}")
        return self


class EngineSpec(Strict):
    """How TensorRT engines of this model are built.

    `profiles`: optimisation profiles, each a mapping from dimension name to bounds (dimensions left out take those of
    the spec); [] means one profile made from the spec's own bounds. `workspace_mb`: None leaves TensorRT's default.
    `version_compatible`: the engine also runs on newer TensorRT of the same major version, with a lean runtime inside.
    `hardware`: `same`: this GPU model only; `same_compute_capability`; `ampere_plus`: all from Ampere on, slower.
    `weights`: `fixed`; `refit`: can be replaced later; `stripped`: left out, to be refitted from the ONNX file at load.
    """

    profiles: list[dict[str, ProfileBounds]] = []
    workspace_mb: Count | None = None
    optimization_level: Annotated[int, Field(ge=0, le=5)] = 3
    version_compatible: bool = False
    hardware: Literal["same", "same_compute_capability", "ampere_plus"] = "same"
    weights: Literal["fixed", "refit", "stripped"] = "fixed"
    sparsity: bool = False
    tf32: bool = True
    plugins: list[str] = []
