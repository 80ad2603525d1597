"""Load through system shared memory on the null backend: answers show that each input arrived from its place."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tritonstack import Client
from tritonstack.errors import UsageError
from tritonstack.load.arrival import ClosedLoop, OpenLoop
from tritonstack.load.inputs import ArrayInputs, RandomInputs
from tritonstack.load.plan import LoadPlan
from tritonstack.load.session import run_load
from tritonstack.shared_memory import SharedMemoryRegion
from tritonstack_deploy.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "support" / "null_backend"))
from null_backend import build, write_models  # noqa: E402

SHM = Path("/dev/shm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("null")
    write_models(folder / "models")
    with EmbeddedServer(
        folder / "models", backends={"null": build(folder / "built")}, allow=["shared-memory"]
    ) as running:
        yield running


def left_over() -> list[str]:
    return [path.name for path in SHM.glob("tritonstack_load*")]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["nullsmall", "nullimg"])
def test_answers_are_those_of_the_inputs(server: EmbeddedServer, protocol: str, model: str) -> None:
    shape = (4,) if model == "nullsmall" else (3, 224, 224)
    x = np.random.default_rng(1).random((5, *shape), np.float32)
    y = x + 1 if model == "nullsmall" else x.reshape(5, -1)[:, ::150][:, :1000] + 1
    report = run_load(
        LoadPlan(
            model=model,
            url=server.grpc_url if protocol == "grpc" else server.http_url,
            arrivals=[ClosedLoop(4), OpenLoop(200.0)],
            duration_s=None,
            requests=100,
            warmup_s=0.0,
            max_lag_s=10.0,
            inputs=ArrayInputs({"x": x}),
            pool=5,
            expected={"y": y},
            shared_memory="system",
            workers=2,
        )
    )
    assert report.ok, [(level.problems, level.failures, level.errors) for level in report.levels]
    assert report.sending.shared_memory == "system" and report.sending.validate == "expected"
    assert report.request_bytes < 1000, "the tensors do not travel"
    assert all(level.counts.errors == 0 and level.counts.measured >= 100 for level in report.levels)
    assert left_over() == []
    with Client(server.grpc_url) as client:
        assert client.clean_shared_memory() == ()


def test_wrong_answers_show(server: EmbeddedServer) -> None:
    """The comparison is made with what lies in the region, so a wrong expectation of one entry is found."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = x + 1
    y[1, 2] = 99
    report = run_load(
        LoadPlan(
            model="nullsmall", url=server.grpc_url, arrivals=[ClosedLoop(1)], duration_s=None, requests=30,
            warmup_s=0.0, inputs=ArrayInputs({"x": x}), pool=3, expected={"y": y}, shared_memory="system",
        )
    )  # fmt: skip
    (error,) = report.levels[0].errors
    assert (error.kind, error.count) == ("ValidationFailed", 10)
    assert "99" in error.example


def test_a_killed_run_leaves_nothing_for_good(server: EmbeddedServer) -> None:
    """Its file and its place at the server are gone after the next run."""
    line = [
        sys.executable, "-m", "tritonstack", "load", "nullsmall", "--url", server.grpc_url, "--concurrency", "2",
        "--shared-memory", "system", "--quiet", "--duration",
    ]  # fmt: skip
    running = subprocess.Popen([*line, "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + 20
        while not left_over() and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(1.0)
        assert left_over()
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert left_over(), "nobody could clean up"
    done = subprocess.run([*line, "1", "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sending"]["shared_memory"] == "system"
    assert left_over() == []


def test_a_region_of_somebody_else_is_left_alone(server: EmbeddedServer) -> None:
    with SharedMemoryRegion(4096, prefix="other") as region, Client(server.grpc_url) as client:
        client.register(region)
        plan = LoadPlan(
            model="nullsmall", url=server.grpc_url, arrivals=[ClosedLoop(1)], duration_s=None, requests=5,
            warmup_s=0.0, inputs=RandomInputs(0), shared_memory="system",
        )  # fmt: skip
        assert run_load(plan).ok
        assert client.infer("nullsmall", {"x": np.zeros(4, np.float32)})["y"].tolist() == [1, 1, 1, 1]
        assert client.register(region), "the server still knows it"
        assert (SHM / region.name).exists()
    assert not (SHM / region.name).exists()


@pytest.mark.parametrize(
    ("wrong", "words"), [({"shared_memory": "cuda"}, "not built in"), ({"json_body": True}, "JSON")]
)
def test_what_cannot_be_is_refused(server: EmbeddedServer, wrong: dict[str, object], words: str) -> None:
    settings = {"shared_memory": "system", **wrong}
    with pytest.raises(UsageError, match=words):
        run_load(LoadPlan(model="nullsmall", url=server.http_url, arrivals=[ClosedLoop(1)], **settings))  # type: ignore[arg-type]
