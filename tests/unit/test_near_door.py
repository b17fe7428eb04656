"""Streams through shared memory: who is let in, whose rows are whose, and what becomes of a question on the way."""

from __future__ import annotations

import asyncio
import mmap
import socket
from typing import Any

import numpy as np
import pytest
from door_hall import ROWS, Hall, asked, layout, play
from fakes import YieldingContext
from gymnasium.spaces import Box, Dict
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_parts import NEVER, wanted

from thespis.core.context import Identity
from thespis.core.messages import Answer
from thespis.core.types import Inputs, Stream, map_tree
from thespis.experience.seats import Told, tell
from thespis.transport import shm_client as near_line
from thespis.transport.inference import Asker
from thespis.transport.inference_schema import Layout, Malformed
from thespis.transport.shared_buffer import Page
from thespis.transport.shm_client import NearLine, Refused
from thespis.transport.shm_server import NearDoor

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_line, "_RETRY_SECONDS", 0.01)


# -- what is told -------------------------------------------------------------------------------

TREE = Dict({"left": Box(0, 255, (2, 3), np.uint8), "right": Box(-1, 1, (), np.float32)})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 4), start=st.integers(0, 3), tree=st.booleans())
def test_what_is_heard_is_what_was_told(seed: int, rows: int, start: int, tree: bool) -> None:
    """Usual steps and others, with last observations and without; and the answers."""
    rng = np.random.default_rng(seed)
    made = Layout.of(TREE if tree else Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32), start + rows)
    heard: list[Told] = []

    def observation(batch: int) -> Any:
        parts = [rng.integers(0, 99, (batch, *leaf.shape)).astype(leaf.dtype) for leaf in made.observation]
        return made.tree(parts)

    def ask(told: Told, asker: Asker) -> None:
        heard.append(told._replace(**{name: map_tree(np.copy, getattr(told, name)) for name in ("obs", "rewards")}))
        asker.give(Answer(np.full((rows, 2), told.number, np.float32), told.rewards - 1, told.number + 7))

    def step(number: int) -> Told:
        stream, obs = Stream(("actor", 0), 5), observation(rows)
        inputs = Inputs(obs, np.ones(rows, np.bool_), np.zeros((rows, 2)), rng.random(rows).astype(np.float32))
        told = tell(stream, start, number, inputs, None)
        flags = rng.choice(np.array([8, 1, 12], np.uint8), rows)
        finals = observation(int((flags == 12).sum())) if rng.random() < 0.5 else None
        return told if number == 0 else told._replace(flags=flags, finals=finals)

    async def play() -> None:
        door = NearDoor(made)

        class Invite:
            name = "actor.inference.invite"

            async def __call__(self, stream: Stream) -> Any:
                return await door.invite(stream, ask)

        line = NearLine(YieldingContext(Identity("actor", 0, run_seed=0, incarnation=5)), Invite(), made)
        for number in range(5):
            told = step(number)
            answer = await line(*told)
            assert (answer.actions == number).all() and answer.version == number + 7
            np.testing.assert_array_equal(answer.logp, told.rewards - 1)
            for name in ("obs", "finals"):
                left, right = getattr(heard[-1], name), getattr(told, name)
                assert (left is None) == (right is None)
                if left is not None:
                    map_tree(np.testing.assert_array_equal, left, right)
            np.testing.assert_array_equal(heard[-1].rewards, told.rewards)
            np.testing.assert_array_equal(heard[-1].flags, told.flags)
            assert heard[-1][:3] == told[:3]
        await line.close()
        await door.close()

    asyncio.run(play())


def test_a_question_stays_while_the_next_is_written() -> None:
    """What was told is read until after the answer, and by then the actor may have gone on."""
    page = Page(layout(), mmap.mmap(-1, Page.size(layout())))
    even, odd = page.place(0, ROWS).seen
    even.obs[:], odd.obs[:] = 1.0, 2.0
    assert (even.obs == 1.0).all() and (odd.obs == 2.0).all()
    with pytest.raises(Malformed, match="were 4, not 2"):
        page.place(0, 2)
    with pytest.raises(Malformed, match="of 4"):
        page.place(2, 3)


# -- looking instead of sleeping ----------------------------------------------------------------


async def unseen(made: Hall) -> tuple[Any, asyncio.Future[Answer]]:
    """An actor that the server believes to look, and the answer that it was given meanwhile."""
    line = made.line(0)
    await line(*made.told(0))
    line._page.looked_at = True
    answer = line.begin(made.told(0))
    while not line._page.answered(0, 1):
        await asyncio.sleep(0.001)
    return line, answer


def test_who_looks_is_sent_no_message() -> None:
    async def script(made: Hall) -> None:
        line, answer = await unseen(made)
        await asyncio.sleep(0.01)
        assert not answer.done(), "nothing woke it"
        line.take(0.002)
        assert answer.done() and answer.result().actions.tolist() == wanted(0, 1, ROWS)
        assert not line._page.looked_at

    play(script, near=True)


def test_who_has_stopped_looking_is_woken() -> None:
    """Here the server cannot answer while the actor looks, or before it sleeps: both are in one thread."""

    async def script(made: Hall) -> None:
        line = made.line(0)
        await line(*made.told(0))
        slept = []
        for number in range(1, 7):
            answer = line.begin(made.told(0))
            line._asleep = 0
            line.take(0.002)
            assert not answer.done()
            slept.append(line._asleep)
            assert (await answer).actions.tolist() == wanted(0, number, ROWS)
        assert slept == [-1, -1, -1, 32, 64, 128], "what is always in vain is tried less and less often"

    play(script, near=True)


def test_an_answer_that_came_as_it_stopped_looking_is_not_missed() -> None:
    """The server saw that it looked, and it saw no answer yet."""

    async def script(made: Hall) -> None:
        line, answer = await unseen(made)
        line._page.looked_at = False
        line._socket.send(near_line.REMINDER.pack(0))
        assert (await answer).actions.tolist() == wanted(0, 1, ROWS)

    play(script, near=True)


# -- who is not let in --------------------------------------------------------------------------


def hello(actor: int = 0, life: int = 0, made: Layout | None = None) -> bytes:
    return (made or layout()).hello(actor, life)


REFUSED = {
    "no token": (b"", hello(), "token"),
    "wrong token": (bytes(32), hello(), "token"),
    "shapes": (None, hello(made=layout((3,))), "actor 0 has observation <f4[3]"),
    "dtypes": (None, hello(made=layout(dtype=np.uint8)), "actor 0 has observation |u1[1]"),
    "environments": (None, hello(made=layout(environments=5)), "5 environments; this server takes"),
    "no hello": (None, b"hello", "opens with a hello"),
    "unknown actor": (None, hello(actor=9), "no such life of actor 9"),
    "another life": (None, hello(life=1), "no such life of actor 0"),
    "second claim": (None, hello(actor=1), "actor 1 has a stream already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_strangers_are_told_why(case: str) -> None:
    """And meanwhile an actor goes on: its stream does not break, and no answer is missing."""
    token, said, why = REFUSED[case]

    async def script(made: Hall) -> None:
        good = made.line(1)
        await good(*made.told(1))
        stream, invitation = good._socket, await made(Stream(("actor", 0), 0))
        given = bytes.fromhex(invitation.token) if token is None else token

        def knock() -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
                guest.settimeout(10)
                guest.connect(f"\0{invitation.target}")
                guest.send(given + said)
                return guest.recv(1 << 16)

        knocking = asyncio.get_running_loop().run_in_executor(None, knock)
        for _ in range(10):
            await good(*made.told(1))
        assert why in (await knocking).decode()
        await good(*made.told(1))
        assert good._socket is stream, "the one stream that it ever had"
        later = made.line(0, life=1)
        assert (await later(*made.told(0, life=1))).actions.tolist() == wanted(0, 0, ROWS), "the server lives on"

    play(script, near=True)


def test_who_says_nothing_keeps_nobody_waiting() -> None:
    async def script(made: Hall) -> None:
        invitation = await made(Stream(("actor", 1), 0))
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        silent.connect(f"\0{invitation.target}")
        await asyncio.sleep(0.01)
        await asyncio.wait_for(made.line(0)(*made.told(0)), 2.0)
        silent.close()

    play(script, near=True)


def test_an_actor_with_other_arrays_fails_with_the_reason() -> None:
    async def script(made: Hall) -> None:
        line, told = made.line(0, made=layout((3,))), made.told(0)._replace(obs=np.zeros((ROWS, 3), np.float32))
        for _ in range(2):  # it does not get better
            with pytest.raises(Refused, match="actor 0 has observation .* takes"):
                await line(*told)

    play(script, near=True)


# -- streams that break -------------------------------------------------------------------------


def test_a_question_outlives_its_stream() -> None:
    """A batch needs both actors; the stream of the first breaks while it waits for the second."""

    async def script(made: Hall) -> None:
        one, other = made.line(0), made.line(1)
        for _ in range(5):
            waiting = one.begin(made.told(0))
            before = await asked(made.server)
            door: Any = made.server._door
            door._lives[0].desk.leave()
            await asked(made.server, unlike=before)
            await asyncio.gather(waiting, other.begin(made.told(1)))
        assert made.policy.batches == [2 * ROWS] * 5, "nobody was answered twice, or without the other"
        for _, unroll in made.unrolls:
            steps = np.diff(unroll.inputs.obs[:, 0, 0])
            assert steps.tolist() == [100.0, 100.0], "no step is missing or there twice"
        assert len(made.unrolls) == 4

    play(script, batch=3 * ROWS, patience=NEVER, near=True)


def test_a_server_that_is_never_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_line, "_ATTEMPTS", 3)

    async def script(made: Hall) -> None:
        line = made.line(0)
        await line(*made.told(0))
        await made.close()
        with pytest.raises(ConnectionError, match="lets nobody in"):
            await line(*made.told(0))
        made.open()

    play(script, near=True)
