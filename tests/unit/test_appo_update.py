"""The APPO update: its loss by naive loops, its gradients by autograd, and rows without influence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.algorithms.appo import APPO
from thespis.algorithms.ppo import PPO
from thespis.algorithms.updates.appo import APPOUpdate
from thespis.algorithms.updates.ppo import PPOUpdate
from thespis.core.config import NetworkConfig, RewardConfig
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, Inputs, Unroll
from thespis.networks.init import init_network
from thespis.networks.policies import ActorCritic

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)


def settings(**changes: Any) -> APPO:
    base: dict[str, Any] = {
        "discount": 0.9,
        "c_bar": 0.8,
        "trace_decay": 0.95,
        "normalize_advantages": False,
        "reward": RewardConfig(),
    }
    return APPO(**{**base, **changes})


def network(lstm: int = 0) -> ActorCritic:
    cfg = NetworkConfig(hidden=(8,), lstm=lstm)
    made = init_network(lambda: ActorCritic(OBS, ACTIONS, cfg), seed=2)
    with torch.no_grad():
        made.policy.weight.mul_(50.0)  # so that probabilities differ
    return made


def build(lstm: int = 0, **changes: Any) -> APPOUpdate:
    return APPOUpdate(network(lstm), settings(**changes))


def random_unroll(steps: int = 6, batch: int = 3, lstm: int = 0) -> Unroll:
    rng = np.random.default_rng(0)
    no = np.zeros((steps, batch), bool)
    inputs = Inputs(
        rng.normal(size=(steps + 1, batch, 3)).astype(np.float32),
        np.zeros((steps + 1, batch), bool),
        rng.integers(0, 3, (steps + 1, batch)),
        rng.normal(size=(steps + 1, batch)).astype(np.float32),
    )
    return Unroll(
        inputs=inputs,
        actions=rng.integers(0, 3, (steps, batch)),
        rewards=rng.normal(size=(steps, batch)).astype(np.float32),
        terminated=no.copy(),
        truncated=no.copy(),
        valid=~no,
        behaviour_logp=np.log(rng.uniform(0.1, 0.9, (steps, batch))).astype(np.float32),
        state=tuple(np.zeros((batch, lstm), np.float32) for _ in range(2 if lstm else 0)),
        versions=np.zeros((steps, batch), np.int64),
        final_index=np.zeros((0, 2), np.int64),
        final_obs=np.zeros((0, 3), np.float32),
    )


def flat(gradients: list[torch.Tensor]) -> Array:
    array: Array = torch.cat([gradient.flatten() for gradient in gradients]).numpy()
    return array


def outputs(update: APPOUpdate, batch: Unroll) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities of all actions `[T, B, 3]` and values `[T + 1, B]`, with gradients."""
    made: Any = update.network
    obs = torch.from_numpy(batch.inputs.obs)
    features = torch.tanh(torch.nn.functional.linear(obs, *list(made.parameters())[:2]))
    return made.policy(features[:-1]).log_softmax(-1), made.value(features).squeeze(-1)


def naive(batch: Unroll, logp: Array, values: Array, cfg: APPO) -> tuple[Array, Array, Array]:
    """Return ratios, advantages and value targets `[T, B]`, computed step by step."""
    steps, width = batch.rewards.shape
    ratios, advantages, targets = (np.zeros((steps, width)) for _ in range(3))
    for b in range(width):
        above = 0.0  # v_{t+1} - V(x_{t+1})
        for t in reversed(range(steps)):
            discount = 0.0 if batch.terminated[t, b] else cfg.discount
            if batch.terminated[t, b] or batch.truncated[t, b] or t == steps - 1:
                above = 0.0
            ratio = math.exp(logp[t, b, batch.actions[t, b]] - batch.behaviour_logp[t, b])
            delta = batch.rewards[t, b] + discount * values[t + 1, b] - values[t, b]
            advantages[t, b] = delta + discount * above
            above = min(cfg.rho_bar, ratio) * delta + cfg.trace_decay * discount * min(cfg.c_bar, ratio) * above
            targets[t, b], ratios[t, b] = values[t, b] + above, ratio
    return ratios, advantages, targets


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("clip", [0.05, 0.3])
def test_loss_and_gradients_against_naive_loops_and_autograd(clip: float, normalize: bool) -> None:
    update, batch = build(clip=clip, normalize_advantages=normalize), random_unroll()
    batch.terminated[2, 1] = batch.truncated[4, 2] = True
    gradients, metrics, *_ = update.gradients(batch, want_metrics=True)

    logits, values = outputs(update, batch)
    cfg = settings(clip=clip)
    ratios, advantages, targets = naive(batch, logits.detach().double().numpy(), values.detach().numpy(), cfg)
    if normalize:
        advantages = (advantages - advantages.mean()) / advantages.std()
    policy = value = bonus = torch.zeros(())
    for t in range(6):
        for b in range(3):
            ratio = (logits[t, b, batch.actions[t, b]] - float(batch.behaviour_logp[t, b])).exp()
            advantage = float(advantages[t, b])
            policy = policy - torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage) / 18
            value = value + 0.5 * (values[t, b] - float(targets[t, b])) ** 2 / 18
            bonus = bonus - (logits[t, b].exp() * logits[t, b]).sum() / 18
    loss = policy + 0.5 * value - 0.01 * bonus
    expected = torch.autograd.grad(loss, list(update.network.parameters()))
    np.testing.assert_allclose(flat(gradients), flat(list(expected)), rtol=1e-4, atol=1e-6)
    assert metrics == pytest.approx(
        {
            "train/loss": loss.item(),
            "train/policy_loss": policy.item(),
            "train/value_loss": value.item(),
            "train/entropy": bonus.item(),
            "train/ratio_mean": ratios.mean(),
            "train/clip_fraction": (abs(ratios - 1) > clip).mean(),
            "train/approx_kl": (ratios - 1 - np.log(ratios)).mean(),
            "train/explained_variance": 1 - (targets - values[:-1].detach().numpy()).var() / targets.var(),
        },
        rel=1e-4,
        abs=1e-6,
    )
    assert update.gradients(batch).metrics == {}


def test_on_its_own_actions_it_is_ppo_with_lambda_1() -> None:
    """If pi = mu and lambda is 1, advantages and targets of V-trace equal those of GAE."""
    update, batch = build(trace_decay=1.0, c_bar=1.0, normalize_advantages=True), random_unroll()
    batch.terminated[2, 1] = True
    logits, _ = outputs(update, batch)
    batch.behaviour_logp[:] = logits.detach().gather(-1, torch.from_numpy(batch.actions)[..., None])[..., 0].numpy()
    same = PPO(discount=0.9, entropy_cost=0.01, epochs=1, minibatches=1, gae_lambda=1.0)
    ppo = PPOUpdate(network(), same, np.random.default_rng(0))
    ((_, part),) = ppo.minibatches(batch)
    np.testing.assert_allclose(
        flat(update.gradients(batch).values), flat(ppo.gradients(part).values), rtol=1e-4, atol=1e-6
    )


def test_the_clip_stops_the_pull_on_what_moved_far_enough() -> None:
    """If all advantages are positive and all ratios are 2, the clip leaves only gradients of values."""
    update, batch = build(entropy_cost=0.0), random_unroll()
    logits, _ = outputs(update, batch)
    logp = logits.detach().gather(-1, torch.from_numpy(batch.actions)[..., None])[..., 0].numpy()
    batch.behaviour_logp[:] = logp - math.log(2.0)
    batch.rewards[:] = 100.0
    found = dict(zip(dict(network().named_parameters()), update.gradients(batch).values, strict=True))
    assert not found["policy.weight"].any() and found["value.weight"].any()
    batch.rewards[:] = -100.0
    found = dict(zip(dict(network().named_parameters()), update.gradients(batch).values, strict=True))
    assert found["policy.weight"].any()


@pytest.mark.parametrize("lstm", [0, 5])
def test_the_reset_row_has_no_influence(lstm: int) -> None:
    update, batch = build(lstm, normalize_advantages=True), random_unroll(lstm=lstm)
    batch.truncated[2, 1] = True
    batch.valid[3, 1] = False
    batch.inputs.first[4, 1] = True
    before = flat(update.gradients(batch).values)
    batch.rewards[3, 1], batch.behaviour_logp[3, 1], batch.actions[3, 1] = 1e6, -300.0, 0
    np.testing.assert_array_equal(flat(update.gradients(batch).values), before)
    batch.valid[3, 1] = True
    assert not np.allclose(flat(update.gradients(replace(batch, rewards=batch.rewards * 1e-6)).values), before)


def test_a_loss_that_is_not_finite_is_reported() -> None:
    update, batch = build(), random_unroll()
    batch.rewards[0, 0] = np.nan
    with pytest.raises(NonFiniteLoss, match="nan"):
        update.gradients(batch)
