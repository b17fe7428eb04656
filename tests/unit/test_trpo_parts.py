"""The parts of the TRPO update, against dense algebra and naive loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from thespis.algorithms.updates.trpo import (
    Accepted,
    conjugate_gradient,
    fisher_product,
    line_search,
    longest_step,
    mean_kl,
    surrogate,
)
from thespis.core.config import NetworkConfig
from thespis.networks.heads import build_distribution
from thespis.networks.init import init_network
from thespis.networks.inputs import TensorInputs
from thespis.networks.separate import SeparateActorCritic

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = spaces.Discrete(3)
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": DISCRETE,
    "multi": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
}


def symmetric(size: int, seed: int = 0) -> Tensor:
    root = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_conjugate_gradient_against_a_dense_solve(size: int) -> None:
    matrix, b = symmetric(size), torch.arange(1.0, size + 1.0, dtype=torch.float64)
    found = conjugate_gradient(lambda v: matrix @ v, b, iterations=3 * size, tolerance=1e-20)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)


def test_conjugate_gradient_ends_early_and_knows_zero() -> None:
    calls = []

    def product(v: Tensor) -> Tensor:
        calls.append(v)
        return 2.0 * v

    assert torch.equal(conjugate_gradient(product, torch.ones(3), 10), torch.full((3,), 0.5)) and len(calls) == 1
    assert torch.equal(conjugate_gradient(product, torch.zeros(3), 10), torch.zeros(3)) and len(calls) == 1


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_fisher_products_against_an_explicit_hessian(space: spaces.Space[Any]) -> None:
    """Compare the Hessian of a small float64 network with the outer products that define the Fisher matrix."""
    distribution = build_distribution(space)
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    shapes = [(3, 4), (4, distribution.size)]
    sizes = [math.prod(shape) for shape in shapes]
    theta = 0.5 * torch.randn(sum(sizes), dtype=torch.float64, generator=generator)
    weight = torch.rand(7, dtype=torch.float64, generator=generator)
    weight /= weight.sum()

    def policy(vector: Tensor) -> Tensor:
        first, second = (part.view(shape) for part, shape in zip(torch.split(vector, sizes), shapes, strict=True))
        return (obs @ first).tanh() @ second

    old = policy(theta)
    hessian: Any = torch.autograd.functional.hessian(
        lambda vector: mean_kl(distribution, old, policy(vector), weight), theta
    )
    parameters = [part.view(shape).requires_grad_() for part, shape in zip(theta.split(sizes), shapes, strict=True)]
    kl = mean_kl(distribution, old, (obs @ parameters[0]).tanh() @ parameters[1], weight)
    product = fisher_product(kl, parameters, damping=0.3)
    rows = torch.stack([product(unit) for unit in torch.eye(len(theta), dtype=torch.float64)])
    torch.testing.assert_close(rows, hessian + 0.3 * torch.eye(len(theta), dtype=torch.float64))
    assert torch.linalg.eigvalsh(hessian).min() > -1e-12


def test_fisher_products_of_a_network_large_enough_for_numpy_layers() -> None:
    """Numpy computes the first derivatives of such layers, and torch the second ones."""
    layers = NetworkConfig(hidden=(64, 64))
    made = init_network(lambda: SeparateActorCritic(OBS, DISCRETE, layers), seed=0)
    with torch.no_grad():
        made.policy.weight.mul_(50.0)
    steps = torch.randn(1, 200, 3, generator=torch.Generator().manual_seed(0))
    blank = torch.zeros(1, 200)
    parameters, weight = made.policy_parameters(), torch.full((1, 200), 1 / 200)
    vector = torch.randn(sum(p.numel() for p in parameters), generator=torch.Generator().manual_seed(1))

    def found(rows: Tensor) -> Tensor:
        count = rows.shape[1]
        params, _ = made.distribution_params(TensorInputs(rows, blank[:, :count] > 0, blank, blank), ())
        kl = mean_kl(made.distribution, params.detach(), params, weight[:, :count])
        return fisher_product(kl, parameters, 0.0)(vector)

    few = sum((found(part) for part in steps.split(10, 1)), torch.zeros_like(vector))
    torch.testing.assert_close(found(steps), few, rtol=1e-4, atol=1e-5)
    assert few.norm() > 0.1


def test_the_surrogate_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    logp, old, advantages = (torch.from_numpy(rng.normal(size=(4, 3))) for _ in range(3))
    valid = torch.from_numpy(rng.random((4, 3)) < 0.7)
    logp[~valid] = 1e6
    total = 0.0
    for t in range(4):
        for b in range(3):
            if valid[t, b]:
                total += math.exp(logp[t, b].item() - old[t, b].item()) * advantages[t, b].item()
    weight = valid.double() / valid.sum()
    assert surrogate(logp, old, advantages, weight).item() == pytest.approx(total / int(valid.sum()))


def test_the_mean_kl_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = torch.randn(2, 4, 3, 5, dtype=torch.float64, generator=generator)
    valid = torch.tensor([[True, False, True]] * 4)
    total = 0.0
    for t in range(4):
        for b in (0, 2):
            p, q = old[t, b].softmax(-1).tolist(), new[t, b].softmax(-1).tolist()
            total += sum(before * math.log(before / after) for before, after in zip(p, q, strict=True))
    found = mean_kl(build_distribution(spaces.Discrete(5)), old, new, valid.double() / valid.sum())
    assert found.item() == pytest.approx(total / 8)


def test_the_longest_step_reaches_the_bound_of_the_quadratic_model() -> None:
    matrix, slope = symmetric(6), torch.ones(6, dtype=torch.float64)
    step = longest_step(lambda v: matrix @ v, slope, 0.01, 30)
    assert 0.5 * (step @ matrix @ step).item() == pytest.approx(0.01)
    torch.testing.assert_close(step / step.norm(), (natural := torch.linalg.solve(matrix, slope)) / natural.norm())
    assert not longest_step(lambda v: matrix @ v, torch.zeros(6, dtype=torch.float64), 0.01, 30).any()


def test_the_line_search_takes_the_first_step_that_improves_within_the_bound() -> None:
    table = {1.0: (2.0, 0.5), 0.5: (0.5, 0.005), 0.25: (math.nan, 0.001), 0.125: (1.5, math.nan), 0.0625: (1.2, 0.01)}
    assert line_search(table.__getitem__, 1.0, 0.01, 10, 0.5) == Accepted(0.0625, 5, 1.2, 0.01)
    assert line_search(table.__getitem__, 1.0, 0.01, 4, 0.5) == Accepted(0.0, 4, 1.0, 0.0)
    assert line_search(lambda scale: (1.0, 0.0), 1.0, 0.01, 3, 0.5).scale == 0.0
