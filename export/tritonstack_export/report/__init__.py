"""The report of an export: what was made, how well, how fast; as JSON, HTML and JUnit XML."""

from tritonstack_export.report.data import (
    Accuracy,
    BatchIndependence,
    Environment,
    ExcludedLayer,
    ExportReport,
    GateLimit,
    Island,
    LatencyRow,
    NumericRow,
    PreflightRow,
    ServedPath,
    Variant,
)
from tritonstack_export.report.report_file import require_report_file, write_report

__all__ = [
    "Accuracy",
    "BatchIndependence",
    "Environment",
    "ExcludedLayer",
    "ExportReport",
    "GateLimit",
    "Island",
    "LatencyRow",
    "NumericRow",
    "PreflightRow",
    "ServedPath",
    "Variant",
    "require_report_file",
    "write_report",
]
