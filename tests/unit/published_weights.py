"""Weights as a learner publishes them, and what an actor must have of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fakes import FakeContext
from gymnasium import spaces

from thespis.core.config import NetworkConfig
from thespis.core.context import Identity
from thespis.core.payloads import WeightLayout
from thespis.core.types import Array, Version, VersionedWeights
from thespis.networks.policies import ActorCritic
from thespis.networks.policy_runner import export_weights

LAYOUT = WeightLayout([("w", [3, 4]), ("b", [4])], ["seen"])


def context(kind: type[FakeContext] = FakeContext) -> FakeContext:
    return kind(Identity("weights", 0, run_seed=0))


def weights(update: int, rng: np.random.Generator, epoch: int = 0) -> VersionedWeights:
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in LAYOUT.rounded}
    return VersionedWeights(Version(epoch, update), {**values, "seen": np.array(update / 3.0), "value": np.ones(5)})


def expected(published: VersionedWeights) -> dict[str, Array]:
    """What an actor must have: rounded by torch, an implementation of its own."""
    rounded = {
        name: torch.from_numpy(published.weights[name]).to(torch.bfloat16).float().numpy() for name, _ in LAYOUT.rounded
    }
    return rounded | {name: published.weights[name] for name in LAYOUT.exact}


def assert_equal_bits(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert found[name].tobytes() == value.tobytes()


def actor_critic(lstm: int = 0) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), NetworkConfig(hidden=(8,), lstm=lstm))


def moved(network: Any, update: int, epoch: int = 0) -> VersionedWeights:
    rng = np.random.default_rng(update)
    values = {
        name: (value + rng.normal(scale=0.01, size=value.shape)).astype(value.dtype)
        for name, value in export_weights(network).items()
    }
    return VersionedWeights(Version(epoch, update), values)
