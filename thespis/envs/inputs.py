"""Builds a policy's inputs from the results of environment steps."""

from __future__ import annotations

import numpy as np

from thespis.core.types import Array, Inputs, Tree
from thespis.envs.autoreset import Environments, EnvStep
from thespis.envs.spaces import action_row


def first_inputs(obs: Tree, envs: Environments) -> Inputs:
    """Return the inputs of the first step: every episode starts, and last action and reward are zero."""
    batch = envs.num_envs
    no_action = np.repeat(action_row(envs.action_space)[None], batch, 0)
    return Inputs(obs, np.ones(batch, np.bool_), no_action, np.zeros(batch, np.float32))


def next_inputs(step: EnvStep, actions: Array) -> Inputs:
    """Return the inputs after a step. Last action and reward are zero where an episode starts."""
    if step.mid_episode:
        return Inputs(step.obs, step.first, actions, step.rewards)
    keep = ~step.first
    shaped = keep.reshape(-1, *(1,) * (actions.ndim - 1))
    return Inputs(step.obs, step.first, actions * shaped, step.rewards * keep)
