"""The ways to compress a frame: zlib always, zstd and snappy when their packages are installed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from tailrace.errors import BadFrame


@dataclass(frozen=True, slots=True)
class Compressor:
    """One method, by the name and number the protocol has for it."""

    name: str
    number: int
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]
    """Takes the bytes and the size that they must have; never makes more than that."""


def _unzlib(data: bytes, size: int) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise BadFrame(f"a frame that is not zlib: {error}") from None
    return content


def _zstd() -> Compressor | None:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        return None

    def decompress(data: bytes, size: int) -> bytes:
        try:
            size_in_frame = zstandard.frame_content_size(data)
            if size_in_frame not in (-1, size):  # the size stands first, where it is known
                raise BadFrame("a zstd frame with a wrong size")
            # In one go: reading piece by piece would hold a window as large as the sender says.
            return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=max(size, 1)))
        except zstandard.ZstdError as error:
            raise BadFrame(f"a frame that is not zstd: {error}") from None

    return Compressor("zstd", 3, lambda data: bytes(zstandard.ZstdCompressor().compress(data)), decompress)


def _snappy() -> Compressor | None:
    try:
        snappy = import_module("snappy")
    except ImportError:
        return None

    def decompress(data: bytes, size: int) -> bytes:
        if _snappy_size(data) != size:  # the size stands first, so that a bomb is seen before it goes off
            raise BadFrame("a snappy frame with a wrong size")
        try:
            return bytes(snappy.decompress(data))
        except Exception as error:  # the package has no class of its own for this in all releases
            raise BadFrame(f"a frame that is not snappy: {error}") from None

    return Compressor("snappy", 1, lambda data: bytes(snappy.compress(data)), decompress)


def _snappy_size(data: bytes) -> int:
    size = 0
    for shift, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return size
    return -1


def _same(data: bytes, size: int) -> bytes:
    return data


_ALL: Final = (Compressor("noop", 0, bytes, _same), _snappy(), Compressor("zlib", 2, zlib.compress, _unzlib), _zstd())
COMPRESSORS: Final[dict[int, Compressor]] = {method.number: method for method in _ALL if method is not None}
NAMES: Final = frozenset(method.name for method in COMPRESSORS.values() if method.number)
