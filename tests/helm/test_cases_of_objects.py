"""Mistakes that charts make: each value that leads there is refused in a sentence, or what is rendered is right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from chart_render import (
    CHART,
    documents,
    flags_of,
    helm,
    kinds,
    only,
    refusal,
    render,
    render_text,
    server_of,
)

# --- numbers and text ---


def test_numbers_stay_numbers() -> None:
    values = """
    server:
      pinnedMemoryPoolBytes: 268435456
      cudaMemoryPoolBytes: 10000000000
      responseCacheBytes: 1000000
      env: {OMP_NUM_THREADS: 4, FLAG: yes, BIG: 100000000, RATIO: 0.5}
    image: {tag: 20261130}
    gpu: {compatibility: {minDriver: 580}}
    podAnnotations: {ticket: 356136738, enabled: true}
    """
    for version in (3, 4):
        text = render_text(values, version=version)
        assert not re.search(r"\d[eE]\+\d", text)
        manifests = documents(text)
        server = server_of(manifests)
        flags = flags_of(server)
        assert flags["pinned-memory-pool-byte-size"] == "268435456"
        assert flags["cuda-memory-pool-byte-size"] == "0:10000000000"
        assert flags["cache-config"] == "local,size=1000000"
        assert server["image"].endswith(":20261130")
        environment = {entry["name"]: entry.get("value") for entry in server["env"]}
        assert (environment["OMP_NUM_THREADS"], environment["FLAG"]) == ("4", "true")
        assert (environment["BIG"], environment["RATIO"]) == ("100000000", "0.5")
        annotations = only(manifests, "Deployment")["spec"]["template"]["metadata"]["annotations"]
        assert annotations["ticket"] == "356136738" and annotations["enabled"] == "true"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("autoscaling: {maxReplicas: '4'}", "maxReplicas"),
        ("autoscaling: {maxReplicas: 0}", "maxReplicas"),
        ("image: {tag: latest}", "tag"),
        ("image: {tag: ''}", "tag"),
        ("image: {digest: abc}", "digest"),
        ("autoscalling: {}", "autoscalling"),
        ("autoscaling: {metric: nv_gpu_memory_used_bytes}", "metric"),
        ("models: []", "models"),
        ("models: [{name: '../x'}]", "name"),
        ("probes: {timeoutSeconds: 1}", "timeoutSeconds"),
        ("gpu: {sharing: half}", "sharing"),
        ("server: {extraArgs: '--a=1'}", "extraArgs"),
    ],
)
def test_the_schema_refuses(values: str, words: str) -> None:
    assert words in refusal(values)


# --- the server ---


def test_poll_mode_is_refused_unless_asked_for() -> None:
    assert "half-copied" in refusal({"server": {"modelControlMode": "poll"}})
    server = server_of(render({"server": {"modelControlMode": "poll", "allowPoll": True}}))
    assert flags_of(server)["model-control-mode"] == "poll"
    explicit = server_of(render({"server": {"modelControlMode": "explicit"}, "models": [{"name": "a"}, {"name": "b"}]}))
    assert [a for a in explicit["args"] if a.startswith("--load-model")] == ["--load-model=a", "--load-model=b"]


def test_flags_of_the_chart_are_not_given_twice() -> None:
    for flag in (
        "--exit-timeout-secs=1",
        "--http-port=80",
        "--model-control-mode=poll",
        "--grpc-restricted-protocol=a:b=c",
    ):
        assert "which the chart sets" in refusal({"server": {"extraArgs": [flag]}})
    extra = ["--backend-config=tensorrt,version-compatible=true", "--rate-limit=execution_count"]
    assert server_of(render({"server": {"extraArgs": extra}}))["args"][-2:] == extra
    assert "set already" in refusal({"server": {"env": {"A": 1}, "extraEnv": [{"name": "A", "value": "2"}]}})


def test_the_control_apis_are_closed() -> None:
    manifests = render()
    flags = flags_of(server_of(manifests))
    for flag in ("http-restricted-api", "grpc-restricted-protocol"):
        assert flags[flag].startswith("model-repository,shared-memory,trace,logging:")
        assert flags[flag].endswith("=$(TRITONSTACK_CONTROL_SECRET)")
    assert len(only(manifests, "Secret")["data"]["secret"]) > 40
    given = render({"control": {"existingSecret": "own", "open": ["shared-memory"]}})
    assert "Secret" not in kinds(given)
    assert flags_of(server_of(given))["http-restricted-api"].startswith("model-repository,trace,logging:")
    everything = {"control": {"open": ["model-repository", "shared-memory", "trace", "logging"]}}
    assert "http-restricted-api" not in flags_of(server_of(render(everything)))
    assert "Secret" not in kinds(render(everything))


def test_another_version_of_the_repository_rolls_the_pods() -> None:
    def template(version: Any) -> str:
        return json.dumps(only(render({"modelRepository": {"version": version}}), "Deployment")["spec"]["template"])

    assert template("v1") == template("v1") != template("v2")
    assert "version is empty" in refusal({"modelRepository": {"version": ""}})
    assert ". or .." in refusal({"modelRepository": {"path": "a/../b"}})


def test_the_rollout_does_not_wait_for_a_gpu_that_is_not_there() -> None:
    def strategy(values: dict[str, Any]) -> dict[str, Any]:
        return dict(only(render(values), "Deployment")["spec"]["strategy"]["rollingUpdate"])

    assert strategy({}) == {"maxSurge": 0, "maxUnavailable": 1}
    assert strategy({"rollout": {"spareGpus": 3}, "gpu": {"count": 2}}) == {"maxSurge": 1, "maxUnavailable": 0}
    assert strategy({"rollout": {"spareGpus": 1}, "gpu": {"count": 2}}) == {"maxSurge": 0, "maxUnavailable": 1}
    assert strategy({"gpu": {"sharing": "none"}}) == {"maxSurge": 1, "maxUnavailable": 0}


# --- monitoring and network ---


def test_the_service_monitor_finds_the_service() -> None:
    labels = {"release": "kube-prometheus-stack"}
    manifests = render(
        {"metrics": {"podMonitor": "never", "serviceMonitor": "always", "labels": labels, "namespace": "monitoring"}}
    )
    monitor, service = only(manifests, "ServiceMonitor"), only(manifests, "Service", "vision-tritonstack")
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert set(labels.items()) < set(monitor["metadata"]["labels"].items())
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["serving"]}
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    chosen = [
        found["metadata"]["name"]
        for found in manifests
        if found["kind"] == "Service"
        and set(monitor["spec"]["selector"]["matchLabels"].items()) <= set(found["metadata"]["labels"].items())
    ]
    assert chosen == [service["metadata"]["name"]]  # one only, or pods would count twice


def test_monitors_only_where_the_crd_is() -> None:
    assert not {"PodMonitor", "PrometheusRule"} & kinds(render(apis=[]))
    assert {"PodMonitor", "PrometheusRule"} <= kinds(render())
    assert "PodMonitor" in kinds(render({"metrics": {"podMonitor": "always"}}, apis=[]))


def test_selectors_hold_nothing_that_values_change() -> None:
    values = {"nameOverride": "other", "fullnameOverride": "x", "podLabels": {"a": "b"}, "image": {"tag": "26.06-py3"}}
    first, second = only(render(), "Deployment"), only(render(values), "Deployment")
    assert first["spec"]["selector"] == second["spec"]["selector"]
    labels = second["spec"]["template"]["metadata"]["labels"]
    assert set(second["spec"]["selector"]["matchLabels"].items()) <= set(labels.items())


def test_metrics_are_open_to_prometheus_alone() -> None:
    policy = only(render(), "NetworkPolicy")["spec"]
    rules = [rule for rule in policy["ingress"] if {"port": 8002, "protocol": "TCP"} in rule["ports"]]
    assert len(rules) == 1 and rules[0]["from"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not any(port["port"] == 443 for rule in policy["egress"] for port in rule.get("ports", []))


def test_routes_lead_to_ports_of_the_service() -> None:
    manifests = render({"gateway": {"enabled": True, "parentRefs": [{"name": "g"}], "hostnames": ["a.example.com"]}})
    service = only(manifests, "Service", "vision-tritonstack")
    ports = {port["port"]: port for port in service["spec"]["ports"]}
    grpc = only(manifests, "GRPCRoute")["spec"]["rules"][0]
    assert ports[grpc["backendRefs"][0]["port"]]["appProtocol"] == "kubernetes.io/h2c"
    assert {match["method"]["service"] for match in grpc["matches"]} >= {"inference.GRPCInferenceService"}
    assert "parentRefs" in refusal({"gateway": {"enabled": True}})


def test_notes_say_what_comes_next() -> None:
    done = helm("install", "vision", str(CHART), "--dry-run=client", "--namespace", "serving", "--kube-version", "1.36")
    if done.returncode != 0 and "kube-version" in done.stderr:
        done = helm("install", "vision", str(CHART), "--dry-run=client", "--namespace", "serving")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:", 1)[1]
    for line in (
        "helm -n serving test vision --logs",
        "rollout status deployment/vision-tritonstack",
        "dns:///vision-tritonstack-headless.serving.svc:8001",
        "Insufficient nvidia.com/gpu",
        "a rollout stops serving",
    ):
        assert line in notes
