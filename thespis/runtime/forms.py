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


class Parts(NamedTuple):
    """A message taken apart: `key` is what all messages of its form share, `numbers` and `arrays` what differs."""

    key: tuple[Any, ...]
    numbers: list[int]
    arrays: list[Array]


def take_apart(message: Any) -> Parts | None:
    """The parts of a call or an answer that is made of arrays and numbers; None for any other message."""
    try:
        number, content = message
        if type(content) is Call:
            given: Any = content.args
            key: list[Any] = [content.caller, content.service, content.method]
            numbers = [number, content.sequence, content.settled]
        else:
            (given,) = content
            key, numbers = [type(given)], [number]
    except (TypeError, ValueError):
        return None
    if not isinstance(given, tuple):
        return None
    arrays = []
    for part in given:
        kind = type(part)
        if kind is np.ndarray:
            dtype = part.dtype
            if dtype.kind not in "biuf" or not part.flags.c_contiguous:
                return None
            arrays.append(part)
            key += dtype, part.shape
        elif kind is int:
            numbers.append(part)
            key.append(int)
        elif kind in _FIXED:
            key.append(part)
        else:
            return None
    return Parts(tuple(key), numbers, arrays) if arrays else None


class Form:
    """What all messages alike have in common. `size`: bytes that their arrays take, each at its `offset`."""

    def __init__(self, number: int, message: Any) -> None:
        content = message[1]
        self.number, self.size = number, 0
        self.offsets: list[int] = []
        self._call = content if type(content) is Call else None
        given = content.args if self._call is not None else content[0]
        self._made = None if type(given) is tuple else type(given)
        self._parts: list[Any] = []
        for part in given:
            if type(part) is np.ndarray:
                self._parts.append((part.shape, part.dtype, self.size))
                self.offsets.append(self.size)
                self.size += -(-part.nbytes // _ALIGN) * _ALIGN
            else:
                self._parts.append(int if type(part) is int else part)
        self.numbers = struct.Struct(f"<{(3 if self._call else 1) + self._parts.count(int)}q")

    def make(self, frame: bytes, at: int, memory: Any) -> Any:
        """The message with the numbers at `at` of a frame, and arrays that are views of `memory`."""
        numbers = self.numbers.unpack_from(frame, at)
        call, used = self._call, 1 if self._call is None else 3
        parts = []
        for part in self._parts:
            if type(part) is tuple:
                shape, dtype, offset = part
                parts.append(np.ndarray(shape, dtype, memory, offset))
            elif part is int:
                parts.append(numbers[used])
                used += 1
            else:
                parts.append(part)
        if call is not None:
            return numbers[0], Call(call.caller, numbers[1], numbers[2], call.service, call.method, tuple(parts))
        return numbers[0], (tuple(parts) if self._made is None else self._made(*parts),)


class Forms:
    """The forms of one line. Each is named when a message of it first goes, so both ends number them alike."""

    def __init__(self) -> None:
        self._sent: dict[Any, Form] = {}
        self._received: dict[int, Form] = {}

    def known(self, parts: Parts) -> Form | None:
        """The form of what is about to go, if the other side knows it."""
        return self._sent.get(parts.key)

    def name(self, parts: Parts, message: Any) -> int:
        """The number of a new form, which goes with this message; -1 if it is to stay without."""
        if len(self._sent) >= _MOST:
            return -1
        self._sent[parts.key] = Form(len(self._sent), message)
        return len(self._sent) - 1

    def learn(self, number: int, message: Any) -> None:
        """A message came that others will be like."""
        self._received[number] = Form(number, message)

    def __getitem__(self, number: int) -> Form:
        return self._received[number]
