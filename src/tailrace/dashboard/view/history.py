"""The last hour of every number that a chart shows, in a fixed amount of memory.

Five minutes are kept by the second and an hour in steps of ten seconds, each of which is the mean of what was measured
in it. A series is two arrays of doubles: 5 kB. There are at most `MOST_SERIES`.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Mapping

from tailrace.dashboard.answers import History

MOST_SERIES = 400
_MISSING = math.nan


class Track:
    """Several series over the same moments: a ring of `length` steps of `step` seconds."""

    def __init__(self, span: str, step: float, length: int) -> None:
        self.span = span
        self._step = step
        self._length = length
        self._times = array("d", [_MISSING]) * length
        self._series: dict[str, array[float]] = {}
        self._counts: dict[str, int] = {}
        self._slot = -1

    def add(self, at: float, points: Mapping[str, float]) -> None:
        """Put points into the step that a moment belongs to; several of a step become their mean."""
        slot = int(at // self._step)
        if slot != self._slot:
            self._turn_to(slot)
        location = slot % self._length
        for name, value in points.items():
            series = self._series.get(name)
            if series is None:
                if len(self._series) >= MOST_SERIES:
                    self._forget_empty()
                if len(self._series) >= MOST_SERIES:
                    continue
                series = self._series[name] = array("d", [_MISSING]) * self._length
            count = self._counts.get(name, 0)
            series[location] = value if count == 0 else series[location] + (value - series[location]) / (count + 1)
            self._counts[name] = count + 1

    def read(self) -> History:
        """Give everything, the oldest first."""
        order = [(self._slot + 1 + number) % self._length for number in range(self._length)]
        locations = [location for location in order if not math.isnan(self._times[location])]
        series = {
            name: [None if math.isnan(values[location]) else round(values[location], 4) for location in locations]
            for name, values in self._series.items()
        }
        return History(self.span, self._step, [self._times[location] for location in locations], series)

    def _turn_to(self, slot: int) -> None:
        """Begin a step; those in between, in which nobody measured, stay empty."""
        first = slot if self._slot < 0 else max(self._slot + 1, slot - self._length + 1)
        for each in range(first, slot + 1):
            location = each % self._length
            self._times[location] = each * self._step
            for series in self._series.values():
                series[location] = _MISSING
        self._slot = slot
        self._counts.clear()

    def _forget_empty(self) -> None:
        for name in [name for name, values in self._series.items() if all(map(math.isnan, values))]:
            del self._series[name]


class HistoryBook:
    """The tracks of all spans; written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracks = {track.span: track for track in (Track("5m", 1.0, 300), Track("1h", 10.0, 360))}

    def add(self, at: float, points: Mapping[str, float]) -> None:
        """Take the points of one moment."""
        with self._lock:
            for track in self._tracks.values():
                track.add(at, points)

    def read(self, span: str) -> History | None:
        """Give the series of a span, `5m` or `1h`."""
        track = self._tracks.get(span)
        if track is None:
            return None
        with self._lock:
            return track.read()
