"""The TRPO update: the KL bound after every step it makes, its value regression, and what it saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from thespis.algorithms.trpo import TRPO
from thespis.algorithms.updates.optimizers import SGD
from thespis.algorithms.updates.trpo import (
    TRPOUpdate,
)
from thespis.core.config import NetworkConfig
from thespis.core.config_io import to_dict
from thespis.core.errors import NonFiniteLoss, ThespisError
from thespis.core.settings import walk_settings as all_settings
from thespis.core.types import Array, Inputs, Unroll
from thespis.networks.init import init_network
from thespis.networks.inputs import TensorInputs, tensor_inputs
from thespis.networks.policies import ActorCritic
from thespis.networks.separate import SeparateActorCritic
from thespis.training.registry import defaults

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = spaces.Discrete(3)
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": DISCRETE,
    "multi": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
}


def network(space: spaces.Space[Any] = DISCRETE, lstm: int = 0, normalize: bool = False) -> SeparateActorCritic:
    cfg = NetworkConfig(hidden=(8,), lstm=lstm, normalize_observations=normalize)
    return init_network(lambda: SeparateActorCritic(OBS, space, cfg), seed=2)


def build(space: spaces.Space[Any] = DISCRETE, lstm: int = 0, normalize: bool = False, **changes: Any) -> TRPOUpdate:
    base = {"discount": 0.9, "gae_lambda": 0.8, "value_epochs": 2, "minibatches": 3, "value_learning_rate": 1e-2}
    return TRPOUpdate(network(space, lstm, normalize), TRPO(**{**base, **changes}), np.random.default_rng(0))


def random_unroll(update: TRPOUpdate, seed: int = 0, steps: int = 20, batch: int = 4) -> Unroll:
    """Make a batch with actions of the update's own policy, as in rounds of one version; some episodes end."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(steps + 1, batch, 3)).astype(np.float32)
    first = np.zeros((steps + 1, batch), bool)
    terminated, truncated = (rng.random((steps, batch)) < 0.05 for _ in range(2))
    truncated &= ~terminated
    first[1:] = terminated | truncated
    index = np.argwhere(truncated)
    (row, _) = update.network.distribution.sample(np.zeros((1, update.network.distribution.size), np.float32), rng)
    blank = np.zeros((steps + 1, batch, *row.shape[1:]), row.dtype)
    state = tuple(part.numpy() for part in update.network.initial_state(batch))
    inputs = Inputs(obs, first, blank, np.zeros((steps + 1, batch), np.float32))
    params = _params(update, tensor_inputs(inputs), state)[:-1].numpy()
    actions, logp = update.network.distribution.sample(params.reshape(steps * batch, -1), rng)
    return Unroll(
        inputs=inputs,
        actions=actions.reshape(steps, batch, *actions.shape[1:]),
        rewards=rng.normal(size=(steps, batch)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((steps, batch), bool),
        behaviour_logp=logp.reshape(steps, batch).astype(np.float32),
        state=state,
        versions=np.zeros((steps, batch), np.int64),
        final_index=index,
        final_obs=rng.normal(size=(len(index), 3)).astype(np.float32),
    )


@torch.no_grad()
def _params(update: TRPOUpdate, inputs: TensorInputs, state: tuple[Array, ...]) -> Tensor:
    return update.network.distribution_params(inputs, tuple(torch.from_numpy(part) for part in state))[0]


def measured_kl(update: TRPOUpdate, before: Tensor, batch: Unroll) -> float:
    """Return the mean KL over valid rows, in float64, from the policy with parameters `before` to the current one."""
    after = _params(update, tensor_inputs(batch.inputs), batch.state)[:-1]
    kl = update.network.distribution.kl(before.double(), after.double())
    return float(kl[torch.from_numpy(batch.valid)].mean())


@pytest.mark.parametrize(("lstm", "batches"), [(0, 30), (5, 5)])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_every_step_stays_within_the_bound_once_it_is_applied(
    space: spaces.Space[Any], lstm: int, batches: int
) -> None:
    update = build(space, lstm)
    exchange = SGD(update.parameters)
    accepted = 0
    for seed in range(batches):
        batch = random_unroll(update, seed, steps=8 if lstm else 20)
        before = _params(update, tensor_inputs(batch.inputs), batch.state)[:-1]
        gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
        exchange.step(gradients, 1.0)
        kl = measured_kl(update, before, batch)
        assert kl <= 0.01 * (1 + 1e-4)
        assert kl == pytest.approx(metrics["train/kl"], rel=1e-2, abs=1e-6)
        accepted += kl > 0.0
    assert accepted > 0.8 * batches


def test_the_bound_holds_where_the_quadratic_model_is_far_off() -> None:
    """Without damping and with a bound of a third of a nat, full steps overshoot, so the search must shorten them."""
    update = build(max_kl=0.3, damping=1e-5)
    exchange, tried = SGD(update.parameters), []
    for seed in range(30):
        batch = random_unroll(update, seed)
        before = _params(update, tensor_inputs(batch.inputs), batch.state)[:-1]
        gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
        exchange.step(gradients, 1.0)
        assert measured_kl(update, before, batch) <= 0.3 * (1 + 1e-4)
        tried.append(metrics["train/line_search_steps"])
    assert max(tried) > 1.0


def test_the_accepted_step_improves_the_surrogate_and_rejected_ones_change_nothing() -> None:
    update = build()
    batch = random_unroll(update)
    gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
    assert metrics["train/policy_loss"] < 0.0 and metrics["train/line_search_failed"] == 0.0
    assert 1.0 <= metrics["train/line_search_steps"] <= 10.0

    never = build(line_search_steps=0)
    gradients, metrics, *_ = never.gradients(batch, want_metrics=True)
    policy = {id(parameter) for parameter in never.network.policy_parameters()}
    for parameter, gradient in zip(never.parameters, gradients, strict=True):
        assert bool(gradient.any()) != (id(parameter) in policy)
    assert metrics["train/line_search_failed"] == 1.0 and metrics["train/kl"] == 0.0
    assert never.gradients(batch, want_metrics=True).metrics["train/line_search_failed"] == 2.0


def test_a_batch_is_one_step() -> None:
    update = build()
    batch = random_unroll(update)
    ((rows, part),) = update.minibatches(batch)
    assert rows == 80 and part is batch


def test_gradients_leave_the_network_as_it_is() -> None:
    update = build(normalize=True)
    batch = random_unroll(update)
    before = update.weights()
    update.gradients(batch)
    assert all(np.array_equal(before[name], value) for name, value in update.weights().items())


@pytest.mark.parametrize("lstm", [0, 5])
def test_policy_and_values_do_not_move_each_other(lstm: int) -> None:
    update = build(lstm=lstm)
    batch, net = random_unroll(update), update.network
    inputs, state = tensor_inputs(batch.inputs), tuple(torch.from_numpy(part) for part in batch.state)
    before = net.forward(inputs, state)
    shapes = {id(p) for p in net.policy_parameters()}, {id(p) for p in net.value_parameters()}
    assert not shapes[0] & shapes[1] and shapes[0] | shapes[1] == {id(p) for p in net.parameters()}
    with torch.no_grad():
        for parameter in net.value_parameters():
            parameter.add_(0.1)
    between = net.forward(inputs, state)
    assert torch.equal(between.params, before.params) and not torch.allclose(between.values, before.values)
    with torch.no_grad():
        for parameter in net.policy_parameters():
            parameter.add_(0.1)
    after = net.forward(inputs, state)
    assert torch.equal(after.values, between.values) and not torch.allclose(after.params, between.params)


def test_values_move_towards_the_returns() -> None:
    update = build(value_epochs=50, gae_lambda=1.0)
    batch, exchange = random_unroll(update), SGD(update.parameters)
    losses = []
    for _ in range(3):
        gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
        exchange.step(gradients, 1.0)
        losses.append(metrics["train/value_loss"])
    assert losses[2] < losses[1] < losses[0]
    assert metrics["train/explained_variance"] > 0.2


def test_the_regression_is_adam_on_half_the_squared_error() -> None:
    update = build(value_epochs=3, minibatches=1)
    batch = random_unroll(update)
    with torch.no_grad():
        values = update.network.forward(tensor_inputs(batch.inputs), ()).values
    whole = update._with_advantages(batch, 0.8)
    torch.testing.assert_close(whole.targets.view(20, 4), whole.advantages.view(20, 4) + values[:-1])
    reference = network()
    theirs = torch.optim.Adam(reference.value_parameters(), lr=1e-2)
    for _ in range(3):
        theirs.zero_grad()
        (0.5 * (reference.state_values(whole.inputs, ())[0] - whole.targets) ** 2).mean().backward()  # type: ignore[no-untyped-call]
        theirs.step()
    SGD(update.parameters).step(update.gradients(batch).values, 1.0)
    ours = update.network.value_parameters()
    for found, expected in zip(ours, reference.value_parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_restored_update_goes_on_to_the_bit() -> None:
    def steps(update: TRPOUpdate, seeds: range) -> None:
        for seed in seeds:
            update._rng = np.random.default_rng(seed)  # the shuffles of an incarnation are not saved
            SGD(update.parameters).step(update.gradients(random_unroll(update, seed)).values, 1.0)

    update = build(line_search_steps=1)
    steps(update, range(3))
    later = build(line_search_steps=1)
    later.load(update.weights())
    later.restore(update.state())
    steps(update, range(3, 6))
    steps(later, range(3, 6))
    assert all(np.array_equal(later.weights()[name], value) for name, value in update.weights().items())
    assert all(np.array_equal(later.state()[name], value) for name, value in update.state().items())
    with pytest.raises(ThespisError, match="optimizer state"):
        build(lstm=5).restore(update.state())


def test_rows_that_are_no_transition_have_no_influence() -> None:
    for lstm in (0, 5):
        found = []
        for reward in (0.0, 1e6):
            update = build(lstm=lstm, minibatches=1)
            batch = random_unroll(update)
            batch.terminated[:], batch.truncated[:], batch.valid[3, 1] = False, False, False
            batch.final_index, batch.final_obs = np.zeros((0, 2), np.int64), np.zeros((0, 3), np.float32)
            batch.truncated[2, 1] = True
            batch.rewards[3, 1], batch.behaviour_logp[3, 1] = reward, -300.0 if reward else 0.0
            found.append(torch.cat([part.flatten() for part in update.gradients(batch).values]))
        assert torch.equal(*found)


def test_a_batch_without_transitions_teaches_nothing() -> None:
    update = build()
    batch = random_unroll(update)
    batch.valid[:] = False
    gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
    assert not any(gradient.any() for gradient in gradients) and metrics == {}


def test_what_is_not_finite_is_reported_and_spoils_nothing() -> None:
    update = build()
    batch = random_unroll(update)
    batch.rewards[0, 0] = np.nan
    with pytest.raises(NonFiniteLoss, match="nan"):
        update.gradients(batch)
    assert all(np.isfinite(value).all() for value in update.state().values())


def test_observations_are_normalised_for_both_networks() -> None:
    update = build(normalize=True)
    batch = random_unroll(update)
    update.observe(batch)
    weights = update.weights()
    means = [value for name, value in weights.items() if name.endswith("normalizer.mean")]
    assert len(means) == 2 and np.array_equal(*means) and means[0].any()
    before = _params(update, tensor_inputs(batch.inputs), batch.state)[:-1]
    gradients, metrics, *_ = update.gradients(batch, want_metrics=True)
    SGD(update.parameters).step(gradients, 1.0)
    assert measured_kl(update, before, batch) == pytest.approx(metrics["train/kl"], rel=1e-3)


def test_a_network_that_shares_parameters_is_refused() -> None:
    cfg = NetworkConfig(hidden=(8,))
    settings: Any = None
    with pytest.raises(ThespisError, match="must not share parameters"):
        TRPOUpdate(ActorCritic(OBS, DISCRETE, cfg), settings, np.random.default_rng(0))


def test_the_optimizer_is_no_setting() -> None:
    """The line search sets the step size, so the learner's optimizer has no settings."""
    cfg = defaults("trpo", None, {})
    assert not [each.path for each in all_settings(cfg) if each.path.startswith("optimizer")]
    assert "optimizer" not in to_dict(cfg)
    with pytest.raises(ThespisError, match="unknown setting 'optimizer'"):
        defaults("trpo", None, {"optimizer": {"learning_rate": 0.1}})
    optimizer = TRPO().optimizer
    assert (optimizer.kind, optimizer.learning_rate, optimizer.clip, optimizer.anneal) == ("sgd", 1.0, 0.0, False)
