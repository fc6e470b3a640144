"""Random documents whose values are marked, random policies, and what a policy hides by the words of the documentation.

The oracle here knows nothing of the product's state machine: it matches each path against each rule by trying all ways.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from tailrace.policy import Action, Kind, Policy, Rule
from tailrace.token import ResumeToken
from tailrace.token.resume_token import TokenData

NAMES = ("a", "b", "email", "ssn", "address", "d.e", "7")
DATABASE, COLLECTION = "shop", "people"
NAMESPACE = f"{DATABASE}.{COLLECTION}"
KEY = b"0123456789abcdef"
_PATHS = (
    "a", "b", "email", "ssn", "address", "a.b", "a.*.email", "**.ssn", "**.email", "address.*", "a.0", "b.1.a",
    "d.e", "d", "*.a", "a.**.b", "address.**", "7", "b.7.a", "_id", "_id.a",
)  # fmt: skip
_LENGTHS = (0, 3, 9)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OBJECT_ID_DIGITS, _DATE_DIGITS = 24, 12
Path = tuple[str, ...]
"""Names and positions; a position begins with `#`."""


@dataclass(frozen=True)
class Spoken:
    """A rule as a person reads it; without an action it is one of an allow-list."""

    path: str
    action: Kind | None
    length: int = 0


def random_rules(chance: random.Random) -> list[Spoken]:
    """One to four rules; `_id` is only ever hashed or kept, as the settings demand."""
    rules = []
    for _ in range(chance.randint(1, 4)):
        path, action = chance.choice(_PATHS), chance.choice([*Kind, None])
        if path.startswith("_id") and action is not None:
            action = Kind.HASH
        rules.append(Spoken(path, action, chance.choice(_LENGTHS)))
    return rules


def policy_of(rules: list[Spoken]) -> Policy:
    """Make the product's policy."""
    made = (Rule((NAMESPACE,), (r.path,), None if r.action is None else Action(r.action, r.length)) for r in rules)
    return Policy(made, KEY)


def settings_of(rules: list[Spoken]) -> list[dict[str, Any]]:
    """Give the rules as the section `[policy]` of the settings has them, for every collection."""
    return [
        {"fields": [rule.path], "action": "only" if rule.action is None else str(rule.action)}
        | ({"length": rule.length} if rule.action is Kind.TRUNCATE else {})
        for rule in rules
    ]


def found_in(output: bytes, mark: str) -> bool:
    """Whether a mark stands in an output, in any of the ways that one is spelt."""
    return any(each in output for each in _spellings(mark))


@lru_cache(maxsize=100_000)
def _spellings(mark: str) -> tuple[bytes, ...]:
    """A text as it is, in hexadecimal digits and in base64; a number, a date or an ObjectId in its bytes too."""
    text = mark.encode()
    found = [text, text.hex().encode(), text.hex().upper().encode(), *_in_base64(text)]
    if len(mark) == _OBJECT_ID_DIGITS:
        found += [text.upper(), bytes.fromhex(mark), *_in_base64(bytes.fromhex(mark))]
    elif mark.isdigit():
        found += _of_number(int(mark))
    if len(mark) == _DATE_DIGITS:
        moment = _EPOCH + timedelta(milliseconds=int(mark))
        found += [moment.strftime(f"%Y-%m-%d{between}%H:%M:%S").encode() for between in " T"]
        found.append(f"{moment:%Y}, {moment.month}, {moment.day}, {moment.hour}, {moment.minute}, ".encode())
    return tuple(found)


def _of_number(number: int) -> Iterator[bytes]:
    """As BSON has it (and the digits of a decimal), as Avro does, and in the hexadecimal digits of a resume token."""
    little = number.to_bytes(8, "little")
    yield from (little, *_in_base64(little))
    yield f"{number:x}".upper().encode()
    yield f"{number << 1:x}".upper().encode()
    left, varint = number << 1, bytearray()
    while left:
        varint.append(left & 0x7F | (0x80 if left >> 7 else 0))
        left >>= 7
    yield bytes(varint)


def _in_base64(text: bytes) -> Iterator[bytes]:
    """Give the digits of base64 that a text alone decides, for each of the three ways it can be aligned."""
    for shift in range(3):
        begin, end = 8 * shift, 8 * (shift + len(text))
        yield base64.b64encode(b"x" * shift + text)[-(-begin // 6) : end // 6]


def hides(rules: list[Spoken], path: Path, leaf: Any) -> bool:
    """Whether the whole text of a leaf must not leave the process."""
    covering = [rule for rule in rules if _covers(rule.path.split("."), path)]
    if path[0] == "_id":
        return any(rule.action is Kind.HASH for rule in covering)
    if any(rule.action is None for rule in rules) and not any(rule.action is None for rule in covering):
        return True
    actions = {rule.action for rule in covering}
    if actions & {Kind.DROP, Kind.MASK, Kind.HASH}:
        return True
    is_cut = isinstance(leaf, str | bytes) and not (isinstance(leaf, Code) and leaf.scope is not None)
    return Kind.TRUNCATE in actions and is_cut


def _covers(pattern: list[str], path: Path) -> bool:
    """Whether a rule's path is that of the leaf or of something above it; `_id` is only reached by its name."""
    if path[0] == "_id" and pattern[0] != "_id":
        return False
    return _begins(pattern, path)


def _begins(pattern: list[str], path: Path) -> bool:
    if not pattern:
        return True
    if pattern[0] == "**" and _begins(pattern[1:], path):
        return True
    if not path:
        return False
    name, rest = path[0], path[1:]
    if name.startswith("#") and _begins(pattern, rest):  # a position needs no name
        return True
    if pattern[0] == "**":
        return _begins(pattern, rest)
    return pattern[0] in ("*", name.removeprefix("#")) and _begins(pattern[1:], rest)


@dataclass(frozen=True)
class Canary:
    """An event with its marks: those that must not be found anywhere, and those that must be."""

    event: bytes
    hidden: tuple[str, ...]
    shown: tuple[str, ...]


class Canaries:
    """An endless supply of marked events under changing policies."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._numbers = count(1)
        self.rules: list[Spoken] = []

    def new_policy(self) -> Policy:
        """Change the policy that `canary` reckons with."""
        self.rules = random_rules(self._chance)
        return policy_of(self.rules)

    def canary(self) -> Canary:
        """Make an event of a random kind."""
        chance, marks = self._chance, dict[str, bool]()
        operation = chance.choice(["insert", "update", "update", "replace", "delete", "read"])
        key = {"_id": self._document(("_id",), marks, 1) if chance.random() < 0.2 else self._leaf(("_id",), marks)}
        at = Timestamp(next(self._numbers), 1)
        data = TokenData(at, uuid=bytes(16), event_identifier=bson.encode(key))
        parts: dict[str, Any] = {
            "_id": ResumeToken.encode(data).to_document(), "operationType": operation, "clusterTime": at,
            "ns": {"db": DATABASE, "coll": COLLECTION}, "documentKey": key,
        }  # fmt: skip
        if operation != "delete":
            document = {**key, **self._document((), marks, 3)}
            parts["fullDocument"] = document
        if operation in ("delete", "replace"):
            parts["fullDocumentBeforeChange"] = {**key, **self._document((), marks, 2)}
        if operation == "update":
            parts["updateDescription"] = self._update(document)
        by_hidden = {wanted: tuple(m for m, hidden in marks.items() if hidden is wanted) for wanted in (True, False)}
        return Canary(bson.encode(parts), by_hidden[True], by_hidden[False])

    def write(self, collection: Collection[Any], count: int) -> tuple[set[str], set[str]]:
        """Change a real collection so many times; gives the marks that are to be hidden, and those that are not.

        Updates replace the document by a pipeline, so that the server itself says what differs: by paths, through
        arrays, with arrays cut short.
        """
        marks, keys = dict[str, bool](), list[Any]()
        for _ in range(count):
            verb = self._chance.choice(["insert", "insert", "update", "update", "replace", "delete"])
            if verb == "insert" or not keys:
                key = self._leaf(("_id",), marks)
                collection.insert_one({"_id": key, "at": datetime.now(UTC), **self._document((), marks, 3)})
                keys.append(key)
                continue
            key = self._chance.choice(keys)
            if verb == "delete":
                keys.remove(key)
                collection.delete_one({"_id": key})
                continue
            new = {"_id": key, "at": datetime.now(UTC), **self._document((), marks, 3)}
            if verb == "update":
                kept = collection.find_one({"_id": key})
                collection.update_one({"_id": key}, [{"$replaceWith": {"$literal": {**kept, **new}}}])
            else:
                collection.replace_one({"_id": key}, new)
        twice = bson.encode({"_id": self._leaf(("_id",), marks), "email": self._leaf(("email",), marks)})
        again = bson.encode({"email": self._leaf(("email",), marks)})  # no format but bson can carry it
        body = twice[4:-1] + again[4:]
        collection.insert_one(RawBSONDocument((len(body) + 4).to_bytes(4, "little") + body))  # type: ignore[arg-type]
        hidden = {mark for mark, is_hidden in marks.items() if is_hidden}
        return hidden, marks.keys() - hidden

    def _update(self, document: dict[str, Any]) -> dict[str, Any]:
        """Spell some of the document's own values as an update does: by dotted paths, through arrays by index."""
        paths = [each for each in _spelt(document) if not each[0].startswith("_id")]
        chosen = self._chance.sample(paths, min(len(paths), 3))
        ambiguous = {path: path.split(".") for path, _ in chosen if "0" in path}
        return {
            "updatedFields": dict(chosen),
            "removedFields": [],
            "truncatedArrays": [],
            **({"disambiguatedPaths": ambiguous} if ambiguous else {}),
        }

    def _document(self, path: Path, marks: dict[str, bool], depth: int) -> dict[str, Any]:
        names = self._chance.sample(NAMES, self._chance.randint(1, 3))
        return {name: self._value((*path, *name.split(".")), marks, depth - 1) for name in names}

    def _value(self, path: Path, marks: dict[str, bool], depth: int) -> Any:
        kind = self._chance.random()
        if depth > 0 and kind < 0.3:
            return self._document(path, marks, depth)
        if depth > 0 and kind < 0.5:
            positions = range(self._chance.randint(1, 3))
            return [self._value((*path, f"#{at}"), marks, depth - 1) for at in positions]
        return self._leaf(path, marks)

    def _leaf(self, path: Path, marks: dict[str, bool]) -> Any:
        mark = f"{self._chance.getrandbits(72):018x}"  # no part of it is that of another
        made: Any = self._chance.choice(
            [mark, mark, mark, Binary(mark.encode()), Regex(mark), Code(mark), Code(mark, {"s": mark}), None, None]
        )
        if made is None:
            mark, made = self._number()
        if path[0] == "_id" and isinstance(made, Regex):
            made = mark  # the server has no regular expressions as _id
        # Code with a scope hides its text with rules above it alone; a rule may not reach into it by name.
        marks[mark] = hides(self.rules, path, made)
        return made

    def _number(self) -> tuple[str, Any]:
        """Make a value that is no text, and its mark."""
        kind, number = self._chance.randrange(4), self._chance.randrange(10**17, 10**18)
        if kind == 0:
            made = ObjectId(self._chance.randbytes(12))
            return str(made), made
        if kind == 1:  # of the years 1973 to 2001: no clock shows it now
            number = self._chance.randrange(10**11, 10**12)
            return str(number), _EPOCH + timedelta(milliseconds=number)
        return str(number), Int64(number) if kind == 2 else Decimal128(str(number))


def _spelt(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give every value of a document with its dotted path."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield f"{path}{name}", each
        yield from _spelt(each, f"{path}{name}.")
