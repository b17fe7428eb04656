"""The three autoreset modes give the same stream as a single environment stepped by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from thespis.core.errors import EnvError, ThespisError
from thespis.core.types import map_tree
from thespis.envs.autoreset import Environments
from thespis.envs.sync import SyncVector

STEPS = 120


class Walk(gym.Env[Any, Any]):
    """A walk that ends at +-3 and is truncated after `limit` steps. Observations identify seed, episode and step."""

    def __init__(self, limit: int, as_dict: bool = False) -> None:
        place = Box(-np.inf, np.inf, (3,), np.float64)
        self.observation_space = Dict({"place": place, "parity": Discrete(2)}) if as_dict else place
        self.action_space = Discrete(2)
        self.as_dict, self.limit, self.episode, self.time, self.position = as_dict, limit, -1, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time, self.position = self.episode + 1, 0, 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time, self.position = self.time + 1, self.position + 2 * int(action) - 1
        return self.look(), self.position / 2, abs(self.position) >= 3, self.time >= self.limit, {}

    def look(self) -> Any:
        place = np.array([self.episode, self.time, self.position], np.float64)
        return {"place": place, "parity": self.time % 2} if self.as_dict else place


def policy(obs: Any) -> int:
    """Return pseudo-random actions that depend on the observations, so that walks end in every way."""
    place = obs["place"] if isinstance(obs, dict) else obs
    return hashlib.sha256(bytes(int(value) % 256 for value in place)).digest()[0] & 1


def flat(obs: Any) -> list[float]:
    return [*obs["place"], obs["parity"]] if isinstance(obs, dict) else list(obs)


def reference(env: gym.Env[Any, Any], steps: int) -> tuple[list[Any], list[tuple[float, int]]]:
    """Return transitions (obs, first, reward, terminated, truncated, next obs) and episodes, stepped by hand."""
    transitions, episodes = [], []
    while len(transitions) < steps:
        obs, first, total, length, over = env.reset()[0], True, 0.0, 0, False
        while not over:
            following, reward, terminated, truncated, _ = env.step(policy(obs))
            transitions.append((flat(obs), first, np.float32(reward), terminated, truncated, flat(following)))
            obs, first, total, length, over = following, False, total + reward, length + 1, terminated or truncated
        episodes.append((total, length))
    return transitions, episodes


def collect(environments: Environments, steps: int) -> tuple[list[list[Any]], list[tuple[float, int]]]:
    """Return the transitions of each environment, and all episodes in the order of their reports."""
    count = environments.num_envs
    transitions: list[list[Any]] = [[] for _ in range(count)]
    episodes = []
    obs = map_tree(np.copy, environments.reset(0))
    first = np.ones(count, np.bool_)
    for _ in range(steps):
        rows = [map_tree(lambda leaf, i=i: leaf[i], obs) for i in range(count)]
        step = environments.step(np.array([policy(row) for row in rows]))
        flagged = step.terminated | step.truncated | step.first | ~step.valid
        assert step.mid_episode == (not flagged.any() and step.final_obs is None)
        for i in np.flatnonzero(step.valid):
            ended = step.terminated[i] or step.truncated[i]
            source = step.final_obs if ended and step.final_obs is not None else step.obs
            following = flat(map_tree(lambda leaf, i=i: leaf[i], source))
            transitions[i].append(
                (flat(rows[i]), first[i], step.rewards[i], step.terminated[i], step.truncated[i], following)
            )
        episodes += [(episode.reward, episode.length) for episode in step.episodes]
        obs, first = map_tree(np.copy, step.obs), step.first.copy()
    return transitions, episodes


def vector(mode: AutoresetMode | None, builds: list[Callable[[], gym.Env[Any, Any]]]) -> VectorEnv[Any, Any, Any]:
    """Make Gymnasium's vector in `mode`, or a `SyncVector` for None."""
    if mode is not None:
        return SyncVectorEnv(builds, autoreset_mode=mode)
    remaining = iter(builds)
    return SyncVector(lambda: next(remaining)(), len(builds))


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_every_mode_gives_the_stream_of_single_environments(mode: AutoresetMode | None, as_dict: bool) -> None:
    limits = (1, 4, 7, 1000)
    builds = [lambda limit=limit: Walk(limit, as_dict) for limit in limits]
    transitions, episodes = collect(Environments(vector(mode, builds)), STEPS)
    expected_episodes = []
    for i, limit in enumerate(limits):
        expected, ended = reference(Walk(limit, as_dict), STEPS)
        assert transitions[i] == expected[: len(transitions[i])]
        closed = sum(row[3] or row[4] for row in transitions[i])
        assert closed >= 10
        expected_episodes += ended[:closed]
    assert sorted(episodes) == sorted(expected_episodes)
    flags = {row[3:5] for rows in transitions for row in rows}
    assert {(True, False), (False, True), (True, True)} <= flags  # ended, cut off, and both at once


def test_next_step_rows_that_open_an_episode_are_no_transitions() -> None:
    environments = Environments(SyncVector(lambda: Walk(1), 2))
    environments.reset(0)
    ended, opened = environments.step(np.zeros(2, np.int64)), None
    assert ended.valid.all() and not ended.first.any() and ended.truncated.all() and ended.final_obs is None
    opened = environments.step(np.zeros(2, np.int64))
    assert not opened.valid.any() and opened.first.all() and not opened.truncated.any()
    assert opened.rewards.tolist() == [0.0, 0.0] and opened.episodes == []


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_modes_have_no_invalid_rows_and_keep_the_final_observation(mode: AutoresetMode) -> None:
    environments = Environments(vector(mode, [lambda: Walk(1), lambda: Walk(9)]))
    environments.reset(0)
    step = environments.step(np.ones(2, np.int64))
    assert step.valid.all() and step.first.tolist() == [True, False]
    assert isinstance(step.final_obs, np.ndarray)
    assert step.final_obs[0].tolist() == [0, 1, 1]
    assert np.asarray(step.obs).tolist() == [[1, 0, 0], [0, 1, 1]]
    assert step.final_obs.dtype == np.float32 and np.asarray(step.obs).dtype == np.float32


class Scripted(VectorEnv[Any, Any, Any]):
    """A vector of 3 environments that returns given results."""

    def __init__(self, mode: Any, answers: list[dict[str, Any]]) -> None:
        self.num_envs, self.metadata = 3, {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = Box(-1, 1, (2,), np.float32), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.answers = answers

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answer: dict[str, Any] = {
            "obs": np.zeros((3, 2), np.float32),
            "rewards": np.zeros(3),
            "terminated": np.zeros(3, np.bool_),
            "truncated": np.zeros(3, np.bool_),
            "info": {},
        } | self.answers.pop(0)
        return answer["obs"], answer["rewards"], answer["terminated"], answer["truncated"], answer["info"]


def bad_row(row: int, value: float) -> Any:
    obs = np.zeros((3, 2), np.float32)
    obs[row, 1] = value
    return obs


ENDS_1 = {"terminated": np.array([False, True, False])}


@pytest.mark.parametrize(
    ("mode", "answers", "message"),
    [
        ("NEXT_STEP", [{"rewards": np.array([0, 0, np.nan])}], "env 2, episode 0, step 1: reward is nan"),
        ("NEXT_STEP", [{}, {"rewards": np.array([0, -np.inf, 0])}], "env 1, episode 0, step 2: reward is -inf"),
        ("NEXT_STEP", [{"rewards": np.array([0, 1e300, 0])}], "env 1, episode 0, step 1: reward is 1e+300"),
        ("NEXT_STEP", [{}, {"obs": bad_row(1, np.inf)}], "env 1, episode 0, step 2: observation holds inf"),
        ("NEXT_STEP", [ENDS_1, {"obs": bad_row(1, np.nan)}], "env 1, episode 1, step 0: observation holds nan"),
        ("NEXT_STEP", [ENDS_1, {}, {"obs": bad_row(1, np.nan)}], "env 1, episode 1, step 1: observation holds nan"),
        ("NEXT_STEP", [ENDS_1, {}, {"obs": bad_row(0, np.nan)}], "env 0, episode 0, step 3: observation holds nan"),
        ("NEXT_STEP", [ENDS_1, ENDS_1], "env 1, episode 1, step 0: the episode ended at its reset"),
        ("NEXT_STEP", [{"obs": np.zeros((3, 5), np.float32)}], "observation has shape (5,), the space says (2,)"),
        ("NEXT_STEP", [{"obs": np.zeros((3, 2), complex)}], "observation has dtype complex128, the space says float32"),
        ("NEXT_STEP", [{"terminated": np.zeros(3)}], "terminated is not an array of 3 bools"),
        ("NEXT_STEP", [{"truncated": np.zeros(2, np.bool_)}], "truncated is not an array of 3 bools"),
        ("NEXT_STEP", [{"rewards": np.zeros((3, 1))}], "the rewards are not an array of 3 numbers"),
        ("NEXT_STEP", [], "step raised IndexError: pop from empty list"),
        ("SAME_STEP", [ENDS_1], "env 1, episode 0, step 1: the episode ended without info['final_obs']"),
        (
            "SAME_STEP",
            [ENDS_1 | {"obs": bad_row(1, np.nan), "info": {"final_obs": np.zeros((3, 2), np.float32)}}],
            "env 1, episode 1, step 0: observation holds nan",
        ),
        (
            "SAME_STEP",
            [{}, ENDS_1 | {"info": {"final_obs": bad_row(1, np.nan)}}],
            "env 1, episode 0, step 2: observation holds nan",
        ),
        (
            "SAME_STEP",
            [ENDS_1 | {"info": {"final_obs": np.zeros((3, 1), np.float32)}}],
            "env 1, episode 0, step 1: observation has shape (1,), the space says (2,)",
        ),
        ("DISABLED", [ENDS_1 | {"obs": bad_row(1, np.nan)}], "env 1, episode 0, step 1: observation holds nan"),
        ("DISABLED", [ENDS_1, {"obs": bad_row(1, np.nan)}], "env 1, episode 1, step 1: observation holds nan"),
    ],
)
def test_a_bad_answer_is_named(mode: str, answers: list[Any], message: str) -> None:
    environments = Environments(Scripted(AutoresetMode[mode], list(answers)))
    environments.reset(0)
    for _ in answers[:-1]:
        environments.step(np.zeros(3, np.int64))
    with pytest.raises(EnvError) as caught:
        environments.step(np.zeros(3, np.int64))
    assert str(caught.value) == message


def test_rewards_on_the_reset_row_count_for_nothing() -> None:
    ones = {"rewards": np.ones(3)}
    environments = Environments(Scripted(AutoresetMode.NEXT_STEP, [ones | ENDS_1, ones, ones, ones | ENDS_1]))
    environments.reset(0)
    steps = [environments.step(np.zeros(3, np.int64)) for _ in range(4)]
    assert steps[1].rewards.tolist() == [1, 0, 1]
    assert [(e.reward, e.length) for step in steps for e in step.episodes] == [(1.0, 1), (2.0, 2)]


def test_a_vector_must_say_its_mode() -> None:
    with pytest.raises(ThespisError, match="autoreset mode"):
        Environments(Scripted(None, []))


def test_resets_of_the_disabled_mode_never_share_a_seed() -> None:
    seeds: list[int | None] = []

    class Seeded(Walk):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            seeds.append(seed)
            return super().reset(seed=seed)

    environments = Environments(SyncVectorEnv([lambda: Seeded(2)] * 3, autoreset_mode=AutoresetMode.DISABLED))
    environments.reset(4)
    for _ in range(20):
        environments.step(np.zeros(3, np.int64))
    assert len(seeds) == 33 and len(set(seeds)) == 33 and None not in seeds
