"""The schema of streams: a round trip of every message, and errors for malformed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from thespis.core.payloads import ActResponse
from thespis.core.types import Stream, map_tree
from thespis.experience.trajectory_assembler import StepMessage
from thespis.transport.inference_schema import InferenceSchema, MalformedMessage, read_hello

STREAM = Stream(("actor", 3), 7)
SPACES = {
    "vector": Box(-1.0, 1.0, (4,), np.float32),
    "image": Box(0, 255, (3, 5, 1), np.uint8),
    "number": Discrete(5),
    "dict": Dict({"far": Box(0, 255, (3, 3), np.uint8), "near": Box(-1.0, 1.0, (2,), np.float32)}),
}
TRUNCATED = 4


def layout(space: str = "vector", actions: Any = None, environments: int = 8) -> InferenceSchema:
    return InferenceSchema.of(SPACES[space], actions or Discrete(2), environments)


def result(made: InferenceSchema, rows: int, truncated: list[bool], finals: bool, seed: int = 0) -> StepMessage:
    """Return a request with random content."""
    rng = np.random.default_rng(seed)

    def noise(number: int) -> Any:
        parts = {leaf.key: rng.integers(0, 200, (number, *leaf.shape)).astype(leaf.dtype) for leaf in made.observation}
        return parts.get(None, parts)

    flags = np.array([8 | TRUNCATED * one for one in truncated], np.uint8)
    rewards = rng.normal(size=rows).astype(np.float32)
    return StepMessage(STREAM, 8 - rows, 41, noise(rows), rewards, flags, noise(sum(truncated)) if finals else None)


@settings(max_examples=60, deadline=None)
@given(
    space=st.sampled_from(sorted(SPACES)),
    truncated=st.lists(st.booleans(), min_size=1, max_size=8),
    finals=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_request_arrives_as_it_was_sent(space: str, truncated: list[bool], finals: bool, seed: int) -> None:
    made = layout(space)
    asked = result(made, len(truncated), truncated, finals, seed)
    message = made.encode_request(asked)
    messages = made.decode_request(message, STREAM)
    assert len(message) <= made.limit
    assert (messages.stream, messages.start, messages.number) == (STREAM, asked.start, 41)

    def same(one: Any, other: Any) -> None:
        assert one.dtype == other.dtype and one.flags.writeable and one.flags.aligned
        np.testing.assert_array_equal(one, other)

    for name in ("obs", "rewards", "flags", "finals"):
        if getattr(asked, name) is None:
            assert getattr(messages, name) is None
        else:
            map_tree(same, getattr(messages, name), getattr(asked, name))


@pytest.mark.parametrize("actions", [Discrete(3), Box(-1.0, 1.0, (3,), np.float32)], ids=["discrete", "box"])
def test_an_answer_arrives_as_it_was_given(actions: Any) -> None:
    made = layout(actions=actions)
    done = np.arange(15).reshape(5, 3) if isinstance(actions, Box) else np.arange(5)
    given_ = ActResponse(done.astype(made.action.dtype), np.linspace(-1, 0, 5, dtype=np.float32), 12 << 40 | 5)
    start, number, messages = made.decode_response(made.encode_response(result(made, 5, [False] * 5, False), given_))
    assert (start, number, messages.version) == (3, 41, given_.version)
    np.testing.assert_array_equal(messages.actions, given_.actions)
    np.testing.assert_array_equal(messages.logp, given_.logp)
    assert messages.actions.dtype == given_.actions.dtype


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.tuples(st.integers(0, 230), st.binary(min_size=1, max_size=8))))
def test_noise_is_malformed_and_nothing_worse(noise: Any) -> None:
    """Random messages, and valid ones with some bytes overwritten, are refused or decoded."""
    made = layout()
    if isinstance(noise, tuple):
        at, some = noise
        message = bytearray(made.encode_request(result(made, 8, [True] * 8, True)))
        message[at : at + len(some)] = some
        noise = bytes(message)
    for read in (
        lambda: made.decode_request(noise, STREAM),
        lambda: made.decode_response(noise),
        lambda: read_hello(noise),
    ):
        try:
            read()
        except MalformedMessage:
            continue


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda made, asked: made.encode_request(asked)[:-8], "bytes, not"),
        (lambda made, asked: made.encode_request(asked) + bytes(8), "bytes, not"),
        (lambda made, asked: made.encode_request(asked._replace(start=7)), "2 environments from 7 on, of 8"),
        (lambda made, asked: made.encode_request(asked._replace(number=-1)), "2 environments from 6 on"),
        (lambda made, asked: made.encode_request(asked._replace(flags=asked.flags * 0)), "1 final observations of 0"),
        (lambda made, asked: b"", "a message of 0 bytes"),
    ],
)
def test_impossible_requests_are_refused(change: Any, complaint: str) -> None:
    made = layout()
    with pytest.raises(MalformedMessage, match=complaint):
        made.decode_request(change(made, result(made, 2, [True, False], True)), STREAM)


def test_a_layout_names_what_matters() -> None:
    assert str(layout()) == "observation <f4[4], action <i8[], 8 environments"
    assert str(layout("dict")).startswith("observation 'far' |u1[3, 3], observation 'near' <f4[2], action")
    hello = read_hello(layout().hello(3, 2**61))
    assert (hello.actor, hello.incarnation, hello.layout) == (3, 2**61, str(layout()))
