"""The HPA's law against what Kubernetes' documentation and source say of it."""

from __future__ import annotations

import math

import pytest

from tritonstack_deploy.autoscaling.hpa import DOWN, UP, Controller, Hpa, Policy, Rules


def controller(
    replicas: int, *, target: float = 10.0, up: Rules = UP, down: Rules = DOWN, maximum: int = 100
) -> Controller:
    return Controller(Hpa((target,), 1, maximum, up, down), replicas)


@pytest.mark.parametrize(
    ("replicas", "total", "wanted"),
    [
        (2, 40.0, 4),
        (2, 40.1, 5),
        (2, 20.0, 2),
        (2, 21.9, 2),  # within 10 %
        (2, 22.1, 3),
        (10, 91.0, 10),
        (1, 1000.0, 5),  # at most 4 pods or twice as many in 15 s: the larger of both
        (6, 1000.0, 12),
    ],
)
def test_up(replicas: int, total: float, wanted: int) -> None:
    assert controller(replicas).sync(0, [total]) == wanted


def test_down_waits_for_its_window() -> None:
    subject = controller(10)
    assert subject.sync(0, [100.0]) == 10
    for moment_s in range(15, 300, 15):
        assert subject.sync(moment_s, [20.0]) == 10
    assert subject.sync(301, [20.0]) == 2


def test_down_takes_the_largest_of_its_window() -> None:
    subject = controller(10, down=Rules(60, (Policy("Percent", 100, 15),)))
    subject.sync(0, [70.0])
    subject.sync(30, [20.0])
    assert subject.sync(59, [20.0]) == 10 or subject.replicas == 7
    assert subject.sync(75, [20.0]) <= 7


def test_policies_count_changes_of_their_period() -> None:
    subject = controller(1, up=Rules(0, (Policy("Pods", 1, 60),)))
    counts = [subject.sync(moment_s, [1000.0]) for moment_s in range(0, 181, 15)]
    assert counts == [2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5]


def test_disabled_and_bounds() -> None:
    subject = controller(5, down=Rules(0, (Policy("Pods", 1, 15),), "Disabled"), maximum=6)
    assert subject.sync(0, [0.0]) == 5
    assert subject.sync(15, [500.0]) == 6


def test_a_metric_that_is_missing_never_scales_down() -> None:
    subject = Controller(Hpa((10.0, 10.0), 1, 20, down=Rules(0)), 4)
    assert subject.sync(0, [None, None]) == 4
    assert subject.sync(15, [1.0, None]) == 4
    assert subject.sync(30, [80.0, None]) == 8
    assert subject.sync(45, [1.0, 1.0]) == 1


def test_not_a_number_is_the_minimum() -> None:
    subject = controller(4, down=Rules(0))
    assert subject.sync(0, [math.nan]) == 1


def test_behaviour_of_a_manifest() -> None:
    rules = Rules.from_kubernetes(
        {"stabilizationWindowSeconds": 120, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}, DOWN
    )
    assert rules == Rules(120, (Policy("Pods", 1, 60),), "Max")
    assert Rules.from_kubernetes({}, UP) == UP


@pytest.mark.parametrize(
    "wrong",
    [lambda: Hpa((), 1, 2), lambda: Hpa((0.0,), 1, 2), lambda: Hpa((1.0,), 3, 2), lambda: Policy("Pods", 0, 15)],
)
def test_nonsense_is_refused(wrong) -> None:
    with pytest.raises(ValueError):
        wrong()
