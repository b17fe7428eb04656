"""Networks on every space, distributions against torch's own, recurrent resets, and equal acting and learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.core.config import NetworkConfig
from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, State, Tree, map_tree
from thespis.networks.heads import build_distribution
from thespis.networks.init import init_network
from thespis.networks.inputs import TensorInputs, tensor_inputs
from thespis.networks.normalize import Normalizer
from thespis.networks.policies import ActorCritic, NetworkOutput, final_values
from thespis.networks.policy_runner import PolicyRunner, export_weights
from thespis.networks.recurrent import LSTMCore

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multi": spaces.MultiDiscrete([2, 3, 4]),
    "grid": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "box": spaces.Box(-2.0, 2.0, (2,), np.float32),
    "matrix": spaces.Box(-2.0, 2.0, (2, 3), np.float32),
}


def config(**changes: Any) -> NetworkConfig:
    return NetworkConfig(**{"hidden": (16, 16), **changes})


def build(
    observations: spaces.Space[Any], actions: spaces.Space[Any] = ACTIONS["discrete"], **changes: object
) -> ActorCritic:
    network = init_network(lambda: ActorCritic(observations, actions, config(**changes)), seed=1)
    with torch.no_grad():  # The stock policy is almost uniform at first; larger weights make differences visible.
        network.policy.weight.mul_(50.0)
    return network


def stack(space: spaces.Space[Any], count: int) -> Tree:
    rows = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([np.asarray(row[key]) for row in rows]) for key in space.spaces}
    return np.stack([np.asarray(row) for row in rows])


def blank_inputs(obs: Tree, actions: spaces.Space[Any], batch: int) -> Inputs:
    last = np.zeros((batch, *(actions.shape or ())), actions.dtype)
    return Inputs(obs, np.zeros(batch, bool), last, np.zeros(batch, np.float32))


@pytest.mark.parametrize("lstm", [0, 8])
@pytest.mark.parametrize(
    ("space", "torso"),
    [
        (VECTOR, "auto"),
        (spaces.Box(-1.0, 1.0, (2, 3), np.float64), "auto"),
        (spaces.Box(0, 255, (128,), np.uint8), "auto"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), "auto"),
        (spaces.Box(0, 255, (64, 48, 3), np.uint8), "auto"),
        (spaces.Box(0, 255, (64, 48, 3), np.uint8), "resnet"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "auto"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "mlp"),
        (spaces.Discrete(5, start=3), "auto"),
        (spaces.MultiDiscrete([3, 4]), "auto"),
        (spaces.MultiBinary(6), "auto"),
        (
            spaces.Dict(
                {"view": spaces.Box(0, 255, (40, 40, 3), np.uint8), "speed": VECTOR, "gear": spaces.Discrete(5)}
            ),
            "auto",
        ),
        (spaces.Dict({"view": spaces.Box(0, 255, (12, 12, 3), np.uint8), "speed": VECTOR}), "resnet"),
    ],
)
def test_every_observation_space_acts(space: spaces.Space[Any], torso: str, lstm: int) -> None:
    space.seed(0)
    actions = ACTIONS["discrete"]
    runner = PolicyRunner(build(space, torso=torso, lstm=lstm), np.random.default_rng(0))
    acted = runner.act(blank_inputs(stack(space, 2), actions, 2), runner.initial_state(2))
    assert acted.actions.shape == (2,) and acted.logp.dtype == np.float32
    assert [part.shape for part in acted.state] == ([(2, 8)] * 2 if lstm else [])


def test_channels_last_images_are_read_as_channels_first() -> None:
    last, first = spaces.Box(0, 255, (48, 40, 3), np.uint8), spaces.Box(0, 255, (3, 48, 40), np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (1, 2, 48, 40, 3), np.uint8)
    outputs = [
        build(space).forward(TensorInputs(torch.from_numpy(obs), *flat_rest(1, 2)), ()).params
        for space, obs in ((last, images), (first, images.transpose(0, 1, 4, 2, 3).copy()))
    ]
    torch.testing.assert_close(*outputs)


def flat_rest(steps: int, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.zeros(steps, batch, dtype=torch.bool),
        torch.zeros(steps, batch, dtype=torch.int64),
        torch.zeros(steps, batch),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(spaces.Tuple([VECTOR])), "cannot read"),
        (lambda: build(spaces.Dict({"a": spaces.Dict({"b": VECTOR})})), "cannot read observation 'a'"),
        (lambda: build(VECTOR, spaces.MultiBinary(3)), "cannot act"),
        (lambda: build(VECTOR, torso="nature"), "reads images"),
        (lambda: build(spaces.Box(0, 255, (20, 20, 3), np.uint8), torso="nature"), "at least 36x36"),
        (lambda: build(VECTOR, torso="transformer"), "unknown torso"),
        (lambda: build(VECTOR, activation="gelu"), "unknown activation"),
    ],
)
def test_what_cannot_be_built_says_so(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ThespisError, match=message):
        make()


@pytest.mark.parametrize("name", ACTIONS)
def test_distributions_agree_with_torch(name: str) -> None:
    space = ACTIONS[name]
    distribution = build_distribution(space)
    rng = np.random.default_rng(0)
    params = rng.normal(size=(6, distribution.size)).astype(np.float32)
    actions, logp = distribution.sample(params, rng)
    assert actions.shape == (6, *(space.shape or ())) and logp.dtype == np.float32
    assert isinstance(space, spaces.Box) or all(space.contains(action) for action in actions)
    ours, entropy = distribution.evaluate(torch.from_numpy(params), torch.from_numpy(actions))
    expected, spread = torch_evaluate(space, torch.from_numpy(params), torch.from_numpy(actions))
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(entropy, spread)
    np.testing.assert_allclose(logp, ours, atol=1e-5)


def torch_evaluate(
    space: spaces.Space[Any], params: torch.Tensor, actions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = actions.reshape(len(actions), -1)
    if isinstance(space, spaces.Box):
        mean, log_std = params.chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        return normal.log_prob(rows).sum(-1), normal.entropy().sum(-1)
    discrete = isinstance(space, spaces.Discrete)
    sizes = [int(space.n)] if discrete else space.nvec.ravel().tolist()
    parts = [torch.distributions.Categorical(logits=logits) for logits in torch.split(params, sizes, -1)]
    logps = [part.log_prob(rows[:, i]) for i, part in enumerate(parts)]
    return torch.stack(logps).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_divergence_of_two_policies(name: str) -> None:
    """Compare with torch and with the mean of log p - log q over many samples; zero gradient for equal policies."""
    space, generator = ACTIONS[name], torch.Generator().manual_seed(0)
    distribution = build_distribution(space)
    old, new = 0.5 * torch.randn(2, 3, 2, distribution.size, generator=generator)
    found = distribution.kl(old, new)
    assert found.shape == (3, 2)
    torch.testing.assert_close(found, torch_kl(space, old, new))
    rows = np.tile(old[0, 0].numpy(), (50_000, 1))
    actions = torch.from_numpy(distribution.sample(rows, np.random.default_rng(0))[0])
    logps = [distribution.evaluate(params[0, 0].expand(len(rows), -1), actions)[0] for params in (old, new)]
    gap = (logps[0] - logps[1]).double()
    assert found[0, 0].item() == pytest.approx(gap.mean().item(), abs=5 * gap.std().item() / len(rows) ** 0.5)
    same = old.clone().requires_grad_()
    kl = distribution.kl(old, same)
    torch.testing.assert_close(kl, torch.zeros(3, 2))
    torch.testing.assert_close(torch.autograd.grad(kl.sum(), same)[0], torch.zeros_like(old))


def torch_kl(space: spaces.Space[Any], old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    pairs: list[tuple[Any, Any]]
    if isinstance(space, spaces.Box):
        (mean, log_std), (other, other_log_std) = old.chunk(2, -1), new.chunk(2, -1)
        normal = torch.distributions.Normal
        kl = torch.distributions.kl_divergence(normal(mean, log_std.exp()), normal(other, other_log_std.exp()))
        return kl.sum(-1)
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.ravel().tolist()
    choice = torch.distributions.Categorical
    pairs = [
        (choice(logits=p), choice(logits=q)) for p, q in zip(old.split(sizes, -1), new.split(sizes, -1), strict=True)
    ]
    return torch.stack([torch.distributions.kl_divergence(p, q) for p, q in pairs]).sum(0)


def test_samples_follow_the_probabilities_and_mode_is_the_likeliest() -> None:
    params = np.tile(np.log(np.array([0.1, 0.6, 0.3], np.float32)), (20_000, 1))
    distribution = build_distribution(spaces.Discrete(3))
    actions, _ = distribution.sample(params, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(actions) / len(actions), [0.1, 0.6, 0.3], atol=0.015)
    assert (distribution.mode(params)[0] == 1).all()
    gaussian = build_distribution(spaces.Box(-1.0, 1.0, (1,)))
    wide = np.tile(np.array([1.0, np.log(2.0)], np.float32), (20_000, 1))
    drawn, _ = gaussian.sample(wide, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(1.0, abs=0.05) and drawn.std() == pytest.approx(2.0, abs=0.05)
    assert (gaussian.mode(wide)[0] == 1.0).all()


def test_lstm_reset_equals_a_fresh_start() -> None:
    torch.manual_seed(0)
    core = LSTMCore(3, 5)
    x, first = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    first[4, 1] = True
    old = (torch.randn(2, 5), torch.randn(2, 5))
    hidden, cell = core(x, first, old)
    fresh, _ = core(x[4:, 1:], first[4:, 1:] & False, core.initial_state(1))
    torch.testing.assert_close(hidden[4:, 1:], fresh)
    straight, _ = core(x, first & False, old)
    torch.testing.assert_close(hidden[:, 0], straight[:, 0])
    reference = torch.nn.LSTM(3, 5)
    reference.load_state_dict({f"{name}_l0": value for name, value in core.cell.state_dict().items()})
    outputs, (_, last_cell) = reference(x, tuple(part[None] for part in old))
    torch.testing.assert_close(straight, outputs)
    torch.testing.assert_close(core(x, first & False, old)[1][-1], last_cell[0])
    assert not torch.allclose(cell[-1, 1], last_cell[0, 1])


def rollout(network: ActorCritic, actions: spaces.Space[Any], steps: int = 9) -> tuple[Inputs, Array, Array, State]:
    """Act step by step over episode starts; return inputs `[T, B]`, actions, log-probabilities and first state."""
    rng, batch = np.random.default_rng(3), 4
    runner = PolicyRunner(network, np.random.default_rng(5))
    shape = actions.shape or ()
    record = Inputs(
        rng.normal(size=(steps, batch, 3)).astype(np.float32),
        rng.random((steps, batch)) < 0.25,
        np.zeros((steps, batch, *shape), actions.dtype),
        rng.normal(size=(steps, batch)).astype(np.float32),
    )
    state = opening = tuple(rng.normal(size=part.shape).astype(np.float32) for part in runner.initial_state(batch))
    chosen, logps = [], []
    for t in range(steps):
        now = Inputs(*(getattr(record, name)[t] for name in ("obs", "first", "last_action", "last_reward")))
        acted = runner.act(now, state)
        if t + 1 < steps:
            record.last_action[t + 1] = acted.actions
        state = acted.state
        chosen.append(acted.actions)
        logps.append(acted.logp)
    return record, np.stack(chosen), np.stack(logps), opening


@pytest.mark.parametrize("lstm", [0, 8])
@pytest.mark.parametrize("name", ACTIONS)
def test_learner_reproduces_what_acting_computed(name: str, lstm: int) -> None:
    actions = ACTIONS[name]
    network = build(VECTOR, actions, lstm=lstm)
    inputs, chosen, logps, state = rollout(network, actions)
    output = network.forward(tensor_inputs(inputs), tuple(torch.from_numpy(part) for part in state))
    again, _ = network.distribution.evaluate(output.params, torch.from_numpy(chosen))
    np.testing.assert_allclose(again.detach(), logps, atol=1e-5)


@pytest.mark.parametrize("lstm", [0, 8])
def test_final_values_continue_the_ended_episode(lstm: int) -> None:
    network = build(VECTOR, lstm=lstm)
    inputs, chosen, _, state = rollout(network, ACTIONS["discrete"])
    tensors, opening = tensor_inputs(inputs), tuple(torch.from_numpy(part) for part in state)
    output = network.forward(tensors, opening)
    final_obs, reward = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, -3.0])
    times, environments = torch.tensor([2, 7]), torch.tensor([1, 3])
    last_action = torch.from_numpy(chosen)[times, environments]
    final = TensorInputs(final_obs[None], torch.zeros(1, 2, dtype=torch.bool), last_action[None], reward[None])
    values = final_values(network, output, final, (times, environments))
    for k, (t, b) in enumerate(zip(times.tolist(), environments.tolist(), strict=True)):
        # The same episode, alone and one step longer.
        longer = TensorInputs(
            torch.cat([tensors.obs[: t + 1, b], final_obs[k : k + 1]])[:, None],  # type: ignore[index]
            torch.cat([tensors.first[: t + 1, b], torch.tensor([False])])[:, None],
            torch.cat([tensors.last_action[: t + 1, b], last_action[k : k + 1]])[:, None],
            torch.cat([tensors.last_reward[: t + 1, b], reward[k : k + 1]])[:, None],
        )
        alone = network.forward(longer, tuple(part[b : b + 1] for part in opening)).values[-1, 0]
        torch.testing.assert_close(values[k], alone)


def test_recurrent_agent_reads_clipped_reward_and_last_action() -> None:
    network = build(VECTOR, lstm=8)
    obs = torch.zeros(1, 1, 3)

    def value(action: int, reward: float) -> float:
        rest = torch.zeros(1, 1, dtype=torch.bool), torch.tensor([[action]]), torch.tensor([[reward]])
        return network.forward(TensorInputs(obs, *rest), network.initial_state(1)).values.item()

    assert value(0, 1.0) == value(0, 50.0) != value(0, 0.3)
    assert value(0, 0.0) != value(1, 0.0)


def test_normalizer_matches_all_rows_seen() -> None:
    rng = np.random.default_rng(0)
    normalizer, seen = Normalizer(2), []
    assert torch.equal(normalizer(torch.tensor([[3.0, 50.0]])), torch.tensor([[3.0, 10.0]]))
    for size in (1, 7, 30):
        rows = rng.normal([5.0, -2.0], [0.1, 40.0], (size, 2)).astype(np.float32)
        normalizer.update(torch.from_numpy(rows))
        seen.append(rows.astype(np.float64))
    everything = np.concatenate(seen)
    np.testing.assert_allclose(normalizer.mean, everything.mean(0), rtol=1e-9)
    np.testing.assert_allclose(normalizer.var, everything.var(0), rtol=1e-9)
    out = normalizer(torch.from_numpy(everything.astype(np.float32)))
    np.testing.assert_allclose(out.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(out.std(0, correction=0), 1.0, rtol=1e-3)


def test_normalisation_travels_with_the_weights() -> None:
    space = spaces.Dict({"speed": VECTOR, "view": spaces.Box(0, 255, (7, 7, 3), np.uint8)})
    space.seed(0)
    learner = build(space, normalize_observations=True)
    other = build(space, normalize_observations=True)
    rows = stack(space, 10)
    learner.observe(map_tree(lambda leaf: torch.from_numpy(leaf)[None], rows))
    weights = export_weights(learner)
    assert sum("normalizer" in name for name in weights) == 3, "images are not normalised"
    runner = PolicyRunner(other, np.random.default_rng(0))
    inputs = blank_inputs(rows, ACTIONS["discrete"], 10)
    expected = PolicyRunner(learner, np.random.default_rng(0)).act(inputs, ())
    assert not np.array_equal(runner.act(inputs, ()).logp, expected.logp)
    runner = PolicyRunner(other, np.random.default_rng(0))
    runner.load(weights)
    np.testing.assert_array_equal(runner.act(inputs, ()).logp, expected.logp)


def test_load_copies_and_refuses_another_network() -> None:
    network, other = build(VECTOR), build(VECTOR)
    runner = PolicyRunner(network, np.random.default_rng(0))
    weights = export_weights(other)
    runner.load(weights)
    for value in weights.values():
        value += 1.0
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))
    with pytest.raises(ThespisError, match="shape"):
        runner.load(export_weights(build(VECTOR, hidden=(16, 8))))
    with pytest.raises(ThespisError, match="names"):
        runner.load(export_weights(build(VECTOR, hidden=(16,))))


def test_a_class_made_from_ours_acts_as_it_says_itself() -> None:
    """The numpy path is for stock networks only; this subclass computes something else."""

    class Stubborn(ActorCritic):
        def forward(self, inputs: TensorInputs, state: tuple[torch.Tensor, ...]) -> NetworkOutput:
            output = super().forward(inputs, state)
            return output._replace(params=torch.tensor([0.0, 0.0, 50.0, 0.0]).expand_as(output.params))

    network = init_network(lambda: Stubborn(VECTOR, ACTIONS["discrete"], config()), seed=1)
    acted = PolicyRunner(network, np.random.default_rng(0)).act(
        blank_inputs(stack(VECTOR, 64), ACTIONS["discrete"], 64), ()
    )
    assert (acted.actions == 2).all()


def test_acting_repeats_with_its_seed_and_touches_no_global_randomness() -> None:
    network = build(VECTOR)
    inputs = blank_inputs(stack(VECTOR, 5), ACTIONS["discrete"], 5)
    before = torch.get_rng_state()
    first, second = (PolicyRunner(network, np.random.default_rng(9)).act(inputs, ()) for _ in range(2))
    init_network(lambda: build(VECTOR), seed=3)
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(first.actions, second.actions)
    greedy = PolicyRunner(network, np.random.default_rng(9)).act(inputs, (), greedy=True)
    assert (greedy.logp >= first.logp).all()


def test_seed_decides_the_weights() -> None:
    weights = [
        export_weights(init_network(lambda: ActorCritic(VECTOR, ACTIONS["discrete"], config()), seed))["policy.weight"]
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], weights[2])
