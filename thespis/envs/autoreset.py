"""One canonical step for every vector environment; nothing else in the project knows the autoreset modes.

What the three modes return when action a2 ends an episode with observation F, and the next one opens with N:

    next step:   a2 -> F, done    then any action -> N (a row that is no transition)
    same step:   a2 -> N, done    and F in info["final_obs"]
    disabled:    a2 -> F, done    and a masked reset -> N, which is done here at once
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from thespis.core.errors import EnvError, ThespisError
from thespis.core.types import Array, Episode, Tree, map_tree
from thespis.core.watch import watched
from thespis.envs.infos import SUCCESS, numbers
from thespis.envs.spaces import Leaf, env_actions, leaves, limits, observation_space
from thespis.envs.sync import SEEDS, SyncVector

_BOOL, _FLOAT = np.dtype(np.bool_), np.dtype(np.float32)
_LARGEST = np.array(np.finfo(np.float32).max, np.float64)  # compared with faster than a number
"""Rewards beyond it would be infinite as float32."""
_MOST = float(_LARGEST)
_FEW = 16
"""Numbers that are looked at one by one: faster than by arrays, above all where numpy is cold after a wait."""


@dataclass(slots=True)
class EnvStep:
    """What one step of B environments answered. The arrays are valid until the next step: copy what you keep.

    `obs`: `[B, ...]`, what the policy acts on next. `rewards`: float32 `[B]`. `terminated`, `truncated`: bool `[B]`.
    `valid`: bool `[B]`, false where the action was ignored: the environment was reset instead, or is parked.
    `first`: bool `[B]`, `obs` opens an episode.
    `final_obs`: `[B, ...]`, meaningful where an episode ended; None when `obs` itself is the last observation there.
    `episodes`: those that ended here, with the rewards as the environment gave them.
    `usual`: no episode ended or opened, and every row is a transition, which nearly all steps are like: who sees it
    need not look at the flags.
    """

    obs: Tree
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    first: Array
    final_obs: Tree | None
    episodes: list[Episode]
    usual: bool = False

    @property
    def taken(self) -> int:
        """Environment steps that it was: an action that was ignored is none."""
        return len(self.valid) if self.usual else int(np.count_nonzero(self.valid))


class Environments:
    """B environments behind one step, whose every answer is checked before anybody sees it.

    `observation_space` and `action_space` are those of one environment as a policy sees it: floats are float32, and a
    policy's actions count from 0 or live in [-1, 1] (see `env_actions`). A violation raises EnvError; after one the
    environments are in an unknown state and must be reset or rebuilt.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        mode = vector.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ThespisError(f"{vector} does not say its autoreset mode; set metadata['autoreset_mode']")
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
        """Give episodes these numbers of the `info` of their last step, beside `is_success`."""
        self._tracked = tuple(dict.fromkeys((SUCCESS, *names)))

    def _clear(self) -> None:
        self._episodes = [0] * self.num_envs
        self._now = 0  # steps taken; an episode is as long as it began ago
        self._began = [0] * self.num_envs
        self._returns = np.zeros(self.num_envs, np.float64)
        self._never = np.zeros(self.num_envs, np.bool_)
        self._always = np.ones(self.num_envs, np.bool_)
        self._over = self._never.copy()  # episodes that the previous step ended
        self._any_over = False
        self._playing: Array | None = None  # those that are not parked, if some are

    def reset(self, seed: int) -> Tree:
        """Open episode 0 everywhere; the same seed and actions give the same stream."""
        self._clear()
        limit = SEEDS - self.num_envs  # vectors add the environment's index
        self._seed, self._resets = int(np.random.SeedSequence(seed).generate_state(1)[0]) % limit, 0
        self._now = -1  # so that an error names step 0
        obs = self._observations(self._reset_vector(None), self._never)
        self._now = 0
        return obs

    def step(self, actions: Array) -> EnvStep:
        """Take one step everywhere. `actions`: `[B, ...]`, in the policy's units."""
        try:
            obs, raw, terminated, truncated, info = self._vector.step(self._env_actions(actions))
        except EnvError:
            raise
        except Exception as error:
            raise _anywhere(f"step raised {type(error).__name__}: {error}") from error
        self._check_flags(terminated, truncated)
        any_over = _any(terminated) or _any(truncated)
        usual = not (any_over or self._any_over)
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
            first, valid, usual = first & self._playing, valid & self._playing, False
        rewards = self._check_rewards(raw)
        self._returns += raw
        self._now += 1
        episodes = self._finish(over, info) if any_over else []
        return EnvStep(obs, rewards, terminated, truncated, valid, first, final, episodes, usual)

    def park(self, rows: Array) -> int:
        """Do not step these, bool `[B]`, until the next reset; returns how many the next step will step.

        Python environments stay as they are. A native vector steps all that it has, these too.
        """
        if not isinstance(self._vector, SyncVector):
            return self.num_envs
        self._vector.park(rows)
        self._playing = ~rows
        return self.num_envs - int(np.count_nonzero(rows))

    def render(self) -> Array:
        """The picture of environment 0, uint8 `[H, W, 3]`, if it was made with `render_mode="rgb_array"`."""
        try:
            frames: Any = self._vector.render()
        except NotImplementedError:
            frames = None
        except gym.error.DependencyNotInstalled as error:
            raise ThespisError(" ".join(str(error).split())) from error
        if not frames or frames[0] is None:
            raise ThespisError("this environment draws no pictures; choose one that supports render_mode='rgb_array'")
        return np.asarray(frames[0])

    @property
    def render_fps(self) -> int:
        """Pictures per second of real time, as the environment says, else 30."""
        return int(self._vector.metadata.get("render_fps") or 30)

    def close(self) -> None:
        """Close every environment; harmless when done twice."""
        with watched("close"):
            self._vector.close()

    def _reset_vector(self, mask: Array | None) -> Any:
        # A new seed at each reset, apart by num_envs: the vector adds up to num_envs - 1 to it.
        seed = (self._seed + self._resets * self.num_envs) % (SEEDS - self.num_envs)
        self._resets += 1
        try:
            return self._vector.reset(seed=seed, options=None if mask is None else {"reset_mask": mask})[0]
        except EnvError:
            raise
        except Exception as error:
            raise _anywhere(f"reset raised {type(error).__name__}: {error}") from error

    def _reopen(self, obs: Any, over: Array, info: dict[str, Any]) -> tuple[Tree, Tree]:
        """The observations that open the next episodes, and those that closed the ended ones (`over`)."""
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
        """A copy of `tree` with `rows` taken from `batch`, which is a tree of arrays or an array of trees."""
        copy: Tree = map_tree(np.copy, tree)
        for index in rows.nonzero()[0].tolist():
            for leaf in self._leaves:
                source = batch[leaf.key] if isinstance(batch, dict) else batch
                row = source[index] if leaf.key is None or source is not batch else source[index][leaf.key]
                try:
                    row = leaf.mend(row)
                    if row.shape != leaf.shape:
                        raise ValueError(f"{leaf.name} has shape {row.shape}, the space says {leaf.shape}")
                except ValueError as error:
                    raise self._error(np.arange(self.num_envs) == index, str(error), opened) from error
                target = copy if isinstance(copy, np.ndarray) else copy[str(leaf.key)]
                target[index] = row
        return copy

    def _finish(self, over: Array, info: dict[str, Any]) -> list[Episode]:
        returns, began, ended = self._returns, self._began, []
        # The reset row of next-step autoreset is no step.
        begin = self._now + (self._mode is AutoresetMode.NEXT_STEP)
        for env in over.nonzero()[0].tolist():  # seldom more than a few, so faster than by arrays
            ended.append(Episode(returns.item(env), self._now - began[env], numbers(info, env, self._tracked)))
            returns[env], began[env] = 0.0, begin
            self._episodes[env] += 1
        return ended

    def _check_flags(self, terminated: Any, truncated: Any) -> None:
        for flags in (terminated, truncated):
            if type(flags) is not np.ndarray or flags.dtype != _BOOL or flags.shape != self._row:
                name = "terminated" if flags is terminated else "truncated"
                raise _anywhere(f"{name} is not an array of {self.num_envs} bools")

    def _check_rewards(self, raw: Any) -> Array:
        if type(raw) is not np.ndarray or raw.shape != self._row or raw.dtype.kind not in "fiub":
            raise _anywhere(f"the rewards are not an array of {self.num_envs} numbers")
        if not _sound(raw):
            wrong = ~(np.abs(raw) <= _LARGEST)
            raise self._error(wrong, f"reward is {raw[wrong][0]}")
        rewards: Array = raw if raw.dtype == _FLOAT else raw.astype(np.float32)
        return rewards

    def _observations(self, obs: Any, opened: Array) -> Tree:
        """`obs` as the space says, or EnvError; rows of `opened` belong to the episode after the counted one."""
        if self._only is not None:
            return self._check_leaf(self._only, self._shapes[0], obs, opened)
        tree = {}
        for leaf, shape in zip(self._leaves, self._shapes, strict=True):
            if leaf.key not in obs:
                raise _anywhere(f"{leaf.name} is missing")
            tree[str(leaf.key)] = self._check_leaf(leaf, shape, obs[leaf.key], opened)
        return tree

    def _check_leaf(self, leaf: Leaf, shape: tuple[int, ...], value: Any, opened: Array) -> Array:
        array: Array = value
        if type(value) is not np.ndarray or value.dtype != leaf.dtype:
            try:
                array = leaf.mend(value)
            except ValueError as error:
                raise _anywhere(str(error)) from error
        if array.shape != shape:
            raise _anywhere(f"{leaf.name} has shape {array.shape[1:]}, the space says {leaf.shape}")
        if leaf.dtype.kind == "f":
            if not _sound(array):
                self._refuse(leaf, array, np.isfinite(array), opened)
        elif leaf.key in self._limits:
            low, high = self._limits[leaf.key]
            inside = (array >= low) & (array <= high)
            if 0 in inside.tobytes():
                self._refuse(leaf, array, inside, opened)
        return array

    def _refuse(self, leaf: Leaf, array: Array, good: Array, opened: Array) -> NoReturn:
        """Name the first environment whose observation is not `good` everywhere."""
        rows = np.count_nonzero(good.reshape(self.num_envs, -1), axis=1) < array[0].size
        what = f"{leaf.name} holds {array[~good][0]}"
        if leaf.key in self._limits:
            low, high = (np.broadcast_to(end, array.shape)[~good][0] for end in self._limits[leaf.key])
            what += f", the space says {low} to {high}"
        raise self._error(rows, what, opened)

    def _error(self, rows: Array, what: str, opened: Array | None = None) -> EnvError:
        """An error that names the first of `rows`, at the step being taken."""
        index = int(np.argmax(rows))
        episode, step = self._episodes[index], self._now - self._began[index] + 1
        if opened is not None and opened[index]:
            episode, step = episode + 1, 0
        return EnvError(what, env=index, episode=episode, step=step)


def _any(flags: Array) -> bool:
    """Whether one of these bools is true; for a few of them much faster than `.any()`."""
    return 1 in flags.tobytes()


def _sound(numbers: Array) -> bool:
    """Whether all of them are finite, as float32."""
    if numbers.size <= _FEW:
        few = numbers.ravel().tolist()
        # What is not finite does not leave a sum; and where nothing is NaN, the largest is what it seems.
        return math.isfinite(sum(few)) and max(map(abs, few), default=0.0) <= _MOST
    finite = np.isfinite(numbers) if numbers.dtype == _FLOAT else np.abs(numbers) <= _LARGEST
    return 0 not in finite.tobytes()


def _anywhere(what: str) -> EnvError:
    return EnvError(what, env=None, episode=None, step=None)
