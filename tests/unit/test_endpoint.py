"""Endpoints: a repeated call takes effect once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from fakes import FakeContext

from thespis.core.context import Identity
from thespis.core.service import Method, RoleDescription
from thespis.runtime.endpoint import Caller, Endpoint, Stub
from thespis.transport.calls import RemoteCall


class Counter:
    description: ClassVar = RoleDescription(methods=dict.fromkeys(("add", "wait", "fail"), Method("experience")))

    def __init__(self) -> None:
        self.total = 0
        self.gate = asyncio.Event()
        self.stopped = 0

    async def add(self, by: int) -> int:
        self.total += by
        return self.total

    async def wait(self) -> str:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        self.total += 1
        return "opened"

    async def fail(self) -> None:
        self.total += 1
        raise ValueError("no")

    async def secret(self) -> None: ...


def call(
    method: str, *args: Any, sequence: int = 0, settled: int = 0, incarnation: int = 1, index: int = 0
) -> RemoteCall:
    return RemoteCall(("actor", index, incarnation), sequence, settled, ("counter", 0), method, args)


def play(scene: Any) -> None:
    async def run() -> None:
        counter = Counter()
        await scene(counter, Endpoint(counter))

    asyncio.run(run())


def test_a_repeated_call_has_one_effect_and_the_same_answer() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        assert [await endpoint.answer(call("add", 5)) for _ in range(3)] == [5, 5, 5]
        assert await endpoint.answer(call("add", 2, sequence=1)) == 7
        assert await endpoint.answer(call("add", 5)) == 5
        assert counter.total == 7

    play(scene)


def test_a_call_repeated_while_it_is_answered_waits_for_the_same_answer() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        asked = [asyncio.create_task(endpoint.answer(call("wait"))) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()  # the first delivery was cancelled, but not its work
        await asyncio.sleep(0)
        counter.gate.set()
        assert await asyncio.gather(*asked[1:]) == ["opened", "opened"]
        assert counter.total == 1

    play(scene)


def test_a_failure_is_repeated_too() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await endpoint.answer(call("fail"))
        assert counter.total == 1

    play(scene)


def test_callers_are_distinguished() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        assert await endpoint.answer(call("add", 1, index=0)) == 1
        assert await endpoint.answer(call("add", 1, index=1)) == 2

    play(scene)


def test_a_new_incarnation_starts_counting_anew_and_ends_what_the_old_one_asked() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        old = asyncio.create_task(endpoint.answer(call("wait", sequence=7)))
        await asyncio.sleep(0.01)
        assert await endpoint.answer(call("add", 1, incarnation=2)) == 1
        with pytest.raises(asyncio.CancelledError):
            await old
        assert counter.stopped == 1

    play(scene)


def test_the_end_of_an_old_incarnation_does_not_touch_the_new_one() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        await endpoint.answer(call("add", 1, incarnation=1))
        new = asyncio.create_task(endpoint.answer(call("wait", incarnation=2)))
        await asyncio.sleep(0)
        endpoint.lost(("actor", 0, 1))
        await asyncio.sleep(0)
        counter.gate.set()
        assert await new == "opened"
        endpoint.lost(("nobody", 0, 0))

    play(scene)


def test_nothing_more_is_done_for_a_caller_that_is_gone() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        waiting: Awaitable[Any] = asyncio.create_task(endpoint.answer(call("wait")))
        await asyncio.sleep(0.01)
        endpoint.lost(("actor", 0, 1))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        counter.gate.set()
        await asyncio.sleep(0)
        assert (counter.total, counter.stopped) == (0, 1)

    play(scene)


def test_a_closed_endpoint_cancels_its_calls() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        begun = [endpoint.begin(call("wait", index=index)) for index in range(2)]
        await asyncio.sleep(0)
        endpoint.close()
        await asyncio.gather(*begun, return_exceptions=True)
        assert counter.stopped == 2 and all(answer.cancelled() for answer in begun)

    play(scene)


def test_settled_answers_are_forgotten() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        for number in range(100):
            await endpoint.answer(call("add", 1, sequence=number, settled=number))
        (_, answers) = endpoint._seen["actor", 0]
        assert list(answers) == [99]

    play(scene)


def test_what_a_checkpoint_holds_is_not_done_again() -> None:
    """A restored service answers calls from before its checkpoint, and executes later ones."""

    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        await endpoint.answer(call("add", 5, sequence=3))
        waiting = endpoint.begin(call("wait", sequence=4))
        await asyncio.sleep(0)
        saved = json.loads(json.dumps(endpoint.state()))
        waiting.cancel()
        again = Counter()
        again.total = counter.total
        revived = Endpoint(again)
        revived.restore(saved)
        assert await revived.answer(call("add", 5, sequence=3)) == 5
        assert again.total == 5
        again.gate.set()
        assert await revived.answer(call("wait", sequence=4)) == "opened"
        assert await revived.answer(call("add", 1, sequence=3, incarnation=2)) == 7, (
            "another incarnation has its own numbers"
        )
        assert await revived.answer(call("add", 1, sequence=3, index=1)) == 8

    play(scene)


def test_a_call_from_before_two_restarts_is_not_done_again() -> None:
    """Its caller was stopped, and repeats it only after a second checkpoint and a second restart."""

    async def restarted(before: Endpoint, total: int) -> tuple[Counter, Endpoint]:
        counter, saved = Counter(), json.loads(json.dumps(before.state()))
        counter.total = total
        endpoint = Endpoint(counter)
        endpoint.restore(saved)
        return counter, endpoint

    async def scene(_: Counter, endpoint: Endpoint) -> None:
        await endpoint.answer(call("add", 5))
        _, second = await restarted(endpoint, 5)
        assert await second.answer(call("add", 7, index=1)) == 12
        counter, third = await restarted(second, 12)
        assert await third.answer(call("add", 5)) == 5 and counter.total == 12
        assert await third.answer(call("add", 1, sequence=1, settled=1)) == 13
        assert third.state() == [["actor", 0, 1, {"1": 13}], ["actor", 1, 1, {"0": 12}]], "settled replies are dropped"
        await third.answer(call("add", 1, incarnation=2))
        await third.answer(call("add", 1, incarnation=2, index=1))
        callers = [caller[:3] for caller in third.state()]
        assert callers == [["actor", 0, 2], ["actor", 1, 2]], "so are those of an earlier incarnation"

    play(scene)


def test_what_was_handed_out_is_handed_out_again() -> None:
    class Tap:
        description: ClassVar = RoleDescription(methods={"draw": Method("experience")})

        async def draw(self) -> list[int]:
            return [1]

    async def scene() -> None:
        endpoint = Endpoint(Tap())
        await endpoint.answer(call("draw"))
        assert endpoint.state() == [["actor", 0, 1, {}]]

    asyncio.run(scene())


def test_only_edges_can_be_called() -> None:
    async def scene(counter: Counter, endpoint: Endpoint) -> None:
        with pytest.raises(AttributeError, match="counter has no edge 'secret'"):
            await endpoint.answer(call("secret"))

    play(scene)


def test_a_caller_settles_up_to_its_oldest_open_call() -> None:
    caller = Caller(FakeContext(Identity("actor", 3, run_seed=0, incarnation=9)))
    first, second, third = (caller.open(("queue", 0), "insert", ()) for _ in range(3))
    assert [made.sequence for made in (first, second, third)] == [0, 1, 2]
    assert first.caller == ("actor", 3, 9)
    caller.close(second)
    assert caller.open(("queue", 0), "insert", ()).settled == 0
    caller.close(first)
    assert caller.open(("queue", 0), "insert", ()).settled == 2


def test_a_stub_counts_what_it_carried() -> None:
    ctx = FakeContext(Identity("actor", 0, run_seed=0))

    def deliver(call: RemoteCall, edge: str, answered: Callable[[int, int], None]) -> asyncio.Future[Any]:
        answered(100, 23)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result((edge, call.method, call.args))
        return answer

    stub = Stub(Caller(ctx), ("queue", 0), "insert", deliver)

    async def ask() -> list[Any]:
        return [await stub(1, 2), await ctx.ahead(stub(1, 2))]

    answers = asyncio.run(ask())
    assert answers == [("actor.queue.insert", "insert", (1, 2))] * 2
    traffic = ctx.take_report().edges["actor.queue.insert"]
    assert (traffic.calls, traffic.bytes, traffic.sent) == (2, 246, 200)
