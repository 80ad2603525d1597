"""Requests a second and CPU per request: `tritonstack load` against perf_analyzer on a backend that does nothing.

Both drive the same server (tests/support/null_backend) in turn, in closed loops; ours compares every answer with the
one recorded before. CPU is that of the generator's processes without start-up: ours by its own account of the window,
perf_analyzer's from rusage, as the difference of a long and a short run. perf_analyzer runs under a memory limit, and
over the wire with large inputs by a number of requests, since it keeps a copy of each input until its windows end; its
throughput is then the concurrency over its mean latency.

    python benchmarks/load_rate.py [--rounds N] [--seconds S] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement import ROOT, measured_level, median_ratio, save

sys.path.insert(0, str(ROOT / "tests" / "support" / "null_backend"))
from null_backend import build, write_models

MEMORY_LIMIT = 8_000_000_000


@dataclass(frozen=True)
class Cell:
    """One comparison. `transports`: ways of ours that are measured beside perf_analyzer."""

    model: str
    concurrency: int
    shared_memory: bool
    transports: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.model}{' shm' if self.shared_memory else ''} c{self.concurrency}"


@dataclass(frozen=True)
class Rate:
    """Requests a second, CPU microseconds of the generator for each, and 50th and 99th percentile in µs."""

    per_s: float
    cpu_us: float | None
    p50_us: float
    p99_us: float


def ours(url: str, cell: Cell, transport: str, seconds: float) -> Rate:
    """One run of `tritonstack load`; answers are compared, any error is a failure."""
    line = [
        cell.model, "--url", url, "--concurrency", str(cell.concurrency), "--duration", str(seconds), "--warmup", "0.5",
        "--transport", transport, "--validate", "recorded",
    ]  # fmt: skip
    if cell.shared_memory:
        line += ["--shared-memory", "system"]
    level = measured_level(line)
    latency = level["latency"]
    cost = level["generator"]["cpu_us_per_request"]
    return Rate(level["requests_per_s"], cost, latency["p50_us"], latency["p99_us"])


class PerfAnalyzer:
    """perf_analyzer on one server."""

    def __init__(self, url: str) -> None:
        self.grpc_url = url
        self.url = url.removeprefix("grpc://")
        script = ROOT / "benchmarks" / "perf_analyzer.sh"
        self.command = subprocess.run([str(script)], capture_output=True, text=True, check=True).stdout.split()

    def run(self, cell: Cell, seconds: float) -> Rate:
        """By windows where it can, else by a number of requests."""
        if cell.model == "nullimg" and not cell.shared_memory:
            few, many = self._counted(cell, 100), self._counted(cell, 500)
            cpu_us = (many[1] - few[1]) / (many[0].sent - few[0].sent) * 1e6
            rate = cell.concurrency / (many[0].mean_us / 1e6)
            return Rate(rate, cpu_us, many[0].p50_us, many[0].p99_us)
        window_ms = max(int(seconds * 1000 / 3), 300)
        arguments = ["-p", str(window_ms), "-s", "999", "-r", "3"]
        short, short_cpu_s = self._call(cell, ["-p", "300", "-s", "999", "-r", "3"])
        long, long_cpu_s = self._call(cell, arguments)
        cpu_us = (long_cpu_s - short_cpu_s) / (long.sent - short.sent) * 1e6
        return Rate(long.per_s, cpu_us, long.p50_us, long.p99_us)

    def _counted(self, cell: Cell, count: int) -> tuple[_Output, float]:
        return self._call(cell, ["--request-count", str(count)])

    def _call(self, cell: Cell, arguments: list[str]) -> tuple[_Output, float]:
        line = ["--concurrency-range", str(cell.concurrency), "--percentile", "99", *arguments]
        if cell.shared_memory:
            line += ["--shared-memory", "system", "--output-shared-memory-size", "4096"]
        return self.measure(cell.model, line)

    def measure(self, model: str, arguments: list[str]) -> tuple[_Output, float]:
        """What it printed of one call, and its CPU seconds."""
        line = [
            "prlimit", f"--as={MEMORY_LIMIT}", *self.command, "-m", model, "-i", "grpc", "-u", self.url, "-v",
            *arguments,
        ]  # fmt: skip
        seen = self._seen(model)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(line, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode not in (0, 2):
            raise SystemExit(f"{' '.join(line)} failed: {(done.stdout + done.stderr)[-800:]}")
        return _Output(done.stdout, self._seen(model) - seen), cpu_s

    def _seen(self, model: str) -> int:
        """Requests that the server has answered."""
        from tritonstack import Client

        with Client(self.grpc_url) as client:
            return client.statistics(model)[0].inference_count


class _Output:
    """What perf_analyzer printed of its last measurement; `sent` are all its requests, as the server counted them."""

    def __init__(self, text: str, sent: int) -> None:
        self.per_s = float(_last(text, r"Throughput: ([\d.]+) infer/sec"))
        self.mean_us = float(_last(text, r"Avg gRPC time: (\d+) usec"))
        self.p50_us = float(_last(text, r"p50 latency: (\d+) usec"))
        self.p99_us = float(_last(text, r"p99 latency: (\d+) usec"))
        self.sent = sent


def _last(text: str, pattern: str) -> str:
    found = re.findall(pattern, text)
    if not found:
        raise SystemExit(f"perf_analyzer printed no {pattern!r}: {text[-800:]}")
    return str(found[-1])


def cells(quick: bool) -> list[Cell]:
    small = (1, 4, 16, 64)
    others = {16: ("h2", "grpcio", "http")}
    found = [Cell("nullsmall", count, False, others.get(count, ("h2",))) for count in small]
    if quick:
        return found[2:3]
    found += [Cell("nullimg", count, False, ("h2",)) for count in (4, 16)]
    found += [Cell("nullimg", count, True, ("h2",)) for count in (4, 16)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in a run (3)")
    parser.add_argument("--quick", action="store_true", help="one cell only")
    options = parser.parse_args()
    from tritonstack_deploy.embedded import EmbeddedServer

    library = build(ROOT / "build" / "tests")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder) / "models")
        with EmbeddedServer(Path(folder) / "models", backends={"null": library}, allow=["shared-memory"]) as server:
            analyzer = PerfAnalyzer(server.grpc_url)
            for cell in cells(options.quick):
                results[cell.name] = compare(server, analyzer, cell, options.rounds, options.seconds)
                print(f"{cell.name}: {json.dumps(results[cell.name]['ratios'])}", file=sys.stderr, flush=True)
    save("load_rate", {"rounds": options.rounds, "seconds": options.seconds, "load": os.getloadavg(), "cells": results})


def compare(server: Any, analyzer: PerfAnalyzer, cell: Cell, rounds: int, seconds: float) -> dict[str, Any]:
    """All contenders of a cell, in turn."""
    runs: dict[str, list[Rate]] = {"perf_analyzer": [], **{way: [] for way in cell.transports}}
    for _ in range(rounds):
        runs["perf_analyzer"].append(analyzer.run(cell, seconds))
        for way in cell.transports:
            runs[way].append(ours(server.http_url if way == "http" else server.grpc_url, cell, way, seconds))
    peer = runs["perf_analyzer"]
    ratios: dict[str, Any] = {}
    for way in cell.transports:
        pairs = [(mine.cpu_us, other.cpu_us) for mine, other in zip(runs[way], peer, strict=True)]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        ratios[way] = {
            "rate": round(median_ratio([one.per_s for one in runs[way]], [one.per_s for one in peer]), 3),
            "cpu": round(statistics.median(a / b for a, b in known), 3) if known else None,
        }
    return {
        "ratios": ratios,
        "medians": {
            way: {
                "requests_per_s": round(statistics.median(one.per_s for one in many)),
                "cpu_us": _median([one.cpu_us for one in many if one.cpu_us is not None]),
                "p50_us": round(statistics.median(one.p50_us for one in many)),
                "p99_us": round(statistics.median(one.p99_us for one in many)),
            }
            for way, many in runs.items()
        },
    }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


if __name__ == "__main__":
    main()
