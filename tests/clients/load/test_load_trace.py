"""Recorded arrivals: what files may hold, what is refused and with which line, and how they are replayed."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from tritonstack.errors import InputError, UsageError
from tritonstack.load.schedule import slice_of
from tritonstack.load.trace import Trace, read_trace, trace_from_json


def write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def seconds(trace: Trace) -> list[float]:
    return [ns / 1e9 for ns in trace.time_ns.tolist()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "0\n0.5\n2\n"),
        ("a.csv", "timestamp\n10\n10.5\n12\n"),
        ("a.csv", "time_ms\n0\n500\n2000\n"),
        ("a.csv", "other,ts_us\nx,7\nx,500007\nx,2000007\n"),
        ("a.csv", "arrival_ns\n0\n500000000\n2000000000\n"),
        ("a.csv", "# recorded\n\n1e0\n1.5e0\n3\n"),
        ("a.csv", "1767225600\n1767225600.5\n1767225602\n"),
        ("a.csv", "1767225600000\n1767225600500\n1767225602000\n"),
        ("a.csv", "1767225600000000\n1767225600500000\n1767225602000000\n"),
        ("a.csv", "1767225600000000000\n1767225600500000000\n1767225602000000000\n"),
        ("a.csv", "2026-01-01T00:00:00Z\n2026-01-01T00:00:00.5Z\n2026-01-01T01:00:02+01:00\n"),
        ("a.csv", "-1\n-0.5\n1\n"),
        ("a.jsonl", "0\n0.5\n2\n"),
        ("a.jsonl", '{"timestamp": 1.0}\n\n{"timestamp": 1.5}\n{"timestamp": 3}\n'),
        ("a.jsonl", '{"time_ms": 1}\n{"time_ms": "501"}\n{"time_ms": 2001}\n'),
        ("a.jsonl", '"2026-01-01 00:00:00"\n"2026-01-01 00:00:00.500000"\n"2026-01-01T00:00:02"\n'),
    ],
)
def test_times_of_every_form(tmp_path: Path, name: str, text: str) -> None:
    trace = read_trace(write(tmp_path, text, name))
    assert seconds(trace) == [0, 0.5, 2]
    assert trace.was_sorted
    assert trace.key is None


def test_nanoseconds_of_unix_time_lose_nothing(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl"):
        trace = read_trace(write(tmp_path, "1767225600000000001\n1767225600000000002\n1767225600000000009\n", name))
        assert trace.time_ns.tolist() == [0, 1, 8]


def test_a_unit_from_the_outside_beats_the_guess(tmp_path: Path) -> None:
    path = write(tmp_path, "0\n250\n")
    assert seconds(read_trace(path, unit="ms")) == [0, 0.25]
    assert read_trace(path, unit="us").time_ns.tolist() == [0, 250_000]


def test_rows_are_sorted_and_keep_their_order_at_one_moment(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "time,id\n3,c\n1,a\n1,b\n0,a\n"))
    assert not trace.was_sorted
    assert seconds(trace) == [0, 1, 1, 3]
    assert trace.key is not None
    assert [trace.ids[key] for key in trace.key] == ["a", "a", "b", "c"]


def test_ids_become_entries_of_the_pool(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, '{"t": 0, "input": "größe"}\n{"t": 1, "input": "b"}\n', "a.jsonl"))
    schedule = trace.schedule().with_pool(["b", "", "größe"])
    (dues,) = schedule.chunks(0)
    assert dues.entries(3).tolist() == [2, 0]
    with pytest.raises(InputError, match=r"not among the requests.*'b'"):
        trace.schedule().with_pool(["größe"])


def test_numbers_count_the_requests_of_a_pool_without_ids(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "0,4\n1,0\n2,4\n"))
    (dues,) = trace.schedule().chunks(0)
    assert dues.entries(10).tolist() == [4, 0, 4]
    assert next(trace.schedule().with_pool(["", ""]).chunks(0)).entries(2).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="a number that counts"):
        next(read_trace(write(tmp_path, "0,x\n")).schedule().chunks(0))


def test_speed_and_lead_move_the_moments(tmp_path: Path) -> None:
    schedule = read_trace(write(tmp_path, "0\n1\n4\n")).schedule(speed=2)
    assert next(schedule.chunks(0)).offset_s.tolist() == [0, 0.5, 2]
    assert next(schedule.after(3).chunks(0)).offset_s.tolist() == [3, 3.5, 5]
    assert schedule.mean_rate == 1.0
    assert schedule.duration_s == pytest.approx(2)
    assert schedule.duration_s > 2, "the last arrival lies inside"
    assert schedule.after(3).remaining(3, 4) == 2
    assert schedule.label == "trace trace.csv ×2"
    for speed in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="speed above 0"):
            read_trace(write(tmp_path, "0\n")).schedule(speed=speed)


@pytest.mark.parametrize(
    ("name", "text", "line", "what"),
    [
        ("a.csv", "0\n1\nlater\n", 3, "'later' is not a time"),
        ("a.csv", "time,id\n0,a\n1\n", 3, "1 columns"),
        ("a.csv", "0\nnan\n", 2, "not finite"),
        ("a.csv", "0\n1e300\n", 2, "out of range"),
        ("a.csv", "0\n99999999999999999999999\n", 2, "out of range"),
        ("a.csv", "0\n2026-01-01\n", 2, "a day and not a time"),
        ("a.csv", "colour,shape\nred,round\n", 1, "colour, shape"),
        ("a.csv", "0\n\n\n1,5\nx\n", 5, "'x' is not a time"),
        ("a.jsonl", '{"t": 0}\n{"t": \n', 2, "not JSON"),
        ("a.jsonl", '{"t": 0}\n[1]\n', 2, "list"),
        ("a.jsonl", '{"t": 0}\n{"when": 1}\n', 2, "no time"),
        ("a.jsonl", '{"t": 0}\ntrue\n', 2, "bool"),
        ("a.jsonl", '{"t": 0, "id": "a"}\n{"t": 1}\n', 2, "no input id"),
        ("a.jsonl", '{"t": 0}\n{"t": 1, "id": "a"}\n', 2, "rows before have none"),
        ("a.jsonl", '{"t": 0, "id": [1]}\n', 1, "neither a text nor a number"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, name: str, text: str, line: int, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(write(tmp_path, text, name))
    assert f"line {line}:" in str(caught.value)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="holds no arrival"):
        read_trace(write(tmp_path, "timestamp\n"))
    (tmp_path / "b.csv").write_bytes(b"0\n\xff\xfe\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_trace(tmp_path / "b.csv")


def test_a_trace_goes_to_workers_as_json_and_columns(tmp_path: Path) -> None:
    text = "time,input\n" + "".join(f"{number / 1000},{number * 7 % 5}\n" for number in range(10_000))
    schedule = read_trace(write(tmp_path, text)).schedule(speed=3).after(1.5)
    again = trace_from_json(schedule.to_json(), schedule.columns())
    assert again.label == schedule.label
    parts = [dues for worker in range(3) for dues in slice_of(again, 0, worker=worker, workers=3)]
    order = np.argsort(np.concatenate([dues.number for dues in parts]))
    times = np.concatenate([dues.offset_s for dues in parts])[order]
    entries = np.concatenate([dues.entries(5) for dues in parts])[order]
    assert np.array_equal(times, np.concatenate([dues.offset_s for dues in schedule.chunks(0)]))
    assert np.array_equal(entries, np.arange(10_000) * 7 % 5)
    with pytest.raises(UsageError, match="columns of a trace"):
        trace_from_json(schedule.to_json(), schedule.columns()[:-1])


def test_a_million_rows_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("time_us,input\n")
        file.writelines(f"{number * 100},{number % 1000}\n" for number in range(1_000_000))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = read_trace(path)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert len(trace) == 1_000_000
    assert len(trace.ids) == 1000
    assert trace.schedule().mean_rate == pytest.approx(10_000, rel=1e-5)
    # 12 bytes a row, twice while arrays grow and are moved to start at 0.
    assert grown_kb < 60_000
