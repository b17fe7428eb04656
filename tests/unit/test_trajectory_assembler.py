"""A server assembles what an actor's own writer would, and never mixes two incarnations in one unroll."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_stream import Moment, check, streams
from recorded_stream import stream as moments_of

from thespis.core.types import PolicyOutput, Stream, Unroll, Version
from thespis.experience.trajectory_assembler import StepMessage, TrajectoryAssembler, encode_step

ACTOR = Stream(("actor", 0), 7)


def assembler(length: int) -> TrajectoryAssembler:
    return TrajectoryAssembler(length, lambda batch: (np.zeros((batch, 3)),), np.zeros(2, np.int64))


def feed(server: TrajectoryAssembler, moments: list[Moment], who: Stream = ACTOR, start: int = 0) -> list[Unroll]:
    """Send a stream to the server, as a `RemotePolicy` would."""
    unrolls, step = [], None
    for number, (now, then) in enumerate(pairwise(moments)):
        slot = server.receive(encode_step(who, start, number, now.inputs, step))
        completes, unroll = slot.completes, slot.write()
        assert completes == (unroll is not None)
        unrolls += [unroll] if unroll is not None else []
        slot.decide(PolicyOutput(now.actions, now.logp, then.state), now.version)
        step = now.step
    return unrolls


@settings(max_examples=60, deadline=None)
@given(moments=streams(), length=st.integers(1, 7))
def test_unrolls_are_the_stream(moments: list[Moment], length: int) -> None:
    unrolls = feed(assembler(length), moments)
    assert len(unrolls) == max(0, len(moments) - 2) // length, "the last step arrives with the next request"
    for k, unroll in enumerate(unrolls):
        check(unroll, moments, k * length, length)


def message(who: Stream, number: int, incarnation: int, clock: int) -> StepMessage:
    """A message of two environments whose observations hold their incarnation and step."""
    obs = np.tile(np.array([incarnation, clock], np.float32), (2, 1))
    flags = np.full(2, 8 | (number == 0), np.uint8)
    return StepMessage(who, 0, number, obs, np.full(2, clock, np.float32), flags, None)


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(1, 5),
    incarnations=st.lists(
        st.tuples(
            st.integers(0, 1),  # which actor
            st.booleans(),  # the server forgets everything before it
            st.lists(st.sampled_from(["response", "late", "repeat", "lost"]), max_size=14),
        ),
        max_size=8,
    ),
)
def test_no_unroll_has_two_incarnations_or_a_gap(length: int, incarnations: list[tuple[int, bool, list[str]]]) -> None:
    """Actors and servers die at any step and restart; requests are repeated, before or after their response.

    Steps are written before the response, or after it.
    """
    server, made = assembler(length), 0
    for incarnation, (actor, restarted, events) in enumerate(incarnations):
        who = Stream(("actor", actor), incarnation)
        number = 0
        for event in events:
            for _ in range(2 if event == "repeat" else 1):
                slot = server.receive(message(who, number, incarnation, number))
                unroll = slot.write() if slot.completes or event != "late" else None
                made += unroll is not None
                if unroll is not None:
                    whole(unroll, incarnation)
                if event != "lost":
                    slot.decide(
                        PolicyOutput(np.full((2, 2), number), np.zeros(2, np.float32), slot.state), Version(0, number)
                    )
                if event == "late":
                    assert slot.write() is None, "an unroll is never completed after the response"
            # An actor without a response does not step: it repeats the request.
            number += event != "lost"
            if restarted and number == 3:
                server = assembler(length)
    assert made <= sum(len(events) for _, _, events in incarnations) // length


def whole(unroll: Unroll, incarnation: int) -> None:
    obs: Any = unroll.inputs.obs
    assert (obs[..., 0] == incarnation).all(), "two incarnations in one unroll"
    assert (np.diff(obs[:, 0, 1]) == 1).all(), "a gap in an unroll"
    np.testing.assert_array_equal(unroll.actions[:, 0, 0], obs[:-1, 0, 1])
    np.testing.assert_array_equal(unroll.rewards[:, 0], obs[1:, 0, 1])
    np.testing.assert_array_equal(unroll.versions[:, 0], obs[:-1, 0, 1])


def test_a_new_incarnation_opens_with_a_state_of_zeros() -> None:
    server = assembler(3)
    slot = server.receive(message(ACTOR, 0, 0, 0))
    slot.decide(PolicyOutput(np.ones((2, 2), np.int64), np.zeros(2, np.float32), (np.ones((2, 3)),)), Version(0, 0))
    slot = server.receive(message(ACTOR, 1, 0, 1))
    assert slot.state[0].all() and slot.inputs.last_action.all() and slot.inputs.last_reward.all()
    again = server.receive(message(Stream(ACTOR.who, 8), 0, 1, 0))
    assert not (again.state[0].any() or again.inputs.last_action.any() or again.inputs.last_reward.any())


def test_groups_of_one_actor_have_unrolls_of_their_own() -> None:
    rng = np.random.default_rng(0)
    left, right = (moments_of(13, 2, rng, tree=False, same_step=True) for _ in range(2))
    server = assembler(4)
    for start, moments in ((0, left), (2, right)):
        for k, unroll in enumerate(feed(server, moments, start=start)):
            check(unroll, moments, 4 * k, 4)
