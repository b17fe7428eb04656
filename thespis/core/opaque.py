"""Opaque payloads: the caller packs a payload once, the service forwards it unread, and the receiver unpacks it.

A queue or a weight store does not read its payloads, so it need not rebuild a dozen arrays just to serialise them
again. An opaque payload is a short pickle and one block of memory in every process that holds it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from thespis.core.types import Array, VersionedWeights

_ALIGN = 64


class OpaquePayload:
    """An object in packed form: its pickle, and one block of memory with all its arrays."""

    __slots__ = ("_block", "_body", "_sizes")

    def __init__(self, body: bytes, sizes: tuple[int, ...], block: Array) -> None:
        self._body, self._sizes, self._block = body, sizes, block

    def __reduce__(self) -> tuple[Any, ...]:
        return OpaquePayload, (self._body, self._sizes, self._block)

    def open(self) -> Any:
        """Return the object; its arrays are views of the block."""
        position, buffers = 0, []
        for size in self._sizes:
            buffers.append(self._block[position : position + size])
            position += aligned(size)
        return load_message(self._body, buffers)


def to_opaque(value: Any) -> Any:
    """Pack `value` if it can hold arrays; return versions, counts and other small values unchanged."""
    if isinstance(value, VersionedWeights):
        return VersionedWeights(value.version, _pack(value.weights))  # type: ignore[arg-type]
    return _pack(value) if is_dataclass(value) or isinstance(value, dict) else value


def from_opaque(value: Any) -> Any:
    """Unpack an opaque payload, weights with opaque arrays, or a list of payloads; return other values unchanged."""
    if isinstance(value, OpaquePayload):
        return value.open()
    if isinstance(value, VersionedWeights):
        return VersionedWeights(value.version, from_opaque(value.weights))
    if isinstance(value, list):
        return [from_opaque(item) for item in value]
    return value


def dump_message(value: Any) -> tuple[bytes, list[memoryview]]:
    """Return a short pickle and the memory of the arrays it refers to, which is not copied."""
    buffers: list[memoryview] = []

    def collect(buffer: pickle.PickleBuffer) -> bool:
        buffers.append(buffer.raw())
        return False

    return pickle.dumps(value, protocol=5, buffer_callback=collect), buffers


def load_message(body: bytes | memoryview, buffers: Iterable[Any]) -> Any:
    """Rebuild the value that `dump_message` took apart; its arrays are views of the buffers."""
    return pickle.loads(body, buffers=buffers)


def aligned(size: int) -> int:
    """Return `size` rounded up to the alignment of arrays in a block."""
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _pack(value: Any) -> OpaquePayload:
    body, buffers = dump_message(value)
    sizes = tuple(buffer.nbytes for buffer in buffers)
    block = np.empty(sum(map(aligned, sizes)), np.uint8)
    position = 0
    for buffer, size in zip(buffers, sizes, strict=True):
        block[position : position + size] = np.frombuffer(buffer, np.uint8)
        position += aligned(size)
    return OpaquePayload(body, sizes, block)
