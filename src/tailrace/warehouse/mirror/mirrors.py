"""The mirrors of one warehouse, opened when they are first needed."""

from __future__ import annotations

import threading

from tailrace.settings import WarehouseSettings
from tailrace.warehouse.columns.contract import Rules
from tailrace.warehouse.mirror.mirror import Mirror
from tailrace.warehouse.tables.format import Lake, Name
from tailrace.warehouse.tables.names import mirror_table


class Mirrors:
    """Opens mirrors by namespace; `suffix` is for tables that are built beside the real ones."""

    def __init__(self, lake: Lake, settings: WarehouseSettings, suffix: str = "") -> None:
        self._lake = lake
        self._settings = settings
        self._suffix = suffix
        self._opened: dict[str, Mirror] = {}
        self._lock = threading.Lock()

    def get(self, namespace: str) -> Mirror:
        """Open a mirror; it is made when there is none."""
        with self._lock:
            if namespace not in self._opened:
                rules = Rules.of(self._settings, namespace)
                self._opened[namespace] = Mirror(self._lake, namespace, rules, self.table(namespace))
            return self._opened[namespace]

    def table(self, namespace: str) -> Name:
        """Give where a mirror is."""
        database, name = mirror_table(namespace)
        return database, f"{name}{self._suffix}"

    def exists(self, namespace: str) -> bool:
        """Tell whether there is a mirror."""
        return self._lake.exists(self.table(namespace))

    def of_database(self, database: str) -> list[str]:
        """Give the collections of a database that have mirrors."""
        found = [state.namespace for state in self._lake.states() if state.kind == "mirror"]
        return sorted({name for name in found if name.startswith(f"{database}.")})

    def drop(self, namespace: str) -> None:
        """Remove a mirror with its files."""
        with self._lock:
            self._opened.pop(namespace, None)
        self._lake.drop(self.table(namespace))
