"""A divided network against a whole one: equal losses and gradients, for one learner and for several."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from fakes import FakeContext, play
from gymnasium import spaces
from sharded import CASES, Case, Made, batch_of, difference, in_group, sharded, whole

from thespis.algorithms.updates.update import Gradients
from thespis.core.context import Identity
from thespis.core.types import Unroll
from thespis.experience.writers import concatenate
from thespis.networks.policy_runner import export_weights
from thespis.roles import LearnerGroup

pytestmark = pytest.mark.usefixtures("one_torch_thread")
LARGE = ("mlp", "lstm", "nature", "resnet")
"""The networks whose parts are measured, with images of Atari's size."""


async def compare(case: Case, updates: int) -> None:
    """Make updates in both; losses and gradients differ by rounding only.

    The maximum of a pool is sometimes chosen by rounding, and then the two part. So a network with pools starts each
    update from equal states.
    """
    one, divided, rng, worst = whole(case), sharded(case), np.random.default_rng(1), 0.0
    await one.learner._enter()
    await divided.learner._enter()
    for _ in range(updates):
        batch = batch_of(case, rng)
        if case.algorithm.network.torso == "resnet":
            divided.learner.restore(*copy.deepcopy(one.learner.state()))
            await divided.learner._enter()
        for part, same in zip(await one.parts(batch), await divided.parts(batch), strict=True):
            left, right = await one.gradients(part), await divided.gradients(same)
            loss = abs(left[0].metrics["train/loss"] - right[0].metrics["train/loss"])
            worst = max(worst, loss, difference(left[1], right[1]))
            assert await one.optimizer.apply(left[0].values)
            assert await divided.optimizer.apply(right[0].values)
        for made in (one, divided):
            made.update.observe(batch)
    await divided.learner.close()
    assert worst < 1e-5, worst


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_losses_and_gradients_equal_those_of_a_whole_network(case: Case) -> None:
    play(compare(case, 4), 100.0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_same_over_50_updates(case: Case) -> None:
    play(compare(case, 50), 200.0)


@dataclass
class Recorded:
    """A learner, and what it computed and applied in its last update."""

    made: Made
    loss: float = 0.0
    rows: int = 0
    gradients: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        update, optimizer = self.made.update, self.made.optimizer
        compute = update.gradients
        # Whole gradients come from the group, or from a learner without shards.
        name = "apply_whole" if self.made.shards else "apply"
        apply = getattr(optimizer, name)

        def gradients(batch: Unroll, wanted: bool) -> Gradients:
            found: Gradients = compute(batch, True)
            self.loss, self.rows = found.metrics["train/loss"], update.rows(batch)
            return found

        async def applied(values: list[torch.Tensor]) -> bool:
            self.gradients = [value.clone() for value in values]
            done: bool = await apply(values)
            return done

        update.gradients = gradients
        setattr(optimizer, name, applied)


async def compare_hybrid(case: Case, updates: int) -> None:
    """Make updates with two learners of two processes each, and with one process that has the batches of both.

    A network with pools starts each update from equal states, as in `compare`.
    """
    group = LearnerGroup(FakeContext(Identity("group", 0, 0)), learners=2, timeout=3.0, averages=True)
    one, many = Recorded(whole(case)), [Recorded(in_group(case, sharded(case), index, group)) for index in range(2)]
    await asyncio.gather(*(each.made.learner._enter() for each in (one, *many)))
    rng, worst = np.random.default_rng(1), 0.0
    for _ in range(updates):
        if case.algorithm.network.torso == "resnet":
            for each in many:
                each.made.learner.restore(*copy.deepcopy(one.made.learner.state()))
                await each.made.learner.snapshot()  # sends the shards their parts
        batches = [batch_of(case, rng) for _ in many]
        await one.made.learner.learn(concatenate(copy.deepcopy(batches)))
        await asyncio.gather(*(each.made.learner.learn(batch) for each, batch in zip(many, batches, strict=True)))
        assert sum(each.rows for each in many) == one.rows
        loss = sum(each.loss * each.rows for each in many) / one.rows
        worst = max(worst, abs(loss - one.loss), *(difference(one.gradients, each.gradients) for each in many))
    assert {each.made.learner.updates for each in (one, *many)} == {updates}
    await asyncio.gather(*(each.made.learner.close() for each in many))
    assert worst < 1e-5, worst


@pytest.mark.parametrize("updates", [4, 50])
@pytest.mark.parametrize("parallel", ["tensor=2", "pipeline=2"])
@pytest.mark.parametrize("name", LARGE)
def test_hybrid_learners_equal_one_process_with_all_their_data(name: str, parallel: str, updates: int) -> None:
    play(compare_hybrid(replace(CASES[name], parallel=parallel), updates), 400.0)


@pytest.mark.parametrize("name", LARGE)
def test_no_process_holds_more_than_0_6_of_the_parameters(name: str) -> None:
    large = replace(CASES[name].spaces, observation_space=spaces.Box(0, 255, (4, 84, 84), np.uint8))
    case = replace(CASES[name], spaces=large) if name in ("nature", "resnet") else CASES[name]
    made, total = sharded(case), sum(each.size for each in export_weights(whole(case).update.network).values())
    held = [made.update.parameters, *(shard._parameters for shard in made.shards)]
    sizes = [sum(parameter.numel() for parameter in parameters) for parameters in held]
    assert total <= sum(sizes) <= 1.02 * total
    assert max(sizes) <= 0.6 * total
    slots = sum(value.numel() for value in next(iter(made.optimizer._optimizer.slots.values())))
    assert slots == sizes[0], "the running averages are divided like the parameters"


def test_learners_with_shards_are_equal_among_each_other() -> None:
    """Two learners with two processes each, against two with a whole network."""
    case, updates = CASES["mlp"], 20

    async def scene() -> None:
        results = []
        for build in (whole, sharded):
            group = LearnerGroup(FakeContext(Identity("group", 0, 0)), learners=2, timeout=3.0, averages=True)
            many = [in_group(case, build(case), index, group) for index in range(2)]
            await asyncio.gather(*(made.learner._enter() for made in many))
            for update in range(updates):
                parts = [batch_of(case, np.random.default_rng([update, index])) for index in range(2)]
                await asyncio.gather(*(made.learner.learn(part) for made, part in zip(many, parts, strict=True)))
            states = [(await made.learner.snapshot())[0] for made in many]
            names = [name for name in states[0] if not name.endswith("seconds")]
            assert all(np.array_equal(states[0][name], states[1][name]) for name in names)
            results.append({name: states[0][name] for name in names if name.startswith("weights/")})
            await asyncio.gather(*(made.learner.close() for made in many))
        assert results[0].keys() == results[1].keys()
        assert max(np.abs(results[0][name] - results[1][name]).max() for name in results[0]) < 1e-5

    play(scene())
