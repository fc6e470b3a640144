"""A registry without a server, for tests of what formats do with schemas; the real one is asked in `make registry`."""

from __future__ import annotations

from tailrace.capture.formats.registry import Incompatible, SchemaRegistry


class KeepingRegistry(SchemaRegistry):
    """Keeps schemas and takes them all; under FULL none but the first of each subject."""

    __slots__ = ("schemas",)

    def __init__(self, compatibility: str = "BACKWARD") -> None:
        super().__init__("http://nowhere", compatibility)
        object.__setattr__(self, "schemas", {})

    def latest(self, subject: str) -> tuple[int, str] | None:
        found = self.schemas.get(subject)  # type: ignore[attr-defined]
        return (len(found), found[-1]) if found else None

    def register(self, subject: str, schema: str, kind: str, *, is_first: bool) -> int:
        known = self.schemas.setdefault(subject, [])  # type: ignore[attr-defined]
        if known and self.compatibility == "FULL":
            raise Incompatible("no")
        known.append(schema)
        return len(known)
