"""gRPC streams: accepted and refused clients, refusal messages, and requests on a broken stream."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inference_hall import ROWS, Hall, Relay, layout, pending_request, play
from inference_parts import NEVER, wanted

from thespis.core.errors import ThespisError
from thespis.core.payloads import InferenceEndpoint
from thespis.core.types import Stream
from thespis.experience.trajectory_assembler import StepMessage
from thespis.transport import grpc_client, shm_client
from thespis.transport.grpc_server import METHOD, SERVICE, TOKEN, _write_responses
from thespis.transport.inference_schema import InferenceSchema
from thespis.transport.tls import Tls

grpc = pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(60)
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return signed(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1,DNS:thespis.example")


def signed(path: Path, names: str) -> Tls:
    """Make a self-signed certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=thespis -addext "
    files = ["-keyout", str(path / "key.pem"), "-out", str(path / "cert.pem")]
    subprocess.run(["openssl", *words.split(), f"subjectAltName={names}", *files], check=True, capture_output=True)
    return Tls(path / "cert.pem", path / "key.pem", path / "cert.pem")


@pytest.mark.parametrize("way", ["memory", "unix", "tcp", "tls"])
def test_actors_get_their_own_rows(way: str, request: pytest.FixtureRequest) -> None:
    """Two actors, each with two groups that wait at the same time."""

    async def script(made: Hall) -> None:
        async def ask(line: Any, actor: int, start: int) -> None:
            for number in range(10):
                answer = await line(*made.message(actor, start=start, rows=2))
                assert answer.actions.tolist() == [one + start for one in wanted(actor, number, 2)]

        lines = [made.client(actor) for actor in range(2)]
        await asyncio.gather(*(ask(lines[actor], actor, start) for actor in range(2) for start in (0, 2)))
        assert {stream.who for stream, _ in made.unrolls} == {
            (f"actor+{start}", actor) for actor in range(2) for start in (0, 2)
        }
        for _, unroll in made.unrolls:
            np.testing.assert_array_equal(unroll.inputs.obs[:-1, :, 0], unroll.actions)
        traffic = lines[0].ctx.take_report().edges["actor.inference.act"]
        assert traffic.calls == 20 and traffic.bytes > 20 * 2 * 4 * 4
        endpoint = await made(Stream(("actor", 0), 0))
        where = {"memory": "thespis-", "unix": "unix:/"}
        assert endpoint.address.startswith(where.get(way, "127.0.0.1:"))

    tls = request.getfixturevalue("certificate") if way == "tls" else None
    play(script, address=None if way == "unix" else "127.0.0.1", tls=tls, shared_memory=way == "memory")


# -- refused clients ----------------------------------------------------------------------------


def hello(actor: int = 0, incarnation: int = 0, made: InferenceSchema | None = None) -> bytes:
    return (made or layout()).hello(actor, incarnation)


def request(**change: Any) -> bytes:
    result = StepMessage(
        Stream(("actor", 0), 0), 0, 0, np.zeros((ROWS, 1), np.float32), np.zeros(ROWS, np.float32),
        np.full(ROWS, 9, np.uint8), None,
    )  # fmt: skip
    return layout().encode_request(result._replace(**change))


FEWER = {
    "obs": np.zeros((2, 1), np.float32),
    "rewards": np.zeros(2, np.float32),
    "flags": np.full(2, 9, np.uint8),
}
REFUSED: dict[str, tuple[str | None, list[bytes], Any, str]] = {
    "no token": (None, [hello()], CODE.UNAUTHENTICATED, "token"),
    "wrong token": ("0" * 64, [hello()], CODE.UNAUTHENTICATED, "token"),
    "shapes": ("", [hello(made=layout((3,)))], CODE.INVALID_ARGUMENT, r"has observation <f4\[3\].* takes .*f4\[1\]"),
    "dtypes": ("", [hello(made=layout(dtype=np.uint8))], CODE.INVALID_ARGUMENT, r"has observation \|u1\[1\]"),
    "environments": ("", [hello(made=layout(environments=5))], CODE.INVALID_ARGUMENT, "5 environments; .* 4 env"),
    "no hello": ("", [b"hello"], CODE.INVALID_ARGUMENT, "opens with a hello"),
    "oversize hello": ("", [bytes(1 << 20)], CODE.RESOURCE_EXHAUSTED, "larger than max"),
    "oversize question": ("", [hello(), bytes(1 << 20)], CODE.RESOURCE_EXHAUSTED, "larger than max"),
    "short question": ("", [hello(), request()[:-8]], CODE.INVALID_ARGUMENT, "bytes, not"),
    "unknown actor": ("", [hello(actor=9)], CODE.NOT_FOUND, "incarnation 0 of actor 9 is not expected"),
    "negative actor": ("", [hello(actor=-1)], CODE.NOT_FOUND, "incarnation 0 of actor -1 is not expected"),
    "another incarnation": ("", [hello(incarnation=1)], CODE.NOT_FOUND, "incarnation 1 of actor 0 is not expected"),
    "second claim": ("", [hello(actor=1)], CODE.ALREADY_EXISTS, "actor 1 already has a stream"),
    "other rows": ("", [hello(), request(), b"", request(**FEWER)], CODE.INVALID_ARGUMENT, "were not 2 before"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_clients_get_a_reason(case: str) -> None:
    """Meanwhile an actor continues: its stream does not break, and every request gets a response."""
    token, messages, code, why = REFUSED[case]

    async def script(made: Hall) -> None:
        good = made.client(1)
        await good(*made.message(1))
        endpoint = await made(Stream(("actor", 0), 0))  # actor 0 is expected, but another client connects
        given = endpoint.token if token == "" else token

        knocking = asyncio.create_task(connect(endpoint.address, given, messages))
        stream = good._call
        for _ in range(10):
            await good(*made.message(1))
        status, details = await knocking
        assert status is code and re.search(why, details), details
        await good(*made.message(1))
        assert good._call is stream, "the actor's only stream"
        later = made.client(0, incarnation=1)
        assert (await later(*made.message(0, incarnation=1))).actions.tolist() == wanted(0, 0, ROWS), (
            "the server continues"
        )

    play(script)


async def connect(target: str, token: str | None, messages: list[bytes]) -> tuple[Any, str]:
    """Send these messages; without messages, wait for the hello and a response. Return the outcome."""
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=() if token is None else ((TOKEN, token),))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                if message:
                    await call.write(message)
                else:
                    assert await call.read() and await call.read()
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code(), await call.details()


def test_a_refusal_waits_for_what_is_being_said() -> None:
    """The server still sends its hello when it finds the request malformed: the reason follows the hello."""

    async def script(made: Hall) -> None:
        for incarnation in range(100):
            target, token = await made(Stream(("actor", 0), incarnation))
            code, why = await connect(target, token, [hello(incarnation=incarnation), request()[:-8]])
            assert code is CODE.INVALID_ARGUMENT and "bytes, not" in why

    play(script)


def test_an_answer_to_who_has_left_is_no_failure() -> None:
    """The stream may break while a response is sent; another part of the server notices the lost actor."""

    class Left:
        async def write(self, answer: bytes) -> None:
            raise grpc._cython.cygrpc.ExecuteBatchError("Failed")

    async def script() -> None:
        answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        answers.put_nowait(b"answer")
        await asyncio.wait_for(_write_responses(Left(), answers), 5.0)

    asyncio.run(script())


def test_the_same_environments_ask_once_at_a_time() -> None:
    async def script(made: Hall) -> None:
        target, token = await made(Stream(("actor", 0), 0))
        code, why = await connect(target, token, [hello(), request(), request(number=1)])
        assert code is CODE.INVALID_ARGUMENT and "already have an open request" in why
        assert all(request.responder.cancelled for request in made.server._requests), "no client waits for this request"

    play(script, batch=100, patience=NEVER)


def test_a_silent_client_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thespis.transport.grpc_server._HELLO_SECONDS", 0.05)

    async def script(made: Hall) -> None:
        endpoint = await made(Stream(("actor", 0), 0))
        async with grpc.aio.insecure_channel(endpoint.address) as channel:
            method = channel.stream_stream(f"/{SERVICE}/{METHOD}")
            silent = [method(metadata=((TOKEN, endpoint.token),)) for _ in range(20)]
            await made.client(0)(*made.message(0))
            assert {await call.code() for call in silent} == {CODE.DEADLINE_EXCEEDED}

    play(script)


def test_a_connection_without_a_stream_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thespis.transport.grpc_server._STRANGER_MS", 100)

    async def script(made: Hall) -> None:
        endpoint = await made(Stream(("actor", 0), 0))

        def wait_for_the_end() -> None:
            with socket.socket(socket.AF_UNIX) as silent:
                silent.settimeout(30)
                silent.connect(endpoint.address.removeprefix("unix:"))
                while silent.recv(1 << 16):
                    pass

        await asyncio.to_thread(wait_for_the_end)
        await made.client(0)(*made.message(0))

    play(script)


@pytest.mark.parametrize("made", [layout((3,)), layout(dtype=np.uint8)], ids=["shape", "dtype"])
def test_an_actor_with_other_arrays_fails_with_the_reason(made: InferenceSchema) -> None:
    async def script(place: Hall) -> None:
        result = place.message(0)._replace(obs=np.zeros((ROWS, *made.observation[0].shape), made.observation[0].dtype))
        for _ in range(2):  # a retry would fail in the same way
            with pytest.raises(ConnectionError, match="INVALID_ARGUMENT: actor 0 has observation .* takes"):
                await place.clients[0](*result) if place.clients else await place.client(0, made=made)(*result)

    play(script)


# -- streams that break -------------------------------------------------------------------------


def test_a_request_outlives_its_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A batch needs both actors; the stream of the first breaks while it waits for the second.

    A batch is full with three requests, because one of the clients is gone when the batch runs.
    """
    monkeypatch.setattr(grpc_client, "_RETRY_SECONDS", 0.01)

    async def script(made: Hall) -> None:
        one, other = made.client(0), made.client(1)
        relay = Relay(tmp_path / "relay")

        class Through:
            name = made.name

            async def __call__(self, stream: Stream) -> InferenceEndpoint:
                endpoint = await made(stream)
                relay.target = endpoint.address
                return endpoint._replace(address=f"unix:{relay.path}")

        one._open_session = Through()
        for _ in range(5):
            waiting = asyncio.create_task(one(*made.message(0)))
            before = await pending_request(made.server)
            relay.cut()
            await pending_request(made.server, unlike=before)
            await asyncio.gather(waiting, other(*made.message(1)))
        assert made.policy.batches == [2 * ROWS] * 5, (
            "a request was answered twice, or in a batch without the other actor"
        )
        for _, unroll in made.unrolls:
            steps = np.diff(unroll.inputs.obs[:, 0, 0])
            assert steps.tolist() == [100.0, 100.0], "a step is missing or duplicated"
        assert len(made.unrolls) == 4
        relay.close()

    play(script, batch=3 * ROWS, patience=NEVER)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "grpc"])
def test_a_new_incarnation_replaces_the_old_one(shared_memory: bool) -> None:
    async def script(made: Hall) -> None:
        old = made.client(0)
        for _ in range(4):
            await old(*made.message(0))
        new = made.client(0, incarnation=1)
        made._numbers.clear()
        for _ in range(3):
            await new(*made.message(0, incarnation=1))
        incarnations = [(stream.incarnation, unroll.inputs.obs[:, 0, 0].tolist()) for stream, unroll in made.unrolls]
        assert incarnations == [(0, [0.0, 100.0, 200.0]), (1, [0.0, 100.0, 200.0])], (
            "the unfinished unrolls of the old incarnation are dropped"
        )

    play(script, shared_memory=shared_memory)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "grpc"])
def test_a_server_that_was_restarted_is_found_where_it_is(shared_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_client if shared_memory else grpc_client, "_RETRY_SECONDS", 0.01)

    async def script(made: Hall) -> None:
        line = made.client(0)
        await line(*made.message(0))
        before = await made(Stream(("actor", 0), 0))
        await made.close()
        made.open()
        assert (await line(*made.message(0))).actions.tolist() == wanted(0, 1, ROWS)
        after = await made(Stream(("actor", 0), 0))
        assert before.address != after.address and before.token != after.token

    play(script, shared_memory=shared_memory)


def test_the_socket_is_private_and_goes_with_the_server() -> None:
    async def script(made: Hall) -> None:
        endpoint = await made(Stream(("actor", 0), 0))
        path = Path(endpoint.address.removeprefix("unix:"))
        assert stat.S_ISSOCK(path.stat().st_mode) and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await made.server.close()
        assert not path.parent.exists()

    play(script)


# -- certificates -------------------------------------------------------------------------------


def test_a_certificate_of_another_server_is_refused(
    certificate: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_client, "_ATTEMPTS", 1)
    monkeypatch.setattr(grpc_client, "_RETRY_SECONDS", 0.01)
    other = signed(tmp_path, "IP:127.0.0.1")

    async def script(made: Hall) -> None:
        named = Tls(certificate.cert, certificate.key, certificate.ca, "thespis.example")
        await made.client(0, tls=named)(*made.message(0))
        for wrong in (other, Tls(certificate.cert, certificate.key, certificate.ca, "somewhere.example")):
            with pytest.raises(ConnectionError, match="UNAVAILABLE"):
                await made.client(1, tls=wrong)(*made.message(1))

    play(script, address="127.0.0.1", tls=certificate)


def test_files_that_are_no_certificates(certificate: Tls, tmp_path: Path) -> None:
    other, nothing = signed(tmp_path, "IP:127.0.0.1"), tmp_path / "nothing.pem"
    certificate.check()
    for tls, complaint in (
        (Tls(nothing, certificate.key, certificate.ca), "--tls-cert .*nothing.pem and --tls-key .* cannot be used"),
        (Tls(certificate.cert, other.key, certificate.ca), "cannot be used: .*MISMATCH"),
        (Tls(certificate.cert, certificate.key, certificate.key), "--tls-ca .*key.pem cannot be used"),
    ):
        with pytest.raises(ThespisError, match=complaint):
            tls.check()
