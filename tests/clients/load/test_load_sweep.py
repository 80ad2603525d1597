"""Sweeps: their grammar, what they make of a configuration, and the real server before, meanwhile and after."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from load_models import make_repository
from load_report_samples import level

from tritonstack.client.endpoint import parse_endpoint
from tritonstack.errors import InputError, InternalError, ServerError, SetupError, UsageError
from tritonstack.load.curve import pareto_set
from tritonstack.load.findings import saved_level
from tritonstack.load.model_control import model_control
from tritonstack.load.saved_report import SavedLevel
from tritonstack.load.sweep import run_sweep
from tritonstack.load.sweep_space import Setting, changed_config, parse_space, settings_of
from tritonstack_deploy.embedded import EmbeddedServer


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("concurrency=1:64:x2", {"concurrency": (1, 2, 4, 8, 16, 32, 64)}),
        ("concurrency=1:4", {"concurrency": (1, 2, 3, 4)}),
        ("concurrency=1:9:+4,16", {"concurrency": (1, 5, 9, 16)}),
        ("rate=0.5:2:x2", {"rate": (0.5, 1, 2)}),
        (
            "instance_count=1,2, max_queue_delay_us=0,500,batch=4",
            {"instance_count": (1, 2), "max_queue_delay_us": (0, 500), "batch": (4,)},
        ),
        ("max_batch_size=8,8", {"max_batch_size": (8,)}),
    ],
)
def test_space(text: str, space: dict[str, tuple[float, ...]]) -> None:
    assert parse_space(text) == space


@pytest.mark.parametrize(
    "text",
    [
        "", "1,2", "concurrency", "concurrency=", "concurrency=0", "concurrency=1.5", "concurrency=x", "rate=0",
        "concurrency=4:1", "concurrency=1:4:*2", "concurrency=1:4:x", "concurrency=1:4:x1", "concurrency=1:4:+0",
        "concurrency=1:4:x2:3", "concurrency=1,concurrency=2", "concurrency=1,rate=2", "color=1",
        "concurrency=1:100000:+1", "rate=nan", "instance_count=1:200,max_queue_delay_us=1:200", "rate=1:inf:x2",
        "rate=0:8:x2",
    ],
)  # fmt: skip
def test_bad_spaces_name_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--sweep"):
        parse_space(text)


def test_all_loads_of_one_configuration_follow_each_other() -> None:
    settings = settings_of(parse_space("concurrency=1,2,instance_count=1,2"))
    assert [setting.label for setting in settings] == [
        f"instance_count {i}, concurrency {c}" for i in (1, 2) for c in (1, 2)
    ]


def test_changed_configurations() -> None:
    config: dict[str, Any] = {
        "max_batch_size": 8,
        "instance_group": [{"name": "a", "kind": "KIND_CPU", "count": 1}],
        "dynamic_batching": {"preferred_batch_size": [8], "preserve_ordering": True},
    }
    before = json.dumps(config)
    changed = changed_config(config, {"instance_count": 3, "max_queue_delay_us": 500, "max_batch_size": 4})
    assert json.dumps(config) == before
    assert changed["instance_group"] == [{"name": "a", "kind": "KIND_CPU", "count": 3}]
    assert changed["max_batch_size"] == 4
    assert changed["dynamic_batching"] == {
        "preferred_batch_size": [4], "preserve_ordering": True, "max_queue_delay_microseconds": 500,
    }  # fmt: skip
    assert changed_config({"max_batch_size": 8}, {"preferred_batch_size": 8})["dynamic_batching"] == {
        "preferred_batch_size": [8]
    }
    assert "dynamic_batching" not in changed_config({"max_batch_size": 8}, {"max_batch_size": 4})
    assert changed_config(config, {"max_batch_size": 0})["dynamic_batching"]["preferred_batch_size"] == []


def test_pareto_set() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 5.0), (4.0, 1.0), (4.0, 1.0)]
    assert pareto_set(points, lambda p: p) == [(1.0, 9.0), (2.0, 5.0), (4.0, 1.0)]


class Control:
    """Keeps the configuration that was loaded last; `refuse` tells which it does not take."""

    def __init__(self, refuse: Callable[[Mapping[str, Any]], bool] = lambda config: False) -> None:
        self.original = {"name": "m", "max_batch_size": 8, "instance_group": [{"count": 1}]}
        self.now: dict[str, Any] = dict(self.original)
        self.loads: list[dict[str, Any]] = []
        self.refuse = refuse

    def config(self, model: str) -> dict[str, Any]:
        return dict(self.now)

    def load(self, model: str, config: Mapping[str, Any]) -> None:
        if self.refuse(config):
            raise ServerError("the server refused: no", code="HTTP 500")
        self.loads.append(dict(config))
        self.now = dict(config)


def sweep(control: Control, measure: Callable[[Setting], SavedLevel], space: str, **options: Any) -> Any:
    clock = iter(float(i) for i in range(10_000))
    defaults: dict[str, Any] = {"budget_s": 1000.0, "clock": lambda: next(clock)}
    return run_sweep(parse_space(space), model="m", control=control, measure=measure, **{**defaults, **options})


def measured(setting: Setting) -> SavedLevel:
    values = dict((*setting.server, *setting.client))
    count, instances = values.get("concurrency", 1), values.get("instance_count", 1)
    return saved_level(level(seconds=2, per_second=50 * min(count, instances), median_ms=5 * max(count / instances, 1)))


def test_best_settings_and_restored_configuration() -> None:
    control = Control()
    found = sweep(control, measured, "instance_count=1,2,concurrency=1,2")
    assert [point.setting.label for point in found.points if point.best] == ["instance_count 2, concurrency 2"] or [
        point.best for point in found.points
    ][-1]
    assert control.now == control.original
    assert len(control.loads) == 1 + 2 + 1, "tried first, each configuration once, put back"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_whatever_ends_it_the_configuration_is_put_back(failure: type[BaseException]) -> None:
    control = Control()

    def measure(setting: Setting) -> SavedLevel:
        assert control.now["instance_group"] == [{"count": 2}]
        raise failure

    with pytest.raises(failure):
        sweep(control, measure, "instance_count=2,3,concurrency=1")
    assert control.now == control.original


def test_a_refused_configuration_is_passed_over() -> None:
    control = Control(refuse=lambda config: config["instance_group"][0]["count"] == 2)
    found = sweep(control, measured, "instance_count=1,2,3,concurrency=1,2")
    refused = [point for point in found.points if point.point is None]
    assert [dict(point.setting.server)["instance_count"] for point in refused] == [2, 2]
    assert "refused" in refused[0].problem and not any(point.best for point in refused)
    assert len(found.points) == 6 and control.now == control.original


def test_a_server_that_does_not_take_the_original_back_is_told() -> None:
    control = Control()
    control.refuse = lambda config: config == control.original and len(control.loads) > 1
    with pytest.raises(InternalError, match="put back"):
        sweep(control, measured, "instance_count=2,concurrency=1")


def test_the_budget_is_kept() -> None:
    found = sweep(Control(), measured, "instance_count=1,2,3,concurrency=1,2", budget_s=3.0)
    assert 0 < len(found.points) < 6
    assert len(found.points) + len(found.skipped) == 6
    assert "budget" in found.notes[0]


def test_ensembles_have_no_instances() -> None:
    control = Control()
    control.now = {"name": "m", "platform": "ensemble", "ensemble_scheduling": {"step": []}}
    with pytest.raises(InputError, match="ensemble"):
        sweep(control, measured, "instance_count=2,concurrency=1")
    assert control.loads == []
    assert len(sweep(control, measured, "concurrency=1,2").points) == 2


@pytest.fixture(scope="module")
def open_server(
    tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., EmbeddedServer]
) -> EmbeddedServer:
    repository = make_repository(tmp_path_factory.mktemp("sweep"), names=("sleepy", "plus_one"))
    return start_server(repository, allow=("model-repository",))


def sweep_command(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tritonstack", "load", "sleepy", "--url", url, "--warmup", "0.2", *arguments]


def served(server: EmbeddedServer) -> dict[str, Any]:
    with model_control(parse_endpoint(server.http_url)) as control:
        return control.config("sleepy")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_on_the_real_server(open_server: EmbeddedServer, tmp_path: Path, protocol: str) -> None:
    before = served(open_server)
    url = open_server.grpc_url if protocol == "grpc" else open_server.http_url
    out = tmp_path / "sweep.json"
    space = "instance_count=1,2,concurrency=1,4"
    command = sweep_command(url, "--metrics-url", open_server.metrics_url, "--sweep", space, "--duration", "0.8")
    done = subprocess.run([*command, "--output", str(out)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    points = {point["label"]: point for point in json.loads(out.read_text())["sweep"]["points"]}
    one, two = (points[f"instance_count {count}, concurrency 4"]["point"]["throughput_per_s"] for count in (1, 2))
    assert two > 1.5 * one, "two instances answer twice as much"
    assert points["instance_count 2, concurrency 4"]["best"]
    assert not points["instance_count 1, concurrency 4"]["best"]
    assert "* beaten by none" in " ".join(done.stdout.split("\n"))
    assert served(open_server) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_on_the_real_server(open_server: EmbeddedServer, number: signal.Signals) -> None:
    before = served(open_server)
    command = sweep_command(open_server.grpc_url, "--sweep", "instance_count=2,3,concurrency=2", "--duration", "20")
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 20
    while served(open_server)["instance_group"][0]["count"] != 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert served(open_server) == before


def test_a_refused_configuration_on_the_real_server(open_server: EmbeddedServer) -> None:
    before = served(open_server)
    space = "preferred_batch_size=64,concurrency=1"
    command = sweep_command(open_server.http_url, "--sweep", space, "--duration", "0.5", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stdout
    assert "refused" in done.stderr
    assert served(open_server) == before


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_closed_model_control_is_said(load_server: EmbeddedServer, protocol: str) -> None:
    url = load_server.grpc_url if protocol == "grpc" else load_server.http_url
    command = sweep_command(url, "--sweep", "instance_count=1,2,concurrency=1", "--quiet")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "does not let clients load models" in done.stderr and "--model-control-mode=explicit" in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    endpoint = parse_endpoint(url)
    with model_control(endpoint) as control, pytest.raises(SetupError):
        control.load("sleepy", control.config("sleepy"))


def test_sweeping_the_load_alone_needs_no_model_control(load_server: EmbeddedServer) -> None:
    command = sweep_command(load_server.grpc_url, "--sweep", "concurrency=1,2,batch=1,4", "--duration", "0.5", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [point["setting"] for point in report["sweep"]["points"]] == [
        {"concurrency": c, "batch": b} for c in (1, 2) for b in (1, 4)
    ]
