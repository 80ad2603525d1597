"""TensorRT engines in a repository: whole, of the right kind, with a record, and made for what will serve them."""

from __future__ import annotations

from pathlib import Path

from tritonstack.errors import RepositoryError
from tritonstack_export.check.finding import FindingList
from tritonstack_export.digest import file_sha256
from tritonstack_export.engine.plan_header import PlanHeader, read_plan_header, same_release, version_numbers
from tritonstack_export.engine.plan_record import PlanRecord, Target, read_record
from tritonstack_export.repository.config_text import ModelConfig

# The header alone; a real engine has kilobytes.
_SMALLEST_PLAN_BYTES = 64
_REBUILD = "run `tritonstack build-engines` on the machine that serves it"


def check_plan(path: Path, shown: str, config: ModelConfig, findings: FindingList, *, target: Target) -> None:
    """Look at one engine, the record beside it, and the config. `shown`: how messages call the file."""
    try:
        header = read_plan_header(path)
    except OSError as error:
        findings.error("unreadable", f"{shown}: {error.strerror}", fix="check its permissions", path=path)
        return
    if not _check_header(header, path, shown, findings):
        return
    record_path = path.with_name(f"{path.name}.json")
    record = None
    if record_path.exists():
        try:
            record = read_record(record_path)
        except RepositoryError as error:
            findings.error("plan-record", error.summary, fix=error.next_step or _REBUILD, path=record_path)
            return
    if record is None:
        _check_without_record(header, path, shown, findings, target)
        return
    if not _check_agreement(record, header, path, shown, findings):
        return
    misfit = record.misfit(target)
    if misfit is not None:
        findings.error("plan-target", f"{shown}: {misfit}: rebuild it", fix=_REBUILD, path=path)
    _check_precision(record, path, shown, findings)
    _check_config(config, record, shown, findings)


def _check_header(header: PlanHeader, path: Path, shown: str, findings: FindingList) -> bool:
    if header.kind == "rtx":
        findings.error(
            "plan-file",
            f"{shown} is a TensorRT for RTX engine: Triton's tensorrt backend cannot load it",
            fix="build it with TensorRT itself, on the GPU that serves it (`tritonstack build-engines`)",
            path=path,
        )
    elif header.kind == "unknown":
        findings.error(
            "plan-file",
            f"{shown} is no TensorRT engine",
            fix="build the engine again on the GPU that serves it",
            path=path,
        )
    elif header.kind == "short" or header.size_bytes < _SMALLEST_PLAN_BYTES:
        findings.error(
            "plan-file",
            f"{shown} is cut short ({header.size_bytes} bytes)",
            fix="copy or build the engine again",
            path=path,
        )
    else:
        return True
    return False


def _check_without_record(header: PlanHeader, path: Path, shown: str, findings: FindingList, target: Target) -> None:
    """The header still tells the TensorRT version, though not whether newer ones were to be able to load the engine."""
    built, server = header.version, version_numbers(target.tensorrt or "")
    if built is not None and server is not None and not same_release(built, server):
        findings.error(
            "plan-target",
            f"{shown}: engine built with TensorRT {header.version_text}, this machine has {target.tensorrt}",
            fix=_REBUILD,
            path=path,
        )
        return
    known = f" (its header says TensorRT {header.version_text})" if built is not None else ""
    findings.warning(
        "plan-record",
        f"{shown} has no record of the GPU it was built for, and runs on that kind only{known}",
        fix="build it with `tritonstack build-engines`, which writes the record",
        path=path,
    )


def _check_agreement(record: PlanRecord, header: PlanHeader, path: Path, shown: str, findings: FindingList) -> bool:
    """Whether record and engine belong together."""
    said = version_numbers(record.tensorrt)
    if header.version is not None and said is not None and not same_release(header.version, said):
        findings.error(
            "plan-record",
            f"{shown} was written by TensorRT {header.version_text}, its record says {record.tensorrt}",
            fix="they do not belong together: build the engine again",
            path=path,
        )
        return False
    size, sha256 = record.fields.get("plan_bytes"), record.fields.get("plan_sha256")
    if isinstance(size, int) and size != header.size_bytes:
        findings.error(
            "plan-file",
            f"{shown} has {header.size_bytes} bytes, its record says {size}",
            fix="it was cut short or replaced: copy or build the engine again",
            path=path,
        )
        return False
    if isinstance(sha256, str) and sha256 != file_sha256(path):
        findings.error(
            "plan-file",
            f"{shown} is not the engine of its record (its SHA-256 differs)",
            fix="it was damaged or replaced: copy or build the engine again",
            path=path,
        )
        return False
    return True


def _check_precision(record: PlanRecord, path: Path, shown: str, findings: FindingList) -> None:
    """An engine that runs in another precision than was asked for is served, but not without a word."""
    asked, runs = record.fields.get("precision_asked"), record.fields.get("precision")
    if isinstance(asked, str) and isinstance(runs, str) and asked != runs:
        findings.warning(
            "plan-precision",
            f"{shown} was to run in {asked}, and most of it runs in {runs}",
            fix="see the warnings in its record: speed and accuracy are those of what runs",
            path=path,
        )


def _check_config(config: ModelConfig, record: PlanRecord, shown: str, findings: FindingList) -> None:
    """Compare the tensors and the largest batch of the config with those that the record read from the engine."""
    from tritonstack_export.engine.build_record import interface_of
    from tritonstack_export.engine.engine_config import problems_of_fit

    try:
        interface = interface_of(record.fields)
    except RepositoryError:
        return  # Records may leave out what the engine takes.
    for problem in problems_of_fit(config, interface):
        findings.error(
            "plan-config", f"{shown}: {problem}", fix="mend config.pbtxt, or build the engine again", at=("name",)
        )
