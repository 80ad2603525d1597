"""Pods that serve requests, with the counters and the gauge that Triton would export of them.

A request goes to the next ready pod in turn, waits in its queue and is worked on by one of its instances for an
exponentially distributed time. Counters are added to when a request ends, as Triton's are; the gauge is live.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Of one pod since it became ready. Durations in seconds; Triton's have the same sums in microseconds."""

    requests: int = 0
    request_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    rejected: int = 0


@dataclass
class Pod:
    """`ready_at_s`: when its models are loaded. `instances` requests are worked on at a time."""

    number: int
    ready_at_s: float
    instances: int
    counters: Counters = field(default_factory=Counters)
    waiting: deque[float] = field(default_factory=deque)
    busy: int = 0
    draining: bool = False

    @property
    def pending(self) -> int:
        """`nv_inference_pending_request_count`."""
        return len(self.waiting)


class Fleet:
    """Pods under a stream of requests.

    `service_s` is the mean time of one request in an instance, `cold_start_s` how long a new pod takes to become ready,
    `most` how many fit on the GPUs there are (the rest stays Pending), and `queue_limit` how many requests may wait in
    a pod before it rejects (0: any number).
    """

    def __init__(
        self,
        *,
        replicas: int,
        service_s: float,
        instances: int,
        cold_start_s: float,
        most: int,
        queue_limit: int = 0,
        seed: int = 0,
    ) -> None:
        self.service_s = service_s
        self.instances = instances
        self.cold_start_s = cold_start_s
        self.most = most
        self.queue_limit = queue_limit
        self.now_s = 0.0
        self.latencies_s: list[tuple[float, float]] = []
        self.rejected = 0
        self._random = random.Random(seed)  # noqa: S311 - arrivals, not secrets
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, Pod, float, float]] = []
        self._order = itertools.count()
        self._turn = 0
        self.pods = [self._pod(0.0) for _ in range(min(replicas, most))]

    def _pod(self, ready_at_s: float) -> Pod:
        return Pod(next(self._numbers), ready_at_s, self.instances)

    def scale(self, replicas: int) -> None:
        """Start or drain pods, the youngest first."""
        alive = [pod for pod in self.pods if not pod.draining]
        for _ in range(min(replicas, self.most) - len(alive)):
            self.pods.append(self._pod(self.now_s + self.cold_start_s))
        for pod in alive[replicas:]:
            pod.draining = True

    @property
    def ready(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.ready_at_s <= self.now_s and not pod.draining]

    def run(self, until_s: float, rate: float) -> None:
        """Serve Poisson arrivals of `rate` requests a second until a moment."""
        next_s = self.now_s + self._random.expovariate(rate) if rate > 0 else float("inf")
        while True:
            end_s = self._ends[0][0] if self._ends else float("inf")
            moment_s = min(next_s, end_s)
            if moment_s > until_s:
                break
            self.now_s = moment_s
            if end_s <= next_s:
                self._end()
            else:
                self._arrive()
                next_s = self.now_s + self._random.expovariate(rate)
        self.now_s = until_s
        self.pods = [pod for pod in self.pods if not (pod.draining and pod.busy == 0 and not pod.waiting)]

    def _arrive(self) -> None:
        ready = self.ready
        if not ready:
            self.rejected += 1
            return
        pod = ready[self._turn % len(ready)]
        self._turn += 1
        if self.queue_limit and pod.pending >= self.queue_limit:
            pod.counters.rejected += 1
            self.rejected += 1
            return
        pod.waiting.append(self.now_s)
        self._start(pod)

    def _start(self, pod: Pod) -> None:
        while pod.waiting and pod.busy < pod.instances:
            arrived_s = pod.waiting.popleft()
            pod.busy += 1
            end_s = self.now_s + self._random.expovariate(1 / self.service_s)
            heapq.heappush(self._ends, (end_s, next(self._order), pod, arrived_s, self.now_s))

    def _end(self) -> None:
        end_s, _, pod, arrived_s, started_s = heapq.heappop(self._ends)
        pod.busy -= 1
        counters = pod.counters
        counters.requests += 1
        counters.request_s += end_s - arrived_s
        counters.queue_s += started_s - arrived_s
        counters.compute_s += end_s - started_s
        self.latencies_s.append((end_s, end_s - arrived_s))
        self._start(pod)
