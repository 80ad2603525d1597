"""Rules on `parameters`: the session options of the onnxruntime backend, and what clients of ours read."""

from __future__ import annotations

import re

from tritonstack_export.check.client_parameters import check_client_parameter
from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.image_preprocess_rules import BACKEND, check_image_preprocess
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.repository.config_text import ModelConfig

# Name -> largest value allowed (None: any whole number). 0 threads lets onnxruntime choose.
_WHOLE_NUMBERS: dict[str, int | None] = {
    "intra_op_thread_count": None,
    "inter_op_thread_count": None,
    "execution_mode": 1,
    "enable_mem_arena": 1,
    "enable_mem_pattern": 1,
    "gpu_outputs": 1,
    "cudnn_conv_algo_search": 2,
    "gpu_mem_limit": None,
    "arena_extend_strategy": 1,
    "do_copy_in_default_stream": 1,
}
_OTHER_NAMES = ("memory.enable_memory_arena_shrinkage", "python_site", "batch_buckets")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}|\{\{[^}]*\}\}")
_LABEL_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_TAKEN_LABELS = {"model", "version", "gpu_uuid", "le", "quantile"}
# More threads than any machine has: a mistake such as a byte count in the wrong field.
_MOST_THREADS = 4096


def is_session_option(name: str) -> bool:
    """Whether a parameter is for the onnxruntime backend alone."""
    return name in _WHOLE_NUMBERS or name in _OTHER_NAMES or name.startswith("session.")


def check_parameters(entry: ModelEntry, config: ModelConfig) -> None:
    """Parameters by name and value, and the names of metric tags."""
    findings = entry.findings
    for name in sorted(config.parameters):
        value = config.parameters[name].string_value
        at = findings.positions.map_entry(("parameters",), name) if findings.positions else ("parameters",)
        if placeholder := _PLACEHOLDER.search(value):
            findings.error(
                "placeholder",
                f"parameter {printable(name)!r} holds the unresolved placeholder {printable(placeholder.group())}",
                fix="fill the template in before it becomes a config.pbtxt",
                at=at,
            )
        elif name.startswith("tritonstack."):
            check_client_parameter(name, value, at, config, findings)
        elif entry.backend == "onnxruntime":
            _check_session_option(name, value, at, findings)
    for name in sorted(config.metric_tags):
        if not _LABEL_NAME.fullmatch(name) or name in _TAKEN_LABELS:
            findings.error(
                "metric-tag",
                f"the metric tag {printable(name)!r} is no free Prometheus label name: Triton aborts on it",
                fix="use letters, digits and '_', not starting with a digit or '__', "
                f"and none of {', '.join(sorted(_TAKEN_LABELS))}",
                at=findings.positions.map_entry(("metric_tags",), name) if findings.positions else ("metric_tags",),
            )
    if entry.backend == BACKEND:
        check_image_preprocess(entry, config)
    if findings.positions:
        for name in findings.positions.repeated_keys("parameters"):
            findings.error(
                "duplicate",
                f"parameter {printable(name)!r} is written twice; only the last one counts",
                fix="keep one of them",
                at=findings.positions.map_entry(("parameters",), name),
            )


def _check_session_option(name: str, value: str, at: tuple[str | int, ...], findings: FindingList) -> None:
    if name in _WHOLE_NUMBERS:
        most = _WHOLE_NUMBERS[name]
        limit = _MOST_THREADS if name.endswith("thread_count") else most
        whole = re.fullmatch(r"[0-9]{1,18}", value)
        if not whole or (limit is not None and int(value) > limit):
            allowed = "a whole number, 0 for the default" if most is None else " or ".join(map(str, range(most + 1)))
            findings.error(
                "parameter",
                f"parameter {name!r} is {printable(value)!r}",
                fix=f"write {allowed}, in quotes",
                at=at,
            )
    elif name not in _OTHER_NAMES and not name.startswith("session."):
        close = did_you_mean(name, [*_WHOLE_NUMBERS, *_OTHER_NAMES])
        if close:
            findings.warning(
                "parameter", f"the onnxruntime backend has no parameter {printable(name)!r}", fix=close, at=at
            )
