"""One canonical step for every vector environment. No other module depends on Gymnasium's autoreset modes.

Action a2 ends an episode with observation F, and the next episode starts with N. The three modes return:

    next step:   a2 -> F, done    then any action -> N (a row that is no transition)
    same step:   a2 -> N, done    and F in info["final_obs"]
    disabled:    a2 -> F, done    and a masked reset -> N, which `Environments.step` calls at once
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from thespis.core.errors import FOREIGN_ERRORS, EnvError, ThespisError, describe_error
from thespis.core.types import Array, Episode, Tree, map_tree
from thespis.core.watchdog import watch_env
from thespis.envs.infos import SUCCESS, numbers
from thespis.envs.spaces import Leaf, env_actions, leaves, limits, observation_space
from thespis.envs.sync import SEED_LIMIT, SyncVector

_BOOL, _FLOAT = np.dtype(np.bool_), np.dtype(np.float32)
_LARGEST = np.array(np.finfo(np.float32).max, np.float64)  # faster to compare with than a Python number
"""Rewards beyond it are infinite as float32."""
_MOST = float(_LARGEST)
_FEW = 16
"""Up to this many numbers, a Python loop is faster than numpy, above all after a wait with cold caches."""


@dataclass(slots=True)
class EnvStep:
    """The result of one step of B environments. The next step overwrites the arrays, so copy what you keep.

    `obs`: `[B, ...]`, the next input of the policy. `rewards`: float32 `[B]`. `terminated`, `truncated`: bool `[B]`.
    `valid`: bool `[B]`, false where the action was ignored because the environment was reset or is parked.
    `first`: bool `[B]`, true where `obs` starts an episode.
    `final_obs`: `[B, ...]`, the last observation where an episode ended; None if `obs` itself holds it.
    `episodes`: the episodes that ended in this step, with the environment's own rewards.
    `mid_episode`: no episode ended or opened and every row is a transition, as in nearly all steps; the flags then need
    no reading.
    """

    obs: Tree
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    first: Array
    final_obs: Tree | None
    episodes: list[Episode]
    mid_episode: bool = False

    @property
    def env_steps(self) -> int:
        """The number of environment steps taken; an ignored action is none."""
        return len(self.valid) if self.mid_episode else int(np.count_nonzero(self.valid))


class Environments:
    """B environments behind one step. Every result is checked before it is returned.

    `observation_space` and `action_space` are the spaces of one environment as a policy sees them: floats are float32,
    discrete actions count from 0, and continuous actions are in [-1, 1] (see `env_actions`). An invalid result raises
    EnvError. The environments are then in an unknown state and must be reset or rebuilt.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        mode = vector.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ThespisError(f"{vector} does not declare its autoreset mode; set metadata['autoreset_mode']")
        self.num_envs = vector.num_envs
        self.observation_space = observation_space(vector.single_observation_space)
        self.action_space = vector.single_action_space
        self._env_actions = env_actions(self.action_space)
        self._vector, self._mode = vector, mode
        self._leaves = leaves(self.observation_space)
        self._limits = limits(self.observation_space)
        self._only = self._leaves[0] if self._leaves[0].key is None else None
        self._row = (self.num_envs,)
        self._shapes = [(self.num_envs, *leaf.shape) for leaf in self._leaves]
        self._seed, self._resets = 0, 0
        self._tracked: tuple[str, ...] = (SUCCESS,)
        self._clear()

    def track(self, names: Iterable[str]) -> None:
        """Add these numbers of the last step's `info` to each `Episode`, next to `is_success`."""
        self._tracked = tuple(dict.fromkeys((SUCCESS, *names)))

    def _clear(self) -> None:
        self._episodes = [0] * self.num_envs
        self._now = 0  # steps since the reset; an episode's length is the difference to its start in `_began`
        self._began = [0] * self.num_envs
        self._returns = np.zeros(self.num_envs, np.float64)
        self._never = np.zeros(self.num_envs, np.bool_)
        self._always = np.ones(self.num_envs, np.bool_)
        self._over = self._never.copy()  # episodes that the previous step ended
        self._any_over = False
        self._playing: Array | None = None  # environments that are not parked; None if none is parked

    def reset(self, seed: int) -> Tree:
        """Start episode 0 in every environment; equal seeds and actions give equal results."""
        self._clear()
        limit = SEED_LIMIT - self.num_envs  # vectors add the environment's index
        self._seed, self._resets = int(np.random.SeedSequence(seed).generate_state(1)[0]) % limit, 0
        self._now = -1  # so that an error names step 0
        obs = self._observations(self._reset_vector(None), self._never)
        self._now = 0
        return obs

    def step(self, actions: Array) -> EnvStep:
        """Step every environment. `actions`: `[B, ...]`, in the policy's units."""
        try:
            obs, raw, terminated, truncated, info = self._vector.step(self._env_actions(actions))
        except EnvError:
            raise
        except FOREIGN_ERRORS as error:
            raise _vector_error(f"step raised {describe_error(error)}") from error
        self._check_flags(terminated, truncated)
        any_over = _any(terminated) or _any(truncated)
        mid_episode = not (any_over or self._any_over)
        over: Array = terminated | truncated if any_over else self._never
        final: Tree | None = None
        if self._mode is AutoresetMode.NEXT_STEP:
            first, valid = self._over, self._always
            if self._any_over:
                valid = ~first
                raw = raw * valid
                if any_over and _any(over & first):
                    raise self._error(over & first, "the episode ended at its reset")
            obs = self._observations(obs, self._never)
            self._over, self._any_over = over, any_over
        else:
            first, valid = over, self._always
            if any_over:
                obs, final = self._reopen(obs, over, info)
            else:
                obs = self._observations(obs, self._never)
        if self._playing is not None:
            first, valid, mid_episode = first & self._playing, valid & self._playing, False
        rewards = self._check_rewards(raw)
        self._returns += raw
        self._now += 1
        episodes = self._finish(over, info) if any_over else []
        return EnvStep(obs, rewards, terminated, truncated, valid, first, final, episodes, mid_episode)

    def park(self, rows: Array) -> int:
        """Do not step the environments in `rows`, bool `[B]`, until the next reset; return the number still stepped.

        A native vector cannot park: it keeps stepping all its environments.
        """
        if not isinstance(self._vector, SyncVector):
            return self.num_envs
        self._vector.park(rows)
        self._playing = ~rows
        return self.num_envs - int(np.count_nonzero(rows))

    def render(self) -> Array:
        """Return the frame of environment 0, uint8 `[H, W, 3]`; it must be made with `render_mode="rgb_array"`."""
        try:
            frames: Any = self._vector.render()
        except NotImplementedError:
            frames = None
        except gym.error.DependencyNotInstalled as error:
            raise ThespisError(" ".join(str(error).split())) from error
        if not frames or frames[0] is None:
            raise ThespisError("this environment renders no frames; choose one that supports render_mode='rgb_array'")
        return np.asarray(frames[0])

    @property
    def render_fps(self) -> int:
        """Frames per second of real time, from the environment's metadata, or 30."""
        return int(self._vector.metadata.get("render_fps") or 30)

    def close(self) -> None:
        """Close every environment; a second call does nothing."""
        with watch_env("close"):
            self._vector.close()

    def _reset_vector(self, mask: Array | None) -> Any:
        # Seeds of successive resets differ by num_envs, because the vector adds up to num_envs - 1 to a seed.
        seed = (self._seed + self._resets * self.num_envs) % (SEED_LIMIT - self.num_envs)
        self._resets += 1
        try:
            return self._vector.reset(seed=seed, options=None if mask is None else {"reset_mask": mask})[0]
        except EnvError:
            raise
        except FOREIGN_ERRORS as error:
            raise _vector_error(f"reset raised {describe_error(error)}") from error

    def _reopen(self, obs: Any, over: Array, info: dict[str, Any]) -> tuple[Tree, Tree]:
        """Return the first observations of the next episodes, and the last ones of the ended episodes (`over`)."""
        if self._mode is AutoresetMode.SAME_STEP:
            if "final_obs" not in info:
                raise self._error(over, "the episode ended without info['final_obs']")
            opened = self._observations(obs, over)
            final = self._replace(opened, over, info["final_obs"], self._never)
            return opened, self._observations(final, self._never)
        final = map_tree(np.copy, self._observations(obs, self._never))
        opened = self._replace(final, over, self._reset_vector(over.copy()), over)
        return self._observations(opened, over), final

    def _replace(self, tree: Tree, rows: Array, batch: Any, opened: Array) -> Tree:
        """Return a copy of `tree` with `rows` taken from `batch`, a tree of arrays or an array of trees."""
        copy: Tree = map_tree(np.copy, tree)
        for index in rows.nonzero()[0].tolist():
            for leaf in self._leaves:
                source = batch[leaf.key] if isinstance(batch, dict) else batch
                row = source[index] if leaf.key is None or source is not batch else source[index][leaf.key]
                try:
                    row = leaf.cast(row)
                    if row.shape != leaf.shape:
                        raise ValueError(f"{leaf.name} has shape {row.shape}, the space says {leaf.shape}")
                except ValueError as error:
                    raise self._error(np.arange(self.num_envs) == index, str(error), opened) from error
                target = copy if isinstance(copy, np.ndarray) else copy[str(leaf.key)]
                target[index] = row
        return copy

    def _finish(self, over: Array, info: dict[str, Any]) -> list[Episode]:
        returns, began, ended = self._returns, self._began, []
        # The reset row of next-step autoreset does not count as a step.
        begin = self._now + (self._mode is AutoresetMode.NEXT_STEP)
        for env in over.nonzero()[0].tolist():  # rarely more than a few, so a loop is faster than arrays
            ended.append(Episode(returns.item(env), self._now - began[env], numbers(info, env, self._tracked)))
            returns[env], began[env] = 0.0, begin
            self._episodes[env] += 1
        return ended

    def _check_flags(self, terminated: Any, truncated: Any) -> None:
        for flags in (terminated, truncated):
            if type(flags) is not np.ndarray or flags.dtype != _BOOL or flags.shape != self._row:
                name = "terminated" if flags is terminated else "truncated"
                raise _vector_error(f"{name} is not an array of {self.num_envs} bools")

    def _check_rewards(self, raw: Any) -> Array:
        if type(raw) is not np.ndarray or raw.shape != self._row or raw.dtype.kind not in "fiub":
            raise _vector_error(f"the rewards are not an array of {self.num_envs} numbers")
        if not _all_finite(raw):
            wrong = ~(np.abs(raw) <= _LARGEST)
            raise self._error(wrong, f"reward is {raw[wrong][0]}")
        rewards: Array = raw if raw.dtype == _FLOAT else raw.astype(np.float32)
        return rewards

    def _observations(self, obs: Any, opened: Array) -> Tree:
        """Return `obs` checked against the space, or raise EnvError. Rows in `opened` belong to the next episode."""
        if self._only is not None:
            return self._check_leaf(self._only, self._shapes[0], obs, opened)
        tree = {}
        for leaf, shape in zip(self._leaves, self._shapes, strict=True):
            if leaf.key not in obs:
                raise _vector_error(f"{leaf.name} is missing")
            tree[str(leaf.key)] = self._check_leaf(leaf, shape, obs[leaf.key], opened)
        return tree

    def _check_leaf(self, leaf: Leaf, shape: tuple[int, ...], value: Any, opened: Array) -> Array:
        array: Array = value
        if type(value) is not np.ndarray or value.dtype != leaf.dtype:
            try:
                array = leaf.cast(value)
            except ValueError as error:
                raise _vector_error(str(error)) from error
        if array.shape != shape:
            raise _vector_error(f"{leaf.name} has shape {array.shape[1:]}, the space says {leaf.shape}")
        if leaf.dtype.kind == "f":
            if not _all_finite(array):
                self._refuse(leaf, array, np.isfinite(array), opened)
        elif leaf.key in self._limits:
            low, high = self._limits[leaf.key]
            inside = (array >= low) & (array <= high)
            if 0 in inside.tobytes():
                self._refuse(leaf, array, inside, opened)
        return array

    def _refuse(self, leaf: Leaf, array: Array, good: Array, opened: Array) -> NoReturn:
        """Raise an EnvError for the first environment whose observation is not `good` everywhere."""
        rows = np.count_nonzero(good.reshape(self.num_envs, -1), axis=1) < array[0].size
        what = f"{leaf.name} holds {array[~good][0]}"
        if leaf.key in self._limits:
            low, high = (np.broadcast_to(end, array.shape)[~good][0] for end in self._limits[leaf.key])
            what += f", the space says {low} to {high}"
        raise self._error(rows, what, opened)

    def _error(self, rows: Array, what: str, opened: Array | None = None) -> EnvError:
        """Return an error that names the first environment in `rows` and the current step."""
        index = int(np.argmax(rows))
        episode, step = self._episodes[index], self._now - self._began[index] + 1
        if opened is not None and opened[index]:
            episode, step = episode + 1, 0
        return EnvError(what, env=index, episode=episode, step=step)


def _any(flags: Array) -> bool:
    """Whether any flag is true; much faster than `.any()` for few flags."""
    return 1 in flags.tobytes()


def _all_finite(numbers: Array) -> bool:
    """Whether all numbers are finite as float32."""
    if numbers.size <= _FEW:
        few = numbers.ravel().tolist()
        # A sum with a NaN or an infinity is not finite. Without NaN, `max` is reliable.
        return math.isfinite(sum(few)) and max(map(abs, few), default=0.0) <= _MOST
    finite = np.isfinite(numbers) if numbers.dtype == _FLOAT else np.abs(numbers) <= _LARGEST
    return 0 not in finite.tobytes()


def _vector_error(what: str) -> EnvError:
    """Return an error of the whole vector, which names no environment."""
    return EnvError(what, env=None, episode=None, step=None)
