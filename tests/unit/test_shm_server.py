"""Streams through shared memory: accepted and refused clients, rows of requests, and requests on a broken stream."""

from __future__ import annotations

import asyncio
import mmap
import socket
from typing import Any

import numpy as np
import pytest
from fakes import YieldingContext
from gymnasium.spaces import Box, Dict
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_hall import ROWS, Hall, layout, pending_request, play
from inference_parts import NEVER, wanted

from thespis.core.context import Identity
from thespis.core.payloads import ActResponse
from thespis.core.types import Inputs, Stream, map_tree
from thespis.experience.trajectory_assembler import StepMessage, encode_step
from thespis.transport import shm_client
from thespis.transport.inference import Responder
from thespis.transport.inference_schema import InferenceSchema, MalformedMessage
from thespis.transport.shared_buffer import SharedBuffer
from thespis.transport.shm_client import HandshakeRefused, ShmInferenceClient
from thespis.transport.shm_server import ShmInferenceServer

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_client, "_RETRY_SECONDS", 0.01)


# -- requests ------------------------------------------------------------------------------------

TREE = Dict({"left": Box(0, 255, (2, 3), np.uint8), "right": Box(-1, 1, (), np.float32)})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 4), start=st.integers(0, 3), tree=st.booleans())
def test_messages_arrive_as_they_were_sent(seed: int, rows: int, start: int, tree: bool) -> None:
    """Steps with and without episode ends and last observations, and their responses."""
    rng = np.random.default_rng(seed)
    made = InferenceSchema.of(
        TREE if tree else Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32), start + rows
    )
    messages: list[StepMessage] = []

    def observation(batch: int) -> Any:
        parts = [rng.integers(0, 99, (batch, *leaf.shape)).astype(leaf.dtype) for leaf in made.observation]
        return made.tree(parts)

    def ask(step_message: StepMessage, asker: Responder) -> None:
        messages.append(
            step_message._replace(
                **{name: map_tree(np.copy, getattr(step_message, name)) for name in ("obs", "rewards")}
            )
        )
        asker.respond(
            ActResponse(
                np.full((rows, 2), step_message.number, np.float32), step_message.rewards - 1, step_message.number + 7
            )
        )

    def step(number: int) -> StepMessage:
        stream, obs = Stream(("actor", 0), 5), observation(rows)
        inputs = Inputs(obs, np.ones(rows, np.bool_), np.zeros((rows, 2)), rng.random(rows).astype(np.float32))
        step_message = encode_step(stream, start, number, inputs, None)
        flags = rng.choice(np.array([8, 1, 12], np.uint8), rows)
        finals = observation(int((flags == 12).sum())) if rng.random() < 0.5 else None
        return step_message if number == 0 else step_message._replace(flags=flags, finals=finals)

    async def play() -> None:
        listener = ShmInferenceServer(made)

        class OpenSession:
            name = "actor.inference.open_session"

            async def __call__(self, stream: Stream) -> Any:
                return await listener.open_session(stream, ask)

        ctx = YieldingContext(Identity("actor", 0, run_seed=0, incarnation=5))
        client = ShmInferenceClient(ctx, OpenSession(), made)
        for number in range(5):
            step_message = step(number)
            answer = await client(*step_message)
            assert (answer.actions == number).all() and answer.version == number + 7
            np.testing.assert_array_equal(answer.logp, step_message.rewards - 1)
            for name in ("obs", "finals"):
                left, right = getattr(messages[-1], name), getattr(step_message, name)
                assert (left is None) == (right is None)
                if left is not None:
                    map_tree(np.testing.assert_array_equal, left, right)
            np.testing.assert_array_equal(messages[-1].rewards, step_message.rewards)
            np.testing.assert_array_equal(messages[-1].flags, step_message.flags)
            assert messages[-1][:3] == step_message[:3]
        await client.close()
        await listener.close()

    asyncio.run(play())


def test_a_request_stays_valid_while_the_next_is_written() -> None:
    """The server reads a request until after its response, when the actor may have written the next one."""
    buffer = SharedBuffer(layout(), mmap.mmap(-1, SharedBuffer.size(layout())))
    even, odd = buffer.slot(0, ROWS).requests
    even.obs[:], odd.obs[:] = 1.0, 2.0
    assert (even.obs == 1.0).all() and (odd.obs == 2.0).all()
    with pytest.raises(MalformedMessage, match="were 4, not 2"):
        buffer.slot(0, 2)
    with pytest.raises(MalformedMessage, match="of 4"):
        buffer.slot(2, 3)


# -- spinning instead of sleeping ----------------------------------------------------------------


async def unseen(made: Hall) -> tuple[Any, asyncio.Future[ActResponse]]:
    """Return an actor whose spinning flag is set, and the response that the server has written meanwhile."""
    client = made.client(0)
    await client(*made.message(0))
    client._buffer.spinning = True
    answer = client.begin(made.message(0))
    while not client._buffer.is_answered(0, 1):
        await asyncio.sleep(0.001)
    return client, answer


def test_a_spinning_actor_is_sent_no_message() -> None:
    async def script(made: Hall) -> None:
        client, answer = await unseen(made)
        await asyncio.sleep(0.01)
        assert not answer.done(), "nothing woke it"
        client.poll(0.002)
        assert answer.done() and answer.result().actions.tolist() == wanted(0, 1, ROWS)
        assert not client._buffer.spinning

    play(script, shared_memory=True)


def test_who_has_stopped_looking_is_woken() -> None:
    """The server cannot respond while the actor spins, because both run in one thread here."""

    async def script(made: Hall) -> None:
        client = made.client(0)
        await client(*made.message(0))
        slept = []
        for number in range(1, 7):
            answer = client.begin(made.message(0))
            client._skip = 0
            client.poll(0.002)
            assert not answer.done()
            slept.append(client._skip)
            assert (await answer).actions.tolist() == wanted(0, number, ROWS)
        assert slept == [-1, -1, -1, 32, 64, 128], "failed spins become less and less frequent"

    play(script, shared_memory=True)


def test_an_answer_that_came_as_it_stopped_looking_is_not_missed() -> None:
    """The server saw the spinning flag, and the actor saw no response yet."""

    async def script(made: Hall) -> None:
        client, answer = await unseen(made)
        client._buffer.spinning = False
        client._socket.send(shm_client.WAKE_UP.pack(0))
        assert (await answer).actions.tolist() == wanted(0, 1, ROWS)

    play(script, shared_memory=True)


# -- refused clients ----------------------------------------------------------------------------


def hello(actor: int = 0, incarnation: int = 0, made: InferenceSchema | None = None) -> bytes:
    return (made or layout()).hello(actor, incarnation)


REFUSED = {
    "no token": (b"", hello(), "token"),
    "wrong token": (bytes(32), hello(), "token"),
    "shapes": (None, hello(made=layout((3,))), "actor 0 has observation <f4[3]"),
    "dtypes": (None, hello(made=layout(dtype=np.uint8)), "actor 0 has observation |u1[1]"),
    "environments": (None, hello(made=layout(environments=5)), "5 environments; this server takes"),
    "no hello": (None, b"hello", "opens with a hello"),
    "unknown actor": (None, hello(actor=9), "incarnation 0 of actor 9 is not expected"),
    "another incarnation": (None, hello(incarnation=1), "incarnation 1 of actor 0 is not expected"),
    "second claim": (None, hello(actor=1), "actor 1 already has a connection"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_clients_get_a_reason(case: str) -> None:
    """Meanwhile an actor continues: its stream does not break, and every request gets a response."""
    token, said, why = REFUSED[case]

    async def script(made: Hall) -> None:
        good = made.client(1)
        await good(*made.message(1))
        stream, endpoint = good._socket, await made(Stream(("actor", 0), 0))
        given = bytes.fromhex(endpoint.token) if token is None else token

        def attempt() -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.settimeout(10)
                stranger.connect(f"\0{endpoint.address}")
                stranger.send(given + said)
                return stranger.recv(1 << 16)

        attempting = asyncio.get_running_loop().run_in_executor(None, attempt)
        for _ in range(10):
            await good(*made.message(1))
        assert why in (await attempting).decode()
        await good(*made.message(1))
        assert good._socket is stream, "the actor's only stream"
        later = made.client(0, incarnation=1)
        assert (await later(*made.message(0, incarnation=1))).actions.tolist() == wanted(0, 0, ROWS), (
            "the server continues"
        )

    play(script, shared_memory=True)


def test_a_silent_client_delays_no_other() -> None:
    async def script(made: Hall) -> None:
        endpoint = await made(Stream(("actor", 1), 0))
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        silent.connect(f"\0{endpoint.address}")
        await asyncio.sleep(0.01)
        await asyncio.wait_for(made.client(0)(*made.message(0)), 2.0)
        silent.close()

    play(script, shared_memory=True)


def test_an_actor_with_other_arrays_fails_with_the_reason() -> None:
    async def script(made: Hall) -> None:
        client, step_message = (
            made.client(0, made=layout((3,))),
            made.message(0)._replace(obs=np.zeros((ROWS, 3), np.float32)),
        )
        for _ in range(2):  # a retry would fail in the same way
            with pytest.raises(HandshakeRefused, match="actor 0 has observation .* takes"):
                await client(*step_message)

    play(script, shared_memory=True)


# -- streams that break -------------------------------------------------------------------------


def test_a_request_outlives_its_connection() -> None:
    """A batch needs both actors; the stream of the first breaks while it waits for the second."""

    async def script(made: Hall) -> None:
        one, other = made.client(0), made.client(1)
        for _ in range(5):
            waiting = one.begin(made.message(0))
            before = await pending_request(made.server)
            listener: Any = made.server._listener
            listener._sessions[0].connection.close()
            await pending_request(made.server, unlike=before)
            await asyncio.gather(waiting, other.begin(made.message(1)))
        assert made.policy.batches == [2 * ROWS] * 5, (
            "a request was answered twice, or in a batch without the other actor"
        )
        for _, unroll in made.unrolls:
            steps = np.diff(unroll.inputs.obs[:, 0, 0])
            assert steps.tolist() == [100.0, 100.0], "a step is missing or duplicated"
        assert len(made.unrolls) == 4

    play(script, batch=3 * ROWS, patience=NEVER, shared_memory=True)


def test_a_server_that_is_never_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_client, "_ATTEMPTS", 3)

    async def script(made: Hall) -> None:
        client = made.client(0)
        await client(*made.message(0))
        await made.close()
        with pytest.raises(ConnectionError, match="accepts no connection"):
            await client(*made.message(0))
        made.open()

    play(script, shared_memory=True)
