"""Batches from several replays: the origin of sequences, their priorities, and permanent demonstrations."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, FakeEdge

from thespis.architectures.parts.demonstrations import build_demonstrations
from thespis.architectures.r2d3 import Config
from thespis.core.config import QNetworkConfig, ReplayConfig
from thespis.core.config_io import with_settings
from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.types import NO_VERSION, Array, Inputs, SequenceBatch, Version, lags
from thespis.envs.toys import Lock
from thespis.experience.mixing import MixedSource, Origin
from thespis.roles import Demonstrations

CODE = Lock().code


class Shelf:
    """A replay that marks every sequence with the replay's name."""

    def __init__(self, mark: float, state: bool) -> None:
        self.mark, self.state = mark, state
        self.asked: list[int] = []
        self.keys = 0
        self.sent: list[tuple[Array, Array]] = []

    def origin(self, chance: float) -> Origin:
        return Origin(chance, FakeEdge(self.sample), FakeEdge(self.prioritise))

    async def sample(self, items: int) -> SequenceBatch:
        assert items > 0, "no call may ask for 0 sequences"
        self.asked.append(items)
        keys = self.keys + np.arange(items)
        self.keys += items
        zeros = np.zeros((3, items), np.float32)
        inputs = Inputs(np.full((4, items, 2), self.mark, np.float32), np.zeros((4, items), np.bool_),
                        np.zeros((4, items), np.int64), np.zeros((4, items), np.float32))  # fmt: skip
        state = (np.full((items, 5), 7.0, np.float32),) if self.state else ()
        return SequenceBatch(inputs, zeros.astype(np.int64), zeros, zeros, zeros.astype(np.int64), zeros == 0,
                         zeros.astype(np.int64), state, np.full(items, 3.0 + self.mark, np.float32), keys,
                         env_steps_at_sample=1000 * self.keys if self.state else 0)  # fmt: skip

    async def prioritise(self, keys: Array, priorities: Array) -> None:
        self.sent.append((keys, priorities))


def drink(ratio: float, batches: int, times: int, batch: int = 16) -> tuple[Shelf, Shelf, list[Array]]:
    """Take batches and return priorities; return the marks in each batch."""
    agent, shown = Shelf(1.0, True), Shelf(-1.0, False)
    ctx = FakeContext(Identity("learner", 0, run_seed=0))
    marks: list[Array] = []
    taken_in: list[int] = []

    async def scene() -> None:
        origins = [agent.origin(1 - ratio), shown.origin(ratio)]
        source = MixedSource(ctx, origins, batch, batches, lambda number: (np.zeros((number, 5), np.float32),))
        for _ in range(times):
            taken = await source.next()
            obs: Any = taken.inputs.obs
            marks.append(obs[0, :, 0])
            np.testing.assert_array_equal(
                taken.weights, 1.0
            )  # divided by the largest weight of its own replay, not of both
            # The agent's sequences have stored states; demonstrations have initial states.
            np.testing.assert_array_equal(taken.state[0][:, 0], np.where(marks[-1] > 0, 7.0, 0.0))
            taken_in.append(taken.env_steps_at_sample)
            await source.done(taken, marks[-1] * (1 + taken.keys))
        await asyncio.sleep(0)
        await source.close()

    asyncio.run(scene())
    assert taken_in == sorted(taken_in) and all(count <= 1000 * agent.keys for count in taken_in), "the agent's steps"
    return agent, shown, marks


@pytest.mark.parametrize(("ratio", "batches"), [(0.25, 1), (0.25, 4), (1 / 16, 3)])
def test_each_element_is_a_demonstration_with_the_ratio(ratio: float, batches: int) -> None:
    _, _, marks = drink(ratio, batches, 900)
    demos = np.array([int((mark < 0).sum()) for mark in marks])
    assert all(len(mark) == 16 for mark in marks)
    # Binomial(16, ratio), not a fixed share: mean and variance, five standard errors wide.
    variance = 16 * ratio * (1 - ratio)
    assert abs(demos.mean() - 16 * ratio) < 5 * np.sqrt(variance / len(demos))
    assert demos.var() == pytest.approx(variance, rel=0.3)


@pytest.mark.parametrize(("ratio", "idle"), [(0.0, 1), (1.0, 0)])
def test_at_the_ends_of_the_ratio_one_replay_is_never_touched(ratio: float, idle: int) -> None:
    shelves = drink(ratio, 2, 20)[:2]
    assert not shelves[idle].asked and not shelves[idle].sent
    assert len(shelves[1 - idle].sent) == 20


def test_priorities_go_back_to_where_a_sequence_came_from() -> None:
    agent, shown, marks = drink(0.25, 2, 50)
    for shelf in (agent, shown):
        keys = np.concatenate([keys for keys, _ in shelf.sent])
        np.testing.assert_array_equal(keys, np.arange(len(keys)), "each once, in order")
        np.testing.assert_array_equal(np.concatenate([sent for _, sent in shelf.sent]), shelf.mark * (1 + keys))
    assert sum(len(keys) for shelf in (agent, shown) for keys, _ in shelf.sent) == sum(map(len, marks))


def lock(**settings: Any) -> Config:
    some = {
        "env": "thespis/Lock-v0", "demos": "thespis.envs.toys::open_lock", "actors": 1, "envs_per_actor": 1,
        "network": QNetworkConfig(lstm=8), "demo_episodes": 5,
        "n_step": 3, "unroll_length": 4, "burn_in": 2, "sequence_length": 6,
        "replay": ReplayConfig(capacity=1000, warm_up=1, priority_exponent=0.9, actor_priorities=True),
    }  # fmt: skip
    return with_settings(Config(), {**some, **settings})


def demonstrations(cfg: Config) -> Demonstrations:
    return build_demonstrations(FakeContext(Identity("demonstrations", 0, run_seed=0)), cfg)


def test_demonstrations_are_sequences_of_whole_episodes() -> None:
    """Sequences start at steps 0, 4 and 8 of ten. The last one has no steps beyond the second, so it is left out."""
    drawn: Any = asyncio.run(demonstrations(lock()).sample(60))
    opens = drawn.inputs.first[2]
    assert set(drawn.keys % 11) == {0, 4} and len(set(drawn.keys)) == 10
    assert not drawn.state and (drawn.versions[drawn.valid] == NO_VERSION).all()
    assert not lags(drawn.versions[drawn.valid], Version(3, 12345)).any()
    for i in range(60):
        start = 0 if opens[i] else 4
        taken = drawn.actions[:, i][drawn.valid[:, i]]
        assert taken.tolist() == (CODE[:6] if opens[i] else CODE[4:])
        assert drawn.inputs.last_action[2, i] == (0 if opens[i] else CODE[start + 1])
    # The second sequence has four steps after its burn-in of two; the last reward reaches back three steps.
    assert not drawn.rewards[:, opens].any()
    for ended in drawn.rewards[:4, ~opens].T:
        np.testing.assert_allclose(ended, [0.0, 0.997**2, 0.997, 1.0], rtol=1e-6)
    assert (drawn.discounts[1:4, ~opens] == 0).all() and (drawn.discounts[0] > 0).all()


def test_priorities_decide_what_is_drawn_and_are_all_that_is_saved() -> None:
    table = demonstrations(lock())

    async def scene() -> tuple[Any, Any]:
        drawn = await table.sample(200)
        keys = np.unique(drawn.keys)
        assert len(keys) == 10
        await table.prioritise(keys, np.where(keys == keys[3], 1.0, 0.0))
        other = demonstrations(lock())
        other.restore(*table.state())
        assert not any(name.startswith("steps") for name in table.state()[0])
        return await table.sample(100), await other.sample(100)

    for drawn in asyncio.run(scene()):
        assert np.median(drawn.keys) == 15 and np.count_nonzero(drawn.keys == 15) > 95


@pytest.mark.parametrize("exponent", [0.0, 0.9])
def test_a_later_incarnation_has_as_many(exponent: float) -> None:
    cfg = lock(replay=ReplayConfig(capacity=1000, warm_up=1, priority_exponent=exponent))
    before, after = demonstrations(cfg), demonstrations(cfg)
    after.restore(*before.state())
    assert after._sampler.items == before._sampler.items == 10
    np.testing.assert_equal(after._sampler.state(), before._sampler.state())


def test_other_demonstrations_than_those_saved_are_refused() -> None:
    with pytest.raises(ThespisError, match="changed since the run was saved"):
        demonstrations(lock(demo_episodes=4)).restore(*demonstrations(lock()).state())
