"""QT-Opt's targets, losses, and the chain of lagged averages."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, play, settle
from gymnasium import spaces
from pushes import SGD, gradient_meta, values

from thespis.algorithms.updates.qtopt import Labeller, QTOptUpdate, clipped_double_q
from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.context import Identity
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.types import Labelled, TransitionBatch, Version
from thespis.exchange.push_pull import PullAfter
from thespis.experience.labelled import LabelledSource
from thespis.networks.configs import QFunctionConfig
from thespis.networks.init import init_network
from thespis.networks.inputs import as_tensor, as_tensors
from thespis.networks.q_function import QFunctionNetwork, q_scores
from thespis.roles import AveragingServer, TrainBuffer

OBS, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


def made(seed: int, space: Any = BOX, spread: float = 300.0, **settings: Any) -> QFunctionNetwork:
    """A network with larger weights, because initial values are near 0."""
    net = init_network(lambda: QFunctionNetwork(OBS, space, QFunctionConfig(**settings)), seed)
    with torch.no_grad():
        net.critic.output.weight.mul_(spread)
    return net


def transitions(number: int, seed: int = 0, space: Any = BOX, **columns: Any) -> TransitionBatch:
    rng = np.random.default_rng(seed)
    obs, following = rng.uniform(-1, 1, (2, number, 3)).astype(np.float32)
    space.seed(seed)
    given = {"rewards": rng.uniform(0, 1, number).astype(np.float32), "discounts": np.full(number, 0.9, np.float32)}
    zeros = np.zeros(number, np.int64)
    return TransitionBatch(
        obs=obs, actions=np.stack([space.sample() for _ in range(number)]), next_obs=following, versions=zeros,
        weights=np.ones(number, np.float32), keys=zeros, env_steps_at_sample=77, **{**given, **columns},
    )  # fmt: skip


def test_the_target_of_the_papers_vector() -> None:
    one = np.ones(1, np.float32)
    assert clipped_double_q(one, 0.9 * one, 2.0 * one, 1.5 * one)[0] == pytest.approx(2.35)
    assert clipped_double_q(one, 0.9 * one, 1.5 * one, 2.0 * one)[0] == pytest.approx(2.35)
    assert clipped_double_q(one, 0.0 * one, 2.0 * one, 1.5 * one)[0] == 1.0


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(16, 16), (16, 8, 12)])
def test_scores_are_the_critic_s_values(activation: Any, hidden: tuple[int, ...]) -> None:
    net = made(0, hidden=hidden, activation=activation)
    rng = np.random.default_rng(0)
    obs, actions = rng.standard_normal((5, 3), np.float32), rng.uniform(-1, 1, (5, 7, 2)).astype(np.float32)
    with torch.no_grad():
        features = net.critic.encoder(as_tensor(obs))
        slow = net.critic.value(features.repeat_interleave(7, 0), as_tensor(actions.reshape(35, 2))).view(5, 7)
    np.testing.assert_allclose(q_scores(net.critic, features.numpy())(actions), slow.numpy(), rtol=1e-4, atol=1e-5)


def test_one_action_is_searched_by_the_first_network_and_valued_by_both() -> None:
    """Compare the targets with a loop over rows and choices. With three choices the search is exact."""
    space = spaces.Discrete(3)
    first, second, batch = made(2, space), made(3, space), transitions(40, space=space)
    batch.discounts[:5] = 0.0  # terminated; a time limit keeps its discount
    labelled = Labeller(first, second, "squared", np.random.default_rng(0)).label(batch, 5)
    chosen, lower = set(), 0
    for row in range(40):
        with torch.no_grad():
            obs = as_tensors(np.repeat(batch.next_obs[row : row + 1], 3, 0))  # type: ignore[index]
            one, two = (net.critic(obs, torch.eye(3)) for net in (first, second))
        best = int(one.argmax())
        chosen.add(best)
        lower += bool(two[best] < one[best])
        wanted = batch.rewards[row] + batch.discounts[row] * min(float(one[best]), float(two[best]))
        assert labelled.targets[row] == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert len(chosen) > 1 and 0 < lower < 40, "otherwise the test has no meaning"
    np.testing.assert_array_equal(labelled.targets[:5], batch.rewards[:5])
    assert labelled.env_steps_at_sample == 77 and (labelled.versions == 5).all()
    np.testing.assert_array_equal(labelled.actions, batch.actions)


def test_with_cross_entropy_values_are_probabilities() -> None:
    space = spaces.Discrete(3)
    first, batch = made(1, space, spread=3000.0), transitions(60, space=space)
    batch.rewards[:] = np.arange(60) % 2
    batch.discounts[batch.rewards > 0] = 0.0
    label = Labeller(first, first, "cross-entropy", np.random.default_rng(0)).label
    targets = label(batch, 0).targets
    assert (targets[1::2] == 1.0).all() and (targets[::2] > 0.0).all() and (targets[::2] < 0.9).all()
    batch.discounts[:] = 0.9
    assert label(batch, 0).targets.max() == 1.0, "a return of 1 plus a bootstrap value is still 1"
    batch.rewards[3] = -0.5
    with pytest.raises(ThespisError, match=r"a reward is -0.5; use --loss squared"):
        label(batch, 0)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_gradients_are_those_of_the_mean_loss(loss: str) -> None:
    net = made(0)
    batch = transitions(20)
    example = Labelled(batch.obs, batch.actions, batch.rewards, np.zeros(20, np.int64), 0)
    gradients, metrics, *_ = QTOptUpdate(net, loss).gradients(example, want_metrics=True)
    q, targets = net.critic(as_tensors(batch.obs), as_tensor(batch.actions)), as_tensor(batch.rewards)
    if loss == "squared":
        whole = 0.5 * torch.nn.functional.mse_loss(q, targets)
    else:
        whole = torch.nn.functional.binary_cross_entropy_with_logits(q, targets)
    for found, wanted in zip(gradients, torch.autograd.grad(whole, list(net.parameters())), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert metrics["train/loss"] == pytest.approx(float(whole.detach()), rel=1e-5)
    example.targets = np.full(20, np.nan, np.float32)
    with pytest.raises(NonFiniteLoss):
        QTOptUpdate(net, loss).gradients(example)


def test_acting_explores_and_the_greedy_action_is_a_function_of_the_observation() -> None:
    draw, rng = made(0).distribution, np.random.default_rng(0)
    params = rng.uniform(0, 1, (400, draw.size)).astype(np.float32)
    params[:] = params[0]
    (greedy, _), (again, _) = draw.mode(params), draw.mode(params[:1])
    assert draw.mode(params)[0].tobytes() == greedy.tobytes() and again.shape == (1, 2)
    quiet, _ = draw.sample(params, rng)
    assert np.abs(quiet - np.median(quiet, 0)).mean() < 0.1, "searches find about the same action"
    draw.epsilon = 1.0
    wild, _ = draw.sample(params, rng)
    assert wild.std() > 0.5 and np.abs(wild).max() <= 1.0
    draw.epsilon, draw.noise = 0.0, 0.5
    assert draw.sample(params, rng)[0].std(0).min() > quiet.std(0).max()


# -- the lag chain --------------------------------------------------------------------------------------


def server(decay: float = 0.75, lag: int = 4, optimizer: OptimizerConfig = SGD, epoch: int = 0) -> AveragingServer:
    ctx = FakeContext(Identity("server", 0, run_seed=0, epoch=epoch))
    return AveragingServer(ctx, optimizer=optimizer, budget=Budget(1000), decay=decay, lag=lag)


async def learn(held: AveragingServer, updates: int) -> list[float]:
    """Push gradients of -1, each of which adds 1 to the parameter; return the averages after each."""
    averages = []
    for _ in range(updates):
        number = held.version.update + 1
        await held.push(values(-1.0), gradient_meta(0, at=number - 1, number=number))
        got = await held.pull(None)
        assert got is not None
        averages.append(float(got.values[0]))
    return averages


def test_the_second_network_is_the_first_as_of_the_last_multiple_of_the_lag() -> None:
    async def scene() -> None:
        held = server(lag=4)
        await held.join(0, values(0.0), [("w", [1])])
        seen, theta, average = [0.0], 0.0, 0.0
        for update in range(1, 12):
            (got,) = await learn(held, 1)
            theta += 1.0
            average = 0.75 * average + 0.25 * theta
            seen.append(got)
            assert got == pytest.approx(average, rel=1e-6)
            lagged = await held.lagged(None)
            assert lagged is not None and lagged.version.update == update - update % 4
            assert lagged.values[0] == np.float32(seen[update - update % 4])
        assert await held.lagged(lagged.version) is None, "nothing newer"
        pushed = await held.push(values(0.0), gradient_meta(0, at=11, number=12))
        assert pushed is not None and pushed.values.tolist() == [11.0], (
            "trainers receive the parameters, not the average"
        )

    play(scene())


def test_a_server_goes_on_from_its_checkpoint_with_both_averages() -> None:
    async def scene() -> None:
        held, again = server(), server(epoch=1)
        await held.join(0, values(0.0), [("w", [1])])
        await learn(held, 6)
        arrays, saved = copy.deepcopy(held.state())
        again.restore(arrays, saved)
        lagged = await again.lagged(Version(0, 4))
        assert lagged is not None and lagged.version == Version(1, 4), (
            "a later incarnation is newer, whatever its state"
        )
        assert await learn(again, 3) == await learn(held, 3)
        assert again.state()[0]["lagged"] == held.state()[0]["lagged"]

    play(scene())


def test_actors_begin_after_the_offline_updates() -> None:
    async def scene() -> None:
        held = server()
        await held.join(0, values(0.0), [("w", [1])])
        asked: list[Version | None] = []

        class Pull:
            name = "pull"

            async def __call__(self, newer_than: Version | None) -> None:
                asked.append(newer_than)

        first = PullAfter(Pull(), held.after, 3)  # type: ignore[arg-type]
        waiting = asyncio.create_task(first(None))
        await learn(held, 2)
        await settle()
        assert not asked
        await learn(held, 1)
        await waiting
        await first(Version(0, 3))
        assert asked == [None, Version(0, 3)]

    play(scene())


# -- the train buffer -----------------------------------------------------------------------------------


def example(number: int) -> Labelled:
    targets = np.full(2, number, np.float32)
    return Labelled({"x": np.zeros((2, 1))}, np.zeros(2, np.int64), targets, np.full(2, number, np.int64), 10 * number)


def test_every_label_is_used_once_in_order_and_updaters_wait_for_room() -> None:
    async def scene() -> None:
        ctx = FakeContext(Identity("buffer", 0, run_seed=0))
        buffer = TrainBuffer(ctx, capacity=2)
        inserts = [asyncio.create_task(buffer.insert(example(number))) for number in range(5)]
        await settle()
        assert [task.done() for task in inserts] == [True, True, False, False, False]

        class Edge:
            name = "trainer.buffer.sample"

            async def __call__(self, items: int) -> list[Any]:
                return await buffer.sample(items)

        trainer = FakeContext(Identity("trainer", 0, run_seed=0))
        labels = LabelledSource(trainer, Edge(), lambda: Version(0, 12), shards=2, trainers=2)
        taken = [await labels.next() for _ in range(5)]
        await labels.close()
        assert [int(batch.targets[0]) for batch in taken] == [0, 1, 2, 3, 4]
        assert [batch.env_steps_at_sample for batch in taken] == [0, 5, 10, 15, 20], (
            "each of two trainers counts half of the steps"
        )
        age = trainer.take_report().stats["label/age"]
        assert (age.mean, age.maximum) == (5.0, 6.0), "in updates, of which two shards count two"
        counters = ctx.take_report().counters
        assert counters == {"label/inserted": 5, "label/sampled": 5}

    play(scene())


def test_the_buffer_is_saved_with_its_labels() -> None:
    async def scene() -> None:
        ctx = FakeContext(Identity("buffer", 0, run_seed=0))
        buffer, again = TrainBuffer(ctx, capacity=2), TrainBuffer(ctx, capacity=2)
        await buffer.insert(example(3))
        again.restore(*buffer.state())
        (batch,) = await again.sample(1)
        assert isinstance(batch, Labelled) and batch.targets.tolist() == [3, 3] and batch.env_steps_at_sample == 30
        assert isinstance(batch.obs, dict) and batch.obs["x"].shape == (2, 1)

    play(scene())
