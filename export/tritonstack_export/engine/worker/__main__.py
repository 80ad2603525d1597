"""`python -m tritonstack_export.engine.worker`: one request on stdin, events on stdout."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from tritonstack_export.engine.worker.configuration import load_plugins, make_config
from tritonstack_export.engine.worker.events import Events, WorkerFailure
from tritonstack_export.engine.worker.loading import devices, driver_version, load_tensorrt, version_of
from tritonstack_export.engine.worker.network import described, make_builder, make_logger, parse, type_counts
from tritonstack_export.engine.worker.readback import read_engine
from tritonstack_export.engine.worker.timing_cache import TimingCache

_PR_SET_PDEATHSIG = 1
_OLDEST = 10
# The dtype that some layer of the network must give for a build of that precision. INT8 comes from Quantize layers,
# or from INT8 weights before a Dequantize layer.
_CARRIED = {"fp16": "HALF", "bf16": "BF16", "int8": "INT8"}


def main() -> int:
    """Serve one request; the exit code is 0 also for a failure that was told."""
    _die_with_parent()
    events = Events()
    try:
        request = json.load(sys.stdin)
        trt = load_tensorrt(request["home"])
        if request["operation"] == "probe":
            events.send("done", tensorrt=version_of(trt), devices=devices(), driver=driver_version())
        else:
            _build(trt, request, events)
    except WorkerFailure as failure:
        events.send("failed", kind=failure.kind, text=failure.text, **failure.details)
    except MemoryError:
        events.send("failed", kind="memory", text="out of memory")
    return 0


def _die_with_parent() -> None:
    """A build may last an hour: nobody wants it any more when the process that asked for it was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _build(trt: ModuleType, request: dict[str, Any], events: Events) -> None:
    start_s = time.monotonic()
    version = version_of(trt)
    if not request["home"]["rtx"] and int(version.partition(".")[0]) < _OLDEST:
        raise WorkerFailure("old", f"TensorRT {version} is too old: networks are not strongly typed there")
    events.send("start", tensorrt=version)
    logger = make_logger(trt, events)
    builder = make_builder(trt, logger)
    load_plugins(trt, logger, request["settings"]["plugins"])
    events.progress("parse", None)
    network, parser = parse(trt, builder, logger, request["onnx"])
    types = type_counts(network)
    _require_precision(request["settings"]["precision"], types)
    facts = {
        "layers": network.num_layers,
        "types": types,
        "inputs": [described(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [described(network.get_output(index)) for index in range(network.num_outputs)],
    }
    config = make_config(trt, builder, network, request, events, version)
    timings = TimingCache(Path(request["timing_cache"]), config, events) if request["timing_cache"] else None
    events.progress("build", None)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise WorkerFailure("build", "TensorRT built no engine", log=logger.errors)
    if timings is not None:
        timings.save()
    # Held until here: the network reads weights out of the parser's memory while it is built.
    del parser
    _write(Path(request["plan"]), plan)
    engine = None
    if request["read_back"]:
        events.progress("read back", None)
        engine = _read_back(trt, logger, plan, request, events)
    events.send(
        "done",
        tensorrt=version,
        seconds=round(time.monotonic() - start_s, 3),
        plan_bytes=plan.nbytes,
        network=facts,
        engine=engine,
        devices=devices(),
        driver=driver_version(),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _read_back(
    trt: ModuleType, logger: Any, plan: Any, request: dict[str, Any], events: Events
) -> dict[str, Any] | None:
    """What the engine says of itself; None with a warning where it cannot be asked. The engine is good without it."""
    try:
        engine = read_engine(trt, logger, plan, version_compatible=request["settings"]["version_compatible"])
        reason = "TensorRT did not open it"
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        engine, reason = None, f"{type(error).__name__}: {error}"
    if engine is None:
        text = f"the engine was built, but could not be read back ({reason}): its precision is that of the network"
        events.send("message", level="warning", text=text)
    return engine


def _require_precision(wanted: str | None, types: dict[str, Any]) -> None:
    """Refuse a network that does not hold the precision that was asked for: it would run in FP32 in silence."""
    if wanted in _CARRIED and _CARRIED[wanted] not in types["outputs"]:
        raise WorkerFailure("precision", f"the network holds no {wanted}", wanted=wanted, found=types["outputs"])


def _write(path: Path, plan: Any) -> None:
    try:
        with path.open("wb") as file:
            file.write(memoryview(plan))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise WorkerFailure("write", error.strerror or str(error), path=str(path)) from None


if __name__ == "__main__":
    sys.exit(main())
