"""Deterministic policy gradients with numbers: targets, both gradients, target networks, noise and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.algorithms.dpg import DPG
from thespis.algorithms.updates.dpg import DPGUpdate, action_slopes
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.types import Array, Inputs, TransitionBatch
from thespis.envs.spaces import env_actions
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.dpg import DPGNetwork, ValuingPolicyRunner, require_bounded
from thespis.networks.init import init_network
from thespis.networks.policy_runner import PolicyRunner, export_weights, load_weights

BOX = spaces.Box(-1, 1, (3,), np.float32)
LOPSIDED = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))
FREE = DPG(slope_clip=1e9)
"""A bound that clips no slope."""


def network(seed: int = 0, actions: Any = LOPSIDED, **cfg: Any) -> DPGNetwork:
    settings = DPGNetworkConfig(hidden=(16,), critic_hidden=(16, 16), **cfg)
    made = init_network(lambda: DPGNetwork(BOX, actions, settings), seed)
    with torch.no_grad():  # larger weights, as after training: the initial ones of the last layers are near 0
        made.policy.weight.mul_(100.0)
        made.critic.output.weight.mul_(100.0)
    return made


def exploring(made: DPGNetwork, sigma: float | Array) -> ValuingPolicyRunner:
    made.distribution.explore(sigma)
    return ValuingPolicyRunner(made, np.random.default_rng(0))


def transitions(number: int = 8, **parts: Any) -> TransitionBatch:
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "obs": rng.normal(size=(number, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (number, 2)).astype(np.float32),
        "rewards": rng.normal(size=number).astype(np.float32),
        "discounts": np.full(number, 0.9, np.float32),
        "next_obs": rng.normal(size=(number, 3)).astype(np.float32),
        "versions": np.zeros(number, np.int64),
        "weights": np.linspace(0.1, 1.0, number, dtype=np.float32),
        "keys": np.arange(number),
        "env_steps_at_sample": number,
    }
    return TransitionBatch(**{**values, **parts})


def inputs(obs: Any) -> Inputs:
    nothing = np.zeros(len(obs), np.float32)
    return Inputs(obs, nothing.astype(np.bool_), np.zeros((len(obs), 2), np.float32), nothing)


def test_gradients_are_those_of_the_two_losses_written_out() -> None:
    made = network()
    update = DPGUpdate(made, FREE)
    load_weights(made, export_weights(network(1)))  # so that the target networks differ
    old = network(0)
    batch = transitions()
    gradients, metrics, priorities, _ = update.gradients(batch, want_metrics=True)

    obs, following = torch.as_tensor(batch.obs), torch.as_tensor(batch.next_obs)
    q = made.critic(obs, torch.from_numpy(batch.actions))
    with torch.no_grad():
        targets = torch.from_numpy(batch.rewards) + 0.9 * old.critic(following, old.act(following))
    critic_loss = (torch.from_numpy(batch.weights) * 0.5 * (q - targets).square()).mean()
    actor_loss = -made.critic(obs, made.act(obs)).mean()
    names = [name for name, _ in made.named_parameters()]
    of_critic = torch.autograd.grad(critic_loss, update.parameters, allow_unused=True)
    of_actor = torch.autograd.grad(actor_loss, update.parameters)
    for name, ours, critic, actor in zip(names, gradients, of_critic, of_actor, strict=True):
        expected = critic if name.startswith("critic.") else actor
        assert expected is not None and expected.abs().max() > 0.0
        torch.testing.assert_close(ours, expected, msg=name)
        assert name.startswith("critic.") or critic is None, "the critic's loss has no gradient of the actor"
    assert metrics["train/loss"] == pytest.approx(critic_loss.item(), rel=1e-5)
    assert priorities is not None
    np.testing.assert_allclose(priorities, (q - targets).abs().detach().numpy(), rtol=1e-5)


def test_the_actor_learns_from_the_critic_alone() -> None:
    """Other rewards, actions and importance weights change the critic's gradients, but not the actor's."""
    update = DPGUpdate(network(), FREE)
    names = [name for name, _ in update.network.named_parameters()]
    one = update.gradients(transitions()).values
    parts = {"rewards": np.ones(8, np.float32), "actions": np.zeros((8, 2), np.float32)}
    two = update.gradients(transitions(weights=np.ones(8, np.float32), **parts)).values
    for name, before, after in zip(names, one, two, strict=True):
        assert torch.equal(before, after) != name.startswith("critic."), name


def test_slopes_of_the_critic_are_clipped_one_by_one() -> None:
    made = network(activation="relu")
    with torch.no_grad():  # Q(x, a) = 5 (a_0 + 10) + 0.25 (a_1 + 10)
        made.critic.joint.layers[0].weight.zero_()
        made.critic.joint.layers[0].weight[[0, 1], [16, 17]] = 1.0
        made.critic.joint.layers[0].bias.fill_(10.0)
        made.critic.output.weight.zero_()
        made.critic.output.weight[0, :2] = torch.tensor([5.0, 0.25])
    obs = torch.as_tensor(transitions().obs)
    actions, features = made.act(obs), made.critic.encoder(obs)
    torch.testing.assert_close(action_slopes(made.critic, features, actions, 9.0), torch.tensor([[5.0, 0.25]] * 8))
    gradients = DPGUpdate(made, DPG(slope_clip=1.0)).gradients(transitions()).values
    expected = torch.autograd.grad(-(actions @ torch.tensor([1.0, 0.25])).mean(), [made.policy.weight])
    torch.testing.assert_close(gradients[2], expected[0])


@pytest.mark.parametrize("discount", [0.0, 0.729], ids=["terminated", "truncated"])
def test_only_a_termination_cuts_the_future_off(discount: float) -> None:
    """Rewards of 2, 3 and 4 to the end, with a discount of 0.9."""
    update = DPGUpdate(network(), FREE)
    batch = transitions(
        rewards=np.full(8, 7.94, np.float32), discounts=np.full(8, discount, np.float32)
    )  # fmt: skip
    priorities = update.gradients(batch).priorities
    made, following = update.network, torch.as_tensor(batch.next_obs)
    with torch.no_grad():
        q = made.critic(torch.as_tensor(batch.obs), torch.from_numpy(batch.actions))
        future = made.critic(following, made.act(following))
    expected = (7.94 + discount * future - q).abs()
    assert priorities is not None
    np.testing.assert_allclose(priorities, expected.numpy(), rtol=1e-5)


def test_actor_and_critic_are_copied_to_their_targets_together() -> None:
    made = network()
    update = DPGUpdate(made, DPG(target_period=3))
    old = update.state()
    load_weights(made, export_weights(network(1)))
    watched = ("policy.weight", "critic.output.weight")
    for _ in range(2):
        update.observe(transitions())
        for name in watched:
            np.testing.assert_array_equal(update.state()[f"target/{name}"], old[f"target/{name}"])
    other = DPGUpdate(network(1), DPG(target_period=3))
    other.restore({name: value.copy() for name, value in update.state().items()})
    for each in (update, other):
        each.observe(transitions())
        for name in watched:
            np.testing.assert_array_equal(each.state()[f"target/{name}"], each.weights()[name])


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFiniteLoss):
        DPGUpdate(network(), FREE).gradients(transitions(rewards=np.full(8, np.nan, np.float32)))


def test_observations_are_normalised_for_both_networks() -> None:
    made = network(normalize_observations=True)
    update = DPGUpdate(made, FREE)
    update.observe(transitions(obs=np.full((8, 3), 4.0, np.float32)))
    means = [value for name, value in export_weights(made).items() if name.endswith("normalizer.mean")]
    assert len(means) == 2 and all((mean == 4.0).all() for mean in means)


def test_noise_has_the_deviation_of_each_environment_and_stays_in_bounds() -> None:
    made = network(seed=2)
    obs = np.zeros((40_000, 3), np.float32)
    sigma = np.tile([0.05, 2.0], 20_000)
    runner = exploring(made, sigma)
    acted = runner.act(inputs(obs), ())
    with torch.no_grad():
        middle = made.act(torch.zeros(1, 3)).numpy()
    assert np.abs(middle).max() < 0.8
    np.testing.assert_allclose((acted.actions[::2] - middle).std(0), 0.05, rtol=0.05)
    assert np.abs(acted.actions).max() == 1.0 and np.mean(np.abs(acted.actions[1::2]) == 1.0) > 0.3


def test_there_is_no_noise_when_judged() -> None:
    made, obs = network(), transitions().obs
    with torch.no_grad():
        expected = made.act(torch.as_tensor(obs)).numpy()
    for runner in (PolicyRunner(made, np.random.default_rng(0)), exploring(made, 0.5)):
        for _ in range(2):
            np.testing.assert_allclose(runner.act(inputs(obs), (), greedy=True).actions, expected, rtol=1e-6)
    assert not np.allclose(runner.act(inputs(obs), ()).actions, expected, atol=0.1)


def test_what_it_says_of_its_actions_is_what_the_critic_says() -> None:
    made, obs = network(), transitions().obs
    acted = exploring(made, 0.5).act(inputs(obs), ())
    tensors = torch.as_tensor(obs)
    with torch.no_grad():
        taken, best = made.critic(tensors, torch.from_numpy(acted.actions)), made.critic(tensors, made.act(tensors))
    np.testing.assert_allclose(acted.q, torch.stack([taken, best], 1).numpy(), rtol=1e-5)  # type: ignore[arg-type]
    assert not torch.allclose(taken, best, atol=1e-3)


def test_a_saturated_policy_reaches_the_bounds_of_a_lopsided_space() -> None:
    made, stretch = network(), env_actions(LOPSIDED)
    for sign, bound in ((-1.0, LOPSIDED.low), (1.0, LOPSIDED.high)):
        with torch.no_grad():
            made.policy.bias.fill_(sign * 100.0)
        acted = exploring(made, 1e-3).act(inputs(transitions().obs), ())
        np.testing.assert_allclose(stretch(acted.actions), np.tile(bound, (8, 1)), atol=0.03)
        assert all(LOPSIDED.contains(action) for action in stretch(acted.actions))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Discrete(3), "need a Box of continuous actions"),
        (spaces.Box(0, 9, (2,), np.int64), "need a Box of continuous actions"),
        (spaces.Box(-np.inf, 1.0, (2,), np.float32), "squashed to their bounds"),
    ],
)
def test_spaces_it_cannot_act_in(space: Any, what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        require_bounded(space)


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_actions_of_any_shape(shape: tuple[int, ...]) -> None:
    made = network(actions=spaces.Box(-2.0, 2.0, shape, np.float32))
    acted = exploring(made, 0.5).act(inputs(transitions().obs), ())
    assert acted.actions.shape == (8, *shape)
    gradients = DPGUpdate(made, FREE).gradients(transitions(actions=acted.actions)).values
    assert all(torch.isfinite(part).all() for part in gradients)
