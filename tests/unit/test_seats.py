"""Trajectories put together by a server: what an actor's own writer would make, and never two lives in one unroll."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_stream import Moment, check, streams
from recorded_stream import stream as moments_of

from thespis.core.types import Acted, Stream, Unroll, Version
from thespis.experience.seats import Seats, Told, tell

ACTOR = Stream(("actor", 0), 7)


def seats(length: int) -> Seats:
    return Seats(length, lambda batch: (np.zeros((batch, 3)),), np.zeros(2, np.int64))


def feed(server: Seats, moments: list[Moment], who: Stream = ACTOR, start: int = 0) -> list[Unroll]:
    """Tell the server of a stream, as a `RemotePolicy` would."""
    unrolls, step = [], None
    for number, (now, then) in enumerate(pairwise(moments)):
        seat = server.take(tell(who, start, number, now.inputs, step))
        completes, unroll = seat.completes, seat.write()
        assert completes == (unroll is not None)
        unrolls += [unroll] if unroll is not None else []
        seat.decide(Acted(now.actions, now.logp, then.state), now.version)
        step = now.step
    return unrolls


@settings(max_examples=60, deadline=None)
@given(moments=streams(), length=st.integers(1, 7))
def test_unrolls_are_the_stream(moments: list[Moment], length: int) -> None:
    unrolls = feed(seats(length), moments)
    assert len(unrolls) == max(0, len(moments) - 2) // length, "the last step would arrive with the next request"
    for k, unroll in enumerate(unrolls):
        check(unroll, moments, k * length, length)


def told(who: Stream, number: int, life: int, clock: int) -> Told:
    """A question of two environments whose observations say which life and which step they are of."""
    obs = np.tile(np.array([life, clock], np.float32), (2, 1))
    flags = np.full(2, 8 | (number == 0), np.uint8)
    return Told(who, 0, number, obs, np.full(2, clock, np.float32), flags, None)


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(1, 5),
    lives=st.lists(
        st.tuples(
            st.integers(0, 1),  # which actor
            st.booleans(),  # the server forgets everything before it
            st.lists(st.sampled_from(["answer", "late", "repeat", "lost"]), max_size=14),
        ),
        max_size=8,
    ),
)
def test_no_unroll_has_two_lives_or_a_gap(length: int, lives: list[tuple[int, bool, list[str]]]) -> None:
    """Actors die at any step and come back; servers too; questions are repeated, answered or not.

    Steps are written down before the answer, or after it.
    """
    server, made = seats(length), 0
    for life, (actor, restarted, events) in enumerate(lives):
        who = Stream(("actor", actor), life)
        number = 0
        for event in events:
            for _ in range(2 if event == "repeat" else 1):
                seat = server.take(told(who, number, life, number))
                unroll = seat.write() if seat.completes or event != "late" else None
                made += unroll is not None
                if unroll is not None:
                    whole(unroll, life)
                if event != "lost":
                    seat.decide(Acted(np.full((2, 2), number), np.zeros(2, np.float32), seat.state), Version(0, number))
                if event == "late":
                    assert seat.write() is None, "an unroll is never completed after the answer"
            # An actor that has no answer does not step: it asks the same again.
            number += event != "lost"
            if restarted and number == 3:
                server = seats(length)
    assert made <= sum(len(events) for _, _, events in lives) // length


def whole(unroll: Unroll, life: int) -> None:
    obs: Any = unroll.inputs.obs
    assert (obs[..., 0] == life).all(), "two lives in one unroll"
    assert (np.diff(obs[:, 0, 1]) == 1).all(), "a gap in an unroll"
    np.testing.assert_array_equal(unroll.actions[:, 0, 0], obs[:-1, 0, 1])
    np.testing.assert_array_equal(unroll.rewards[:, 0], obs[1:, 0, 1])
    np.testing.assert_array_equal(unroll.versions[:, 0], obs[:-1, 0, 1])


def test_a_new_life_opens_with_a_state_of_zeros() -> None:
    server = seats(3)
    seat = server.take(told(ACTOR, 0, 0, 0))
    seat.decide(Acted(np.ones((2, 2), np.int64), np.zeros(2, np.float32), (np.ones((2, 3)),)), Version(0, 0))
    seat = server.take(told(ACTOR, 1, 0, 1))
    assert seat.state[0].all() and seat.inputs.last_action.all() and seat.inputs.last_reward.all()
    again = server.take(told(Stream(ACTOR.who, 8), 0, 1, 0))
    assert not (again.state[0].any() or again.inputs.last_action.any() or again.inputs.last_reward.any())


def test_groups_of_one_actor_have_unrolls_of_their_own() -> None:
    rng = np.random.default_rng(0)
    left, right = (moments_of(13, 2, rng, tree=False, same_step=True) for _ in range(2))
    server = seats(4)
    for start, moments in ((0, left), (2, right)):
        for k, unroll in enumerate(feed(server, moments, start=start)):
            check(unroll, moments, 4 * k, 4)
