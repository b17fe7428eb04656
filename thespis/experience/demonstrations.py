"""Demonstrations: whole episodes of an expert, on disk and as unrolls for a replay.

    DIR/episodes.safetensors   the columns below, all episodes one after the other
    DIR/about.json             {"format": "thespis demonstrations", "version": 1, "env": ..., "episodes": E, ...}
    DIR/manifest.json          size and SHA-256 of both, so that a truncated file is detected

    obs         [S + E, ...]   float, int or uint8; of a Dict observation, obs/KEY for each of its keys
    actions     [S, ...]       in the environment's action space
    rewards     [S]            float32, unshaped
    lengths     [E]            int64, steps of each episode: S in all
    terminated  [E]            bool; an episode that did not terminate was truncated

An episode of T steps has T + 1 observations: no action follows the last one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from thespis.core.errors import ThespisError
from thespis.core.system.commit import CorruptCheckpoint, commit_directory, stage, to_json, verify
from thespis.core.system.files import read_bytes
from thespis.core.types import NO_VERSION, Array, Inputs, Tree, Unroll, map_tree
from thespis.envs.spaces import AnySpace, Spaces, leaves, policy_actions

_FORMAT, _VERSION = "thespis demonstrations", 1
_EPISODES, _ABOUT = "episodes.safetensors", "about.json"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode of T steps. `obs`: `[T + 1, ...]`. `actions`: `[T, ...]`, in the environment's action space.

    `rewards`: float32 `[T]`, unshaped. `terminated`: whether it terminated; if not, it was truncated.
    """

    obs: Tree
    actions: Array
    rewards: Array
    terminated: bool

    def __len__(self) -> int:
        return len(self.rewards)


# -- on disk ------------------------------------------------------------------------------------------


def save_demonstrations(path: Path, episodes: list[Demonstration], about: Mapping[str, Any]) -> None:
    """Write a new directory atomically. `about`: further entries of about.json."""
    if path.exists():
        raise ThespisError(f"{path} already exists; give a new directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = stage(path.parent)
    try:
        save_file(_columns(episodes), staging / _EPISODES)
        entries = {"format": _FORMAT, "version": _VERSION, "episodes": len(episodes), "steps": sum(map(len, episodes))}
        (staging / _ABOUT).write_bytes(to_json({**entries, **about}))
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    commit_directory(staging, path)


def load_demonstrations(path: Path) -> list[Demonstration]:
    """Load a directory that `save_demonstrations` wrote, after verifying its digests."""
    if not path.is_dir():
        raise ThespisError(f"{path} holds no demonstrations; `thespis record` writes some")
    try:
        verify(path, (_ABOUT, _EPISODES))
        about = json.loads(read_bytes(path / _ABOUT, follow=False))
        if (about["format"], about["version"]) != (_FORMAT, _VERSION):
            raise ThespisError(f"{path} holds {about['format']} {about['version']}, not {_FORMAT} {_VERSION}")
        return _episodes(path, load_file(path / _EPISODES))
    except CorruptCheckpoint as error:
        raise ThespisError(f"demonstrations: {error.what}; record them again") from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ThespisError(f"the demonstrations in {path} cannot be read: {error}; record them again") from error


def _columns(episodes: list[Demonstration]) -> dict[str, Array]:
    columns = {
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "rewards": np.concatenate([episode.rewards for episode in episodes]),
        "lengths": np.array([len(episode) for episode in episodes], np.int64),
        "terminated": np.array([episode.terminated for episode in episodes], np.bool_),
    }
    obs: Tree = map_tree(lambda *leaves: np.concatenate(leaves), *(episode.obs for episode in episodes))
    return columns | ({f"obs/{key}": leaf for key, leaf in obs.items()} if isinstance(obs, dict) else {"obs": obs})


def _episodes(path: Path, columns: dict[str, Array]) -> list[Demonstration]:
    seen = {name.removeprefix("obs/"): column for name, column in columns.items() if name.startswith("obs")}
    missing = [name for name in ("actions", "rewards", "lengths", "terminated") if name not in columns]
    if missing or not seen:
        raise ThespisError(f"demonstrations {path}: {(missing or ['obs'])[0]!r} is missing; record them again")
    obs: Tree = seen["obs"] if "obs" in columns else seen
    lengths, ends = columns["lengths"], np.cumsum(columns["lengths"])
    steps, number = int(lengths.sum()), len(lengths)
    rows = [len(columns["actions"]), len(columns["rewards"]), len(columns["terminated"]), *map(len, seen.values())]
    if rows != [steps, steps, number, *(steps + number for _ in seen)] or (lengths < 1).any():
        raise ThespisError(f"demonstrations {path}: the columns do not match the lengths of the episodes")
    made = []
    for index, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        part, first = slice(end - length, end), end - length + index
        observations: Tree = map_tree(lambda leaf, first=first, length=length: leaf[first : first + length + 1], obs)
        terminated = bool(columns["terminated"][index])
        made.append(Demonstration(observations, columns["actions"][part], columns["rewards"][part], terminated))
    return made


# -- against the spaces of an environment ---------------------------------------------------------------


def fitted(episodes: list[Demonstration], spaces: Spaces, source: str) -> list[Demonstration]:
    """Cast episodes to the dtypes of `spaces`; refuses another environment's episodes and non-finite numbers."""
    made = []
    for number, episode in enumerate(episodes):
        try:
            made.append(_fit(episode, spaces))
        except ValueError as error:
            raise ThespisError(
                f"demonstrations {source}, episode {number}: {error}; give demonstrations of the environment"
            ) from error
    if not made:
        raise ThespisError(f"demonstrations {source}: there are no episodes")
    return made


def _fit(episode: Demonstration, spaces: Spaces) -> Demonstration:
    rewards = np.asarray(episode.rewards)
    if rewards.ndim != 1 or not len(rewards) or rewards.dtype.kind not in "fiub" or not np.isfinite(rewards).all():
        raise ValueError(f"the rewards must be finite numbers of shape [T], not {rewards.dtype} {rewards.shape}")
    obs = _fit_observations(episode.obs, len(rewards) + 1, spaces.observation_space)
    actions = _fit_actions(np.asarray(episode.actions), len(rewards), spaces.action_space)
    return Demonstration(obs, actions, rewards.astype(np.float32), bool(episode.terminated))


def _fit_observations(obs: Tree, rows: int, space: AnySpace) -> Tree:
    wanted = leaves(space)
    if isinstance(obs, dict) != (wanted[0].key is not None):
        raise ValueError(f"the observations are {'' if isinstance(obs, dict) else 'not '}a Dict, unlike {space}")
    if isinstance(obs, dict) and obs.keys() != {leaf.key for leaf in wanted}:
        raise ValueError(f"the observations hold {', '.join(sorted(obs))}, the space is {space}")
    made = {}
    for leaf in wanted:
        found = leaf.cast(obs[str(leaf.key)] if isinstance(obs, dict) else obs)
        if found.shape != (rows, *leaf.shape):
            raise ValueError(f"{leaf.name} has shape {found.shape}, {rows - 1} steps need {(rows, *leaf.shape)}")
        if leaf.dtype.kind == "f" and not np.isfinite(found).all():
            raise ValueError(f"{leaf.name} holds {found[~np.isfinite(found)][0]}")
        made[str(leaf.key)] = found
    return made if isinstance(obs, dict) else made["None"]


def _fit_actions(actions: Array, steps: int, space: AnySpace) -> Array:
    if actions.shape != (steps, *(space.shape or ())):
        raise ValueError(f"the actions have shape {actions.shape}, {steps} steps need {(steps, *(space.shape or ()))}")
    if isinstance(space, Box):
        low, high = space.low, space.high
    elif isinstance(space, Discrete | MultiDiscrete):
        low, high = space.start, space.start + (space.n if isinstance(space, Discrete) else space.nvec) - 1
    else:
        raise ValueError(f"actions of {space} are not supported")
    if not np.can_cast(actions.dtype, space.dtype or np.int64, "same_kind"):
        raise ValueError(f"the actions are {actions.dtype}, the space has {space.dtype}")
    outside = ~((actions >= low) & (actions <= high))  # so that NaN is outside
    if outside.any():
        raise ValueError(f"action {actions[outside][0]} is not in {space}")
    return actions.astype(space.dtype)


# -- as unrolls ------------------------------------------------------------------------------------------


def unrolls(episode: Demonstration, length: int, space: AnySpace) -> Iterator[Unroll]:
    """Split an episode into unrolls of `length` steps, the last one shorter, of one environment and without a state.

    `space`: the environment's action space. Unrolls hold the policy's actions.
    """
    actions = policy_actions(space)(episode.actions)[:, None]
    rewards, steps = episode.rewards[:, None], len(episode)
    last_action = np.concatenate([np.zeros_like(actions[:1]), actions])
    last_reward = np.concatenate([np.zeros_like(rewards[:1]), rewards])
    first, ended = np.zeros((2, steps + 1, 1), np.bool_)
    first[0] = ended[steps - 1] = True
    for start in range(0, steps, length):
        end = min(start + length, steps)
        seen, done = slice(start, end + 1), slice(start, end)
        obs: Tree = map_tree(lambda leaf, seen=seen: leaf[seen, None], episode.obs)
        yield Unroll(
            inputs=Inputs(obs, first[seen], last_action[seen], last_reward[seen]),
            actions=actions[done],
            rewards=rewards[done],
            terminated=ended[done] & episode.terminated,
            truncated=ended[done] & (not episode.terminated),
            valid=np.ones((end - start, 1), np.bool_),
            behaviour_logp=np.zeros((end - start, 1), np.float32),
            state=(),
            versions=np.full((end - start, 1), NO_VERSION, np.int64),
            final_index=np.empty((0, 2), np.int64),
            final_obs=map_tree(lambda leaf: leaf[:0, 0], obs),
        )
