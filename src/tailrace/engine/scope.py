"""Which namespaces a stream watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

INTERNAL_DATABASES: Final = frozenset({b"admin", b"config", b"local"})
VIEW_CATALOG: Final = b"system.views"
_SHOWN_SYSTEM_COLLECTIONS: Final = (b"system.resharding.", b"system.buckets.")


class ScopeKind(Enum):
    """How much a stream watches."""

    COLLECTION = "collection"
    DATABASE = "database"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Scope:
    """A collection, a database, or the whole cluster."""

    kind: ScopeKind
    database: bytes = b"admin"
    collection: bytes = b""

    @classmethod
    def of_collection(cls, database: str | bytes, collection: str | bytes) -> Scope:
        """Watch one collection."""
        return cls(ScopeKind.COLLECTION, _utf8(database), _utf8(collection))

    @classmethod
    def of_database(cls, database: str | bytes) -> Scope:
        """Watch all collections of a database but its system collections."""
        return cls(ScopeKind.DATABASE, _utf8(database))

    @classmethod
    def of_cluster(cls) -> Scope:
        """Watch all databases but the internal ones."""
        return cls(ScopeKind.CLUSTER)

    @property
    def namespace(self) -> str:
        """Give the namespace as a server's cursor names it."""
        collection = self.collection or b"$cmd.aggregate"
        return f"{self.database.decode()}.{collection.decode()}"


def _utf8(name: str | bytes) -> bytes:
    return name.encode() if isinstance(name, str) else name


def split_namespace(namespace: bytes) -> tuple[bytes, bytes]:
    """Part `database.collection`; only the collection's name may have dots."""
    database, _, collection = namespace.partition(b".")
    return database, collection


class WatchedNamespaces:
    """Decides by namespace, and remembers the decision: there are few namespaces and many entries."""

    _REMEMBERED: Final = 100_000

    def __init__(self, scope: Scope, *, show_system_events: bool = False, show_view_catalog: bool = False) -> None:
        self.scope = scope
        self._show_system_events = show_system_events
        self._show_view_catalog = show_view_catalog
        self._known: dict[bytes, bool] = {}
        self._watches: Callable[[bytes], bool] = {
            ScopeKind.COLLECTION: self._is_the_collection,
            ScopeKind.DATABASE: self._is_in_database,
            ScopeKind.CLUSTER: self._is_in_cluster,
        }[scope.kind]

    def __contains__(self, namespace: bytes) -> bool:
        """Tell whether documents of this namespace are watched."""
        known = self._known.get(namespace)
        if known is None:
            if len(self._known) >= self._REMEMBERED:
                self._known.clear()
            known = self._known[namespace] = self._watches(namespace)
        return known

    def has_commands_of(self, namespace: bytes) -> bool:
        """Tell whether commands logged under this `database.$cmd` are watched."""
        database, collection = split_namespace(namespace)
        if collection != b"$cmd":
            return False
        if self.scope.kind is ScopeKind.CLUSTER:
            return database not in INTERNAL_DATABASES
        return database == self.scope.database

    def has_collection(self, name: bytes) -> bool:
        """Tell whether a collection of a watched database is watched."""
        if self.scope.kind is ScopeKind.COLLECTION:
            return name == self.scope.collection
        return self._is_shown(name)

    def is_view_catalog(self, namespace: bytes) -> bool:
        """Tell whether the namespace holds the view definitions of a watched database.

        A collection's stream never shows views: nobody can open one on a view.
        """
        if self.scope.kind is ScopeKind.COLLECTION:
            return False
        database, collection = split_namespace(namespace)
        return collection == VIEW_CATALOG and self.has_commands_of(database + b".$cmd")

    def _is_the_collection(self, namespace: bytes) -> bool:
        return split_namespace(namespace) == (self.scope.database, self.scope.collection)

    def _is_in_database(self, namespace: bytes) -> bool:
        database, collection = split_namespace(namespace)
        return database == self.scope.database and self._is_shown(collection)

    def _is_in_cluster(self, namespace: bytes) -> bool:
        database, collection = split_namespace(namespace)
        return database != b"" and database not in INTERNAL_DATABASES and self._is_shown(collection)

    def _is_shown(self, collection: bytes) -> bool:
        if not collection or collection.startswith(b"$"):
            return False
        if not collection.startswith(b"system."):
            return True
        if collection == VIEW_CATALOG:
            return self._show_view_catalog
        return self._show_system_events and (
            collection == b"system.js" or collection.startswith(_SHOWN_SYSTEM_COLLECTIONS)
        )
