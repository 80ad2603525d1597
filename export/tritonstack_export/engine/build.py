"""`build`: an ONNX file becomes a TensorRT engine, in a process of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonstack.errors import InputError, UsageError
from tritonstack_export.engine.home import RtxHome, TensorRtHome
from tritonstack_export.engine.inspection import LayerSummary, precision_warnings, summarise
from tritonstack_export.engine.refusal import engine_error
from tritonstack_export.engine.settings import BuildSettings
from tritonstack_export.engine.worker_process import Event, run_worker

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class EngineTensor:
    """An input or output: TensorRT's dtype word (``HALF``), and the shape with -1 where it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Device:
    """A GPU: its name, and its compute capability such as ``9.0``."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class Probe:
    """What this machine builds with. `tensorrt`: the library's version. `devices`: in CUDA's order."""

    tensorrt: str
    devices: tuple[Device, ...]
    driver: str | None


@dataclass(frozen=True)
class BuildOutcome:
    """A built engine.

    `seconds`: parse to read-back, the start of the process left out. `layers`: layers of the network before TensorRT
    fused them. `types`: dtype word -> layers of the network that give it. `inputs`, `outputs`: of the engine where it
    could be read back, else of the network (`read_back` says which). `profiles`: as the engine has them, [] when it
    was not read back. `summary`: what runs in which precision, None without a read-back.
    """

    tensorrt: str
    seconds: float
    plan_bytes: int
    layers: int
    types: dict[str, int]
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    profiles: tuple[dict[str, list[list[int]]], ...]
    read_back: bool
    summary: LayerSummary | None
    warnings: tuple[str, ...]
    devices: tuple[Device, ...]
    driver: str | None
    peak_rss_bytes: int


def build(
    onnx: Path,
    settings: BuildSettings,
    *,
    home: TensorRtHome | RtxHome,
    compute_capabilities: Sequence[str] = (),
    output: Path | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> BuildOutcome:
    """Build the engine of `onnx` and write it to `output` (None: it is thrown away); blocks until done.

    `compute_capabilities`: for which GPUs (``8.6``), with TensorRT-RTX only; the real TensorRT builds for the GPU it
    runs on. `progress` gets the phase and the share of it that is done (0 to 1, None: unknown).

    Raises EngineError when TensorRT refuses the model or fails, InputError for a file that is no ONNX model.
    """
    _require_model(onnx)
    warnings: list[str] = []
    target = output if output is not None else Path(os.devnull)

    def on_event(event: Event) -> None:
        if event["event"] == "progress" and progress is not None:
            progress(event["phase"], event["share"])
        elif event["event"] == "message" and event["level"] == "warning" and event["text"] not in warnings:
            warnings.append(event["text"])

    with tempfile.TemporaryDirectory(prefix="tritonstack-engine-", dir=_folder(target)) as folder:
        plan = Path(folder) / "model.plan"
        done = run_worker(
            home,
            {
                "operation": "build",
                "onnx": str(onnx.absolute()),
                "plan": str(plan),
                "settings": {
                    **settings.as_key(),
                    "plugins": [str(path.absolute()) for path in settings.plugins],
                },
                "profiles": settings.as_key()["profiles"],
                "compute_capabilities": list(compute_capabilities),
                "timing_cache": None if settings.timing_cache is None else str(settings.timing_cache.absolute()),
                # No engine of another kind of GPU can be opened here; RTX says so with a page of errors.
                "read_back": not home.is_rtx,
            },
            timeout_s=timeout_s,
            on_event=on_event,
        )
        if done["event"] == "failed":
            raise engine_error(done, onnx=onnx, rtx=home.is_rtx)
        if output is not None:
            plan.replace(output)
    return _outcome(done, settings, warnings)


def probe(home: TensorRtHome | RtxHome, *, timeout_s: float = 120) -> Probe:
    """Load TensorRT in a process of its own and ask for its version and the GPUs. Raises EngineError."""
    done = run_worker(home, {"operation": "probe"}, timeout_s=timeout_s, on_event=lambda event: None)
    if done["event"] == "failed":
        raise engine_error(done, onnx=None, rtx=home.is_rtx)
    return Probe(done["tensorrt"], _devices(done), done["driver"])


def _require_model(onnx: Path) -> None:
    if not onnx.is_file():
        raise UsageError(f"there is no ONNX file {onnx}")
    if onnx.stat().st_size == 0:
        raise InputError(f"{onnx} is empty", expected="an ONNX model")


def _folder(target: Path) -> Path | None:
    """Where the engine is written first: beside its place, so that a rename puts it there."""
    return None if target == Path(os.devnull) else target.absolute().parent


def _devices(done: Event) -> tuple[Device, ...]:
    return tuple(Device(entry["name"], entry["compute_capability"]) for entry in done["devices"])


def _tensors(entries: list[dict[str, Any]]) -> tuple[EngineTensor, ...]:
    return tuple(
        EngineTensor(entry["name"], entry["dtype"], None if entry["shape"] is None else tuple(entry["shape"]))
        for entry in entries
    )


def _outcome(done: Event, settings: BuildSettings, warnings: list[str]) -> BuildOutcome:
    network, engine = done["network"], done["engine"]
    summary = None
    if engine is not None and engine["inspection"] is not None:
        summary = summarise(engine["inspection"])
    warnings.extend(precision_warnings(settings.precision, summary, network["types"]["outputs"]))
    source = engine if engine is not None else network
    return BuildOutcome(
        tensorrt=done["tensorrt"],
        seconds=done["seconds"],
        plan_bytes=done["plan_bytes"],
        layers=network["layers"],
        types=dict(network["types"]["outputs"]),
        inputs=_tensors(source["inputs"]),
        outputs=_tensors(source["outputs"]),
        profiles=tuple(engine["profiles"]) if engine is not None else (),
        read_back=engine is not None,
        summary=summary,
        warnings=tuple(warnings),
        devices=_devices(done),
        driver=done["driver"],
        peak_rss_bytes=done["peak_rss_bytes"],
    )
