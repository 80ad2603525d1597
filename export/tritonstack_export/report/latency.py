"""Latency of the variants of a model on this machine: ONNX Runtime on the CPU, with the options they are served with.

The variants take turns, so that what else the machine does meets them all alike.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import GateError
from tritonstack_export import source_location
from tritonstack_export.report.data import LatencyRow

if TYPE_CHECKING:
    from tritonstack_export.samples import Array
    from tritonstack_export.signature import Signature

_TURN_S = 0.1
# Enough for both percentiles of a quick model, once it was seen at this many different moments.
_ENOUGH_CALLS, _ENOUGH_TURNS = 500, 5
# Fewer say nothing about a 90th percentile; a model so slow that they exceed the budget is measured with what fits.
_LEAST_CALLS = 5
_LEVELS = {
    # `optimization.graph.level` in config.pbtxt, as Triton's onnxruntime backend reads it; all others enable all.
    -1: "ORT_ENABLE_BASIC",
    1: "ORT_ENABLE_EXTENDED",
    2: "ORT_DISABLE_ALL",
}


@dataclass(frozen=True)
class Candidate:
    """A variant to measure: its ONNX file, and the config.pbtxt parameters it is served with (``session.…`` entries,
    ``intra_op_thread_count``). `graph_level`: `optimization.graph.level` of the config."""

    name: str
    onnx: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int = 0


def batch_sizes(signature: Signature) -> tuple[int, ...]:
    """The batches to measure: the smallest (1 unless the spec says otherwise) and `opt`; (1,) without a batch."""
    from tritonstack_export.spec import BATCH

    if not signature.batched:
        return (1,)
    batch = signature.dimensions[BATCH]
    return tuple(sorted({batch.min, batch.opt}))


def measure_latency(
    candidates: Sequence[Candidate],
    signature: Signature,
    *,
    batches: Sequence[int] | None = None,
    seconds_each: float = 2.0,
    seed: int = 0,
    threads: int | None = None,
) -> dict[str, tuple[LatencyRow, ...]]:
    """Name -> one row per batch. Random inputs of `signature`, other dimensions at their `opt`; inputs are numpy arrays
    and outputs are copied out, as the server does.

    Blocks for about `seconds_each` per candidate and batch; less for quick models, and at least for 5 calls each.
    `threads` None: what the config says, else all cores of this process. Raises GateError when a file cannot be loaded
    or fails on the inputs.
    """
    from tritonstack_export.samples import random_inputs
    from tritonstack_export.spec import BATCH

    sessions = [(candidate, *_open(candidate, threads)) for candidate in candidates]
    rows: dict[str, list[LatencyRow]] = {candidate.name: [] for candidate in candidates}
    for batch in batches if batches is not None else batch_sizes(signature):
        sizes = signature.sizes(**({BATCH: batch} if signature.batched else {}))
        inputs = random_inputs(signature, sizes, seed=seed)
        runs = [(candidate.name, session, _fitting(session, inputs)) for candidate, session, _ in sessions]
        times = _take_turns(runs, budget_s=seconds_each * len(runs))
        for candidate, _, used in sessions:
            rows[candidate.name].append(_row(batch, times[candidate.name], used))
    return {name: tuple(found) for name, found in rows.items()}


def _open(candidate: Candidate, threads: int | None) -> tuple[Any, int]:
    """A session and the number of threads within one operator."""
    import os

    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    wanted = threads if threads is not None else int(candidate.parameters.get("intra_op_thread_count", "0"))
    # ONNX Runtime counts the machine's cores where it is left to choose, and pins to cores that may not be ours.
    used = wanted or len(os.sched_getaffinity(0))
    options.intra_op_num_threads = used
    level = _LEVELS.get(candidate.graph_level, "ORT_ENABLE_ALL")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for key, value in candidate.parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    try:
        session = ort.InferenceSession(
            str(candidate.onnx), options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:
        raise GateError(
            f"ONNX Runtime cannot load {candidate.name} as it is to be served: {source_location.first_line(error)}"
        ) from error
    return session, used


def _fitting(session: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """`inputs` in the dtypes of this variant's graph: half inputs, where the spec gave up float ones."""
    import numpy as np

    halves = {tensor.name for tensor in session.get_inputs() if tensor.type == "tensor(float16)"}
    return {name: value.astype(np.float16) if name in halves else value for name, value in inputs.items()}


def _take_turns(runs: Sequence[tuple[str, Any, dict[str, Array]]], *, budget_s: float) -> dict[str, list[float]]:
    """Name -> seconds of each call, in turns of a tenth of a second or one call, whichever is longer.

    The first call of each turn is dropped: it warms the caches up, and it runs beside the threads of the candidate
    before, which spin for a while in wait of more work.
    """
    times: dict[str, list[float]] = {name: [] for name, _, _ in runs}
    for _, session, inputs in runs:
        _timed(session, inputs)
    deadline = time.perf_counter() + budget_s
    for turn in itertools.count(1):
        for name, session, inputs in runs:
            end = time.perf_counter() + _TURN_S
            _timed(session, inputs)
            times[name].append(_timed(session, inputs))
            while time.perf_counter() < end:
                times[name].append(_timed(session, inputs))
        fewest = min(map(len, times.values()), default=_ENOUGH_CALLS)
        late = time.perf_counter() >= deadline and fewest >= _LEAST_CALLS
        if late or (turn >= _ENOUGH_TURNS and fewest >= _ENOUGH_CALLS):
            break
    return times


def _timed(session: Any, inputs: Mapping[str, Array]) -> float:
    start = time.perf_counter()
    try:
        session.run(None, dict(inputs))
    except Exception as error:
        shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in inputs.items())
        raise GateError(
            f"ONNX Runtime fails on a variant as it is to be served: {source_location.first_line(error)}", given=shapes
        ) from error
    return time.perf_counter() - start


def _row(batch: int, seconds: Sequence[float], threads: int) -> LatencyRow:
    median = statistics.median(seconds)
    ordered = sorted(seconds)
    # The nearest-rank percentile: a call that was measured, not one between two.
    p90 = ordered[max(0, -(-9 * len(ordered) // 10) - 1)]
    return LatencyRow(
        batch=batch,
        calls=len(seconds),
        p50_ms=1e3 * median,
        p90_ms=1e3 * p90,
        samples_per_s=batch / median,
        threads=threads,
    )
