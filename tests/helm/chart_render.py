"""Rendering the chart with helm 4 and 3, and validating what came out against Kubernetes' and the CRDs' schemas."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "tritonstack"
TOOLS = ROOT / ".cache" / "kubernetes"
SCHEMAS = TOOLS / "kubernetes_validate" / "kubernetes-json-schema"
CRDS = Path(os.environ.get("TRITONSTACK_CRDS") or ROOT.parent / "shared" / "crds")
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
MONITORING = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"))

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Path of a tool of `make chart-tools`; skips the test where it is absent."""
    path = TOOLS / "bin" / name
    if not path.exists():
        pytest.skip(f"no {name}: run `make chart-tools`")
    return str(path)


def helm(
    *arguments: str, values: Mapping[str, Any] | str | None = None, version: int = 4
) -> subprocess.CompletedProcess[str]:
    """Run helm; `values` (a map, or the text of a file) go in on stdin as `--values -`."""
    text = values if isinstance(values, str) or values is None else yaml.safe_dump(values)
    extra = [] if text is None else ["--values", "-"]
    return subprocess.run(
        [tool(f"helm{version}"), *arguments, *extra], input=text, capture_output=True, text=True, timeout=60
    )


def render_text(
    values: Mapping[str, Any] | str | None = None,
    *,
    kubernetes: str = "1.36",
    version: int = 4,
    apis: Sequence[str] = MONITORING,
    files: Sequence[Path] = (),
    release: str = "vision",
    namespace: str = "serving",
) -> str:
    """The manifests as text; fails the test with helm's own words."""
    done = helm(
        "template",
        release,
        str(CHART),
        "--namespace",
        namespace,
        "--kube-version",
        kubernetes,
        *(flag for api in apis for flag in ("--api-versions", api)),
        *(flag for file in files for flag in ("--values", str(file))),
        values=values,
        version=version,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[Manifest]:
    """The manifests in a text."""
    return [document for document in yaml.safe_load_all(text) if document]


def render(values: Mapping[str, Any] | str | None = None, **options: Any) -> list[Manifest]:
    """The manifests as documents."""
    return documents(render_text(values, **options))


def without_secret(text: str) -> str:
    """Manifests without the secret that helm draws anew each time."""
    return re.sub(r"^(  secret: ).*$", r"\1(generated)", text, flags=re.MULTILINE)


def rule_groups(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """The groups of rules."""
    groups: list[dict[str, Any]] = only(manifests, "PrometheusRule")["spec"]["groups"]
    return groups


def refusal(values: Mapping[str, Any] | str, *, kubernetes: str = "1.36") -> str:
    """What helm says where it refuses to render; fails the test where it does not."""
    done = helm("template", "vision", str(CHART), "--namespace", "serving", "--kube-version", kubernetes, values=values)
    assert done.returncode != 0, "this should have been refused"
    return done.stderr


def only(manifests: Sequence[Manifest], kind: str, suffix: str = "") -> Manifest:
    """The one manifest of a kind (whose name ends so)."""
    found = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [(m["kind"], m["metadata"]["name"]) for m in manifests]
    return found[0]


def kinds(manifests: Sequence[Manifest]) -> set[str]:
    return {manifest["kind"] for manifest in manifests}


def pod_of(manifests: Sequence[Manifest]) -> Manifest:
    """Spec of the server's pod."""
    return only(manifests, "Deployment")["spec"]["template"]["spec"]


def server_of(manifests: Sequence[Manifest]) -> Manifest:
    return pod_of(manifests)["containers"][0]


def flags_of(container: Manifest) -> dict[str, str]:
    """Flags by name; of a repeated flag the last."""
    return dict(argument.lstrip("-").partition("=")[::2] for argument in container["args"])


def tuned(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """`base` with `changes` merged in, maps key by key. "a__b" names the key b below a."""
    result = json.loads(json.dumps(base))
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = value
    return result


@functools.cache
def _definitions(version: str) -> Any:
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    folder = SCHEMAS / f"v{version}.0-local-strict"
    if not folder.is_dir():
        pytest.skip("no schemas of Kubernetes: run `make chart-tools`")
    document = json.loads((folder / "_definitions.json").read_text())
    return Registry().with_resource("/api/_definitions.json", Resource.from_contents(document, DRAFT202012))


@functools.cache
def _validator(api_version: str, kind: str, kubernetes: str) -> Any:
    from jsonschema import Draft4Validator, Draft202012Validator

    crd = _crd(api_version, kind)
    if crd is not None:
        return Draft4Validator(crd)
    registry = _definitions(kubernetes)
    group, _, version = api_version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.split(".")[0], version)))
    path = SCHEMAS / f"v{kubernetes}.0-local-strict" / f"{name}.json"
    if not path.exists():
        return None
    return Draft202012Validator(json.loads(path.read_text()), registry=registry)


@functools.cache
def _crd(api_version: str, kind: str) -> Any:
    if not CRDS.is_dir():
        return None
    for path in CRDS.glob("*.yaml"):
        group, version = api_version.rsplit("/", 1) if "/" in api_version else ("", api_version)
        if not group or not path.name.startswith(f"{group}_"):
            continue
        document = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (safe, and in C)
        if document["spec"]["names"]["kind"] == kind:
            for entry in document["spec"]["versions"]:
                if entry["name"] == version:
                    schema = _closed(entry["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {"type": "object"}
                    return schema
    return None


def _closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server does where it is asked to be strict."""
    if isinstance(schema, list):
        return [_closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = {
        key: ({name: _closed(value) for name, value in part.items()} if key == "properties" else _closed(part))
        for key, part in schema.items()
        if key not in {"default", "description", "format", "nullable"}
    }
    free = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and "properties" in schema and not free:
        result["additionalProperties"] = False
    return result


FOREIGN = {"LeaderWorkerSet", "HTTPScaledObject"}
"""Kinds whose schemas nothing here has."""

_seen: set[str] = set()


def assert_valid(manifests: Sequence[Manifest], kubernetes: str) -> None:
    """Each manifest by its schema, unknown fields refused; what has been seen before is not looked at again."""
    for manifest in manifests:
        key = json.dumps([manifest, kubernetes], sort_keys=True)
        if key in _seen:
            continue
        validator = _validator(manifest["apiVersion"], manifest["kind"], kubernetes)
        if validator is None:
            known = manifest["kind"] in FOREIGN or (not CRDS.is_dir() and "." in manifest["apiVersion"])
            assert known, f"no schema for {manifest['apiVersion']} {manifest['kind']}"
            continue
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        errors = [f"{name} {'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator.iter_errors(manifest)]
        assert not errors, "\n".join(errors)
        _seen.add(key)
