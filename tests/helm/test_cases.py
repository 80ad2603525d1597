"""Mistakes that charts make: each value that leads there is refused in a sentence, or what is rendered is right."""

from __future__ import annotations

from typing import Any

import pytest
from chart_render import (
    assert_valid,
    flags_of,
    only,
    pod_of,
    refusal,
    render,
    server_of,
    tuned,
)

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
