"""The inference server alone: the rows of each response, the time of a batch, and the acting weights."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, YieldingContext
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_parts import NEVER, Policy, Weights, wanted

from thespis.core.context import Identity
from thespis.core.types import Stream, Unroll, unpack_version
from thespis.experience.trajectory_assembler import StepMessage, TrajectoryAssembler
from thespis.roles import Batching, InferenceServer

pytestmark = pytest.mark.timeout(30)


class Scene:
    """Build a server; unrolls have two steps."""

    def __init__(
        self,
        batch: int,
        patience: float,
        insert: Callable[..., Any] | None = None,
        context: type[FakeContext] = YieldingContext,
    ) -> None:
        self.policy, self.weights, self.unrolls = Policy(), Weights(), list[tuple[Stream, Unroll]]()
        self.ctx = context(Identity("inference", 0, run_seed=0))
        made = TrajectoryAssembler(2, lambda rows: (np.zeros(rows, np.int64),), np.zeros((), np.int64))
        self.server = InferenceServer(
            self.ctx, self.policy, made, self.weights, insert or self._insert, Batching(batch, patience)  # type: ignore[arg-type]
        )  # fmt: skip
        self._numbers: dict[int, int] = {}

    async def __aenter__(self) -> Scene:
        self.running = asyncio.create_task(self.server.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    def request(self, actor: int, rows: int = 2, incarnation: int = 0) -> asyncio.Future[Any]:
        """Return the next request of an actor; observations identify actor, environment and request."""
        number = self._numbers.get(actor, 0)
        self._numbers[actor] = number + 1
        obs = (actor * 10_000 + number * 100 + np.arange(rows, dtype=np.float32))[:, None]
        flags = np.full(rows, 8 | (number == 0), np.uint8)
        stream = Stream(("actor", actor), incarnation)
        return self.server.act(*StepMessage(stream, 0, number, obs, np.zeros(rows, np.float32), flags, None))

    async def _insert(self, stream: Stream, unroll: Unroll) -> None:
        self.unrolls.append((stream, unroll))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    batch=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_every_actor_gets_its_own_rows(rows: list[int], batch: int, seed: int) -> None:
    """Every request gets its own rows, in any order of arrival and for any batch size."""
    order = random.Random(seed)

    async def actor(scene: Scene, index: int) -> None:
        for number in range(6):
            for _ in range(order.randint(0, 4)):
                await asyncio.sleep(0)
            response = await scene.request(index, rows[index])
            assert response.actions.tolist() == wanted(index, number, rows[index])

    async def play() -> Scene:
        async with Scene(batch, 1e-4) as scene:
            await asyncio.gather(*(actor(scene, index) for index in range(len(rows))))
        return scene

    scene = asyncio.run(play())
    assert sum(scene.policy.batches) == 6 * sum(rows)
    for stream, unroll in scene.unrolls:
        np.testing.assert_array_equal(unroll.inputs.obs[:-1, :, 0], unroll.actions)
        assert unroll.state[0][0] in (0, 2, 4), "the state of the environments at the start of the unroll"
        assert unroll.actions[0, 0] // 10_000 == stream.who[1]


def test_a_batch_runs_when_it_is_full() -> None:
    async def play() -> list[int]:
        async with Scene(batch=4, patience=NEVER) as scene:
            requests = [scene.request(actor) for actor in range(2)]
            await asyncio.gather(*requests)
            late = scene.request(0)
            await asyncio.sleep(0.01)
            assert not late.done()
            await asyncio.gather(late, scene.request(1))
            return scene.policy.batches

    assert asyncio.run(play()) == [4, 4]


def test_the_request_that_fills_a_batch_gets_its_response_at_once() -> None:
    async def play() -> None:
        async with Scene(batch=4, patience=NEVER, context=FakeContext) as scene:
            await asyncio.gather(
                *(scene.request(actor) for actor in range(2))
            )  # the server has loaded the first weights
            first, second = scene.request(0), scene.request(1)
            assert second.done() and first.done() and first.result().actions.tolist() == wanted(0, 1, 2)

    asyncio.run(play())


def test_newer_weights_are_loaded_before_a_batch_runs() -> None:
    async def play() -> None:
        async with Scene(batch=2, patience=NEVER, context=FakeContext) as scene:
            assert (await scene.request(0)).version == 0
            await scene.weights.publish()
            for _ in range(5):
                await asyncio.sleep(0)
            assert unpack_version((await scene.request(0)).version).update == 1

    asyncio.run(play())


def test_an_error_of_the_policy_is_not_lost() -> None:
    async def play() -> None:
        async with Scene(batch=2, patience=NEVER, context=FakeContext) as scene:
            await scene.request(0)
            scene.policy.act = None  # type: ignore[assignment,method-assign]
            scene.request(0)
            with pytest.raises(TypeError):
                await scene.running

    asyncio.run(play())


def test_too_few_requests_to_fill_a_batch_get_responses_too() -> None:
    async def play() -> None:
        async with Scene(batch=1000, patience=1e-3) as scene:
            for number in range(5):
                assert (await scene.request(0)).actions.tolist() == wanted(0, number, 2)

    asyncio.run(play())


def test_a_cancelled_request_is_not_in_a_batch() -> None:
    async def play() -> list[int]:
        async with Scene(batch=4, patience=NEVER) as scene:
            scene.request(0).cancel()
            await scene.request(1)
            return scene.policy.batches

    assert asyncio.run(play()) == [2]


def test_the_version_that_acted_is_written_at_every_step() -> None:
    async def play() -> list[Unroll]:
        async with Scene(batch=2, patience=NEVER) as scene:
            for number in range(9):
                response = await scene.request(0)
                assert response.version == number and (response.logp == number).all()
                await scene.weights.publish()
                for _ in range(10):
                    await asyncio.sleep(0)
            return [unroll for _, unroll in scene.unrolls]

    unrolls = asyncio.run(play())
    assert [unroll.versions[:, 0].tolist() for unroll in unrolls] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for unroll in unrolls:
        np.testing.assert_array_equal(unroll.behaviour_logp, unroll.versions)


def test_a_full_queue_holds_up_its_own_actor_only() -> None:
    async def play() -> None:
        room = asyncio.Event()
        taken: list[int] = []

        async def insert(stream: Stream, unroll: Unroll) -> None:
            if stream.who[1] == 0:
                await room.wait()
            taken.append(stream.who[1])

        async with Scene(1, NEVER, insert) as scene:
            for _ in range(4):  # one insert is pending, the next unroll is half full
                await scene.request(0)
            held = scene.request(0)
            for _ in range(9):
                await scene.request(1)
            assert not held.done()
            room.set()
            await held
            assert taken.count(0) == 2 and taken.count(1) == 4

    asyncio.run(play())
