"""What is shown while a load test runs, and the seconds that are kept of it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest
from asyncio_engine import Engine, Window

from tritonstack.load.arrival import ClosedLoop, OpenLoop
from tritonstack.load.live import Moment, Nothing, Watcher, describe, fitted
from tritonstack.load.series import Totals, percentiles, second_of
from tritonstack_deploy.embedded import EmbeddedServer

MOMENT = Moment("concurrency 4", False, 3.2, 99.96, [i / 1000 for i in range(1, 101)], 2, 4, 7.0)


def test_the_line_shows_the_interval_by_nearest_rank() -> None:
    assert "  ".join(describe(MOMENT)) == (
        "concurrency 4  3 s  100.0 req/s  p50 50.0 ms  p99 99.0 ms  2 errors  4 in flight  7 queued at the server"
    )
    idle = describe(replace(MOMENT, latencies_s=[], pending=None, in_warmup=True))
    assert idle == ["concurrency 4  warm-up 3 s", "100.0 req/s", "2 errors", "4 in flight"]


@pytest.mark.parametrize("width", [0, 1, 20, 30, 60, 80, 300])
def test_the_line_fits_narrow_terminals(width: int) -> None:
    line = fitted(describe(MOMENT), width)
    assert len(line) <= max(width, 20)
    assert line.startswith("concurrency 4")
    assert ("queued" in line) is (width >= 107)
    assert len(fitted(["a very long label of a trace of many words"], 10)) == 20


def test_seconds() -> None:
    second = second_of(3.0, 1.0, Totals(10, 8, 1), Totals(30, 25, 2), [0.001, 0.002, 0.003])
    assert (second.sent, second.completed, second.errors, second.in_flight) == (20, 17, 1, 3)
    assert (second.p50_us, second.p99_us, second.max_us) == (2000, 3000, 3000)
    assert second_of(0, 1, Totals(0, 0, 0), Totals(1, 0, 0), []).p50_us is None
    assert percentiles([]) == (None, None)


@pytest.mark.parametrize("arrival", [ClosedLoop(2), OpenLoop(100.0, "constant")])
def test_the_seconds_of_a_run_add_up(arrival: ClosedLoop | OpenLoop) -> None:
    async def run() -> tuple[Watcher, Engine]:
        async def send(index: int) -> None:
            await asyncio.sleep(0.01)

        watcher = Watcher(Nothing())
        engine = Engine(
            send=send, pool_size=1, arrival=arrival, window=Window(0.3, 3.2, None), classify=lambda error: None,
            max_in_flight=100, drain_s=5.0,
        )  # fmt: skip
        follower = asyncio.create_task(watcher.follow(engine, arrival))
        await engine.run()
        follower.cancel()
        return watcher, engine

    watcher, engine = asyncio.run(run())
    (seconds,) = watcher.seconds
    assert watcher.opened_s == [engine.tally.open_at_s]
    assert len(seconds) == 3
    for index, second in enumerate(seconds):
        assert second.offset_s == pytest.approx(index, abs=0.2) and second.duration_s == pytest.approx(1.0, abs=0.2)
        assert second.errors == 0 and 0 <= second.in_flight <= 100
        assert second.p50_us is not None and second.p50_us > 9000
    expected = engine.tally.in_window * 3 / 3.2
    assert sum(second.completed for second in seconds) == pytest.approx(expected, rel=0.15)


def on_a_terminal(url: str, *, columns: int, environment: dict[str, str], model: str = "flaky") -> str:
    """What `tritonstack load` writes to a terminal of that width."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    command = [sys.executable, "-m", "tritonstack", "load", model, "--url", url, "--concurrency", "2"]
    command += ["--duration", "1.6", "--warmup", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=secondary, stdin=secondary, text=True,
        env={**{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}, **environment},
    )  # fmt: skip
    os.close(secondary)
    out, _ = process.communicate(timeout=30)
    assert "\r" not in out and "\x1b" not in out, "nothing of the view is on stdout"
    shown = os.read(primary, 65536).decode()
    os.close(primary)
    return shown


def test_a_narrow_terminal_is_redrawn_without_wrapping(load_server: EmbeddedServer) -> None:
    shown = on_a_terminal(load_server.grpc_url, columns=40, environment={"NO_COLOR": "1"})
    lines = [line for line in shown.split("\r\x1b[2K") if line.startswith("concurrency 2")]
    assert len(lines) >= 2
    assert all(len(line) <= 39 for line in lines), lines
    assert "\x1b[31m" not in shown


def test_errors_stand_out_where_colours_are_welcome(load_server: EmbeddedServer) -> None:
    shown = on_a_terminal(load_server.grpc_url, columns=120, environment={})
    assert "\x1b[31mconcurrency 2" in shown and " errors" in shown
