"""The parts of the embedded server that need no process: log lines, ports, installation, reasons."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import socket
import sysconfig
from pathlib import Path

import pytest

from tritonstack.errors import SetupError, UsageError
from tritonstack_deploy.embedded import CONTROL_APIS, leftovers
from tritonstack_deploy.embedded.installation import find_installation
from tritonstack_deploy.embedded.log_lines import parse_line, parse_providers, short_reason
from tritonstack_deploy.embedded.ports import Ports
from tritonstack_deploy.embedded.server import EmbeddedServer
from tritonstack_deploy.serve import command


def test_a_log_line_is_parsed() -> None:
    line = parse_line("""W1130 18:00:00.123456 4711 metrics.cc:640] "Unable to get power limit for GPU 0." """.strip())
    assert (line.level, line.message) == ("warning", "Unable to get power limit for GPU 0.")
    assert line.matters


@pytest.mark.parametrize(
    "raw",
    [
        '''I1130 18:00:00.1 1 server.cc:1] "Waiting for in-flight requests to complete."''',
        '''W1130 18:00:00.1 1 pinned.cc:1] "Unable to allocate pinned system memory, pinned memory pool will not be"''',
        '''E1130 18:00:00.1 1 server.cc:1] "CudaDriverHelper has not been initialized."''',
        '''I1130 18:00:00.1 1 server.cc:1] "Timeout 9: Found 1 live models and 0 in-flight non-inference requests"''',
        "+-------+---------+--------+",
        "| Model | Version | Status |",
        " 4# 0x00007FA50D64524A in /lib/x86_64-linux-gnu/libc.so.6",
        "",
    ],
)
def test_noise_is_hidden(raw: str) -> None:
    assert not parse_line(raw).matters


@pytest.mark.parametrize(
    "raw",
    [
        '''E1130 18:00:00.1 1 model_lifecycle.cc:1] "failed to load 'x' version 1: Internal: no"''',
        '''I1130 18:00:00.1 1 model_lifecycle.cc:1] "successfully loaded 'x'"''',
        '''I1130 18:00:00.1 1 server.cc:1] "Timeout 9: Found 2 model versions that have in-flight inferences"''',
        '''I1130 18:00:00.1 1 server.cc:1] "Timeout 9: Found 1 HTTP service connections"''',
        "terminate called after throwing an instance of 'std::runtime_error'",
    ],
)
def test_what_matters_is_shown(raw: str) -> None:
    assert parse_line(raw).matters


def test_providers_are_read_from_the_log() -> None:
    line = parse_line(
        '''I1130 1:1:1.1 1 python.cc:1] "x"'''.replace("1:1:1.1", "18:00:00.1").replace(
            '"x"',
            '"tritonstack-onnxruntime model=m version=2 kind=GPU device=1 providers=CUDAExecutionProvider,'
            'CPUExecutionProvider onnxruntime=1.31.1"',
        )
    )
    found = parse_providers(line)
    assert found is not None
    assert (found.model, found.version, found.providers[0]) == ("m", "2", "CUDAExecutionProvider")
    assert parse_providers(parse_line("nothing")) is None


def test_reason_without_stack() -> None:
    text = "Internal: ValueError: no licence\n\nAt:\n  /models/x/1/model.py(3): initialize\n"
    assert short_reason(text) == "no licence"


def test_free_ports_differ() -> None:
    ports = Ports.from_base("127.0.0.1", 0)
    assert len({ports.http, ports.grpc, ports.metrics}) == 3


def test_taken_port_is_named_also_with_reuseport() -> None:
    # gRPC listens with SO_REUSEPORT, which lets two servers share a port in silence.
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} .HTTP. on 127.0.0.1 is in use"):
            Ports.from_base("127.0.0.1", port)


def test_unknown_host() -> None:
    with pytest.raises(UsageError, match="--host"):
        Ports.from_base("no-such-host.invalid", 0)


def test_missing_wheel_tells_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="pip install --no-deps nvidia-pytriton"):
        find_installation()


def test_missing_libpython_tells_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(SetupError, match=r"apt-get install libpython3\.1[12]"):
        find_installation()


def test_numpy_2_without_a_numpy_for_the_stub_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Under numpy 2 the stub hands models wrong values without an error: it must never be started so.
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    if importlib.metadata.version("numpy").startswith("1."):
        assert find_installation().stub_site is None
        return
    with pytest.raises(SetupError, match=r"numpy==1\.26\.4"):
        find_installation()


def test_only_leftovers_of_this_pid_namespace_are_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A container that shares /dev/shm has its own process ids: its living server looks dead from here.
    monkeypatch.setattr(leftovers, "_SHM", tmp_path)
    nobody, here = 2**22 + 1, leftovers.namespace_id()
    gone, alive = f"tritonstack_{nobody}_{here}_00000000_a", f"{leftovers.new_prefix()}a"
    foreign = f"tritonstack_{nobody}_{int(here, 16) ^ 1:08x}_00000000_a"
    for name in (gone, alive, foreign):
        (tmp_path / name).touch()
    assert leftovers.remove_orphans() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive, foreign])


def test_no_ports_before_start(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="before it is started"):
        _ = EmbeddedServer(tmp_path).ports


def test_the_command_offers_every_control_api_of_the_server() -> None:
    # Listed twice so that `serve --help` need not load the server.
    assert list(command._APIS) == ["model-repository", *CONTROL_APIS]
