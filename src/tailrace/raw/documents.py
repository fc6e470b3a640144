"""Many documents at once: those of an array, cut out without a search, and those that hold some bytes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import Any, overload

from tailrace import kernel
from tailrace.errors import BsonMalformed
from tailrace.raw.bson_bytes import DOCUMENT, document_end

_int32_at = Struct("<i").unpack_from


@overload
def cut_documents(data: bytes, start: int) -> list[bytes]: ...
@overload
def cut_documents(data: memoryview, start: int) -> list[memoryview]: ...
def cut_documents(data: bytes | memoryview, start: int) -> list[bytes] | list[memoryview]:
    """Cut the array that begins at `start` into its documents: their names are 0, 1, 2, ...

    Each element is a type byte, its number in decimal digits, a zero byte and a document, so that all elements up
    to the next power of ten have heads of the same size.
    """
    module = kernel.module() if isinstance(data, bytes) else None
    if module is not None:
        with suppress(module.KernelError):
            cut: list[bytes] = module.slice_documents(data, start)
            return cut
    last = document_end(data, start) - 1
    found: list[Any] = []
    add = found.append
    position, head, power = start + 4, 3, 10
    while position < last:
        for _ in range(power - len(found)):
            begin = position + head
            try:
                end = begin + _int32_at(data, begin)[0]
            except StructError:
                end = begin
            if data[position] != DOCUMENT or not begin < end <= last:
                raise BsonMalformed("a batch holds something else than documents", offset=position)
            add(data[begin:end])
            position = end
            if position == last:
                return found
        head, power = head + 1, power * 10
    return found


def documents_in(reply: bytes, start: int) -> Sequence[bytes]:
    """Cut the same array; the kernel leaves the documents where they are, and makes bytes for who looks at them."""
    module = kernel.module()
    if module is not None:
        with suppress(module.KernelError):
            left: Sequence[bytes] = module.Documents(reply, start)
            return left
    return cut_documents(reply, start)


def documents_with(documents: Sequence[bytes], needle: bytes) -> list[int]:
    """Give the places of the documents that hold the bytes of `needle` anywhere: a tenth of the cost of a walk."""
    module = kernel.module()
    if module is not None:
        found: list[int] = module.documents_with(documents, needle)
        return found
    return [index for index, document in enumerate(documents) if needle in document]
