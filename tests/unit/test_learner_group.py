"""A group of learners alone: the result of a round, its members, and how a learner enters."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, FakeEdge, play, settle

from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.payloads import Admission, Combined, Contribution, Member
from thespis.core.program import Program
from thespis.exchange.heartbeats import PendingHeartbeats, send_heartbeats
from thespis.roles import LearnerGroup

TIMEOUT = 4.0


class Clock(FakeContext):
    """A context whose sleeps end when the test advances the time."""

    async def sleep(self, seconds: float) -> None:
        until = self.time + seconds
        while self.time < until:
            await asyncio.sleep(0)


def group(learners: int = 2, averages: bool = True, restarts: int = 0) -> tuple[LearnerGroup, Clock]:
    ctx = Clock(Identity("group", 0, run_seed=0, restarts=restarts))
    return LearnerGroup(ctx, learners=learners, timeout=TIMEOUT, averages=averages), ctx


def member(index: int, incarnation: int = 1) -> Member:
    return Member(index, incarnation)


def part(*values: float, update: int = 0, call: int = 0, rows: int = 1, **rest: Any) -> Contribution:
    return Contribution(update, call, np.array(values, np.float32), rows, **rest)


async def entered(made: LearnerGroup, *indices: int, update: int = 0) -> list[Admission]:
    joins = (made.join(member(index), update, 7) for index in indices)
    return list(await asyncio.gather(*joins))


async def combined(made: LearnerGroup, parts: dict[int, Contribution]) -> dict[int, Combined | None]:
    calls = (made.combine(member(index), each) for index, each in parts.items())
    return dict(zip(parts, await asyncio.gather(*calls), strict=True))


# -- rounds -----------------------------------------------------------------------------------------


def test_a_round_returns_the_mean_over_all_rows_to_every_learner() -> None:
    async def scene() -> None:
        made, _ = group()
        await entered(made, 0, 1)
        found = await combined(made, {1: part(1, 10, rows=30, steps=8), 0: part(3, 20, rows=10, fraction=0.5)})
        for index, each in found.items():
            assert each is not None and each.gradients is not None
            assert each.gradients.tolist() == [1.5, 12.5]
            assert (each.learners, each.steps, each.fraction) == (2, 8, 0.5)
            assert each.leads == (index == 0)

    play(scene())


def test_without_averages_gradients_are_added_up() -> None:
    async def scene() -> None:
        made, _ = group(averages=False)
        await entered(made, 0, 1)
        found = await combined(made, {0: part(1, rows=30), 1: part(3, rows=10)})
        assert all(each is not None and each.gradients is not None and each.gradients == [4] for each in found.values())

    play(scene())


def test_one_learner_without_gradients_makes_all_skip() -> None:
    async def scene() -> None:
        made, ctx = group()
        await entered(made, 0, 1)
        found = await combined(made, {0: part(1), 1: Contribution(0, 0)})
        assert all(each is not None and each.gradients is None for each in found.values())
        assert ctx.counters()["group/vetoed_rounds"] == 1

    play(scene())


def test_statistics_come_in_the_order_of_the_learners() -> None:
    async def scene() -> None:
        made, _ = group()
        await entered(made, 0, 1)
        given = {index: Contribution(0, 0, statistics=np.array([index])) for index in (1, 0)}
        for each in (await combined(made, given)).values():
            assert each is not None and [array.tolist() for array in each.statistics] == [[0], [1]]

    play(scene())


# -- entering ---------------------------------------------------------------------------------------


def test_learners_with_equal_weights_need_no_state() -> None:
    async def scene() -> None:
        made, _ = group()
        assert await entered(made, 0, 1) == [Admission(None, newcomers=False)] * 2

    play(scene())


def test_the_first_learner_waits_for_the_others_but_not_forever() -> None:
    async def scene() -> None:
        made, ctx = group()
        running = asyncio.create_task(made.run())
        alone = asyncio.create_task(made.join(member(0), 0, 7))
        await settle()
        ctx.time = 9.0
        await settle()
        assert not alone.done()
        ctx.time = 11.0
        await settle()
        assert alone.result() == Admission(None, newcomers=False)
        running.cancel()

    play(scene())


def test_a_learner_behind_gets_the_state_of_the_one_with_the_most_updates() -> None:
    async def scene() -> None:
        made, ctx = group(learners=3)
        calls = [asyncio.create_task(made.join(member(index), update, 7)) for index, update in enumerate((5, 9, 9))]
        await settle()
        assert [call.done() for call in calls] == [False, True, True]
        assert [call.result().newcomers for call in calls[1:]] == [True, False]
        state = ({"w": np.ones(2)}, {"updates": 9})
        await made.offer(member(1), state)
        assert await calls[0] == Admission(state, newcomers=False)
        assert ctx.counters()["group/entered"] == 1

    play(scene())


def test_equal_updates_of_other_weights_are_not_equal_states() -> None:
    async def scene() -> None:
        made, _ = group()
        first, second = (asyncio.create_task(made.join(member(index), 9, digest)) for index, digest in ((0, 1), (1, 2)))
        await settle()
        assert first.result().newcomers and not second.done()

    play(scene())


def test_a_newcomer_enters_between_two_updates_of_the_others() -> None:
    async def scene() -> None:
        made, _ = group()
        await entered(made, 0, 1)
        newcomer = asyncio.create_task(made.join(member(2), 0, 7))
        await settle()
        first = await combined(made, {0: part(1), 1: part(1)})
        assert [each is not None and each.newcomers for each in first.values()] == [True, False]
        early = asyncio.create_task(made.combine(member(1), part(1, update=1)))
        await made.offer(member(0), ({}, {"updates": 1}))
        assert (await newcomer).state == ({}, {"updates": 1})
        others = await combined(made, {0: part(1, update=1), 2: part(4, update=1)})
        assert [each is not None and each.learners for each in (await early, *others.values())] == [3, 3, 3]

    play(scene())


# -- leaving ----------------------------------------------------------------------------------------


def test_a_round_ends_without_a_learner_whose_process_ended() -> None:
    async def scene() -> None:
        made, ctx = group()
        await entered(made, 0, 1)
        alive = asyncio.create_task(made.heartbeat(member(1)))
        waiting = asyncio.create_task(made.combine(member(0), part(3)))
        await settle()
        alive.cancel()
        found = await waiting
        assert found is not None and found.learners == 1 and found.gradients is not None and found.gradients == [3]
        assert ctx.counters()["group/lost"] == 1

    play(scene())


def test_one_heartbeat_of_a_learner_is_always_pending() -> None:
    """Without one, the group would notice only after its timeout that the learner's process has ended."""

    async def scene() -> None:
        made = LearnerGroup(FakeContext(Identity("group", 0, 0)), learners=1, timeout=0.02, averages=True)
        left, ended, pending = [], asyncio.Event(), 0

        async def heartbeat(who: Member) -> None:
            nonlocal pending
            pending += 1
            await made.heartbeat(who)
            pending -= 1
            left.append(pending)
            if len(left) == 10:
                ended.set()

        edge = FakeEdge(heartbeat)
        sending = asyncio.create_task(send_heartbeats(FakeContext(Identity("learner", 0, 0)), edge, member(0)))
        await ended.wait()
        assert min(left) >= 1
        sending.cancel()

    play(scene())


def test_the_last_heartbeat_of_a_learner_that_left_returns() -> None:
    """An aggregator forwards it, and would keep the call forever."""

    async def scene() -> None:
        made, _ = group()
        await entered(made, 0, 1)
        made._heartbeats = PendingHeartbeats(0.0)
        last = asyncio.create_task(made.heartbeat(member(1)))
        await settle()
        assert not last.done()
        await made.leave(member(1), silent=False)
        await last

    play(scene())


def test_the_end_of_an_earlier_incarnation_does_not_concern_the_next() -> None:
    async def scene() -> None:
        made, _ = group(learners=1)
        await made.join(member(0, incarnation=1), 0, 7)
        old = asyncio.create_task(made.heartbeat(member(0, incarnation=1)))
        await settle()
        await made.join(member(0, incarnation=2), 0, 7)
        old.cancel()
        await settle()
        assert await made.combine(member(0, incarnation=2), part(1)) is not None

    play(scene())


def test_a_silent_learner_is_removed_and_informed() -> None:
    async def scene() -> None:
        made, ctx = group()
        await entered(made, 0, 1)
        running = asyncio.create_task(made.run())
        waiting = asyncio.create_task(made.combine(member(0), part(3)))
        await settle()
        ctx.time = TIMEOUT - 0.1
        await settle()
        assert not waiting.done()
        ctx.time = TIMEOUT * 1.5
        await settle()
        assert (await waiting) is not None and ctx.counters()["group/timeouts"] == 1
        assert await made.combine(member(1), part(1)) is None
        running.cancel()

    play(scene())


def test_a_learner_that_says_it_is_alive_is_waited_for() -> None:
    async def scene() -> None:
        made, ctx = group()
        await entered(made, 0, 1)
        running = asyncio.create_task(made.run())
        waiting = asyncio.create_task(made.combine(member(0), part(3)))
        for _ in range(10):
            ctx.time += TIMEOUT / 2
            made._note_alive(member(1))
            await settle()
        assert not waiting.done()
        running.cancel()
        waiting.cancel()

    play(scene())


@pytest.mark.parametrize("late", [part(1, update=3), part(1, update=4, digest=2)])
def test_a_learner_in_another_state_must_enter_again(late: Contribution) -> None:
    async def scene() -> None:
        made, _ = group(learners=3)
        await entered(made, 0, 1, 2)
        found = await combined(made, {0: part(1, update=4, digest=1), 1: late, 2: part(3, update=4, digest=1)})
        assert found[1] is None
        for index in (0, 2):
            each = found[index]
            assert each is not None and each.learners == 2 and each.gradients == [2]

    play(scene())


def test_a_restarted_group_has_no_members() -> None:
    async def scene() -> None:
        made, _ = group(restarts=1)
        assert await made.combine(member(0), part(1)) is None

    play(scene())


def test_a_restarted_group_waits_for_a_learner_that_still_computes() -> None:
    """Without it the others would go back to the update of the first learner that enters."""

    async def scene() -> None:
        made, ctx = group(restarts=1)
        running = asyncio.create_task(made.run())
        behind = asyncio.create_task(made.join(member(0), 5, 7))
        await settle()
        ctx.time += 0.75 * TIMEOUT
        await settle()
        assert not behind.done()
        assert await made.join(member(1), 9, 7) == Admission(None, newcomers=True)
        assert not behind.done(), "it waits for the state of the other"
        running.cancel()

    play(scene())


def test_newcomers_form_a_group_when_the_only_member_is_gone() -> None:
    async def scene() -> None:
        made, ctx = group()
        running = asyncio.create_task(made.run())
        calls = [asyncio.create_task(made.join(member(index), update, 7)) for index, update in enumerate((9, 5))]
        alive = asyncio.create_task(made.heartbeat(member(0)))
        await settle()
        assert calls[0].done() and not calls[1].done()
        alive.cancel()  # before it gave its state to the other
        await settle()
        ctx.time += 2 * TIMEOUT
        await settle()
        assert calls[1].result() == Admission(None, newcomers=False)
        running.cancel()

    play(scene())


def test_a_newcomer_whose_call_was_cancelled_is_left_out() -> None:
    async def scene() -> None:
        made, _ = group()
        await entered(made, 0, 1)
        lost = asyncio.create_task(made.join(member(2), 0, 7))
        await settle()
        lost.cancel()
        await made.offer(member(0), ({}, {"updates": 1}))  # before the end of the process is known
        await settle()
        found = (await combined(made, {0: part(1), 1: part(1)}))[0]
        assert found is not None and found.learners == 2

    play(scene())


def test_a_group_without_learners_is_refused() -> None:
    p = Program("test")
    p.at().add("group", LearnerGroup, learners=2, timeout=1.0, averages=True)
    with pytest.raises(ThespisError, match="waits for 2 learners, but 0 call it"):
        p.check()
