"""How many events of a namespace a job has come past, by the cluster time it says it has reached."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict

_SECONDS_KEPT = 900
_MOST_NAMESPACES = 200


class PassedEvents:
    """Counts live events by the second they happened in; written by one thread, read by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, OrderedDict[int, int]] = defaultdict(OrderedDict)
        self._forgotten: dict[str, int] = defaultdict(int)

    def add(self, namespace: str, second: int) -> None:
        """Count an event."""
        with self._lock:
            if namespace not in self._seconds and len(self._seconds) >= _MOST_NAMESPACES:
                return
            seconds = self._seconds[namespace]
            seconds[second] = seconds.get(second, 0) + 1
            if len(seconds) > _SECONDS_KEPT:
                _, count = seconds.popitem(last=False)
                self._forgotten[namespace] += count

    def up_to(self, namespace: str, second: int) -> int:
        """Give how many events were counted up to a second; grows as the second does."""
        with self._lock:
            seconds = self._seconds.get(namespace) or OrderedDict[int, int]()
            return self._forgotten[namespace] + sum(count for at, count in seconds.items() if at <= second)
