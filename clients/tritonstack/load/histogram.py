"""Latency histogram with a bounded size: HDR, 1 µs to 24 hours, three significant digits.

Percentiles are those of the nearest-rank definition to within 0.1 %; mean, minimum and
maximum are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonstack.errors import missing_package

HIGHEST_US = 24 * 3600 * 1_000_000
SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """What a histogram says, in microseconds; all of it None where nothing was recorded."""

    count: int
    mean_us: float | None = None
    min_us: float | None = None
    p50_us: float | None = None
    p90_us: float | None = None
    p95_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    max_us: float | None = None


class LatencyHistogram:
    """Counts latencies; about 1 µs per record, 230 kB whatever the number of records."""

    def __init__(self) -> None:
        self._hdr = _new_hdr()
        self._sum_us = 0.0
        self._min_us = math.inf
        self._max_us = 0.0
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    @property
    def max_us(self) -> float:
        """The exact maximum, 0 where nothing was recorded."""
        return self._max_us

    def record_s(self, seconds: float) -> None:
        """Count one latency. Below 1 µs it is put into the first bucket, above 24 h into the last one."""
        value_us = seconds * 1e6
        if value_us < 0:
            value_us = 0.0
        self._hdr.record_value(min(max(round(value_us), 1), HIGHEST_US))
        self._count += 1
        self._sum_us += value_us
        if value_us < self._min_us:
            self._min_us = value_us
        if value_us > self._max_us:
            self._max_us = value_us

    def record_many_s(self, seconds: NDArray[np.float64]) -> None:
        """Count latencies, float64 [request], as `record_s` does one by one; about 50 ns each where they are many."""
        if not len(seconds):
            return
        values_us = np.maximum(seconds * 1e6, 0.0)
        whole = np.clip(np.rint(values_us), 1, HIGHEST_US)
        # HDR's index (HdrHistogram's AbstractHistogram.countsArrayIndex): the bucket is the power of two, the place in
        # it the leading bits; frexp's exponent is the number of bits.
        integers = whole.astype(np.int64)
        magnitude = self._hdr.sub_bucket_half_count_magnitude
        bucket = np.maximum(np.frexp(whole)[1].astype(np.int64) - (magnitude + 1), 0)
        index = ((bucket + 1) << magnitude) + (integers >> bucket) - self._hdr.sub_bucket_half_count
        counts = np.ctypeslib.as_array(self._hdr.counts)
        np.add.at(counts, index, 1)
        self._hdr.total_count += len(seconds)
        self._hdr.min_value = min(self._hdr.min_value, int(integers.min()))
        self._hdr.max_value = max(self._hdr.max_value, int(integers.max()))
        self._count += len(seconds)
        self._sum_us += float(values_us.sum())
        self._min_us = min(self._min_us, float(values_us.min()))
        self._max_us = max(self._max_us, float(values_us.max()))

    def add(self, other: LatencyHistogram) -> None:
        """Count all that `other` has counted."""
        if not other._count:
            return
        counts = np.ctypeslib.as_array(self._hdr.counts)
        counts += np.ctypeslib.as_array(other._hdr.counts)
        self._hdr.total_count += other._hdr.total_count
        self._hdr.min_value = min(self._hdr.min_value, other._hdr.min_value)
        self._hdr.max_value = max(self._hdr.max_value, other._hdr.max_value)
        self._count += other._count
        self._sum_us += other._sum_us
        self._min_us = min(self._min_us, other._min_us)
        self._max_us = max(self._max_us, other._max_us)

    def to_json(self) -> dict[str, Any] | None:
        """All of it as JSON values; None where nothing was recorded."""
        if not self._count:
            return None
        return {"hdr": self.encoded(), "sum_us": self._sum_us, "min_us": self._min_us, "max_us": self._max_us}

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> LatencyHistogram:
        """What `to_json` gave."""
        made = cls()
        if body is None:
            return made
        decoded = type(made._hdr).decode(body["hdr"])
        np.ctypeslib.as_array(made._hdr.counts)[:] += np.ctypeslib.as_array(decoded.counts)
        made._hdr.total_count = made._count = int(decoded.total_count)
        made._hdr.min_value, made._hdr.max_value = decoded.min_value, decoded.max_value
        made._sum_us, made._min_us, made._max_us = body["sum_us"], body["min_us"], body["max_us"]
        return made

    def percentile_us(self, percent: float) -> float | None:
        """The smallest recorded value that at least `percent` of the records do not exceed."""
        return self._percentiles_us([percent])[0]

    def summary(self) -> LatencySummary:
        if self._count == 0:
            return LatencySummary(count=0)
        p50, p90, p95, p99, p999 = self._percentiles_us([50, 90, 95, 99, 99.9])
        return LatencySummary(
            count=self._count,
            mean_us=self._sum_us / self._count,
            min_us=self._min_us,
            p50_us=p50,
            p90_us=p90,
            p95_us=p95,
            p99_us=p99,
            p999_us=p999,
            max_us=self._max_us,
        )

    def encoded(self) -> str:
        """The whole histogram (values in µs) in HdrHistogram's own V2 text form, readable by its tools."""
        text: bytes = self._hdr.encode()
        return text.decode("ascii")

    def _percentiles_us(self, percents: list[float]) -> list[float | None]:
        if self._count == 0:
            return [None] * len(percents)
        cumulated = np.cumsum(np.ctypeslib.as_array(self._hdr.counts), dtype=np.int64)
        values: list[float | None] = []
        for percent in percents:
            # 1e-9 keeps a rank such as 0.999 * 1000 from being lifted by its binary rounding.
            rank = min(max(math.ceil(percent * self._count / 100 - 1e-9), 1), self._count)
            index = int(np.searchsorted(cumulated, rank))
            bucket_us = self._hdr.get_highest_equivalent_value(self._hdr.get_value_from_index(index))
            values.append(float(min(max(bucket_us, self._min_us), self._max_us)))
        return values


def _new_hdr() -> Any:
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError:
        raise missing_package(
            "hdrhistogram", needed_for="tritonstack load", install="pip install 'tritonstack[load]'"
        ) from None
    return HdrHistogram(1, HIGHEST_US, SIGNIFICANT_DIGITS)
