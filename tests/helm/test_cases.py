"""Mistakes that charts make: each value that leads there is refused in a sentence, or what is rendered is right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from chart_render import (
    CHART,
    assert_valid,
    flags_of,
    helm,
    kinds,
    only,
    pod_of,
    refusal,
    render,
    render_text,
    server_of,
    tuned,
)

KEDA = ["keda.sh/v1alpha1/ScaledObject"]


# --- the validation itself ---


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "replica"), 3),
        ("Service", ("spec", "ports", 0, "port"), "8000"),
        ("ScaledObject", ("spec", "maxReplicas"), 4),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "intervall"), "15s"),
    ],
)
def test_the_validator_refuses_what_is_wrong(kind: str, path: tuple[Any, ...], value: Any) -> None:
    manifest = next(m for m in render() if m["kind"] == kind)
    assert_valid([manifest], "1.36")
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    from chart_render import CRDS

    if kind in ("ScaledObject", "PodMonitor") and not CRDS.is_dir():
        pytest.skip("no CRDs")
    with pytest.raises(AssertionError):
        assert_valid([manifest], "1.36")


# --- scaling ---


def test_an_outage_of_prometheus_is_an_error_and_not_zero() -> None:
    scaled = only(render({"autoscaling": {"minReplicas": 1, "maxReplicas": 6}}), "ScaledObject")["spec"]
    assert scaled["fallback"] == {"failureThreshold": 3, "replicas": 6, "behavior": "currentReplicasIfHigher"}
    for trigger in scaled["triggers"]:
        assert trigger["metricType"] == "AverageValue"
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert isinstance(trigger["metadata"]["threshold"], str)


@pytest.mark.parametrize("target", [10, 1000000, 2.5, 1e6, 0.25])
def test_thresholds_are_plain_text(target: float) -> None:
    manifests = render({"models": [{"name": "m", "target": {"concurrency": target}}]})
    threshold = only(manifests, "ScaledObject")["spec"]["triggers"][0]["metadata"]["threshold"]
    assert float(threshold) == target and "e" not in threshold


def test_no_pods_needs_a_front_that_wakes_them() -> None:
    assert "would never wake" in refusal({"autoscaling": {"minReplicas": 0, "maxReplicas": 4}})
    assert "would never wake" in refusal(
        {"autoscaling": {"type": "hpa", "minReplicas": 0}, "metrics": {"rules": "always"}}
    )
    zero = {
        "models": [{"name": "small", "loadSeconds": 5}],
        "autoscaling": {"minReplicas": 0, "scaleToZero": {"enabled": True, "hosts": ["a.example.com"]}},
    }
    manifests = render(zero)
    triggers = only(manifests, "ScaledObject")["spec"]["triggers"]
    assert triggers[-1]["type"] == "external-push"
    front = only(manifests, "HTTPScaledObject")
    assert triggers[-1]["metadata"]["httpScaledObject"] == front["metadata"]["name"]
    # One owner of the replicas.
    assert front["metadata"]["annotations"]["httpscaledobject.keda.sh/skip-scaledobject-creation"] == "true"
    assert "hosts is empty" in refusal(tuned(zero, autoscaling__scaleToZero__hosts=[]))
    slow = tuned(zero, models=[{"name": "small", "loadSeconds": 50}])
    assert "clients give up after 60 s" in refusal(slow)
    assert "needs autoscaling.type keda" in refusal(tuned(zero, autoscaling__type="none"))


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_replicas_are_the_autoscalers(kind: str) -> None:
    manifests = render({"replicaCount": 1, "autoscaling": {"type": kind, "minReplicas": 3, "maxReplicas": 8}})
    assert "replicas" not in only(manifests, "Deployment")["spec"]
    assert only(render({"replicaCount": 5, "autoscaling": {"type": "none"}}), "Deployment")["spec"]["replicas"] == 5
    assert "above autoscaling.maxReplicas" in refusal(
        {"autoscaling": {"type": kind, "minReplicas": 9, "maxReplicas": 8}}
    )


def test_replicas_are_absent_under_multi_node_scaling() -> None:
    manifests = render({"multiNode": {"enabled": True, "workerCommand": ["w"]}})
    group = only(manifests, "LeaderWorkerSet")
    assert "replicas" not in group["spec"]
    assert only(manifests, "ScaledObject")["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    worker = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    selector = only(manifests, "Service", "headless")["spec"]["selector"]
    assert worker["metadata"]["labels"]["app.kubernetes.io/component"] != selector["app.kubernetes.io/component"]


def test_each_model_has_triggers_of_its_own() -> None:
    models = [
        {"name": "a", "instances": 3, "target": {"busy": 0.5, "concurrency": 8}},
        {"name": "b"},
        {"name": "pipe.line", "members": ["a", "b.c"]},
    ]
    triggers = only(render({"models": models, "gpu": {"count": 2}}), "ScaledObject")["spec"]["triggers"]
    found = {trigger["name"]: trigger["metadata"] for trigger in triggers}
    assert list(found) == ["demand-a", "busy-a", "demand-b", "busy-b", "demand-pipe.line"]
    assert found["busy-a"]["threshold"] == "3"  # 0.5 of 3 instances on each of 2 GPUs
    # An ensemble has no backlog; names are no regular expressions.
    assert (
        'pending_request_count{namespace="serving",job="vision",model=~"a|b\\\\.c"}'
        in found["demand-pipe.line"]["query"]
    )


def test_a_window_holds_four_scrapes() -> None:
    assert "four scrapes" in refusal({"autoscaling": {"windowSeconds": 60}, "metrics": {"scrapeSeconds": 30}})
    render({"autoscaling": {"windowSeconds": 120}, "metrics": {"scrapeSeconds": 30}})


def test_scaling_needs_metrics() -> None:
    assert "are never" in refusal({"metrics": {"podMonitor": "never"}})
    assert "twice" in refusal({"metrics": {"serviceMonitor": "always"}})


def test_scale_down_waits_longer_than_a_cold_start() -> None:
    def window(values: dict[str, Any]) -> int:
        scaled = only(render(values), "ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
        return int(scaled["behavior"]["scaleDown"]["stabilizationWindowSeconds"])

    assert window({}) == 300
    assert window({"models": [{"name": "m", "loadSeconds": 900}]}) == 900
    assert window({"models": [{"name": "m", "loadSeconds": 9000}]}) == 3600
    own = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    assert window({"autoscaling": {"behavior": own}}) == 60


# --- stopping ---


def test_the_drain_adds_up() -> None:
    for longest, propagation, age in [(10, 10, 30), (1, 1, 1), (600, 45, 120)]:
        values = {"drain": {"longestRequestSeconds": longest, "endpointPropagationSeconds": propagation}}
        manifests = render(tuned(values, drain__connectionAgeSeconds=age))
        pod, server = pod_of(manifests), server_of(manifests)
        pre, flags = server["lifecycle"]["preStop"]["sleep"]["seconds"], flags_of(server)
        assert pre >= propagation + 1.1 * age
        assert int(flags["exit-timeout-secs"]) > 2 * longest
        assert pod["terminationGracePeriodSeconds"] >= pre + int(flags["exit-timeout-secs"]) + 5
        assert flags["grpc-max-connection-age"] == str(1000 * age)
        assert flags["grpc-max-connection-age-grace"] == str(1000 * longest)


@pytest.mark.parametrize(
    ("drain", "words"),
    [
        ({"exitTimeoutSeconds": 30, "terminationGracePeriodSeconds": 30}, "need 78"),
        ({"terminationGracePeriodSeconds": 72}, "need 73"),
        ({"preStopSeconds": 5}, "at least 43"),
        ({"exitTimeoutSeconds": 10}, "at least 25"),
        ({"longestRequestSeconds": 60, "exitTimeoutSeconds": 65}, "at least 125"),
    ],
)
def test_a_drain_that_does_not_add_up_is_refused(drain: dict[str, int], words: str) -> None:
    assert words in refusal({"drain": drain})


def test_longer_times_by_hand_are_taken() -> None:
    drain = {"preStopSeconds": 60, "exitTimeoutSeconds": 100, "terminationGracePeriodSeconds": 300}
    manifests = render({"drain": drain})
    assert pod_of(manifests)["terminationGracePeriodSeconds"] == 300
    assert flags_of(server_of(manifests))["exit-timeout-secs"] == "100"


# --- probes ---


def test_the_startup_budget_covers_what_was_measured() -> None:
    models = [{"name": "a", "loadSeconds": 100}, {"name": "b", "loadSeconds": 50}]
    manifests = render({"models": models, "engines": {"enabled": True, "buildSeconds": 900}})
    server = server_of(manifests)
    startup = server["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 3 * 150
    deadline = only(manifests, "Deployment")["spec"]["progressDeadlineSeconds"]
    assert deadline >= 2 * 900 + 450 + 600
    assert server["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert all(server[probe]["timeoutSeconds"] > 1 for probe in ("startupProbe", "readinessProbe", "livenessProbe"))


def test_readiness_asks_for_every_model() -> None:
    one = server_of(render())["readinessProbe"]
    assert one["httpGet"]["path"] == "/v2/models/efficientnet_lite0/ready"
    several = server_of(render({"models": [{"name": "a"}, {"name": "b"}]}))["readinessProbe"]
    assert several["exec"]["command"][-2:] == ["a", "b"]


# --- shared memory ---


def shm_of(values: dict[str, Any]) -> dict[str, str]:
    volumes = {volume["name"]: volume for volume in pod_of(render(values))["volumes"]}
    return dict(volumes["shm"]["emptyDir"])


def test_shared_memory_fits_the_python_instances() -> None:
    two = {"models": [{"name": "m", "pythonInstances": 2}], "gpu": {"count": 2}}
    assert shm_of(two) == {"medium": "Memory", "sizeLimit": "320Mi"}
    assert shm_of({}) == {"medium": "Memory", "sizeLimit": "64Mi"}
    assert "at least 256Mi" in refusal(tuned(two, shm={"size": "64Mi"}))
    assert shm_of(tuned(two, shm={"size": "256Mi"}))["sizeLimit"] == "256Mi"
    assert {"name": "shm", "mountPath": "/dev/shm"} in server_of(render())["volumeMounts"]


@pytest.mark.parametrize(("size", "limit"), [("4Gi", "4Gi"), ("5Gi", "4Gi"), ("4Gi", "4G"), ("1Gi", 1000000000)])
def test_shared_memory_counts_against_the_limit(size: str, limit: Any) -> None:
    assert "counts against" in refusal({"shm": {"size": size}, "resources": {"limits": {"memory": limit}}})


# --- volumes ---


@pytest.mark.parametrize("modes", [["ReadWriteOnce"], ["ReadWriteOncePod"]])
def test_a_volume_of_one_node_has_one_pod(modes: list[str]) -> None:
    values = {"modelRepository": {"pvc": {"accessModes": modes}}, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    assert "Multi-Attach" in refusal(values)
    assert "Multi-Attach" in refusal(tuned(values, autoscaling={"type": "none"}, replicaCount=2))
    one = only(render(tuned(values, autoscaling={"type": "none"})), "Deployment")
    assert one["spec"]["strategy"] == {"type": "Recreate"}
    render(tuned(values, modelRepository__pvc__accessModes=["ReadOnlyMany", *modes]))


def test_the_engine_cache_of_one_node_has_one_pod() -> None:
    engines = {"enabled": True, "cache": {"claimName": "c", "accessModes": ["ReadWriteOnce"]}}
    assert "Multi-Attach" in refusal({"engines": engines})
    render({"engines": engines, "autoscaling": {"type": "none"}})
    jobs = tuned(engines, gpuTypes=[{"name": "a", "nodeSelector": {"pool": "a"}}])
    assert "Multi-Attach" in refusal({"engines": jobs, "autoscaling": {"type": "none"}})


# --- GPUs ---


def test_a_slice_is_the_only_gpu_of_its_pod() -> None:
    for gpu in (
        {"sharing": "mig", "migProfile": "1g.10gb"},
        {"sharing": "mig", "resourceName": "nvidia.com/mig-1g.10gb"},
    ):
        server = server_of(render({"gpu": gpu}))
        found = {key: count for key, count in server["resources"]["limits"].items() if key.startswith("nvidia.com/")}
        assert found == {"nvidia.com/mig-1g.10gb": 1}
        assert flags_of(server)["allow-gpu-metrics"] == "false"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpu": {"sharing": "mig", "migProfile": "1g.10gb", "count": 2}}, "one slice to a process"),
        ({"gpu": {"sharing": "mig"}}, "gpu.migProfile is empty"),
        ({"gpu": {"resourceName": "nvidia.com/mig-1g.10gb"}}, "set gpu.sharing to mig"),
        ({"gpu": {"sharing": "mig", "resourceName": "nvidia.com/gpu"}}, "no slice"),
        ({"gpu": {"sharing": "timeSlicing", "count": 2}}, "ask for one"),
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "GPUs are set by gpu.sharing"),
        ({"gpu": {"sharing": "none", "products": ["A100"]}}, "gpu.sharing is none"),
    ],
)
def test_gpus_that_contradict_are_refused(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def test_slices_have_alerts_of_their_own() -> None:
    def alerts(gpu: dict[str, Any]) -> set[str]:
        rule = only(render({"gpu": gpu}), "PrometheusRule")
        return {entry["alert"] for group in rule["spec"]["groups"] for entry in group["rules"] if "alert" in entry}

    assert "TritonSliceSaturated" in alerts({"sharing": "mig", "migProfile": "1g.10gb"})
    assert "TritonGpuMemoryFull" in alerts({}) and "TritonSliceSaturated" not in alerts({})
    assert not {"TritonGpuMemoryFull", "TritonGpusIdle"} & alerts({"sharing": "none"})


def test_every_pod_on_a_gpu_node_tolerates_its_taint() -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    own = {"key": "spot", "operator": "Exists"}
    values = {
        "tolerations": [own],
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "engines": {
            "enabled": True,
            "cache": {"claimName": "c"},
            "gpuTypes": [{"name": "h200", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}}],
        },
    }
    manifests = render(values)
    job = only(manifests, "Job")["spec"]["template"]["spec"]
    for pod in (pod_of(manifests), job, only(manifests, "Pod")["spec"]):
        assert pod["tolerations"] == [taint, own]
    assert job["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.present": "true"}
    assert pod_of(render({"tolerations": []}))["tolerations"] == [taint]
    assert "tolerations" not in pod_of(render({"gpu": {"sharing": "none"}}))


def test_a_runtime_class_only_where_given() -> None:
    assert "runtimeClassName" not in pod_of(render())
    assert pod_of(render({"gpu": {"runtimeClassName": "nvidia"}}))["runtimeClassName"] == "nvidia"


def terms(values: dict[str, Any]) -> list[dict[str, Any]]:
    node = pod_of(render(values))["affinity"]["nodeAffinity"]
    return list(node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"])


def test_the_gate_asks_for_a_driver_that_runs_the_image() -> None:
    for tag, driver in {"25.06-py3": "524", "25.08-py3": "579", "26.07-py3": "579"}.items():
        for term in terms({"image": {"tag": tag}}):
            asked = {entry["key"]: entry for entry in term["matchExpressions"]}
            assert asked["nvidia.com/cuda.driver-version.major"]["values"] == [driver]
    assert "does not know the image tag" in refusal({"image": {"tag": "27.01-py3"}})
    assert terms({"image": {"tag": "27.01-py3"}, "gpu": {"compatibility": {"minDriver": 610}}})
    assert "affinity" not in pod_of(render({"image": {"tag": 20261130}, "gpu": {"compatibility": {"enabled": False}}}))


def test_the_gate_is_joined_with_the_users_terms() -> None:
    own = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}
    found = terms({"affinity": {"nodeAffinity": node}, "gpu": {"products": ["NVIDIA-L40S"]}})
    assert len(found) == 4  # each of theirs with each of ours
    for term in found:
        keys = {entry["key"] for entry in term["matchExpressions"]}
        assert {"zone", "nvidia.com/gpu.product", "nvidia.com/cuda.driver-version.major"} <= keys


@pytest.mark.parametrize(
    ("values", "kubernetes", "words"),
    [
        ({"gpu": {"sharing": "dra"}}, "1.33", "needs Kubernetes 1.34"),
        ({"modelRepository": {"type": "image", "image": "r/m:1"}}, "1.35", "needs Kubernetes 1.36"),
    ],
)
def test_what_an_old_cluster_lacks_is_refused(values: dict[str, Any], kubernetes: str, words: str) -> None:
    assert words in refusal(values, kubernetes=kubernetes)


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
        manifests = [document for document in yaml.safe_load_all(text) if document]
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
