"""An autoscaler and its pods in a closed loop: load in, replica counts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritonstack_deploy.autoscaling.hpa import SYNC_PERIOD_S, Controller, Hpa
from tritonstack_deploy.autoscaling.pods import Fleet
from tritonstack_deploy.autoscaling.signal import Scraper

Signal = Callable[[Scraper, Fleet], float | None]
"""The metric's total over all pods, as an external metric with AverageValue is read; None where it cannot be."""


@dataclass(frozen=True)
class Moment:
    """One look of the autoscaler. `replicas` is what it asked for, `ready` how many pods served."""

    moment_s: float
    replicas: int
    ready: int


def run(
    *,
    fleet: Fleet,
    hpa: Hpa,
    signals: Sequence[Signal],
    rate: Callable[[float], float],
    duration_s: float,
    scrape_s: float = 15.0,
    window_s: float = 120.0,
    outage: Callable[[float], bool] = lambda _: False,
) -> list[Moment]:
    """Run the loop for `duration_s` seconds and return every look.

    `signals` are the metrics of the autoscaler's `targets`, in their order; `rate` gives the requests a second at a
    moment. Prometheus scrapes each `scrape_s`, the controller looks each 15 s at what the last scrapes say. During an
    `outage` nothing is scraped and no signal can be read.
    """
    controller = Controller(hpa, len(fleet.pods))
    scraper = Scraper(window_s)
    moments: list[Moment] = []
    next_scrape_s, next_sync_s = 0.0, SYNC_PERIOD_S / 2
    while min(next_scrape_s, next_sync_s) <= duration_s:
        moment_s = min(next_scrape_s, next_sync_s)
        # The load may change between two events.
        while fleet.now_s < moment_s:
            fleet.run(min(moment_s, fleet.now_s + 1.0), rate(fleet.now_s))
        if next_scrape_s <= next_sync_s:
            next_scrape_s += scrape_s
            if not outage(moment_s):
                scraper.scrape(fleet)
            continue
        next_sync_s += SYNC_PERIOD_S
        replicas = controller.sync(
            moment_s, tuple(None if outage(moment_s) else signal(scraper, fleet) for signal in signals)
        )
        fleet.scale(replicas)
        moments.append(Moment(moment_s, replicas, len(fleet.ready)))
    return moments
