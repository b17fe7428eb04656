"""Frames between processes: inline arrays or shared memory, complete and in order, and all blocks are released."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from thespis.transport import connection as transport
from thespis.transport.arena import Arena, PeerArena
from thespis.transport.connection import Connection

INLINE = transport._INLINE_BYTES


class End:
    """One side of a connection, with its received messages and the blocks of its arena."""

    def __init__(self, sock: socket.socket, arena: Arena, peer: PeerArena) -> None:
        self.arena = arena
        self.got: list[Any] = []
        self.bytes: list[int] = []
        self.lost = 0
        self.connection = Connection(sock, arena, peer, self._received, self._on_lost)

    def _received(self, _: Connection, message: Any, nbytes: int) -> None:
        self.got.append(message)
        self.bytes.append(nbytes)

    def _on_lost(self, _: Connection) -> None:
        self.lost += 1

    @property
    def lent(self) -> int:
        return len(self.arena._blocks)


@pytest.fixture
def memory() -> Iterator[Callable[[int], int]]:
    descriptors: list[int] = []

    def make(size: int) -> int:
        descriptors.append(os.memfd_create("test", os.MFD_CLOEXEC))
        os.ftruncate(descriptors[-1], size)
        return descriptors[-1]

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


def play(memory: Callable[[int], int], scene: Callable[[End, End], Awaitable[None]], size: int = 1 << 22) -> None:
    """Join two ends by a real socket and let `scene` use them."""

    async def run() -> None:
        left, right = memory(size), memory(size)
        here, there = socket.socketpair()
        one, two = End(here, Arena(left), PeerArena(right)), End(there, Arena(right), PeerArena(left))
        try:
            await scene(one, two)
        finally:
            one.connection.close()
            two.connection.close()
            await asyncio.sleep(0.01)

    asyncio.run(run())


async def arrive(end: End, count: int) -> None:
    async with asyncio.timeout(10):
        while len(end.got) < count:
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", [0, 1, 63, 64, INLINE - 1, INLINE, INLINE + 1, INLINE + 64, 1_000_003])
def test_arrays_of_any_size_arrive_whole(size: int, memory: Any) -> None:
    array = np.random.default_rng(size).integers(0, 256, size, np.uint8)

    async def scene(one: End, two: End) -> None:
        sent = one.connection.send(("name", {"a": array, "b": array[::-1].copy()}))
        await arrive(two, 1)
        name, arrays = two.got[0]
        assert name == "name"
        np.testing.assert_array_equal(arrays["a"], array)
        np.testing.assert_array_equal(arrays["b"], array[::-1])
        assert arrays["a"].flags.writeable, "a receiver may write to its arrays"
        assert one.lent == (1 if 2 * size > INLINE else 0)
        assert sent == two.bytes[0] >= 2 * size

    play(memory, scene)


def test_what_was_sent_is_not_shared(memory: Any) -> None:
    async def scene(one: End, two: End) -> None:
        array = np.zeros(50_000)
        one.connection.send(array)
        array[:] = 1
        await arrive(two, 1)
        copy = two.got[0]
        one.arena._view[:] = 7
        assert not copy.any()

    play(memory, scene)


def test_odd_arrays(memory: Any) -> None:
    parts = {
        "scalar": np.float32(3.0),
        "zero dimensions": np.array(4),
        "empty": np.empty((0, 5)),
        "fortran": np.asfortranarray(np.arange(12000.0).reshape(100, 120)),
        "strided": np.arange(40_000)[::2],
        "bool": np.ones((300, 100), np.bool_),
    }

    async def scene(one: End, two: End) -> None:
        one.connection.send(parts)
        await arrive(two, 1)
        for name, part in parts.items():
            np.testing.assert_array_equal(two.got[0][name], part)
            assert two.got[0][name].dtype == part.dtype

    play(memory, scene)


def test_many_messages_both_ways_keep_their_order_and_give_back_their_blocks(memory: Any) -> None:
    dice = random.Random(0)
    sizes = [dice.choice([0, 10, 5000, 30_000, 200_000]) for _ in range(300)]

    async def scene(one: End, two: End) -> None:
        for number, size in enumerate(sizes):
            one.connection.send((number, np.full(size, number % 251, np.uint8)))
            if number % 3 == 0:
                two.connection.send((number, np.full(size, number % 241, np.uint8)))
            if number % 50 == 49:
                await asyncio.sleep(0)
        await arrive(two, len(sizes))
        await arrive(one, 100)
        assert [number for number, _ in two.got] == [*range(len(sizes))]
        assert all((array == number % 251).all() and len(array) == sizes[number] for number, array in two.got)
        assert all((array == number % 241).all() for number, array in one.got)
        for _ in range(2):  # the last releases are sent with the next message
            one.connection.send("over")
            two.connection.send("over")
            await asyncio.sleep(0.02)
        assert (one.lent, two.lent) == (0, 0)

    play(memory, scene)


def test_a_full_arena_falls_back_to_the_socket(memory: Any) -> None:
    async def scene(one: End, two: End) -> None:
        for number in range(10):
            one.connection.send(np.full(40_000, number, np.uint8))
        assert one.lent == 2, "100,000 bytes are enough for two"
        await arrive(two, 10)
        assert [int(array[0]) for array in two.got] == [*range(10)]
        assert all((array == array[0]).all() for array in two.got)

    play(memory, scene, size=100_000)


def test_a_dead_peer_gives_back_its_blocks(memory: Any) -> None:
    async def scene(one: End, two: End) -> None:
        one.connection.send(np.zeros(100_000))
        assert one.lent == 1
        two.connection.close()
        async with asyncio.timeout(5):
            while not one.lost:
                await asyncio.sleep(0)
        assert one.lent == 0
        assert one.lost == 1

    play(memory, scene)


def test_sending_to_a_dead_peer_lends_nothing(memory: Any) -> None:
    async def scene(one: End, two: End) -> None:
        two.connection.close()
        async with asyncio.timeout(5):
            while not one.lost:
                await asyncio.sleep(0)
        one.connection.send(np.zeros(100_000))
        assert one.lent == 0

    play(memory, scene)


async def in_place(one: End, two: End, size: int = 100_000) -> Any:
    """Let both ends know the schema of a message, and send one whose array is in the arena. Return what arrived."""
    for number in range(2):
        one.connection.send((number, (np.zeros(size, np.float32),)))
        two.connection.poll()
    two.connection.send((0, (0,)))
    one.connection.poll()
    assert one.lent == 0
    block = one.arena.allocate(4 * size)
    assert block is not None
    array = block.view(np.float32)
    array[:] = np.arange(size)
    nbytes = one.connection.send((2, (array,)))
    two.connection.poll()
    assert nbytes == two.bytes[-1] > 4 * size
    received = two.got.pop()[1][0]
    assert not np.shares_memory(array, received), "the ends map the memory separately"
    return array, received


def test_an_allocated_array_is_read_in_place_until_all_have_dropped_it(memory: Any) -> None:
    async def scene(one: End, two: End) -> None:
        array, received = await in_place(one, two)
        assert not received.flags.writeable, "a receiver cannot change what others read"
        array[0] = 7.0
        assert received[0] == 7.0, "no copy was made"
        part = received[50_000:]
        del array, received
        two.connection.send((0, (0,)))
        one.connection.poll()
        one.arena.store_bytes(b"x")
        assert one.lent == 2, "a view of the array still uses it"
        assert part[0] == 50_000.0
        del part
        two.connection.send((0, (0,)))
        one.connection.poll()
        one.arena.free(one.arena.store_bytes(b"x"))
        assert one.lent == 1

    play(memory, scene)


def test_an_array_that_is_still_used_by_its_sender_keeps_its_block(memory: Any) -> None:
    async def scene(one: End, two: End) -> None:
        array, received = await in_place(one, two)
        del received
        two.connection.send((0, (0,)))
        one.connection.poll()
        assert one.lent == 1
        one.connection.send((3, (array,)))
        one.connection.send((4, (array,)))
        assert one.lent == 1, "the same block is sent again"
        two.connection.close()
        async with asyncio.timeout(5):
            while not one.lost:
                await asyncio.sleep(0)
        assert one.lent == 1 and array[-1] == len(array) - 1
        del array
        one.arena.free(one.arena.store_bytes(b"x"))
        assert one.lent == 0

    play(memory, scene)


def test_a_full_arena_allocates_nothing(memory: Any) -> None:
    arena = Arena(memory(64 * 100))
    first = arena.allocate(64 * 60)
    assert first is not None and arena.allocate(64 * 60) is None
    del first
    assert arena.allocate(64 * 60) is not None


def test_blocks_freed_in_any_order_are_used_again(memory: Any) -> None:
    arena = Arena(memory(64 * 100))
    dice = random.Random(1)
    held: dict[int, int] = {}
    for _ in range(2000):
        length = dice.randrange(1, 1500)
        start = arena.store([memoryview(bytes(length))])
        if start >= 0:
            for other, size in held.items():
                assert start + length <= other or other + size <= start, "two blocks overlap"
            assert start + length <= arena.size
            held[start] = length
        else:
            assert held, "an empty arena has room for this"
            victim = dice.choice(list(held))
            arena.free(victim)
            del held[victim]
    for start in held:
        arena.free(start)
    assert arena.store([memoryview(bytes(64 * 100))]) == 0


def test_what_is_sent_leaves_and_is_taken_in_without_a_turn_of_the_event_loop(memory: Callable[[int], int]) -> None:
    async def scene(one: End, two: End) -> None:
        for number in range(3):
            one.connection.send((number, ({"a": np.arange(number)},)))
            two.connection.poll()
            assert [got[0] for got in two.got] == list(range(number + 1))

    play(memory, scene)


def test_it_can_be_waited_for_without_the_event_loop(memory: Callable[[int], int]) -> None:
    async def scene(one: End, two: End) -> None:
        two.connection.poll(0.01)
        assert not two.got
        thread = threading.Timer(0.05, one.connection.send, ((7, (None,)),))
        thread.start()
        two.connection.poll(10.0)
        thread.join()
        assert two.got == [(7, (None,))]

    play(memory, scene)


def test_what_comes_while_a_message_is_taken_in_waits_its_turn(memory: Callable[[int], int]) -> None:
    async def scene(one: End, two: End) -> None:
        def look_again(connection: Connection, message: Any, nbytes: int) -> None:
            two.got.append(message[0])
            one.connection.send((message[0] + 10, (None,)))
            connection.poll()

        two.connection._received = look_again
        for number in range(3):
            one.connection.send((number, (None,)))
        await arrive(two, 6)
        assert two.got[:6] == [0, 1, 2, 10, 11, 12]

    play(memory, scene)


def test_more_than_the_socket_takes_follows_in_order(memory: Callable[[int], int]) -> None:
    async def scene(one: End, two: End) -> None:
        texts = [str(number) * 100_000 for number in range(20)]  # far more than a socket holds, and nothing is shared
        for text in texts:
            one.connection.send((0, (text,)))
        assert one.connection._unsent
        await arrive(two, len(texts))
        assert [got[1][0] for got in two.got] == texts and not one.connection._unsent

    play(memory, scene)


def test_numbers_beyond_64_bits_arrive(memory: Callable[[int], int]) -> None:
    async def scene(one: End, two: End) -> None:
        numbers = [1, 2**70, 3, -(2**80)]
        for number in numbers:
            one.connection.send((number % 1000, ((number, np.zeros(2)),)))
        await arrive(two, len(numbers))
        assert [got[1][0][0] for got in two.got] == numbers

    play(memory, scene)
