"""InferenceServer: one policy for all actors, and the place where their trajectories are put together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from thespis.core import eager
from thespis.core.context import Context
from thespis.core.edges import Next
from thespis.core.messages import Answer
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Acted, Array, Inputs, State, Stream, Tree, Unroll, Version, Versioned, map_tree
from thespis.experience.seats import Seat, Seats, Told
from thespis.transport.inference import AnyDoor, Asker

if TYPE_CHECKING:
    from thespis.core.messages import Invitation
    from thespis.networks.acting import Stepper


HandOver = Callable[[Stream, Unroll], Awaitable[Any]]
"""What takes finished unrolls."""
Explore = Callable[[Told], Array]
"""How often each environment's action is not the best one, `[B]`."""


class Promise:
    """An answer that is awaited."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        return self.answer.done()

    def give(self, answer: Answer) -> None:
        self.answer.set_result(answer)


@dataclass(slots=True)
class Asked:
    """One question that waits for its batch."""

    seat: Seat
    rows: int
    epsilon: Array | None
    asker: Asker


class InferenceServer:
    """Answers actors in batches: one goes when it is full, or when the first in it has waited `patience` seconds.

    So nobody waits for ever, however few ask. What waits when a batch goes is in it, and an actor's rows stay together.
    Weights change between two batches, never in one. An unroll that finds the learner behind makes its own actor wait,
    and no other.
    """

    description: ClassVar = RoleDescription(
        methods={
            "act": Method("inference", takes="observations", gives="actions"),
            "invite": Method("inference", takes="observations", gives="actions"),  # over the stream it opens
        },
        lost="open_unrolls",
    )

    def __init__(
        self,
        ctx: Context,
        stepper: Stepper,
        seats: Seats,
        follow: Next,
        insert: HandOver,
        batch: int,
        patience: float,
        explore: Explore | None = None,
        lockstep: bool = False,
        door: AnyDoor | None = None,
    ) -> None:
        """`batch`: rows that make a batch full. `lockstep`: who has completed an unroll waits for the next version.

        `door`: where actors come in that are to ask over streams of their own.
        """
        self._ctx, self._stepper, self._seats, self._follow, self._insert = ctx, stepper, seats, follow, insert
        self._batch, self._patience, self._explore, self._lockstep = batch, patience, explore, lockstep
        self._door = door
        self._version = Version(0, 0)
        self._newer: asyncio.Future[Versioned] | None = None
        self._asked: list[Asked] = []
        self._waiting: list[Asked] = []
        self._rows = 0
        self._overdue = False
        self._timer: asyncio.TimerHandle | None = None
        self._go = asyncio.Event()
        self._ready = self._busy = False
        self._under_way: asyncio.Future[None] | None = None
        self._handed: dict[tuple[str, int], asyncio.Future[Any]] = {}

    def act(self, *words: Any) -> asyncio.Future[Answer]:
        """Take down what came of the last actions, and give the next. `words`: a `Told`.

        No coroutine: a future is all that most questions need, and a task for each would cost as much as a forward
        pass of a small network.
        """
        promise = Promise()
        self.ask(Told(*words), promise)
        return promise.answer

    def ask(self, told: Told, asker: Asker) -> None:
        """The same for somebody who is given the answer, perhaps at once."""
        seat = self._seats.take(told)
        epsilon = None if self._explore is None else self._explore(told)
        asked = Asked(seat, len(told.flags), epsilon, asker)
        unroll = seat.write() if seat.completes else None
        if unroll is None:
            self._join(asked)
        else:
            self._hand_over(told, unroll, asked)

    async def invite(self, stream: Stream) -> Invitation:
        """Where this life of an actor can open a stream, to ask over it."""
        assert self._door is not None, "whoever builds an edge to this also builds a door"
        return await self._door.invite(stream, self.ask)

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()

    async def run(self) -> None:
        await self._adopt()
        self._ready = True
        while True:
            await self._go.wait()
            self._go.clear()
            while self._under_way is not None:
                under_way, self._under_way = self._under_way, None
                await under_way
            if self._newer is None or self._newer.done():
                await self._adopt()
            if not self._busy and (self._overdue or self._rows >= self._batch):
                await self._serve()

    # -- batches ----------------------------------------------------------------------------------

    def _join(self, asked: Asked) -> None:
        """Wait for the batch to go; the first to come starts the clock."""
        self._asked.append(asked)
        self._rows += asked.rows
        if self._rows >= self._batch:
            self._depart()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._run_late)

    def _run_late(self) -> None:
        self._overdue = True
        self._depart()

    def _depart(self) -> None:
        """A batch is due. It goes at once, unless it has to wait for another, or for newer weights to be taken over."""
        if not self._ready or self._busy or self._newer is None or self._newer.done():
            self._go.set()
            return
        begun = eager.begin(self._serve())
        if not begun.done() or begun.exception() is not None:
            self._under_way = begun  # what goes wrong is this role's error, not that of whoever asked last
            self._go.set()

    async def _serve(self) -> None:
        """Let all who wait have their actions, but for those whose actor is gone. What led there is written after."""
        asked = [one for one in self._asked if not one.asker.gone]
        self._asked, self._rows, self._overdue = [], 0, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not asked:
            return
        self._busy = True
        try:
            async with self._ctx.work("inference", items=sum(one.rows for one in asked)):
                acted = self._act(asked)
            self._answer(asked, acted)
            for one in asked:
                one.seat.write()
        finally:
            self._busy = False

    def _act(self, asked: Sequence[Asked]) -> Acted:
        if self._explore is not None:
            self._stepper.explore(np.concatenate([one.epsilon for one in asked if one.epsilon is not None]))
        inputs, state = beside([one.seat for one in asked])
        return self._stepper.act(inputs, state)

    def _answer(self, asked: Sequence[Asked], acted: Acted) -> None:
        """Give everybody their own rows."""
        start, version = 0, self._version.packed()
        for one in asked:
            rows = slice(start, start + one.rows)
            start = rows.stop
            mine = acted if len(asked) == 1 else _part(acted, rows)
            one.seat.decide(mine, self._version)
            if not one.asker.gone:
                one.asker.give(Answer(mine.actions, mine.logp, version))
        self._ctx.record("inference/batch_fill", start / self._batch)

    async def _adopt(self) -> None:
        """Take over newer weights, and ask for the next."""
        if self._newer is None:
            self._newer = self._ctx.ahead(self._follow(None))
        newer = await self._ctx.wait(self._follow.name, self._newer)
        self._stepper.load(newer.weights)
        self._version = newer.version
        self._newer = self._ctx.ahead(self._follow(newer.version))
        if self._lockstep:
            self._newer.add_done_callback(lambda _: self._go.set())
            waiting, self._waiting = self._waiting, []
            for asked in waiting:
                self._join(asked)

    # -- unrolls ----------------------------------------------------------------------------------

    def _hand_over(self, told: Told, unroll: Unroll, asked: Asked) -> None:
        """Pass an unroll on. Those who asked go on while it is on its way, unless the one before still is."""
        who, index = told.stream.who
        stream = Stream((f"{who}+{told.start}", index), told.stream.incarnation)
        before = self._handed.get(stream.who)
        if self._lockstep and unroll.versions.max() >= self._version.packed():
            self._handed[stream.who] = self._ctx.ahead(self._insert(stream, unroll))
            self._waiting.append(asked)
            return
        if before is None or before.done():
            self._handed[stream.who] = self._ctx.ahead(self._insert(stream, unroll))
            self._join(asked)
            return

        async def in_turn() -> None:
            await before
            await self._insert(stream, unroll)

        self._handed[stream.who] = self._ctx.ahead(in_turn())
        before.add_done_callback(lambda _: self._join(asked))


def beside(seats: Sequence[Seat]) -> tuple[Inputs, State]:
    """What is seen from several seats, and their states, as one batch."""
    if len(seats) == 1:
        return seats[0].inputs, seats[0].state
    inputs = [seat.inputs for seat in seats]

    def joined(*leaves: Array) -> Array:
        return np.concatenate(leaves)

    obs: Tree = map_tree(joined, *(part.obs for part in inputs))
    return (
        Inputs(
            obs,
            joined(*(part.first for part in inputs)),
            joined(*(part.last_action for part in inputs)),
            joined(*(part.last_reward for part in inputs)),
        ),
        tuple(joined(*parts) for parts in zip(*(seat.state for seat in seats), strict=True)),
    )


def _part(acted: Acted, rows: slice) -> Acted:
    return Acted(
        acted.actions[rows],
        acted.logp[rows],
        tuple(part[rows] for part in acted.state),
        None if acted.q is None else acted.q[rows],
    )
