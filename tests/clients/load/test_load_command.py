"""The command as a user runs it: a process of its own against the real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tritonstack_deploy.embedded import EmbeddedServer


def tritonstack_load(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tritonstack", "load", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_json_report_has_its_schema_and_is_written_whole(load_server: EmbeddedServer, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    done = tritonstack_load(
        "flaky", "--url", load_server.grpc_url, "--rate", "50", "--requests", "16", "--warmup", "0",
        "--max-lag", "5000", "--json", "--output", target,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, json.loads(tritonstack_load("--schema").stdout))
    assert report["schema_version"] == 2
    assert report["model"] == "flaky"
    assert report["versions"] == ["1"]
    assert report["command"][:3] == ["tritonstack", "load", "flaky"]
    assert report["levels"][0]["counts"]["errors"] == 4
    assert "4 of 16 requests failed" in done.stderr
    assert json.loads(target.read_text()) == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"], "no temporary file is left"


def test_table_has_a_row_per_level(load_server: EmbeddedServer) -> None:
    done = tritonstack_load(
        "plus_one", "--url", load_server.http_url, "--concurrency", "1,2", "--requests", "20", "--warmup", "0"
    )
    assert done.returncode == 0, done.stderr
    assert "plus_one version 1 on triton" in done.stdout
    assert done.stdout.count("\nconcurrency 1 ") >= 2, "latencies, the server's own times and, where seen, its use"
    assert done.stdout.count("\nconcurrency 2 ") >= 2
    assert "\r" not in done.stderr, "no redrawn line where there is no terminal"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m"], "either --concurrency or --rate"),
        (["m", "--rate", "1", "--concurrency", "1"], "either --concurrency or --rate"),
        (["m", "--rate", "1", "--trace", "t.csv"], "given --rate and --trace"),
        (["m", "--rate", "1", "--burstiness", "3"], "--arrival gamma beside it"),
        (["m", "--rate", "1", "--arrival", "gamma", "--burstiness", "99"], "at most 20"),
        (["m", "--rate", "1", "--speed", "2"], "--trace beside it"),
        (["m", "--profile", "10:2s", "--duration", "5"], "brings its own times"),
        (["m", "--profile", "10"], "RATE:TIME"),
        (["m", "--ramp", "10"], "FROM:TO"),
        (["m", "--trace", "t.csv", "--arrival", "constant"], "brings its own gaps"),
        (["m", "--rate", "1", "--window", "2"], "--stability beside it"),
        (["m", "--rate", "1", "--stability", "10", "--duration", "5"], "so does --duration"),
        (["m", "--rate", "1", "--max-windows", "2"], "--max-windows"),
        (["m", "--find-knee"], "needs an objective"),
        (["m", "--find-knee", "--slo", "max<50ms"], "cannot be searched for"),
        (["m", "--find-knee", "--slo", "p99<50ms", "--rate", "5"], "--rate has no place"),
        (["m", "--find-knee", "--slo", "p99<50ms", "--sweep", "concurrency=1"], "two different searches"),
        (["m", "--rate", "5", "--precision", "5%"], "--find-knee beside it"),
        (["m", "--rate", "5", "--budget", "5m"], "--find-knee or --sweep beside it"),
        (["m", "--sweep", "instance_count=1,2"], "one kind of load"),
        (["m", "--sweep", "concurrency=1:64:x1"], "never ends"),
        (["m", "--sweep", "concurency=1"], "no setting 'concurency'"),
        (["m", "--sweep", "concurrency=1", "--rate", "3"], "and --rate another load"),
        (["m", "--rate", "1", "--slo", "p99>50ms"], "upper limit"),
        (["m", "--rate", "1", "--fail-if", "p99>50"], "us, ms or s"),
        (["m", "--rate", "1", "--fail-if", "p100>5ms"], "no metric 'p100'"),
        (["m", "--rate", "1", "--fail-if", "throughput<-5%"], "--baseline FILE.json"),
        (["m", "--rate", "1", "--fail-if", "goodput<5/s"], "--slo such as"),
        (["m", "--rate", "1", "--fail-if", "p99>50ms,,"], "empty condition"),
        (["m", "--rate", "1", "--metrics-url", "ftp://x"], "--metrics-url"),
        (["--rate", "1"], "MODEL"),
        (["m", "--concurrency", "0"], "--concurrency: given '0'"),
        (["m", "--concurrency", "1,x"], "--concurrency: given 'x'"),
        (["m", "--concurrency", "99999999"], "from 1 to 65535"),
        (["m", "--rate", "1", "--max-in-flight", "99999999"], "from 1 to 65535"),
        (["m", "--rate", "-3"], "--rate"),
        (["m", "--rate", "nan"], "--rate: given 'nan'"),
        (["m", "--rate", "inf"], "--rate: given 'inf'"),
        (["m", "--rate", "1", "--arrival", "bursty"], "'poisson', 'constant', 'gamma'"),
        (["m", "--concurrency", "1", "--arrival", "poisson"], "--arrival belongs to an open loop"),
        (["m", "--concurrency", "1", "--max-in-flight", "3"], "--max-in-flight belongs to an open loop"),
        (["m", "--concurrency", "1", "--duration", "0"], "--duration: given '0'"),
        (["m", "--concurrency", "1", "--warmup", "-1"], "--warmup"),
        (["m", "--concurrency", "1", "--protocol", "udp"], "'grpc', 'http'"),
        (["m", "--concurrency", "1", "--input", "x=1"], "NAME=@FILE.npy"),
        (["m", "--concurrency", "1", "--shape", "x:3,4"], "NAME:DxD"),
        (["m", "--concurrency", "1", "--shape", "x:3", "--shape", "x:4"], "twice"),
        (["m", "--concurrency", "1", "--zero", "--data", "a.npz"], "one source"),
        (["m", "--concurrency", "1", "--max-error-rate", "2"], "from 0 to 1"),
        (["m", "--concurrency", "1", "--output", "no/such/folder/r.json"], "no such folder"),
        (["m", "--concurrency", "1", "--output", ""], "--output: given ''"),
        (["m", "--concurrency", "1", "--output", "."], "is a folder"),
        (["m", "--concurrency", "1", "--data", ""], "--data: given ''"),
        (["m", "--concurrency", "1", "--unknown"], "--unknown"),
        (["m", "--concurrency", "1", "--url", "ftp://x"], "ftp"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    done = tritonstack_load(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_failures_before_the_start_are_one_line_and_exit_1(load_server: EmbeddedServer, tmp_path: Path) -> None:
    broken = tmp_path / "broken.npy"
    broken.write_bytes(b"\x93NUMPY\x01")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    torn = tmp_path / "torn.npz"
    np.savez(torn, x=np.ones((4, 3), np.float32))
    torn.write_bytes(torn.read_bytes()[:-40])
    at = ("--url", load_server.grpc_url, "--concurrency", "1", "--quiet")
    for arguments, words in [
        (("plus_one", "--url", "127.0.0.1:1", "--concurrency", "1"), "no server answers"),
        (("plus_on", *at), "plus_one"),
        (("plus_one", *at, "--version", "7"), "7"),
        (("plus_one", *at, "--input", f"x=@{tmp_path}/none.npy"), "none.npy"),
        (("plus_one", *at, "--input", f"x=@{broken}"), "broken.npy"),
        (("plus_one", *at, "--input", f"x=@{pickled}"), "pickled.npy"),
        (("plus_one", *at, "--data", torn), "torn.npz"),
        (("plus_one", *at, "--image", tmp_path), "no picture"),
    ]:
        done = tritonstack_load(*arguments)
        assert done.returncode == 1, (arguments, done.stderr)
        assert words in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stdout == ""


def test_arrays_from_files(load_server: EmbeddedServer, tmp_path: Path) -> None:
    samples = np.ones((4, 3), np.float32)
    np.save(tmp_path / "x.npy", samples)
    np.savez(tmp_path / "all.npz", x=samples)
    at = ("--url", load_server.grpc_url, "--concurrency", "1", "--warmup", "0", "--requests", "4", "--json", "--quiet")
    for flags in (("--input", f"x=@{tmp_path}/x.npy"), ("--data", tmp_path / "all.npz")):
        done = tritonstack_load("plus_one", *at, *flags)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["distinct_requests"] == 4
        assert done.stderr == "", "--quiet is quiet"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_prints_what_was_measured(load_server: EmbeddedServer, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tritonstack", "load", "sleepy", "--url", load_server.grpc_url]
    command += ["--concurrency", "2,4", "--duration", "60", "--warmup", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "sleepy on triton" in process.stderr.readline()
    time.sleep(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    report = json.loads(out)
    (level,) = report["levels"]
    assert level["interrupted"]
    assert level["latency"]["count"] > 5
    assert not level["errors"], "calls in flight are drained, not cut off"
    assert "stopping" in err


def test_a_terminal_gets_one_redrawn_line(load_server: EmbeddedServer) -> None:
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "tritonstack", "load", "sleepy", "--url", load_server.grpc_url]
    command += ["--concurrency", "2", "--duration", "1.4", "--warmup", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=secondary, text=True)
    os.close(secondary)
    out, _ = process.communicate(timeout=30)
    shown = os.read(primary, 65536).decode()
    os.close(primary)
    assert process.returncode == 0
    assert "\r" not in out
    assert shown.count("\r\x1b[2Kconcurrency 2") >= 2
    assert "in flight" in shown and "p99" in shown
    assert shown.endswith("\r\x1b[2K"), "the line is gone before the table is printed"


def test_timetables_and_inputs_by_flags(load_server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,id\n" + "".join(f"{i / 100},{'ab'[i % 2]}\n" for i in range(41)))
    (tmp_path / "r.jsonl").write_text('{"id":"a","x":[[1,2,3]]}\n{"id":"b","x":[[4,5,6]]}\n')
    (tmp_path / "texts").write_text("hello\nwörld\n")
    for model, flags, loop, measured in [
        ("plus_one", ("--trace", tmp_path / "t.csv", "--jsonl", tmp_path / "r.jsonl"), "trace t.csv", 41),
        ("plus_one", ("--trace", tmp_path / "t.csv", "--speed", "2", "--jsonl", tmp_path / "r.jsonl"), "×2", 41),
        ("plus_one", ("--profile", "20:500ms,60:500ms", "--arrival", "constant"), "steps", 40),
        ("plus_one", ("--ramp", "10:70", "--duration", "1", "--arrival", "constant"), "ramp 10 to 70/s", 40),
        ("plus_one", ("--rate", "50", "--arrival", "gamma", "--requests", "20"), "gamma (burstiness 2)", 20),
        ("text", ("--concurrency", "1", "--requests", "8", "--text", tmp_path / "texts"), "concurrency 1", 8),
        ("plus_one", ("--concurrency", "1", "--requests", "8", "--range", "x=3:4"), "concurrency 1", 8),
    ]:
        at = ("--url", load_server.grpc_url, "--metrics-url", "none", "--warmup", "0.2", "--json", "--quiet")
        late = () if "--concurrency" in flags else ("--max-lag", "5000")
        done = tritonstack_load(model, *at, *late, *flags)
        assert done.returncode == 0, (flags, done.stderr)
        (level,) = json.loads(done.stdout)["levels"]
        assert loop in level["arrival"]["label"]
        assert level["counts"]["measured"] == pytest.approx(measured, abs=1), flags


def test_gates_objectives_and_files(load_server: EmbeddedServer, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("output", "html", "csv", "prometheus")}
    at = ("sleepy", "--url", load_server.grpc_url, "--metrics-url", load_server.metrics_url, "--concurrency", "1")
    at += ("--warmup", "0.2", "--duration", "2.5")
    wanted = [part for name, path in files.items() for part in (f"--{name}", path)]
    done = tritonstack_load(*at, *wanted, "--slo", "p99<2s", "--fail-if", "p50>1ms,errors>0%")
    assert done.returncode == 1
    assert "gate broken: concurrency 1: p50>1ms: 2" in done.stderr and "errors>0%" not in done.stderr
    assert all(path.stat().st_size > 500 for path in files.values())
    report = json.loads(files["output"].read_text())
    (level,) = report["levels"]
    assert report["broken_gates"] and not report["ok"] and level["ok"]
    assert level["goodput_per_s"] == level["requests_per_s"] and level["objectives"][0]["met"]
    assert level["server_use"]["process"]["rss_bytes"] > 1e7
    assert level["server_use"]["metrics"]["problem"] is None and level["server_use"]["metrics"]["readings"] >= 2
    assert len(level["series"]) == 2
    again = tritonstack_load(*at, "--baseline", files["output"], "--fail-if", "throughput<-90%")
    assert again.returncode == 0, again.stderr


def test_windows_until_they_agree(load_server: EmbeddedServer) -> None:
    at = ("sleepy", "--url", load_server.grpc_url, "--concurrency", "1", "--warmup", "0.2", "--json", "--quiet")
    done = tritonstack_load(*at, "--stability", "60", "--window", "0.6", "--max-windows", "6")
    assert done.returncode == 0, done.stderr
    (level,) = json.loads(done.stdout)["levels"]
    assert level["stability"]["stable"] and level["window_s"] == pytest.approx(1.8, abs=0.1)
    done = tritonstack_load(*at, "--stability", "0.0001", "--window", "0.3", "--max-windows", "3")
    (level,) = json.loads(done.stdout)["levels"]
    assert not level["stability"]["stable"] and any("not stable" in note for note in level["notes"])


def test_help_fits_a_screen_and_imports_nothing_heavy() -> None:
    code = "import sys; from tritonstack.command import main; main(['load', '--help'])\n"
    script = f"""
import sys
try:
    exec({code!r})
except SystemExit as stop:
    assert not stop.code
heavy = [name for name in ("numpy", "grpc", "tritonclient", "PIL", "hdrh", "asyncio") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 48
    assert max(map(len, done.stdout.splitlines())) <= 110
