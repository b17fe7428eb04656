"""Schemas of repeated messages: a message with a known schema is sent as numbers and arrays, without a pickle.

Requests for actions, inserted unrolls and pulled weights repeat thousands of times a second with the same structure.
For small arrays the pickle costs more than the rest of the transfer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from thespis.core.types import Array, Stream
from thespis.transport.calls import RemoteCall

_MAX_SCHEMAS = 64
"""Maximum number of schemas of a connection. Messages of further schemas are pickled."""
_ALIGN = 8
_FIXED = frozenset((str, bool, type(None), Stream))
"""Types whose values are part of the schema, because they rarely change."""
_NUMBERS = {int: "q", float: "d"}


class MessageParts(NamedTuple):
    """A flattened message. `key` identifies its schema; `numbers` and `arrays` differ between messages."""

    key: tuple[Any, ...]
    numbers: list[int | float]
    arrays: list[Array]


def flatten_message(message: Any) -> MessageParts | None:
    """Flatten a call or a reply that consists of arrays and numbers; return None for any other message."""
    try:
        number, content = message
        if type(content) is RemoteCall:
            value: Any = content.args
            key: list[Any] = [content.caller, content.service, content.method]
            numbers: list[int | float] = [number, content.sequence, content.settled]
        else:
            (value,) = content
            key, numbers = [], [number]
    except (TypeError, ValueError):
        return None
    arrays: list[Array] = []
    if not _flatten(value, key, numbers, arrays):
        return None
    return MessageParts(tuple(key), numbers, arrays)


def _flatten(value: Any, key: list[Any], numbers: list[int | float], arrays: list[Array]) -> bool:
    """Append the parts of `value`; return False if it contains a type that a schema cannot hold."""
    kind = type(value)
    if kind is np.ndarray:
        dtype = value.dtype
        if dtype.kind not in "biuf" or not value.flags.c_contiguous:
            return False
        arrays.append(value)
        key += dtype, value.shape
        return True
    if kind in _NUMBERS:
        numbers.append(value)
        key.append(kind)
        return True
    if kind in _FIXED:
        key.append(value)
        return True
    if kind is dict:
        key += dict, tuple(value)
        parts: Any = value.values()
    elif issubclass(kind, tuple | list):
        key += kind, len(value)
        parts = value
    elif is_dataclass(kind):
        key.append(kind)
        parts = _fields(kind)(value)
    else:
        return False
    for part in parts:  # noqa: SIM110  # `all` with a generator takes twice as long
        if not _flatten(part, key, numbers, arrays):
            return False
    return True


@cache
def _fields(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads all fields of a dataclass."""
    names = [field.name for field in fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


class _Number:
    """Placeholder of a number."""


class _ArraySlot(NamedTuple):
    """Placeholder of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class _Container(NamedTuple):
    """Placeholder of a container."""

    kind: Any
    keys: tuple[Any, ...]
    parts: list[Any]


class MessageSchema:
    """The common structure of repeated messages.

    `size`: total bytes of the arrays. `offsets`: the offset of each array.
    """

    def __init__(self, number: int, message: Any) -> None:
        content = message[1]
        self.number, self.size = number, 0
        self.offsets: list[int] = []
        self._paddings: list[bytes] = []
        self._call = content._replace(args=()) if type(content) is RemoteCall else None
        self._numbers = "qqq" if self._call is not None else "q"
        self._plan = self._describe(content.args if self._call is not None else content[0])
        self.numbers = struct.Struct(f"<{self._numbers}")

    def _describe(self, value: Any) -> Any:
        """Return the structure of `value`, with placeholders for numbers and arrays."""
        kind: Any = type(value)
        if kind is np.ndarray:
            slot = _ArraySlot(value.shape, value.dtype, self.size)
            self.offsets.append(self.size)
            self._paddings.append(bytes(-value.nbytes % _ALIGN))
            self.size += value.nbytes + len(self._paddings[-1])
            return slot
        if kind in _NUMBERS:
            self._numbers += _NUMBERS[kind]
            return _Number
        if kind in _FIXED:
            return value
        if kind is dict:
            return _Container(kind, tuple(value), [self._describe(part) for part in value.values()])
        parts = value if issubclass(kind, tuple | list) else _fields(kind)(value)
        return _Container(kind, (), [self._describe(part) for part in parts])

    def join(self, arrays: list[Array]) -> bytes:
        """Concatenate the arrays of a message, each at its offset."""
        pieces: Any = zip(arrays, self._paddings, strict=True)
        return b"".join(chain.from_iterable(pieces))

    def unflatten(self, frame: bytes, at: int, memory: Any) -> Any:
        """Rebuild a message from the numbers at `at` of a frame, with arrays that are views of `memory`."""
        numbers = iter(self.numbers.unpack_from(frame, at))
        number, call = next(numbers), self._call
        if call is None:
            return number, (_fill(self._plan, numbers, memory),)
        sequence, settled = next(numbers), next(numbers)
        args = _fill(self._plan, numbers, memory)
        return number, RemoteCall(call.caller, sequence, settled, call.service, call.method, args)


def _fill(plan: Any, numbers: Iterator[int | float], memory: Any) -> Any:
    """Replace the placeholders of a plan by numbers and arrays."""
    kind = type(plan)
    if kind is _ArraySlot:
        return np.ndarray(plan.shape, plan.dtype, memory, plan.offset)
    if plan is _Number:
        return next(numbers)
    if kind is not _Container:
        return plan
    parts = [_fill(part, numbers, memory) for part in plan.parts]
    if plan.kind is list:
        return parts
    if plan.kind is tuple:
        return tuple(parts)
    if plan.kind is dict:
        return dict(zip(plan.keys, parts, strict=True))
    return plan.kind(*parts)


class SchemaCache:
    """The schemas of one connection. The first message of a schema carries its number, so both ends agree on it."""

    def __init__(self) -> None:
        self._sent: dict[Any, MessageSchema] = {}
        self._received: dict[int, MessageSchema] = {}

    def find(self, parts: MessageParts) -> MessageSchema | None:
        """Return the schema of a message to send, or None if the peer does not know it."""
        return self._sent.get(parts.key)

    def register(self, parts: MessageParts, message: Any) -> int:
        """Add a schema for this message and return its number; return -1 if the cache is full."""
        if len(self._sent) >= _MAX_SCHEMAS:
            return -1
        self._sent[parts.key] = MessageSchema(len(self._sent), message)
        return len(self._sent) - 1

    def learn(self, number: int, message: Any) -> None:
        """Store the schema of a received message under the sender's number."""
        self._received[number] = MessageSchema(number, message)

    def __getitem__(self, number: int) -> MessageSchema:
        return self._received[number]
