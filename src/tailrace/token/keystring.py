"""KeyString: BSON values as bytes that compare as the values do.

The bytes of a key are the encodings of its values one after another and a closing 0x04; comparing two
keys as plain bytes compares their values in MongoDB's order. What the order does not need (int or double,
string or symbol) is kept beside in type bits (`type_bits.py`), so that a key decodes to the very BSON it
was made of. Numbers are in `numbers.py`. This is the server's KeyString version 1, all ascending, which
is what resume tokens are made of.
"""

from __future__ import annotations

from typing import Final

from tailrace import raw
from tailrace.errors import InvalidResumeToken
from tailrace.raw import Value
from tailrace.token import numbers, type_bits
from tailrace.token.type_bits import BitReader

END: Final = 0x04
_LESS: Final = 0x01
_GREATER: Final = 0xFE
_MIN_KEY, _UNDEFINED, _NULL = 0x0A, 0x0F, 0x14
_NUMBER, _STRING, _OBJECT, _ARRAY = 0x1E, 0x3C, 0x46, 0x50
_BINARY, _OBJECT_ID, _FALSE, _TRUE = 0x5A, 0x64, 0x6E, 0x6F
_DATE, _TIMESTAMP, _REGEX, _DB_POINTER = 0x78, 0x82, 0x8C, 0x96
_CODE, _CODE_WITH_SCOPE, _MAX_KEY = 0xA0, 0xAA, 0xF0
MAX_DEPTH: Final = 200
"""How deep the server follows nested documents in a key."""

# The byte before a field's name: documents order by type, then name, then value.
_GENERIC: Final[dict[int, bytes]] = {
    kind: bytes([byte])
    for kind, byte in {
        raw.MIN_KEY: _MIN_KEY, raw.UNDEFINED: _UNDEFINED, raw.NULL: _NULL, raw.DOUBLE: _NUMBER,
        raw.INT32: _NUMBER, raw.INT64: _NUMBER, raw.DECIMAL128: _NUMBER, raw.STRING: _STRING,
        raw.SYMBOL: _STRING, raw.DOCUMENT: _OBJECT, raw.ARRAY: _ARRAY, raw.BINARY: _BINARY,
        raw.OBJECT_ID: _OBJECT_ID, raw.BOOL: _FALSE, raw.DATE: _DATE, raw.TIMESTAMP: _TIMESTAMP,
        raw.REGEX: _REGEX, raw.DB_POINTER: _DB_POINTER, raw.CODE: _CODE,
        raw.CODE_WITH_SCOPE: _CODE_WITH_SCOPE, raw.MAX_KEY: _MAX_KEY,
    }.items()
}  # fmt: skip
_BARE = {_MIN_KEY: raw.MIN_KEY, _MAX_KEY: raw.MAX_KEY, _NULL: raw.NULL, _UNDEFINED: raw.UNDEFINED}


# --- encoding


def encode(values: list[Value]) -> tuple[bytes, bytes]:
    """Encode values as one key: its bytes and its packed type bits."""
    bits: list[str] = []
    key = b"".join([encode_value(value.kind, value.data, bits) for value in values])
    return key + b"\x04", type_bits.pack("".join(bits))


def encode_value(kind: int, data: bytes, bits: list[str]) -> bytes:
    """Encode one BSON value; the type bits of what is in it are added to `bits`."""
    if kind == raw.OBJECT_ID:
        return b"\x64" + data
    if kind == raw.INT32:
        bits.append("00")
        return numbers.encode_integer(int.from_bytes(data, "little", signed=True))
    if kind == raw.STRING:
        bits.append("0")
        return b"\x3c" + _escaped(data[4:-1]) + b"\x00"
    if kind == raw.DOCUMENT:
        return b"\x46" + encode_body(data, bits)
    if kind in (raw.INT64, raw.DOUBLE, raw.DECIMAL128):
        return numbers.encode(kind, data, bits)
    if kind == raw.ARRAY:
        parts = [encode_value(k, data[a:b], bits) for k, _, a, b in raw.elements(data)]
        return b"\x50" + b"".join(parts) + b"\x00"
    if kind == raw.SYMBOL:
        bits.append("1")
        return b"\x3c" + _escaped(data[4:-1]) + b"\x00"
    return _encode_rare(kind, data, bits)


def _encode_rare(kind: int, data: bytes, bits: list[str]) -> bytes:
    head = _GENERIC[kind]
    if kind == raw.BOOL:
        return b"\x6f" if data != b"\x00" else head
    if kind == raw.BINARY:
        size = len(data) - 5  # of subtype 2 with its inner length, as in BSON
        length = bytes([size]) if size < 0xFF else b"\xff" + size.to_bytes(4, "big")
        return head + length + data[4:]
    if kind == raw.DATE:
        return head + (int.from_bytes(data, "little") ^ 1 << 63).to_bytes(8, "big")
    if kind == raw.TIMESTAMP:
        return head + data[::-1]
    if kind == raw.REGEX:
        return head + data
    if kind == raw.DB_POINTER:
        namespace = data[4:-13]
        return head + len(namespace).to_bytes(4, "big") + namespace + data[-12:]
    if kind == raw.CODE:
        return head + _escaped(data[4:-1]) + b"\x00"
    if kind == raw.CODE_WITH_SCOPE:
        code_end = raw.value_end(data, raw.STRING, 4)
        scope = encode_body(data[code_end:], bits)
        return head + _escaped(data[8 : code_end - 1]) + b"\x00" + scope
    return head


def encode_body(doc: bytes, bits: list[str]) -> bytes:
    """Encode the fields of a document, without the byte that says that it is one."""
    parts: list[bytes] = []
    for kind, name, start, end in raw.elements(doc):
        parts += _GENERIC[kind], name, b"\x00", encode_value(kind, doc[start:end], bits)
    parts.append(b"\x00")
    return b"".join(parts)


def _escaped(text: bytes) -> bytes:
    """Write zero bytes as 00 FF, so that a single one can close the text."""
    return text.replace(b"\x00", b"\x00\xff") if 0 in text else text


# --- decoding


def decode(key: bytes, packed_type_bits: bytes = b"") -> list[Value]:
    """Decode a key into the BSON values it was made of; what follows its end is not looked at."""
    reader = _KeyReader(key, BitReader(packed_type_bits))
    values = []
    while reader.position < len(key):
        head = reader.byte()
        if head in (_LESS, _GREATER):
            head = reader.byte()
        if head == END:
            break
        values.append(reader.value(head, 1))
    return values


class _KeyReader:
    """Walks a key. Codes in the errors are those of the server."""

    __slots__ = ("_bits", "_data", "position")

    def __init__(self, data: bytes, bits: BitReader) -> None:
        self._data = data
        self._bits = bits
        self.position = 0

    def byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            left = len(self._data) - self.position
            raise InvalidResumeToken(
                f"Invalid advance ({size}) past end of buffer[{left}] at offset: 0", server_code=15
            )
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def value(self, head: int, depth: int) -> Value:
        """Read the value that the type byte `head` announces."""
        if depth > MAX_DEPTH:
            raise InvalidResumeToken("the key is nested too deep", server_code=15)
        if head == _OBJECT:
            return Value(raw.DOCUMENT, self._document(depth + 1))
        if head == _ARRAY:
            return Value(raw.ARRAY, self._array(depth + 1))
        if numbers.NAN <= head <= numbers.POSITIVE_LARGE:
            return self._number(head)
        if head in _BARE:
            return Value(_BARE[head], b"")
        if head == _CODE_WITH_SCOPE:  # counts as two levels, as the server counts
            code = raw.string(self._text())
            whole = code + self._document(depth + 2)
            return Value(raw.CODE_WITH_SCOPE, raw.int32(len(whole) + 4) + whole)
        return self._scalar(head)

    def _scalar(self, head: int) -> Value:
        if head == _STRING:
            kind = raw.SYMBOL if self._bits.read(1) == "1" else raw.STRING
            return Value(kind, raw.string(self._text()))
        if head == _OBJECT_ID:
            return Value(raw.OBJECT_ID, self._take(12))
        if head in (_FALSE, _TRUE):
            return Value(raw.BOOL, raw.boolean(head == _TRUE))
        if head == _DATE:
            flipped = int.from_bytes(self._take(8), "big") ^ 1 << 63
            return Value(raw.DATE, flipped.to_bytes(8, "little"))
        if head == _TIMESTAMP:
            return Value(raw.TIMESTAMP, self._take(8)[::-1])
        if head == _BINARY:
            size = self.byte()
            if size == 0xFF:
                size = int.from_bytes(self._take(4), "big")
            return Value(raw.BINARY, raw.binary(self.byte(), self._take(size)))
        if head == _REGEX:
            return Value(raw.REGEX, self._name() + b"\x00" + self._name() + b"\x00")
        if head == _DB_POINTER:
            namespace = self._take(int.from_bytes(self._take(4), "big"))
            return Value(raw.DB_POINTER, raw.string(namespace) + self._take(12))
        if head == _CODE:
            return Value(raw.CODE, raw.string(self._text()))
        raise InvalidResumeToken(f"Unknown type: {head}", server_code=50811)

    def _number(self, head: int) -> Value:
        if head == numbers.ZERO:
            return numbers.decode_zero(self._bits)
        if head == numbers.NAN:
            return numbers.decode_nan(self._bits)
        negative = head < numbers.ZERO
        number = numbers.NumberReader(self._data, self.position, self._bits, negative=negative)
        if head in (numbers.NEGATIVE_LARGE, numbers.POSITIVE_LARGE):
            value = number.large()
        elif head in (numbers.NEGATIVE_SMALL, numbers.POSITIVE_SMALL):
            value = number.small()
        else:
            value = number.integer_or_middle(abs(head - numbers.ZERO) - 1)
        self.position = number.position
        return value

    def _document(self, depth: int) -> bytes:
        parts = []
        while self.byte():
            name = self._name()
            value = self.value(self.byte(), depth)
            parts.append(raw.element(value.kind, name, value.data))
        return raw.document(*parts)

    def _array(self, depth: int) -> bytes:
        values = []
        while head := self.byte():
            values.append(self.value(head, depth))
        return raw.array(values)

    def _name(self) -> bytes:
        """Read bytes up to a zero."""
        end = self._data.find(0, self.position)
        if end < 0:
            raise InvalidResumeToken("Failed to find null terminator in string.", server_code=50816)
        name = self._data[self.position : end]
        self.position = end + 1
        return name

    def _text(self) -> bytes:
        """Read bytes up to a zero that no FF follows; with an FF it stands for itself."""
        text = self._name()
        while self._data[self.position : self.position + 1] == b"\xff":
            self.position += 1
            text += b"\x00" + self._name()
        return text
