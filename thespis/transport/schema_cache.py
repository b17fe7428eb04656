"""Messages of a form that was sent before: only what differs travels, and nothing is pickled.

An actor that asks for actions, hands over unrolls or takes weights sends the same arrays thousands of times a second,
with other numbers in them. For small ones the pickle around them costs more than everything else on the way.
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
from thespis.transport.calls import Call

_MOST = 64
"""Forms that a line remembers; what comes after them is pickled as ever."""
_ALIGN = 8
_FIXED = frozenset((str, bool, type(None), Stream))
"""What is part of the form: who says it, and words and switches that hardly ever change."""
_NUMBERS = {int: "q", float: "d"}


class Parts(NamedTuple):
    """A message taken apart: `key` is what all messages of its form share, `numbers` and `arrays` what differs."""

    key: tuple[Any, ...]
    numbers: list[int | float]
    arrays: list[Array]


def take_apart(message: Any) -> Parts | None:
    """The parts of a call or an answer made of arrays and numbers, or of nothing; None for any other message."""
    try:
        number, content = message
        if type(content) is Call:
            given: Any = content.args
            key: list[Any] = [content.caller, content.service, content.method]
            numbers: list[int | float] = [number, content.sequence, content.settled]
        else:
            (given,) = content
            key, numbers = [], [number]
    except (TypeError, ValueError):
        return None
    arrays: list[Array] = []
    if not _collect(given, key, numbers, arrays):
        return None
    return Parts(tuple(key), numbers, arrays)


def _collect(value: Any, key: list[Any], numbers: list[int | float], arrays: list[Array]) -> bool:
    """Add the parts of `value`; False if it is not only made of what a form can be made of."""
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
        held: Any = value.values()
    elif issubclass(kind, tuple | list):
        key += kind, len(value)
        held = value
    elif is_dataclass(kind):
        key.append(kind)
        held = _fields(kind)(value)
    else:
        return False
    for part in held:  # noqa: SIM110  # `all` with a generator takes twice as long
        if not _collect(part, key, numbers, arrays):
            return False
    return True


@cache
def _fields(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of all fields of a dataclass."""
    names = [field.name for field in fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


class _Number:
    """Stands where a number is."""


class _Place(NamedTuple):
    """Stands where an array is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class _Built(NamedTuple):
    """Stands where something made of other parts is."""

    kind: Any
    keys: tuple[Any, ...]
    parts: list[Any]


class Form:
    """What all messages alike have in common.

    `size`: bytes that their arrays take, each at one of `offsets`.
    """

    def __init__(self, number: int, message: Any) -> None:
        content = message[1]
        self.number, self.size = number, 0
        self.offsets: list[int] = []
        self._paddings: list[bytes] = []
        self._call = content._replace(args=()) if type(content) is Call else None
        self._numbers = "qqq" if self._call is not None else "q"
        self._plan = self._planned(content.args if self._call is not None else content[0])
        self.numbers = struct.Struct(f"<{self._numbers}")

    def _planned(self, value: Any) -> Any:
        """What `value` is made of, with places where each message has something else."""
        kind: Any = type(value)
        if kind is np.ndarray:
            place = _Place(value.shape, value.dtype, self.size)
            self.offsets.append(self.size)
            self._paddings.append(bytes(-value.nbytes % _ALIGN))
            self.size += value.nbytes + len(self._paddings[-1])
            return place
        if kind in _NUMBERS:
            self._numbers += _NUMBERS[kind]
            return _Number
        if kind in _FIXED:
            return value
        if kind is dict:
            return _Built(kind, tuple(value), [self._planned(part) for part in value.values()])
        held = value if issubclass(kind, tuple | list) else _fields(kind)(value)
        return _Built(kind, (), [self._planned(part) for part in held])

    def joined(self, arrays: list[Array]) -> bytes:
        """The arrays of a message one after the other, each where its offset says."""
        pieces: Any = zip(arrays, self._paddings, strict=True)
        return b"".join(chain.from_iterable(pieces))

    def make(self, frame: bytes, at: int, memory: Any) -> Any:
        """The message with the numbers at `at` of a frame, and arrays that are views of `memory`."""
        numbers = iter(self.numbers.unpack_from(frame, at))
        number, call = next(numbers), self._call
        if call is None:
            return number, (_made(self._plan, numbers, memory),)
        sequence, settled = next(numbers), next(numbers)
        args = _made(self._plan, numbers, memory)
        return number, Call(call.caller, sequence, settled, call.service, call.method, args)


def _made(plan: Any, numbers: Iterator[int | float], memory: Any) -> Any:
    """What a plan says, with these numbers and arrays in its places."""
    kind = type(plan)
    if kind is _Place:
        return np.ndarray(plan.shape, plan.dtype, memory, plan.offset)
    if plan is _Number:
        return next(numbers)
    if kind is not _Built:
        return plan
    parts = [_made(part, numbers, memory) for part in plan.parts]
    if plan.kind is list:
        return parts
    if plan.kind is tuple:
        return tuple(parts)
    if plan.kind is dict:
        return dict(zip(plan.keys, parts, strict=True))
    return plan.kind(*parts)


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
