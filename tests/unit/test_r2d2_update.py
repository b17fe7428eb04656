"""R2D2 with numbers: value rescaling, targets, priorities, and the effect of burn-in on gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from thespis.algorithms.r2d2 import R2D2
from thespis.algorithms.updates.priorities import mixed_priorities
from thespis.algorithms.updates.r2d2 import R2D2Update, r2d2_targets
from thespis.algorithms.updates.rescaling import rescale, unscale
from thespis.core.config import QNetworkConfig
from thespis.core.errors import NonFiniteLoss
from thespis.core.types import Array, Inputs, SequenceBatch
from thespis.experience.sequences import n_steps
from thespis.experience.step_storage import GOES_ON, TERMINATED, TRUNCATED
from thespis.networks.init import init_network
from thespis.networks.inputs import TensorInputs
from thespis.networks.q import QNetwork

BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
STEPS, BURN, LSTM = 5, 3, 6


def network(seed: int = 0, **cfg: Any) -> QNetwork:
    made = QNetworkConfig(**{"hidden": (8,), "lstm": LSTM, "dueling": True, **cfg})
    return init_network(lambda: QNetwork(BOX, CHOICE, made), seed)


def sequences(number: int = 4, burn: int = BURN, **parts: Any) -> SequenceBatch:
    rng = np.random.default_rng(0)
    shape, width = (STEPS, number), burn + STEPS
    values: dict[str, Any] = {
        "inputs": Inputs(
            rng.normal(size=(width + 1, number, 3)).astype(np.float32),
            np.zeros((width + 1, number), np.bool_),
            rng.integers(0, 4, (width + 1, number)),
            rng.normal(size=(width + 1, number)).astype(np.float32),
        ),
        "actions": rng.integers(0, 4, (width, number)),
        "rewards": rng.normal(size=shape).astype(np.float32),
        "discounts": np.full(shape, 0.9, np.float32),
        "ahead": np.minimum(np.arange(STEPS)[:, None] + 2, STEPS) + np.zeros(shape, np.int64),
        "valid": np.ones((width, number), np.bool_),
        "versions": np.zeros((width, number), np.int64),
        "state": tuple(rng.normal(size=(number, LSTM)).astype(np.float32) for _ in range(2)),
        "weights": np.ones(number, np.float32),
        "keys": np.arange(number),
        "env_steps_at_sample": 100,
    }
    return SequenceBatch(**{**values, **parts})


def test_rescaling_by_its_table() -> None:
    x = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])
    h = np.array([0.0, 0.4152135624, 2.3266247904, 9.1498756211, 31.6385840391])
    np.testing.assert_allclose(rescale(x), h, rtol=1e-10)
    np.testing.assert_allclose(rescale(-x), -h, rtol=1e-10)
    np.testing.assert_allclose(unscale(np.array([3.0])), [14.8811720727], rtol=1e-10)


@settings(deadline=None)
@given(st.floats(-1e6, 1e6))
def test_unscale_undoes_rescale(x: float) -> None:
    np.testing.assert_allclose(unscale(rescale(np.array(x))), x, rtol=1e-10, atol=1e-30)
    small = torch.tensor([x], dtype=torch.float32)
    torch.testing.assert_close(unscale(rescale(small)), small, rtol=1e-5, atol=1e-30)


def test_the_target_by_hand() -> None:
    rewards, valid = np.array([[1.0], [0.0], [2.0]], np.float32), np.ones((3, 1), np.bool_)
    q = torch.zeros(4, 1, 2)
    q[3, 0, 0] = 3.0
    for last, expected in ((GOES_ON, 2.8172000), (TERMINATED, 0.9052498), (TRUNCATED, 2.8172000)):
        ends = np.array([[GOES_ON], [GOES_ON], [last]])
        returns, discounts, ahead = (torch.from_numpy(part) for part in n_steps(rewards, ends, valid, 3, 0.9))
        assert r2d2_targets(returns, discounts, ahead, q, q)[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("n", "ends", "values", "expected"),
    [
        (3, [GOES_ON, TERMINATED, GOES_ON, GOES_ON], [10.0] * 5, [2.8, 2.0, 14.7, 13.0]),
        (3, [GOES_ON] * 4, [0.0, 10.0, 20.0, 30.0, 40.0], [27.1, 37.1, 39.0, 40.0]),
    ],
)
def test_n_steps_inside_a_window(n: int, ends: list[int], values: list[float], expected: list[float]) -> None:
    rewards, valid = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32), np.ones((4, 1), np.bool_)
    returns, discounts, ahead = n_steps(rewards, np.array(ends)[:, None], valid, n, 0.9)
    seen = returns + discounts * np.take_along_axis(np.array(values)[:, None], ahead, 0)
    np.testing.assert_allclose(seen[:, 0], expected, rtol=1e-5)


def test_the_priority_by_hand() -> None:
    errors = np.array([[0.1, 5.0], [0.4, 1.0], [2.0, 7.0]])
    valid = np.array([[True, False], [True, True], [True, False]])
    np.testing.assert_allclose(mixed_priorities(errors, valid, 0.9), [1.8833333, 1.0], rtol=1e-6)
    assert np.isnan(mixed_priorities(errors, np.zeros_like(valid), 0.9)).all()


def reference(update: R2D2Update, batch: SequenceBatch) -> tuple[torch.Tensor, Array]:
    """Return loss and priorities, computed step by step."""
    losses, priorities = [], []
    for i in range(len(batch.keys)):
        states = {net: tuple(torch.from_numpy(part[i : i + 1]) for part in batch.state) for net in nets(update)}
        q: dict[Any, list[torch.Tensor]] = {net: [] for net in nets(update)}
        for t in range(BURN + STEPS + 1):
            row = batch.inputs
            inputs = TensorInputs(
                *(torch.from_numpy(np.asarray(part)[t : t + 1, i : i + 1])
                  for part in (row.obs, row.first, row.last_action, row.last_reward))
            )  # fmt: skip
            for net in nets(update):
                output = net.forward(inputs, states[net])
                states[net] = tuple(part[-1] if t >= BURN else part[-1].detach() for part in output.states)
                if t >= BURN:
                    q[net].append(output.params[0, 0])
        online, target = nets(update)
        errors = []
        for t in range(STEPS):
            if batch.valid[BURN + t, i]:
                k = batch.ahead[t, i]
                best = q[target][k][q[online][k].argmax()].detach()
                y = rescale(batch.rewards[t, i] + batch.discounts[t, i] * unscale(best))
                errors.append(y - q[online][t][batch.actions[BURN + t, i]])
        sizes = torch.stack(errors)
        losses.append(batch.weights[i] * 0.5 * (sizes**2).sum())
        priorities.append((0.9 * sizes.abs().max() + 0.1 * sizes.abs().mean()).item())
    return torch.stack(losses).mean(), np.array(priorities)


def nets(update: R2D2Update) -> tuple[Any, Any]:
    return update.network, update._target


def test_loss_gradients_and_priorities_are_those_of_a_naive_loop() -> None:
    valid = np.ones((BURN + STEPS, 4), np.bool_)
    valid[:BURN, 0], valid[BURN + 3 :, 1] = False, False
    batch = sequences(valid=valid, weights=np.array([1.0, 0.5, 0.25, 1.0], np.float32))
    batch.inputs.first[BURN, 0] = True
    update = R2D2Update(network(), R2D2())
    with torch.no_grad():
        for parameter in update.network.parameters():  # so that network and target differ
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    gradients, metrics, priorities, _ = update.gradients(batch, want_metrics=True)
    loss, expected = reference(update, batch)
    assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert priorities is not None
    np.testing.assert_allclose(priorities, expected, rtol=1e-4)
    for mine, naive in zip(gradients, torch.autograd.grad(loss, update.parameters), strict=True):
        torch.testing.assert_close(mine, naive, rtol=1e-4, atol=1e-6)


def test_a_sequence_that_starts_its_episode_starts_from_nothing() -> None:
    """A sequence at an episode's start ignores the content of its empty burn-in steps, and its state."""
    seen = []
    for fill in (0.0, 7.0):
        batch = sequences(1)
        batch.valid[:BURN], batch.inputs.first[BURN] = False, True
        assert isinstance(batch.inputs.obs, np.ndarray)
        batch.inputs.obs[:BURN] = fill
        batch.state = tuple(part + np.float32(fill) for part in batch.state)
        seen.append(R2D2Update(network(), R2D2()).gradients(batch).values)
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("lstm", [0, LSTM])
def test_it_learns_without_burn_in_and_without_memory(lstm: int) -> None:
    state = {} if lstm else {"state": ()}
    update = R2D2Update(network(lstm=lstm), R2D2())
    batch = sequences(burn=0, **state)
    optimizer = torch.optim.Adam(update.parameters, 1e-2)
    losses = []
    for _ in range(60):
        gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
        for parameter, gradient in zip(update.parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        losses.append(metrics["train/loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFiniteLoss):
        R2D2Update(network(), R2D2()).gradients(sequences(rewards=np.full((STEPS, 4), np.inf, np.float32)))


def test_the_core_reads_the_last_step_only_with_feedback() -> None:
    for feedback in (True, False):
        made = network(feedback=feedback)
        q = []
        for last in (0, 3):
            inputs = TensorInputs(
                torch.ones(1, 2, 3), torch.zeros(1, 2).bool(), torch.full((1, 2), last), torch.full((1, 2), last / 4)
            )
            q.append(made.forward(inputs, made.initial_state(2)).params)
        assert torch.equal(*q) is not feedback
