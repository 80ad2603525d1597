"""The grammar of objectives and gates, and levels judged by it."""

from __future__ import annotations

import pytest
from load_report_samples import level, saved

from tritonstack.errors import UsageError
from tritonstack.load.arrival import OpenLoop
from tritonstack.load.gate import broken_gates, require_no_baseline
from tritonstack.load.objective import parse_gates, parse_objectives


@pytest.mark.parametrize(
    ("text", "metric", "operator", "value", "relative"),
    [
        ("p99>50ms", "p99", ">", 50_000, False),
        (" p99.9 >= 1.5s ", "p99.9", ">=", 1_500_000, False),
        ("p50<20us", "p50", "<", 20, False),
        ("p50<20µs", "p50", "<", 20, False),
        ("mean>.5ms", "mean", ">", 500, False),
        ("max<=3s", "max", "<=", 3e6, False),
        ("errors>0.1%", "errors", ">", 0.001, False),
        ("errors>0%", "errors", ">", 0, False),
        ("throughput<900/s", "throughput", "<", 900, False),
        ("throughput<-5%", "throughput", "<", -0.05, True),
        ("p99>+10%", "p99", ">", 0.1, True),
        ("goodput<100/s", "goodput", "<", 100, False),
        ("lag>5ms", "lag", ">", 5000, False),
    ],
)
def test_gates(text: str, metric: str, operator: str, value: float, relative: bool) -> None:
    (gate,) = parse_gates(text)
    assert (gate.metric, gate.operator, gate.relative) == (metric, operator, relative)
    assert gate.value == pytest.approx(value)
    assert gate.text == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "p99", "p99>", ">50ms", "p99=50ms", "p99>50", "p99>50m", "p99>fifty", "p0>1ms", "p100>1ms", "px>1ms",
        "p99>-5ms", "errors>5", "errors>101%", "errors>+5%", "errors>1ms", "throughput<5%", "throughput<50ms",
        "lag>+5%", "speed>1ms", "p99>50ms;errors>1%", "p99>1e3ms", "p99>50ms,", "P99>50ms", "mean>5%", "p99>nanms",
    ],
)  # fmt: skip
def test_bad_gates_name_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--fail-if"):
        parse_gates(text)


@pytest.mark.parametrize("text", ["p99<50ms", "p99<=50ms", "p99=50ms"])
def test_objectives(text: str) -> None:
    (objective,) = parse_objectives(text)
    assert objective.holds(50_000) is (text != "p99<50ms") and objective.holds(49_999) and not objective.holds(50_001)


@pytest.mark.parametrize("text", ["p99>50ms", "throughput<5/s", "p99<-5%", "goodput<1/s", "lag<5ms", "", "p99<50"])
def test_bad_objectives_name_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_objectives(text)


def test_a_level_breaks_its_gates() -> None:
    report = saved(level(errors=100, median_ms=5, per_second=500))
    held = "p50>6ms,p99>30ms,errors>2%,throughput<400/s,max>1s,mean>10ms"
    assert broken_gates(report, parse_gates(held)) == []
    broken = broken_gates(report, parse_gates("p50>4ms,p99>5ms,errors>0.1%,throughput>400/s,p99.99>5ms,mean>4ms"))
    assert len(broken) == 6
    assert str(broken[2]).startswith("concurrency 4: errors>0.1%: 0.9")


def test_what_was_not_measured_breaks_its_gate() -> None:
    nothing = saved(level(seconds=0))
    assert "no request succeeded" in str(broken_gates(nothing, parse_gates("p99>5ms"))[0])
    assert "not measured" in str(broken_gates(saved(level()), parse_gates("lag>5ms"))[0])
    assert broken_gates(saved(level(OpenLoop(500.0))), parse_gates("lag>500ms")) == []


def test_goodput_counts_requests_within_the_strictest_objective() -> None:
    slo = parse_objectives("p50<5ms,p99<50ms,errors<1%")
    made = level(slo=slo, median_ms=5, seconds=10, wobble=0)
    assert made.findings.goodput_per_s == pytest.approx(made.requests_per_s / 2, rel=0.03)
    assert [objective.met for objective in made.findings.objectives][1:] == [True, True]
    assert level(seconds=0, slo=slo).findings.goodput_per_s == 0
    assert level().findings.goodput_per_s is None


def test_relative_gates_need_a_baseline() -> None:
    require_no_baseline(parse_gates("p99>50ms"))
    with pytest.raises(UsageError, match="--baseline"):
        require_no_baseline(parse_gates("p99>50ms,p99>+5%"))
