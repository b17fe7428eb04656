"""The IMPALA update: its loss by hand, rows without influence, and both representations of an episode's end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episode_ends import same_step
from gymnasium import spaces

from thespis.algorithms.updates.vtrace import VTraceUpdate
from thespis.algorithms.updates.vtrace_targets import vtrace
from thespis.algorithms.vtrace import VTrace
from thespis.core.config import NetworkConfig, RewardConfig
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, Inputs, Unroll
from thespis.networks.init import init_network
from thespis.networks.policies import ActorCritic

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)


def build(lstm: int = 0, normalize: bool = False, **changes: Any) -> VTraceUpdate:
    network = NetworkConfig(hidden=(8,), lstm=lstm, normalize_observations=normalize)
    cfg = VTrace(**{"discount": 0.9, "reward": RewardConfig(), **changes})
    return VTraceUpdate(init_network(lambda: ActorCritic(OBS, ACTIONS, network), seed=2), cfg)


def random_unroll(steps: int = 6, batch: int = 3, lstm: int = 0) -> Unroll:
    rng = np.random.default_rng(0)
    first = np.zeros((steps + 1, batch), bool)
    inputs = Inputs(
        rng.normal(size=(steps + 1, batch, 3)).astype(np.float32),
        first,
        rng.integers(0, 3, (steps + 1, batch)),
        rng.normal(size=(steps + 1, batch)).astype(np.float32),
    )
    no = np.zeros((steps, batch), bool)
    return Unroll(
        inputs=inputs,
        actions=rng.integers(0, 3, (steps, batch)),
        rewards=rng.normal(size=(steps, batch)).astype(np.float32),
        terminated=no.copy(),
        truncated=no.copy(),
        valid=~no,
        behaviour_logp=np.log(rng.uniform(0.1, 0.9, (steps, batch))).astype(np.float32),
        state=tuple(np.zeros((batch, lstm), np.float32) for _ in range(2 if lstm else 0)),
        versions=np.zeros((steps, 2), np.int64),
        final_index=np.zeros((0, 2), np.int64),
        final_obs=np.zeros((0, 3), np.float32),
    )


def flat(gradients: list[torch.Tensor]) -> Array:
    array: Array = torch.cat([gradient.flatten() for gradient in gradients]).numpy()
    return array


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradients_are_those_of_the_loss_written_out(reduction: str) -> None:
    update, batch = build(reduction=reduction, reward=RewardConfig(kind="scale", scale=0.5)), random_unroll()
    batch.terminated[2, 1] = True
    gradients, metrics, *_ = update.gradients(batch, want_metrics=True)

    network = update.network
    features = torch.tanh(
        torch.nn.functional.linear(torch.from_numpy(batch.inputs.obs), *list(network.parameters())[:2])
    )
    policy, value = network.policy, network.value  # type: ignore[attr-defined]
    logits, values = policy(features[:-1]).log_softmax(-1), value(features).squeeze(-1)
    logp = logits.gather(-1, torch.from_numpy(batch.actions)[..., None]).squeeze(-1)
    ended = torch.from_numpy(batch.terminated)
    log_ratio = (logp - torch.from_numpy(batch.behaviour_logp)).detach()
    rewards = 0.5 * torch.from_numpy(batch.rewards)
    traced = vtrace(values[:-1].detach(), values[1:].detach(), rewards, 0.9 * (~ended).float(), ended, log_ratio)
    terms = {
        "train/policy_loss": -logp * traced.advantages,
        "train/value_loss": 0.5 * (traced.targets - values[:-1]) ** 2,
        "train/entropy": -(logits.exp() * logits).sum(-1),
    }
    reduced = {name: getattr(term, reduction)() for name, term in terms.items()}
    loss = reduced["train/policy_loss"] + 0.5 * reduced["train/value_loss"] - 0.01 * reduced["train/entropy"]
    expected = torch.autograd.grad(loss, list(network.parameters()))
    np.testing.assert_allclose(flat(gradients), flat(list(expected)), rtol=1e-4, atol=1e-6)

    ratio, errors = log_ratio.exp(), traced.targets - values[:-1].detach()
    reduced |= {
        "train/loss": loss,
        "train/ratio_mean": ratio.mean(),
        "train/ratio_clipped": (ratio > 1).float().mean(),
        "train/explained_variance": 1 - errors.var(correction=0) / traced.targets.var(correction=0),
        "train/value_mean": values[:-1].mean(),
    }
    assert metrics == pytest.approx({name: value.item() for name, value in reduced.items()}, rel=1e-4, abs=1e-6)
    assert update.gradients(batch).metrics == {}


def test_without_correction_old_log_probabilities_do_not_matter() -> None:
    batch = random_unroll()
    older = replace(batch, behaviour_logp=batch.behaviour_logp - 1.0)
    for correction in (True, False):
        update = build(correction=correction)
        same = np.array_equal(flat(update.gradients(batch).values), flat(update.gradients(older).values))
        assert same is not correction


@pytest.mark.parametrize("lstm", [0, 5])
def test_the_reset_row_has_no_influence(lstm: int) -> None:
    update, batch = build(lstm), random_unroll(lstm=lstm)
    batch.truncated[2, 1] = True
    batch.valid[3, 1] = False
    batch.inputs.first[4, 1] = True
    before = flat(update.gradients(batch).values)
    batch.rewards[3, 1], batch.behaviour_logp[3, 1], batch.actions[3, 1] = 1e6, -30.0, 0
    np.testing.assert_array_equal(flat(update.gradients(batch).values), before)
    # Its observation is the last one of the truncated episode: a bootstrap value, but not a row of the loss.
    batch.truncated[2, 1], batch.terminated[2, 1] = False, True
    ended = flat(update.gradients(batch).values)
    batch.inputs.obs[3, 1] = 0.7
    np.testing.assert_allclose(flat(update.gradients(batch).values), ended, rtol=1e-5, atol=1e-8)
    batch.valid[3, 1] = True
    assert not np.allclose(flat(update.gradients(batch).values), ended)


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("lstm", [0, 5])
def test_both_ways_of_writing_an_episode_end_agree(lstm: int, truncates: bool) -> None:
    long = random_unroll(steps=6, batch=1, lstm=lstm)
    short = same_step(long, truncates)
    update = build(lstm)
    for one, other in zip(update.gradients(long).values, update.gradients(short).values, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if truncates:
        moved = replace(short, final_obs=short.final_obs + 1.0)
        assert not np.allclose(flat(update.gradients(short).values), flat(update.gradients(moved).values))


def test_a_loss_that_is_not_finite_is_reported() -> None:
    update, batch = build(), random_unroll()
    batch.rewards[0, 0] = np.nan
    with pytest.raises(NonFiniteLoss, match="nan"):
        update.gradients(batch)


def test_a_batch_without_transitions_teaches_nothing() -> None:
    update, batch = build(), random_unroll()
    batch.valid[:] = False
    assert not flat(update.gradients(batch).values).any()


def test_read_only_arrays_are_accepted() -> None:
    update, batch = build(), random_unroll()
    expected = flat(update.gradients(batch).values)
    for array in (batch.rewards, batch.actions, batch.inputs.obs):
        array.flags.writeable = False
    np.testing.assert_array_equal(flat(update.gradients(batch).values), expected)


def test_observe_changes_normalisation_but_gradients_do_not() -> None:
    update, batch = build(normalize=True), random_unroll()
    first = flat(update.gradients(batch).values)
    np.testing.assert_array_equal(flat(update.gradients(batch).values), first)
    update.observe(batch)
    assert update.network.state_dict()["encoder.torsos.0.normalizer.count"].item() == 18
    assert not np.array_equal(flat(update.gradients(batch).values), first)
