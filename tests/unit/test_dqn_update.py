"""Q-learning with numbers: targets, Huber loss, double, dueling, target network, epsilon-greedy actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.algorithms.dqn import DQN
from thespis.algorithms.updates.dqn import DQNUpdate, huber, q_targets
from thespis.core.config import QNetworkConfig
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.types import Inputs, TransitionBatch
from thespis.networks.heads import EpsilonGreedy
from thespis.networks.init import init_network
from thespis.networks.policy_runner import PolicyRunner, export_weights, load_weights
from thespis.networks.q import QNetwork

BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)


def network(seed: int = 0, **cfg: Any) -> QNetwork:
    return init_network(lambda: QNetwork(BOX, CHOICE, QNetworkConfig(hidden=(16,), **cfg)), seed)


def transitions(number: int = 8, **parts: Any) -> TransitionBatch:
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "obs": rng.normal(size=(number, 3)).astype(np.float32),
        "actions": rng.integers(0, 4, number),
        "rewards": rng.normal(size=number).astype(np.float32),
        "discounts": np.full(number, 0.9, np.float32),
        "next_obs": rng.normal(size=(number, 3)).astype(np.float32),
        "versions": np.zeros(number, np.int64),
        "weights": np.ones(number, np.float32),
        "keys": np.arange(number),
        "env_steps_at_sample": number,
    }
    return TransitionBatch(**{**values, **parts})


def q_of(made: QNetwork, obs: Any) -> torch.Tensor:
    return made.q_values(made.encoder(torch.from_numpy(obs)))


def test_after_a_termination_the_target_is_the_reward() -> None:
    q = torch.tensor([[1e6, -1e6]])
    assert q_targets(torch.tensor([0.25]), torch.zeros(1), q, q).item() == 0.25


def test_dqn_takes_the_maximum_and_double_dqn_what_the_network_chooses() -> None:
    online, target = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[5.0, 3.0, 4.0]])
    reward, discount = torch.tensor([1.0]), torch.tensor([0.9])
    assert q_targets(reward, discount, target, target).item() == pytest.approx(1.0 + 0.9 * 5.0)
    assert q_targets(reward, discount, target, online).item() == pytest.approx(1.0 + 0.9 * 3.0)


@pytest.mark.parametrize(("error", "loss"), [(0.5, 0.125), (-1.0, 0.5), (3.0, 2.5)])
def test_huber(error: float, loss: float) -> None:
    errors = torch.tensor([error], requires_grad=True)
    value = huber(errors, 1.0)
    assert value.item() == pytest.approx(loss)
    (slope,) = torch.autograd.grad(value.sum(), errors)
    assert slope.item() == pytest.approx(np.clip(error, -1.0, 1.0)), "errors are clipped, not the loss"


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_gradients_are_those_of_the_loss_written_out(double: bool, dueling: bool) -> None:
    made = network(dueling=dueling)
    update = DQNUpdate(made, DQN(double=double))
    load_weights(made, export_weights(network(1, dueling=dueling)))  # so that the target network differs
    old = network(0, dueling=dueling)
    batch = transitions(weights=np.linspace(0.1, 1.0, 8, dtype=np.float32))
    gradients, metrics, priorities, _ = update.gradients(batch, want_metrics=True)

    q = q_of(made, batch.obs)[torch.arange(8), torch.from_numpy(batch.actions)]
    with torch.no_grad():
        following = q_of(old, batch.next_obs)
        best = (q_of(made, batch.next_obs) if double else following).argmax(-1)
        targets = torch.from_numpy(batch.rewards) + 0.9 * following[torch.arange(8), best]
    losses = torch.nn.functional.huber_loss(q, targets, reduction="none") * torch.from_numpy(batch.weights)
    expected = torch.autograd.grad(losses.mean(), update.parameters)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert metrics["train/loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert priorities is not None
    np.testing.assert_allclose(priorities, (q - targets).abs().detach().numpy(), rtol=1e-5)


def test_without_a_future_it_is_regression_to_the_reward() -> None:
    made = network()
    update = DQNUpdate(made, DQN(huber=1e6))
    batch = transitions(discounts=np.zeros(8, np.float32))
    gradients = update.gradients(batch).values
    q = q_of(made, batch.obs)[torch.arange(8), torch.from_numpy(batch.actions)]
    loss = 0.5 * (q - torch.from_numpy(batch.rewards)).square().mean()
    for ours, theirs in zip(gradients, torch.autograd.grad(loss, update.parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_target_stands_still_until_its_period_is_over_and_is_saved() -> None:
    made = network()
    update = DQNUpdate(made, DQN(target_period=3))
    old = update.state()
    load_weights(made, export_weights(network(1)))
    batch = transitions()
    for _ in range(2):
        update.observe(batch)
        np.testing.assert_array_equal(update.state()["target/advantage.weight"], old["target/advantage.weight"])
    other = DQNUpdate(network(1), DQN(target_period=3))
    other.restore({name: value.copy() for name, value in update.state().items()})
    for each in (update, other):
        each.observe(batch)
        np.testing.assert_array_equal(each.state()["target/advantage.weight"], each.weights()["advantage.weight"])


def test_the_period_can_be_counted_in_updates_that_others_make() -> None:
    made, counted = network(), [4, 9, 8, 11, 29]
    update = DQNUpdate(made, DQN(target_period=10), counted.copy().__iter__().__next__)
    copied = []
    for number in range(len(counted)):
        load_weights(made, export_weights(network(number)))
        update.observe(transitions())
        same = update.state()["target/advantage.weight"] == update.weights()["advantage.weight"]
        copied.append(bool(same.all()))
    # 8: a server was restored to an earlier update. The last step passes two periods at once, for one copy.
    assert copied == [True, False, False, True, True], "the target is a copy of network 0"


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFiniteLoss):
        DQNUpdate(network(), DQN()).gradients(transitions(rewards=np.full(8, np.nan, np.float32)))


def test_a_constant_in_the_advantages_changes_nothing() -> None:
    made = network(dueling=True)
    obs = transitions().obs
    before = q_of(made, obs).detach()
    with torch.no_grad():
        made.advantage.bias += 7.0
    torch.testing.assert_close(q_of(made, obs).detach(), before)


@pytest.mark.parametrize("dueling", [True, False])
def test_acting_in_numpy_takes_the_same_values(dueling: bool) -> None:
    made = network(dueling=dueling)
    obs = transitions().obs
    assert isinstance(obs, np.ndarray)
    runner = PolicyRunner(made, np.random.default_rng(0))
    nothing = np.zeros(8, np.int64)
    params, _ = runner._forward(Inputs(obs, nothing.astype(bool), nothing, nothing.astype(np.float32)), ())
    assert runner._fast is not None
    np.testing.assert_allclose(params, q_of(made, obs).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_epsilon_is_the_share_of_actions_that_are_not_chosen() -> None:
    greedy = EpsilonGreedy(4)
    q = np.tile(np.array([0.0, 1.0, 0.5, -1.0], np.float32), (40_000, 1))
    greedy.epsilon = 0.2
    actions, logp = greedy.sample(q, np.random.default_rng(0))
    shares = np.bincount(actions, minlength=4) / len(actions)
    np.testing.assert_allclose(shares, [0.05, 0.85, 0.05, 0.05], atol=0.005)
    np.testing.assert_allclose(np.exp(logp), np.where(actions == 1, 0.85, 0.05), rtol=1e-5)
    result, entropy = greedy.evaluate(torch.from_numpy(q), torch.from_numpy(actions))
    np.testing.assert_allclose(result.numpy(), logp, rtol=1e-4)
    assert entropy[0].item() == pytest.approx(-(0.85 * np.log(0.85) + 3 * 0.05 * np.log(0.05)), rel=1e-4)
    assert (greedy.mode(q)[0] == 1).all()
    greedy.epsilon = np.array([0.0, 1.0] * 20_000)
    actions, _ = greedy.sample(q, np.random.default_rng(0))
    assert (actions[::2] == 1).all() and np.mean(actions[1::2] == 1) < 0.3, "each environment has its own epsilon"


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 2])])
def test_actions_that_cannot_be_counted_are_refused(space: Any) -> None:
    with pytest.raises(ThespisError, match="need Discrete actions"):
        QNetwork(BOX, space, QNetworkConfig())
