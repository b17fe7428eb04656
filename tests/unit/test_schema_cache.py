"""Messages without a pickle: a round trip, and messages without a schema are pickled."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from thespis.core.types import Stream
from thespis.transport.calls import RemoteCall
from thespis.transport.schema_cache import MessageSchema, SchemaCache, flatten_message


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(slots=True)
class Scene:
    left: Any
    right: Any


def again(form: MessageSchema, message: Any) -> Any:
    """Return the message that the other side of a connection rebuilds."""
    parts = flatten_message(message)
    assert parts is not None
    memory = bytearray(form.size)
    for array, offset in zip(parts.arrays, form.offsets, strict=True):
        memory[offset : offset + array.nbytes] = array.tobytes()
    return form.unflatten(form.numbers.pack(*parts.numbers), 0, memory)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, Scene):
        return same(left.left, right.left) and same(left.right, right.right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)


ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "f8", "i8", "u1", "?"]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
)
LEAVES = st.one_of(
    ARRAYS, st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.none(), st.booleans(), st.text(max_size=3)
)
PARTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Scene, inner, inner),
    ),
    max_leaves=6,
)


@given(parts=st.lists(PARTS, max_size=6), numbers=st.tuples(*[st.integers(0, 2**50)] * 6))
def test_what_comes_out_is_what_went_in(parts: list[Any], numbers: tuple[int, ...]) -> None:
    args = (np.arange(3.0), *parts, Stream(("actor", 3), 2**61))
    call = RemoteCall(("actor", 3, 2**61), numbers[0], numbers[1], ("inference", 0), "act", args)
    first, second = (numbers[2], call), (numbers[3], call._replace(sequence=numbers[4], settled=numbers[5]))
    assert same(again(MessageSchema(0, first), second), second)
    assert same(again(MessageSchema(0, (1, (args,))), (2, (args,))), (2, (args,)))
    assert same(again(MessageSchema(0, (1, (None,))), (2, (None,))), (2, (None,)))
    assert same(again(MessageSchema(0, (1, ((5, 6),))), (2, ((7, 8),))), (2, ((7, 8),)))
    assert same(
        again(MessageSchema(0, (1, (Pair(args[0], 4),))), (2, (Pair(args[0] + 1, 5),))), (2, (Pair(args[0] + 1, 5),))
    )


@pytest.mark.parametrize(
    "message",
    [
        "text",
        ("peer", 1, 2),
        (1, ((np.zeros(3), {"a": {1}}),)),
        (1, ((np.zeros((4, 4))[:, ::2],),)),
        (1, ((np.array([None]),),)),
        (1, ((np.zeros(3), object()),)),
    ],
)
def test_what_has_no_form(message: Any) -> None:
    assert flatten_message(message) is None


def test_another_shape_is_another_form() -> None:
    cache = SchemaCache()
    small, large = ((1, ((np.zeros(size),),)) for size in (2, 3))
    parts = flatten_message(small)
    assert parts is not None and cache.find(parts) is None
    assert cache.register(parts, small) == 0 and cache.find(parts) is not None
    other = flatten_message(large)
    assert other is not None and cache.find(other) is None and cache.register(other, large) == 1


def test_there_are_only_so_many_forms() -> None:
    cache = SchemaCache()
    names = []
    for size in range(100):
        parts = flatten_message((1, ((np.zeros(size),),)))
        assert parts is not None
        names.append(cache.register(parts, (1, ((np.zeros(size),),))))
    assert names == [*range(64), *[-1] * 36]


def test_a_form_keeps_no_array() -> None:
    """A schema lives as long as its connection, and does not keep its first message alive."""
    array = np.zeros(1000)
    kept = weakref.ref(array)
    message: Any = (1, RemoteCall(("actor", 0, 1), 0, 0, ("queue", 0), "insert", ({"a": array},)))
    form = MessageSchema(0, message)
    del array, message
    assert kept() is None and form.size == 8000
