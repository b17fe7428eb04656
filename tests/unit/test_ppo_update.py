"""The PPO update: its loss by hand, the effect of the clip on gradients, and the content of minibatches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episode_ends import same_step
from gymnasium import spaces
from hypothesis import assume, example, given
from hypothesis import strategies as st

from thespis.algorithms.ppo import PPO
from thespis.algorithms.updates.gae import gae
from thespis.algorithms.updates.minibatch import explained_variance
from thespis.algorithms.updates.optimizers import SGD
from thespis.algorithms.updates.ppo import Minibatch, PPOUpdate, clipped_surrogate, clipped_value_loss, normalised
from thespis.core.config import NetworkConfig
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, Inputs, Unroll
from thespis.networks.init import init_network
from thespis.networks.policies import ActorCritic

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)


def build(lstm: int = 0, **changes: Any) -> PPOUpdate:
    network = NetworkConfig(hidden=(8,), lstm=lstm)
    base = {"discount": 0.9, "entropy_cost": 0.01, "epochs": 2, "minibatches": 3, "gae_lambda": 0.8}
    made = init_network(lambda: ActorCritic(OBS, ACTIONS, network), seed=2)
    return PPOUpdate(made, PPO(**{**base, **changes}), np.random.default_rng(0))


def random_unroll(steps: int = 6, batch: int = 4, lstm: int = 0) -> Unroll:
    """Make a batch whose `last_reward` numbers the rows, so that each row can be identified."""
    rng = np.random.default_rng(0)
    no = np.zeros((steps, batch), bool)
    return Unroll(
        inputs=Inputs(
            rng.normal(size=(steps + 1, batch, 3)).astype(np.float32),
            np.zeros((steps + 1, batch), bool),
            rng.integers(0, 3, (steps + 1, batch)),
            np.arange((steps + 1) * batch, dtype=np.float32).reshape(steps + 1, batch),
        ),
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


def parts(update: PPOUpdate, batch: Unroll) -> list[Minibatch]:
    return [part for _, part in update.minibatches(batch)]


def whole(update: PPOUpdate, batch: Unroll) -> Minibatch:
    """Return all rows as the only minibatch of an update."""
    (part,) = parts(update, batch)
    return part


ONE: dict[str, Any] = {"epochs": 1, "minibatches": 1}


# -- the loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective", "slope"),
    [(1.0, 1.5, 1.2, 0.0), (1.0, 0.5, 0.5, 0.5), (-1.0, 1.5, -1.5, -1.5), (-1.0, 0.5, -0.8, 0.0), (2.0, 1.1, 2.2, 2.2)],
)
def test_the_clip(advantage: float, ratio: float, objective: float, slope: float) -> None:
    """The paper's figure 1: no gradient where the ratio has left the interval in the direction of the advantage."""
    found = clipped_surrogate(torch.tensor([ratio]), torch.tensor([advantage]), 0.2)
    assert [value.item() for value in found] == pytest.approx([objective, slope])


@pytest.mark.parametrize(
    ("value", "clip", "loss", "slope"),
    [(1.0, 0.0, 2.0, -2.0), (1.0, 0.5, 3.125, 0.0), (0.3, 0.5, 0.5 * 2.7**2, -2.7), (-1.0, 0.5, 8.0, -4.0)],
    ids=["unclipped", "moved too far", "within", "moved away"],
)
def test_the_value_clip(value: float, clip: float, loss: float, slope: float) -> None:
    """Old value 0, target 3."""
    found = clipped_value_loss(torch.tensor([value]), torch.zeros(1), torch.tensor([3.0]), clip)
    assert [part.item() for part in found] == pytest.approx([loss, slope])


FLOATS = st.floats(-10.0, 10.0, width=32)


@given(FLOATS, FLOATS, FLOATS, st.sampled_from([0.01, 0.2, 1.0]))
@example(0.05238, 0.01, 1.0, 0.2)  # old + (value - old) differs from the value in the last bit
def test_the_value_clip_against_an_oracle(value: float, old: float, target: float, clip: float) -> None:
    """Compare loss and slope with the definition in float64, and the slope with autograd."""
    values, olds, targets = (torch.tensor([number]) for number in (value, old, target))
    value, old, target = values.item(), olds.item(), targets.item()
    moved, error = value - old, value - target
    held = old + max(-clip, min(clip, moved)) - target
    within = abs(moved) <= clip
    # At a kink both slopes are valid.
    assume(abs(abs(moved) - clip) > 1e-5 and (within or abs(error**2 - held**2) > 1e-4))
    loss, slope = clipped_value_loss(values, olds, targets, clip)
    assert loss.item() == pytest.approx(0.5 * max(error**2, held**2), rel=1e-5, abs=1e-6)
    assert slope.item() == pytest.approx(error if within or error**2 > held**2 else 0.0, rel=1e-6, abs=1e-6)
    free = values.clone().requires_grad_()
    written, _ = clipped_value_loss(free, olds, targets, clip)
    (found,) = torch.autograd.grad(written.sum(), free)
    assert slope.item() == pytest.approx(found.item(), rel=1e-6, abs=1e-6)


def test_normalised_rows_have_mean_0_and_deviation_1_and_others_do_not_count() -> None:
    advantages, weight = torch.tensor([[1.0, 2.0, 6.0, 1e6]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]]) / 3
    found = normalised(advantages, weight)[0, :3]
    assert found.mean().item() == pytest.approx(0.0, abs=1e-6) and found.var(correction=0).item() == pytest.approx(1.0)


@pytest.mark.parametrize("value_clip", [0.0, 0.1])
def test_gradients_are_those_of_the_loss_written_out(value_clip: float) -> None:
    update, batch = build(**ONE, value_clip=value_clip), random_unroll()
    batch.terminated[2, 1] = True
    part = whole(update, batch)
    with torch.no_grad():  # as after some steps; otherwise neither clip has an effect
        for parameter in update.parameters:
            parameter.mul_(1.5)
    gradients, metrics, *_ = update.gradients(part, want_metrics=True)

    obs, old = part.inputs.obs, part.old_values
    assert isinstance(obs, torch.Tensor)
    network: Any = update.network
    features = torch.tanh(torch.nn.functional.linear(obs, *list(network.parameters())[:2]))
    logits, values = network.policy(features).log_softmax(-1), network.value(features).squeeze(-1)
    logp = logits.gather(-1, part.actions[..., None]).squeeze(-1)
    ratio, advantages = (logp - part.old_logp).exp(), part.advantages
    advantages = (advantages - advantages.mean()) / advantages.std(correction=0)
    policy = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    errors = (values - part.targets) ** 2
    if value_clip:
        errors = torch.maximum(errors, (old + (values - old).clamp(-value_clip, value_clip) - part.targets) ** 2)
    entropy = -(logits.exp() * logits).sum(-1).mean()
    loss = policy + 0.5 * 0.5 * errors.mean() - 0.01 * entropy
    expected = torch.autograd.grad(loss, list(network.parameters()))
    np.testing.assert_allclose(flat(gradients), flat(list(expected)), rtol=1e-4, atol=1e-6)
    assert metrics == pytest.approx(
        {
            "train/loss": loss.item(),
            "train/policy_loss": policy.item(),
            "train/value_loss": 0.5 * errors.mean().item(),
            "train/entropy": entropy.item(),
            "train/approx_kl": (ratio - 1 - ratio.log()).mean().item(),
            "train/clip_fraction": ((ratio - 1).abs() > 0.2).float().mean().item(),
            "train/explained_variance": 1 - (advantages_variance(part) / part.targets.var(correction=0)).item(),
        },
        rel=1e-4,
        abs=1e-6,
    )
    assert update.gradients(part).metrics == {}


def advantages_variance(part: Minibatch) -> torch.Tensor:
    return part.advantages.var(correction=0)


def test_the_policy_that_acted_is_where_ratios_start() -> None:
    update, batch = build(**ONE), random_unroll()
    with torch.no_grad():
        output = update.network.forward(whole(update, batch).inputs, ())
        logp, _ = update.network.distribution.evaluate(output.params, torch.from_numpy(batch.actions).view(1, -1))
    batch.behaviour_logp[:] = logp.view(6, 4).numpy()
    metrics = update.gradients(whole(update, batch), want_metrics=True).metrics
    assert metrics["train/clip_fraction"] == 0.0
    assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_loss_that_is_not_finite_is_reported() -> None:
    update, batch = build(**ONE), random_unroll()
    batch.rewards[0, 0] = np.nan
    with pytest.raises(NonFiniteLoss, match="nan"):
        update.gradients(whole(update, batch))


# -- episodes that end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lstm", [0, 5])
def test_the_reset_row_has_no_influence(lstm: int) -> None:
    update, batch = build(lstm, **ONE), random_unroll(lstm=lstm)
    batch.truncated[2, 1] = True
    batch.valid[3, 1] = False
    batch.inputs.first[4, 1] = True
    before = flat(update.gradients(whole(update, batch)).values)
    batch.rewards[3, 1], batch.behaviour_logp[3, 1], batch.actions[3, 1] = 1e6, -300.0, 0
    np.testing.assert_array_equal(flat(update.gradients(whole(update, batch)).values), before)
    batch.valid[3, 1] = True
    assert not np.allclose(flat(update.gradients(whole(update, batch)).values), before)


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("lstm", [0, 5])
def test_both_ways_of_writing_an_episode_end_agree(lstm: int, truncates: bool) -> None:
    long = random_unroll(steps=6, batch=1, lstm=lstm)
    short = same_step(long, truncates)
    update = build(lstm, **ONE)
    expected = flat(update.gradients(whole(update, long)).values)
    np.testing.assert_allclose(flat(update.gradients(whole(update, short)).values), expected, rtol=1e-4, atol=1e-6)
    if truncates:
        moved = replace(short, final_obs=short.final_obs + 1.0)
        assert not np.allclose(flat(update.gradients(whole(update, moved)).values), expected)


def test_advantages_are_those_of_the_values_before_the_update() -> None:
    update, batch = build(**ONE), random_unroll()
    with torch.no_grad():
        obs = torch.from_numpy(batch.inputs.obs)
        network: Any = update.network
        features = torch.tanh(torch.nn.functional.linear(obs, *list(network.parameters())[:2]))
        values = network.value(features).squeeze(-1)
    discount = torch.full((6, 4), 0.9)
    expected = gae(values[:-1], values[1:], torch.from_numpy(batch.rewards), discount, discount == 0, 0.8)
    part = whole(update, batch)
    torch.testing.assert_close(part.advantages.view(6, 4), expected)
    torch.testing.assert_close(part.targets, part.advantages + part.old_values)


# -- minibatches ----------------------------------------------------------------------------------------


def rows(minibatches: list[Minibatch]) -> Counter[int]:
    return Counter(int(row) for part in minibatches for row in part.inputs.last_reward[part.valid])


@pytest.mark.parametrize(("lstm", "number"), [(0, 3), (0, 5), (0, 1), (5, 3), (5, 4)])
def test_each_epoch_has_each_valid_row_once(lstm: int, number: int) -> None:
    update, batch = build(lstm, epochs=3, minibatches=number), random_unroll(lstm=lstm)
    batch.valid[2, 1] = batch.valid[4, 3] = False
    made = list(update.minibatches(batch))
    assert len(made) == 3 * number and all(size == part.valid.numel() for size, part in made)
    expected = Counter(np.arange(24).reshape(6, 4)[batch.valid].tolist())
    for epoch in range(3):
        assert rows([part for _, part in made[epoch * number : (epoch + 1) * number]]) == expected


def test_epochs_are_shuffled_and_rows_stay_whole() -> None:
    update, batch = build(epochs=2, minibatches=2), random_unroll()
    first, _, second, _ = parts(update, batch)
    assert rows([first]) != rows([second])
    for part in (first, second):
        t, b = divmod(part.inputs.last_reward[0].long().numpy(), 4)
        np.testing.assert_array_equal(part.inputs.obs[0], batch.inputs.obs[t, b])  # type: ignore[index]
        np.testing.assert_array_equal(part.actions[0], batch.actions[t, b])
        np.testing.assert_array_equal(part.old_logp[0], batch.behaviour_logp[t, b])


def test_a_recurrent_network_gets_whole_environments_with_their_state() -> None:
    update, batch = build(5, epochs=1, minibatches=2), random_unroll(lstm=5)
    batch.state[0][:] = np.arange(4)[:, None]
    for part in parts(update, batch):
        environments = part.inputs.last_reward[0].long()
        assert part.valid.shape == (6, 2)
        assert torch.equal(part.inputs.last_reward, environments + 4.0 * torch.arange(6)[:, None])
        np.testing.assert_array_equal(part.state[0][:, 0], environments)


@pytest.mark.parametrize(("limit", "steps"), [(None, 20), (1e-3, 1)])
def test_no_further_step_once_the_policy_is_too_far(limit: float | None, steps: int) -> None:
    update, batch = build(epochs=20, minibatches=1, target_kl=limit), random_unroll()
    optimizer = SGD(update.parameters)
    made = 0
    for _, part in update.minibatches(batch):
        optimizer.step(update.gradients(part).values, 0.5)
        made += 1
    assert made == steps


def test_a_batch_without_transitions_teaches_nothing() -> None:
    update, batch = build(), random_unroll()
    batch.valid[:] = False
    assert parts(update, batch) == []


def test_a_batch_without_a_valid_row_explains_no_variance() -> None:
    """Every step of a short unroll may be the reset after an episode. torch warns about the variance of nothing."""
    values = torch.tensor([1.0, 2.0])
    assert explained_variance(values, values) == 1.0
    assert explained_variance(values[:0], values[:0]) == 0.0
