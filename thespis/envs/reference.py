"""Observations of random play, determined by a seed. Virtual batch normalisation takes its statistics from them."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

from thespis.core.types import Array, Tree, map_tree
from thespis.envs.autoreset import Environments

_STEPS_BETWEEN = 8
"""Steps between the kept observations: consecutive frames are nearly equal."""


def reference_batch(envs: Environments, seed: int, rows: int = 128) -> Tree:
    """Return at least `rows` observations `[N, ...]`; they depend on the seed and the number of environments only."""
    rng = np.random.default_rng(seed)
    obs = envs.reset(seed)
    kept = [map_tree(np.copy, obs)]
    while len(kept) * envs.num_envs < rows:
        for _ in range(_STEPS_BETWEEN):
            obs = envs.step(_random_actions(envs, rng)).obs
        kept.append(map_tree(np.copy, obs))
    batch: Tree = map_tree(lambda *leaves: np.concatenate(leaves), *kept)
    return batch


def _random_actions(envs: Environments, rng: np.random.Generator) -> Array:
    space, number = envs.action_space, envs.num_envs
    if isinstance(space, Discrete):
        return rng.integers(0, int(space.n), number)
    if isinstance(space, MultiDiscrete):
        return rng.integers(0, space.nvec, (number, *space.shape))
    return rng.uniform(-1.0, 1.0, (number, *(space.shape or ()))).astype(np.float32)
