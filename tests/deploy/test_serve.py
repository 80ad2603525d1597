"""`tritonstack serve` against the real server: life, death and what is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from serve_process import Serve, alive, leftovers, wait_until
from tiny_models import affine, identity, python_model, slow

from tritonstack import Client
from tritonstack.errors import RepositoryError, SetupError
from tritonstack_deploy.embedded import EmbeddedServer
from tritonstack_deploy.embedded.ports import Ports

Start = Callable[..., Serve]


def call(server: Serve, method: str, path: str, body: object = None) -> tuple[int, object]:
    host = str(server.endpoints["http"]).removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def ask(server: Serve, model: str) -> tuple[int, object]:
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return call(server, "POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})


def test_serves_on_loopback_and_stops_cleanly(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path)
    assert all("127.0.0.1" in str(server.endpoints[name]) for name in ("http", "grpc", "metrics"))
    [model] = server.endpoints["models"]  # type: ignore[misc]
    assert model == {"name": "affine", "version": "1", "ready": True, "providers": ["CPUExecutionProvider"]}
    status, answer = ask(server, "affine")
    assert status == 200
    assert {o["name"]: o["data"] for o in answer["outputs"]} == {"y": [3, 5, 7], "total": [6]}  # type: ignore[index]
    children = server.descendants()
    assert len(children) >= 2, "tritonserver and its stub"
    assert leftovers(server.process.pid), "the test would not notice leftovers otherwise"
    assert server.finish(signal.SIGTERM) == 0
    assert not [pid for pid in children if alive(pid)]
    assert not leftovers(server.process.pid)


def test_ctrl_c_finishes_requests_in_flight(tmp_path: Path, serve: Start) -> None:
    slow(delay_s=2).add_to(tmp_path)
    server = serve(tmp_path)
    answers: list[tuple[int, object]] = []
    thread = threading.Thread(target=lambda: answers.append(ask(server, "slow")))
    thread.start()
    assert wait_until(lambda: "nv_inference" in metrics(server))
    threading.Event().wait(0.5)
    assert server.finish(signal.SIGINT) == 0
    thread.join(10)
    assert answers[0][0] == 200


def metrics(server: Serve) -> str:
    host = str(server.endpoints["metrics"]).removeprefix("http://").removesuffix("/metrics")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def ask_and_lose(server: Serve) -> None:
    """Send a request whose connection will be cut by the server's end."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(server, "slow")


def test_second_signal_does_not_wait(tmp_path: Path, serve: Start) -> None:
    slow(delay_s=30).add_to(tmp_path)
    server = serve(tmp_path, "--drain-timeout", "60")
    threading.Thread(target=ask_and_lose, args=(server,), daemon=True).start()
    threading.Event().wait(0.7)
    server.process.send_signal(signal.SIGINT)
    assert wait_until(lambda: "stopping" in server.stderr)
    threading.Event().wait(0.5)
    server.finish(signal.SIGINT, timeout=15)
    assert not leftovers(server.process.pid)


def test_server_ends_with_its_owner_and_leftovers_are_swept(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path)
    children = server.descendants()
    server.finish(signal.SIGKILL)
    assert wait_until(lambda: not [pid for pid in children if alive(pid)], timeout_s=30)
    serve(tmp_path)
    assert not leftovers(server.process.pid)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_death_of_the_server_is_told(tmp_path: Path, serve: Start, number: signal.Signals) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path)
    os.kill(int(str(server.endpoints["pid"])), number)
    assert server.finish() == 1
    assert f"signal {number.name}" in server.stderr
    assert "+--" not in server.stderr and "cache_enabled" not in server.stderr, "Triton's tables are no last words"
    assert "# 0x" not in server.stderr, "nor are native stack frames"
    assert "Traceback" not in server.stderr
    assert not leftovers(server.process.pid)


def test_port_in_use(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = serve(tmp_path, "--port-base", str(port - 1), ready=False)
        assert server.finish() == 1
    assert f"port {port} (gRPC) on 127.0.0.1 is in use" in server.stderr or "is in use" in server.stderr
    assert "--port-base" in server.stderr


def test_another_server_on_the_same_ports_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two started at once both find the ports free; the slower one has to say that it lost, not that it is ready."""
    affine().add_to(tmp_path)
    with EmbeddedServer(tmp_path) as first:
        monkeypatch.setattr(Ports, "from_base", classmethod(lambda cls, host, base: first.ports))
        with pytest.raises(SetupError, match="could not open its ports"):
            EmbeddedServer(tmp_path, port_base=first.ports.http).start()
        assert first.exit_code() is None


def test_model_that_fails_to_load_gives_its_own_reason(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    broken = python_model("broken", "response = None").add_to(tmp_path)
    (broken / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no licence')\n"
    )
    server = serve(tmp_path, ready=False)
    assert server.finish() == 1
    last = server.stderr.strip().splitlines()[-1]
    assert "'broken'" in last and "no licence" in last
    assert "model.py(" not in last and "Traceback" not in server.stderr


def test_bad_session_parameter_is_named(tmp_path: Path, serve: Start) -> None:
    # check refuses it before a server sees it; either way the parameter and its value are told.
    affine(extra='parameters { key: "intra_op_thread_count" value { string_value: "many" } }').add_to(tmp_path)
    server = serve(tmp_path, ready=False)
    assert server.finish() == 1
    assert "intra_op_thread_count" in server.stderr and "many" in server.stderr


def test_empty_repository_is_refused(tmp_path: Path, serve: Start) -> None:
    server = serve(tmp_path, ready=False)
    assert server.finish() == 1
    assert "no models found" in server.stderr


def test_gpu_asked_without_gpu(tmp_path: Path, serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    affine(extra="instance_group { count: 1 kind: KIND_GPU }").add_to(tmp_path)
    server = serve(tmp_path, ready=False)
    assert server.finish() == 1
    assert "KIND_GPU but 0 GPUs visible" in server.stderr


def test_clutter_and_configmap_links_are_not_served(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    (tmp_path / "affine").rename(tmp_path / "..2026_11_30")
    (tmp_path / "..data").symlink_to("..2026_11_30")
    (tmp_path / "affine").symlink_to("..data")
    for clutter in (".git", "lost+found", ".ipynb_checkpoints"):
        (tmp_path / clutter).mkdir()
    server = serve(tmp_path)
    status, index = call(server, "POST", "/v2/repository/index", {})
    assert status == 200
    assert [row["name"] for row in index] == ["affine"]  # type: ignore[union-attr,index]


def test_only_the_chosen_model_and_its_steps(tmp_path: Path, serve: Start) -> None:
    for name in ("one", "two"):
        identity(name).add_to(tmp_path)
    (tmp_path / "bad").mkdir()
    server = serve(tmp_path, "--model", "two")
    assert [m["name"] for m in server.endpoints["models"]] == ["two"]  # type: ignore[attr-defined]
    assert ask(server, "two")[0] == 200
    assert ask(server, "one")[0] in (400, 404)


def test_problems_of_models_left_out_are_not_told(tmp_path: Path, serve: Start) -> None:
    for name, extra in (("other", "instance_group { count: 0 }"), ("wanted", "instance_group { count: 0 }")):
        affine(name, extra=extra).add_to(tmp_path)
    server = serve(tmp_path, "--model", "wanted", ready=False)
    assert server.finish() == 1
    assert "wanted/config.pbtxt" in server.stderr
    assert "other" not in server.stderr
    assert "0 servable models, 1 error, 0 warnings" in server.stderr


def test_names_that_a_shell_would_read_are_refused(tmp_path: Path, serve: Start) -> None:
    # Triton's python backend would run them: `bash -c` with the model's path inside.
    identity(f"x$(touch {tmp_path.name})").add_to(tmp_path / "models")
    server = serve(tmp_path / "models", ready=False)
    assert server.finish() == 1
    assert "shell" in server.stderr
    with pytest.raises(RepositoryError, match="shell"):
        EmbeddedServer(tmp_path / "models").start()


@pytest.mark.parametrize("name", ["a+b", "größe", "v1.2-x_y"])
def test_names_that_are_unusual_but_safe(
    tmp_path: Path, serve: Start, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("LC_ALL", "POSIX")
    identity(name).add_to(tmp_path)
    server = serve(tmp_path)
    assert [m["ready"] for m in server.endpoints["models"]] == [True]  # type: ignore[attr-defined]


@pytest.mark.parametrize("allow", [[], ["--allow", "model-repository"]])
def test_a_repository_path_with_spaces(tmp_path: Path, serve: Start, allow: list[str]) -> None:
    repository = tmp_path / "my models & more"
    affine().add_to(repository)
    assert ask(serve(repository, *allow), "affine")[0] == 200


def test_unknown_model_is_a_usage_error(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path, "--model", "afine", ready=False)
    assert server.finish() == 2
    assert "did you mean 'affine'" in server.stderr


def test_control_apis_are_closed_unless_allowed(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path)
    region = {"key": "/nothing", "offset": 0, "byte_size": 16}
    for method, path, body in (
        ("POST", "/v2/systemsharedmemory/region/r/register", region),
        ("GET", "/v2/logging", None),
        ("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
        ("POST", "/v2/repository/models/affine/unload", {}),
    ):
        assert call(server, method, path, body)[0] >= 400, path
    assert ask(server, "affine")[0] == 200


def test_allowed_control_apis_are_open(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    identity("later").add_to(tmp_path)
    server = serve(tmp_path, "--model", "affine", "--allow", "model-repository,logging")
    assert call(server, "GET", "/v2/logging")[0] == 200
    assert ask(server, "later")[0] in (400, 404)
    assert call(server, "POST", "/v2/repository/models/later/load", {})[0] == 200
    assert ask(server, "later")[0] == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port-base", "70000"], "--port-base"),
        (["--allow", "everything"], "--allow"),
        (["--host", "203.0.113.9"], "--host"),
        (["--response-cache", "lots"], "--response-cache"),
        (["--drain-timeout", "-1"], "--drain-timeout"),
        (["--log-file", "/"], "is a folder"),
        (["--log-file", "/no/such/folder/log"], "no such folder"),
        (["--log-file", ""], "--log-file: given ''"),
    ],
)
def test_bad_flags_exit_2_in_one_line(tmp_path: Path, serve: Start, arguments: list[str], words: str) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path, *arguments, ready=False)
    assert server.finish() == 2
    last = server.stderr.strip().splitlines()[-1]
    assert last.startswith("tritonstack serve: error:") and words in last and arguments[1] in last


def test_log_file_holds_the_whole_log(tmp_path: Path, serve: Start) -> None:
    repository = tmp_path / "models"
    affine().add_to(repository)
    log = tmp_path / "server.log"
    server = serve(repository, "--log-file", str(log))
    assert server.finish(signal.SIGTERM) == 0
    assert "Started GRPCInferenceService" in log.read_text()
    assert "Started GRPCInferenceService" not in server.stderr


def test_response_cache_is_used(tmp_path: Path, serve: Start) -> None:
    affine(extra="response_cache { enable: true }").add_to(tmp_path)
    server = serve(tmp_path, "--response-cache", "1Mi")
    for _ in range(3):
        assert ask(server, "affine")[0] == 200
    _, statistics = call(server, "GET", "/v2/models/affine/stats")
    assert statistics["model_stats"][0]["inference_stats"]["cache_hit"]["count"] == 2  # type: ignore[index,call-overload]
    assert "no response cache" not in server.stderr


def test_a_log_that_cannot_be_shown_does_not_stall_the_server(tmp_path: Path) -> None:
    # The reader of a closed terminal's pipe is gone: were the server's log left unread, it would block on it.
    def closed(line: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    affine().add_to(tmp_path)
    with EmbeddedServer(tmp_path, on_log=closed, verbose=2) as server:
        body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
        address = server.http_url.removeprefix("http://")
        for _ in range(60):
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("POST", "/v2/models/affine/infer", json.dumps(body))
            assert connection.getresponse().status == 200
            connection.close()


def test_a_missing_response_cache_is_told(tmp_path: Path, serve: Start) -> None:
    affine("cached", extra="response_cache { enable: true }").add_to(tmp_path)
    affine("plain").add_to(tmp_path)
    server = serve(tmp_path)
    assert "no response cache, although the config of cached asks for one" in server.stderr


def test_a_response_cache_beyond_the_memory_is_refused(tmp_path: Path, serve: Start) -> None:
    affine().add_to(tmp_path)
    server = serve(tmp_path, "--response-cache", "999999G", ready=False)
    assert server.finish() == 1
    last = server.stderr.strip().splitlines()[-1]
    assert "failed to allocate" in last and "choose a smaller --response-cache" in last


@pytest.mark.parametrize("broken", ["log file", "stderr"])
def test_a_log_that_nobody_can_take_does_not_block_the_server(tmp_path: Path, broken: str) -> None:
    """Once the pipe to us is full, tritonserver waits in its next log line and answers nobody."""
    repository = tmp_path / "models"
    affine().add_to(repository)
    log = tmp_path / "log"
    os.mkfifo(log)  # whose reader goes away, as a disk fills
    arguments = ["serve", str(repository), "--port-base", "0", "-vv", "--json"]
    if broken == "log file":
        arguments += ["--log-file", str(log)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tritonstack", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        if broken == "log file":
            with log.open() as file:
                file.readline()
            threading.Thread(target=process.stderr.read, daemon=True).start()
        else:
            process.stderr.readline()
            process.stderr.close()
        text = ""
        while not text.endswith("\n}\n"):
            line = process.stdout.readline()
            assert line, "serve ended early"
            text += line
        with Client(json.loads(text)["grpc"]) as client:
            for _ in range(100):
                client.infer("affine", {"x": np.ones((1, 3), np.float32)}, timeout_s=10)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert process.returncode in (0, 1)
