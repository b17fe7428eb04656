"""Soft actor-critic with numbers: the three losses against a float64 reference, targets and temperature."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.algorithms.sac import SAC
from thespis.algorithms.updates.sac import (
    LEAST_LOG_STD,
    MOST_LOG_STD,
    SACNetwork,
    SACUpdate,
    frozen,
    sac_actor_loss,
    sac_critic_loss,
    soft_targets,
    temperature_loss,
)
from thespis.core.config import ReplayConfig
from thespis.core.config import Transitions as Items
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.types import Inputs, TransitionBatch
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.init import init_network
from thespis.networks.policy_runner import PolicyRunner, export_weights, load_weights

BOX = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Box(-2.0, 5.0, (2,), np.float32)
Weights = dict[str, Any]


def network(seed: int = 0, actions: Any = TWO, temperature: float = 0.3, **cfg: Any) -> SACNetwork:
    settings = DPGNetworkConfig(**{"hidden": (5,), "critic_hidden": (4, 5), "activation": "tanh", **cfg})
    made = init_network(lambda: SACNetwork(BOX, actions, settings, 2, temperature), seed)
    with torch.no_grad():  # larger weights, as after training: the initial ones of the last layers are near 0
        made.policy.weight.mul_(200.0)
        for critic in made.critics.each:
            critic.output.weight.mul_(300.0)
    return made


def transitions(number: int = 6, **parts: Any) -> TransitionBatch:
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "obs": rng.normal(size=(number, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (number, 2)).astype(np.float32),
        "rewards": rng.normal(size=number).astype(np.float32),
        "discounts": np.where(np.arange(number) % 3 == 1, 0.0, 0.9).astype(np.float32),
        "next_obs": rng.normal(size=(number, 3)).astype(np.float32),
        "versions": np.zeros(number, np.int64),
        "weights": np.linspace(0.1, 1.0, number, dtype=np.float32),
        "keys": np.arange(number),
        "env_steps_at_sample": number,
    }
    return TransitionBatch(**{**values, **parts})


def inputs(obs: Any, actions: tuple[int, ...] = (2,)) -> Inputs:
    nothing = np.zeros(len(obs), np.float32)
    return Inputs(obs, nothing.astype(np.bool_), np.zeros((len(obs), *actions), np.float32), nothing)


def noise_of(seed: int, number: int, actions: int = 2) -> Any:
    """Return the noise of an update with this seed: for the next observations, then for the current ones."""
    return np.random.default_rng(seed).standard_normal((2, number, actions), np.float32).astype(np.float64)


class Oracle:
    """Compute the paper's equations for one sample at a time, in float64, from weights by name."""

    def __init__(self, weights: Weights, target: Weights, entropy: float) -> None:
        self.target, self.entropy = double(target), entropy
        self.base = double(weights)

    @staticmethod
    def layer(weights: Weights, name: str, x: Any) -> Any:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def policy(self, weights: Weights, x: Any, noise: Any) -> tuple[Any, float]:
        """Return an action and its log-density: the normal density divided by the slope of tanh."""
        hidden = np.tanh(self.layer(weights, "encoder.torsos.0.mlp.layers.0", x))
        mean, log_std = np.split(self.layer(weights, "policy", hidden), 2)
        std = np.exp(np.clip(log_std, LEAST_LOG_STD, MOST_LOG_STD))
        u = mean + std * noise
        density = np.exp(-((u - mean) ** 2) / (2 * std**2)) / np.sqrt(2 * np.pi * std**2)
        return np.tanh(u), float(np.log(density / (1 - np.tanh(u) ** 2)).sum())

    def q(self, weights: Weights, critic: int, x: Any, action: Any) -> float:
        name = f"critics.each.{critic}"
        features = np.tanh(self.layer(weights, f"{name}.encoder.torsos.0.mlp.layers.0", x))
        joint = np.tanh(self.layer(weights, f"{name}.joint.layers.0", np.concatenate([features, action])))
        return float(self.layer(weights, f"{name}.output", joint)[0])

    def goal(self, batch: Any, i: int, noise: Any) -> float:
        base, following = self.base, np.asarray(batch.next_obs[i], np.float64)
        action, logp = self.policy(base, following, noise[0, i])
        least = min(self.q(self.target, critic, following, action) for critic in (0, 1))
        soft_value = least - math.exp(base["log_temperature"]) * logp
        return float(batch.rewards[i]) + float(batch.discounts[i]) * soft_value

    def critic_loss(self, weights: Weights, batch: Any, noise: Any) -> float:
        total = 0.0
        for i in range(len(batch.rewards)):
            obs, action = np.asarray(batch.obs[i], np.float64), np.asarray(batch.actions[i], np.float64)
            for critic in (0, 1):
                error = self.q(weights, critic, obs, action) - self.goal(batch, i, noise)
                total += float(batch.weights[i]) * 0.5 * error**2
        return total / len(batch.rewards)

    def actor_loss(self, weights: Weights, batch: Any, noise: Any) -> float:
        total = 0.0
        for i in range(len(batch.rewards)):
            obs = np.asarray(batch.obs[i], np.float64)
            action, logp = self.policy(weights, obs, noise[1, i])
            least = min(self.q(self.base, critic, obs, action) for critic in (0, 1))
            total += math.exp(self.base["log_temperature"]) * logp - least
        return total / len(batch.rewards)

    def temperature_loss(self, weights: Weights, batch: Any, noise: Any) -> float:
        total = 0.0
        for i in range(len(batch.rewards)):
            _, logp = self.policy(self.base, np.asarray(batch.obs[i], np.float64), noise[1, i])
            total += -math.exp(weights["log_temperature"]) * (logp + self.entropy)
        return total / len(batch.rewards)

    def slope(self, loss: Callable[..., float], name: str, batch: Any, noise: Any) -> Any:
        """Differentiate a loss by every element of a parameter, with central differences."""
        found = np.zeros_like(self.base[name])
        for place in np.ndindex(found.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = copy.deepcopy(self.base)
                moved[name][place] += step
                sides.append(loss(moved, batch, noise))
            found[place] = (sides[0] - sides[1]) / 2e-5
        return found


def double(weights: Weights) -> Weights:
    return {name: np.array(value, np.float64) for name, value in weights.items()}


@pytest.fixture
def moved() -> tuple[SACUpdate, Oracle]:
    """Return an update whose critics differ from their targets, and a reference with the same weights."""
    made = network(0)
    update = SACUpdate(made, SAC(tau=0.1), np.random.default_rng(3))
    old = export_weights(made)
    load_weights(made, export_weights(network(1)))
    return update, Oracle(export_weights(made), old, -2.0)


def test_gradients_are_those_of_a_float64_oracle(moved: tuple[SACUpdate, Oracle]) -> None:
    """The gradient of each parameter equals the differences of its own loss only."""
    update, oracle = moved
    batch, noise = transitions(), noise_of(3, 6)
    found = update.gradients(batch, want_metrics=True)
    gradients, metrics = found.values, found.metrics
    names = [name for name, _ in update.network.named_parameters()]
    for name, ours in zip(names, gradients, strict=True):
        loss = oracle.critic_loss if name.startswith("critics.") else oracle.actor_loss
        loss = oracle.temperature_loss if name == "log_temperature" else loss
        expected = oracle.slope(loss, name, batch, noise)
        assert np.abs(expected).max() > 1e-4, name
        np.testing.assert_allclose(ours.numpy(), expected, rtol=2e-4, atol=2e-6, err_msg=name)
    assert metrics["train/critic_loss"] == pytest.approx(oracle.critic_loss(oracle.base, batch, noise), rel=1e-5)
    assert metrics["train/actor_loss"] == pytest.approx(oracle.actor_loss(oracle.base, batch, noise), rel=1e-5)
    expected = oracle.temperature_loss(oracle.base, batch, noise)
    assert metrics["train/ent_coef_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["train/ent_coef"] == pytest.approx(0.3, rel=1e-5)


def test_priorities_are_the_mean_errors_of_both_critics(moved: tuple[SACUpdate, Oracle]) -> None:
    update, oracle = moved
    batch: Any = transitions()
    noise = noise_of(3, 6)
    result = update.gradients(batch, want_metrics=True)
    expected = [
        np.mean([
            abs(oracle.q(oracle.base, critic, batch.obs[i], batch.actions[i]) - oracle.goal(batch, i, noise))
            for critic in (0, 1)
        ])
        for i in range(6)
    ]  # fmt: skip
    np.testing.assert_allclose(result.priorities, expected, rtol=1e-5)  # type: ignore[arg-type]
    assert result.metrics["train/td_error"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_losses_are_naive_loops() -> None:
    rng = np.random.default_rng(0)
    q, targets, weights, logp = rng.normal(size=(2, 7)), rng.normal(size=7), rng.uniform(size=7), rng.normal(size=7)
    tensors = [torch.from_numpy(part) for part in (q, targets, weights, logp)]
    critic = sum(weights[i] * 0.5 * (q[k, i] - targets[i]) ** 2 for k in (0, 1) for i in range(7)) / 7
    assert sac_critic_loss(*tensors[:3]).item() == pytest.approx(critic)
    actor = sum(0.4 * logp[i] - min(q[0, i], q[1, i]) for i in range(7)) / 7
    assert sac_actor_loss(tensors[3], tensors[0], torch.tensor(0.4)).item() == pytest.approx(actor)
    temperature = sum(-0.4 * (logp[i] - 2.0) for i in range(7)) / 7
    assert temperature_loss(torch.tensor(0.4).log(), tensors[3], -2.0).item() == pytest.approx(temperature)


def test_targets_take_the_lesser_critic_and_the_entropy_after_the_last_step() -> None:
    rewards, discounts = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.9, 0.9, 0.0])
    next_q, next_logp = torch.tensor([[3.0, 5.0, 3.0], [4.0, 2.0, 4.0]]), torch.tensor([-1.0, 2.0, -1.0])
    targets = soft_targets(rewards, discounts, next_q, next_logp, torch.tensor(0.5))
    torch.testing.assert_close(targets, torch.tensor([1.0 + 0.9 * 3.5, 1.0 + 0.9 * 1.0, 1.0]))


def test_a_termination_cuts_value_and_entropy_off(moved: tuple[SACUpdate, Oracle]) -> None:
    update, _ = moved
    batch = transitions(discounts=np.zeros(6, np.float32))
    found = update.gradients(batch).priorities
    with torch.no_grad():
        q = update.network.critics(torch.as_tensor(batch.obs), torch.from_numpy(batch.actions))
    expected = (q - torch.from_numpy(batch.rewards)).abs().mean(0)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)  # type: ignore[arg-type]


def test_only_the_critics_learn_from_rewards_and_weights(moved: tuple[SACUpdate, Oracle]) -> None:
    update, _ = moved
    update._rng = np.random.default_rng(5)
    one = update.gradients(transitions()).values
    update._rng = np.random.default_rng(5)
    parts: dict[str, Any] = {"rewards": np.ones(6, np.float32), "actions": np.zeros((6, 2), np.float32)}
    two = update.gradients(transitions(weights=np.ones(6, np.float32), **parts)).values
    names = [name for name, _ in update.network.named_parameters()]
    for name, before, after in zip(names, one, two, strict=True):
        assert torch.equal(before, after) != name.startswith("critics."), name


def test_a_loss_that_is_not_finite_is_refused_and_the_critics_stay_trainable() -> None:
    update = SACUpdate(network(), SAC(tau=0.1), np.random.default_rng(0))
    with pytest.raises(NonFiniteLoss, match="critic loss nan"):
        update.gradients(transitions(rewards=np.full(6, np.nan, np.float32)))
    with pytest.raises(ValueError), frozen(list(update.network.critics.parameters())):
        raise ValueError
    assert all(parameter.requires_grad for parameter in update.parameters)


@pytest.mark.parametrize(("entropy", "sign"), [(-50.0, -1.0), (50.0, 1.0)], ids=["above", "below"])
def test_the_temperature_moves_the_entropy_to_its_target(entropy: float, sign: float) -> None:
    """The temperature falls while the policy's entropy is above the target, and rises while it is below."""
    update = SACUpdate(network(), SAC(tau=0.1, target_entropy=entropy), np.random.default_rng(0))
    gradients = update.gradients(transitions()).values
    names = [name for name, _ in update.network.named_parameters()]
    assert -gradients[names.index("log_temperature")].item() * sign > 0.0


def test_a_constant_temperature_has_no_gradient() -> None:
    update = SACUpdate(network(), SAC(tau=0.1, learn_temperature=False), np.random.default_rng(0))
    found = update.gradients(transitions(), want_metrics=True)
    names = [name for name, _ in update.network.named_parameters()]
    assert found.values[names.index("log_temperature")].item() == 0.0
    assert "train/ent_coef_loss" not in found.metrics


def test_target_critics_follow_by_a_share() -> None:
    made = network(0)
    update = SACUpdate(made, SAC(tau=0.1), np.random.default_rng(0))
    old, new = export_weights(network(0)), export_weights(network(1))
    load_weights(made, new)
    for times in (1, 2):
        update.observe(transitions())
        for name, value in update.state().items():
            if name != "updates":
                whole = name.replace("target/", "critics.")
                left = 0.9**times
                np.testing.assert_allclose(value, left * old[whole] + (1 - left) * new[whole], rtol=1e-4, atol=1e-6)
    assert update.state()["updates"] == 2


def test_targets_keep_up_with_the_updates_of_other_learners() -> None:
    made = network(0)
    counts = iter([3, 4])
    one = SACUpdate(made, SAC(tau=0.1), np.random.default_rng(0), lambda: next(counts))
    other = SACUpdate(made, SAC(tau=0.1), np.random.default_rng(0))
    load_weights(made, export_weights(network(1)))
    for _ in range(2):
        one.observe(transitions())
    for _ in range(4):
        other.observe(transitions())
    for name, value in other.state().items():
        np.testing.assert_allclose(one.state()[name], value, rtol=1e-4, atol=1e-6)


def test_what_was_saved_goes_on_the_same() -> None:
    update = SACUpdate(network(0), SAC(tau=0.1), np.random.default_rng(0))
    load_weights(update.network, export_weights(network(1)))
    update.observe(transitions())
    again = SACUpdate(network(2), SAC(tau=0.1), np.random.default_rng(0))
    again.load(update.weights())
    again.restore({name: value.copy() for name, value in update.state().items()})
    for each in (update, again):
        each.observe(transitions())
    assert all(np.array_equal(value, again.state()[name]) for name, value in update.state().items())
    for one, two in zip(update.gradients(transitions()).values, again.gradients(transitions()).values, strict=True):
        assert torch.equal(one, two)


def test_observations_are_normalised_for_policy_critics_and_targets() -> None:
    made = network(normalize_observations=True)
    update = SACUpdate(made, SAC(tau=0.1), np.random.default_rng(0))
    update.observe(transitions(obs=np.full((6, 3), 4.0, np.float32)))
    arrays = export_weights(made) | update.state()
    means = [value for name, value in arrays.items() if name.endswith("normalizer.mean")]
    assert len(means) == 5 and all((mean == 4.0).all() for mean in means)


def test_deviations_are_bounded() -> None:
    made = network()
    for bias, bound in ((-100.0, LEAST_LOG_STD), (100.0, MOST_LOG_STD)):
        with torch.no_grad():
            made.policy.bias[2:] = bias
            params = made.policy_params(torch.zeros(1, 3))
        np.testing.assert_array_equal(params[0, 2:].numpy(), bound)


def test_who_acts_draws_and_who_judges_does_not() -> None:
    made, obs = network(), np.zeros((20_000, 3), np.float32)
    runner = PolicyRunner(made, np.random.default_rng(0))
    acted = runner.act(inputs(obs), ())
    with torch.no_grad():
        mean, log_std = made.policy_params(torch.zeros(1, 3)).numpy()[0].reshape(2, 2)
    u = np.arctanh(acted.actions.astype(np.float64))
    np.testing.assert_allclose(u.mean(0), mean, atol=0.05 * np.exp(log_std).max())
    np.testing.assert_allclose(u.std(0), np.exp(log_std), rtol=0.05)
    assert acted.q is None and acted.state == ()
    greedy = runner.act(inputs(obs[:2]), (), greedy=True).actions
    np.testing.assert_allclose(greedy, np.tanh([mean, mean]), rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_actions_of_any_shape(shape: tuple[int, ...]) -> None:
    made = network(actions=spaces.Box(-2.0, 2.0, shape, np.float32))
    acted = PolicyRunner(made, np.random.default_rng(0)).act(inputs(transitions().obs, shape), ())
    assert acted.actions.shape == (6, *shape)
    found = SACUpdate(made, SAC(tau=0.1), np.random.default_rng(0)).gradients(transitions(actions=acted.actions))
    assert all(torch.isfinite(part).all() for part in found.values)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-np.inf, 1.0, (2,), np.float32)])
def test_spaces_it_cannot_act_in(space: Any) -> None:
    with pytest.raises(ThespisError, match="squashed"):
        network(actions=space)


def test_settings_it_cannot_learn_with() -> None:
    with pytest.raises(ThespisError, match="--network.lstm must stay 0"):
        SAC(network=DPGNetworkConfig(lstm=8))
    with pytest.raises(ThespisError, match="give --network.critic-hidden at least two layers"):
        SAC(network=DPGNetworkConfig(critic_hidden=(8,)))
    with pytest.raises(ThespisError, match="leave --replay.actor-priorities"):
        SAC(items=Items(replay=ReplayConfig(actor_priorities=True)))


def test_settings_build_a_network_and_its_update() -> None:
    cfg = SAC(
        critics=3, temperature=0.2, target_entropy=-7.0, network=DPGNetworkConfig(hidden=(8,), critic_hidden=(8, 8))
    )
    described: Any = SimpleNamespace(observation_space=BOX, action_space=TWO)
    cfg.validate(described)
    made: Any = cfg.build_network(described, seed=1)
    assert len(made.critics.each) == 3 and made.log_temperature.exp().item() == pytest.approx(0.2)
    update = cfg.build_update(made, np.random.default_rng(0))
    found = update.gradients(transitions(), True)
    assert len(found.values) == len(list(made.parameters()))
    assert found.metrics["train/ent_coef"] == pytest.approx(0.2)
    refused: Any = SimpleNamespace(action_space=spaces.Discrete(2))
    with pytest.raises(ThespisError, match="need a Box"):
        cfg.validate(refused)
