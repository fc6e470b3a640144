"""An hour of history in a fixed amount of memory, means in location of many values, and gaps that stay gaps."""

from __future__ import annotations

from tailrace.dashboard.view.history import MOST_SERIES, HistoryBook, Track


def test_five_minutes_by_the_second_and_an_hour_in_steps_of_ten() -> None:
    book = HistoryBook()
    for second in range(1_000, 8_000):
        book.add(second + 0.5, {"lag": float(second)})
    short, long = book.read("5m"), book.read("1h")
    assert short is not None
    assert long is not None
    assert (len(short.at), short.at[0], short.at[-1]) == (300, 7_700.0, 7_999.0)
    assert short.series["lag"][-1] == 7_999.0
    assert (len(long.at), long.at[-1]) == (360, 7_990.0)
    assert long.series["lag"][-1] == sum(range(7_990, 8_000)) / 10
    assert book.read("1d") is None


def test_moments_without_a_measurement_stay_empty() -> None:
    track = Track("5m", 1.0, 5)
    track.add(10.0, {"a": 1.0})
    track.add(13.0, {"b": 2.0})
    found = track.read()
    assert found.at == [10.0, 11.0, 12.0, 13.0]
    assert found.series == {"a": [1.0, None, None, None], "b": [None, None, None, 2.0]}


def test_a_long_silence_leaves_nothing_old_behind() -> None:
    track = Track("5m", 1.0, 5)
    track.add(10.0, {"a": 1.0})
    track.add(1_000.0, {"a": 2.0})
    assert track.read().series["a"] == [None, None, None, None, 2.0]


def test_there_are_never_more_series_than_fit_and_dead_ones_make_room() -> None:
    track = Track("5m", 1.0, 3)
    track.add(1.0, {f"old{number}": 1.0 for number in range(MOST_SERIES + 50)})
    assert len(track.read().series) == MOST_SERIES
    track.add(100.0, {"new": 1.0})
    assert track.read().series["new"][-1] == 1.0
