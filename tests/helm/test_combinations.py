"""Every supported combination renders with both helms and is valid for every supported Kubernetes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from chart_render import (
    CHART,
    CRDS,
    VERSIONS,
    Manifest,
    assert_valid,
    documents,
    helm,
    render,
    render_text,
    tuned,
    without_secret,
)

CI = sorted((CHART / "ci").glob("*-values.yaml"))

REPOSITORIES: dict[str, dict[str, Any]] = {
    "pvc": {},
    "s3": {"modelRepository": {"type": "s3", "bucket": "b", "region": "r", "version": "v2"}},
    "gcs": {"modelRepository": {"type": "gcs", "bucket": "b", "path": "a/b"}},
    "azure": {"modelRepository": {"type": "azure", "account": "a", "bucket": "b"}},
    "image": {"modelRepository": {"type": "image", "image": "r.example.com/m@sha256:" + "0" * 64}},
    "baked": {"modelRepository": {"type": "baked", "path": "/opt/models"}},
}
GPUS: dict[str, dict[str, Any]] = {
    "whole": {"gpu": {"count": 2}, "rollout": {"spareGpus": 4}},
    "mig": {"gpu": {"sharing": "mig", "migProfile": "3g.40gb"}},
    "mps": {"gpu": {"sharing": "mps", "resourceName": "nvidia.com/gpu.shared"}},
    "dra": {"gpu": {"sharing": "dra"}},
    "none": {"gpu": {"sharing": "none"}},
}
SCALING: dict[str, dict[str, Any]] = {
    "keda": {"engines": {"enabled": True, "cache": {"claimName": "c"}}},
    "hpa": {"autoscaling": {"type": "hpa"}, "gateway": {"enabled": True, "parentRefs": [{"name": "g"}]}},
    "none": {
        "autoscaling": {"type": "none"},
        "metrics": {"podMonitor": "never", "serviceMonitor": "always"},
        "networkPolicy": {"clients": [{"podSelector": {}}], "egress": [{"ports": [{"port": 4317}]}]},
        "affinity": {"podAntiAffinity": {}},
        "nodeSelector": {"pool": "gpu", "spot": True},
        "probes": {"liveness": "grpc"},
        "models": [{"name": "a"}, {"name": "b.c", "pythonInstances": 2}, {"name": "e", "members": ["a", "b.c"]}],
    },
}
COMBINATIONS = [
    (repository, gpu, scaling)
    for repository, gpu, scaling in itertools.product(REPOSITORIES, GPUS, SCALING)
    if (gpu, scaling) != ("none", "keda")  # engines need a GPU
]


def test_there_are_enough() -> None:
    assert len(COMBINATIONS) >= 60


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_combination(combination: tuple[str, str, str]) -> None:
    repository, gpu, scaling = combination
    values = tuned({**REPOSITORIES[repository], **GPUS[gpu], **SCALING[scaling]})
    least = "1.36" if repository == "image" else "1.34" if gpu == "dra" else "1.33"
    # One of both helms each time, all versions of Kubernetes: what they say differs in `kubeVersion` alone.
    index = COMBINATIONS.index(combination)
    manifests = render(values, kubernetes=least, version=3 + index % 2)
    for kubernetes in VERSIONS[VERSIONS.index(least) :]:
        assert_valid(manifests, kubernetes)
    careful(manifests)


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_values_of_ci(path: Path) -> None:
    found = re.search(r"Kubernetes (1\.\d+) and later", path.read_text().splitlines()[0])
    least = found[1] if found else "1.33"
    linted = helm("lint", "--strict", str(CHART), "--values", str(path), "--kube-version", least)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    texts = {version: render_text(files=[path], kubernetes=least, version=version) for version in (3, 4)}
    by_name = {
        version: {(d["kind"], d["metadata"]["name"]): d for d in documents(without_secret(text))}
        for version, text in texts.items()
    }
    assert by_name[3] == by_name[4]
    manifests = documents(texts[4])
    for kubernetes in VERSIONS[VERSIONS.index(least) :]:
        assert_valid(manifests, kubernetes)
    careful(manifests)


def test_the_crds_were_there() -> None:
    if not CRDS.is_dir():
        pytest.skip(f"custom resources were not validated: no CRDs at {CRDS} (TRITONSTACK_CRDS)")
    assert any(CRDS.glob("keda.sh_scaledobjects.yaml"))


def careful(manifests: list[Manifest]) -> None:
    """What kube-linter and kube-score look for, on every pod."""
    names = [(m["apiVersion"], m["kind"], m["metadata"]["name"], m["metadata"].get("namespace")) for m in manifests]
    assert len(names) == len(set(names))
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 63
        for pod in pods(manifest):
            assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
            assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
            assert not pod.get("hostNetwork") and not pod.get("hostPID")
            volumes = {volume["name"] for volume in pod["volumes"]}
            assert not any("hostPath" in volume for volume in pod["volumes"])
            mounted = set()
            for container in pod.get("initContainers", []) + pod["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] and context["runAsNonRoot"]
                assert not context["allowPrivilegeEscalation"] and context["capabilities"] == {"drop": ["ALL"]}
                assert context["seccompProfile"] == {"type": "RuntimeDefault"}
                assert {"cpu", "memory"} <= set(container["resources"]["requests"])
                assert "memory" in container["resources"]["limits"]
                assert re.search(r":[^:@/]+(@sha256:[0-9a-f]{64})?$|@sha256:", container["image"])
                assert not container["image"].endswith(":latest")
                environment = [entry["name"] for entry in container.get("env", [])]
                assert len(environment) == len(set(environment)), "Helm 4 refuses a name twice"
                assert all(isinstance(text, str) for text in container.get("args", []) + container.get("command", []))
                mounted |= {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == volumes, "volumes and mounts do not fit"


def pods(manifest: Manifest) -> list[Manifest]:
    """Specs of the pods that a manifest makes."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Pod":
        return [spec]
    if manifest["kind"] in ("Deployment", "Job"):
        return [spec["template"]["spec"]]
    if manifest["kind"] == "LeaderWorkerSet":
        template = spec["leaderWorkerTemplate"]
        return [template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]]
    return []
