"""What a policy is given of its environments."""

from __future__ import annotations

import numpy as np

from thespis.core.types import Array, Inputs, Tree
from thespis.envs.autoreset import Environments, EnvStep
from thespis.envs.spaces import action_row


def first_inputs(obs: Tree, envs: Environments) -> Inputs:
    """What a policy is given at the first step: episodes open everywhere, and nothing led there."""
    batch = envs.num_envs
    no_action = np.repeat(action_row(envs.action_space)[None], batch, 0)
    return Inputs(obs, np.ones(batch, np.bool_), no_action, np.zeros(batch, np.float32))


def next_inputs(step: EnvStep, actions: Array) -> Inputs:
    """What a policy is given after a step; an episode that opens has no last action or reward."""
    if step.usual:
        return Inputs(step.obs, step.first, actions, step.rewards)
    keep = ~step.first
    shaped = keep.reshape(-1, *(1,) * (actions.ndim - 1))
    return Inputs(step.obs, step.first, actions * shaped, step.rewards * keep)
