"""The squashed normal distribution: densities against closed forms, also where tanh rounds to one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.algorithms.updates.sac import SquashedGaussian

TWO = spaces.Box(-2.0, 5.0, (2,), np.float32)


def test_densities_hold_where_tanh_rounds_to_one() -> None:
    """1 - tanh(u)^2 is 1 / cosh(u)^2, which float64 has without cancellation."""
    squashed = SquashedGaussian(spaces.Box(-1, 1, (1,), np.float32))
    for mean in (-30.0, -12.0, -3.0, 0.0, 3.0, 12.0, 30.0):
        for log_std in (-5.0, 0.0, 2.0):
            noise = np.linspace(-2.0, 2.0, 9)
            u = mean + math.exp(log_std) * noise
            expected = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) + 2.0 * np.log(np.cosh(u))
            params = torch.tensor([[mean, log_std]] * 9, requires_grad=True)
            actions, logp = squashed.draw(params, torch.from_numpy(noise[:, None]).float())
            np.testing.assert_allclose(logp.detach().numpy(), expected, rtol=1e-5, atol=1e-4)
            (slopes,) = torch.autograd.grad(logp.sum(), params)
            np.testing.assert_allclose(slopes[:, 0].numpy(), 2.0 * np.tanh(u), rtol=1e-4, atol=1e-5)
            assert actions.abs().max() <= 1.0


def test_acting_and_learning_have_the_same_densities() -> None:
    squashed = SquashedGaussian(TWO)
    params = np.random.default_rng(0).normal(0.0, 0.7, (500, 4)).astype(np.float32)
    actions, logp = squashed.sample(params, np.random.default_rng(1))
    noise = np.random.default_rng(1).standard_normal((500, 2), np.float32)
    drawn, drawn_logp = squashed.draw(torch.from_numpy(params), torch.from_numpy(noise))
    np.testing.assert_allclose(actions, drawn.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logp, drawn_logp.numpy(), rtol=1e-4, atol=1e-5)
    inner = np.abs(actions).max(-1) < 0.999  # further out, the rounding of the action itself has an effect
    evaluated, entropy = squashed.evaluate(torch.from_numpy(params), torch.from_numpy(actions))
    np.testing.assert_allclose(evaluated.numpy()[inner], logp[inner], rtol=1e-3, atol=1e-3)
    assert torch.equal(entropy, -evaluated)
    assert actions.dtype == logp.dtype == np.float32


def test_densities_at_the_bounds_are_finite_and_sum_to_one() -> None:
    squashed = SquashedGaussian(spaces.Box(-1, 1, (1,), np.float32))
    edge = torch.tensor([[-1.0], [1.0]])
    logp, _ = squashed.evaluate(torch.tensor([[0.3, -0.5]] * 2), edge)
    assert torch.isfinite(logp).all()
    grid = torch.linspace(-0.99999, 0.99999, 20_001)
    for mean, log_std in ((0.0, 0.0), (0.8, -1.0), (-0.4, -0.2)):
        params = torch.tensor([mean, log_std]).expand(len(grid), 2)
        density = squashed.evaluate(params, grid[:, None])[0].exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-3)
