"""What was found of each kind of event, and which kinds are therefore believed; kept over restarts."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import bson
from bson.binary import Binary

from tailrace import raw
from tailrace.errors import BsonMalformed, SettingsError
from tailrace.logs import get_logger
from tailrace.policy import NO_POLICY, Policy
from tailrace.proof.comparator import Comparison, is_mark
from tailrace.proof.kind import MARK, Kind

_log: Final = get_logger("tailrace.proof")
_KEPT_OF_A_KIND: Final = 3
"""So many differences are logged and kept as evidence; all are counted."""

MARKS: Final = 3
"""So many positions between events have to be identical: they hold nothing but a time and a version, and a busy stream
has few of them."""

Saved = dict[str, Any]


class Trust(StrEnum):
    """What is believed of a kind."""

    UNPROVED = "unproved"
    TRUSTED = "trusted"
    DISTRUSTED = "distrusted"
    """It was different once: for good."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One event that the two sides made differently: the evidence."""

    kind: Kind
    server: bytes | None
    """None: the server has no such event."""
    engine: bytes | None
    """None: the engine made none."""

    @property
    def message(self) -> str:
        """Say where the two part."""
        if self.server is None:
            return f"the engine makes an event {self.kind.name} that the server does not have"
        if self.engine is None:
            return f"the server has an event {self.kind.name} that the engine does not make"
        return f"the engine's {self.kind.name} is not the server's: {_first_difference(self.server, self.engine)}"

    def evidence(self) -> bytes:
        """Give both byte strings as one BSON document."""
        sides = {"server": self.server, "engine": self.engine}
        found = {name: None if data is None else Binary(data) for name, data in sides.items()}
        return bson.encode({"kind": self.kind.key, **found})

    def to_json(self) -> dict[str, Any]:
        """Give the evidence as a report has it."""
        sides = {"server": self.server, "engine": self.engine}
        encoded = {name: None if data is None else base64.b64encode(data).decode() for name, data in sides.items()}
        return {"kind": self.kind.key, "message": self.message, **encoded}


@dataclass(slots=True)
class KindRecord:
    """What was found of one kind."""

    identical: int = 0
    different: int = 0


class TrustLedger:
    """Counts what was compared, kind by kind; may be asked from any thread."""

    def __init__(
        self,
        server: str,
        needed: int,
        *,
        presumes: bool = False,
        saved: Mapping[str, Any] | None = None,
        save: Callable[[Saved], object] = lambda _: None,
        on_difference: Callable[[Difference], object] = lambda _: None,
        on_note: Callable[[TrustLedger], object] = lambda _: None,
        policy: Policy = NO_POLICY,
    ) -> None:
        """`server` is the build that everything is believed of: what is saved of another one counts for nothing.

        A kind is believed after `needed` events of it were the same; with `presumes` from the start, because the
        version is one that was compared before. `save` keeps the ledger, `on_difference` the evidence, as far as the
        policy lets documents out; `on_note` is called whenever something was compared.
        """
        self.server = server
        self.presumes = presumes
        self.differences: list[Difference] = []
        """The first ones of each kind."""
        self._needed = needed
        self._save = save
        self._on_difference = on_difference
        self._on_note = on_note
        self._policy = policy
        self._lock = threading.Lock()
        self._kinds: dict[Kind, KindRecord] = {}
        self._doubts: frozenset[Kind] = frozenset()
        if saved is not None and saved.get("server") == server:
            self._kinds = {Kind.parse(key): KindRecord(*counts) for key, counts in saved["kinds"].items()}
            self._doubts = frozenset(map(Kind.parse, saved["doubts"]))

    @property
    def has_doubts(self) -> bool:
        """Whether a kind was different."""
        return bool(self._doubts)

    def trust(self, kind: Kind) -> Trust:
        """Give what is believed of a kind."""
        if kind in self._doubts:
            return Trust.DISTRUSTED
        record = self._kinds.get(kind)
        proved = self.presumes or (record is not None and record.identical >= self._needed_of(kind))
        return Trust.TRUSTED if proved else Trust.UNPROVED

    def _needed_of(self, kind: Kind) -> int:
        return min(self._needed, MARKS) if kind == MARK else self._needed

    def trusts(self, kind: Kind) -> bool:
        """Return whether events of a kind may come from the engine."""
        return self.trust(kind) is Trust.TRUSTED

    def untrusted_at(self, events: Iterable[bytes]) -> int | None:
        """Give the index of the first event that may not come from the engine; None when all may."""
        if self.presumes and not self._doubts:
            return None
        return next((index for index, event in enumerate(events) if not self.trusts(Kind.of(event))), None)

    def trusts_position(self, token: bytes | None) -> bool:
        """Return whether a position may come from the engine: one between events is a kind of its own."""
        return self.trusts(MARK) or token is None or not is_mark(token)

    @property
    def may_serve(self) -> bool:
        """Return whether anything may come from the engine: not when it passes over events, or its positions differ."""
        return MARK not in self._doubts and (self.presumes or any(map(self.trusts, self.kinds())))

    def note(self, comparisons: Iterable[Comparison]) -> None:
        """Take in what was compared; a difference is saved, with its evidence, before this returns."""
        changed = False
        for found in comparisons:
            with self._lock:
                record = self._kinds.setdefault(found.kind, KindRecord())
                if found.is_same:
                    record.identical += 1
                    changed |= record.identical == self._needed_of(found.kind)
                    continue
                record.different += 1
                self._doubts |= _doubtful(found)
            if record.different <= _KEPT_OF_A_KIND:
                changed = True
                self._differed(Difference(found.kind, found.server, found.engine))
        if changed:
            self._save(self.to_save())
        self._on_note(self)

    def _differed(self, found: Difference) -> None:
        _log.error("engine_differs", kind=found.kind.key, message=found.message, server=self.server)
        shown = self._policy.event_or_stripped
        kept = Difference(found.kind, *(side and shown(side) for side in (found.server, found.engine)))
        self.differences.append(kept)
        self._on_difference(kept)

    def kinds(self) -> dict[Kind, KindRecord]:
        """Give what was found so far, by kind."""
        with self._lock:
            return {kind: KindRecord(each.identical, each.different) for kind, each in self._kinds.items()}

    def counts(self) -> dict[tuple[str, str], int]:
        """Give how many events were identical and different, by operation and kind of namespace."""
        found: Counter[tuple[str, str]] = Counter()
        for kind, record in self.kinds().items():
            found[kind.name, "identical"] += record.identical
            found[kind.name, "different"] += record.different
        return dict(found)

    def by_trust(self) -> dict[str, int]:
        """Give how many kinds are believed, how many not yet, and how many no more."""
        found = Counter(self.trust(kind) for kind in self.kinds())
        return {trust.value: found[trust] for trust in Trust}

    def to_save(self) -> Saved:
        """Give the ledger as a store keeps it."""
        kinds = {kind.key: [record.identical, record.different] for kind, record in self.kinds().items()}
        return {"server": self.server, "kinds": kinds, "doubts": sorted(kind.key for kind in self._doubts)}


def _doubtful(found: Comparison) -> set[Kind]:
    """Give the kinds that a difference puts in doubt: what the server calls it, and what the engine took it for.

    Where the engine makes nothing, its positions pass over events, and it would not know when to give way.
    """
    if found.engine is None:
        return {found.kind, MARK}
    return {found.kind} if found.kind == MARK else {found.kind, Kind.of(found.engine)}


class LedgerFile:
    """A ledger in a file, and the evidence in another beside it, one JSON object a line."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.json"
        self.evidence = folder / f"{name}.differences.jsonl"

    def read(self) -> Saved | None:
        """Give what was saved; None when nothing was."""
        try:
            found: Saved = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            hint = "Remove the file: the engine then proves itself anew."
            raise SettingsError(f"the ledger {self._file} cannot be read: {error}", hint=hint) from None
        return found

    def save(self, ledger: Saved) -> None:
        """Replace the file as one step."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(".new")
        with written.open("w") as file:
            json.dump(ledger, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._file)

    def keep(self, difference: Difference) -> None:
        """Append the evidence of one difference."""
        self.evidence.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"at": datetime.now(UTC).isoformat(), **difference.to_json()})
        with self.evidence.open("a") as file:
            file.write(line + "\n")


def _first_difference(server: bytes, engine: bytes) -> str:
    """Name the first field that is not the same."""
    try:
        ours, theirs = ([(name, kind, doc[begin:end]) for kind, name, begin, end in raw.elements(doc)]
                        for doc in (server, engine))  # fmt: skip
    except BsonMalformed as error:
        return error.message
    for left, right in zip(ours, theirs, strict=False):
        if left[0] != right[0]:
            return f"{left[0].decode()} stands where {right[0].decode()} should not"
        if left != right:
            return f"{left[0].decode()} differs"
    shorter, longer = sorted((ours, theirs), key=len)
    extra = [name.decode() for name, _, _ in longer[len(shorter) :]]
    return f"{', '.join(extra) or 'the bytes'} on one side only"


def build_name(build: Mapping[str, Any]) -> str:
    """Name a build as `buildInfo` gives it: two of the same version may be two vendors'."""
    return f"{build['version']} {build.get('gitVersion', '')}".strip()
