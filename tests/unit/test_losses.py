"""Derivatives written by hand equal those of the readable losses by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from thespis.algorithms.ppo import PPO
from thespis.algorithms.updates.dpg import action_slopes, dpg_actor_loss, dpg_critic_loss
from thespis.algorithms.updates.dqn import td_loss, td_slopes
from thespis.algorithms.updates.evolution import search_gradient
from thespis.algorithms.updates.policy_gradient import total_loss
from thespis.algorithms.updates.ppo import Minibatch, ppo_loss
from thespis.algorithms.updates.qtopt import CROSS_ENTROPY, QTOptUpdate, qtopt_loss
from thespis.algorithms.updates.vtrace import vtrace_loss, vtrace_slopes
from thespis.algorithms.updates.vtrace_targets import VTraceReturns
from thespis.algorithms.vtrace import VTrace
from thespis.core.types import Labelled

Case = tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]
"""A loss, its inputs, and the slopes by hand."""
ROWS = (7, 5)


def draw(rng: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=rng)


def leaf(rng: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return draw(rng, *shape, scale=scale).requires_grad_()


def row_weights(rng: torch.Generator, reduction: str) -> tuple[Tensor, Tensor]:
    """Return the valid rows and their weights; some rows are invalid."""
    valid = torch.rand(*ROWS, generator=rng) < 0.7
    weight = valid.float()
    return valid, weight / weight.sum() if reduction == "mean" else weight


def vtrace_case(rng: torch.Generator, reduction: str) -> Case:
    _, weight = row_weights(rng, reduction)
    logp, entropy, values = leaf(rng, *ROWS), leaf(rng, *ROWS), leaf(rng, *ROWS)
    traced = VTraceReturns(draw(rng, *ROWS), draw(rng, *ROWS))
    cfg = VTrace(entropy_cost=0.01, value_cost=0.5)
    loss = total_loss(vtrace_loss(logp, entropy, values, traced, weight), cfg.value_cost, cfg.entropy_cost)
    return loss, (logp, entropy, values), vtrace_slopes(values.detach(), traced, weight, cfg)


def ppo_case(rng: torch.Generator, value_clip: float) -> Case:
    """Ratios and values on both sides of every clip. An invalid row has a ratio of 1 for any action."""
    valid, weight = row_weights(rng, "mean")
    logp, entropy, values = leaf(rng, *ROWS, scale=0.4), leaf(rng, *ROWS), leaf(rng, *ROWS, scale=0.5)
    old, nothing = draw(rng, *ROWS, scale=0.4), torch.empty(0)
    cfg = PPO(entropy_cost=0.02, value_cost=0.7, clip=0.2, value_clip=value_clip)
    part = Minibatch(
        inputs=nothing,  # type: ignore[arg-type]
        state=(),
        actions=nothing,
        old_logp=old,
        old_values=draw(rng, *ROWS, scale=0.5),
        advantages=draw(rng, *ROWS),
        targets=draw(rng, *ROWS),
        valid=valid,
    )
    ratio = (logp - old).masked_fill(~valid, 0.0).exp()
    assert ((ratio - 1).abs() > 0.2).any() and ((ratio - 1).abs() < 0.2).any()
    terms, _ = ppo_loss(ratio, entropy, values, part, weight, cfg)
    _, slopes = ppo_loss(ratio.detach(), entropy.detach(), values.detach(), part, weight, cfg)
    return total_loss(terms, cfg.value_cost, cfg.entropy_cost), (logp, entropy, values), slopes


def td_case(rng: torch.Generator, shape: tuple[int, ...], bound: float) -> Case:
    """`shape`: `[N]` as in DQN, `[T, N]` as in R2D2, where each sequence has a weight and some steps are invalid."""
    q, targets, weights = leaf(rng, *shape), draw(rng, *shape), torch.rand(shape[-1], generator=rng) / shape[-1]
    valid = torch.rand(*shape, generator=rng) < 0.7 if len(shape) > 1 else torch.ones(shape, dtype=torch.bool)
    errors = (q - targets) * valid
    return td_loss(errors, weights, bound), (q,), (td_slopes(errors.detach(), weights, bound),)


def critic_case(rng: torch.Generator) -> Case:
    q, targets, weights = leaf(rng, 9), draw(rng, 9), torch.rand(9, generator=rng) / 9
    errors = q - targets
    return dpg_critic_loss(errors, weights), (q,), ((weights * errors).detach(),)


class Bowl:
    """A critic whose slope grows with the distance of the action from a point that depends on the features."""

    def value(self, features: Tensor, actions: Tensor) -> Tensor:
        return -(actions - features).pow(3).sum(-1)


def actor_case(rng: torch.Generator) -> Case:
    """Without a clip the surrogate has the gradient of -mean Q at the policy's own actions."""
    critic: Any = Bowl()
    actions, features = leaf(rng, 6, 3), draw(rng, 6, 3)
    by_hand = torch.autograd.grad(dpg_actor_loss(actions, action_slopes(critic, features, actions, 1e9)), [actions])
    return -critic.value(features, actions).mean(), (actions,), by_hand


def qtopt_case(rng: torch.Generator, kind: str) -> Case:
    """Test the update itself, with the scores as the network's only parameters."""
    q, targets = leaf(rng, 8), torch.rand(8, generator=rng)
    network: Any = SimpleNamespace(
        critic=lambda obs, actions: q,
        distribution=SimpleNamespace(encode=lambda actions: actions),
        parameters=lambda: [q],
    )
    batch = Labelled(np.zeros((8, 1), np.float32), np.zeros(8), targets.numpy(), np.zeros(8, np.int64), 0)
    return qtopt_loss(q, targets, kind), (q,), QTOptUpdate(network, kind).gradients(batch).values


CASES: dict[str, Callable[[torch.Generator], Case]] = {
    "vtrace-sum": lambda rng: vtrace_case(rng, "sum"),
    "vtrace-mean": lambda rng: vtrace_case(rng, "mean"),
    "ppo": lambda rng: ppo_case(rng, 0.0),
    "ppo-value-clip": lambda rng: ppo_case(rng, 0.3),
    "dqn": lambda rng: td_case(rng, (32,), 1.0),
    "dqn-squared": lambda rng: td_case(rng, (32,), 1e6),
    "r2d2": lambda rng: td_case(rng, (6, 4), 0.5),
    "dpg-critic": critic_case,
    "dpg-actor": actor_case,
    "qtopt-squared": lambda rng: qtopt_case(rng, "squared"),
    "qtopt-cross-entropy": lambda rng: qtopt_case(rng, CROSS_ENTROPY),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_slopes_are_the_derivatives_of_the_loss(name: str, seed: int) -> None:
    loss, inputs, slopes = CASES[name](torch.Generator().manual_seed(seed))
    expected = torch.autograd.grad(loss, list(inputs))
    for by_hand, derived in zip(slopes, expected, strict=True):
        assert derived.any(), "a loss that ignores an input would pass any check"
        torch.testing.assert_close(by_hand, derived, rtol=1e-5, atol=1e-7)


def test_the_actor_s_slopes_are_clipped_one_by_one() -> None:
    rng = torch.Generator().manual_seed(0)
    critic: Any = Bowl()
    actions, features = leaf(rng, 6, 3), draw(rng, 6, 3)
    (free,) = torch.autograd.grad(-critic.value(features, actions).sum(), [actions])
    (clipped,) = torch.autograd.grad(dpg_actor_loss(actions, action_slopes(critic, features, actions, 0.5)), [actions])
    assert (free.abs() > 0.5).any()
    torch.testing.assert_close(clipped, free.clamp(-0.5, 0.5) / 6)


@pytest.mark.parametrize("decay", [0.0, 0.005])
def test_the_search_gradient_is_a_weighted_sum_of_directions(decay: float) -> None:
    """The search gradient is that of decay / 2 * |values|^2 - sum of weight * (direction . values)."""
    rng = np.random.default_rng(0)
    values, directions = rng.normal(size=20).astype(np.float32), rng.normal(size=(8, 20)).astype(np.float32)
    weights = rng.normal(size=8) * (rng.random(8) < 0.7)
    at = torch.from_numpy(values).double().requires_grad_()
    loss = 0.5 * decay * at.square().sum() - torch.from_numpy(weights) @ (torch.from_numpy(directions).double() @ at)
    (expected,) = torch.autograd.grad(loss, [at])
    np.testing.assert_allclose(search_gradient(values, directions, weights, decay), expected, rtol=1e-4, atol=1e-6)
