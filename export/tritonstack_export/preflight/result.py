"""What a pre-flight of one ONNX file found, as plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tritonstack_export.report.data import PreflightRow

Step = Literal["file", "parse", "profiles", "build"]
STEPS: tuple[Step, ...] = ("file", "parse", "profiles", "build")
"""In order: the file is whole and sound; TensorRT knows every operator and the types agree; the profiles fit the
graph; an engine was built."""


@dataclass(frozen=True)
class Problem:
    """Why a pre-flight failed, and at which step. `node` and `operator` are the place in the ONNX graph where one is
    to blame; `given` is TensorRT's own message, `remedy` what to change."""

    step: Step
    kind: str
    summary: str
    node: str | None = None
    operator: str | None = None
    given: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        said = f"; given {self.given}" if self.given else ""
        return f"{self.summary}{said}" + (f"; next: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class PreflightResult:
    """The pre-flight of one file for all of `compute_capabilities` at once.

    `precision`: the lowest precision in the network (``fp32``, ``bf16``, ``fp16``, ``int8``, ``fp8``); `types`: dtype
    words of TensorRT -> layers that give them. `profiles`: per profile, input -> [min, opt, max] shapes. `seconds`: of
    the build, `engine_bytes` of the engine, which was thrown away. `cached`: taken from an earlier run.
    """

    onnx: str
    sha256: str | None
    builder: str
    compute_capabilities: tuple[str, ...]
    problem: Problem | None = None
    precision: str | None = None
    types: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    profiles: tuple[Mapping[str, list[list[int]]], ...] = ()
    layers: int | None = None
    seconds: float | None = None
    engine_bytes: int | None = None
    peak_rss_bytes: int | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cached: bool = False

    @property
    def passed(self) -> bool:
        return self.problem is None

    def steps(self) -> dict[Step, bool | None]:
        """Step -> passed, failed, or None where it was not reached."""
        if self.problem is None:
            return dict.fromkeys(STEPS, True)
        failed = STEPS.index(self.problem.step)
        return {
            step: True if index < failed else False if index == failed else None for index, step in enumerate(STEPS)
        }

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {"passed": self.passed, "steps": self.steps(), **asdict(self)}

    def as_report_row(self) -> PreflightRow:
        """The row of the export report."""
        from tritonstack_export.report.data import PreflightRow

        return PreflightRow(
            builder=self.builder,
            compute_capabilities=self.compute_capabilities,
            passed=self.passed,
            layers=self.layers,
            engine_bytes=self.engine_bytes,
            seconds=self.seconds,
            problems=() if self.problem is None else (str(self.problem),),
        )


def from_dict(value: Mapping[str, Any]) -> PreflightResult:
    """A result from what `as_dict` gave, possibly through JSON. Raises TypeError or KeyError for anything else."""
    fields = {key: item for key, item in value.items() if key not in ("passed", "steps")}
    problem = fields.pop("problem")
    lists = ("compute_capabilities", "inputs", "outputs", "profiles", "warnings", "notes")
    fields.update({key: tuple(fields[key]) for key in lists})
    result = PreflightResult(**fields)
    return replace(result, problem=None if problem is None else Problem(**problem))
