"""The chart against the real server: metrics it reads, flags it sets, the readiness command, the test pod's script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_render import CHART, flags_of, only, render, rule_groups, server_of

from tritonstack_deploy.embedded import EmbeddedServer
from tritonstack_deploy.embedded.installation import find_installation

ELSEWHERE = {
    "up": "Prometheus",
    "container_memory_working_set_bytes": "cAdvisor, in the kubelet",
    "kube_deployment_spec_replicas": "kube-state-metrics",
    "kube_pod_init_container_status_restarts_total": "kube-state-metrics",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "dcgm-exporter, default-counters.csv",
    "nv_gpu_utilization": "Triton with a GPU, server/src/metrics.cc",
    "nv_gpu_memory_used_bytes": "Triton with a GPU, server/src/metrics.cc",
    "nv_gpu_memory_total_bytes": "Triton with a GPU, server/src/metrics.cc",
    "nv_model_load_duration_secs": "Triton later than the embedded 2.51",
}
"""Metrics that the embedded CPU server does not export, and who does."""

METRIC = re.compile(r"\b(nv_\w+|up|kube_\w+|container_\w+|DCGM_\w+|tritonstack:[\w:]+)(?=[{\[])")
EVERYTHING: list[dict[str, Any]] = [
    {"engines": {"enabled": True}},
    {"gpu": {"sharing": "mig", "migProfile": "1g.10gb"}},
    {
        "models": [{"name": "m", "loadSeconds": 5}, {"name": "e", "members": ["m"], "loadSeconds": 1}],
        "autoscaling": {"minReplicas": 0, "scaleToZero": {"enabled": True, "hosts": ["a"]}},
    },
]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "clients"))
    from client_models import write_repository

    repository = tmp_path_factory.mktemp("chart") / "models"
    write_repository(repository)
    with EmbeddedServer(repository, models={name: repository / name for name in ("addone", "slow")}) as running:
        yield running


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 (loopback)
        return str(answer.read().decode())


def expressions() -> dict[str, str]:
    """Every PromQL expression of the chart by where it stands."""
    found: dict[str, str] = {}
    for values in EVERYTHING:
        manifests = render({"metrics": {"rules": "always"}, **values})
        for trigger in only(manifests, "ScaledObject")["spec"]["triggers"]:
            if "query" in trigger["metadata"]:
                found[f"trigger {trigger['name']}"] = trigger["metadata"]["query"]
        for group in rule_groups(manifests):
            for rule in group["rules"]:
                found[f"rule {rule.get('alert') or rule['record']}"] = rule["expr"]
    for path in (CHART / "files" / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
    return found


def test_every_metric_is_exported_by_the_server_or_has_its_source(embedded: EmbeddedServer) -> None:
    exported = set(re.findall(r"^# TYPE (\S+)", get(f"http://{embedded.host}:{embedded.ports.metrics}/metrics"), re.M))
    used = {name: METRIC.findall(expression) for name, expression in expressions().items()}
    recorded = {name.removeprefix("rule ") for name in used if name.startswith("rule tritonstack:")}
    assert all(used.values()), [name for name, metrics in used.items() if not metrics]
    missing = {
        (name, metric)
        for name, metrics in used.items()
        for metric in metrics
        if metric not in exported | recorded | set(ELSEWHERE)
    }
    assert not missing
    assert not exported & set(ELSEWHERE), "these have no need of an entry"
    assert set(ELSEWHERE) <= {metric for metrics in used.values() for metric in metrics}


def test_what_scales_exists_before_the_first_request(embedded: EmbeddedServer) -> None:
    """A model's series are there from its load on, at 0: idle is 0 and not silence."""
    text = get(f"http://{embedded.host}:{embedded.ports.metrics}/metrics")
    needed = set(METRIC.findall(expressions()["trigger demand-m"] + expressions()["trigger busy-m"]))
    for metric in needed - set(ELSEWHERE):
        lines = [line for line in text.splitlines() if line.startswith(f"{metric}{{") and 'model="slow"' in line]
        assert lines, metric
        if metric == "nv_inference_request_failure":
            assert any('reason="REJECTED"' in line for line in lines)


def test_the_server_knows_every_flag() -> None:
    installation = find_installation()
    import os

    libraries = os.pathsep.join(map(str, installation.library_path))
    done = subprocess.run(
        [str(installation.server), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"LD_LIBRARY_PATH": libraries},
    )
    known = set(re.findall(r"--([a-z0-9-]+)", done.stdout + done.stderr))
    values = {
        "server": {"tracing": {"endpoint": "http://o:4318/v1/traces"}, "responseCacheBytes": 1000000},
        "models": [{"name": "a"}],
    }
    for mode in ("none", "explicit"):
        container = server_of(render({**values, "server": {**values["server"], "modelControlMode": mode}}))
        assert set(flags_of(container)) <= known


def test_the_server_starts_with_the_charts_flags(tmp_path: Path) -> None:
    """All but addresses, folders and the GPU's, on the real server; its control APIs are closed then."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "clients"))
    from client_models import write_repository

    models = tmp_path / "models"
    write_repository(models)
    flags = flags_of(server_of(render({"models": [{"name": "addone"}]})))
    kept = [
        f"--{name}={value}"
        for name, value in flags.items()
        if name in ("grpc-max-connection-age", "grpc-max-connection-age-grace", "pinned-memory-pool-byte-size")
    ]
    kept += ["--strict-readiness=true", "--metrics-config=counter_latencies=true"]
    with EmbeddedServer(models, models={"addone": models / "addone"}, extra_arguments=kept) as running:
        assert get(f"{running.http_url}/v2/models/addone/ready") == ""


def test_the_readiness_command_tells_loaded_from_absent(embedded: EmbeddedServer) -> None:
    def probe(*models: str) -> int:
        entries = [{"name": name} for name in models]
        command = list(server_of(render({"models": entries}))["readinessProbe"]["exec"]["command"])
        command[0] = sys.executable
        command[2] = command[2].replace(":8000", f":{embedded.ports.http}")
        return subprocess.run(command, capture_output=True, timeout=60).returncode

    assert probe("addone", "slow") == 0
    assert probe("addone", "absent") != 0


def test_the_test_pod_infers_over_both_protocols(embedded: EmbeddedServer, tmp_path: Path) -> None:
    manifests = render(
        {"models": [{"name": "addone"}, {"name": "slow"}], "test": {"metric": False, "timeoutSeconds": 20}}
    )
    config = only(manifests, "ConfigMap", "-test")["data"]
    plan = json.loads(config["plan.json"])
    assert plan["host"] == only(manifests, "Service", "vision-tritonstack")["metadata"]["name"]
    assert len(plan["triggers"]) == 4 and plan["prometheus"] == ""
    (tmp_path / "infer.py").write_text(config["infer.py"])
    plan |= {"host": embedded.host, "http": embedded.ports.http, "grpc": embedded.ports.grpc}

    def run(**changes: Any) -> subprocess.CompletedProcess[str]:
        (tmp_path / "plan.json").write_text(json.dumps({**plan, **changes}))
        command = [sys.executable, str(tmp_path / "infer.py"), str(tmp_path / "plan.json")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = run()
    assert done.returncode == 0, done.stderr
    assert "addone over gRPC: y" in done.stdout and "slow over HTTP: y" in done.stdout
    absent = run(models=["absent"], timeout_s=1)
    assert absent.returncode == 1 and "absent" in absent.stderr
    deaf = run(prometheus="http://127.0.0.1:9", timeout_s=1)
    assert deaf.returncode == 1 and "demand of addone" in deaf.stderr


def test_the_image_table_is_complete() -> None:
    table = yaml.safe_load((CHART / "files" / "compatibility.yaml").read_text())
    for release, row in table.items():
        assert re.fullmatch(r"\d\d\.\d\d", release)
        assert set(row) == {"triton", "cuda", "driver", "minDriver", "minCompute", "tensorrt"}
        assert row["minDriver"] == {"12": 525, "13": 580}[row["cuda"].split(".")[0]]
        assert int(row["driver"].split(".")[0]) >= row["minDriver"]
