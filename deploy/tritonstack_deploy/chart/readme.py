"""The chart's README: a table of its values, in the order of the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tritonstack_deploy.chart.values import Entry

HEAD = """\
# tritonstack

A fleet of NVIDIA Triton servers that scales by demand and loses no request when pods come and go. How it does so,
and what it needs, is in `docs/kubernetes.md`; `ci/` has a values file for each supported combination.

    helm install NAME helm/tritonstack --namespace NAMESPACE --values my-values.yaml
    helm test NAME --namespace NAMESPACE --logs

Kubernetes 1.33 to 1.37, Helm 3 and 4.

## Values
"""


def readme_text(entries: Sequence[Entry]) -> str:
    """The file's text. Maps that are documented key by key have a row only where they have prose."""
    rows = ["| key | default | |", "|---|---|---|"]
    for top in entries:
        for entry in top.walk():
            if entry.children and not entry.prose:
                continue
            default = "" if entry.children else f"`{_shown(entry.default)}`"
            rows.append(f"| `{entry.name}` | {default} | {_cell(entry)} |")
    return HEAD + "\n".join(rows) + "\n"


def _shown(default: Any) -> str:
    text = default if isinstance(default, str) and default else json.dumps(default, ensure_ascii=False)
    return text.replace("|", "\\|")


def _cell(entry: Entry) -> str:
    allowed = entry.rules.get("enum")
    parts = [entry.prose] if entry.prose else []
    if allowed and not all(str(value) in entry.prose for value in allowed):
        parts.append("One of " + ", ".join(f"`{value}`" for value in allowed) + ".")
    return " ".join(parts).replace("|", "\\|")
