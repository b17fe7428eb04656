"""Odd observations and spaces: out of bounds, empty, tuples, images for an mlp, several agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from thespis import load, train
from thespis.core.config import NetworkConfig
from thespis.core.errors import EnvError, ThespisError
from thespis.envs.make import describe_env, make_envs
from thespis.envs.spaces import limits
from thespis.networks.images import image_notes
from thespis.training.trained_run import RunFailed

SMALL: dict[str, Any] = {
    "actors": 1, "envs_per_actor": 2, "eval_episodes": 1, "total_steps": 200, "quiet": True, "on": "simulation"
}  # fmt: skip


class Shows(gym.Env[Any, Any]):
    """Returns `good` observations, and `bad` ones from step 3 of the second episode on; episodes have 4 steps."""

    def __init__(self, space: Any, good: Any, bad: Any = None, action_space: Any = None) -> None:
        self.observation_space = space
        self.action_space = Discrete(2) if action_space is None else action_space
        self._good, self._bad, self._time = good, bad, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._good, {}

    def step(self, action: Any) -> Any:
        self._time += 1
        return (
            self._bad if self._bad is not None and self._time >= 7 else self._good,
            1.0,
            self._time % 4 == 0,
            False,
            {},
        )


@pytest.mark.parametrize(
    ("space", "good", "bad", "said"),
    [
        (Discrete(5), 4, 5, "observation holds 5, the space says 0 to 4"),
        (Discrete(5, start=2), 6, 1, "observation holds 1, the space says 2 to 6"),
        (MultiDiscrete([3, 4]), np.array([2, 3]), np.array([2, 4]), "observation holds 4, the space says 0 to 3"),
        (MultiBinary(2), np.ones(2, np.int8), np.array([1, -1], np.int8), "holds -1, the space says 0 to 1"),
        (Box(-2, 9, (2,), np.int32), np.array([9, -2], np.int32), np.array([9, 10], np.int32), "holds 10, the space"),
        (Dict({"a": Discrete(3)}), {"a": 2}, {"a": 3}, "observation 'a' holds 3, the space says 0 to 2"),
    ],
    ids=str,
)
def test_an_observation_outside_its_space_is_named(space: Any, good: Any, bad: Any, said: str) -> None:
    made = iter([Shows(space, good), Shows(space, good, bad)])
    envs = make_envs(lambda: next(made), 2)
    envs.reset(0)
    for _ in range(4 + 1 + 2):  # the first episode, the reset, and two steps of the second
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=f"env 1, episode 1, step 3: .*{said}"):
        envs.step(np.zeros(2, np.int64))


def test_a_learner_never_sees_it(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"actor 0: EnvError: env 0, episode 1, step 3: observation holds 9"):
        train("impala", env=lambda: Shows(Discrete(5), 4, 9), run_dir=tmp_path / "run", **SMALL)


def test_what_the_dtype_allows_is_not_looked_at() -> None:
    assert not limits(Box(0, 255, (84, 84, 4), np.uint8)) and not limits(Box(-1.0, 1.0, (3,), np.float32))
    assert limits(Box(0, 254, (2,), np.uint8))


@pytest.mark.parametrize("space", [Box(-1.0, 1.0, (0,)), Box(0, 255, (0, 4, 3), np.uint8), MultiDiscrete([])], ids=str)
def test_spaces_without_numbers_are_refused(space: Any) -> None:
    empty = np.zeros(space.shape, space.dtype)
    with pytest.raises(ThespisError, match=r"observation space .* holds no numbers; leave it out"):
        describe_env(lambda: Shows(space, empty))
    with pytest.raises(ThespisError, match=r"observation space .* holds no numbers"):
        describe_env(lambda: Shows(Dict({"a": Discrete(2), "b": space}), {"a": 0, "b": empty}))
    with pytest.raises(ThespisError, match=r"action space .* holds no numbers; give it at least one"):
        describe_env(lambda: Shows(Discrete(2), 0, action_space=space))


def test_a_tuple_of_observations_is_learned_from_and_acted_on(tmp_path: Path) -> None:
    space, seen = Tuple([Discrete(3), Box(0.0, 1.0, (2,), np.float32)]), (1, np.ones(2, np.float32))
    train("impala", env=lambda: Shows(space, seen), run_dir=tmp_path / "run", **SMALL)
    loaded = load(str(tmp_path / "run"))
    assert loaded.spaces.observation_space == Dict({"0": space[0], "1": space[1]})
    assert loaded.policy.act(seen) == loaded.policy.act({"0": seen[0], "1": seen[1]})


@pytest.mark.parametrize(
    "space", [Tuple([Tuple([Discrete(2)])]), Dict({"a": Tuple([Discrete(2)])}), Tuple([])], ids=str
)
def test_nested_and_empty_tuples_are_refused(space: Any) -> None:
    with pytest.raises(ThespisError, match="flatten it into one non-empty, flat Dict or Tuple"):
        describe_env(lambda: Shows(space, None))


class Parallel:
    """Looks like a PettingZoo environment."""

    possible_agents = ("one", "two")


def test_environments_of_several_agents_are_recognised() -> None:
    with pytest.raises(ThespisError, match="Parallel makes a PettingZoo environment, which has several agents"):
        describe_env(Parallel)  # type: ignore[arg-type]
    with pytest.raises(ThespisError, match=r"makes an object of NoneType; return an instance"):
        describe_env(lambda: None)  # type: ignore[arg-type, return-value]


def test_images_that_an_mlp_reads_are_said(tmp_path: Path) -> None:
    small, auto = Box(0, 255, (7, 7, 3), np.uint8), NetworkConfig()
    (said,) = image_notes(small, auto)
    assert "images of (7, 7, 3) are too small for the default convolutions, which need 36x36" in said
    (said,) = image_notes(Dict({"camera": Box(0.0, 1.0, (64, 64, 3)), "speed": Box(0.0, 1.0, (2,))}), auto)
    assert said.startswith("observation 'camera': (64, 64, 3) of float32 is read by an mlp")
    assert not image_notes(Box(0, 255, (4, 84, 84), np.uint8), auto)
    assert not image_notes(small, NetworkConfig(torso="mlp")), "asked for"
    train("impala", env=lambda: Shows(small, np.zeros((7, 7, 3), np.uint8)), run_dir=tmp_path / "run", **SMALL)
    assert (tmp_path / "run" / "log.txt").read_text().count("an mlp reads them") == 1
