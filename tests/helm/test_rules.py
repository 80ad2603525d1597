"""The chart's queries and alerts on series as Prometheus would hold them: promtool evaluates them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_render import only, render, rule_groups

UP = 'up{namespace="serving",job="vision",pod="%s"}'
MODELS = {"models": [{"name": "m"}, {"name": "other"}]}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("no promtool: run `make chart-tools`")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60)


def rules(values: dict[str, Any]) -> dict[str, Any]:
    return {"groups": rule_groups(render({"metrics": {"rules": "always"}, **values}))}


def rules_without_annotations() -> dict[str, Any]:
    document = rules(MODELS)
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    return document


def queries(values: dict[str, Any]) -> dict[str, str]:
    triggers = only(render(values), "ScaledObject")["spec"]["triggers"]
    return {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers if trigger["type"] == "prometheus"}


def series(name: str, values: str, pod: str = "a", model: str = "m", **labels: str) -> dict[str, str]:
    extra = "".join(f',{key}="{value}"' for key, value in labels.items())
    return {
        "series": f'{name}{{namespace="serving",job="vision",pod="{pod}",model="{model}"{extra}}}',
        "values": values,
    }


def server(
    pod: str = "a",
    model: str = "m",
    *,
    rate: float = 0.0,
    latency_s: float = 0.0,
    compute_s: float = 0.0,
    batch: float = 1.0,
    pending: float = 0.0,
    rejected: float = 0.0,
    samples: int = 40,
) -> list[dict[str, str]]:
    """Series of one model in one pod at a steady load: `rate` requests a second, scraped each 15 s."""

    def counter(step: float) -> str:
        return f"0+{15 * step:.9f}x{samples}"

    return [
        series("nv_inference_request_duration_us", counter(rate * latency_s * 1e6), pod, model),
        series("nv_inference_request_success", counter(rate), pod, model),
        series("nv_inference_count", counter(rate), pod, model),
        series("nv_inference_exec_count", counter(rate / batch), pod, model),
        series("nv_inference_compute_input_duration_us", counter(rate * compute_s * 1e5), pod, model),
        series("nv_inference_compute_infer_duration_us", counter(rate * compute_s * 8e5), pod, model),
        series("nv_inference_compute_output_duration_us", counter(rate * compute_s * 1e5), pod, model),
        series("nv_inference_pending_request_count", f"{pending}x{samples}", pod, model),
        series("nv_inference_request_failure", counter(rejected), pod, model, reason="REJECTED"),
        series("nv_inference_request_failure", counter(0), pod, model, reason="OTHER"),
    ]


def up(pod: str = "a", values: str = "1x40") -> dict[str, str]:
    return {"series": UP % pod, "values": values}


@dataclass(frozen=True)
class Case:
    """Series, and what the triggers are to give at 10 minutes (None: nothing, which is no decision)."""

    name: str
    series: list[dict[str, str]]
    demand: float | None
    busy: float | None
    at: str = "10m"
    tolerance: float = 0.02


CASES = [
    # 100 requests a second of 50 ms in two pods: 10 in flight by Little's law; batches of 4 take 20 ms each.
    Case(
        "steady",
        [
            *[up(), up("b")],
            *server(rate=100, latency_s=0.05, compute_s=0.02, batch=4),
            *server("b", rate=100, latency_s=0.05, compute_s=0.02, batch=4),
        ],
        10.0,
        200 / 4 * 0.02,
    ),
    Case("idle", [up(), *server()], 0.0, 0.0),
    Case("a stall: nothing completes", [up(), *server(pending=37)], 37.0, 0.0),
    Case("shed load counts", [up(), *server(rate=10, latency_s=0.1, rejected=50)], 1.0 + 50 * 0.2, 0.0),
    # After the restart the counters begin again from 0; never less than nothing.
    Case(
        "a restart",
        [
            up(),
            *[
                entry | {"values": "0+15000000x35 0+15000000x10"} if "request_duration_us" in entry["series"] else entry
                for entry in server(rate=1, pending=0)
            ],
        ],
        1.0,
        0.0,
        tolerance=0.25,
    ),
    Case(
        "NaN of one pod leaves that pod out",
        [
            up(),
            up("b"),
            *server(rate=10, latency_s=0.5, compute_s=0.05),
            *[entry | {"values": "NaN " * 41} for entry in server("b")],
        ],
        5.0,
        0.5,
    ),
    Case(
        "infinity of one pod leaves that pod out",
        [
            up(),
            up("b"),
            *server(rate=10, latency_s=0.5, compute_s=0.05),
            *[entry | {"values": "+Inf " * 41} for entry in server("b")],
        ],
        5.0,
        0.5,
    ),
    Case("no series at all", [{"series": 'other{job="x"}', "values": "1x40"}], None, None),
    Case("up, but the model is unknown", [up(), *server(model="typo", rate=10, latency_s=1)], None, None),
    Case("all targets are down", [up(values="1x30 0x10"), *server(rate=10, latency_s=0.5, samples=30)], None, None),
    # Prometheus is back since a minute: a window that is half empty reads low.
    Case("Prometheus just came back", [up(values="_x36 1x4"), *server(rate=10, latency_s=0.5)], None, None),
    Case(
        "Prometheus was away",
        [
            up(values="1x20 _x16 1x4"),
            *[entry | {"values": entry["values"] + " _x40"} for entry in server(rate=10, latency_s=0.5, samples=20)],
        ],
        None,
        None,
    ),
    # It is not up yet and exports nothing: the sum is that of the others.
    Case(
        "a loading pod changes nothing",
        [up(), up("b", "0x40"), *server(rate=20, latency_s=0.25, compute_s=0.04)],
        5.0,
        0.8,
    ),
    Case(
        "fresh idle pods do not thin it out",
        [
            up(),
            *[up(pod) for pod in "bcdef"],
            *server(rate=20, latency_s=0.25),
            *[s for p in "bcdef" for s in server(p)],
        ],
        5.0,
        0.0,
    ),
]


def run_promtool(tmp_path: Path, tests: list[dict[str, Any]], rule_files: dict[str, Any]) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_files))
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document, width=10000))
    done = promtool("test", "rules", str(tmp_path / "tests.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def between(query: str, value: float | None, tolerance: float) -> dict[str, Any]:
    """A promtool expression that gives 1 where the query's one value is near `value`, or where there is none."""
    if value is None:
        return {"expr": f"({query}) or absent(({query}))", "exp_samples": [{"labels": "{}", "value": 1}]}
    near = f"(abs(({query}) - {value}) <= bool {tolerance * max(value, 1.0)})"
    return {"expr": near, "exp_samples": [{"labels": "{}", "value": 1}]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triggers(case: Case, tmp_path: Path) -> None:
    asked = queries(MODELS)
    expressions = [
        {**between(asked[f"{kind}-m"], value, case.tolerance), "eval_time": case.at}
        for kind, value in (("demand", case.demand), ("busy", case.busy))
    ]
    run_promtool(
        tmp_path,
        [{"interval": "15s", "input_series": case.series, "promql_expr_test": expressions}],
        rules(MODELS),
    )


def test_one_hot_model_of_ten(tmp_path: Path) -> None:
    """Its trigger alone asks for pods, undiluted by the nine; nothing adds them up."""
    names = [f"m{index}" for index in range(10)]
    values = {"models": [{"name": name} for name in names]}
    asked = queries(values)
    load = [s for name in names for s in server(model=name, rate=100 if name == "m3" else 0.1, latency_s=0.4)]
    tests = [
        {**between(asked[f"demand-{name}"], 40.0 if name == "m3" else 0.04, 0.01), "eval_time": "10m"} for name in names
    ]
    run_promtool(
        tmp_path, [{"interval": "15s", "input_series": [up(), *load], "promql_expr_test": tests}], rules(values)
    )


def test_an_ensemble_waits_where_its_members_do(tmp_path: Path) -> None:
    values = {"models": [{"name": "pipe", "members": ["a.x", "b"]}]}
    load = [
        *server(model="pipe", rate=1, latency_s=0.5),
        *server(model="a.x", pending=7),
        *server(model="b", pending=2),
        *server(model="aax", pending=100),
    ]
    test = {**between(queries(values)["demand-pipe"], 9.0, 0.01), "eval_time": "10m"}
    run_promtool(
        tmp_path, [{"interval": "15s", "input_series": [up(), *load], "promql_expr_test": [test]}], rules(values)
    )


def test_from_zero_the_answer_is_zero_and_an_outage_still_none(tmp_path: Path) -> None:
    values = {
        "models": [{"name": "m", "loadSeconds": 5}],
        "autoscaling": {"minReplicas": 0, "scaleToZero": {"enabled": True, "hosts": ["a"]}},
    }
    query = queries(values)["demand-m"]
    replicas = 'kube_deployment_spec_replicas{namespace="serving",deployment="vision-tritonstack"}'
    tests = [
        {
            "interval": "15s",
            "input_series": [{"series": replicas, "values": f"{count}x40"}],
            "promql_expr_test": [{**between(query, expected, 0.01), "eval_time": "10m"}],
        }
        for count, expected in ((0, 0.0), (2, None))
    ]
    run_promtool(tmp_path, tests, rules(values))


def alert_test(name: str, load: list[dict[str, str]], fires: bool, *, at: str, **labels: str) -> dict[str, Any]:
    alerts = [{"exp_labels": {"namespace": "serving", "release": "vision", **labels}}] if fires else []
    return {
        "interval": "15s",
        "input_series": load,
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": alerts}],
    }


LONG = 1000
TWO_UP = [up(values=f"1x{LONG}"), up("b", f"1x{LONG}")]

ALERTS = {
    "scrape missing": [
        ("TritonScrapeMissing", [{"series": "x", "values": "1x100"}], True, "10m", {"severity": "critical"}),
        ("TritonScrapeMissing", [up(values="0x100")], True, "10m", {"severity": "critical"}),
        ("TritonScrapeMissing", [up(values="1x100")], False, "10m", {}),
    ],
    "queue": [
        ("TritonQueueGrowing", [up(values="1x100"), *server(pending=9, samples=100)], True, "15m",
         {"severity": "warning", "model": "m"}),
        ("TritonQueueGrowing", [up(values="1x100"), *server(pending=7, samples=100)], False, "15m", {}),
    ],
    "rejected": [
        ("TritonRequestsRejected", [up(), *server(rejected=1, samples=40)], True, "9m",
         {"severity": "warning", "model": "m"}),
        ("TritonRequestsRejected", [up(), *server(rate=50, samples=40)], False, "9m", {}),
    ],
    "model missing": [
        ("TritonModelMissing", [up(), up("b"), *server(), *server(model="other"), *server("b", "other")], True, "8m",
         {"severity": "critical", "model": "m"}),
        ("TritonModelMissing", [up(), up("b", "0x40"), *server(), *server(model="other")], False, "8m", {}),
    ],
    "idle GPUs": [
        ("TritonGpusIdle", [*TWO_UP, *server(samples=LONG), *server("b", samples=LONG)],
         True, "4h", {"severity": "info"}),
        # One pod is what minReplicas asks for, however idle.
        ("TritonGpusIdle", [up(values=f"1x{LONG}"), *server(samples=LONG)], False, "4h", {}),
        ("TritonGpusIdle",
         [*TWO_UP, *server(rate=100, compute_s=0.01, samples=LONG), *server("b", samples=LONG)],
         False, "4h", {}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("subject", ALERTS)
def test_alerts(subject: str, tmp_path: Path) -> None:
    document = rules_without_annotations()
    tests = [alert_test(name, load, fires, at=at, **labels) for name, load, fires, at, labels in ALERTS[subject]]
    run_promtool(tmp_path, tests, document)


def test_failures_are_alerted_and_cancelled_requests_are_not(tmp_path: Path) -> None:
    document = rules_without_annotations()
    base = [entry for entry in server(rate=10) if "OTHER" not in entry["series"]]
    failing = [*base, series("nv_inference_request_failure", "0+15x40", reason="BACKEND")]
    cancelled = [*base, series("nv_inference_request_failure", "0+15x40", reason="CANCELED")]
    run_promtool(
        tmp_path,
        [
            alert_test("TritonRequestsFailing", [up(), *failing], True, at="9m", severity="critical", model="m"),
            alert_test("TritonRequestsFailing", [up(), *cancelled], False, at="9m"),
            alert_test("TritonRequestsFailing", [up(), *server(rate=10)], False, at="9m"),
            alert_test("TritonRequestsFailing", [up(), *server()], False, at="9m"),
        ],
        document,
    )


def test_the_cost_adds_up(tmp_path: Path) -> None:
    """Three pods of two GPUs, one loading; 1.5 instances at work: 2 loading, 1.5 busy, 2.5 idle, at 2.5 an hour."""
    values = {"models": [{"name": "m"}], "gpu": {"count": 2, "pricePerHour": 2.5}}
    load = [up(), up("b"), up("c", "0x40"), *server(rate=100, compute_s=0.01), *server("b", rate=50, compute_s=0.01)]
    own = 'namespace="serving",release="vision"'
    tests = [
        {"expr": f'round(sum(tritonstack:gpus:sum{{{own},state="{state}"}}), 0.01)', "eval_time": "9m", "exp_samples": [
            {"labels": "{}", "value": value}]}
        for state, value in (("loading", 2), ("busy", 1.5), ("idle", 2.5))
    ]  # fmt: skip
    tests.append(
        {
            "expr": f"round(sum(tritonstack:gpu_cost_per_hour:sum{{{own}}}), 0.01)",
            "eval_time": "9m",
            "exp_samples": [{"labels": "{}", "value": 15}],
        }
    )
    run_promtool(tmp_path, [{"interval": "15s", "input_series": load, "promql_expr_test": tests}], rules(values))


@pytest.mark.parametrize(
    "values",
    [
        {},
        MODELS,
        {"gpu": {"sharing": "mig", "migProfile": "1g.10gb"}},
        {"gpu": {"sharing": "none"}},
        {"engines": {"enabled": True}},
        {"models": [{"name": "e", "members": ["a", "b.c"]}]},
    ],
    ids=["default", "two models", "mig", "cpu", "engines", "ensemble"],
)
def test_rules_are_valid(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules(values)))
    done = promtool("check", "rules", str(tmp_path / "rules.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_recorded_series_say_what_the_triggers_ask() -> None:
    asked = queries(MODELS)
    recorded = {
        f"{rule['record'].split(':')[1].removeprefix('model_')}-{rule['labels']['model']}": rule["expr"]
        for group in rules(MODELS)["groups"]
        for rule in group["rules"]
        if rule.get("record", "").startswith("tritonstack:model_")
    }
    assert recorded == asked
