"""The services alone: a queue that waits and never loses items, a store whose version never decreases."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, settle
from hypothesis import given
from hypothesis import strategies as st

from thespis.core.context import Identity
from thespis.core.types import Version, VersionedWeights
from thespis.roles import Queue, WeightStore


def context() -> FakeContext:
    return FakeContext(Identity("service", 0, run_seed=0))


def item(number: int) -> dict[str, Any]:
    return {"number": np.array([number])}


def numbers(items: list[Any]) -> list[int]:
    return [int(item["number"][0]) for item in items]


def test_first_in_first_out() -> None:
    async def scene() -> None:
        queue = Queue(context(), capacity=5)
        for number in range(5):
            await queue.insert(item(number))
        assert numbers(await queue.sample(2)) == [0, 1]
        await queue.insert(item(5))
        assert numbers(await queue.sample(4)) == [2, 3, 4, 5]

    asyncio.run(scene())


def test_insert_waits_while_full_and_sample_until_there_is_enough() -> None:
    async def scene() -> None:
        ctx = context()
        queue = Queue(ctx, capacity=2)
        inserts = [asyncio.create_task(queue.insert(item(number))) for number in range(5)]
        await settle()
        assert [task.done() for task in inserts] == [True, True, False, False, False]
        sample = asyncio.create_task(queue.sample(2))
        await settle()
        assert numbers(await sample) == [0, 1]
        assert sum(task.done() for task in inserts) == 4
        assert numbers(await queue.sample(2)) == [2, 3], "waiting calls proceed in order"
        late = asyncio.create_task(queue.sample(2))
        await settle()
        assert not late.done()
        await queue.insert(item(5))
        assert numbers(await late) == [4, 5]
        counters = ctx.take_report().counters
        assert (counters["replay/inserted"], counters["replay/sampled"]) == (6, 6)

    asyncio.run(scene())


def test_a_caller_that_gives_up_takes_nothing_along() -> None:
    async def scene() -> None:
        queue = Queue(context(), capacity=2)
        gone = asyncio.create_task(queue.sample(2))
        await settle()
        gone.cancel()
        await settle()
        for number in range(2):
            await queue.insert(item(number))
        blocked = asyncio.create_task(queue.insert(item(99)))
        await settle()
        blocked.cancel()
        await settle()
        assert numbers(await queue.sample(2)) == [0, 1]
        await queue.insert(item(2))
        assert numbers(await queue.sample(1)) == [2]

    asyncio.run(scene())


@given(
    capacity=st.integers(1, 5),
    producers=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_interleaving_each_item_comes_once(capacity: int, producers: list[int], seed: int) -> None:
    order = random.Random(seed)
    batch = order.randint(1, capacity)
    total = sum(producers)

    async def produce(queue: Queue, who: int, count: int) -> None:
        for number in range(count):
            for _ in range(order.randint(0, 3)):
                await asyncio.sleep(0)
            await queue.insert({"tag": np.array([who, number])})

    async def consume(queue: Queue) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        while total - len(taken) >= batch:
            for _ in range(order.randint(0, 3)):
                await asyncio.sleep(0)
            taken += [tuple(item["tag"].tolist()) for item in await queue.sample(batch)]
            assert len(queue.state()[1]["items"]) <= capacity
        return taken

    async def scene() -> list[tuple[int, int]]:
        queue = Queue(context(), capacity=capacity)
        work = [asyncio.create_task(produce(queue, who, count)) for who, count in enumerate(producers)]
        taken = await consume(queue)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        return taken

    taken = asyncio.run(scene())
    assert len(taken) == len(set(taken)) == total - total % batch
    for who in range(len(producers)):
        mine = [number for owner, number in taken if owner == who]
        assert mine == [*range(len(mine))]


def test_a_queue_comes_back_from_its_state() -> None:
    async def scene() -> None:
        queue, other = Queue(context(), capacity=4), Queue(context(), capacity=4)
        for number in range(4):
            await queue.insert({"number": np.array([number]), "tree": {"a": np.full((2, 3), number)}})
        await queue.sample(1)
        arrays, values = queue.state()
        other.restore({name: array.copy() for name, array in arrays.items()}, values)
        assert numbers(await other.sample(2)) == [1, 2]
        (last,) = await other.sample(1)
        np.testing.assert_array_equal(last["tree"]["a"], np.full((2, 3), 3))

    asyncio.run(scene())


def versioned(epoch: int, update: int) -> VersionedWeights:
    return VersionedWeights(Version(epoch, update), {"w": np.array([update])})


def test_the_first_pull_waits_and_later_ones_bring_only_what_is_newer() -> None:
    async def scene() -> None:
        store = WeightStore(context())
        first: Awaitable[Any] = asyncio.create_task(store.pull(None))
        await settle()
        assert await store.pull(Version(0, 3)) is None, "a caller with weights does not wait for an empty store"
        await store.publish(versioned(0, 5))
        assert (await first).version == (0, 5)
        assert await store.pull(Version(0, 5)) is None
        assert await store.pull(Version(1, 0)) is None
        newer = await store.pull(Version(0, 4))
        assert newer is not None and newer.version == (0, 5)

    asyncio.run(scene())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=30), st.integers(0, 3))
def test_no_one_is_ever_given_a_lower_version(published: list[tuple[int, int]], hold_back: int) -> None:
    async def scene() -> None:
        ctx = context()
        store = WeightStore(ctx, hold_back=hold_back)
        seen: Version | None = None
        accepted: list[tuple[int, int]] = []
        for version in published:
            if not accepted or version > accepted[-1]:
                accepted.append(version)
            await store.publish(versioned(*version))
            newer = await store.pull(seen)
            if newer is not None:
                assert seen is None or newer.version > seen
                assert newer.weights["w"][0] == newer.version.update
                seen = newer.version
            assert seen == accepted[max(0, len(accepted) - 1 - hold_back)], "served weights are hold_back updates old"
        newest = [max(published[: i + 1]) for i in range(len(published))]
        older = sum(version < best for version, best in zip(published, newest, strict=True))
        refused = ctx.take_report().counters.get("dropped/old_weights", 0)
        assert refused == older, "older weights are counted; repeated ones are not"

    asyncio.run(scene())


@pytest.mark.parametrize("role", ["Actor", "Evaluator", "Learner", "LocalPolicy", "Replay", "WeightStore"])
def test_roles_are_found_by_name(role: str) -> None:
    from thespis import roles

    assert getattr(roles, role).__name__ == role


def test_a_role_that_is_not_there() -> None:
    from thespis import roles

    with pytest.raises(AttributeError, match="thespis.roles' has no attribute 'Director'"):
        roles.Director  # noqa: B018
