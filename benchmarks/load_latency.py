"""Latencies beside perf_analyzer's: the same server, the same constant rate, half of what saturates it.

The null backend sleeps at least `--delay-us` for each execution; a closed loop finds its saturation rate first.
perf_analyzer runs with -a (its default for rates waits for answers) and counts from the moment it sent. Ours counts
from the moment a request was due, and tells the time from the send (service) beside it, which is what is compared.

    python benchmarks/load_latency.py [--rounds N] [--seconds S] [--delay-us D]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from load_rate import Cell, PerfAnalyzer
from load_rate import ours as closed
from measurement import ROOT, measured_level, save

sys.path.insert(0, str(ROOT / "tests" / "support" / "null_backend"))
from null_backend import build, write_models


def ours(url: str, rate: float, seconds: float) -> dict[str, float]:
    """Service and due latencies of one run, in µs."""
    line = ["nullsmall", "--url", url, "--rate", f"{rate:g}", "--arrival", "constant", "--duration", f"{seconds:g}"]
    level = measured_level([*line, "--warmup", "1"])
    return {
        "p50_us": level["service"]["p50_us"],
        "p99_us": level["service"]["p99_us"],
        "due_p50_us": level["latency"]["p50_us"],
        "due_p99_us": level["latency"]["p99_us"],
    }


def theirs(analyzer: PerfAnalyzer, rate: float, seconds: float) -> dict[str, float]:
    """The same by perf_analyzer."""
    window_ms = str(int(seconds * 1000 / 3))
    arguments = ["--request-rate-range", f"{rate:g}", "-a", "--request-distribution", "constant"]
    found, _ = analyzer.measure("nullsmall", [*arguments, "-p", window_ms, "-s", "999", "-r", "3"])
    return {"p50_us": found.p50_us, "p99_us": found.p99_us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured in a run (6)")
    parser.add_argument("--delay-us", type=int, default=2000, help="of each execution (2000)")
    options = parser.parse_args()
    from tritonstack_deploy.embedded import EmbeddedServer

    library = build(ROOT / "build" / "tests")
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder) / "models", delay_us=options.delay_us)
        with EmbeddedServer(Path(folder) / "models", backends={"null": library}) as server:
            analyzer = PerfAnalyzer(server.grpc_url)
            rate = round(closed(server.grpc_url, Cell("nullsmall", 8, False, ("h2",)), "h2", 3.0).per_s / 2)
            for number in range(options.rounds):
                one: dict[str, dict[str, float]] = {}
                # Each goes first in turn.
                for name in ("perf_analyzer", "tritonstack") if number % 2 else ("tritonstack", "perf_analyzer"):
                    one[name] = (
                        theirs(analyzer, rate, options.seconds)
                        if name == "perf_analyzer"
                        else ours(server.grpc_url, rate, options.seconds)
                    )
                rounds.append(one)
                print(f"  round {number + 1}/{options.rounds} {one}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {"rate": rate, "load": os.getloadavg()}
    for name in ("p50_us", "p99_us"):
        peer = statistics.median(one["perf_analyzer"][name] for one in rounds)
        mine = statistics.median(one["tritonstack"][name] for one in rounds)
        result[name] = {
            "perf_analyzer": peer,
            "tritonstack": mine,
            "difference_us": round(
                statistics.median(one["tritonstack"][name] - one["perf_analyzer"][name] for one in rounds), 1
            ),
            "difference": round(
                statistics.median(one["tritonstack"][name] / one["perf_analyzer"][name] for one in rounds) - 1, 4
            ),
            "due": statistics.median(one["tritonstack"][f"due_{name}"] for one in rounds),
        }
    save("load_latency", result)


if __name__ == "__main__":
    main()
