"""What a report of an export says, as plain frozen values. Whoever exports fills it; the renderers only read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = 1

Direction = Literal["least", "most"]


@dataclass(frozen=True)
class Environment:
    """The machine and the tools. `flags`: instruction sets that decide how fast and how right INT8 is here (``avx2``,
    ``avx512_vnni``). `versions`: package -> version."""

    cpu: str
    cores: int
    flags: tuple[str, ...] = ()
    system: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GateLimit:
    """One limit of one output: `metric` (a key of METRICS in wording.py) has to be at `least` or at
    `most` `limit`; `value` is what was measured, None where there is no finite number."""

    metric: str
    value: float | None
    limit: float
    direction: Direction
    passed: bool


@dataclass(frozen=True)
class NumericRow:
    """The comparison of one output with the reference at one set of sizes (dimension name -> size).

    Numbers are None where they are not finite or not defined; `gates` is empty where nothing was demanded.
    """

    output: str
    sizes: Mapping[str, int]
    max_abs: float | None
    max_rel: float | None
    cosine: float | None
    snr_db: float | None = None
    gates: tuple[GateLimit, ...] = ()
    problem: str | None = None

    @property
    def passed(self) -> bool:
        return self.problem is None and all(gate.passed for gate in self.gates)


@dataclass(frozen=True)
class BatchIndependence:
    """Whether each sample's result is the same whatever it is batched with. `largest`: largest difference seen."""

    passed: bool
    largest: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Accuracy:
    """A task metric on the labelled set. `value`, `reference` and `agreement` are shares (0.75 is 75 points); `drop`
    and `max_drop` are points lost against `reference`; `allow_drop` is what the command line conceded, in points."""

    metric: str
    value: float
    samples: int
    reference: float | None = None
    drop: float | None = None
    max_drop: float | None = None
    agreement: float | None = None
    allow_drop: float | None = None
    passed: bool = True


@dataclass(frozen=True)
class Island:
    """A node that stayed in FP32, and why."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class ExcludedLayer:
    """A layer that INT8 gave back. `gain_db`: SNR that giving it back alone brings; shares are of all layers that can
    be quantized: of multiply-accumulates, of weight bytes."""

    node: str
    operator: str
    gain_db: float | None
    macs_share: float | None = None
    bytes_share: float | None = None
    by_hand: bool = False


@dataclass(frozen=True)
class LatencyRow:
    """Latency of one call on this machine with ONNX Runtime, as served. Times in milliseconds; `samples_per_s` is
    the batch divided by the median."""

    batch: int
    calls: int
    p50_ms: float
    p90_ms: float
    samples_per_s: float
    threads: int | None = None


@dataclass(frozen=True)
class PreflightRow:
    """One pre-flight build. `problems`: why it failed, empty when it passed."""

    builder: str
    compute_capabilities: tuple[str, ...]
    passed: bool
    layers: int | None = None
    engine_bytes: int | None = None
    seconds: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedPath:
    """How right the variant is on this CPU with the session options it is served with, not only by the reference.

    `options`: the session options in its config that make it so.
    """

    passed: bool
    detail: str
    snr_db: float | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One precision of the model. `error` is set when it was refused: nothing of it was published then.

    `nodes`: nodes of the graph by the precision they compute in. `rows`: against FP32, or for FP32 itself against
    `compared_with`. `notes`: remarks that belong to this variant.
    """

    name: str
    precision: str
    path: str | None = None
    version: int | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    made_from: str | None = None
    compared_with: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[NumericRow, ...] = ()
    independence: BatchIndependence | None = None
    accuracy: Accuracy | None = None
    islands: tuple[Island, ...] = ()
    excluded: tuple[ExcludedLayer, ...] = ()
    layers_quantized: int | None = None
    served: ServedPath | None = None
    latency: tuple[LatencyRow, ...] = ()
    preflight: tuple[PreflightRow, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it was made and every gate passed. A pre-flight that failed counts as a failure."""
        return (
            self.error is None
            and all(row.passed for row in self.rows)
            and all(row.passed for row in self.preflight)
            and (self.independence is None or self.independence.passed)
            and (self.accuracy is None or self.accuracy.passed)
            and (self.served is None or self.served.passed)
        )


@dataclass(frozen=True)
class ExportReport:
    """A whole export. `created_at`: ISO 8601 with a zone. `command`: as typed. `seconds`: step -> wall time.

    `calibration` and `evaluation` say in a sentence which data were used. `published`: whether the variants are in
    the repository: all of them or none.
    """

    model: str
    created_at: str
    command: str
    environment: Environment
    variants: tuple[Variant, ...]
    repository: str = ""
    default_variant: str | None = None
    published: bool = True
    calibration: str = ""
    evaluation: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(variant.passed for variant in self.variants)
