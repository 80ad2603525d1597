"""Demand settles, queue time alone swings: the same pods, the same load, two signals.

The pods are those of an observation on a real cluster (Kubernetes 1.36, HPA, prometheus-adapter): 150 requests a
second, 30 a pod and second, at most 12 pods, 15 s before a pod may go. There, queue time went 2 → 12 → 2 in 65 s.
"""

from __future__ import annotations

import itertools
import statistics

import pytest

from tritonstack_deploy.autoscaling.closed_loop import Moment, run
from tritonstack_deploy.autoscaling.hpa import Hpa, Policy, Rules
from tritonstack_deploy.autoscaling.pods import Fleet
from tritonstack_deploy.autoscaling.signal import busy, demand, queue_time_s

RATE = 150.0
QUICK_DOWN = Rules(15, (Policy("Percent", 100, 15),))


def fleet(seed: int, *, replicas: int = 2, cold_start_s: float = 10.0) -> Fleet:
    # 30 requests a second: one instance with 33 ms each.
    return Fleet(
        replicas=replicas, service_s=1 / 30, instances=1, cold_start_s=cold_start_s, most=12, queue_limit=400, seed=seed
    )


def turns(moments: list[Moment]) -> int:
    """How often the count changed its direction."""
    steps = [b.replicas - a.replicas for a, b in itertools.pairwise(moments) if b.replicas != a.replicas]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize("seed", range(3))
def test_queue_time_alone_swings(seed: int) -> None:
    moments = run(
        fleet=fleet(seed),
        # 50 ms of waiting a pod, read as a total over the pods.
        hpa=Hpa((0.05,), 2, 12, down=QUICK_DOWN),
        signals=[lambda scraper, pods: None if (mean := queue_time_s(scraper)) is None else mean * len(pods.ready)],
        rate=lambda _: RATE,
        duration_s=1800,
        window_s=60,
    )
    late = [moment.replicas for moment in moments if moment.moment_s > 600]
    assert max(late) == 12 and min(late) <= 4, late
    assert turns([moment for moment in moments if moment.moment_s > 600]) >= 6


SLOW_DOWN = Rules(300, (Policy("Pods", 1, 60),))


def turns_of(seed: int, rate: float, *, with_busy: bool) -> tuple[list[int], int]:
    """Counts after 40 minutes of constant load, and changes of direction in them."""
    pods = fleet(seed)
    moments = run(
        fleet=pods,
        hpa=Hpa((4.0, 0.7) if with_busy else (2.0,), 2, 12, down=SLOW_DOWN),
        signals=[
            lambda scraper, _: demand(scraper, target_latency_s=0.2),
            *([lambda scraper, _: busy(scraper)] if with_busy else []),
        ],
        rate=lambda _: rate,
        duration_s=7200,
    )
    late = [moment for moment in moments if moment.moment_s > 2400]
    return [moment.replicas for moment in late], turns(late)


@pytest.mark.parametrize("rate", [31.0, 60.0, 84.0, 100.0, 147.0, 150.0, 200.0])
def test_demand_with_busy_instances_settles(rate: float) -> None:
    """4 requests in flight or 0.7 busy instances a pod, the larger count: it is reached, and there it stays."""
    counts, changes = turns_of(int(rate), rate, with_busy=True)
    assert max(counts) - min(counts) <= 1 and changes <= 1, counts
    # Enough for the load, and not more than 1 + 1/0.7 times what it needs.
    assert rate / 30 < statistics.median(counts) <= rate / 30 / 0.7 + 1


def test_demand_alone_may_turn_slowly() -> None:
    """Why the second trigger is there: the queues that more pods relieve are what called for them."""
    counts, changes = turns_of(1, RATE, with_busy=False)
    assert changes >= 3 and max(counts) > min(counts)


def test_demand_is_load_times_latency() -> None:
    """Little's law, recorded by scrapes, against the pods' own record; idle is 0."""
    pods = fleet(5, replicas=8)
    values: list[float | None] = []

    def watch(scraper, _):
        values.append(demand(scraper, target_latency_s=0.2))
        return None

    run(fleet=pods, hpa=Hpa((1.0,), 8, 8), signals=[watch], rate=lambda t: RATE if t < 600 else 0.0, duration_s=1200)
    steady = [value for value in values[20:38] if value is not None]
    latency_s = statistics.fmean(latency for moment, latency in pods.latencies_s if 300 < moment < 570)
    assert statistics.fmean(steady) == pytest.approx(RATE * latency_s, rel=0.1)
    assert values[-1] == 0.0


def test_an_outage_of_the_monitoring_is_no_decision() -> None:
    moments = run(
        fleet=fleet(1, replicas=6),
        hpa=Hpa((2.0,), 1, 12, down=Rules(0, (Policy("Percent", 100, 15),))),
        signals=[lambda scraper, _: demand(scraper, target_latency_s=0.2)],
        rate=lambda t: RATE if t < 600 else 0.0,
        duration_s=1000,
        outage=lambda t: 590 < t < 900,
    )
    during = {moment.replicas for moment in moments if 600 < moment.moment_s < 890}
    assert len(during) == 1 and during.pop() > 1
    assert moments[-1].replicas == 1


def test_no_more_pods_than_gpus() -> None:
    pods = fleet(2)
    moments = run(
        fleet=pods,
        hpa=Hpa((2.0,), 2, 40),
        signals=[lambda scraper, _: demand(scraper, target_latency_s=0.2)],
        rate=lambda _: 600.0,
        duration_s=600,
    )
    assert moments[-1].replicas > 12 and moments[-1].ready == 12
    assert pods.rejected > 0


def test_a_pod_that_goes_finishes_its_work() -> None:
    pods = fleet(3, replicas=4)
    pods.run(10.0, RATE)
    pods.scale(1)
    pods.run(60.0, 0.0)
    assert len(pods.pods) == 1
    # Nothing is lost: what arrived was answered or refused at the door.
    assert len(pods.latencies_s) + pods.rejected > 1000
    assert all(pod.busy == 0 and not pod.waiting for pod in pods.pods)
