"""The arithmetic of evolution strategies: ranks, weights, estimator, noise, members, statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from thespis.algorithms.es import ES, ARSConfig, StepConfig
from thespis.algorithms.updates.evolution import (
    Evolution,
    Generation,
    centred_ranks,
    check_table,
    fill_noise,
    rank_weights,
    top_weights,
)
from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs
from thespis.envs.make import describe_env, make_envs
from thespis.envs.reference import reference_batch
from thespis.envs.spaces import Spaces
from thespis.exchange.noise import NoiseTable, find_noise
from thespis.networks.batched import BatchedMLP, reads_vectors
from thespis.networks.build import build_network
from thespis.networks.configs import ESNetworkConfig
from thespis.networks.es_policy import BatchedTorchPolicy, ESNetwork, ESPolicy, VirtualBatchNorm
from thespis.networks.policies import PolicyNetwork
from thespis.networks.policy_runner import PolicyRunner
from thespis.networks.running_moments import Moments, merge

PAIRS = np.array([(10, 3), (7, 50), (-2, 5)], np.float32)


PLAIN = ES(pairs=3, noise=0.1, optimizer=StepConfig(kind="sgd", learning_rate=1.0, weight_decay=0.0))
"""Plain gradient ascent, so that the parameters show the applied step."""


def network(cfg: ESNetworkConfig, spaces: Spaces, seed: int) -> PolicyNetwork:
    return ES(network=cfg).build_network(spaces, seed)


def noise_rows(evolution: Evolution, algorithm: ES) -> Array:
    """Return the directions of the current generation, `[pairs, n]`, as a worker computes them."""
    members = np.empty((2 * algorithm.directions, len(evolution.values)), np.float32)
    evolution.perturb(range(algorithm.directions), members)
    plus, minus = members[: algorithm.directions], members[algorithm.directions :]
    np.testing.assert_allclose(plus + minus, np.broadcast_to(2 * evolution.values, plus.shape), atol=1e-6)
    return (plus - minus) / (2 * algorithm.deviation)


def test_ranks_are_over_all_returns_and_centred() -> None:
    np.testing.assert_allclose(centred_ranks(PAIRS), [(0.3, -0.3), (0.1, 0.5), (-0.5, -0.1)])


def test_equal_returns_share_a_rank_so_they_pull_nowhere() -> None:
    ranks = centred_ranks(np.array([(5, 5), (9, 5), (1, 9)], np.float32))
    np.testing.assert_allclose(ranks, [(-0.1, -0.1), (0.4, -0.1), (-0.5, 0.4)])
    assert not rank_weights(np.full((4, 2), 500, np.float32)).any()


def test_the_gradient_of_the_reference_vector() -> None:
    noise = np.array([(1, 0), (0, 1), (1, 1)])
    np.testing.assert_allclose(rank_weights(PAIRS) @ noise, [1 / 30, -2 / 15], rtol=1e-6)


def test_a_step_is_the_weighted_sum_of_the_noise_less_the_decay() -> None:
    algorithm = replace(PLAIN, optimizer=StepConfig(kind="sgd", learning_rate=0.5, weight_decay=0.1))
    table = np.empty(64, np.float32)
    fill_noise(table, seed=3)
    evolution = Evolution(algorithm, 0, np.array([1.0, -2.0], np.float32), table)
    rows = noise_rows(evolution, algorithm)
    evolution.apply(Generation(0, PAIRS, 0))
    start = np.array([1.0, -2.0])
    np.testing.assert_allclose(evolution.values, start + 0.5 * (rank_weights(PAIRS) @ rows - 0.1 * start), atol=1e-6)
    assert evolution.generation == 1
    assert not np.allclose(noise_rows(evolution, algorithm), rows), "every generation has its own noise"


def test_the_estimator_finds_the_gradient_of_a_linear_function() -> None:
    """For returns c·θ + 7, the mean of (F+ − F−) ε / 2σ is c, and the offset cancels in every pair."""
    algorithm = replace(PLAIN, pairs=20_000)
    table = np.empty(1 << 18, np.float32)
    fill_noise(table, seed=1)
    evolution = Evolution(algorithm, 0, np.zeros(3, np.float32), table)
    rows = noise_rows(evolution, algorithm).astype(np.float64)
    slope = np.array([1.0, -2.0, 0.5])
    plus, minus = 7 + algorithm.deviation * rows @ slope, 7 - algorithm.deviation * rows @ slope
    estimate = ((plus - minus) @ rows) / (2 * algorithm.deviation * len(rows))
    np.testing.assert_allclose(estimate, slope, atol=0.05)
    evolution.apply(Generation(0, np.stack([plus, minus], 1).astype(np.float32), 0))
    cosine = evolution.values @ slope / np.linalg.norm(evolution.values) / np.linalg.norm(slope)
    assert cosine > 0.999, "ranks keep the direction"


def test_ars_takes_the_best_pairs_in_units_of_their_deviation() -> None:
    weights = top_weights(PAIRS, top=2)
    spread = np.std([10, 3, 7, 50])
    np.testing.assert_allclose(weights, [7 / (2 * spread), -43 / (2 * spread), 0.0])
    assert not top_weights(np.full((3, 2), 4, np.float32), top=3).any()


def test_ars_has_a_linear_network_and_settings_of_its_own() -> None:
    algorithm = ES(variant="ars", ars=ARSConfig(pairs=6, top=2, noise=0.4, step_size=0.3, survival_bonus=1.0))
    assert (algorithm.directions, algorithm.deviation, algorithm.top, algorithm.survival_bonus) == (6, 0.4, 2, 1.0)
    assert (algorithm.step.kind, algorithm.step.learning_rate, algorithm.step.weight_decay) == ("sgd", 0.3, 0.0)
    made: Any = algorithm.build_network(Spaces(Box(-1, 1, (3,), np.float32), Discrete(2)), seed=0)
    assert made.policy.weight.shape == (2, 3) and made.encoder.normalizes
    plain = replace(algorithm, variant="es")
    assert (plain.directions, plain.deviation, plain.top, plain.survival_bonus) == (32, 0.05, None, 0.0)


def test_equal_returns_give_equal_parameters() -> None:
    algorithm = ES(pairs=4, noise=0.1, optimizer=StepConfig(anneal=True))
    table = NoiseTable(1000, seed=5)
    there = find_noise(table.address, seed=5)
    elsewhere = find_noise(table.address._replace(name="thespis-0"), seed=5)
    np.testing.assert_array_equal(there, elsewhere)
    there[0] += 1.0
    assert table.values[0] == there[0] != elsewhere[0], "one block of memory on a machine, an own table elsewhere"
    there[0] = elsewhere[0]
    rng, copies = np.random.default_rng(0), [np.ones(30, np.float32) for _ in range(3)]
    one, two = Evolution(algorithm, 0, copies[0], table.values), Evolution(algorithm, 0, copies[1], elsewhere)
    for generation in range(5):
        result = Generation(generation, rng.normal(size=(4, 2)).astype(np.float32), 0.1 * generation)
        one.apply(result)
        two.apply(result)
        assert one.digest() == two.digest()
    late = Evolution(algorithm, 0, copies[2], there)
    late.adopt(one.generation, one.values, one.slots)
    for each in (one, late):
        each.apply(Generation(5, np.arange(8, dtype=np.float32).reshape(4, 2), 0.5))
    assert one.digest() == late.digest() != two.digest()
    table.close()


def test_a_table_that_is_too_short() -> None:
    with pytest.raises(ThespisError, match="--noise-table is 100 but the network has 51 parameters"):
        check_table(100, 51)
    check_table(102, 51)


SPACES: list[tuple[Any, Any]] = [
    (Box(-1, 1, (5,), np.float32), Discrete(3)),
    (Box(-1, 1, (2, 3), np.float32), Box(-2, 2, (4,), np.float32)),
    (Box(0, 255, (6,), np.uint8), MultiDiscrete([3, 2])),
]


@pytest.mark.parametrize("cfg", [ESNetworkConfig(hidden=(7,), normalize_observations=True),
                                 ESNetworkConfig(hidden=(6, 5), activation="relu"),
                                 ESNetworkConfig(hidden=())], ids=["normalised", "relu", "linear"])  # fmt: skip
@pytest.mark.parametrize("spaces", SPACES, ids=["discrete", "box", "bytes"])
def test_members_side_by_side_act_as_each_would_alone(spaces: Any, cfg: ESNetworkConfig) -> None:
    """Compare with the network that is evaluated and saved."""
    seen = Spaces(*spaces)
    rng = np.random.default_rng(0)
    members = BatchedMLP(6, seen, cfg)
    members.parameters[:] = rng.normal(size=members.parameters.shape)
    size = int(np.prod(seen.observation_space.shape or ()))
    moments = Moments(9, rng.normal(size=size), rng.uniform(0.5, 2, size=size)) if cfg.normalize_observations else None
    members.begin(moments)
    obs = np.stack([seen.observation_space.sample() for _ in range(6)])
    actions = members.act(obs)
    policy = ESPolicy(network(cfg, seen, seed=0), None)
    assert len(policy.values) == members.parameters.shape[1]
    for row in range(6):
        policy.values[:] = members.parameters[row]
        made = network(cfg, seen, seed=1)
        runner = PolicyRunner(made, rng)
        runner.load(policy.weights(moments))
        alone = runner.act(one_input(obs[row : row + 1]), (), greedy=True).actions[0]
        np.testing.assert_allclose(actions[row], alone, atol=1e-4)


def one_input(obs: Array) -> Inputs:
    return Inputs(obs, np.zeros(1, np.bool_), np.zeros(1, np.int64), np.zeros(1, np.float32))


def test_an_untrained_policy_is_indifferent() -> None:
    made: Any = network(ESNetworkConfig(), Spaces(Box(-1, 1, (3,), np.float32), Discrete(2)), seed=0)
    assert not made.policy.weight.any() and made.encoder.torsos[0].mlp.layers[0].weight.any()
    assert {name.split(".")[0] for name in made.state_dict()} == {"encoder", "policy"}, "no value head to perturb"


IMAGE = Spaces(Box(0, 255, (40, 40, 3), np.uint8), Discrete(3))


def test_virtual_batch_normalisation_makes_perturbed_images_networks_see() -> None:
    cfg = ESNetworkConfig(torso="nature")
    assert not reads_vectors(IMAGE.observation_space, cfg)
    rng = np.random.default_rng(0)
    reference = rng.integers(0, 255, (16, 40, 40, 3), np.uint8)
    members = BatchedTorchPolicy(2, lambda: network(cfg, IMAGE, seed=0), reference)
    members.parameters[:] = rng.normal(scale=0.05, size=members.parameters.shape)
    members.begin(None)
    found = [[part for part in net.modules() if isinstance(part, VirtualBatchNorm)]  # type: ignore[attr-defined]
             for net in members._networks]  # fmt: skip
    assert len(found[0]) == 3, "one after each convolution"
    assert not torch.equal(found[0][0].mean, found[1][0].mean), "each member has its own statistics"
    before = found[0][0].mean.clone()
    obs = rng.integers(0, 255, (2, 40, 40, 3), np.uint8)
    actions = members.act(obs)
    assert actions.shape == (2,) and torch.equal(found[0][0].mean, before), "acting does not change them"
    policy = ESPolicy(network(cfg, IMAGE, seed=0), reference)
    policy.values[:] = members.parameters[1]
    runner = PolicyRunner(network(cfg, IMAGE, seed=3), rng)
    runner.load(policy.weights(None))
    assert runner.act(one_input(obs[1:]), (), greedy=True).actions[0] == actions[1], "the saved policy acts the same"
    plain: Any = network(replace(cfg, virtual_batch_norm=False), IMAGE, seed=0)
    assert not any("mean" in name for name in plain.state_dict())


def test_the_reference_batch_follows_from_the_seed() -> None:
    batches = []
    for seed in (4, 4, 5):
        envs = make_envs("CartPole-v1", 8)
        batches.append(reference_batch(envs, seed, rows=30))
        envs.close()
    assert isinstance(batches[0], np.ndarray) and batches[0].shape == (32, 4)
    np.testing.assert_array_equal(batches[0], batches[1])
    assert not np.array_equal(batches[0], batches[2])


def test_statistics_merge_as_if_all_rows_had_been_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(loc=1000.0, scale=scale, size=(rows, 3)) for scale, rows in ((1, 5), (10, 1), (0.1, 200))]
    merged = merge([Moments.empty(3), *map(Moments.of, parts)])
    rows = np.concatenate(parts)
    assert merged.number == 206
    np.testing.assert_allclose(merged.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(merged.var, rows.var(0), rtol=1e-9)
    again = merge([Moments.empty(3), *map(Moments.of, parts)])
    np.testing.assert_array_equal(merged.var, again.var)
    scaled = merged.scale(parts[0])
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, (parts[0] - rows.mean(0)) / rows.std(0), rtol=1e-5)
    assert float(Moments.empty(1).scale(np.array([[1e9]]))[0, 0]) == 10.0


def test_recurrent_networks_are_refused() -> None:
    with pytest.raises(ThespisError, match="--network.lstm must stay 0"):
        ES(network=ESNetworkConfig(lstm=4))
    spaces, settings = describe_env("CartPole-v1"), ESNetworkConfig(lstm=4)
    with pytest.raises(ThespisError, match="leave the recurrent part out"):
        ESPolicy(build_network(ESNetwork, settings, spaces, seed=0), None)
