"""The two Grafana dashboards. Panels are rows of a table here; Grafana's JSON is made from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SELECTOR = 'namespace="$namespace",job="$release"'
MODEL = f'{SELECTOR},model=~"$model"'
RECORDED = 'namespace="$namespace",release="$release"'


@dataclass(frozen=True)
class Panel:
    """One panel: series by legend, in Grafana's `unit`."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    description: str = ""
    stacked: bool = False


def _rate(metric: str) -> str:
    return f"sum by (model) (rate({metric}{{{MODEL}}}[$__rate_interval]))"


def _mean_us(metric: str) -> str:
    return f"{_rate(metric)} / clamp_min({_rate('nv_inference_request_success')}, 1e-9)"


SERVICE = (
    Panel("Requests", "reqps", ((_rate("nv_inference_request_success"), "{{model}}"),)),
    Panel(
        "Refused and failed",
        "reqps",
        (
            (
                f"sum by (model, reason) (rate(nv_inference_request_failure{{{MODEL}}}[$__rate_interval]))",
                "{{model}} {{reason}}",
            ),
        ),
        "REJECTED: the queue was full or the time ran out.",
    ),
    Panel(
        "Mean time of a request",
        "µs",
        (
            (_mean_us("nv_inference_request_duration_us"), "{{model}} in all"),
            (_mean_us("nv_inference_queue_duration_us"), "{{model}} waiting"),
            (_mean_us("nv_inference_compute_infer_duration_us"), "{{model}} computing"),
        ),
        "0 where nothing is asked. Means: quantiles are the clients' to measure.",
    ),
    Panel(
        "Waiting requests",
        "short",
        ((f"sum by (model) (nv_inference_pending_request_count{{{MODEL}}})", "{{model}}"),),
    ),
    Panel(
        "Inferences in an execution",
        "short",
        (
            (
                f"{_rate('nv_inference_count')} / clamp_min({_rate('nv_inference_exec_count')}, 1e-9)",
                "{{model}}",
            ),
        ),
        "What the dynamic batcher makes of the load.",
    ),
    Panel("Pods that answer", "short", ((f"sum(up{{{SELECTOR}}})", "up"), (f"count(up{{{SELECTOR}}})", "all"))),
    Panel(
        "Time of loading",
        "s",
        ((f"max by (model) (nv_model_load_duration_secs{{{MODEL}}})", "{{model}}"),),
        "What `loadSeconds` in the values should say.",
    ),
    Panel(
        "Pinned memory pool",
        "bytes",
        (
            (f"sum by (pod) (nv_pinned_memory_pool_used_bytes{{{SELECTOR}}})", "{{pod}} used"),
            (f"max(nv_pinned_memory_pool_total_bytes{{{SELECTOR}}})", "size"),
        ),
    ),
)

CAPACITY = (
    Panel(
        "Demand",
        "short",
        ((f"tritonstack:model_demand:sum{{{RECORDED}}}", "{{model}}"),),
        "Requests in flight or waiting, plus what was shed: what is scaled by.",
    ),
    Panel("Busy instances", "short", ((f"tritonstack:model_busy:sum{{{RECORDED}}}", "{{model}}"),)),
    Panel(
        "GPUs by state",
        "short",
        ((f"sum by (state) (tritonstack:gpus:sum{{{RECORDED}}})", "{{state}}"),),
        stacked=True,
    ),
    Panel(
        "Cost by state, an hour",
        "currencyUSD",
        ((f"sum by (state) (tritonstack:gpu_cost_per_hour:sum{{{RECORDED}}})", "{{state}}"),),
        "gpu.pricePerHour times GPUs.",
        stacked=True,
    ),
    Panel(
        "Idle money of the last day",
        "currencyUSD",
        (
            (
                "sum(avg_over_time(tritonstack:gpu_cost_per_hour:sum{"
                f'{RECORDED},state="idle"}}[1d]) * count_over_time(tritonstack:gpu_cost_per_hour:sum{{'
                f'{RECORDED},state="idle"}}[1d])) * 30 / 3600',
                "idle",
            ),
        ),
        "Recorded each 30 s.",
    ),
    Panel(
        "Cost of a thousand inferences",
        "currencyUSD",
        (
            (
                f"sum(tritonstack:gpu_cost_per_hour:sum{{{RECORDED}}}) / clamp_min(sum("
                f"tritonstack:inferences_per_second:sum{{{RECORDED}}}) * 3.6, 1e-9) "
                f"and sum(tritonstack:inferences_per_second:sum{{{RECORDED}}}) > 0",
                "1000 inferences",
            ),
        ),
    ),
    Panel(
        "GPU utilisation by Triton",
        "percentunit",
        ((f"avg by (pod, gpu_uuid) (nv_gpu_utilization{{{SELECTOR}}})", "{{pod}} {{gpu_uuid}}"),),
        "Not under MIG; under time slicing it is the whole GPU's.",
    ),
    Panel(
        "Engine activity by DCGM",
        "percentunit",
        (
            (
                'avg by (exported_pod, GPU_I_ID) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{exported_namespace="$namespace"})',
                "{{exported_pod}} {{GPU_I_ID}}",
            ),
        ),
        "From dcgm-exporter, also for MIG slices. The GPU has to be in the pod's limits, or it has no pod label.",
    ),
)

DASHBOARDS = {
    "service": ("Triton: service", SERVICE),
    "capacity": ("Triton: capacity and cost", CAPACITY),
}


def dashboard_text(name: str) -> str:
    """Grafana's JSON of one of `DASHBOARDS`."""
    title, panels = DASHBOARDS[name]
    document = {
        "uid": f"tritonstack-{name}",
        "title": title,
        "tags": ["tritonstack"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _variables() -> Sequence[dict[str, Any]]:
    def query(name: str, text: str, *, several: bool = False) -> dict[str, Any]:
        return {
            "name": name,
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "query": {"query": text, "refId": name},
            "refresh": 2,
            "multi": several,
            "includeAll": several,
            "allValue": ".*" if several else None,
        }

    return [
        {"name": "source", "type": "datasource", "query": "prometheus"},
        query("namespace", "label_values(nv_inference_request_success, namespace)"),
        query("release", 'label_values(nv_inference_request_success{namespace="$namespace"}, job)'),
        query("model", f"label_values(nv_inference_request_success{{{SELECTOR}}}, model)", several=True),
    ]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.description,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {},
            },
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.series)
        ],
    }
