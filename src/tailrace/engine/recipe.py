"""How the events of one kind of operation in one collection are made, most of them copied.

A recipe has all bytes that these events share, and cuts the others out of an entry at offsets that follow from its
lengths. What it cannot be sure of it does not make: it gives None, and the entry takes the general way.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.scope import VIEW_CATALOG
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.update_diff import is_replacement, update_description
from tailrace.token import keystring, type_bits
from tailrace.token.resume_token import ResumeToken

Recipe: TypeAlias = Callable[[bytes, int], Event | None]
"""Makes the event of an entry whose `o` begins at an offset; None when the entry is not plain after all."""
OPERATION_TYPES: Final = {b"i": b"insert", b"u": b"update", b"d": b"delete"}

# Behind `o` and `o2` stand, in entries of 4.4 to 6.0: maybe `stmtId`; `ts`, `t`, `v` and `wall`; and maybe more.
_SECOND: Final = b"\x03o2\x00"
_STATEMENT_SIZE: Final = 12
_TIME: Final = b"\x11ts\x00"
_WALL: Final = b"\x09wall\x00"
_times_at = Struct("<4s8s22x6s8s").unpack_from
_TIMES_SIZE: Final = 48
_ENDS: Final = frozenset({1, 41, 53})
"""How many bytes may follow `wall`: none but the end; `prevOpTime`; `stmtId` and `prevOpTime`."""
_PREVIOUS: Final = b"\x03prevOpTime\x00"

_OBJECT_ID_KEY: Final = b"\x16\x00\x00\x00\x07_id\x00"
"""How a documentKey begins that is an ObjectId alone; it is 22 bytes long."""
_DELTA: Final = b"\x10$v\x00\x02\x00\x00\x00\x03diff\x00"
"""How a delta begins, behind its length."""
_DELTA_SECTIONS: Final = frozenset({b"\x03u\x00", b"\x03i\x00"})
_UPDATED: Final = b"\x03updatedFields\x00"
_NOTHING_ELSE: Final = b"\x04removedFields\x00\x05\x00\x00\x00\x00\x04truncatedArrays\x00\x05\x00\x00\x00\x00\x00"

_uint64 = Struct("<Q").unpack
_int32_at = Struct("<i").unpack_from
_pack_int32 = Struct("<i").pack
_join = b"".join
_new_tuple = tuple.__new__


class RecipeBook:
    """Writes recipes in the form that events have in one stream."""

    def __init__(
        self,
        *,
        version: int,
        has_wall_time: bool,
        shows_uuid: bool,
        type_element: Callable[[bytes], bytes],
        namespace_element: Callable[[bytes], bytes],
        may_be_sharded: Callable[[bytes], bool],
    ) -> None:
        self._version = version
        self._has_wall_time = has_wall_time
        self._shows_uuid = shows_uuid
        self._type_element = type_element
        self._namespace_element = namespace_element
        self._may_be_sharded = may_be_sharded

    def recipe(self, entry: OplogEntry) -> Recipe | None:
        """Write the recipe for entries that begin like this one."""
        uuid = entry.uuid
        if uuid is None or entry.namespace.endswith(VIEW_CATALOG):
            return None
        if entry.op == b"i" and b"o2" not in entry.spans and self._may_be_sharded(uuid):
            return None  # its key may have more than `_id`, and get more while the stream runs
        operation_type = OPERATION_TYPES[entry.op]
        token = self._token(operation_type, uuid)
        return write_recipe(
            operation_type,
            entry.namespace,
            token,
            after_token=self._type_element(operation_type) + b"\x11clusterTime\x00",
            after_time=self._after_time(uuid),
            shows_wall=self._has_wall_time,
            key_head=self._namespace_element(entry.namespace) + b"\x03documentKey\x00",
            has_second=b"o2" in entry.spans,
        )

    def _after_time(self, uuid: bytes) -> bytes:
        shown = b"\x05collectionUUID\x00\x10\x00\x00\x00\x04" + uuid if self._shows_uuid else b""
        return shown + b"\x09wallTime\x00" if self._has_wall_time else shown

    def _token(self, operation_type: bytes, uuid: bytes) -> TokenParts:
        """Give all of a token that is the same for each event."""
        if self._version == 1:
            return TokenParts(b"\x2b\x02\x2c\x01\x00\x29\x6e\x5a\x10\x04" + uuid + b"\x46", b"\x04", "000000")
        before = b"\x2b\x04\x2c\x01\x00\x29\x6e\x5a\x10\x04" + uuid + b"\x46\x3coperationType\x00\x3c"
        before += operation_type + b"\x00\x46documentKey\x00\x46"
        return TokenParts(before, b"\x00\x04", "0000000")


class TokenParts(NamedTuple):
    """A token's key before and behind the fields of the documentKey, and its type bits before those."""

    before: bytes
    behind: bytes
    bits: str

    def of_key(self, time: bytes, key: bytes) -> bytes:
        """Make the token of any documentKey."""
        bits = [self.bits]
        token = _join((b"\x82", time[::-1], self.before, keystring.encode_body(key, bits), self.behind))
        return ResumeToken(token, type_bits.pack("".join(bits))).to_bson()

    def around_object_id(self) -> tuple[bytes, bytes, bytes]:
        """Give the `_id` before the time, between time and ObjectId, and behind, when that is the whole key."""
        middle = hexlify(self.before + b"\x64_id\x00\x64").upper()
        end = hexlify(b"\x00" + self.behind).upper()
        size = 18 + len(middle) + 24 + len(end) + 1
        head = b"\x03_id\x00" + _pack_int32(size + 16) + b"\x02_data\x00" + _pack_int32(size) + b"82"
        return head, middle, end + b"\x00\x00"


def write_recipe(
    operation_type: bytes,
    namespace: bytes,
    token: TokenParts,
    *,
    after_token: bytes,
    after_time: bytes,
    shows_wall: bool,
    key_head: bytes,
    has_second: bool,
) -> Recipe:
    """Write a recipe: a function that has everything at hand that its events share."""
    is_insert, is_update = operation_type == b"insert", operation_type == b"update"
    id_head, id_middle, id_end = token.around_object_id()
    id_end += after_token
    before_document = b"\x03fullDocument\x00" if is_insert else b""
    behind_key = b"\x03updateDescription\x00" if is_update else b""
    fixed = 4 + 8 + len(after_time) + 8 * shows_wall + len(before_document + key_head + behind_key) + 1
    with_object_id = fixed + len(id_head + id_middle + id_end) + 16 + 24 + 22
    name = operation_type.decode()

    def event(entry: bytes, body: int) -> Event | None:
        """Cut out what differs. Everything is in one function, because a call costs a twentieth of an event."""
        end = tail = body + _int32_at(entry, body)[0]
        if has_second:
            tail = end + 4 + _int32_at(entry, end + 4)[0]
            key = entry[end + 4 : tail]
            if entry[end : end + 4] != _SECOND:
                return None
        elif is_insert:
            key = b"\x16\x00\x00\x00%b\x00" % entry[body + 4 : body + 21]
            if key[:9] != _OBJECT_ID_KEY:
                return None
        else:
            key = entry[body:end]
        if entry[tail] == raw.INT32:
            tail += _STATEMENT_SIZE
        time_head, time, wall_head, wall = _times_at(entry, tail)
        rest = len(entry) - tail - _TIMES_SIZE
        if time_head != _TIME or wall_head != _WALL or rest not in _ENDS:
            return None
        if rest > 1 and entry[-41:-29] != _PREVIOUS:
            return None
        if not shows_wall:
            wall = b""
        document = entry[body:end] if is_insert else b""
        description = b""
        if is_update and not (description := describe(entry, body, end)):
            return None
        if key[:9] == _OBJECT_ID_KEY:
            digits = hexlify(time[::-1] + key[9:21]).upper()
            size = with_object_id + len(document) + len(description)
            made = _join(
                (
                    _pack_int32(size), id_head, digits[:16], id_middle, digits[16:], id_end, time, after_time, wall,
                    before_document, document, key_head, key, behind_key, description, b"\x00",
                )
            )  # fmt: skip
        else:
            made = raw.document(
                b"\x03_id\x00", token.of_key(time, key), after_token, time, after_time, wall,
                before_document, document, key_head, key, behind_key, description,
            )  # fmt: skip
        return _new_tuple(Event, (made, _uint64(time)[0], namespace, name, None))

    return event


def describe(entry: bytes, body: int, end: int) -> bytes:
    """Describe an update; nothing for a replacement, which is another type of event."""
    if entry[body + 4 : body + 18] == _DELTA:
        section = body + 25
        size = _int32_at(entry, section)[0]
        # Only fields of the document itself, all changed or all new: their list is what the event shows.
        if section + size + 2 == end and entry[section - 3 : section] in _DELTA_SECTIONS:
            return _join((_pack_int32(size + 62), _UPDATED, entry[section : section + size], _NOTHING_ELSE))
    update = entry[body:end]
    return b"" if is_replacement(update) else update_description(update)
