"""Sealed messages: what passes through a service that does not look inside is packed once and opened once.

A queue or a weight store would otherwise rebuild a dozen arrays only to take them apart again. Sealed, a message is
a short pickle and one block of memory, whoever holds it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from thespis.core.types import Array, Versioned

_ALIGN = 64


class Sealed:
    """An object as its pickle and one block that holds all its arrays."""

    __slots__ = ("_block", "_body", "_sizes")

    def __init__(self, body: bytes, sizes: tuple[int, ...], block: Array) -> None:
        self._body, self._sizes, self._block = body, sizes, block

    def __reduce__(self) -> tuple[Any, ...]:
        return Sealed, (self._body, self._sizes, self._block)

    def open(self) -> Any:
        """The object; its arrays are views of the block."""
        position, buffers = 0, []
        for size in self._sizes:
            buffers.append(self._block[position : position + size])
            position += aligned(size)
        return load(self._body, buffers)


def seal(value: Any) -> Any:
    """`value` sealed if it can hold arrays; versions, counts and the like travel as they are."""
    if isinstance(value, Versioned):
        return Versioned(value.version, _pack(value.weights))  # type: ignore[arg-type]
    return _pack(value) if is_dataclass(value) or isinstance(value, dict) else value


def unseal(value: Any) -> Any:
    """The inverse of `seal`, also for a list of sealed values."""
    if isinstance(value, Sealed):
        return value.open()
    if isinstance(value, Versioned):
        return Versioned(value.version, unseal(value.weights))
    if isinstance(value, list):
        return [unseal(item) for item in value]
    return value


def dump(value: Any) -> tuple[bytes, list[memoryview]]:
    """A short pickle, and the memory of the arrays it refers to, not copied."""
    buffers: list[memoryview] = []

    def collect(buffer: pickle.PickleBuffer) -> bool:
        buffers.append(buffer.raw())
        return False

    return pickle.dumps(value, protocol=5, buffer_callback=collect), buffers


def load(body: bytes | memoryview, buffers: Iterable[Any]) -> Any:
    """The inverse of `dump`; arrays are views of the buffers."""
    return pickle.loads(body, buffers=buffers)


def aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _pack(value: Any) -> Sealed:
    body, buffers = dump(value)
    sizes = tuple(buffer.nbytes for buffer in buffers)
    block = np.empty(sum(map(aligned, sizes)), np.uint8)
    position = 0
    for buffer, size in zip(buffers, sizes, strict=True):
        block[position : position + size] = np.frombuffer(buffer, np.uint8)
        position += aligned(size)
    return Sealed(body, sizes, block)
