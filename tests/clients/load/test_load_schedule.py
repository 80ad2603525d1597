"""Timetables: counts, gaps, order, the same from a seed, and the same however they are split over workers."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from tritonstack.errors import UsageError
from tritonstack.load.rate_profile import RateProfile, Segment
from tritonstack.load.schedule import CHUNK, Gaps, Schedule, Timetable, slice_of, steady, timetable_from_json

STEADY = RateProfile.steady
PROFILES = {
    "steady": RateProfile.steady(70.0),
    "ramp up": RateProfile.ramp(0, 200, 30),
    "ramp down": RateProfile.ramp(300, 0, 30),
    "slight ramp": RateProfile.ramp(100, 100.0000001, 30),
    "steps": RateProfile.steps("10:30s,250:10s,0:5s,100:500ms"),
    "pause first": RateProfile.steps("0:5s,400:10s"),
    "pause last": RateProfile.steps("400:10s,0:5s"),
    "mixed": RateProfile((Segment(0, 100, 10), Segment(100, 100, 5), Segment(100, 10, 20)), "mixed", endless=True),
    "with lead": RateProfile.ramp(50, 100, 20).after(4.0),
}
GAPS = [Gaps("constant"), Gaps("poisson"), Gaps("gamma", 0.3), Gaps("gamma", 1.0), Gaps("gamma", 3.0)]


def whole(schedule: Schedule, seed: int, most: int = 20_000) -> NDArray[np.float64]:
    chunks = [dues.offset_s for dues in islice(schedule.chunks(seed), -(-most // CHUNK))]
    return np.concatenate([np.empty(0), *chunks])[:most]


@pytest.mark.parametrize("gaps", GAPS, ids=lambda gaps: gaps.label)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_dues_ascend_from_zero_and_stay_inside_the_profile(profile: RateProfile, gaps: Gaps) -> None:
    for seed in range(5):
        times = whole(Timetable(profile, gaps), seed)
        assert (np.diff(times) >= 0).all()
        assert times[0] >= 0
        if profile.duration_s is not None:
            assert times[-1] < profile.duration_s


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_constant_gaps_send_what_the_integral_of_the_rate_says_at_every_moment(profile: RateProfile) -> None:
    times = whole(Timetable(profile, Gaps("constant")), 0)
    for moment in np.linspace(0.01, min(profile.duration_s or 60.0, times[-1]), 50):
        sent = int(np.searchsorted(times, moment, side="left"))
        assert abs(sent - np.ceil(profile.passed(float(moment)))) <= 1, moment


@pytest.mark.parametrize("name", ["ramp up", "ramp down", "steps", "pause first", "pause last", "with lead"])
def test_poisson_counts_follow_the_profile(name: str) -> None:
    profile = PROFILES[name]
    assert profile.duration_s is not None
    edges = np.linspace(0, profile.duration_s, 7)
    counts = np.array([np.histogram(whole(Timetable(profile), seed), edges)[0] for seed in range(200)])
    wanted = np.diff([profile.passed(float(edge)) for edge in edges])
    # Counts of an inhomogeneous Poisson process: mean and variance are the integral; five standard errors.
    assert np.abs(counts.mean(axis=0) - wanted).max() <= 5 * np.sqrt(wanted.max() / 200)
    busy = wanted > 20
    assert counts.var(axis=0)[busy] == pytest.approx(wanted[busy], rel=0.6)


@pytest.mark.parametrize("burstiness", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("rate", [0.5, 100.0, 25_000.0])
def test_burstiness_is_the_coefficient_of_variation_of_the_gaps(rate: float, burstiness: float) -> None:
    count = 200_000
    gaps = np.diff(whole(steady(rate, "gamma", burstiness=burstiness), 3, count))
    assert gaps.mean() * rate == pytest.approx(1, abs=5 * burstiness / np.sqrt(count))
    # The relative error of a sample deviation grows with the kurtosis, 3 + 6 cv² for gamma.
    error = np.sqrt((2 + 6 * burstiness**2) / count) / 2
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=5 * error)


def test_gamma_of_burstiness_one_is_poisson() -> None:
    gaps = np.sort(np.diff(whole(steady(1.0, "gamma", burstiness=1.0), 1, 100_000)))
    distance = np.abs((1 - np.exp(-gaps)) - np.arange(1, len(gaps) + 1) / len(gaps)).max()
    assert distance < 1.95 / np.sqrt(len(gaps))


@pytest.mark.parametrize("gaps", GAPS, ids=lambda gaps: gaps.label)
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64])
def test_slices_of_any_number_of_workers_add_up_to_the_same_timetable(workers: int, gaps: Gaps) -> None:
    table = Timetable(RateProfile.steps("900:5s,0:1s,2000:3s"), gaps)
    parts = [list(slice_of(table, 11, worker=w, workers=workers)) for w in range(workers)]
    numbers = np.concatenate([dues.number for part in parts for dues in part])
    times = np.concatenate([dues.offset_s for part in parts for dues in part])
    order = np.argsort(numbers)
    assert np.array_equal(numbers[order], np.arange(len(numbers)))
    assert np.array_equal(times[order], whole(table, 11)), "the very same moments, to the last bit"
    for worker, part in enumerate(parts):
        for dues in part:
            assert (dues.number % workers == worker).all()
            assert np.array_equal(dues.entries(5), dues.number % 5)


def test_the_same_seed_gives_the_same_bits_everywhere() -> None:
    """Moments written down once: another machine or another numpy must not draw other ones."""
    assert whole(steady(1000.0), 42, 3).tolist() == [
        0.001487025823444128,
        0.002064843535423279,
        0.004020991350524128,
    ]
    assert np.array_equal(whole(steady(10.0), 5), whole(steady(10.0), 5))
    assert not np.array_equal(whole(steady(10.0), 5), whole(steady(10.0), 6))


def test_a_long_timetable_does_not_drift() -> None:
    rate, count = 30_000.0, 3_000_000
    last = None
    for dues in islice(steady(rate).chunks(9), count // CHUNK):
        last = dues
    assert last is not None
    reached = int(last.number[-1]) + 1
    assert last.offset_s[-1] * rate == pytest.approx(reached, abs=5 * np.sqrt(reached))


@pytest.mark.parametrize("gaps", GAPS, ids=lambda gaps: gaps.label)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_json_brings_back_the_same_timetable(profile: RateProfile, gaps: Gaps) -> None:
    table = Timetable(profile, gaps)
    again = timetable_from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    assert again.label == table.label
    assert np.array_equal(whole(again, 2), whole(table, 2))


def test_a_lead_holds_the_first_rate_and_moves_the_rest() -> None:
    table = Timetable(RateProfile.steps("10:10s,100:10s"), Gaps("constant")).after(5.0)
    times = whole(table, 0)
    assert table.duration_s == 25
    assert np.histogram(times, [0, 5, 15, 25])[0].tolist() == [50, 100, 1000]
    assert steady(7.0).after(5.0) == steady(7.0)


def test_what_is_left_of_a_timetable() -> None:
    table = Timetable(RateProfile.ramp(0, 10, 10))
    assert table.remaining(0, 10) == pytest.approx(50)
    assert table.remaining(5, 10) == pytest.approx(37.5)
    assert table.remaining(10, 100) == 0
    assert steady(7.0).remaining(10, 12) == pytest.approx(14)
    assert table.mean_rate == 5


def test_labels_say_what_is_sent() -> None:
    assert steady(300.0).label == "rate 300/s poisson"
    assert steady(0.5, "gamma", burstiness=2.0).label == "rate 0.5/s gamma (burstiness 2)"
    assert Timetable(RateProfile.ramp(1, 50, 60), Gaps("constant")).label == "ramp 1 to 50/s in 60 s constant"
    assert Timetable(RateProfile.steps("10:30s, 50:1m")).label == "steps 10:30s,50:1m poisson"


@pytest.mark.parametrize(
    "text", ["", "10", "10:", ":30s", "10:30x", "10:30s,", "a:1s", "10:30s;20:1s", "1:2:3", "--1:3"]
)
def test_steps_that_make_no_sense_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a step of a rate profile.*RATE:TIME"):
        RateProfile.steps(text)


@pytest.mark.parametrize("text", ["-5:3s", "nan:3s", "10:0s", "10:-1s", "0:5s,0:1m", "10:inf"])
def test_steps_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        RateProfile.steps(text)


@pytest.mark.parametrize(("start", "end", "duration_s"), [(-1, 5, 3), (0, 0, 3), (1, 2, 0), (1, float("inf"), 3)])
def test_ramps_without_meaning_are_refused(start: float, end: float, duration_s: float) -> None:
    with pytest.raises(UsageError):
        RateProfile.ramp(start, end, duration_s)


@pytest.mark.parametrize("burstiness", [0.0, -1.0, float("nan"), 21.0])
def test_a_burstiness_without_meaning_is_refused(burstiness: float) -> None:
    with pytest.raises(UsageError, match="coefficient of variation"):
        Gaps("gamma", burstiness)


def test_burstiness_belongs_to_gamma_and_kinds_are_known() -> None:
    with pytest.raises(UsageError, match="no burstiness"):
        Gaps("poisson", 2.0)
    with pytest.raises(UsageError, match="constant, poisson or gamma"):
        Gaps("pareto")  # type: ignore[arg-type]


def test_a_worker_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="worker 2 of 2"):
        next(slice_of(steady(1.0), 0, worker=2, workers=2))


def test_a_timetable_from_foreign_json_is_refused() -> None:
    for document in ({}, {"profile": {}}, {"profile": {"segments": [[1]], "label": "", "endless": False}}):
        with pytest.raises(UsageError):
            timetable_from_json(document)
