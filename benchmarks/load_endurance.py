"""Memory and counts over many requests: does the generator grow, and is every request counted once?

Drives the null backend in a closed loop with answers compared. The resident memory of the worker is read each second
from /proc; the report's counts are compared with the server's own statistics.

    python benchmarks/load_endurance.py [--requests N | --minutes M] [--concurrency C]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from measurement import COMMAND, ROOT, save

sys.path.insert(0, str(ROOT / "tests" / "support" / "null_backend"))
from null_backend import build, write_models


def resident_bytes(running: psutil.Process) -> list[int]:
    """Resident memory of each worker of a load test."""
    found = []
    for child in running.children(recursive=True):
        try:
            if "tritonstack.load.worker" in " ".join(child.cmdline()):
                found.append(child.memory_info().rss)
        except psutil.Error:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="measured (a million)")
    parser.add_argument("--minutes", type=float, help="instead of a number of requests")
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()
    from tritonstack import Client
    from tritonstack_deploy.embedded import EmbeddedServer

    library = build(ROOT / "build" / "tests")
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder) / "models")
        with EmbeddedServer(Path(folder) / "models", backends={"null": library}) as server:
            length = ["--requests", str(options.requests)]
            if options.minutes is not None:
                length = ["--duration", str(options.minutes * 60)]
            line = [
                str(COMMAND), "load", "nullsmall", "--url", server.grpc_url, "--concurrency", str(options.concurrency),
                "--warmup", "1", *length, "--validate", "recorded", "--json", "--quiet", "--metrics-url", "none",
            ]  # fmt: skip
            with tempfile.TemporaryFile("w+") as output:
                began_s = time.monotonic()
                process = subprocess.Popen(line, stdout=output)
                samples: list[tuple[float, int]] = []
                while process.poll() is None:
                    time.sleep(1.0)
                    if workers := resident_bytes(psutil.Process(process.pid)):
                        samples.append((time.monotonic() - began_s, sum(workers)))
                output.seek(0)
                report = json.loads(output.read())
            with Client(server.grpc_url) as client:
                answered = client.statistics("nullsmall")[0].inference_count
    level = report["levels"][0]
    counts = level["counts"]
    # The first third holds imports, buffers and the warm-up.
    settled = samples[len(samples) // 3 :] or samples
    third = max(len(settled) // 3, 1)
    early = statistics.median(size for _, size in settled[:third])
    late = statistics.median(size for _, size in settled[-third:])
    recorded = report["distinct_requests"]
    save(
        "load_endurance",
        {
            "seconds": round(samples[-1][0], 1) if samples else None,
            "requests_per_s": round(level["requests_per_s"]),
            "sent": counts["sent"],
            "errors": counts["errors"],
            "answered_by_the_server": answered,
            "recorded_before": recorded,
            "missing": counts["sent"] + recorded - answered,
            "resident_mb": {"early": round(early / 1e6, 1), "late": round(late / 1e6, 1)},
            "valid": report["ok"],
        },
    )


if __name__ == "__main__":
    main()
