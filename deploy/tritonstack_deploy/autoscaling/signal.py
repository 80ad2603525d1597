"""What Prometheus makes of the pods' series: scrapes, `rate` over a window, and the two signals to scale by."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tritonstack_deploy.autoscaling.pods import Counters, Fleet

BACKLOG_WINDOW_S = 60.0
"""Over which the pending gauge is averaged."""


@dataclass(frozen=True)
class Scrape:
    """The series of all pods that answered, by pod number."""

    moment_s: float
    counters: dict[int, Counters]
    pending: dict[int, int]


class Scraper:
    """Keeps the scrapes of the last `window_s` seconds. A pod that is not ready exports nothing."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.scrapes: deque[Scrape] = deque()

    def scrape(self, fleet: Fleet) -> None:
        there = [pod for pod in fleet.pods if pod.ready_at_s <= fleet.now_s]
        self.scrapes.append(
            Scrape(
                fleet.now_s,
                {pod.number: replace(pod.counters) for pod in there},
                {pod.number: pod.pending for pod in there},
            )
        )
        while self.scrapes[0].moment_s < fleet.now_s - self.window_s:
            self.scrapes.popleft()

    def rate(self, field: Callable[[Counters], float]) -> float:
        """`sum(rate(series[window]))`, with Prometheus' extrapolation (promql/functions.go `extrapolatedRate`).

        To the ends of the window where samples come near them, else by half an interval. So a pod that left fades out
        of the window, and one that came fades in.
        """
        now_s = self.scrapes[-1].moment_s
        total = 0.0
        for pod in {pod for scrape in self.scrapes for pod in scrape.counters}:
            samples = [
                (scrape.moment_s, field(scrape.counters[pod])) for scrape in self.scrapes if pod in scrape.counters
            ]
            if len(samples) < 2:
                continue
            (first_s, first), (last_s, last) = samples[0], samples[-1]
            sampled_s = last_s - first_s
            between_s = sampled_s / (len(samples) - 1)
            covered_s = sampled_s
            for gap_s in (first_s - (now_s - self.window_s), now_s - last_s):
                covered_s += gap_s if gap_s < 1.1 * between_s else between_s / 2
            total += (last - first) * covered_s / sampled_s / self.window_s
        return total

    def average_pending(self, window_s: float) -> float:
        """`sum(avg_over_time(pending[window]))` of the pods there are."""
        latest = self.scrapes[-1]
        seen = [scrape.pending for scrape in self.scrapes if scrape.moment_s > latest.moment_s - window_s]
        return sum(statistics.fmean(pending[pod] for pending in seen if pod in pending) for pod in latest.pending)

    @property
    def up(self) -> bool:
        """Whether there is anything to compute from."""
        return len(self.scrapes) >= 2 and bool(self.scrapes[-1].counters)


def demand(scraper: Scraper, *, target_latency_s: float) -> float | None:
    """Requests in flight, by Little's law on the counters, or the live backlog where that is more, plus what was shed.

    D = max(Σ rate(request_duration), Σ avg_over_time(pending)) + Σ rate(rejected) · W. None where no pod was seen, so
    that an outage of the monitoring is no decision. A single look at the gauge would be noise: any queue is long now
    and then.
    """
    if not scraper.up:
        return None
    in_flight = scraper.rate(lambda counters: counters.request_s)
    backlog = scraper.average_pending(BACKLOG_WINDOW_S)
    shed = scraper.rate(lambda counters: counters.rejected) * target_latency_s
    return max(in_flight, backlog) + shed


def busy(scraper: Scraper) -> float | None:
    """Instances at work on average: Σ rate(compute) over requests per execution (here 1). None where no pod was seen.

    Unlike `demand`, which holds the time in queues, this is the same whatever the number of pods, as long as the load
    is served at all. As a second trigger it keeps a fleet from shrinking to where its queues call for more again.
    """
    return scraper.rate(lambda counters: counters.compute_s) if scraper.up else None


def queue_time_s(scraper: Scraper) -> float | None:
    """The rule that is copied around: mean time in the queue of the requests of the window, in seconds."""
    if not scraper.up:
        return None
    requests = scraper.rate(lambda counters: counters.requests)
    return scraper.rate(lambda counters: counters.queue_s) / requests if requests > 0 else 0.0
