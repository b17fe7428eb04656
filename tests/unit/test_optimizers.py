"""Optimisers against numbers worked out by hand, and a round trip of their state through arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thespis.algorithms.updates.flat import build_flat, decayed
from thespis.algorithms.updates.optimizers import build_optimizer, clip_gradients, export_state, restore_state
from thespis.algorithms.updates.rewards import ReturnScale, shape_rewards
from thespis.core.config import OptimizerConfig
from thespis.core.errors import ThespisError
from thespis.experience.writers import discounted_returns


def config(kind: Any, **changes: Any) -> OptimizerConfig:
    return OptimizerConfig(kind, **{"epsilon": 0.01, "decay": 0.9, **changes})


def test_rmsprop_has_epsilon_inside_the_root_and_starts_at_one() -> None:
    p = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimizer = build_optimizer(config("rmsprop"), [p])
    x, ms = np.array([1.0, -2.0]), np.ones(2)
    for g in (np.array([0.5, -4.0]), np.array([1.0, 0.0])):
        optimizer.step([torch.from_numpy(g)], 0.1)
        ms = 0.9 * ms + 0.1 * g * g
        x = x - 0.1 * g / np.sqrt(ms + 0.01)
        np.testing.assert_allclose(p, x, rtol=1e-12)


def test_rmsprop_momentum() -> None:
    p = torch.zeros(1, dtype=torch.float64)
    optimizer = build_optimizer(config("rmsprop", momentum=0.5), [p])
    x, ms, velocity = 0.0, 1.0, 0.0
    for g in (1.0, 2.0, -1.0):
        optimizer.step([torch.tensor([g], dtype=torch.float64)], 0.1)
        ms = 0.9 * ms + 0.1 * g * g
        velocity = 0.5 * velocity + 0.1 * g / (ms + 0.01) ** 0.5
        x -= velocity
        assert p.item() == pytest.approx(x, rel=1e-12)


def test_adam_first_step_is_the_learning_rate() -> None:
    p = torch.zeros(2)
    build_optimizer(config("adam", epsilon=1e-8), [p]).step([torch.tensor([3.0, -0.5])], 0.02)
    np.testing.assert_allclose(p, [-0.02, 0.02], rtol=1e-5)


def test_unknown_kind() -> None:
    with pytest.raises(ThespisError, match="adagrad or sgd"):
        build_optimizer(config("lion"), [torch.zeros(1)])
    with pytest.raises(ThespisError, match="sgd, adagrad"):
        build_flat(config("lion"), 1)


@pytest.mark.parametrize("family", ["torch", "flat"])
def test_adagrad_steps(family: str) -> None:
    cfg, x, steps = config("adagrad", epsilon=1e-8), np.zeros(1, np.float32), []
    p = torch.from_numpy(x)  # the same memory
    whole, flat = build_optimizer(cfg, [p]), build_flat(cfg, 1)
    for g in (1.0, 1.0, 2.0):
        before = x[0]
        if family == "torch":
            whole.step([torch.tensor([g])], 0.1)
        else:
            flat.step(x, np.array([g], np.float32), 0.1)
        steps.append(float(before - x[0]))
    assert steps == pytest.approx([0.1, 0.070711, 0.081650], abs=1e-6)


@pytest.mark.parametrize(
    "cfg",
    [
        config("sgd"),
        config("adagrad"),
        config("rmsprop"),
        config("rmsprop", momentum=0.9),
        config("adam"),
        config("adam", beta2=0.9),
    ],
)
def test_a_flat_vector_takes_the_same_steps_as_tensors_do(cfg: OptimizerConfig) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=50).astype(np.float32)
    parameters = [torch.from_numpy(values[:20].copy()).view(4, 5), torch.from_numpy(values[20:].copy())]
    tensors, flat = build_optimizer(cfg, parameters), build_flat(cfg, 50)
    for rate in (0.1, 0.05, 0.01, 0.01):
        gradient = rng.normal(size=50).astype(np.float32)
        tensors.step([torch.from_numpy(gradient[:20]).view(4, 5), torch.from_numpy(gradient[20:])], rate)
        flat.step(values, gradient, rate)
    moved = torch.cat([parameter.flatten() for parameter in parameters]).numpy()
    np.testing.assert_allclose(values, moved, rtol=1e-5, atol=1e-6)
    assert values.dtype == np.float32
    assert all(slot.dtype in (np.float32, np.int64) for slot in flat.slots.values())


@pytest.mark.parametrize("cfg", [config("adam"), config("rmsprop"), config("rmsprop", momentum=0.9), config("adagrad")])
def test_restored_state_continues_bit_for_bit(cfg: OptimizerConfig) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [[torch.randn(3, 2, generator=generator), torch.randn(2, generator=generator)] for _ in range(6)]
    parameters = [torch.ones(3, 2), torch.ones(2)]
    optimizer = build_optimizer(cfg, parameters)
    for step in gradients[:3]:
        optimizer.step(step, 0.1)
    exported = export_state(optimizer)
    copies = [p.clone() for p in parameters]
    other = build_optimizer(cfg, copies)
    restore_state(other, exported)
    before = {name: value.copy() for name, value in exported.items()}
    for step in gradients[3:]:
        optimizer.step(step, 0.05)
        other.step(step, 0.05)
    assert all(torch.equal(p, copy) for p, copy in zip(parameters, copies, strict=True))
    assert all(np.array_equal(exported[name], before[name]) for name in before), "the export must be a copy"
    with pytest.raises(ThespisError, match="another network"):
        restore_state(build_optimizer(cfg, [torch.ones(5, 2), torch.ones(2)]), exported)


def test_clipping_keeps_direction_and_reports_the_norm() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    assert clip_gradients(gradients, 10.0) == pytest.approx(5.0)
    assert gradients[0].tolist() == [3.0, 0.0]
    assert clip_gradients(gradients, 1.0) == pytest.approx(5.0)
    np.testing.assert_allclose(torch.cat([g.flatten() for g in gradients]), [0.6, 0.0, 0.8], rtol=1e-6)
    assert np.isnan(clip_gradients([torch.tensor([float("nan")])], 1.0))


def test_linear_decay() -> None:
    assert [decayed(0.4, progress) for progress in (-1.0, 0.0, 0.25, 1.0, 2.0)] == pytest.approx(
        [0.4, 0.4, 0.3, 0.0, 0.0]
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("none", [-3, 0, 0.5, 7]), ("sign", [-1, 0, 1, 1]), ("abs_one", [-1, 0, 0.5, 1]), ("scale", [-0.3, 0, 0.05, 0.7])],
)
def test_reward_shaping(kind: str, expected: list[float]) -> None:
    rewards = np.array([-3.0, 0.0, 0.5, 7.0], np.float32)
    np.testing.assert_allclose(shape_rewards(rewards, kind, 0.1), expected, rtol=1e-6)
    np.testing.assert_allclose(shape_rewards(torch.from_numpy(rewards), kind, 0.1), expected, rtol=1e-6)


def test_unknown_reward_shaping() -> None:
    with pytest.raises(ThespisError, match="abs_one"):
        shape_rewards(np.zeros(1), "tanh", 1.0)


def test_discounted_returns_restart_with_episodes_and_continue_over_unrolls() -> None:
    rewards, ended = np.ones((4, 1)), np.array([[False], [True], [False], [False]])
    whole, _ = discounted_returns(rewards, ended, np.zeros(1), 0.5)
    assert whole[:, 0].tolist() == [1.0, 1.5, 1.0, 1.5]
    carry, parts = np.zeros(1), []
    for t in range(4):
        part, carry = discounted_returns(rewards[t : t + 1], ended[t : t + 1], carry, 0.5)
        parts.append(part)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_return_scale_is_the_exact_deviation_of_valid_rows() -> None:
    rng = np.random.default_rng(0)
    scale, seen = ReturnScale(), []
    assert scale.scale == 1.0
    for _ in range(5):
        returns, valid = rng.normal(1e4, 3.0, (6, 4)), rng.random((6, 4)) < 0.7
        scale.update(returns, valid)
        seen.append(returns[valid])
    assert scale.scale == pytest.approx(1.0 / np.concatenate(seen).std(), rel=1e-9)
    copy = ReturnScale()
    copy.restore_state(scale.export_state())
    copy.update(np.ones((2, 2)), np.ones((2, 2), bool))
    scale.update(np.ones((2, 2)), np.ones((2, 2), bool))
    assert copy.scale == scale.scale


def test_return_scale_survives_a_return_that_is_not_finite() -> None:
    scale, clean = ReturnScale(), ReturnScale()
    returns, everything = np.array([[1.0, 4.0], [np.nan, np.inf]]), np.ones((2, 2), bool)
    scale.update(returns, everything)
    clean.update(returns[:1], everything[:1])
    assert scale.scale == clean.scale != 1.0
