"""Replaying recorded arrivals: a CSV or JSONL file of timestamps, optionally with the id of what was sent.

A row costs 12 bytes of memory, so ten million of them take 120 MB; the file itself is read line by line.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tritonstack.errors import InputError, UsageError
from tritonstack.load.schedule import CHUNK, Dues
from tritonstack.tensor.conform import nearest

TimeUnit = Literal["s", "ms", "us", "ns"]

_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_TIME_COLUMNS = ("timestamp", "time", "ts", "t", "offset", "arrival", "due", "start")
_ID_COLUMNS = ("input_id", "input", "id", "request_id", "entry")
_NUMBER = re.compile(r"([+-]?)(\d+)(?:\.(\d*))?")
_FURTHEST_NS = 2**62
_EXPECTED_TIME = "a number in s, ms, us or ns, or an RFC 3339 time such as 2026-01-31T12:00:00.5Z"


@dataclass(frozen=True, eq=False)
class Trace:
    """The rows of one file in order of time.

    `time_ns` int64 [row]: nanoseconds after the first row. `key` int32 [row]: index into `ids`, the distinct input ids
    in order of appearance; None where the file names no inputs. `was_sorted`: the file was in order of time already.
    """

    name: str
    time_ns: NDArray[np.int64]
    key: NDArray[np.int32] | None
    ids: tuple[str, ...]
    was_sorted: bool

    def __len__(self) -> int:
        return len(self.time_ns)

    def schedule(self, *, speed: float = 1.0) -> TraceSchedule:
        """The timetable of these arrivals, `speed` times as fast. UsageError for a speed that is not above 0."""
        if not (0 < speed < math.inf):
            raise UsageError("a trace is replayed at a speed above 0", given=f"{speed:g}", expected="1 as recorded")
        return TraceSchedule(self.name, self.time_ns, self.key, self.ids, speed)


@dataclass(frozen=True, eq=False)
class TraceSchedule:
    """Recorded arrivals as a timetable; `lead_s` seconds of silence lie before the first one. The seed changes nothing.

    `time_ns` int64 [arrival], ascending from 0. `key` int32 [arrival] or None: which of `ids` is sent; without `ids`,
    which entry of the pool.
    """

    name: str
    time_ns: NDArray[np.int64]
    key: NDArray[np.int32] | None
    ids: tuple[str, ...] = ()
    speed: float = 1.0
    lead_s: float = 0.0

    def with_pool(self, pool_ids: Sequence[str]) -> TraceSchedule:
        """The same with its ids looked up among those of the pool's entries, in their order; where the pool has none,
        ids are numbers that count its entries from 0 (beyond its end, from 0 again).

        Raises InputError where the trace sends something that the pool does not have.
        """
        if self.key is None or not self.ids:
            return self
        known = {name: index for index, name in enumerate(pool_ids) if name}
        chosen = np.empty(len(self.ids), dtype=np.int32)
        for number, name in enumerate(self.ids):
            if name in known:
                chosen[number] = known[name]
            elif not known and name.isascii() and name.isdigit() and int(name) < 2**31:
                chosen[number] = int(name)
            else:
                raise InputError(
                    f"the trace {self.name} sends an input that is not among the requests",
                    given=repr(name),
                    expected="the id of a request" if known else "a number that counts the requests from 0",
                    next_step=nearest(name, list(known)[:1000]) if known else None,
                )
        return replace(self, key=chosen[self.key], ids=())

    @property
    def label(self) -> str:
        return f"trace {self.name}" + (f" ×{self.speed:g}" if self.speed != 1 else "")

    @property
    def mean_rate(self) -> float:
        """Arrivals per second between the first and the last; of one moment alone, its arrivals."""
        span_s = float(self.time_ns[-1]) / 1e9 / self.speed
        return (len(self.time_ns) - 1) / span_s if span_s > 0 else float(len(self.time_ns))

    @property
    def duration_s(self) -> float:
        """To just behind the last arrival, without the lead."""
        return (float(self.time_ns[-1]) + 1) / 1e9 / self.speed

    def chunks(self, seed: int) -> Iterator[Dues]:
        if self.ids:
            yield from self.with_pool(()).chunks(seed)
            return
        for first in range(0, len(self.time_ns), CHUNK):
            part = slice(first, first + CHUNK)
            offset_s = self.lead_s + self.time_ns[part] / (1e9 * self.speed)
            number = np.arange(first, first + len(offset_s), dtype=np.int64)
            yield Dues(offset_s, number, None if self.key is None else self.key[part])

    def remaining(self, from_s: float, to_s: float) -> float:
        low, high = ((moment_s - self.lead_s) * 1e9 * self.speed for moment_s in (from_s, to_s))
        return float(max(int(np.searchsorted(self.time_ns, high)) - int(np.searchsorted(self.time_ns, low)), 0))

    def after(self, lead_s: float) -> TraceSchedule:
        """The whole trace behind a silence, so that all of it is measured."""
        return replace(self, lead_s=self.lead_s + lead_s)

    def to_json(self) -> dict[str, Any]:
        """What `trace_from_json` needs besides the columns of `columns`, with ids looked up (see `with_pool`)."""
        return {
            "trace": self.name,
            "speed": self.speed,
            "lead_s": self.lead_s,
            "arrivals": len(self.time_ns),
            "entries": self.key is not None,
        }

    def columns(self) -> bytes:
        """The arrivals as bytes: int64 times in nanoseconds, then int32 entries where there are any, little-endian."""
        if self.ids:
            return self.with_pool(()).columns()
        entry = b"" if self.key is None else self.key.astype("<i4").tobytes()
        return self.time_ns.astype("<i8").tobytes() + entry


def trace_from_json(document: Mapping[str, Any], columns: bytes | memoryview) -> TraceSchedule:
    """The timetable of `to_json` and `columns`, as views into the latter. Raises UsageError where they do not fit."""
    count, with_entries = int(document["arrivals"]), bool(document["entries"])
    wanted = count * (12 if with_entries else 8)
    if len(columns) != wanted:
        raise UsageError("the columns of a trace do not fit it", given=f"{len(columns)} bytes", expected=f"{wanted}")
    times = np.frombuffer(columns, "<i8", count)
    entry = np.frombuffer(columns, "<i4", count, offset=count * 8) if with_entries else None
    return TraceSchedule(str(document["trace"]), times, entry, (), float(document["speed"]), float(document["lead_s"]))


def read_trace(path: Path, *, unit: TimeUnit | None = None) -> Trace:
    """The trace in a ``.jsonl`` file, or in a CSV file of any other name.

    CSV: with a header, the column of times is called timestamp, time, ts, t, offset, arrival, due or start, with or
    without its unit behind it (``time_ms``), that of inputs input_id, input, id, request_id or entry; without a header
    they are the first and the second column. JSONL: a time, or an object with such keys, in each line.

    Times are numbers (seconds unless `unit` or the column says otherwise; numbers too large to be anything but Unix
    time in ms, µs or ns are taken as that) or RFC 3339. The first row, in order of time, is the start.

    Raises InputError naming the line where one makes no sense.
    """
    rows = _jsonl_rows(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows(path)
    reader = _TimeReader(unit)
    times = array("q")
    keys = array("i")
    ids: dict[str, int] = {}
    try:
        for line, row_unit, time, name in rows:
            try:
                times.append(reader.nanoseconds(time, row_unit))
            except ValueError as error:
                raise _bad(path, line, str(error), expected=_EXPECTED_TIME) from None
            if name is not None:
                keys.append(ids.setdefault(name, len(ids)))
            if keys and len(keys) != len(times):
                raise _bad(path, line, "no input id" if name is None else "an input id where rows before have none")
    except OSError as error:
        raise InputError(f"trace {str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"trace {str(path)!r} is not UTF-8 text: {error.reason}") from None
    if not times:
        raise InputError(f"trace {str(path)!r} holds no arrival", expected="a CSV or JSONL file of timestamps")
    return _in_order(path.name, np.frombuffer(times, np.int64), np.frombuffer(keys, np.int32) if keys else None, ids)


def _in_order(name: str, time_ns: NDArray[np.int64], key: NDArray[np.int32] | None, ids: Mapping[str, int]) -> Trace:
    was_sorted = bool((time_ns[1:] >= time_ns[:-1]).all())
    if not was_sorted:
        # Stable: what arrived at the same moment stays in the order of the file.
        order = np.argsort(time_ns, kind="stable")
        time_ns, key = time_ns[order], None if key is None else key[order]
    return Trace(name, time_ns - time_ns[0], key, tuple(ids), was_sorted)


class _TimeReader:
    """Times of one file: all in one unit, or RFC 3339."""

    def __init__(self, unit: TimeUnit | None) -> None:
        self._unit = unit
        self._guessed: TimeUnit | None = None

    def nanoseconds(self, value: str, column_unit: TimeUnit | None) -> int:
        """Exact nanoseconds; ValueError with the reason where `value` is no time."""
        text = value.strip()
        found = _NUMBER.fullmatch(text)
        if found is None:
            result = self._other(text, column_unit)
        else:
            sign, whole, fraction = found.groups()
            unit = self._unit or column_unit or self._guess(len(whole.lstrip("0")))
            result = int(whole) * _NS[unit]
            if fraction:
                result += int(fraction) * _NS[unit] // 10 ** len(fraction)
            if sign == "-":
                result = -result
        if abs(result) >= _FURTHEST_NS:
            raise ValueError(f"the time {text[:40]!r} is out of range")
        return result

    def _guess(self, digits: int) -> TimeUnit:
        """The unit of plain numbers, from the first one: Unix times of our century have 10, 13, 16 or 19 digits."""
        if self._guessed is None:
            self._guessed = "ns" if digits >= 19 else "us" if digits >= 16 else "ms" if digits >= 13 else "s"
        return self._guessed

    def _other(self, text: str, column_unit: TimeUnit | None) -> int:
        try:
            number = float(text)
        except ValueError:
            number = None
        if number is not None:  # 1e-3 and the like
            if not math.isfinite(number):
                raise ValueError(f"the time {text!r} is not finite")
            scaled = number * _NS[self._unit or column_unit or self._guess(0)]
            if abs(scaled) >= _FURTHEST_NS:
                raise ValueError(f"the time {text[:40]!r} is out of range")
            return round(scaled)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is not a time") from None
        if len(text) < len("2026-01-31T00:00"):
            raise ValueError(f"{text!r} is a day and not a time")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


_Row = tuple[int, TimeUnit | None, str, str | None]
"""Line from 1, the unit its column names, the time, the input id."""


def _csv_rows(path: Path) -> Iterator[_Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        time_at, id_at, unit = 0, 1, None
        first = True
        try:
            for cells in reader:
                if not cells or not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
                    continue
                if first:
                    first = False
                    header = _header(path, reader.line_num, cells)
                    if header is not None:
                        time_at, id_at, unit = header
                        continue
                    id_at = 1 if len(cells) > 1 else -1
                if len(cells) <= max(time_at, id_at):
                    raise _bad(path, reader.line_num, f"{len(cells)} columns", expected=f"{max(time_at, id_at) + 1}")
                yield reader.line_num, unit, cells[time_at], cells[id_at].strip() if id_at >= 0 else None
        except csv.Error as error:
            raise _bad(path, reader.line_num, str(error)) from None


def _header(path: Path, line: int, cells: Sequence[str]) -> tuple[int, int, TimeUnit | None] | None:
    """Where the times and the ids stand and the unit of the times; None where the row holds values already."""
    if any(character.isdigit() for character in cells[0]):
        return None
    names = [cell.strip().lower() for cell in cells]
    time_at, unit = next(((at, found[1]) for at, name in enumerate(names) if (found := _time_key(name))), (-1, None))
    if time_at < 0:
        raise _bad(path, line, f"the columns {', '.join(names)}", expected=f"one called {', '.join(_TIME_COLUMNS)}")
    return time_at, next((names.index(name) for name in _ID_COLUMNS if name in names), -1), unit


def _time_key(name: str) -> tuple[str, TimeUnit | None] | None:
    """A column's name without its unit, and that unit; None where it is no time."""
    if name in _TIME_COLUMNS:
        return name, None
    stem, _, unit = name.rpartition("_")
    for known in ("s", "ms", "us", "ns"):
        if unit == known and stem in _TIME_COLUMNS:
            return stem, known
    return None


def _jsonl_rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                # Numbers stay text, so that nanoseconds of Unix time lose nothing to a float.
                value = json.loads(text, parse_float=str, parse_int=str)
            except ValueError as error:
                raise _bad(path, line, f"not JSON: {error}") from None
            if isinstance(value, str):
                yield line, None, value, None
                continue
            if not isinstance(value, dict):
                raise _bad(path, line, f"{type(value).__name__}", expected="a time, or an object with one")
            time = next(((v, found[1]) for k, v in value.items() if (found := _time_key(k.lower()))), None)
            if time is None or not isinstance(time[0], str):
                raise _bad(path, line, "no time", expected=f"a key called {', '.join(_TIME_COLUMNS)}")
            name = next((value[key] for key in _ID_COLUMNS if key in value), None)
            if name is not None and not isinstance(name, str):
                raise _bad(path, line, "an input id that is neither a text nor a number")
            yield line, time[1], time[0], name


def _bad(path: Path, line: int, given: str, *, expected: str | None = None) -> InputError:
    return InputError(f"{os.fspath(path)}, line {line}: this row makes no sense", given=given, expected=expected)
