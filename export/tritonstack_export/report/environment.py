"""The machine an export ran on, as far as it decides what the numbers mean."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tritonstack_export.report.data import Environment

# Instruction sets by which ONNX Runtime chooses its INT8 and FP16 kernels.
_DECISIVE = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


def read_environment(cpuinfo: Path = Path("/proc/cpuinfo")) -> Environment:
    """This machine's processor, the cores this process may use, and the versions of the tools."""
    from tritonstack_export.provenance import tool_versions

    name, flags = _processor(cpuinfo)
    return Environment(
        cpu=name,
        cores=len(os.sched_getaffinity(0)),
        flags=tuple(flag for flag in _DECISIVE if flag in flags),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions=tool_versions(),
    )


def _processor(cpuinfo: Path) -> tuple[str, frozenset[str]]:
    """Name and flags of the first processor, under x86's and ARM's words for them."""
    facts: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags") or facts.get("Features") or ""
    return facts.get("model name") or platform.processor() or platform.machine(), frozenset(flags.split())
