"""The TRPO update (Schulman et al., 2015, arXiv:1502.05477): the longest natural-gradient step within a KL bound."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thespis.algorithms.trpo import TRPO
from thespis.algorithms.updates.minibatch import Minibatch
from thespis.algorithms.updates.optimizers import Adam, export_state, restore_state
from thespis.algorithms.updates.policy_gradient import PolicyUpdate, dot, mean_weights
from thespis.algorithms.updates.ppo import normalised
from thespis.algorithms.updates.update import Gradients
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.types import Array, Unroll
from thespis.networks.heads import StochasticPolicy
from thespis.networks.policies import PolicyNetwork
from thespis.networks.separate import SeparateActorCritic

Product = Callable[[Tensor], Tensor]
"""A symmetric matrix, given as its product with a vector `[N]`."""


def surrogate(logp: Tensor, old_logp: Tensor, advantages: Tensor, weight: Tensor) -> Tensor:
    """Mean of pi(a|x) / mu(a|x) * A over rows `[T, B]` (paper, equation 14).

    `weight`: the weight of each row; the weights sum to 1. A row of weight 0 has no influence for any probabilities.
    """
    ratio = (logp - old_logp).masked_fill(weight == 0.0, 0.0).exp()
    return dot(weight, ratio * advantages)


def mean_kl(distribution: StochasticPolicy, old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
    """Mean of KL(old || new) over rows. `old`, `new`: distribution parameters `[T, B, P]`."""
    return dot(weight, distribution.kl(old, new))


def fisher_product(kl: Tensor, parameters: Sequence[Tensor], damping: float) -> Product:
    """v -> (H + damping I) v, with H the Hessian of `kl` with respect to `parameters`.

    If `kl` compares a policy with itself, H is the Fisher information matrix (paper, appendix C).
    """
    slopes = gradient(kl, parameters, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        return gradient(dot(slopes, vector), parameters) + damping * vector

    return product


def conjugate_gradient(product: Product, b: Tensor, iterations: int, tolerance: float = 1e-10) -> Tensor:
    """Solve `product`(x) = `b` approximately for x `[N]`; the matrix is positive definite (Hestenes and Stiefel, 1952).

    Stops after `iterations`, or when the squared norm of the residual is below `tolerance` times that of `b`.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    square = dot(residual, residual)
    enough = tolerance * square
    for _ in range(iterations):
        if square <= enough:
            break
        curved = product(direction)
        step = square / dot(direction, curved)
        x += step * direction
        residual -= step * curved
        before, square = square, dot(residual, residual)
        direction = residual + (square / before) * direction
    return x


class Accepted(NamedTuple):
    """The result of a line search. `scale`: accepted fraction of the full step, 0 if none. `tried`: steps tried."""

    scale: float
    tried: int
    objective: float
    kl: float


def line_search(
    evaluate: Callable[[float], tuple[float, float]], start: float, max_kl: float, steps: int, backtrack: float
) -> Accepted:
    """The longest of the steps 1, `backtrack`, `backtrack`^2, ... that improves on `start` within `max_kl`.

    `evaluate`: objective and KL after a step of a given scale. NaN is never accepted: its comparisons are false.
    """
    for tried in range(1, steps + 1):
        scale = backtrack ** (tried - 1)
        objective, kl = evaluate(scale)
        if objective > start and kl <= max_kl:
            return Accepted(scale, tried, objective, kl)
    return Accepted(0.0, steps, start, 0.0)


class TRPOUpdate(PolicyUpdate):
    """The TRPO update: finds the next policy by line search and the next value function by regression.

    Both run on a copy of the network. `gradients` returns the difference theta - theta', and an exchange that subtracts
    it unchanged (SGD, learning rate 1, no clip) arrives at theta'. This is bit-exact for the policy, where the KL was
    measured, and exact up to rounding for the value function. This object holds the value function's Adam state.
    """

    network: SeparateActorCritic

    def __init__(self, network: PolicyNetwork, cfg: TRPO, rng: np.random.Generator) -> None:
        """`rng`: shuffles the rows of the value regression."""
        if not isinstance(network, SeparateActorCritic):
            raise ThespisError(
                "trpo updates policy and value function separately, so they must not share parameters; "
                "let your network extend thespis.networks.separate.SeparateActorCritic"
            )
        super().__init__(network, cfg.discount, cfg.reward)
        self._cfg, self._rng = cfg, rng
        self._trial = copy.deepcopy(network)
        self._policy, self._value = self._trial.policy_parameters(), self._trial.value_parameters()
        self._adam = Adam(self._value, epsilon=1e-8)
        self._failures = 0

    def minibatches(self, batch: Unroll) -> Iterator[tuple[int, Unroll]]:
        """Yield the whole batch with its number of rows. Every batch makes a version, even if the line search fails.

        Otherwise actors would wait for the next version forever.
        """
        yield batch.rewards.size, batch

    def gradients(self, batch: Unroll, want_metrics: bool = False) -> Gradients:
        """The parameters minus the next parameters, theta - theta'."""
        whole = self._with_advantages(batch, self._cfg.gae_lambda)
        if not whole.valid.any():
            return Gradients([torch.zeros_like(parameter) for parameter in self.parameters], {})
        self._trial.load_state_dict(self.network.state_dict())
        steps, metrics = self._improve(whole)
        value_loss = self._regress(whole)
        ways = dict(zip(self._policy, steps, strict=True))
        with torch.no_grad():
            pairs = zip(self.parameters, self._trial.parameters(), strict=True)
            gradients = [ways[after] if after in ways else before - after for before, after in pairs]
        if not want_metrics:
            return Gradients(gradients, {})
        metrics |= {
            "train/loss": metrics["train/policy_loss"] + value_loss,
            "train/value_loss": value_loss,
            "train/explained_variance": whole.explained_variance(),
        }
        return Gradients(gradients, metrics)

    def state(self) -> dict[str, Array]:
        """The base state, the value function's Adam state, and the number of failed line searches."""
        adam = {f"value/{name}": array for name, array in export_state(self._adam).items()}
        return super().state() | adam | {"failures": np.array(self._failures)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore `state`."""
        super().restore(arrays)
        restore_state(self._adam, {name[6:]: array for name, array in arrays.items() if name.startswith("value/")})
        self._failures = int(arrays["failures"])

    def _improve(self, whole: Minibatch) -> tuple[list[Tensor], dict[str, float]]:
        """The step to subtract from each policy parameter, and metrics of the search."""
        cfg, network = self._cfg, self._trial
        distribution, parameters = network.distribution, self._policy
        weight = mean_weights(whole.valid, whole.targets.dtype)
        advantages = normalised(whole.advantages, weight)

        def measure() -> tuple[Tensor, Tensor, Tensor]:
            """Objective, entropy and distribution parameters of the current policy."""
            params, _ = network.distribution_params(whole.inputs, whole.state)
            logp, entropy = distribution.evaluate(params, whole.actions)
            return surrogate(logp, whole.old_logp, advantages, weight), dot(weight, entropy), params

        objective, entropy, params = measure()
        start, old = objective.item(), params.detach()
        if not math.isfinite(start):
            raise NonFiniteLoss(f"surrogate objective {start}")
        slope = gradient(objective, parameters)
        product = fisher_product(mean_kl(distribution, old, params, weight), parameters, cfg.damping)
        full = longest_step(product, slope, cfg.max_kl, cfg.cg_iterations)
        origin = [parameter.detach().clone() for parameter in parameters]

        @torch.no_grad()
        def evaluate(scale: float) -> tuple[float, float]:
            self._move(origin, split_like(full * -scale, origin))
            objective, _, params = measure()
            return objective.item(), mean_kl(distribution, old, params, weight).item()

        found = line_search(evaluate, start, cfg.max_kl, cfg.line_search_steps, cfg.backtrack)
        self._failures += not found.scale
        return split_like(full * -found.scale, origin), {
            "train/policy_loss": -found.objective,
            "train/entropy": entropy.item(),
            "train/kl": found.kl,
            "train/line_search_steps": float(found.tried),
            "train/line_search_failed": float(self._failures),
        }

    def _move(self, origin: list[Tensor], ways: list[Tensor]) -> None:
        """Set the trial policy to the parameters that an exchange would compute."""
        for parameter, before, way in zip(self._policy, origin, ways, strict=True):
            parameter.copy_(before - way)

    def _regress(self, whole: Minibatch) -> float:
        """Fit the trial value function to the returns; returns the mean loss."""
        cfg, losses = self._cfg, []
        for _ in range(cfg.value_epochs):
            for part in whole.shuffled(self._rng, cfg.minibatches):
                values, _ = self._trial.state_values(part.inputs, part.state)
                weight = mean_weights(part.valid, values.dtype)
                loss = 0.5 * dot(weight, (values - part.targets).square())
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    raise NonFiniteLoss(f"value loss {losses[-1]}")
                self._adam.step(torch.autograd.grad(loss, self._value), cfg.value_learning_rate)
        return sum(losses) / max(len(losses), 1)


def longest_step(product: Product, slope: Tensor, max_kl: float, iterations: int) -> Tensor:
    """The natural gradient `[N]`, scaled so that the quadratic model of the KL equals `max_kl` (paper, appendix C).

    x = F^-1 g, and the step is x * sqrt(2 max_kl / (x F x)); zero if the objective is flat.
    """
    direction = conjugate_gradient(product, slope, iterations)
    curvature = dot(direction, product(direction)).item()
    if not (math.isfinite(curvature) and curvature > 0.0):
        return torch.zeros_like(slope)
    return direction * math.sqrt(2.0 * max_kl / curvature)


def gradient(scalar: Tensor, parameters: Sequence[Tensor], create_graph: bool = False) -> Tensor:
    """The gradient as one flat vector; it retains the graph for the next call."""
    found = torch.autograd.grad(
        scalar, parameters, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )
    return torch.cat([part.reshape(-1) for part in found])


def split_like(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat vector into tensors with the shapes of `like`."""
    parts = torch.split(vector, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]
