"""Shared-memory regions: used by the real server, and never left behind."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tritonstack import AsyncClient, Client, ServerError, SharedMemoryRegion, TensorError
from tritonstack.client.flows import Flows
from tritonstack.errors import InputError, SetupError, UsageError
from tritonstack.shared_memory import instance_id, is_orphan, remove_orphans
from tritonstack_deploy.embedded import EmbeddedServer

ROW = np.array([[1, 2, 3]], np.float32)
SHM = Path("/dev/shm")


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout_s=20) as client:
        yield client


@pytest.fixture
def region() -> Iterator[SharedMemoryRegion]:
    with SharedMemoryRegion(4096, prefix="tritonstack.test") as region:
        yield region


def registered(client: Client) -> tuple[str, ...]:
    """Names the server knows."""
    flows: Flows = client._flows

    def flow():  # type: ignore[no-untyped-def]
        return flows.codec.read_region_names((yield from flows.attempt(flows.codec.region_status())))

    return client._run(flow(), None)


def ours() -> list[str]:
    return sorted(path.name for path in SHM.glob("tritonstack.test-*"))


def test_inputs_and_outputs_in_a_region(client: Client, region: SharedMemoryRegion) -> None:
    assert client.register(region)
    assert client.register(region)  # twice is fine
    x = region.slot((1, 3), "FP32")
    y = region.slot((2, 3), "FP32", offset=128)
    x.write(ROW)
    prepared = client.prepare("addone", {"x": x}, outputs={"y": y})
    result = client.send(prepared)
    assert result["y"].tolist() == [[2, 3, 4]]
    assert y.array[0].tolist() == [2, 3, 4]
    x.array[:] = 10
    assert client.send(prepared)["y"].tolist() == [[11, 11, 11]]
    assert prepared.byte_size < 600
    client.unregister(region)
    assert region.name not in registered(client)


def test_bytes_in_a_region(client: Client, region: SharedMemoryRegion) -> None:
    client.register(region)
    x = region.slot((1, 2), "BYTES", offset=8, byte_size=100)
    y = region.slot((1, 2), "BYTES", offset=200, byte_size=100)
    for texts in ([["a\0", "größe"]], [["", "longer than before"]], [["x", "y"]]):
        x.write(texts)
        result = client.infer("identity", {"x_BYTES": x}, outputs={"y_BYTES": y})
        assert result["y_BYTES"].tolist() == [[text.encode() for text in texts[0]]]
    with pytest.raises(TensorError, match="at most 100"):
        x.write([["x" * 100, ""]])


def test_some_outputs_in_a_region_and_some_on_the_wire(client: Client, region: SharedMemoryRegion) -> None:
    client.register(region)
    y = region.slot((1, 3), "FP32")
    inputs = {"x_FP32": ROW, "x_INT8": np.array([[1, 2]], np.int8), "x_BOOL": np.array([[True]])}
    result = client.infer("identity", inputs, outputs={"y_INT8": 0, "y_FP32": y, "y_BOOL": 0})
    assert result["y_INT8"].tolist() == [[1, 2]]
    assert result["y_FP32"].tolist() == ROW.tolist()
    assert result["y_BOOL"].tolist() == [[True]]


def test_sizes_are_checked_before_sending(client: Client, region: SharedMemoryRegion) -> None:
    with pytest.raises(TensorError, match="at most the region's 4096"):
        region.slot((1000, 3), "FP32")
    with pytest.raises(TensorError, match="does not fit"):
        region.slot((1, 3), "FP32", offset=4090)
    with pytest.raises(UsageError):
        region.slot((1, 3), "FP32", offset=-4)
    with pytest.raises(UsageError, match="byte_size"):
        region.slot((1,), "BYTES")
    client.register(region)
    with pytest.raises(TensorError, match=r"FP32 \[batch ≤ 8, 3\]"):
        client.infer("addone", {"x": region.slot((1, 4), "FP32")})
    with pytest.raises(TensorError, match="wrong data type"):
        client.infer("addone", {"x": region.slot((1, 3), "INT32")})
    with pytest.raises(TensorError, match="does not fit its shared-memory slot"):
        client.infer("addone", {"x": ROW}, outputs={"y": region.slot((1, 3), "INT32")})
    with pytest.raises(TensorError):
        region.slot((1, 3), "FP32").write(ROW[0])


def test_an_output_that_is_larger_than_its_slot(client: Client, region: SharedMemoryRegion) -> None:
    client.register(region)
    with pytest.raises(ServerError, match="should be at least 12 bytes"):
        client.infer("addone", {"x": ROW}, outputs={"y": region.slot((1, 2), "FP32")})
    assert client.infer("addone", {"x": ROW})["y"].tolist() == [[2, 3, 4]]


def test_an_unregistered_region_is_refused(client: Client, region: SharedMemoryRegion) -> None:
    with pytest.raises(InputError, match=r"call client\.register"):
        client.infer("addone", {"x": region.slot((1, 3), "FP32")})


def test_a_region_in_use_survives_unregistering(client: Client, region: SharedMemoryRegion) -> None:
    client.register(region)
    x, y = region.slot((1, 3), "FP32"), region.slot((1, 3), "FP32", offset=64)
    x.write(np.full((1, 3), 0.5, np.float32))
    answers: list[object] = []
    thread = threading.Thread(
        target=lambda: answers.append(client.infer("slow", {"x": x}, outputs={"y": y})["y"].tolist())
    )
    thread.start()
    time.sleep(0.2)
    with pytest.raises(ServerError, match="in use"):
        client.unregister(region)
    thread.join()
    assert answers == [[[0.5, 0.5, 0.5]]]
    client.unregister(region)
    assert client.is_live()


def test_a_removed_or_replaced_file_is_noticed(client: Client, region: SharedMemoryRegion) -> None:
    client.register(region)
    x = region.slot((1, 3), "FP32")
    x.write(ROW)
    region.path.unlink()
    with pytest.raises(InputError, match="removed or replaced"):
        client.infer("addone", {"x": x})
    region.path.write_bytes(bytes(4096))  # a file of the same name, as a careless restart would make
    try:
        with pytest.raises(InputError, match="removed or replaced"):
            x.write(ROW)
    finally:
        region.close()
        assert region.path.exists()  # not ours, so not removed
        region.path.unlink()


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server whose shared-memory API is closed, as `tritonstack serve` leaves it."""
    from client_models import write_add_one

    repository = tmp_path_factory.mktemp("closed-server") / "models"
    write_add_one(repository, "addone")
    with EmbeddedServer(repository) as running:
        yield running


def test_a_server_that_cannot_use_the_region(
    closed_server: EmbeddedServer, protocol: str, region: SharedMemoryRegion
) -> None:
    url = closed_server.grpc_url if protocol == "grpc" else closed_server.http_url
    with Client(url) as client:
        with pytest.raises(ServerError) as caught:
            client.register(region)
        assert "one /dev/shm (the same IPC namespace)" in str(caught.value)
        assert "fallback=True" in str(caught.value)
        assert client.register(region, fallback=True) is False
        x, y = region.slot((3,), "FP32"), region.slot((3,), "FP32", offset=64)
        x.write(ROW[0])
        assert client.infer("addone", {"x": x}, outputs={"y": y})["y"].tolist() == [2, 3, 4]
        assert y.read().tolist() == [2, 3, 4]


def test_a_file_the_server_does_not_see(client: Client, region: SharedMemoryRegion) -> None:
    """As from a container of its own: the name means nothing to the server."""
    hidden = region.path.with_name("tritonstack.test-hidden")
    check, region.check = region.check, lambda: None  # type: ignore[method-assign]
    region.path.rename(hidden)
    try:
        with pytest.raises(ServerError, match="same IPC namespace"):
            client.register(region)
        assert client.register(region, fallback=True) is False
    finally:
        hidden.rename(region.path)
        region.check = check  # type: ignore[method-assign]


def test_asyncio(url: str, region: SharedMemoryRegion) -> None:
    async def run() -> None:
        async with AsyncClient(url) as client:
            assert await client.register(region)
            x = region.slot((1, 3), "FP32")
            x.write(ROW)
            assert (await client.infer("addone", {"x": x}))["y"].tolist() == [[2, 3, 4]]
        with Client(url) as watcher:
            assert region.name not in registered(watcher)  # closing the client took it back

    asyncio.run(run())


def test_a_thousand_regions_leave_nothing(client: Client) -> None:
    def cycle(count: int) -> None:
        for _ in range(count):
            with SharedMemoryRegion(1 << 20, prefix="tritonstack.test") as region:
                client.register(region)
                client.unregister(region)

    cycle(100)
    files, descriptors = len(ours()), len([*Path("/proc/self/fd").iterdir()])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cycle(1000)
    assert len(ours()) == files
    assert len([*Path("/proc/self/fd").iterdir()]) <= descriptors + 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_000  # kB
    assert not [name for name in registered(client) if name.startswith("tritonstack.test")]


SCRIPT = """
import os, signal, sys, time
import numpy as np
from tritonstack import Client, SharedMemoryRegion
{before}
client = Client({url!r}, timeout_s=20)
region = SharedMemoryRegion(4096, prefix="tritonstack.test")
client.register(region)
slot = region.slot((1, 3), "FP32")
slot.write(np.ones((1, 3), np.float32))
assert client.infer("addone", {{"x": slot}})["y"][0, 0] == 2
print(region.name, flush=True)
{after}
"""


def start(url: str, *, before: str = "", after: str = "time.sleep(60)") -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(url=url, before=before, after=after)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert name, process.communicate(timeout=10)[1]
    return process, name


@pytest.mark.parametrize(
    ("after", "code"), [("", 0), ("raise RuntimeError('x')", 1), ("sys.exit(3)", 3)], ids=["normal", "error", "exit"]
)
def test_nothing_is_left_when_a_process_ends(url: str, client: Client, after: str, code: int) -> None:
    process, name = start(url, after=after)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert not (SHM / name).exists()
    assert name not in registered(client)


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("", -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), sys.exit(7)))", 7),
    ],
    ids=["default", "own-handler"],
)
def test_sigterm_cleans_up_and_still_does_what_it_did(url: str, client: Client, before: str, code: int) -> None:
    process, name = start(url, before=before)
    process.terminate()
    output, errors = process.communicate(timeout=20)
    assert process.returncode == code, errors
    assert output.strip() == ("mine" if code == 7 else "")
    assert not (SHM / name).exists()
    assert name not in registered(client)


def test_a_killed_process_is_cleaned_up_after(url: str, client: Client, region: SharedMemoryRegion) -> None:
    process, name = start(url)
    client.register(region)
    assert name in registered(client)
    assert client.clean_shared_memory("tritonstack.test") == ()  # alive: not touched
    process.kill()
    process.communicate()
    assert (SHM / name).exists()
    assert client.clean_shared_memory("tritonstack.test") == (name,)
    assert not (SHM / name).exists()
    assert region.name in registered(client)
    region.check()


def test_orphans_of_other_hosts_are_not_judged() -> None:
    assert is_orphan(f"tritonstack-{instance_id()}-1-abc")
    assert not is_orphan("tritonstack-00000000-1-abc")
    assert not is_orphan("someone-elses")
    assert remove_orphans("tritonstack.test-nothing") == ()


def test_a_forked_child_leaves_its_parent_s_region_alone(region: SharedMemoryRegion) -> None:
    code = """
import os, sys
from tritonstack import SharedMemoryRegion
region = SharedMemoryRegion(64, prefix="tritonstack.test")
pid = os.fork()
if not pid:
    region.close()
    sys.exit(0)  # runs the exit handlers
os.waitpid(pid, 0)
region.check()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_signal_handler_is_given_back() -> None:
    previous = signal.getsignal(signal.SIGTERM)
    with SharedMemoryRegion(16, prefix="tritonstack.test"):
        pass
    assert signal.getsignal(signal.SIGTERM) == previous


def test_no_room_is_an_error_and_not_a_crash() -> None:
    before = ours()
    with pytest.raises(SetupError, match="no room"):
        SharedMemoryRegion(1 << 50, prefix="tritonstack.test")
    assert ours() == before
    with pytest.raises(UsageError):
        SharedMemoryRegion(0)
    with pytest.raises(UsageError):
        SharedMemoryRegion(10, prefix="a/b")
