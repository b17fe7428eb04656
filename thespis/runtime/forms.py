"""Messages of a form that was sent before: only what differs travels, and nothing is pickled.

An actor that asks for actions sends the same arrays thousands of times a second, with other numbers in them. For a few
environments the pickle around them costs more than everything else on the way.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from thespis.runtime.endpoint import Call
from thespis.types import Array, Stream

_MOST = 64
"""Forms that a line remembers; what comes after them is pickled as ever."""
_ALIGN = 8
_FIXED = (str, bool, type(None), Stream)


class Leaf(NamedTuple):
    """An array of a form, and where it stands among the others."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Form:
    """What all messages alike have in common. `size`: bytes that their arrays take."""

    def __init__(self, number: int, message: Any) -> None:
        content = message[1]
        parts = _parts(content)
        self.number, self.size = number, 0
        self._content = content if isinstance(content, Call) else None
        self._made = None if self._content is not None or type(content[0]) is tuple else type(content[0])
        self._parts: list[Any] = []
        for part in parts:
            if isinstance(part, np.ndarray):
                self._parts.append(Leaf(part.dtype.str, part.shape, self.size, part.nbytes))
                self.size += -(-part.nbytes // _ALIGN) * _ALIGN
            else:
                self._parts.append(int if type(part) is int else part)
        self.leaves = [part for part in self._parts if isinstance(part, Leaf)]
        self.numbers = struct.Struct(f"<{(3 if self._content else 1) + self._parts.count(int)}q")

    def take(self, message: Any) -> tuple[bytes, list[Array]]:
        """What differs: the numbers, packed, and the arrays."""
        number, content = message
        parts = _parts(content)
        numbers = [part for part in parts if type(part) is int]
        if self._content is not None:
            numbers[:0] = content.sequence, content.settled
        return self.numbers.pack(number, *numbers), [part for part in parts if type(part) is np.ndarray]

    def make(self, frame: bytes, at: int, memory: Any) -> Any:
        """The message with the numbers at `at` of a frame, and arrays that are views of `memory`."""
        number, *numbers = self.numbers.unpack_from(frame, at)
        given = iter(numbers[2:] if self._content is not None else numbers)
        parts = []
        for part in self._parts:
            if type(part) is Leaf:
                flat = np.frombuffer(memory, np.uint8, part.nbytes, part.offset)
                parts.append(flat.view(part.dtype).reshape(part.shape))
            else:
                parts.append(next(given) if part is int else part)
        call = self._content
        if call is not None:
            return number, Call(call.caller, numbers[0], numbers[1], call.service, call.method, tuple(parts))
        return number, (tuple(parts) if self._made is None else self._made(*parts),)


class Forms:
    """The forms of one line. Each is named when a message of it first goes, so both ends number them alike."""

    def __init__(self) -> None:
        self._sent: dict[Any, Form] = {}
        self._received: dict[int, Form] = {}

    def find(self, message: Any) -> tuple[Form | None, bool]:
        """The form of a message that is about to go, if it has one, and whether the other side knows it."""
        key = _key(message)
        if key is None:
            return None, False
        form = self._sent.get(key)
        if form is not None:
            return form, True
        if len(self._sent) >= _MOST:
            return None, False
        form = self._sent[key] = Form(len(self._sent), message)
        return form, False

    def learn(self, number: int, message: Any) -> None:
        """A message came that others will be like."""
        self._received[number] = Form(number, message)

    def __getitem__(self, number: int) -> Form:
        return self._received[number]


def _parts(content: Any) -> tuple[Any, ...]:
    """Arguments of a call, or what an answer is made of."""
    parts: tuple[Any, ...] = content.args if isinstance(content, Call) else content[0]
    return parts


def _key(message: Any) -> Any:
    """What all messages of a form share; None for a message that is not made of arrays and numbers."""
    if type(message) is not tuple or len(message) != 2 or not isinstance(message[1], tuple):
        return None
    content = message[1]
    if type(content) is Call:
        kinds: list[Any] = [content.caller, content.service, content.method]
        parts: Any = content.args
    else:
        parts = content[0]
        if not isinstance(parts, tuple):
            return None
        kinds = [type(parts)]
    arrays = False
    for part in parts:
        kind = type(part)
        if kind is np.ndarray:
            if part.dtype.kind not in "biuf" or not part.flags.c_contiguous:
                return None
            arrays = True
            kinds.append((part.dtype.str, part.shape))
        elif kind is int:
            kinds.append(int)
        elif kind in _FIXED:
            kinds.append(part)
        else:
            return None
    return tuple(kinds) if arrays else None
