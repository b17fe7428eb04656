"""Sources of demonstrations: a trained policy, a scripted policy, a directory, or a Minari dataset."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, Tree, map_tree
from thespis.core.user_code import Spec, locate, resolve
from thespis.envs.autoreset import Environments
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.envs.make import EnvLike, make_envs
from thespis.envs.spaces import Spaces, env_actions, policy_actions
from thespis.experience.demonstrations import Demonstration, fitted, load_demonstrations

if TYPE_CHECKING:
    from thespis.networks.policy_runner import PolicyRunner

ActFunction = Callable[[Inputs], Array]
"""Returns a policy's actions, `[1, ...]` in the policy's units, for inputs `[1]`."""
_LONGEST = 1_000_000
"""Steps after which an episode counts as endless."""


def gather(source: Spec, env: EnvLike | EnvConfig, episodes: int, seed: int) -> list[Demonstration]:
    """Collect up to `episodes` demonstrations in `env`, checked against its spaces.

    `source`: a directory that `thespis record` wrote, `minari:NAME` of a dataset on this machine, or a scripted policy
    (`file.py::function`, `module::function`, or the function), which plays that many episodes from `seed` on.
    """
    envs = make_envs(env, 1)
    try:
        spaces, name = Spaces(envs.observation_space, envs.action_space), source
        if callable(source) or "::" in source:
            name = locate(source) if callable(source) else source
            found = record(envs, scripted_policy(resolve(source), envs, name), episodes, seed)
        elif source.startswith("minari:"):
            found = from_minari(source.removeprefix("minari:"), episodes)
        else:
            found = load_demonstrations(Path(source))[:episodes]
    finally:
        envs.close()
    return fitted(found, spaces, str(name))


def record(
    envs: Environments, act: ActFunction, episodes: int, seed: int, longest: int | None = None
) -> list[Demonstration]:
    """Play whole episodes in one environment. Episodes of `longest` steps are truncated."""
    policy_actions(envs.action_space)  # refuses unsupported spaces
    to_env = env_actions(envs.action_space)
    made: list[Demonstration] = []
    inputs = first_inputs(envs.reset(seed), envs)
    seen, done, rewards = [_row(inputs.obs)], [], []
    over = False
    while len(made) < episodes:
        if not over or inputs.first[0]:  # else this step is a reset and ignores the action
            actions = act(inputs)
        step = envs.step(actions)
        over = bool(step.terminated[0] or step.truncated[0])
        if step.valid[0]:
            seen.append(_row(step.final_obs if over and step.final_obs is not None else step.obs))
            done.append(to_env(actions)[0])
            rewards.append(step.rewards[0])
        cut = not over and longest is not None and len(done) >= longest
        if over or cut:
            obs = map_tree(lambda *rows: np.stack(rows), *seen)
            made.append(Demonstration(obs, np.stack(done), np.stack(rewards), bool(step.terminated[0])))
        inputs = next_inputs(step, actions) if not cut else first_inputs(envs.reset(seed + len(made)), envs)
        if inputs.first[0]:
            seen, done, rewards = [_row(inputs.obs)], [], []
        if len(done) > _LONGEST:
            raise ThespisError(f"an episode has not ended after {_LONGEST:,} steps; give the environment a time limit")
    return made


def trained_policy(runner: PolicyRunner, greedy: bool) -> ActFunction:
    """Return a function that acts with a trained policy and keeps its recurrent state."""
    state = runner.initial_state(1)

    def act(inputs: Inputs) -> Array:
        nonlocal state
        acted = runner.act(inputs, state, greedy)
        state = acted.state
        return acted.actions

    return act


def scripted_policy(function: Any, envs: Environments, name: str) -> ActFunction:
    """Return a function that acts with a script. `function()` starts an episode and returns its `act(obs)`."""
    to_policy, space = policy_actions(envs.action_space), envs.action_space
    opened: Any = None

    def act(inputs: Inputs) -> Array:
        nonlocal opened
        try:
            if inputs.first[0]:
                opened = function()
            action = np.asarray(opened(_row(inputs.obs)), space.dtype)
        except Exception as error:
            raise ThespisError(f"the scripted policy {name} raised {type(error).__name__}: {error}") from error
        if not space.contains(action if action.ndim else action.item()):
            raise ThespisError(f"the scripted policy {name} returned {action}, which is not in {space}")
        return to_policy(action[None])

    return act


def from_minari(name: str, episodes: int) -> list[Demonstration]:
    """Load the first episodes of a Minari dataset on this machine; downloads nothing."""
    if importlib.util.find_spec("minari") is None:
        raise ThespisError("Minari is not installed; install it with: pip install 'thespis[demos]'")
    import minari

    try:
        dataset = minari.load_dataset(name, download=False)
        return [_from_minari(episode) for episode in islice(dataset.iterate_episodes(), episodes)]
    except Exception as error:
        raise ThespisError(
            f"Minari dataset {name!r} cannot be read: {error}; `minari list local` lists the available ones"
        ) from error


def _from_minari(episode: Any) -> Demonstration:
    # A Minari episode may stop where collecting stopped; learning treats that as a truncation.
    obs = map_tree(np.asarray, episode.observations)
    return Demonstration(obs, np.asarray(episode.actions), np.asarray(episode.rewards), bool(episode.terminations[-1]))


def _row(tree: Tree) -> Tree:
    row: Tree = map_tree(lambda leaf: leaf[0].copy(), tree)
    return row
